"""Reads the records of TFDS files, several at a time.

A record is an episode as it is stored, before it is parsed. TFDS parses every
record by itself. To parse many at once, they are read here in batches, in the
order in which TFDS gives the episodes.
"""

import dataclasses
from typing import Any, Optional, Sequence

import tensorflow as tf
import tensorflow_datasets as tfds
from tensorflow_datasets.core import dataset_builder
from tensorflow_datasets.core import file_adapters
from tensorflow_datasets.core import reader

from rlds2reverb.episodes import packs

RECORD = 'record'

# So many records of a few bytes take no more time each than more of them would.
_MAX_BATCH = 512

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
    max_bytes: how many bytes of records a batch has at most, unless it has only
      one.

  Returns:
    A data set of dicts: `RECORD`, string `[E]`; and `tfds_id`, string `[E]`, if
    the options ask for it. None if TFDS does not read the data set from files,
    or if the options have an order that may be another each time.
  """
  read = getattr(type(builder), '_as_dataset', None)
  if read is not dataset_builder.FileReaderBuilder._as_dataset:  # pylint: disable=protected-access
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
  if is_repeatable:
    batches = _batches_until_an_error(
        records, split_info.file_instructions, size
    )
  else:
    batches = records.batch(size)
  return _cut(batches, max_bytes)


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
    num_bytes = tf.io.gfile.stat(file.filename).length
    num_records = file.examples_in_shard
  size = max_bytes * num_records // max(num_bytes, 1)
  return min(max(size, 1), _MAX_BATCH)


def _batches_until_an_error(
    records: tf.data.Dataset, files: Sequence[Any], size: int
) -> tf.data.Dataset:
  """Batches records, so that none before an error is lost.

  `batch` loses the records of the batch in which an error occurs. So batches
  with an error are left out, and the number of a batch's first record shows
  that one is missing. The records from there on are read again, one by one.

  Args:
    records: a data set of dicts of `[]`.
    files: the instructions of TFDS, which say how many there must be.
    size: how many records a batch has.

  Returns:
    A data set of dicts of `[E]`.
  """
  num_records = sum(file.take for file in files)
  # A file that cannot be opened fails again and again, which must end.
  numbers = tf.data.Dataset.range(num_records + len(files) + 1)
  numbered = tf.data.Dataset.zip((numbers, records))
  batches = numbered.batch(size).ignore_errors()
  end = (
      tf.constant([num_records], tf.int64),
      {name: tf.constant([], tf.string) for name in records.element_spec},
  )
  batches = batches.concatenate(tf.data.Dataset.from_tensors(end)).enumerate()
  checked = records.apply(
      tf.data.experimental.assert_cardinality(num_records)
  )

  @_no_autograph
  def one_by_one(start):
    failing = tf.data.Dataset.from_tensors(end[1]).map(_no_autograph(_fail))
    return checked.skip(start).batch(1).concatenate(failing)

  @_no_autograph
  def find_missing(position, batch):
    number, found = batch
    expected = tf.minimum(position * size, num_records)
    is_end = tf.equal(tf.size(found[RECORD]), 0)
    return tf.cond(
        (number[0] == expected) & ((number[-1] < num_records) | is_end),
        lambda: tf.data.Dataset.from_tensors(found),
        lambda: one_by_one(expected),
    )

  return batches.flat_map(find_missing)


def _fail(nothing):
  check = tf.debugging.Assert(
      False, ['The files of the data set changed while they were read.']
  )
  with tf.control_dependencies([check]):
    return tf.nest.map_structure(tf.identity, nothing)


def _cut(batches: tf.data.Dataset, max_bytes: int) -> tf.data.Dataset:
  """Cuts batches of records into runs of about `max_bytes`."""

  @_no_autograph
  def cut(batch):
    num_bytes = tf.strings.length(batch[RECORD])
    # The records that begin within the same `max_bytes` stay together.
    run = tf.cumsum(tf.cast(num_bytes, tf.int64), exclusive=True) // max_bytes
    return tf.data.Dataset.zip((
        tf.data.Dataset.from_tensor_slices(packs.bounds_of_runs(run)),
        tf.data.Dataset.from_tensors(batch).repeat(),
    ))

  @_no_autograph
  def take(bounds, batch):
    return tf.nest.map_structure(
        lambda leaf: leaf[bounds[0] : bounds[1]], batch
    )

  return batches.flat_map(cut).map(take)
