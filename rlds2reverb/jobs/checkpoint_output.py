"""A Reverb checkpoint as the output of a job: parts, joined at the end."""

from rlds2reverb.jobs import outputs
from rlds2reverb.replay.checkpoint import joining
from rlds2reverb.replay.checkpoint import merge
from rlds2reverb.replay.checkpoint import records
from rlds2reverb.replay.checkpoint import write

# Items of later tasks have later dates, whenever they were made. A task has
# fewer items than there are nanoseconds between the dates of two tasks.
_FIRST_DATE = 1_500_000_000 * 10**9
_DATES_PER_TASK = 1 << 40


class CheckpointOutput(outputs.FolderOutput):
  """Writes a checkpoint of the items of each task."""

  kind = 'Reverb checkpoint'
  marker = records.DONE
  part_marker = records.DONE

  def write(self, number, episodes):
    items = write.write_checkpoint(
        episodes.frames(),
        self.new_part(number),
        inserted_at=_FIRST_DATE + number * _DATES_PER_TASK,
        replace=True,
    )
    return items, {}

  def join(self, receipts):
    parts = list(map(self.job.part, sorted(receipts)))
    if not self.adds:
      joining.join_checkpoints(parts, self.place)
      return
    # Adding items that are there already changes nothing, so this may be
    # interrupted and done again.
    merge.merge_reverb_checkpoints(
        [self.place, *parts], self.place, overwrite=True
    )
