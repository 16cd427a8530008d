"""Reads the metadata of a data set, without reading an episode."""

import os
from typing import Any, Dict, Optional

import gym
import numpy as np
import tensorflow_datasets as tfds

from rlds2reverb.datasets import files
from rlds2reverb.datasets import recording
from rlds2reverb.datasets import saving
from rlds2reverb.episodes import rlds
from rlds2reverb.fields import step_mapping
from rlds2reverb.jobs.descriptions import one_pass

_FEATURES = "the data set's features"
_CATALOG = 'tensorflow.org/datasets/catalog'  # where TFDS knows no homepage


def about_data_set(opened: Any) -> Dict[str, Any]:
  """Returns `Description.about` of an `OpenSource`."""
  info = opened.info
  if hasattr(info, 'splits'):
    files_of = {
        name: (split.num_examples, list(map(str, split.filepaths)))
        for name, split in sorted(info.splits.items())
    }
  else:  # Other formats have one split.
    (part,) = opened.ranges
    files_of = {part.split: (opened.num_episodes, opened.files(part))}
  splits = [
      {
          'name': name,
          'episodes': num_episodes,
          'files': len(paths),
          'bytes': files.total_size(paths),
      }
      for name, (num_episodes, paths) in files_of.items()
  ]
  form = getattr(info, 'file_format', None)
  features = list(saving.feature_leaves(opened.features))
  return {
      'name': opened.name.partition('/')[0],
      'version': str(info.version),
      'description': info.description or '',
      'citation': info.citation or '',
      'homepage': '' if _CATALOG in info.homepage else info.homepage,
      'folder': opened.directory,
      'format': form.value if form else opened.source.format or '',
      'splits': splits,
      'class_names': {
          path: list(feature.names)
          for path, feature in features
          if isinstance(feature, tfds.features.ClassLabel) and feature.names
      },
      'notes': {
          path: feature.doc.desc
          for path, feature in features
          if feature.doc.desc
      },
  }


def about_folder(folder: str) -> Dict[str, Any]:
  """Returns `Description.about` of a checkpoint."""
  names = files.names_in(folder)
  return {
      'folder': folder,
      'splits': [
          {
              'name': 'checkpoint',
              'episodes': None,
              'files': len(names),
              'bytes': files.total_size(
                  os.path.join(folder, name) for name in names
              ),
          }
      ],
  }


def bounds_of_features(
    features: tfds.features.FeaturesDict,
    mapping: Optional[step_mapping.StepMapping],
) -> Dict[str, one_pass.Bounds]:
  """Returns the bounds that features give to actions and class labels."""
  found = dict(saving.feature_leaves(features[rlds.STEPS]))
  if mapping is not None:
    path = mapping.action
    if not isinstance(path, str) or path.startswith('../'):
      return {}
    found = {
        rlds.ACTION + name[len(path) :]: feature
        for name, feature in found.items()
        if name == path or name.startswith(f'{path}/')
    }
  bounds = {}
  for name, feature in found.items():
    if isinstance(feature, tfds.features.ClassLabel):
      if feature.num_classes:
        bounds[name] = one_pass.Bounds(
            0, feature.num_classes - 1, _FEATURES, tuple(feature.names or ())
        )
    elif isinstance(feature, tfds.features.Tensor) and (
        name.split('/')[0] == rlds.ACTION
    ):
      spec = feature.get_tensor_info()
      if spec.minimum is not None or spec.maximum is not None:
        bounds[name] = one_pass.Bounds(
            -np.inf if spec.minimum is None else spec.minimum,
            np.inf if spec.maximum is None else spec.maximum,
            _FEATURES,
        )
  return bounds


def bounds_of_environment(environment: str) -> Dict[str, one_pass.Bounds]:
  """Returns the bounds that the action space of an environment has."""
  env = recording.make_gym(environment)
  source = f'the environment {environment}'
  found = {}

  def add(space: Any, name: str):
    if isinstance(space, gym.spaces.Dict):
      for key, part in space.spaces.items():
        add(part, f'{name}/{key}')
    elif isinstance(space, gym.spaces.Box):
      found[name] = one_pass.Bounds(space.low, space.high, source)
    elif isinstance(space, gym.spaces.Discrete):
      found[name] = one_pass.Bounds(
          space.start, space.start + space.n - 1, source
      )

  try:
    add(env.action_space, rlds.ACTION)
  finally:
    env.close()
  return found
