"""A Reverb checkpoint as the output of a job: parts, joined at the end."""

import os
import shutil
import tempfile
from typing import List

from rlds2reverb.datasets import files
from rlds2reverb.jobs import outputs
from rlds2reverb.replay.checkpoint import merge
from rlds2reverb.replay.checkpoint import parts
from rlds2reverb.replay.checkpoint import records
from rlds2reverb.replay.checkpoint import write

_PARTS = 'parts'
# Items of later tasks have later dates, whenever they were made. A task has
# fewer items than there are nanoseconds between two of these.
_FIRST_DATE = 1_500_000_000 * 10**9
_DATES_PER_TASK = 1 << 40


class CheckpointOutput(outputs.Output):
  """Writes a part of the checkpoint for each task."""

  def check(self, folder, spec, receipts) -> List[str]:
    place = self.plan.output.place
    if self.is_finished(folder, receipts):
      return [f'to the Reverb checkpoint {place}']
    if self._adds:
      self._check_addition(spec)
      return [f'into the Reverb checkpoint {place}, beside what it holds']
    if files.names_in(place):
      raise FileExistsError(
          f'{place} is not empty, and not the output of this job. Choose'
          ' another directory, or remove it.'
      )
    return [f'to a new Reverb checkpoint {place}']

  def is_finished(self, folder, receipts):
    """Returns whether there is a checkpoint that holds what receipts say."""
    if len(receipts) < len(self.plan.tasks):
      return False
    if self._adds:
      # What is left of the tasks is removed when all else is done.
      return not os.path.isdir(os.path.join(folder, _PARTS))
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
    # Items of episodes that were repaired may have come later.
    return expected.keys() == tables.keys() and all(
        records.num_items(tables[name]) >= count
        for name, count in expected.items()
    )

  def lost(self, folder, receipts):
    return {
        number: f'their output in {folder} is not there any more'
        for number in receipts
        if not os.path.isdir(self._part(folder, number))
    }

  def write(self, number, folder, frames, episodes):
    part = self._part(folder, number)
    os.makedirs(os.path.dirname(part), exist_ok=True)
    items = parts.write_part(
        frames,
        part,
        identity=episodes.identity,
        inserted_at=_FIRST_DATE + number * _DATES_PER_TASK,
    )
    return outputs.Written(
        dict(items),
        {'bytes': sum(file.stat().st_size for file in os.scandir(part))},
    )

  def finish(self, folder, spec, receipts, on_bytes):
    if not self._adds:
      self._join(folder, self.plan.output.place, spec, on_bytes)
      return
    # To add items that are there already changes nothing, so this may be
    # interrupted and done again.
    with tempfile.TemporaryDirectory(dir=folder) as parent:
      joined = os.path.join(parent, 'joined')
      self._join(folder, joined, spec, on_bytes)
      merge.merge_reverb_checkpoints(
          [self.plan.output.place, joined],
          self.plan.output.place,
          overwrite=True,
      )

  def clean(self, folder: str) -> None:
    """Removes the parts, which are in the checkpoint now."""
    shutil.rmtree(os.path.join(folder, _PARTS), ignore_errors=True)

  @property
  def _adds(self) -> bool:
    """Whether repaired episodes go into a checkpoint that is there."""
    return self.plan.only is not None and bool(
        files.names_in(self.plan.output.place)
    )

  def _check_addition(self, spec) -> None:
    """Raises an error if the checkpoint cannot take the items."""
    tables = records.read_tables(self.plan.output.place)
    names = [table.table_name for table in self.plan.table_items]
    if sorted(tables) != sorted(names):
      raise ValueError(
          f'The checkpoint {self.plan.output.place} has the tables'
          f' {sorted(tables)}, and the items are of {sorted(names)}.'
      )
    for name, settings in write.describe_tables(names, ()).items():
      fresh = write.table_checkpoint(settings, 0, spec)
      if fresh.signature != tables[name].signature:
        raise ValueError(
            f'The signature of table {name!r} in {self.plan.output.place} does'
            ' not fit the data.'
        )

  def _join(self, folder, directory, spec, on_bytes) -> None:
    parts.join_parts(
        [
            self._part(folder, number)
            for number in range(len(self.plan.tasks))
        ],
        directory,
        spec,
        on_bytes=on_bytes,
    )

  def _part(self, folder, number):
    return os.path.join(folder, _PARTS, f'{number:05d}')
