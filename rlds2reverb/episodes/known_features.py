"""The features of well-known data sets, known without their data.

So that a config can be checked where nothing is downloaded.
"""

import os
import tempfile
from typing import Any, Dict

import rlds
import tensorflow as tf
import tensorflow_datasets as tfds

from rlds2reverb.episodes import named_mappings


def known_features(config: str) -> Dict[str, tfds.features.FeaturesDict]:
  """Returns the features of the data sets that a config is for.

  Those in `configs/features/<config>/features.json`, as TFDS writes them; else
  those of TFDS's own builders whose names begin with that of the config.

  Args:
    config: one of `named_mappings.config_names()`.

  Returns:
    The features of an episode by the name of the data set, for example
    `d4rl_mujoco_ant/v2-medium`. Empty where none are known.
  """
  folder = os.path.join(named_mappings.config_folder(), 'features', config)
  if os.path.isdir(folder):
    return {config: tfds.features.FeatureConnector.from_config(folder)}
  features = {}
  # TFDS prefers features that it finds on disk.
  with tempfile.TemporaryDirectory() as empty:
    for name in tfds.list_builders(with_community_datasets=False):
      if name.startswith(config):
        for variant in tfds.builder_cls(name).builder_configs or ['']:
          full_name = os.path.join(name, variant).rstrip('/')
          found = tfds.builder(full_name, data_dir=empty).info.features
          if rlds.STEPS in found:
            features[full_name] = found
  return features


def episode_spec(features: tfds.features.FeaturesDict) -> Dict[str, Any]:
  """Returns the spec of an episode, its steps a nested data set."""
  spec = features.get_tensor_spec()
  return {**spec, rlds.STEPS: tf.data.DatasetSpec(spec[rlds.STEPS])}
