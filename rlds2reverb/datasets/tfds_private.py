"""All uses of private names of TFDS, in one place.

They were checked with TFDS 4.9.10. If another version works differently, the
public functions of TFDS, which are slower, take their place.
"""

from typing import Any, Optional

import tensorflow as tf
import tensorflow_datasets as tfds
from tensorflow_datasets.core import dataset_builder
from tensorflow_datasets.core import file_adapters
from tensorflow_datasets.core import reader
from tensorflow_datasets.core.utils import read_config as read_config_lib

RECORD = 'record'
TFRECORD = file_adapters.FileFormat.TFRECORD

# The number of files that TFDS reads at a time.
_CYCLE_LENGTH = 16


class _Reader(reader.Reader):
  """The reader of TFDS, which gives the records as they are."""

  def __init__(self, file_format):
    super().__init__({}, file_format)
    self._parser = self

  def parse_example(self, serialized):
    return {RECORD: serialized}


def reads_files(builder: tfds.core.DatasetBuilder) -> bool:
  """Returns whether TFDS reads the records of a data set from files."""
  read = getattr(type(builder), '_as_dataset', None)
  # pylint: disable-next=protected-access
  return read is dataset_builder.FileReaderBuilder._as_dataset


def file_format_of(
    builder: tfds.core.DatasetBuilder,
    read_config: tfds.ReadConfig = tfds.ReadConfig(),
) -> file_adapters.FileFormat:
  """Returns the format of the files of a data set."""
  return (
      read_config.file_format
      or builder.info.file_format
      or file_adapters.DEFAULT_FILE_FORMAT
  )


def read_records(
    builder: tfds.core.DatasetBuilder,
    split: Any,
    *,
    shuffle_files: bool,
    read_config: tfds.ReadConfig,
) -> Optional[tf.data.Dataset]:
  """Returns dicts with the string of each record, or None if that fails."""
  records = _Reader(file_format_of(builder, read_config)).read(
      instructions=split,
      split_infos=builder.info.splits.values(),
      read_config=read_config,
      shuffle_files=shuffle_files,
      disable_shuffling=builder.info.disable_shuffling,
  )
  if records.element_spec.get(RECORD) != tf.TensorSpec([], tf.string):
    return None
  return records


def cycle_length_of(
    read_config: tfds.ReadConfig, in_order: bool = False
) -> Optional[int]:
  """Returns how many files TFDS reads at a time."""
  cycle_length = read_config.interleave_cycle_length
  if cycle_length != read_config_lib.MISSING:
    return cycle_length
  return 1 if in_order else _CYCLE_LENGTH


def encoding_of(feature: tfds.features.Tensor) -> str:
  """Returns how the values of a feature are stored."""
  return feature._encoding.value  # pylint: disable=protected-access
