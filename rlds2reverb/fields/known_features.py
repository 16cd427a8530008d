"""Finds the features of well-known data sets without their data.

By these a config can be checked without downloading a data set.
"""

import os
import tempfile
from typing import Any, Callable, Dict, Iterator

import tensorflow as tf
import tensorflow_datasets as tfds
import tree

from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.fields import configs
from rlds2reverb.fields import step_mapping

# These configs are for data of any dtypes and ranks; their known features are
# only an example.
_FOR_ANY_KINDS = ('recorded_gym',)


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


def episode_spec(features: tfds.features.FeaturesDict) -> Dict[str, Any]:
  """Returns the spec of an episode whose steps are a nested data set."""
  spec = features.get_tensor_spec()
  return {**spec, rlds.STEPS: tf.data.DatasetSpec(spec[rlds.STEPS])}


def check_kinds(
    config: str, mapping: step_mapping.StepMapping, step_spec: Dict[str, Any]
) -> bool:
  """Checks that mapped steps are of the kind that a config was made for.

  All fields must have the kinds of dtype (float, integer, bool or string) and
  the ranks that they have in one of the data sets that the config is known to
  be for. Discrete actions, for example, are no vectors of floats. Sizes may
  differ, as between robots, and so may the keys of a dict.

  Args:
    config: the name of a config.
    mapping: the mapping of that config.
    step_spec: the spec of a step that the mapping has made.

  Returns:
    Whether there is a data set to compare with.

  Raises:
    ValueError: if the steps differ from each of the data sets. The message
      lists the differences from the one that has the fewest, by path.
  """
  known = {} if config in _FOR_ANY_KINDS else known_features(config)
  found = {}
  for name, features in known.items():
    spec = mapped_step_spec(mapping, episode_spec(features))
    found[name] = list(_differences(spec, step_spec, ()))
    if not found[name]:
      return True
  if not found:
    return False
  nearest = min(found, key=lambda name: len(found[name]))
  raise ValueError(
      f'The data is not of the kind that {config} was made for, which has, in'
      f' {nearest}:\n  ' + '\n  '.join(found[nearest])
  )


def mapped_step_spec(
    mapping: Callable[[Dict[str, Any]], Dict[str, Any]], episode: Any
) -> Dict[str, Any]:
  """Returns the spec of a step that a mapping makes of an episode.

  Args:
    mapping: a mapping, or a function that maps and then transforms.
    episode: what `episode_spec` returns.

  Raises:
    ValueError: if the mapping does not fit.
  """
  traced = tf.function(mapping).get_concrete_function(episode)
  steps = traced.structured_outputs[rlds.STEPS]
  return steps_lib.without_time(
      tf.nest.map_structure(tf.type_spec_from_value, steps)
  )


def _differences(known, found, keys) -> Iterator[str]:
  """Yields a line for each field that is of another kind."""
  if isinstance(known, dict) and isinstance(found, dict):
    for key in known:
      if key in found:
        yield from _differences(known[key], found[key], (*keys, key))
  elif _kind(known) != _kind(found):
    yield (
        f'{steps_lib.field_path(keys)}: {_describe(known)}, but here it is'
        f' {_describe(found)}'
    )


def _kind(nest) -> Any:
  """Returns the properties that must be equal in two fields."""
  if not isinstance(nest, tf.TensorSpec):
    # Tuples must have the same parts, but dicts may have other keys.
    return tree.map_structure(_kind, nest) if isinstance(nest, tuple) else dict
  dtypes = ('is_floating', 'is_integer', 'is_bool', 'is_complex')
  return nest.shape.rank, [getattr(nest.dtype, name) for name in dtypes]


def _describe(nest) -> str:
  if isinstance(nest, tf.TensorSpec):
    return f'{nest.dtype.name} {nest.shape}'
  return f'a nest of {sorted(map(str, nest))}'
