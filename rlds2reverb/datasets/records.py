"""Reads the records of TFDS files, several at a time.

A record is an episode as it is stored, before it is parsed. TFDS parses every
record by itself. To parse many at once, they are read here in batches, in the
order in which TFDS gives the episodes.
"""

from concurrent import futures
import dataclasses
import json
from typing import Any, Dict, NamedTuple, Optional

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from rlds2reverb.datasets import array_record_reading
from rlds2reverb.datasets import files as files_lib
from rlds2reverb.datasets import record_places
from rlds2reverb.episodes import batch as batch_lib
from rlds2reverb.episodes import errors
from rlds2reverb.episodes import pipelines
from rlds2reverb.episodes import tf_private

RECORD = tf_private.RECORD

# Larger batches of tiny records are no faster.
_MAX_BATCH = 2048

# How many batches may be in memory at once.
_MANY_BATCHES = 4

# If the sizes of records are not known, this many are read together, and fewer
# if records are large on average.
_FEW = 16
_FEW_OF_BATCH = 8

# Larger files are not searched for large records before they are read.
_MAX_SEARCHED_BYTES = 4 << 30

# The number of files that are asked for their size at a time.
_MAX_STATS = 16

# Instead of a number: the end of the batches, and that all records are there.
_END = np.int64(-1)


class RecordBatches(NamedTuple):
  """Batches of records that are to be cut.

  Attributes:
    batches: a data set of dicts `[R]`: `RECORD`, string, and `tfds_id`, string,
      if the options of TFDS ask for it. If the order of the records is known,
      of pairs of the number of each batch that can be read, and the dict.
    alone: a data set of the same records, each in a batch of its own, which
      raises the errors; `()` if the order is not known.
    num_records: int64 `[]`: how many there must be; `()` likewise.
    order: string `[]`: the `record_places.Order`, as JSON; empty likewise.
  """

  batches: tf.data.Dataset
  alone: Any
  num_records: Any
  order: Any


def record_batches(
    builder: tfds.core.DatasetBuilder,
    split: Any,
    *,
    shuffle_files: bool,
    read_config: tfds.ReadConfig,
    max_bytes: int,
) -> Optional[RecordBatches]:
  """Reads the records of a split in batches, in the order of TFDS.

  Args:
    builder: the builder of a data set on disk.
    split: one TFDS split.
    shuffle_files: whether the files are read in a random order.
    read_config: the options of TFDS.
    max_bytes: how many bytes of records a batch that is cut should have at
      most. Up to 2048 are read before they are cut into batches. These have at
      most `4 * max_bytes` bytes, or `max_bytes` more than the largest record.
      For this, the lengths of all records are looked up first. For files that
      are remote, not in TFRecord format, or larger than 4 GiB in all, they are
      not, and for a random order they do not help; then at most 16 records are
      read together.

  Returns:
    The batches. None if TFDS does not read the data set from files, or if the
    options have an order that may be another each time.
  """
  if (
      not tf_private.reads_files(builder)
      or read_config.experimental_interleave_sort_fn is not None
  ):
    return None
  has_order = is_repeatable(read_config, shuffle_files)
  if has_order:
    # The number of records is checked when they are cut.
    read_config = dataclasses.replace(read_config, assert_cardinality=False)
  records = read_records(
      builder, split, shuffle_files=shuffle_files, read_config=read_config
  )
  if records is None:
    return None
  order = record_places.order_of(builder, split, read_config)
  sizes = _sizes(builder, split, order, read_config, max_bytes, has_order)
  alone = records.batch(1)
  batches = alone.rebatch(sizes) if len(sizes) > 1 else records.batch(sizes[0])
  if not has_order:
    return RecordBatches(batches, (), (), tf.constant(''))
  num_records = sum(count for _, _, count in order.parts)
  # There is one more for each file that cannot be read, and for the end.
  most = max(len(sizes), num_records // sizes[0] + 1) + len(order.parts) + 3
  # A data set of batches loses the records of a batch in which an error occurs.
  # A file that cannot be opened would fail for ever, so the numbers have an
  # end.
  numbers = tf.data.Dataset.range(most)
  return RecordBatches(
      tf.data.Dataset.zip((numbers, batches)).ignore_errors(),
      alone.apply(tf.data.experimental.assert_cardinality(num_records)),
      tf.constant(num_records, tf.int64),
      tf.constant(json.dumps(order)),
  )


def read_records(
    builder: tfds.core.DatasetBuilder,
    split: Any,
    *,
    shuffle_files: bool,
    read_config: tfds.ReadConfig,
) -> Optional[tf.data.Dataset]:
  """Returns dicts with the string of each record, and `tfds_id` if asked for.

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
        read_file=record_places.read_file,
    )
  return array_record_reading.read_records(
      builder.info.splits[split].file_instructions,
      read_config,
      shuffle_files,
      tf_private.cycle_length_of(read_config, in_order=True),
  )


def read_file(
    file_format: Any, path: str, skip: int, take: int
) -> tf.data.Dataset:
  """Returns records of one file, string `[]`.

  Args:
    file_format: the format of the file, as `private.file_format_of` returns it.
    path: the path of the file.
    skip: the first record.
    take: how many records are read; all if it is -1.
  """
  if file_format == tf_private.ARRAY_RECORD:
    return array_record_reading.read_file(path, skip, take)
  return record_places.read_file(path).skip(skip).take(take)


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


def is_repeatable(read_config, shuffle_files: bool) -> bool:
  """Returns whether the same known number of records comes each time."""
  return not (
      shuffle_files
      or read_config.repeat_filenames
      or read_config.input_context
      or not read_config.assert_cardinality
      or read_config.options.deterministic is False
  )


def _sizes(
    builder, split, order, read_config, max_bytes: int, has_order: bool
) -> np.ndarray:
  """Returns how many records the batches have in turn, or all of them."""
  paths = [path for path, _, _ in order.parts]
  with futures.ThreadPoolExecutor(_MAX_STATS) as executor:
    num_bytes = sum(executor.map(_file_bytes, paths))
  parts = builder.info.splits[split].file_instructions
  in_files = sum(part.examples_in_shard for part in parts)
  size = min(max(max_bytes * in_files // max(num_bytes, 1), 1), _MAX_BATCH)
  alike = np.array([size], np.int64)
  if size == 1 or num_bytes <= _MANY_BATCHES * max_bytes:
    return alike
  few = np.clip(alike // _FEW_OF_BATCH, 1, _FEW)
  if (
      tf_private.file_format_of(builder, read_config) != tf_private.TFRECORD
      or any(map(files_lib.is_url, paths))
      or num_bytes > _MAX_SEARCHED_BYTES
  ):
    return few
  try:
    found = [
        record_places.read_lengths(path, skip + count)[skip:]
        for path, skip, count in order.parts
    ]
  except OSError:
    return alike  # That the file cannot be read is told when it is read.
  lengths = np.concatenate(found)
  if size * lengths.max(initial=0) <= _MANY_BATCHES * max_bytes:
    return alike
  if not has_order or len(lengths) < sum(count for _, _, count in order.parts):
    return few
  lengths = lengths[order.find()[1]]
  # Those that begin within the same `max_bytes` are read together.
  part = (np.cumsum(lengths) - lengths) // max_bytes
  is_cut = np.diff(part, append=-1) != 0
  is_cut |= (np.arange(len(part)) + 1) % _MAX_BATCH == 0
  return np.diff(np.flatnonzero(is_cut) + 1, prepend=0)


def _file_bytes(path: str) -> int:
  try:
    return tf.io.gfile.stat(path).length
  except tf.errors.OpError:
    return 0  # That the file cannot be read is told when it is read.


def complete_batches(read: RecordBatches, max_bytes: int) -> tf.data.Dataset:
  """Cuts batches of records into smaller ones, and reads what is missing.

  If a file cannot be read to its end, the records before come out first, and
  then the error of TFDS. If the order is random, or the number of episodes is
  not known, some of the last records before it may be missing.

  Args:
    read: the batches. In those with an order, those with an error are left out.
      If a number is missing, the records from there on are read again, one by
      one.
    max_bytes: how many bytes a batch should have at most; see
      `batch.divide_by_bytes`.

  Returns:
    A data set of pairs: the bounds of a batch, int64 `[2]`; and the dict of
    `[R]` that it is cut from.
  """
  cut_one = lambda batch: _cut(batch, max_bytes)
  if read.alone == ():
    return pipelines.flat_map(read.batches, cut_one)
  num_records, alone = read.num_records, read.alone
  nothing = {name: tf.constant([], tf.string) for name in alone.element_spec}
  end = tf.data.Dataset.from_tensors((_END, nothing))

  def find_missing(state, numbered):
    number, start = state
    found, batch = numbered
    stop = start + tf.size(batch[RECORD], tf.int64)
    is_next = tf.where(
        found == _END,
        stop == num_records,
        (found == number) & (stop <= num_records),
    )
    # Nothing comes after what is missing: reading that again fails.
    return (number + 1, stop), (is_next, start, batch)

  def read_again(start):
    failing = tf.data.Dataset.from_tensors(nothing).map(_fail)
    ones = alone.skip(start).concatenate(failing)
    bounds = tf.data.Dataset.from_tensors(np.array([0, 1])).repeat()
    return tf.data.Dataset.zip((bounds, ones))

  def parts(is_next, start, batch):
    return tf.cond(is_next, lambda: cut_one(batch), lambda: read_again(start))

  zero = tf.constant(0, tf.int64)
  numbered = read.batches.concatenate(end).scan((zero, zero), find_missing)
  return numbered.flat_map(parts)


def _fail(nothing):
  return errors.assert_true(
      nothing, False, 'The files of the data set changed while they were read.'
  )


def _cut(batch: Dict[str, tf.Tensor], max_bytes: int) -> tf.data.Dataset:
  """Returns the parts of a batch, of about `max_bytes` each."""
  num_bytes = tf.cast(tf.strings.length(batch[RECORD]), tf.int64)
  return pipelines.pair_each(
      tf.data.Dataset.from_tensor_slices(
          batch_lib.divide_by_bytes(num_bytes, max_bytes)
      ),
      batch,
  )
