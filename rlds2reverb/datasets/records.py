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
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import grouping
from rlds2reverb.episodes import private

RECORD = private.RECORD

# Larger batches of tiny records are no faster.
_MAX_BATCH = 2048

# How many batches may be in memory at once.
_MANY_BATCHES = 4

# The number of records whose sizes are looked at together if they are not
# known; fewer if records are large on average.
_GROUP = 16
_GROUPS_PER_BATCH = 8

# Larger files are not searched for large records before they are read.
_MAX_SEARCHED_BYTES = 4 << 30

# The number of files that are asked for their size at a time.
_MAX_STATS = 16

# This fills the other slots of a large record. It is never a record itself,
# because no `tf.train.Example` begins with a zero byte.
_FILLER = b'\0'

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
      into batches. These have at most `5 * max_bytes` bytes, or `max_bytes`
      more than the largest record. For this, the lengths of all records are
      looked up first. For files that are remote, not in TFRecord format, or
      larger than 4 GiB in all, they are not; the limit is then `max_bytes` and
      16 records.

  Returns:
    A data set of pairs, the arguments of `grouping.cut_out`, which returns a
    batch: a dict of `[E]`, of `RECORD`, string, and of `tfds_id`, string, if
    the options of TFDS ask for it. None if TFDS does not read the data set from
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
  with futures.ThreadPoolExecutor(_MAX_STATS) as executor:
    num_bytes = sum(executor.map(_file_bytes, files))
  size = _batch_size(files, num_bytes, max_bytes)
  batches = records.batch(size)
  if size > 1 and num_bytes > _MANY_BATCHES * max_bytes:
    file_format = private.file_format_of(builder, read_config)
    group_size = _group_size(files, num_bytes, size, max_bytes, file_format)
    if group_size < size:
      batches = _batch_by_bytes(records, max_bytes, size, group_size)
  cut = graphs.no_autograph(lambda batch: _cut(batch, max_bytes))
  if not can_be_repeated:
    return batches.flat_map(cut)
  num_records = sum(file.take for file in files)
  # There is one more for each file that cannot be read, for the end, and for
  # each rest of a division.
  max_batches = num_records // size + num_bytes // max_bytes + len(files) + 4
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


def _batch_size(files, num_bytes: int, max_bytes: int) -> int:
  """Returns how many records have `max_bytes` on average."""
  in_files = sum(file.examples_in_shard for file in files)
  return min(max(max_bytes * in_files // max(num_bytes, 1), 1), _MAX_BATCH)


def _file_bytes(file) -> int:
  try:
    return tf.io.gfile.stat(os.fspath(file.filename)).length
  except tf.errors.OpError:
    return 0  # That the file cannot be read is told when it is read.


def _group_size(
    files, num_bytes: int, size: int, max_bytes: int, file_format
) -> int:
  """Returns how many records are read before their sizes are looked at.

  A look costs some 20 microseconds, several times as much as reading a short
  episode. It is left out where no record is large enough to need it.

  Args:
    files: the instructions of TFDS.
    num_bytes: the bytes of the files.
    size: how many records have `max_bytes` on average, or `_MAX_BATCH`.
    max_bytes: how many bytes of records a batch should have at most.
    file_format: the format of the files.

  Returns:
    The number of records; `size` if no look is needed.
  """
  paths = [os.fspath(file.filename) for file in files]
  if (
      file_format != private.TFRECORD
      or any(map(files_lib.is_url, paths))
      or num_bytes > _MAX_SEARCHED_BYTES
  ):
    return min(max(size // _GROUPS_PER_BATCH, 1), _GROUP)
  try:
    largest = max(
        record_lengths.read_lengths(path, file.skip + file.take)[
            file.skip :
        ].max(initial=0)
        for path, file in zip(paths, files)
    )
  except OSError:
    return size  # That the file cannot be read is told when it is read.
  fitting = _MANY_BATCHES * max_bytes // max(largest, 1)
  return next((n for n in (size, min(_GROUP, size)) if n <= fitting), 1)


def _batch_by_bytes(
    records: tf.data.Dataset, max_bytes: int, num_slots: int, group_size: int
) -> tf.data.Dataset:
  """Batches records, fewer of them where they are large.

  A batch has `num_slots` slots. A record takes one, and a large one takes more,
  which hold `_FILLER` while batches are made; they come behind its group.
  """
  slot_bytes = -(-max_bytes // num_slots)

  def fill(group):
    further = tf.strings.length(group[RECORD]) // slot_bytes
    fillers = tf.fill(tf.reduce_sum(further, keepdims=True), _FILLER)
    return tf.nest.map_structure(
        lambda column: tf.concat([column, fillers], 0), group
    )

  def without_fillers(batch):
    is_record = batch[RECORD] != _FILLER
    return tf.nest.map_structure(
        lambda column: tf.boolean_mask(column, is_record), batch
    )

  filled = records.batch(group_size).map(graphs.no_autograph(fill))
  return (
      filled.rebatch(num_slots)
      .map(graphs.no_autograph(without_fillers))
      .filter(graphs.no_autograph(lambda batch: tf.size(batch[RECORD]) > 0))
  )


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
  def one_by_one(start):
    failing = no_batch.map(graphs.no_autograph(_fail))
    ones = checked.skip(start).batch(1).concatenate(failing)
    return tf.data.Dataset.zip(
        (tf.data.Dataset.from_tensors(np.array([0, 1])).repeat(), ones)
    )

  @graphs.no_autograph
  def find_missing(state, numbered):
    position, start = state
    number, batch = numbered
    is_end = tf.size(batch[RECORD]) == 0
    stop = start + tf.size(batch[RECORD], tf.int64)
    is_there = (number == position) & tf.where(
        is_end, stop == num_records, stop <= num_records
    )
    size = tf.where(is_there, stop - start, 0)
    batch = tf.nest.map_structure(lambda leaf: leaf[:size], batch)
    next_position = tf.where(is_end, _DONE, position + 1)
    return (next_position, stop), (tf.where(is_there, _FINE, start), batch)

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
