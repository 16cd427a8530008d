"""A Reverb checkpoint as the output of a job: parts, joined at the end."""

import os
import tempfile

from rlds2reverb.jobs import outputs
from rlds2reverb.jobs import sources as sources_lib
from rlds2reverb.replay.checkpoint import merge
from rlds2reverb.replay.checkpoint import parts as parts_lib
from rlds2reverb.replay.checkpoint import records

# Items of later tasks have later dates, whenever they were made. A task has
# fewer items than there are nanoseconds between the dates of two tasks.
_FIRST_DATE = 1_500_000_000 * 10**9
_DATES_PER_TASK = 1 << 40


class CheckpointOutput(outputs.FolderOutput):
  """Writes a part of the checkpoint for each task."""

  kind = 'Reverb checkpoint'
  marker = records.DONE
  part_marker = parts_lib.PART_INFO

  def write(self, number, episodes):
    items = parts_lib.write_part(
        episodes.frames(),
        self.new_part(number),
        inserted_at=_FIRST_DATE + number * _DATES_PER_TASK,
    )
    return items, {}

  def join(self, receipts):
    parts = list(map(self.job.part, sorted(receipts)))
    source = self.plan.sources[self.plan.tasks[0].source]
    spec = sources_lib.open_source(source).frame_spec()
    if not self.adds:
      parts_lib.join_parts(parts, self.place, spec)
      return
    # Adding items that are there already changes nothing, so this may be
    # interrupted and done again.
    with tempfile.TemporaryDirectory(dir=self.job.folder) as parent:
      joined = os.path.join(parent, 'joined')
      parts_lib.join_parts(parts, joined, spec)
      merge.merge_reverb_checkpoints(
          [self.place, joined], self.place, overwrite=True
      )
