"""What is known of data before an episode is read: its metadata and bounds."""

import dataclasses
import os
import sys
from typing import Any, Dict, Mapping, Optional, Sequence

import gym
import numpy as np
import tensorflow_datasets as tfds
import tree

from rlds2reverb.datasets import files
from rlds2reverb.datasets import recording
from rlds2reverb.datasets import saving
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.fields import step_mapping
from rlds2reverb.replay.checkpoint import episodes as checkpoint_episodes
from rlds2reverb.replay.checkpoint import records

_CATALOG = 'tensorflow.org/datasets/catalog'  # where TFDS knows no homepage
_FEATURES = "the data set's features"
_LIMITER = ('samples_per_insert', 'min_size_to_sample', 'min_diff', 'max_diff')
_TOLERANCE = 1e-6  # How far rounding may take a number beyond its bounds.


@dataclasses.dataclass(frozen=True)
class Bounds:
  """The bounds of a field.

  Attributes:
    low: the least value, one number or an array of the field's shape.
    high: the greatest value.
    source: where they come from, such as `the features of the data set`.
    names: the names of the values from `low` to `high`, if they have names.
  """

  low: Any
  high: Any
  source: str
  names: Sequence[str] = ()


def bounds_of_features(
    features: tfds.features.FeaturesDict,
    mapping: Optional[step_mapping.StepMapping],
) -> Dict[str, Bounds]:
  """Returns the bounds that features give to actions and class labels."""
  path = rlds.ACTION if mapping is None else mapping.action
  if not isinstance(path, str) or path.startswith('../'):
    return {}
  bounds = {}
  for name, feature in saving.feature_leaves(features[rlds.STEPS]):
    is_action = name == path or name.startswith(f'{path}/')
    if is_action:
      name = rlds.ACTION + name[len(path) :]
    elif mapping is not None:
      continue
    if isinstance(feature, tfds.features.ClassLabel):
      if feature.num_classes:
        names = tuple(feature.names or ())
        bounds[name] = Bounds(0, feature.num_classes - 1, _FEATURES, names)
    elif is_action and isinstance(feature, tfds.features.Tensor):
      spec = feature.get_tensor_info()
      low = -np.inf if spec.minimum is None else spec.minimum
      high = np.inf if spec.maximum is None else spec.maximum
      if spec.minimum is not None or spec.maximum is not None:
        bounds[name] = Bounds(low, high, _FEATURES)
  return bounds


def bounds_of_environment(environment: str) -> Dict[str, Bounds]:
  """Returns the bounds that the action space of an environment has."""
  env = recording.make_gym(environment)
  spaces = tree.flatten_with_path({rlds.ACTION: env.action_space})
  env.close()
  ends = {
      paths.name_of(keys): (space.low, space.high)
      if isinstance(space, gym.spaces.Box)
      else (space.start, space.start + space.n - 1)
      for keys, space in spaces
      if isinstance(space, (gym.spaces.Box, gym.spaces.Discrete))
  }
  source = f'the environment {environment}'
  return {name: Bounds(*each, source) for name, each in ends.items()}


def limits(leaves: Any, bounds: Mapping[str, Bounds]) -> np.ndarray:
  """Returns the least and the greatest value of each column, float64 `[2, D]`.

  They are a little wider than the bounds, as numbers may have been rounded.

  Args:
    leaves: the keys and the spec of the fields that have columns.
    bounds: the bounds of fields, by name. Floats of an action without bounds
      are to lie in -1 to 1.

  Raises:
    ValueError: if there is no such field, or bounds do not fit its shape.
  """
  fields = {paths.name_of(keys): (keys, spec) for keys, spec in leaves}
  for name in bounds.keys() - fields:
    raise ValueError(
        f'{name} cannot have bounds. The fields that can are {list(fields)}.'
    )
  ends = [np.zeros([2, 0])]
  for name, (keys, spec) in fields.items():
    is_unit = keys[0] == rlds.ACTION and spec.dtype.is_floating
    end = 1.0 if is_unit else np.inf
    known = bounds.get(name, Bounds(-end, end, ''))
    try:
      pair = [
          np.broadcast_to(one, spec.shape) for one in (known.low, known.high)
      ]
    except ValueError as e:
      raise ValueError(
          f'The bounds of {name} must have its shape {spec.shape}, but they are'
          f' {known.low} and {known.high}.'
      ) from e
    ends.append(np.reshape(pair, [2, spec.shape.num_elements()]))
  low, high = np.concatenate(ends, 1, dtype=np.float64)
  low -= _TOLERANCE * np.maximum(np.abs(low), 1)
  return np.stack([low, high + _TOLERANCE * np.maximum(np.abs(high), 1)])


def about_data_set(opened: Any) -> Dict[str, Any]:
  """Returns `Description.about` of an `OpenSource`."""
  info = opened.info
  if hasattr(info, 'splits'):
    splits = [
        _split(name, split.num_examples, map(str, split.filepaths))
        for name, split in sorted(info.splits.items())
    ]
  else:  # Other formats have one split.
    (part,) = opened.ranges
    splits = [_split(part.split, opened.num_episodes, opened.files(part))]
  form = getattr(info, 'file_format', None)
  features = dict(saving.feature_leaves(opened.features))
  labels = tfds.features.ClassLabel
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
          path: list(one.names)
          for path, one in features.items()
          if isinstance(one, labels) and one.names
      },
      'notes': {
          path: one.doc.desc for path, one in features.items() if one.doc.desc
      },
  }


def about_folder(folder: str) -> Dict[str, Any]:
  """Returns `Description.about` of a checkpoint."""
  found = [os.path.join(folder, name) for name in files.names_in(folder)]
  return {'folder': folder, 'splits': [_split('checkpoint', None, found)]}


def _split(name, num_episodes, found) -> Dict[str, Any]:
  found = list(found)
  size = files.total_size(found)
  return dict(name=name, episodes=num_episodes, files=len(found), bytes=size)


def about_table(table: Any) -> Dict[str, Any]:
  """Returns the description of a table of a checkpoint."""
  limiter = table.rate_limiter
  settings = []
  for name in _LIMITER:
    value = getattr(limiter, name)
    # Reverb has the least and the greatest number where there is no limit.
    is_limit = abs(value) < sys.float_info.max
    settings.append(f'{name}={value:g}' if is_limit else f'{name}=none')
  signature = checkpoint_episodes.signature_of(table)
  leaves = {} if signature is None else paths.leaves(signature)
  return {
      'name': table.table_name,
      'num_items': records.num_items(table),
      'max_size': table.max_size,
      'max_times_sampled': table.max_times_sampled,
      'sampler': _selector(table.sampler),
      'remover': _selector(table.remover),
      'rate_limiter': ', '.join(settings),
      'signature': {
          name: f'{spec.dtype.name} {spec.shape}'
          for name, spec in leaves.items()
      },
  }


def _selector(options: Any) -> str:
  """Returns the name of a Reverb selector, and its settings."""
  kind = options.WhichOneof('distribution')
  settings = getattr(options, kind)
  if isinstance(settings, bool):  # This kind has no settings.
    return kind
  return f'{kind} ({str(settings).strip()})'.replace('\n', ', ')
