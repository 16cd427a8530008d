"""Finds the features of well-known data sets without their data.

By these a config can be checked without downloading a data set.
"""

import os
import tempfile
from typing import Dict

import tensorflow_datasets as tfds

from rlds2reverb.episodes import rlds
from rlds2reverb.fields import configs


def known_features(config: str) -> Dict[str, tfds.features.FeaturesDict]:
  """Returns the features of the data sets for which a config is made.

  They are read from `configs/features/<config>/features.json`, a file that TFDS
  writes, or from one in each folder below that, which has the name of a
  variant. Without such a file, they come from the builders in TFDS whose names
  begin with the name of the config.

  Args:
    config: one of `configs.config_names()`.

  Returns:
    A dict from names of data sets, for example `d4rl_mujoco_ant/v2-medium`, to
    the features of an episode. It is empty if none are known.
  """
  folder = os.path.join(configs.config_folder(), 'features', config)
  features = {}
  for root, _, names in sorted(os.walk(folder)):
    if 'features.json' in names:
      name = os.path.join(config, os.path.relpath(root, folder))
      found = tfds.features.FeatureConnector.from_config(root)
      features[os.path.normpath(name)] = found
  if os.path.isdir(folder):
    return features
  names = tfds.list_builders(with_community_datasets=False)
  # TFDS would prefer features on disk, so it looks in an empty folder.
  with tempfile.TemporaryDirectory() as empty:
    for name in filter(lambda name: name.startswith(config), names):
      for variant in tfds.builder_cls(name).builder_configs or ['']:
        full_name = os.path.join(name, variant).rstrip('/')
        found = tfds.builder(full_name, data_dir=empty).info.features
        if rlds.STEPS in found:
          features[full_name] = found
  return features
