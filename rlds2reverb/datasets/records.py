"""The records of a TFDS split: their order and places, and batches of them.

TFDS parses every record separately. To parse many records together, they are
read here in batches, in the order in which TFDS returns the episodes. If a file
is damaged, the records before the damage come out first.
"""

from collections.abc import Sequence
from concurrent import futures
import dataclasses
import functools
import heapq
import json
import os
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from rlds2reverb.datasets import files as files_lib
from rlds2reverb.datasets import record_files
from rlds2reverb.episodes import batch as batch_lib
from rlds2reverb.episodes import errors
from rlds2reverb.episodes import pipelines
from rlds2reverb.episodes import tf_private
from rlds2reverb.store import array_records
from rlds2reverb.store import damage

RECORD = tf_private.RECORD

# Larger batches of tiny records are no faster.
_MAX_BATCH = 2048

# How many batches may be in memory together.
_MAX_BATCHES = 4

# If the sizes of records are not known, this many are read together, and fewer
# if records are large on average.
_SMALL_BATCH = 16
_SMALL_FRACTION = 8

# Larger files are not searched for large records before they are read.
_MAX_SEARCHED_BYTES = 4 << 30

# The number of threads that look up the sizes of files.
_STAT_THREADS = 16

# Instead of the number of a batch: the end, where all records must be complete.
_END = np.int64(-1)


class Order(NamedTuple):
  """Determines the order in which TFDS returns the records of a split.

  Attributes:
    parts: of each part of a file that is read: its path, the number of records
      that are skipped, and the number of records that are read.
    cycle_length: how many files are read in turn; less than 1 if TensorFlow
      chooses.
    block_length: how many records of a file are read in a turn.
  """

  parts: Sequence[tuple[str, int, int]]
  cycle_length: int
  block_length: int

  @property
  def num_records(self) -> int:
    """The number of records."""
    return sum(count for _, _, count in self.parts)

  def find(self) -> tuple[np.ndarray, np.ndarray]:
    """Returns the place of each record.

    Returns:
      int64 `[R]`, twice: the part of each record, and its index among the
      records of all parts, one part after the other.
    """
    cycle = self.cycle_length
    if cycle < 1:
      cycle = len(os.sched_getaffinity(0))
    # Each open file has a turn of a block. If a file ends within its turn, the
    # next file replaces it.
    free = [(0, slot) for slot in range(min(cycle, len(self.parts)))]
    first_turns = []
    for _, _, count in self.parts:
      turn, slot = heapq.heappop(free)
      first_turns.append((turn, slot))
      heapq.heappush(free, (turn + count // self.block_length + 1, slot))
    counts = np.array([count for _, _, count in self.parts], np.int64)
    part = np.repeat(np.arange(len(counts)), counts)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    number = np.arange(len(part)) - first
    turns, slots = np.array(first_turns, np.int64).reshape(-1, 2)[part].T
    order = np.lexsort([slots, turns + number // self.block_length])
    return part[order], order


def order_of(
    builder: tfds.core.DatasetBuilder,
    split: Any,
    read_config: tfds.ReadConfig,
) -> Order:
  """Returns the order of the records of a split."""
  file_format = tf_private.file_format_of(builder, read_config)
  in_order = (
      builder.info.disable_shuffling or file_format == tf_private.ARRAY_RECORD
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


def describe(order: bytes, index: int) -> str:
  """Returns a description of a record's place, such as `record 3 of FILE`.

  Args:
    order: the `Order` of the records, as JSON.
    index: the index of the record.
  """
  parts, part, places = _find_places(order)
  path, skip, _ = parts[part[index]]
  first = sum(count for _, _, count in parts[: part[index]])
  return f'record {skip + places[index] - first} of {path}'


@functools.lru_cache(maxsize=1)  # Many records of one data set may be bad.
def _find_places(text: bytes):
  order = Order(*json.loads(text))
  return order.parts, *order.find()


class Records(NamedTuple):
  """Records, in the order in which TFDS returns them.

  Attributes:
    folder: the folder of the data set.
    names: the names of the files.
    is_array_record: whether these are ArrayRecord files, and not TFRecord.
    file: int64 `[R]`: the index of the file of each record.
    offset: int64 `[R]`: the offset of each record in its file; in ArrayRecord
      files, its index.
    length: int64 `[R]`: the bytes of each record; in ArrayRecord files, the
      average bytes of a record of the file.
  """

  folder: str
  names: list[str]
  is_array_record: bool
  file: np.ndarray
  offset: np.ndarray
  length: np.ndarray

  def part(self, begin: int, end: int) -> 'Records':
    """Returns a range of the records."""
    return Records(*self[:3], *[column[begin:end] for column in self[3:]])

  def path(self, number: int) -> str:
    """Returns the path of the file that has a record."""
    return os.path.join(self.folder, self.names[self.file[number]])


def find_records(builder: tfds.core.DatasetBuilder, split: str) -> Records:
  """Returns the records of a split.

  Raises:
    FileNotFoundError: if a file is missing.
    OSError: if a file has fewer records than expected, or is a Git LFS pointer.
  """
  order = order_of(builder, split, tfds.ReadConfig())
  is_array = tf_private.file_format_of(builder) == tf_private.ARRAY_RECORD
  look_up = _mean_lengths if is_array else record_files.read_lengths
  lengths = [look_up(path, skip + count) for path, skip, count in order.parts]
  for (path, skip, count), part_lengths in zip(order.parts, lengths):
    if len(part_lengths) < skip + count:
      raise OSError(
          damage.pointer_hint(path)
          or f'{path} is damaged, or compressed: it has'
          f' {len(part_lengths)} complete records, but should have at least'
          f' {skip + count}. If it is compressed, unpack it first, as TFDS does'
          ' not read it either.'
      )
  if is_array:
    offsets = [np.arange(len(column)) for column in lengths]
  else:
    sizes = [column + record_files.FRAME_BYTES for column in lengths]
    offsets = [np.cumsum(column) - column for column in sizes]
  part, place = order.find()
  join = lambda columns: np.concatenate(
      [np.zeros(0, np.int64)]
      + [column[skip:] for column, (_, skip, _) in zip(columns, order.parts)]
  )
  folder = os.fspath(builder.data_path)
  # Several parts of a split may be in one file.
  names, file = np.unique(
      [os.path.relpath(path, folder) for path, _, _ in order.parts],
      return_inverse=True,
  )
  return Records(
      folder,
      names.tolist(),
      is_array,
      file[part],
      join(offsets)[place],
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


def is_array_record(
    builder: tfds.core.DatasetBuilder,
    read_config: tfds.ReadConfig = tfds.ReadConfig(),
) -> bool:
  """Returns whether a data set is read from ArrayRecord files."""
  return (
      tf_private.reads_files(builder)
      and tf_private.file_format_of(builder, read_config)
      == tf_private.ARRAY_RECORD
  )


def read_records(
    builder: tfds.core.DatasetBuilder,
    split: Any,
    *,
    shuffle_files: bool,
    read_config: tfds.ReadConfig,
) -> tf.data.Dataset | None:
  """Returns dicts with the string of each record, and `tfds_id` if requested.

  ArrayRecord files are read one after the other by default, as `data_source` of
  TFDS does.

  Args:
    builder: the builder of a data set that TFDS reads from files.
    split: one TFDS split.
    shuffle_files: whether the files are read in a random order.
    read_config: the options of TFDS.

  Returns:
    The records; None if TFDS reads them in another way.
  """
  if not is_array_record(builder, read_config):
    return tf_private.read_records(
        builder,
        split,
        shuffle_files=shuffle_files,
        read_config=read_config,
        read_file=record_files.read_tfrecords,
    )
  return record_files.read_array_record_files(
      builder.info.splits[split].file_instructions,
      read_config,
      shuffle_files,
      tf_private.cycle_length_of(read_config, in_order=True),
  )


class RecordBatches(NamedTuple):
  """Batches of records, which `complete_batches` divides.

  Attributes:
    batches: a data set of dicts `[R]`: `RECORD`, string, and `tfds_id`, string,
      if the options of TFDS request it. If the order of the records is known,
      these are pairs of a number and a dict. The numbers of batches that cannot
      be read are missing.
    single: a data set of the same records in batches of one, which raises the
      errors; `()` if the order is not known.
    num_records: int64 `[]`: the expected number of records; `()` if the order
      is not known.
    order: string `[]`: the `Order`, as JSON; empty if it is not known.
  """

  batches: tf.data.Dataset
  single: Any
  num_records: Any
  order: Any


def record_batches(
    builder: tfds.core.DatasetBuilder,
    split: Any,
    *,
    shuffle_files: bool,
    read_config: tfds.ReadConfig,
    max_bytes: int,
) -> RecordBatches | None:
  """Reads the records of a split in batches, in the order of TFDS.

  Args:
    builder: the builder of a data set on disk.
    split: one TFDS split.
    shuffle_files: whether the files are read in a random order.
    read_config: the options of TFDS.
    max_bytes: the maximum bytes of the records of a divided batch. Up to 2048
      records are read before they are divided. These have at most `4 *
      max_bytes` bytes, or `max_bytes` more than the largest record. For this,
      the lengths of all records are looked up first. They are not if files are
      remote, not in TFRecord format, or larger than 4 GiB in all; and for a
      random order they do not help. Then at most 16 records are read together.

  Returns:
    The batches. None if TFDS does not read the data set from files, or if the
    order of the options may differ each time.
  """
  if (
      not tf_private.reads_files(builder)
      or read_config.experimental_interleave_sort_fn is not None
  ):
    return None
  # Whether the same known number of records is read each time.
  has_order = not (
      shuffle_files
      or read_config.repeat_filenames
      or read_config.input_context
      or not read_config.assert_cardinality
      or read_config.options.deterministic is False
  )
  if has_order:
    # `complete_batches` checks the number of records.
    read_config = dataclasses.replace(read_config, assert_cardinality=False)
  records = read_records(
      builder, split, shuffle_files=shuffle_files, read_config=read_config
  )
  if records is None:
    return None
  order = order_of(builder, split, read_config)
  sizes = _batch_sizes(builder, split, order, read_config, max_bytes, has_order)
  single = records.batch(1)
  batches = single.rebatch(sizes) if len(sizes) > 1 else records.batch(sizes[0])
  if not has_order:
    return RecordBatches(batches, (), (), tf.constant(''))
  num_records = order.num_records
  # There is one more for each file that cannot be read, and for the end. A file
  # that cannot be opened would fail forever, so the numbers must end.
  max_batches = max(len(sizes), num_records // sizes[0] + 1)
  numbers = tf.data.Dataset.range(max_batches + len(order.parts) + 3)
  return RecordBatches(
      # A data set of batches loses the records of a batch that has an error.
      tf.data.Dataset.zip((numbers, batches)).ignore_errors(),
      single.apply(tf.data.experimental.assert_cardinality(num_records)),
      tf.constant(num_records, tf.int64),
      tf.constant(json.dumps(order)),
  )


def _batch_sizes(
    builder, split, order, read_config, max_bytes: int, has_order: bool
) -> np.ndarray:
  """Returns the number of records of each batch, or of all batches."""
  paths = [path for path, _, _ in order.parts]
  with futures.ThreadPoolExecutor(_STAT_THREADS) as executor:
    num_bytes = sum(executor.map(_file_bytes, paths))
  parts = builder.info.splits[split].file_instructions
  num_stored = sum(part.examples_in_shard for part in parts)
  size = min(max(max_bytes * num_stored // max(num_bytes, 1), 1), _MAX_BATCH)
  uniform = np.array([size], np.int64)
  if size == 1 or num_bytes <= _MAX_BATCHES * max_bytes:
    return uniform
  small = np.clip(uniform // _SMALL_FRACTION, 1, _SMALL_BATCH)
  if (
      tf_private.file_format_of(builder, read_config) != tf_private.TFRECORD
      or any(map(files_lib.is_url, paths))
      or num_bytes > _MAX_SEARCHED_BYTES
  ):
    return small
  try:
    lengths = np.concatenate(
        [
            record_files.read_lengths(path, skip + count)[skip:]
            for path, skip, count in order.parts
        ]
    )
  except OSError:
    return uniform  # Reading the file will raise the error.
  if size * lengths.max(initial=0) <= _MAX_BATCHES * max_bytes:
    return uniform
  if not has_order or len(lengths) < order.num_records:
    return small
  lengths = lengths[order.find()[1]]
  # Records that begin within the same `max_bytes` are read together.
  part = (np.cumsum(lengths) - lengths) // max_bytes
  is_last = np.diff(part, append=-1) != 0
  is_last |= (np.arange(len(part)) + 1) % _MAX_BATCH == 0
  return np.diff(np.flatnonzero(is_last) + 1, prepend=0)


def _file_bytes(path: str) -> int:
  try:
    return tf.io.gfile.stat(path).length
  except tf.errors.OpError:
    return 0  # Reading the file will raise the error.


@pipelines.do_not_convert
def complete_batches(read: RecordBatches, max_bytes: int) -> tf.data.Dataset:
  """Divides batches of records, and recovers the records before an error.

  If a file cannot be read to its end, the records before the error come out
  first, and then the error of TFDS. If the order is random, or the number of
  episodes is not known, some of the last records before the error may be
  missing.

  Args:
    read: the batches. If the number of a batch is missing, the records from
      there on are read again, one by one.
    max_bytes: the maximum bytes of a divided batch; see
      `batch.divide_by_bytes`.

  Returns:
    A data set of pairs: the bounds of a divided batch, int64 `[2]`; and the
    dict of `[R]` that it is a range of.
  """
  divide = lambda batch: _divide(batch, max_bytes)
  if read.single == ():
    return pipelines.flat_map(read.batches, divide)
  num_records, single = read.num_records, read.single
  empty = {name: tf.constant([], tf.string) for name in single.element_spec}
  end = tf.data.Dataset.from_tensors((_END, empty))

  def find_missing(state, numbered):
    expected_number, start = state
    number, batch = numbered
    stop = start + tf.size(batch[RECORD], tf.int64)
    is_next = tf.where(
        number == _END,
        stop == num_records,
        (number == expected_number) & (stop <= num_records),
    )
    # After a missing batch no other follows: reading it again fails.
    return (expected_number + 1, stop), (is_next, start, batch)

  def read_again(start):
    failing = tf.data.Dataset.from_tensors(empty).map(_fail)
    records = single.skip(start).concatenate(failing)
    bounds = tf.data.Dataset.from_tensors(np.array([0, 1])).repeat()
    return tf.data.Dataset.zip((bounds, records))

  def parts(is_next, start, batch):
    return tf.cond(is_next, lambda: divide(batch), lambda: read_again(start))

  zero = tf.constant(0, tf.int64)
  numbered = read.batches.concatenate(end).scan((zero, zero), find_missing)
  return numbered.flat_map(parts)


def _fail(empty):
  return errors.assert_true(
      empty, False, 'The files of the data set changed while they were read.'
  )


def _divide(batch: dict[str, tf.Tensor], max_bytes: int) -> tf.data.Dataset:
  """Returns the parts of a batch, of about `max_bytes` each."""
  num_bytes = tf.cast(tf.strings.length(batch[RECORD]), tf.int64)
  return pipelines.pair_each(
      tf.data.Dataset.from_tensor_slices(
          batch_lib.divide_by_bytes(num_bytes, max_bytes)
      ),
      batch,
  )
