"""Reads the records of TFDS files, several at a time.

A record is an episode as it is stored, before it is parsed. TFDS parses every
record by itself. To parse many at once, they are read here in batches, in the
order in which TFDS gives the episodes.
"""

from concurrent import futures
import dataclasses
import os
from typing import Any, Callable, Dict, Optional

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from rlds2reverb.datasets import files as files_lib
from rlds2reverb.datasets import record_places
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import grouping
from rlds2reverb.episodes import private

RECORD = private.RECORD

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


def record_batches(
    builder: tfds.core.DatasetBuilder,
    split: Any,
    *,
    shuffle_files: bool,
    read_config: tfds.ReadConfig,
    max_bytes: int,
) -> Optional[tf.data.Dataset]:
  """Reads the records of a split in batches, in the order of TFDS.

  If a file cannot be read to its end, the records before come out first, and
  then the error of TFDS. If the order is random, or the number of episodes is
  not known, some of the last records before it may be missing.

  Args:
    builder: the builder of a data set on disk.
    split: one TFDS split.
    shuffle_files: whether the files are read in a random order.
    read_config: the options of TFDS.
    max_bytes: how many bytes of records a batch should have at most; see
      `grouping.bounds_of_parts`. Up to 2048 are read before they are cut
      into batches. These have at most `4 * max_bytes` bytes, or `max_bytes`
      more than the largest record. For this, the lengths of all records are
      looked up first. For files that are remote, not in TFRecord format, or
      larger than 4 GiB in all, they are not, and for a random order they do not
      help; then at most 16 records are read together.

  Returns:
    A data set of pairs: the bounds of a batch, int64 `[2]`; and what it is cut
    from, a dict of `[R]`, of `RECORD`, string, and of `tfds_id`, string, if the
    options of TFDS ask for it. None if TFDS does not read the data set from
    files, or if the options have an order that may be another each time.
  """
  if (
      not private.reads_files(builder)
      or read_config.experimental_interleave_sort_fn is not None
  ):
    return None
  has_order = is_repeatable(read_config, shuffle_files)
  if has_order:
    # The number of records is checked below.
    read_config = dataclasses.replace(read_config, assert_cardinality=False)
  records = private.read_records(
      builder, split, shuffle_files=shuffle_files, read_config=read_config
  )
  if records is None:
    return None
  parts = builder.info.splits[split].file_instructions
  sizes = _sizes(builder, parts, read_config, max_bytes, has_order)
  alone = records.batch(1)
  batches = alone.rebatch(sizes) if len(sizes) > 1 else records.batch(sizes[0])
  cut = lambda batch: _cut(batch, max_bytes)
  if not has_order:
    return batches.flat_map(cut)
  num_records = sum(part.take for part in parts)
  # There is one more for each file that cannot be read, and for the end.
  most = max(len(sizes), num_records // sizes[0] + 1) + len(parts) + 3
  numbers = tf.data.Dataset.range(most)
  numbered = tf.data.Dataset.zip((numbers, batches)).ignore_errors()
  return _parts_until_an_error(alone, num_records, numbered, cut)


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
    builder, parts, read_config, max_bytes: int, has_order: bool
) -> np.ndarray:
  """Returns how many records the batches have in turn, or all of them."""
  paths = [os.fspath(part.filename) for part in parts]
  with futures.ThreadPoolExecutor(_MAX_STATS) as executor:
    num_bytes = sum(executor.map(_file_bytes, paths))
  in_files = sum(part.examples_in_shard for part in parts)
  size = min(max(max_bytes * in_files // max(num_bytes, 1), 1), _MAX_BATCH)
  alike = np.array([size], np.int64)
  if size == 1 or num_bytes <= _MANY_BATCHES * max_bytes:
    return alike
  few = np.clip(alike // _FEW_OF_BATCH, 1, _FEW)
  if (
      private.file_format_of(builder, read_config) != private.TFRECORD
      or any(map(files_lib.is_url, paths))
      or num_bytes > _MAX_SEARCHED_BYTES
  ):
    return few
  try:
    found = [
        record_places.read_lengths(path, part.skip + part.take)[part.skip :]
        for path, part in zip(paths, parts)
    ]
  except OSError:
    return alike  # That the file cannot be read is told when it is read.
  lengths = np.concatenate(found)
  if size * lengths.max(initial=0) <= _MANY_BATCHES * max_bytes:
    return alike
  if not has_order or len(lengths) < sum(part.take for part in parts):
    return few
  lengths = lengths[record_places.order_of(parts, read_config, builder)[1]]
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


def _parts_until_an_error(
    alone: tf.data.Dataset,
    num_records: int,
    numbered: tf.data.Dataset,
    cut: Callable[[Dict[str, tf.Tensor]], tf.data.Dataset],
) -> tf.data.Dataset:
  """Reads the parts of batches, so that no record before an error is lost.

  A data set of batches loses the records of the batch in which an error occurs.
  Therefore batches are numbered, and those with an error are left out. If a
  number is missing, the records from there on are read again, one by one.

  Args:
    alone: the records, each in a batch of its own.
    num_records: how many there must be.
    numbered: the numbers and batches of the same records. A file that cannot be
      opened would fail for ever, so the numbers have an end.
    cut: a function that returns the data set of the parts of a batch.
  """
  nothing = {name: tf.constant([], tf.string) for name in alone.element_spec}
  end = tf.data.Dataset.from_tensors((_END, nothing))
  checked = alone.apply(tf.data.experimental.assert_cardinality(num_records))

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
    ones = checked.skip(start).concatenate(failing)
    bounds = tf.data.Dataset.from_tensors(np.array([0, 1])).repeat()
    return tf.data.Dataset.zip((bounds, ones))

  def parts(is_next, start, batch):
    return tf.cond(is_next, lambda: cut(batch), lambda: read_again(start))

  zero = tf.constant(0, tf.int64)
  return (
      numbered.concatenate(end).scan((zero, zero), find_missing).flat_map(parts)
  )


def _fail(nothing):
  return graphs.asserted(
      nothing, False, 'The files of the data set changed while they were read.'
  )


def _cut(batch: Dict[str, tf.Tensor], max_bytes: int) -> tf.data.Dataset:
  """Returns the parts of a batch, of about `max_bytes` each."""
  num_bytes = tf.cast(tf.strings.length(batch[RECORD]), tf.int64)
  return graphs.with_each(
      tf.data.Dataset.from_tensor_slices(
          grouping.bounds_of_parts(num_bytes, max_bytes)
      ),
      batch,
  )
