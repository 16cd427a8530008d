"""What is known of data before an episode is read: its metadata and bounds."""

import dataclasses
import os
import sys
from typing import Any, Dict, List, Mapping, Optional, Sequence

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
  names = [paths.name_of(keys) for keys, _ in leaves]
  for name in bounds:
    if name not in names:
      raise ValueError(
          f'{name} cannot have bounds. The fields that can are {names}.'
      )
  found: List[Any] = [np.zeros([2, 0])]
  for field, (keys, spec) in zip(names, leaves):
    is_unit = keys[0] == rlds.ACTION and spec.dtype.is_floating
    end = 1.0 if is_unit else np.inf
    known = bounds.get(field, Bounds(-end, end, ''))
    found.append([])
    for name, sign in ('low', -1), ('high', 1):
      bound = np.asarray(getattr(known, name), np.float64)
      try:
        ends = np.broadcast_to(bound, spec.shape.as_list()).ravel()
      except ValueError as e:
        raise ValueError(
            f'The bounds of {field} must have its shape {spec.shape},'
            f' but {name} is {bound}.'
        ) from e
      margin = _TOLERANCE * np.maximum(np.abs(ends), 1)
      found[-1].append(ends + sign * margin)
  return np.concatenate(found, 1)


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
  signature = checkpoint_episodes.signature_of(table)
  leaves = {} if signature is None else paths.leaves(signature)
  return {
      'name': table.table_name,
      'num_items': records.num_items(table),
      'max_size': table.max_size,
      'max_times_sampled': table.max_times_sampled,
      'sampler': _selector(table.sampler),
      'remover': _selector(table.remover),
      'rate_limiter': (
          f'samples_per_insert={limiter.samples_per_insert:g},'
          f' min_size_to_sample={limiter.min_size_to_sample},'
          f' min_diff={_bound(limiter.min_diff)},'
          f' max_diff={_bound(limiter.max_diff)}'
      ),
      'signature': {
          name: f'{spec.dtype.name} {spec.shape}'
          for name, spec in leaves.items()
      },
  }


def _bound(value: float) -> str:
  # Reverb has the least and the greatest number where there is no limit.
  return 'none' if abs(value) >= sys.float_info.max else f'{value:g}'


def _selector(options: Any) -> str:
  """Returns the name of a Reverb selector, and its settings."""
  kind = options.WhichOneof('distribution')
  settings = getattr(options, kind)
  if isinstance(settings, bool):  # This kind has no settings.
    return kind
  return f'{kind} ({str(settings).strip()})'.replace('\n', ', ')
