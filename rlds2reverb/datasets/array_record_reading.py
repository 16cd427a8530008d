"""Reads TFDS files in ArrayRecord format as `tf.data`.

TFDS reads them by `data_source` only, in Python. `tf.data` has no operation for
them, so a Python function reads about 2 MiB of records at a time.
"""

import os
from typing import Any, List, Optional, Sequence

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from rlds2reverb.datasets import files
from rlds2reverb.episodes import tf_private
from rlds2reverb.store import array_records

# Pipelines know the operation that reads records by this name.
READ_RECORDS = 'rlds2reverb_read_array_records'

# One call of the Python function reads on until it has this much.
_MAX_BYTES = 2 << 20
_MAX_RECORDS = 2048
_FEW = 16


def read_records(
    instructions: Sequence[Any],
    read_config: tfds.ReadConfig,
    shuffle_files: bool,
    cycle_length: Optional[int],
) -> tf.data.Dataset:
  """Reads records as TFDS reads TFRecord files, with the same options.

  Args:
    instructions: the TFDS `FileInstruction`s of a split.
    read_config: the options of TFDS.
    shuffle_files: whether the files are read in a random order.
    cycle_length: how many files are read at a time.

  Returns:
    A data set of dicts with the string of each record, and with `tfds_id` if
    `read_config` asks for it.

  Raises:
    ValueError: if a file is not on the local disk.
    DataLossError, NotFoundError: while iterating, if a file is damaged or
      missing. TensorFlow raises an UnknownError, of which `errors.restore`
      makes them.
  """
  if read_config.experimental_interleave_sort_fn is not None:
    instructions = read_config.experimental_interleave_sort_fn(instructions)
  paths = [os.fspath(part.filename) for part in instructions]
  for path in paths:
    if files.is_url(path):
      raise ValueError(
          f'{path} is an ArrayRecord file, which must be on the local disk to'
          ' be read. Copy the data set there first.'
      )
  parts = tf.data.Dataset.from_tensor_slices(
      (
          paths,
          tf_private.id_prefixes_of(instructions),
          np.array([part.skip for part in instructions], np.int64),
          np.array([part.take for part in instructions], np.int64),
      )
  )
  if context := read_config.input_context:
    parts = parts.shard(context.num_input_pipelines, context.input_pipeline_id)
  if shuffle_files:
    parts = parts.shuffle(
        len(paths),
        seed=read_config.shuffle_seed,
        reshuffle_each_iteration=read_config.shuffle_reshuffle_each_iteration,
    )
  if read_config.repeat_filenames:
    parts = parts.repeat()
  is_random = (
      shuffle_files
      and read_config.shuffle_seed is None
      and read_config.options.deterministic is None
  )

  def read_part(path, prefix, skip, take):
    records = read_file(path, skip, take)
    if not read_config.add_tfds_id:
      return records.map(lambda record: {tf_private.RECORD: record})
    numbered = tf.data.Dataset.zip((tf.data.Dataset.counter(skip), records))
    return numbered.map(
        lambda number, record: {
            tf_private.RECORD: record,
            'tfds_id': tf.strings.join(
                [prefix, tf.strings.as_string(number)], '__'
            ),
        }
    )

  records = parts.interleave(
      read_part,
      cycle_length=cycle_length,
      block_length=read_config.interleave_block_length,
      num_parallel_calls=read_config.num_parallel_calls_for_interleave_files,
      deterministic=not is_random,
  )
  if read_config.assert_cardinality and not read_config.input_context:
    count = sum(part.take for part in instructions)
    if read_config.repeat_filenames:
      count = tf.data.INFINITE_CARDINALITY
    records = records.apply(tf.data.experimental.assert_cardinality(count))
  return records.with_options(read_config.options)


def read_file(path: Any, skip: Any, take: Any) -> tf.data.Dataset:
  """Returns a data set of records of one file, string `[]`.

  Args:
    path: string `[]`: the path of the file.
    skip: int64 `[]`: the first record.
    take: int64 `[]`: how many records are read; -1 for all.
  """
  path, skip = tf.convert_to_tensor(path), tf.cast(skip, tf.int64)
  reads_all = tf.equal(take, -1)
  stop = tf.where(reads_all, tf.int64.max, skip + take)

  def read_next(begin, _):
    records = tf.numpy_function(
        _read, [path, begin, stop], tf.string, stateful=False, name=READ_RECORDS
    )
    records = tf.ensure_shape(records, [None])
    return begin + tf.size(records, tf.int64), records

  # Each call reads one record or more, until there are no more.
  calls = tf.data.Dataset.range(stop - skip).scan(skip, read_next)
  return calls.take_while(lambda records: tf.size(records) > 0).unbatch()


def _read(path: bytes, begin: int, stop: int) -> np.ndarray:
  """Returns records from `begin` on, about 2 MiB of them."""
  records: List[bytes] = []
  try:
    file = array_records.open_file(os.fsdecode(path))
    if stop == tf.int64.max:
      stop = file.num_records
    if file.num_records <= begin < stop:
      file.check_count(stop)  # This raises the error.
    stop, num_bytes = min(stop, file.num_records), 0
    while begin < stop and num_bytes < _MAX_BYTES:
      # Their sizes are not known before they are read, so only a few are read
      # at once, and no more than would fill the rest by their mean size.
      left = (_MAX_BYTES - num_bytes) * len(records) // max(num_bytes, 1)
      count = max(min(left, _FEW, stop - begin), 1)
      found = file.read(begin, begin + count)
      records += found
      num_bytes += sum(map(len, found))
      begin += count
      if len(records) >= _MAX_RECORDS:
        break
  except OSError as e:
    if not records:  # Else the next call raises the error.
      is_missing = isinstance(e, FileNotFoundError)
      kind = tf.errors.NotFoundError if is_missing else tf.errors.DataLossError
      raise kind(None, None, str(e)) from e
  return np.array(records, object)
