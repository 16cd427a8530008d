"""Writes episodes to disk in the TFDS format."""

from typing import Any, Dict, Iterable

import tensorflow_datasets as tfds

_MAX_EPISODES_PER_FILE = 1000


def write_episodes(
    episodes: Iterable[Dict[str, Any]],
    folder: str,
    *,
    name: str,
    description: str,
    features: Dict[str, Any],
    split: str = 'train',
    max_episodes_per_file: int = _MAX_EPISODES_PER_FILE,
) -> None:
  """Writes one split of a data set into an empty folder.

  Args:
    episodes: the episodes, which TFDS can encode with `features`.
    folder: the folder to write into; see `whole.new_folder`.
    name: the name of the data set, which is changed into one that TFDS allows.
    description: a description of the data set.
    features: the TFDS features of an episode.
    split: the name of the split.
    max_episodes_per_file: how many episodes a file holds at most.

  Raises:
    ValueError: if there are no episodes, because TFDS cannot read such a split.
  """
  info = tfds.core.DatasetInfo(
      builder=tfds.core.dataset_info.DatasetIdentity(
          name=_tfds_name(name),
          version=tfds.core.Version('1.0.0'),
          data_dir=folder,
          module_name=__name__,
      ),
      description=description,
      features=tfds.features.FeaturesDict(features),
  )
  writer = tfds.core.SequentialWriter(
      info, max_examples_per_shard=max_episodes_per_file
  )
  writer.initialize_splits([split])
  # Each call records the splits anew, so all episodes are added in one call.
  writer.add_examples({split: episodes})
  writer.close_all()
  if not info.splits[split].num_examples:
    raise ValueError('There are no episodes to write.')


def _tfds_name(name: str) -> str:
  return tfds.core.naming.camelcase_to_snakecase(
      name.replace('-', '_').replace('/', '_')
  )
