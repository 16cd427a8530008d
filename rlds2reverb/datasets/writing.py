"""Writes episodes to disk in the TFDS format."""

import os
import re
from typing import Any, Dict, Iterable, Tuple

import tensorflow_datasets as tfds

from rlds2reverb.episodes import checks

_MAX_EPISODES_PER_FILE = 1000
_FIRST_VERSION = '1.0.0'
TFRECORD = 'tfrecord'
FILE_FORMATS = (TFRECORD, 'array_record')


def write_episodes(
    episodes: Iterable[Dict[str, Any]],
    folder: str,
    *,
    name: str,
    description: str,
    features: Dict[str, Any],
    split: str = 'train',
    version: str = _FIRST_VERSION,
    max_episodes_per_file: int = _MAX_EPISODES_PER_FILE,
    file_format: str = TFRECORD,
) -> None:
  """Writes one split of a data set into an empty folder.

  Args:
    episodes: the episodes, which TFDS can encode with `features`.
    folder: the folder to write into; see `atomic.new_folder`.
    name: the name of the data set, which is changed into one that TFDS allows.
    description: a description of the data set.
    features: the TFDS features of an episode.
    split: the name of the split.
    version: the version of the data set.
    max_episodes_per_file: how many episodes a file holds at most.
    file_format: one of `FILE_FORMATS`.

  Raises:
    ValueError: if there are no episodes, or if the name of the split has other
      characters than letters, digits, `_` and `-`, because TFDS cannot read
      such a split.
  """
  if not re.fullmatch(r'[\w-]+', split):
    raise ValueError(
        f'The name of a split must be of letters, digits, _ and -, but is'
        f' {split!r}.'
    )
  info = tfds.core.DatasetInfo(
      builder=tfds.core.dataset_info.DatasetIdentity(
          name=_tfds_name(name),
          version=tfds.core.Version(version),
          data_dir=folder,
          module_name=__name__,
      ),
      description=description,
      features=tfds.features.FeaturesDict(features),
  )
  writer = tfds.core.SequentialWriter(
      info,
      max_examples_per_shard=max_episodes_per_file,
      file_format=file_format,
  )
  writer.initialize_splits([split])
  # Each call rewrites the list of splits, so one call adds all episodes.
  writer.add_examples({split: episodes})
  writer.close_all()
  if not info.splits[split].num_examples:
    raise ValueError('There are no episodes to write.')


def check_file_format(file_format: str) -> None:
  """Raises a ValueError if data sets cannot be written in a file format."""
  checks.check_choice('file_format', file_format, FILE_FORMATS)


def name_and_version(path: str) -> Tuple[str, str]:
  """Returns a name and a version for the data set in a folder.

  /data/My Data -> my_data, 1.0.0    /data/walker/2.0.1 -> walker, 2.0.1
  /data/v1.0    -> v1_0, 1.0.0       /data/2024-07 -> data_2024_07, 1.0.0
  """
  folder, name = os.path.split(path.rstrip('/'))
  version = _FIRST_VERSION
  if tfds.core.Version.is_valid(name) and os.path.basename(folder):
    # The layout of TFDS.
    name, version = os.path.basename(folder), name
  return _tfds_name(name), version


def _tfds_name(name: str) -> str:
  """Returns a name by which TFDS finds the files of a data set.

  It begins with a letter, and has only letters, digits and underscores.
  """
  name = re.sub('[^0-9A-Za-z]+', '_', name).strip('_')
  name = tfds.core.naming.camelcase_to_snakecase(name)
  name = re.sub('__+', '_', name)
  return name if name[:1].isalpha() else f'data_{name}'.rstrip('_')
