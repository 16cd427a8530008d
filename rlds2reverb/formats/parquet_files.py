"""Parquet files whose rows are steps, episode after episode."""

from typing import Any, Iterator, List, Sequence, Tuple

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from rlds2reverb.datasets import files
from rlds2reverb.formats import arrow_columns

# How many rows of a file are read at a time.
_BATCH_SIZE = 256


def open_file(path: str) -> parquet.ParquetFile:
  """Opens a file, on the local disk.

  Raises:
    ValueError: if there is no such file, or if it is damaged.
  """
  with arrow_columns.open_errors(path):
    return parquet.ParquetFile(path)


def find(path: str) -> List[str]:
  """Returns the parquet files at a path, a file or a folder, sorted by name."""
  return [
      found
      for found in files.local_files(path)
      if found == path or found.endswith('.parquet')
  ]


def read_episodes(
    paths: Sequence[str], column: str
) -> Iterator[Tuple[Any, pa.Table]]:
  """Yields the episodes in some files, one after the other.

  Args:
    paths: the files.
    column: the column whose value is the same in all rows of an episode, and
      differs in the rows of the next.

  Yields:
    This value, and the rows of the episode, which may begin in one file and end
    in the next.
  """
  waiting: List[pa.RecordBatch] = []
  for path in paths:
    with open_file(path) as file:
      for batch in file.iter_batches(_BATCH_SIZE):
        values = batch[column].to_numpy(zero_copy_only=False)
        cuts = 1 + np.flatnonzero(values[1:] != values[:-1])
        for begin, end in zip([0, *cuts], [*cuts, len(values)]):
          if waiting and waiting[-1][column][0].as_py() != values[begin]:
            yield waiting[0][column][0].as_py(), pa.Table.from_batches(waiting)
            waiting = []
          waiting.append(batch.slice(begin, end - begin))
  if waiting:
    yield waiting[0][column][0].as_py(), pa.Table.from_batches(waiting)
