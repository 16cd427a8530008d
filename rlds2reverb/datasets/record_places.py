"""Where the records of TFDS files are, and the order in which TFDS gives them.

A TFRecord file is a sequence of records. Each has a header of 12 bytes, whose
first 8 bytes are its length, and a checksum of 4 bytes at its end. The lengths
are found by going from header to header, in about 0.3 microseconds a record.
"""

import array
import functools
import heapq
import json
import mmap
import os
import struct
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from rlds2reverb.datasets import files
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import errors
from rlds2reverb.episodes import tf_private
from rlds2reverb.store import array_records
from rlds2reverb.store import damage

# The bytes in the file for each record, besides its content.
FRAME_BYTES = 12 + 4
_LENGTH = struct.Struct('<Q')
# Pipelines know the operation that checks a file by this name.
CHECK_LENGTHS = 'rlds2reverb_check_lengths'


class Records(NamedTuple):
  """Records, in the order in which TFDS gives them.

  Attributes:
    folder: the folder of the data set.
    names: the names of the files.
    file: int64 `[R]`: the number of the file of each record.
    is_array_record: whether these are ArrayRecord files, and not TFRecord.
    offset: int64 `[R]`: where in it each record begins; of ArrayRecord, the
      number of the record in its file.
    length: int64 `[R]`: how many bytes it has; of ArrayRecord, how many bytes
      of its file each record has on average.
  """

  folder: str
  names: List[str]
  is_array_record: bool
  file: np.ndarray
  offset: np.ndarray
  length: np.ndarray

  def part(self, begin: int, end: int) -> 'Records':
    """Returns some of the records."""
    return Records(*self[:3], *[column[begin:end] for column in self[3:]])

  def path(self, number: int) -> str:
    """Returns the path of the file that has a record."""
    return os.path.join(self.folder, self.names[self.file[number]])


def find_records(builder: tfds.core.DatasetBuilder, split: str) -> Records:
  """Returns the records of a split.

  Raises:
    FileNotFoundError: if a file is missing.
    OSError: if a file has fewer records than it should have, or is a Git LFS
      pointer.
  """
  order = order_of(builder, split, tfds.ReadConfig())
  is_array_record = (
      tf_private.file_format_of(builder) == tf_private.ARRAY_RECORD
  )
  look_up = _mean_lengths if is_array_record else read_lengths
  lengths = [look_up(path, skip + count) for path, skip, count in order.parts]
  for (path, skip, count), found in zip(order.parts, lengths):
    if len(found) < skip + count:
      raise OSError(
          damage.pointer_hint(path)
          or f'{path} is damaged, or compressed: it has {len(found)} whole'
          f' records, but should have at least {skip + count}. If it is'
          ' compressed, unpack it first, as TFDS does not read it either.'
      )
  if is_array_record:
    begins = [np.arange(len(found)) for found in lengths]
  else:
    sizes = [found + FRAME_BYTES for found in lengths]
    begins = [np.cumsum(one) - one for one in sizes]
  file, place = order.find()
  join = lambda columns: np.concatenate(
      [np.zeros(0, np.int64)]
      + [column[skip:] for column, (_, skip, _) in zip(columns, order.parts)]
  )
  folder = os.fspath(builder.data_path)
  # Several parts of a split may be in one file.
  names, numbers = np.unique(
      [os.path.relpath(path, folder) for path, _, _ in order.parts],
      return_inverse=True,
  )
  return Records(
      folder,
      names.tolist(),
      is_array_record,
      numbers[file],
      join(begins)[place],
      join(lengths)[place],
  )


def _mean_lengths(path: str, stop: int) -> np.ndarray:
  """Returns the mean length of an ArrayRecord file's records, `stop` times.

  Raises:
    OSError: if the file is damaged, or has fewer than `stop` records.
  """
  file = array_records.open_file(path)
  file.check_count(stop)
  return np.full(stop, os.path.getsize(path) // max(file.num_records, 1))


def read_lengths(path: str, stop: int) -> np.ndarray:
  """Returns the lengths of the first records of a TFRecord file, in bytes.

  Args:
    path: the path of a local file.
    stop: the number of records to look at.

  Returns:
    int64 `[R]`: fewer than `stop` if the file has fewer whole ones, or if the
    header of one is damaged. Reading the records will raise the error.

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
        # Where the last header begins at the latest.
        last = size - FRAME_BYTES
        while position <= last and len(lengths) < stop:
          length = unpack(content, position)[0]
          position += length + FRAME_BYTES
          if position > size:
            break
          add(length)
  return np.array(lengths, np.int64)


def check_lengths(path: str) -> int:
  """Returns how many records of a file can be read; -1 if all of them can.

  TensorFlow allocates the length of a record before it reads the record, so a
  wrong length would end the process. A file that is merely cut is left to
  TensorFlow, as is a file that is not on the local disk.

  Args:
    path: the path of a TFRecord file.
  """
  number = position = 0
  try:
    with open(path, 'rb') as f:
      size = os.fstat(f.fileno()).st_size
      # Records are smaller than the file, so a cut one takes little memory.
      while position + _LENGTH.size <= size:
        [length] = _LENGTH.unpack(os.pread(f.fileno(), _LENGTH.size, position))
        if length > size:
          return number
        position += length + FRAME_BYTES
        number += 1
  except OSError:
    pass  # That the file cannot be read is told when it is read.
  return -1


def read_file(path: tf.Tensor, buffer_size: Optional[int] = None):
  """Returns the records of a TFRecord file, whose lengths are checked first.

  Records before one with a wrong length come out first, and then an error that
  `errors.restore` makes a `DataLossError`.

  Args:
    path: string `[]`.
    buffer_size: as for `tf.data.TFRecordDataset`.
  """
  path = tf.convert_to_tensor(path, tf.string)
  count = tf.numpy_function(
      lambda path: np.int64(
          check_lengths(os.fsdecode(np.asarray(path).item()))
      ),
      [path],
      tf.int64,
      stateful=False,
      name=CHECK_LENGTHS,
  )
  count = tf.ensure_shape(count, [])
  records = tf.data.TFRecordDataset(path, buffer_size=buffer_size)

  def raise_error(path, record):
    raise tf.errors.DataLossError(
        None,
        None,
        f'{os.fsdecode(path)} is damaged: the length of record {record} is'
        ' larger than the file.',
    )

  def fail(unused_number):
    # `errors.restore` makes a DataLossError of what TensorFlow makes of it.
    failed = tf.numpy_function(
        raise_error,
        [path, count],
        tf.string,
        stateful=False,
        name=CHECK_LENGTHS,
    )
    return tf.ensure_shape(failed, [])

  is_bad = tf.cast(count >= 0, tf.int64)
  return records.take(count).concatenate(
      tf.data.Dataset.range(is_bad).map(fail)
  )


class Order(NamedTuple):
  """What tells the order in which TFDS gives the records of a split.

  Attributes:
    parts: of each part of a file that is read: its path, the number of records
      that are skipped, and the number of those that are read.
    cycle_length: how many files are read at a time; less than 1 if TensorFlow
      chooses.
    block_length: how many records of a file come in turn.
  """

  parts: Sequence[Tuple[str, int, int]]
  cycle_length: int
  block_length: int

  def find(self) -> Tuple[np.ndarray, np.ndarray]:
    """Returns where each record is.

    Returns:
      int64 `[R]`, twice: the part of each record, and its place among the
      records of all parts, one part after the other.
    """
    cycle = self.cycle_length
    if cycle < 1:
      cycle = len(os.sched_getaffinity(0))
    # The files that are open have a turn each, of a block. If a file ends
    # within its turn, the next one takes its place.
    free = [(0, place) for place in range(min(cycle, len(self.parts)))]
    opened = []
    for _, _, count in self.parts:
      turn, place = heapq.heappop(free)
      opened.append((turn, place))
      heapq.heappush(free, (turn + count // self.block_length + 1, place))
    counts = np.array([count for _, _, count in self.parts], np.int64)
    part = np.repeat(np.arange(len(counts)), counts)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    number = np.arange(len(part)) - first
    turns, places = np.array(opened, np.int64).reshape(-1, 2)[part].T
    order = np.lexsort([places, turns + number // self.block_length])
    return part[order], order


def describe(order: bytes, index: int) -> str:
  """Returns the place of a record, by its index, in words.

  Args:
    order: the `Order` of the records, as JSON.
    index: the index of the record.
  """
  parts, found, places = _find(order)
  path, skip, _ = parts[found[index]]
  before = sum(count for _, _, count in parts[: found[index]])
  return f'record {skip + places[index] - before} of {path}'


@functools.lru_cache(maxsize=1)  # Many records of one data set may be bad.
def _find(text: bytes):
  order = Order(*json.loads(text))
  return order.parts, *order.find()


def order_of(
    builder: tfds.core.DatasetBuilder,
    split: Any,
    read_config: tfds.ReadConfig,
) -> Order:
  """Returns what tells the order of the records of a split."""
  in_order = builder.info.disable_shuffling or (
      tf_private.file_format_of(builder, read_config) == tf_private.ARRAY_RECORD
  )
  cycle = tf_private.cycle_length_of(read_config, in_order)
  return Order(
      [
          (os.fspath(part.filename), part.skip, part.take)
          for part in builder.info.splits[split].file_instructions
      ],
      cycle or 0,
      read_config.interleave_block_length or 1,
  )


def find_damage(
    path: str,
    records: tf.data.Dataset,
    num_episodes: int,
    *,
    is_exact: bool = False,
) -> str:
  """Returns what is wrong with a file of records, or an empty string.

  Args:
    path: the path of the file.
    records: all records of the file.
    num_episodes: how many there must be at least.
    is_exact: whether more are an error too.
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
      return message  # It says where, and what helps.
    return (
        f'{path} is damaged after {checks.counted(count, "whole episode")}:'
        f' {message}. {damage.ADVICE}'
    )
  if count == num_episodes or (count > num_episodes and not is_exact):
    return ''
  return (
      f'{path} has {checks.counted(count, "episode")}, but dataset_info.json'
      f' says {num_episodes}. {damage.ADVICE}'
  )
