"""Bounds of fields: those of features, of environments, and of a user."""

import dataclasses
from typing import Any, Dict, List, Mapping, Optional, Sequence

import gym
import numpy as np
import tensorflow_datasets as tfds
import tree

from rlds2reverb.datasets import recording
from rlds2reverb.datasets import saving
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.fields import step_mapping

_FEATURES = "the data set's features"
_UNIT = (-1.0, 1.0)


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
        bounds[name] = Bounds(
            0, feature.num_classes - 1, _FEATURES, tuple(feature.names or ())
        )
    elif isinstance(feature, tfds.features.Tensor) and (
        name.split('/')[0] == rlds.ACTION
    ):
      spec = feature.get_tensor_info()
      if spec.minimum is not None or spec.maximum is not None:
        bounds[name] = Bounds(
            -np.inf if spec.minimum is None else spec.minimum,
            np.inf if spec.maximum is None else spec.maximum,
            _FEATURES,
        )
  return bounds


def bounds_of_environment(environment: str) -> Dict[str, Bounds]:
  """Returns the bounds that the action space of an environment has."""
  env = recording.make_gym(environment)
  source = f'the environment {environment}'
  bounds = {}
  try:
    spaces = tree.flatten_with_path({rlds.ACTION: env.action_space})
  finally:
    env.close()
  for keys, space in spaces:
    if isinstance(space, gym.spaces.Box):
      ends = space.low, space.high
    elif isinstance(space, gym.spaces.Discrete):
      ends = space.start, space.start + space.n - 1
    else:
      continue
    bounds[paths.name_of(keys)] = Bounds(*ends, source)
  return bounds


def limits(leaves: Any, bounds: Mapping[str, Bounds]) -> np.ndarray:
  """Returns the least and the greatest value of each column, float64 `[2, D]`.

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
    is_free = keys[0] == rlds.ACTION and spec.dtype.is_floating
    free = _UNIT if is_free else (-np.inf, np.inf)
    known = bounds.get(field, Bounds(free[0], free[1], ''))
    found.append([])
    for name in ('low', 'high'):
      bound = np.asarray(getattr(known, name), np.float64)
      try:
        found[-1].append(np.broadcast_to(bound, spec.shape.as_list()).ravel())
      except ValueError as e:
        raise ValueError(
            f'The bounds of {field} must have its shape {spec.shape},'
            f' but {name} is {bound}.'
        ) from e
  return np.concatenate(found, 1)
