"""Files of records: TFRecord and ArrayRecord.

A record is an episode as TFDS stores it, before it is parsed. In a TFRecord
file, each record has a header of 12 bytes, whose first 8 bytes are its length,
and ends with a checksum of 4 bytes. The lengths are found by going from header
to header, in about 0.3 microseconds a record.

TFDS reads ArrayRecord files by `data_source` only, in Python. `tf.data` has no
operation for them, so a Python function reads about 2 MiB of records at a time.
"""

import array
from collections.abc import Sequence
import mmap
import os
import struct
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from rlds2reverb.datasets import files
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import errors
from rlds2reverb.episodes import tf_private
from rlds2reverb.store import array_records
from rlds2reverb.store import damage

# The bytes in a TFRecord file for each record, in addition to its content.
FRAME_BYTES = 12 + 4
_LENGTH = struct.Struct('<Q')

# The names of operations that call Python; see `fingerprints`.
_CHECK_LENGTHS = 'rlds2reverb_check_lengths'
_READ_ARRAY_RECORDS = 'rlds2reverb_read_array_records'

# One call of Python reads ArrayRecord files until it has this much.
_MAX_BYTES = 2 << 20
_MAX_RECORDS = 2048
_CHUNK_RECORDS = 16


def read_file(
    file_format: Any, path: str, skip: int, take: int
) -> tf.data.Dataset:
  """Returns records of one file, string `[]`.

  Args:
    file_format: the format of the file; see `tf_private.file_format_of`.
    path: the path of the file.
    skip: the number of records that are skipped.
    take: the number of records that are read; -1 for all.
  """
  if file_format == tf_private.ARRAY_RECORD:
    return read_array_records(path, skip, take)
  return read_tfrecords(path).skip(skip).take(take)


@tf_private.do_not_convert
def read_tfrecords(
    path: Any, buffer_size: int | None = None
) -> tf.data.Dataset:
  """Returns the records of a TFRecord file, whose lengths are checked first.

  TensorFlow allocates the length of a record before it reads the record, so a
  wrong length would end the process. Here the records before it come out, and
  then an error that `errors.restore` turns into a `DataLossError`.

  Args:
    path: string `[]`.
    buffer_size: see `tf.data.TFRecordDataset`.
  """
  path = tf.convert_to_tensor(path, tf.string)
  count = tf.numpy_function(
      _count_readable, [path], tf.int64, stateful=False, name=_CHECK_LENGTHS
  )
  count = tf.ensure_shape(count, [])

  def raise_error(path, record):
    raise tf.errors.DataLossError(
        None,
        None,
        f'{os.fsdecode(path)} is damaged: the length of record {record} is'
        ' larger than the file.',
    )

  def fail(unused_number):
    record = tf.numpy_function(
        raise_error,
        [path, count],
        tf.string,
        stateful=False,
        name=_CHECK_LENGTHS,
    )
    return tf.ensure_shape(record, [])

  num_errors = tf.cast(count >= 0, tf.int64)
  records = tf.data.TFRecordDataset(path, buffer_size=buffer_size)
  return records.take(count).concatenate(
      tf.data.Dataset.range(num_errors).map(fail)
  )


def _count_readable(path: Any) -> np.int64:
  """Returns the number of records before a wrong length; -1 without any.

  A truncated file is left to TensorFlow, as is a file that is not on the local
  disk.
  """
  number = position = 0
  try:
    with open(os.fsdecode(np.asarray(path).item()), 'rb') as f:
      size = os.fstat(f.fileno()).st_size
      # A truncated record is smaller than the file, so it needs little memory.
      while position + _LENGTH.size <= size:
        [length] = _LENGTH.unpack(os.pread(f.fileno(), _LENGTH.size, position))
        if length > size:
          return np.int64(number)
        position += length + FRAME_BYTES
        number += 1
  except OSError:
    pass  # Reading the records will raise the error.
  return np.int64(-1)


def read_lengths(path: str, stop: int) -> np.ndarray:
  """Returns the lengths of the first records of a TFRecord file, in bytes.

  Args:
    path: the path of a local file.
    stop: the number of records.

  Returns:
    int64 `[R]`: fewer than `stop` if the file has fewer complete records, or if
    a header is damaged. Reading the records will raise the error.

  Raises:
    FileNotFoundError: if there is no such file.
    OSError: if the file cannot be read.
  """
  if not os.path.isfile(path):
    raise FileNotFoundError(damage.missing(path))
  lengths = array.array('q')
  add, unpack, position = lengths.append, _LENGTH.unpack_from, 0
  with open(path, 'rb') as f:
    size = os.fstat(f.fileno()).st_size
    if size:
      with mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as content:
        last_header = size - FRAME_BYTES
        while position <= last_header and len(lengths) < stop:
          length = unpack(content, position)[0]
          position += length + FRAME_BYTES
          if position > size:
            break
          add(length)
  return np.array(lengths, np.int64)


@tf_private.do_not_convert
def read_array_record_files(
    instructions: Sequence[Any],
    read_config: tfds.ReadConfig,
    shuffle_files: bool,
    cycle_length: int | None,
) -> tf.data.Dataset:
  """Reads ArrayRecord files as TFDS reads TFRecord files, with its options.

  Args:
    instructions: the TFDS `FileInstruction`s of a split.
    read_config: the options of TFDS.
    shuffle_files: whether the files are read in a random order.
    cycle_length: the number of files that are read in turn.

  Returns:
    A data set of dicts with the string of each record, and with `tfds_id` if
    `read_config` requests it.

  Raises:
    ValueError: if a file is not on the local disk.
    DataLossError, NotFoundError: while iterating, if a file is damaged or
      missing. TensorFlow raises an UnknownError, which `errors.restore` turns
      into these.
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
    records = read_array_records(path, skip, take)
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


@tf_private.do_not_convert
def read_array_records(path: Any, skip: Any, take: Any) -> tf.data.Dataset:
  """Returns records of one ArrayRecord file, string `[]`.

  Args:
    path: string `[]`: the path of the file.
    skip: int64 `[]`: the number of records that are skipped.
    take: int64 `[]`: the number of records that are read; -1 for all.
  """
  path, skip = tf.convert_to_tensor(path), tf.cast(skip, tf.int64)
  reads_all = tf.equal(take, -1)
  stop = tf.where(reads_all, tf.int64.max, skip + take)

  def read_next(begin, _):
    records = tf.numpy_function(
        _read_array_records,
        [path, begin, stop],
        tf.string,
        stateful=False,
        name=_READ_ARRAY_RECORDS,
    )
    records = tf.ensure_shape(records, [None])
    return begin + tf.size(records, tf.int64), records

  # Each call reads one record or more, until there are no more.
  calls = tf.data.Dataset.range(stop - skip).scan(skip, read_next)
  return calls.take_while(lambda records: tf.size(records) > 0).unbatch()


def _read_array_records(path: bytes, begin: int, stop: int) -> np.ndarray:
  """Returns records from `begin` on, about 2 MiB of them."""
  records: list[bytes] = []
  try:
    file = array_records.open_file(os.fsdecode(path))
    if stop == tf.int64.max:
      stop = file.num_records
    if file.num_records <= begin < stop:
      file.check_count(stop)  # This raises the error.
    stop, num_bytes = min(stop, file.num_records), 0
    while begin < stop and num_bytes < _MAX_BYTES:
      # Their sizes are not known before they are read, so a chunk has only a
      # few, and no more than would fill the rest by their mean size.
      left = (_MAX_BYTES - num_bytes) * len(records) // max(num_bytes, 1)
      count = max(min(left, _CHUNK_RECORDS, stop - begin), 1)
      chunk = file.read(begin, begin + count)
      records += chunk
      num_bytes += sum(map(len, chunk))
      begin += count
      if len(records) >= _MAX_RECORDS:
        break
  except OSError as e:
    if not records:  # Otherwise the next call raises the error.
      is_missing = isinstance(e, FileNotFoundError)
      kind = tf.errors.NotFoundError if is_missing else tf.errors.DataLossError
      raise kind(None, None, str(e)) from e
  return np.array(records, object)


def find_damage(
    path: str,
    records: tf.data.Dataset,
    num_episodes: int,
    *,
    is_exact: bool = False,
) -> str:
  """Returns a sentence on the damage of a file, or an empty string.

  Args:
    path: the path of the file.
    records: all records of the file.
    num_episodes: the minimum number of records.
    is_exact: whether more records are an error, too.
  """
  count = 0
  try:
    for _ in records:
      count += 1
  except tf.errors.OpError as error:
    kind, message = errors.restore(error)
    if kind is tf.errors.NotFoundError:
      return damage.missing(path)
    pointer = files.pointer_hint(path)
    if pointer:
      return pointer
    if message.startswith(path):
      return message  # It has the place and advice already.
    return (
        f'{path} is damaged after {checks.counted(count, "complete episode")}:'
        f' {message}. {damage.ADVICE}'
    )
  if count == num_episodes or (count > num_episodes and not is_exact):
    return ''
  return (
      f'{path} has {checks.counted(count, "episode")}, but dataset_info.json'
      f' says {num_episodes}. {damage.ADVICE}'
  )
