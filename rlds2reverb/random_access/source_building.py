"""Builds the index of a `Source`, with TensorFlow."""

from typing import Any

import tensorflow as tf

from rlds2reverb import fields
from rlds2reverb import transforms
from rlds2reverb.random_access import building
from rlds2reverb.random_access import index as index_lib


def build(source: Any, folder: str, num_processes: int) -> index_lib.Index:
  """Builds the index of a `Source`; see `build_index`."""

  def prepare(episodes: tf.data.Dataset) -> tf.data.Dataset:
    if source.config is not None:
      episodes = fields.map_fields(episodes, fields.load_mapping(source.config))
      own = transforms.load_transforms(source.config)
      episodes = transforms.transform_episodes(episodes, own)
    return source.prepare(episodes) if source.prepare else episodes

  return building.build_index(
      source.directory,
      folder,
      source.split,
      prepare=prepare,
      num_processes=num_processes,
  )
