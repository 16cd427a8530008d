"""A Reverb checkpoint as the output of a job: parts, joined at the end."""

import os
import tempfile

from rlds2reverb.jobs import estimates
from rlds2reverb.jobs import outputs
from rlds2reverb.replay.checkpoint import merge
from rlds2reverb.replay.checkpoint import parts
from rlds2reverb.replay.checkpoint import records
from rlds2reverb.replay.checkpoint import write

# Items of later tasks have later dates, whenever they were made. A task has
# fewer items than there are nanoseconds between the dates of two tasks.
_FIRST_DATE = 1_500_000_000 * 10**9
_DATES_PER_TASK = 1 << 40
# The bytes of an item's record on disk, compressed, besides the frames.
_RECORD_BYTES = 40


class CheckpointOutput(outputs.FolderOutput):
  """Writes a part of the checkpoint for each task."""

  kind = 'Reverb checkpoint'
  marker = records.DONE
  part_marker = parts.PART_INFO

  def space(self, folder, left, total):
    # The parts stay until they are joined.
    records = _RECORD_BYTES * sum(
        estimates.fewest_items(self.plan, table)
        for table in self.plan.table_items
    )
    return {
        folder: left + records * left // max(total, 1),
        self.plan.output.place: total + records,
    }

  def is_finished(self, folder, receipts):
    """Returns whether there is a checkpoint with the items of all receipts."""
    if len(receipts) < len(self.plan.tasks):
      return False
    if self.adds:
      return not self.has_parts(folder)
    try:
      tables = records.read_tables(self.plan.output.place)
    except (FileNotFoundError, records.CheckpointError):
      return False
    expected = {
        table['table_name']: sum(
            receipt.items[table['table_name']] for receipt in receipts.values()
        )
        for table in self.plan.tables
    }
    # Items of repaired episodes may have been added since.
    return expected.keys() == tables.keys() and all(
        records.num_items(tables[name]) >= count
        for name, count in expected.items()
    )

  def write(self, number, folder, episodes):
    part = self.new_part(folder, number)
    items = parts.write_part(
        episodes.frames(),
        part,
        inserted_at=_FIRST_DATE + number * _DATES_PER_TASK,
    )
    return outputs.Written(items, {})

  def finish(self, folder, spec, receipts):
    if not self.adds:
      self._join(folder, self.plan.output.place, spec)
      return
    # Adding items that are there already changes nothing, so this may be
    # interrupted and done again.
    with tempfile.TemporaryDirectory(dir=folder) as parent:
      joined = os.path.join(parent, 'joined')
      self._join(folder, joined, spec)
      merge.merge_reverb_checkpoints(
          [self.plan.output.place, joined],
          self.plan.output.place,
          overwrite=True,
      )

  def check_addition(self, spec):
    tables = records.read_tables(self.plan.output.place)
    names = [table.table_name for table in self.plan.table_items]
    if sorted(tables) != sorted(names):
      raise ValueError(
          f'The checkpoint {self.plan.output.place} has the tables'
          f' {sorted(tables)}, and the items are of {sorted(names)}.'
      )
    for name in names:
      fresh = write.table_checkpoint(name, None, 0, spec)
      if fresh.signature != tables[name].signature:
        raise ValueError(
            f'The signature of table {name!r} in {self.plan.output.place} does'
            ' not fit the data.'
        )

  def _join(self, folder, directory, spec) -> None:
    parts.join_parts(self.parts(folder), directory, spec)
