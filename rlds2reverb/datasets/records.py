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
from rlds2reverb.datasets import record_lengths
from rlds2reverb.datasets import record_order
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

# Marks a batch whose records need not be read again.
_FINE = np.int64(-1)

# The number that follows the last batch.
_DONE = np.int64(-1)


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
  if not private.reads_files(builder):
    return None
  if read_config.experimental_interleave_sort_fn is not None:
    return None
  can_be_repeated = is_repeatable(read_config, shuffle_files)
  if can_be_repeated:
    # The number of records is checked below.
    read_config = dataclasses.replace(read_config, assert_cardinality=False)
  records = private.read_records(
      builder, split, shuffle_files=shuffle_files, read_config=read_config
  )
  if records is None:
    return None
  files = builder.info.splits[split].file_instructions
  num_records = sum(file.take for file in files)
  sizes = _sizes(builder, files, read_config, max_bytes, can_be_repeated)
  if len(sizes) > 1:
    batches, num_batches = records.batch(1).rebatch(sizes), len(sizes)
  else:
    batches, num_batches = records.batch(sizes[0]), num_records // sizes[0] + 1
  cut = graphs.no_autograph(lambda batch: _cut(batch, max_bytes))
  if not can_be_repeated:
    return batches.flat_map(cut)
  # There is one more for each file that cannot be read, and for the end.
  max_batches = num_batches + len(files) + 3
  return _batches_until_an_error(
      records, num_records, batches, max_batches, cut
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
    builder, files, read_config, max_bytes: int, has_order: bool
) -> np.ndarray:
  """Returns how many records the batches have in turn, or all of them."""
  with futures.ThreadPoolExecutor(_MAX_STATS) as executor:
    num_bytes = sum(executor.map(_file_bytes, files))
  in_files = sum(file.examples_in_shard for file in files)
  size = min(max(max_bytes * in_files // max(num_bytes, 1), 1), _MAX_BATCH)
  alike = np.array([size], np.int64)
  if size == 1 or num_bytes <= _MANY_BATCHES * max_bytes:
    return alike
  few = np.minimum(np.maximum(alike // _FEW_OF_BATCH, 1), _FEW)
  paths = [os.fspath(file.filename) for file in files]
  if (
      private.file_format_of(builder, read_config) != private.TFRECORD
      or any(map(files_lib.is_url, paths))
      or num_bytes > _MAX_SEARCHED_BYTES
  ):
    return few
  counts = np.array([file.take for file in files], np.int64)
  try:
    found = [
        record_lengths.read_lengths(path, file.skip + file.take)[file.skip :]
        for path, file in zip(paths, files)
    ]
  except OSError:
    return alike  # That the file cannot be read is told when it is read.
  lengths = np.concatenate(found)
  if size * lengths.max(initial=0) <= _MANY_BATCHES * max_bytes:
    return alike
  if not has_order or len(lengths) < counts.sum():
    return few
  _, place = record_order.places_in_order(
      counts, read_config, builder.info.disable_shuffling
  )
  in_order = lengths[place]
  # Those that begin within the same `max_bytes` are read together.
  part = (np.cumsum(in_order) - in_order) // max_bytes
  is_cut = np.diff(part, append=-1) != 0
  is_cut |= (np.arange(len(part)) + 1) % _MAX_BATCH == 0
  return np.diff(np.flatnonzero(is_cut) + 1, prepend=0)


def _file_bytes(file) -> int:
  try:
    return tf.io.gfile.stat(os.fspath(file.filename)).length
  except tf.errors.OpError:
    return 0  # That the file cannot be read is told when it is read.


def _batches_until_an_error(
    records: tf.data.Dataset,
    num_records: int,
    batches: tf.data.Dataset,
    max_batches: int,
    cut: Callable[[Dict[str, tf.Tensor]], tf.data.Dataset],
) -> tf.data.Dataset:
  """Reads batches, so that no record before an error is lost.

  A data set of batches loses the records of the batch in which an error occurs.
  Therefore batches are numbered, and those with an error are left out. If a
  number is missing, the records from there on are read again, one by one.

  Args:
    records: a data set of dicts of `[]`.
    num_records: how many there must be.
    batches: the same records, in batches.
    max_batches: the largest number of batches, including those of errors.
    cut: a function that returns the data set of the parts of such records.

  Returns:
    A data set of the parts of all batches.
  """
  nothing = {name: tf.constant([], tf.string) for name in records.element_spec}
  no_batch = tf.data.Dataset.from_tensors(nothing)
  # A file that cannot be opened would fail for ever, so retries are limited.
  numbers = tf.data.Dataset.range(max_batches)
  numbered = tf.data.Dataset.zip(
      (numbers, batches.concatenate(no_batch))
  ).ignore_errors()
  end = tf.data.Dataset.from_tensors((_DONE, nothing))
  checked = records.apply(tf.data.experimental.assert_cardinality(num_records))

  @graphs.no_autograph
  def find_missing(state, numbered):
    position, start = state
    number, batch = numbered
    size = tf.size(batch[RECORD], tf.int64)
    stop = start + size
    is_end = size == 0
    is_there = (number == position) & tf.where(
        is_end, stop == num_records, stop <= num_records
    )
    batch = tf.nest.map_structure(
        lambda leaf: leaf[: tf.where(is_there, size, 0)], batch
    )
    next_position = tf.where(is_end, _DONE, position + 1)
    return (next_position, stop), (tf.where(is_there, _FINE, start), batch)

  def one_by_one(start):
    failing = no_batch.map(graphs.no_autograph(_fail))
    ones = checked.skip(start).batch(1).concatenate(failing)
    bounds = tf.data.Dataset.from_tensors(np.array([0, 1])).repeat()
    return tf.data.Dataset.zip((bounds, ones))

  @graphs.no_autograph
  def parts(start, batch):
    return tf.cond(
        start == _FINE, lambda: cut(batch), lambda: one_by_one(start)
    )

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
