"""A Reverb checkpoint as the output of a job: parts, joined at the end."""

import os
import shutil
from typing import List

from rlds2reverb.datasets import files
from rlds2reverb.jobs import outputs
from rlds2reverb.replay.checkpoint import parts
from rlds2reverb.replay.checkpoint import records

_PARTS = 'parts'
# Items of later tasks have later dates, whenever they were made. A task has
# fewer items than there are nanoseconds between two of these.
_FIRST_DATE = 1_500_000_000 * 10**9
_DATES_PER_TASK = 1 << 40


class CheckpointOutput(outputs.Output):
  """Writes a part of the checkpoint for each task."""

  def check(self, spec, receipts) -> List[str]:
    place = self.plan.output.place
    if self.is_finished(receipts):
      return [f'to the Reverb checkpoint {place}']
    if files.names_in(place):
      raise FileExistsError(
          f'{place} is not empty, and not the output of this job. Choose'
          ' another directory, or remove it.'
      )
    return [f'to a new Reverb checkpoint {place}']

  def is_finished(self, receipts):
    """Returns whether there is a checkpoint that holds what receipts say."""
    if len(receipts) < len(self.plan.tasks):
      return False
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
    return expected == {
        name: records.num_items(table) for name, table in tables.items()
    }

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
    parts.join_parts(
        [
            self._part(folder, number)
            for number in range(len(self.plan.tasks))
        ],
        self.plan.output.place,
        spec,
        on_bytes=on_bytes,
    )

  def clean(self, folder: str) -> None:
    """Removes the parts, which are in the checkpoint now."""
    shutil.rmtree(os.path.join(folder, _PARTS), ignore_errors=True)

  def _part(self, folder, number):
    return os.path.join(folder, _PARTS, f'{number:05d}')
