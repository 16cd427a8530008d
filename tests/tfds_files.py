"""Writes small TFDS data sets with any features."""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import os
from typing import Any

import tensorflow as tf
import tensorflow_datasets as tfds

_NAME = 'written'


def write(
    directory: str,
    features: Mapping[str, Any],
    episodes: Iterable[Mapping[str, Any]],
    version: str = '1.0.0',
    max_episodes_per_file: int = 2,
    file_format: str = 'tfrecord',
) -> None:
  """Writes episodes as a TFDS data set with the split `train`."""
  os.makedirs(directory, exist_ok=True)
  info = tfds.core.DatasetInfo(
      builder=tfds.core.dataset_info.DatasetIdentity(
          name=_NAME,
          version=tfds.core.Version(version),
          data_dir=directory,
          module_name=__name__,
      ),
      features=tfds.features.FeaturesDict(features),
  )
  writer = tfds.core.SequentialWriter(
      info,
      max_examples_per_shard=max_episodes_per_file,
      file_format=file_format,
  )
  writer.initialize_splits(['train'])
  writer.add_examples({'train': episodes})
  writer.close_all()


def write_records(
    directory: str,
    features: Mapping[str, Any],
    files: Sequence[Sequence[bytes]],
) -> None:
  """Writes records, which may be invalid, to the files of the split `train`."""
  os.makedirs(directory, exist_ok=True)
  template = tfds.core.ShardedFileTemplate(
      data_dir=directory,
      dataset_name=_NAME,
      split='train',
      filetype_suffix='tfrecord',
  )
  for index, records in enumerate(files):
    path = template.sharded_filepath(shard_index=index, num_shards=len(files))
    with tf.io.TFRecordWriter(os.fspath(path)) as writer:
      for record in records:
        writer.write(record)
  tfds.folder_dataset.write_metadata(
      data_dir=directory,
      features=tfds.features.FeaturesDict(features),
      split_infos=[
          tfds.core.SplitInfo(
              name='train',
              shard_lengths=list(map(len, files)),
              num_bytes=0,
              filename_template=template,
          )
      ],
      filename_template=template,
      check_data=False,
  )
