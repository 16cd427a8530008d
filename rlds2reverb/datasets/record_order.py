"""The order in which TFDS gives the records of several files."""

import os
from typing import Callable, Tuple

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import private


def record_order(
    firsts: np.ndarray,
    counts: np.ndarray,
    read_config: tfds.ReadConfig,
    in_order: bool,
) -> tf.data.Dataset:
  """Returns the file and the number of each record, in the order of TFDS.

  Args:
    firsts: int64 `[F]`: the number of the first record that is read of a file.
    counts: int64 `[F]`: how many are read of it.
    read_config: the options of TFDS.
    in_order: whether one file is read after the other.

  Returns:
    A data set of pairs: the index of a file, and the number of a record in it.
  """
  files = tf.data.Dataset.from_tensor_slices(
      (np.arange(len(counts)), firsts, firsts + counts)
  )

  def records_of(file, first, stop):
    return tf.data.Dataset.zip(
        (
            tf.data.Dataset.from_tensors(file).repeat(),
            tf.data.Dataset.range(first, stop),
        )
    )

  return files.interleave(
      graphs.no_autograph(records_of),
      cycle_length=private.cycle_length_of(read_config, in_order),
      block_length=read_config.interleave_block_length,
  )


def places_in_order(
    counts: np.ndarray, read_config: tfds.ReadConfig, in_order: bool
) -> Tuple[np.ndarray, np.ndarray]:
  """Returns where each record is, in the order of TFDS.

  Args:
    counts: int64 `[F]`: how many records are read of each file.
    read_config: the options of TFDS.
    in_order: whether one file is read after the other.

  Returns:
    int64 `[R]`, twice: the file of each record, and its place among those of
    all files, one file after the other.
  """
  order = record_order(np.zeros_like(counts), counts, read_config, in_order)
  pairs = order.batch(1 << 16).as_numpy_iterator()
  file, record = np.concatenate([np.zeros([2, 0], np.int64), *pairs], 1)
  return file, (np.cumsum(counts) - counts)[file] + record


def record_descriptions(
    builder: tfds.core.DatasetBuilder, split: str, read_config: tfds.ReadConfig
) -> Callable[[tf.Tensor], tf.Tensor]:
  """Returns a function that names the place of a record.

  Args:
    builder: the builder of a data set on disk, whose records come in the same
      order each time.
    split: one TFDS split.
    read_config: the options of TFDS.

  Returns:
    A function, in graph mode, of the index of a record among those of the
    split, int64 `[]`. It returns string `[]`, such as `record 7 of FILE`.
  """
  files = builder.info.splits[split].file_instructions
  firsts = np.array([file.skip for file in files], np.int64)
  counts = np.array([file.take for file in files], np.int64)

  def describe(index):
    order = record_order(
        firsts, counts, read_config, builder.info.disable_shuffling
    )
    file, record = order.skip(index).take(1).get_single_element()
    paths = tf.constant([os.fspath(one.filename) for one in files])
    return tf.strings.join(
        [
            'record ',
            tf.strings.as_string(record),
            ' of ',
            tf.gather(paths, file),
        ]
    )

  return describe
