"""Reads the records of TFDS files, several at a time.

A record is an episode as it is stored, before it is parsed. TFDS parses every
record by itself. To parse many at once, they are read here in batches, in the
order in which TFDS gives the episodes.
"""

from concurrent import futures
import dataclasses
import os
from typing import Any, Callable, Dict, Optional, Sequence

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
from tensorflow_datasets.core import dataset_builder
from tensorflow_datasets.core import file_adapters
from tensorflow_datasets.core import reader

from rlds2reverb.datasets import joining
from rlds2reverb.episodes import packs

RECORD = 'record'

# So many records of a few bytes take no more time each than more of them would.
_MAX_BATCH = 512

# So many records are read at a time where large ones may stand side by side.
# To batch them takes their bytes twice.
_SMALL_BATCH = 4

# A batch of so few records takes long to read, whatever is done with it.
_FEW_RECORDS = 32

# So many times the bytes of a batch may be in memory.
_MANY_BATCHES = 16

# How many files are asked for their size at a time.
_MAX_STATS = 16

# The mark of a batch after which nothing has to be read again.
_FINE = np.int64(-1)

# Nothing here needs AutoGraph, which would take most of a second to find out.
_no_autograph = tf.autograph.experimental.do_not_convert


class _Reader(reader.Reader):
  """The reader of TFDS, which gives the records as they are."""

  def __init__(self, file_format):
    super().__init__({}, file_format)
    self._parser = self

  def parse_example(self, serialized):
    return {RECORD: serialized}


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
  then the error of TFDS. Where the order is random, or the number of episodes
  is not known, the last of the records before may be missing.

  Args:
    builder: the builder of a data set on disk.
    split: one TFDS split.
    shuffle_files: whether the files are read in a random order.
    read_config: the options of TFDS.
    max_bytes: how many bytes of records a batch should have at most; see
      `packs.bounds_of_parts`. Up to 512 records are read before they are cut
      into batches: as many as have `max_bytes` on average. To look at each
      before it is read would take longer than to read it. Where large records
      are likely to stand side by side, 4 at a time are read, and joined while
      they fit: in a split of more than 32 MiB, if TFDS did not shuffle the data
      set, if the average sizes of its files differ, if it has one file, or if
      records are large. Elsewhere so many large records in a row take as much
      memory as they have bytes, twice.

  Returns:
    A data set of pairs, the arguments of `cut_out`, which returns a batch. None
    if TFDS does not read the data set from files, or if the options have an
    order that may be another each time.
  """
  read = getattr(type(builder), '_as_dataset', None)
  # pylint: disable-next=protected-access
  if read is not dataset_builder.FileReaderBuilder._as_dataset:
    return None
  if read_config.experimental_interleave_sort_fn is not None:
    return None
  split_info = builder.info.splits[split]
  is_repeatable = _is_repeatable(read_config, shuffle_files)
  if is_repeatable:
    # The number of records is checked below.
    read_config = dataclasses.replace(read_config, assert_cardinality=False)
  file_format = read_config.file_format or builder.info.file_format
  records = _Reader(file_format or file_adapters.DEFAULT_FILE_FORMAT).read(
      instructions=split,
      split_infos=builder.info.splits.values(),
      read_config=read_config,
      shuffle_files=shuffle_files,
      disable_shuffling=builder.info.disable_shuffling,
  )
  if records.element_spec.get(RECORD) != tf.TensorSpec([], tf.string):
    return None  # Another version of TFDS may work in another way.
  size = _batch_size(split_info, max_bytes)
  small = _small_batch_size(builder.info, split_info, size, max_bytes)
  join = lambda batches: (
      batches
      if small == size
      else joining.join_batches(batches, RECORD, max_bytes, size)
  )
  cut = _no_autograph(lambda batch: _cut(batch, max_bytes))
  if not is_repeatable:
    batches = records.batch(small).map(_no_autograph(lambda one: (_FINE, one)))
    return join(batches).flat_map(_no_autograph(lambda _, batch: cut(batch)))
  return _batches_until_an_error(
      records, split_info.file_instructions, small, join, cut
  )


def cut_out(bounds: tf.Tensor, records: Dict[str, tf.Tensor]):
  """Returns a batch of records.

  Args:
    bounds: int64 `[2]`: where the batch starts and stops.
    records: a dict of `[R]`: `RECORD`, string; and `tfds_id`, string, if the
      options of TFDS ask for it.

  Returns:
    The dict, of `[E]`.
  """
  start, stop, step = bounds[:1], bounds[1:], tf.ones([1], tf.int64)
  return tf.nest.map_structure(
      lambda leaf: tf.strided_slice(leaf, start, stop, step), records
  )


def _is_repeatable(read_config, shuffle_files: bool) -> bool:
  """Returns whether the same known number of records comes each time."""
  return not (
      shuffle_files
      or read_config.repeat_filenames
      or read_config.input_context
      or not read_config.assert_cardinality
      or read_config.options.deterministic is False
  )


def _batch_size(split_info, max_bytes: int) -> int:
  """Returns how many records are read at a time."""
  num_bytes = int(split_info.num_bytes)
  num_records = split_info.num_examples
  if not num_bytes:
    # The metadata do not say, but the files do.
    file = split_info.file_instructions[0]
    try:
      num_bytes = _file_bytes(file)
    except tf.errors.OpError:
      return 1  # That the file cannot be read is told when it is read.
    num_records = file.examples_in_shard
  size = max_bytes * num_records // max(num_bytes, 1)
  return min(max(size, 1), _MAX_BATCH)


def _small_batch_size(info, split_info, size: int, max_bytes: int) -> int:
  """Returns how many records are read before their bytes are looked at.

  To look costs some 20 microseconds a record, several times as much as to read
  a short episode. So it is done only where that does not count, or where large
  records may stand side by side: TFDS spreads them, unless it kept the order.

  Args:
    info: the `DatasetInfo`.
    split_info: the split.
    size: how many records have `max_bytes` on average, or `_MAX_BATCH`.
    max_bytes: how many bytes of records a batch should have at most.
  """
  if size <= _SMALL_BATCH:
    return size
  files = split_info.file_instructions
  try:
    with futures.ThreadPoolExecutor(_MAX_STATS) as executor:
      num_bytes = list(executor.map(_file_bytes, files))
  except tf.errors.OpError:
    return size  # That a file cannot be read is told when it is read.
  if sum(num_bytes) <= _MANY_BATCHES * max_bytes:
    return size
  if (
      info.disable_shuffling
      or size <= _FEW_RECORDS
      or (len(files) == 1 and size < _MAX_BATCH)
      or _differ(files, num_bytes, max_bytes)
  ):
    return _SMALL_BATCH
  return size


def _file_bytes(file) -> int:
  return tf.io.gfile.stat(os.fspath(file.filename)).length


def _differ(files, num_bytes: Sequence[int], max_bytes: int) -> bool:
  """Returns whether some files have many more bytes than their records say."""
  averages = [
      size / max(file.examples_in_shard, 1)
      for size, file in zip(num_bytes, files)
  ]
  usual = sorted(averages)[(len(averages) - 1) // 2]
  # A file of a few records may have larger ones by chance.
  excess = sum(
      max(size - 1.5 * usual * file.examples_in_shard, 0)
      for size, file in zip(num_bytes, files)
  )
  return excess > _MANY_BATCHES * max_bytes


def _batches_until_an_error(
    records: tf.data.Dataset,
    files: Sequence[Any],
    size: int,
    join: Callable[[tf.data.Dataset], tf.data.Dataset],
    cut: Callable[[Dict[str, tf.Tensor]], tf.data.Dataset],
) -> tf.data.Dataset:
  """Batches records, so that none before an error is lost.

  `batch` loses the records of the batch in which an error occurs. So batches
  are numbered, and those with an error are left out. Where a number is missing,
  the records from there on are read again, one by one.

  Args:
    records: a data set of dicts of `[]`.
    files: the instructions of TFDS, which say how many there must be.
    size: how many records are read at a time.
    join: a function that joins the batches of that size; see
      `joining.join_batches`. The mark is where to read again, or `_FINE`.
    cut: a function that returns the data set of the parts of a batch.

  Returns:
    A data set of the parts of all batches.
  """
  num_records = sum(file.take for file in files)
  num_batches = -(-num_records // size)
  # A file that cannot be opened fails again and again, which must end.
  numbers = tf.data.Dataset.range(num_batches + len(files) + 1)
  batches = tf.data.Dataset.zip((numbers, records.batch(size))).ignore_errors()
  nothing = {name: tf.constant([], tf.string) for name in records.element_spec}
  end = tf.data.Dataset.from_tensors((np.int64(num_batches), nothing))
  checked = records.apply(
      tf.data.experimental.assert_cardinality(num_records)
  )

  @_no_autograph
  def one_by_one(start):
    failing = tf.data.Dataset.from_tensors(nothing).map(_no_autograph(_fail))
    ones = checked.skip(start).batch(1).concatenate(failing)
    return tf.data.Dataset.zip((
        tf.data.Dataset.from_tensors(np.array([0, 1])).repeat(), ones
    ))

  @_no_autograph
  def find_missing(position, numbered):
    number, batch = numbered
    start = tf.minimum(position * size, num_records)
    expected = tf.minimum(num_records - start, size)
    is_there = (number == position) & (
        tf.size(batch[RECORD], tf.int64) == expected
    )
    stop = tf.where(is_there, expected, 0)
    return tf.where(is_there, _FINE, start), tf.nest.map_structure(
        lambda leaf: leaf[:stop], batch
    )

  @_no_autograph
  def parts(start, batch):
    return tf.cond(
        start == _FINE,
        lambda: cut(batch),
        lambda: cut(batch).concatenate(one_by_one(start)),
    )

  marked = batches.concatenate(end).enumerate().map(find_missing)
  return join(marked).flat_map(parts)


def _fail(nothing):
  check = tf.debugging.Assert(
      False, ['The files of the data set changed while they were read.']
  )
  with tf.control_dependencies([check]):
    return tf.nest.map_structure(tf.identity, nothing)


def _cut(batch: Dict[str, tf.Tensor], max_bytes: int) -> tf.data.Dataset:
  """Returns the parts of a batch, of about `max_bytes` each."""
  num_bytes = tf.cast(tf.strings.length(batch[RECORD]), tf.int64)
  return tf.data.Dataset.zip((
      tf.data.Dataset.from_tensor_slices(
          packs.bounds_of_parts(num_bytes, max_bytes)
      ),
      tf.data.Dataset.from_tensors(batch).repeat(),
  ))
