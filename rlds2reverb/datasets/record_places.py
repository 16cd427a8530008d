"""Finds the records of a TFDS data set: in which files, and from which byte."""

import os
from typing import List, NamedTuple

import numpy as np
import tensorflow_datasets as tfds

from rlds2reverb.datasets import record_lengths
from rlds2reverb.datasets import record_order


class Records(NamedTuple):
  """Records, in the order in which TFDS gives them.

  Attributes:
    folder: the folder of the data set.
    names: the names of the files.
    file: int64 `[R]`: the number of the file of each record.
    offset: int64 `[R]`: where in it each record begins.
    length: int64 `[R]`: how many bytes it has.
  """

  folder: str
  names: List[str]
  file: np.ndarray
  offset: np.ndarray
  length: np.ndarray

  def part(self, begin: int, end: int) -> 'Records':
    """Returns some of the records."""
    return Records(*self[:2], *[column[begin:end] for column in self[2:]])

  def path(self, number: int) -> str:
    """Returns the path of the file that has a record."""
    return os.path.join(self.folder, self.names[self.file[number]])


def find_records(builder: tfds.core.DatasetBuilder, split: str) -> Records:
  """Returns the records of a split.

  Raises:
    OSError: if a file has fewer records than it should have.
  """
  instructions = builder.info.splits[split].file_instructions
  paths = [os.fspath(each.filename) for each in instructions]
  begins, lengths = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
  for path, each in zip(paths, instructions):
    found = record_lengths.read_lengths(path, each.skip + each.take)
    if len(found) < each.skip + each.take:
      raise OSError(
          f'{path} is damaged, or compressed: it has {len(found)} whole'
          f' records, but should have at least {each.skip + each.take}. If it'
          ' is compressed, unpack it first, as TFDS does not read it either.'
      )
    sizes = found + record_lengths.FRAME_BYTES
    begins.append((np.cumsum(sizes) - sizes)[each.skip :])
    lengths.append(found[each.skip :])
  counts = np.array([each.take for each in instructions], np.int64)
  file, place = record_order.places_in_order(
      counts, tfds.ReadConfig(), builder.info.disable_shuffling
  )
  folder = os.fspath(builder.data_path)
  # Several parts of a split may be in one file.
  names, numbers = np.unique(
      [os.path.relpath(path, folder) for path in paths], return_inverse=True
  )
  return Records(
      folder,
      names.tolist(),
      numbers[file],
      np.concatenate(begins)[place],
      np.concatenate(lengths)[place],
  )
