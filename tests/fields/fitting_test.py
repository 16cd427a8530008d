"""Each config, on random data of just the features that its data sets have.

What a mapping makes of it is compared with what numpy makes of the same arrays.
"""

import re

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf
import tree

from rlds2reverb.fields import configs
from rlds2reverb.fields import sources as sources_lib
from tests import known_data

_LENGTH = 4
# No features of its data sets are known.
_UNKNOWN = 'd4rl_kitchen'


def _find(nest, path):
  """Finds a field, whose keys may have slashes in them."""
  if path in nest:
    return nest[path]
  keys = [key for key in nest if path.startswith(f'{key}/')]
  return _find(nest[keys[0]], path[len(keys[0]) + 1 :])


def _made(source, episode, cast):
  """Returns the value of a source, in NumPy."""
  make = lambda one: _made(one, episode, cast)
  if isinstance(source, dict):
    return {name: make(one) for name, one in source.items()}
  if isinstance(source, list):
    leaves = [leaf for one in source for leaf in tf.nest.flatten(make(one))]
    columns = [np.reshape(leaf, [_LENGTH, -1]) for leaf in leaves]
    floats = [column.dtype for column in columns if column.dtype.kind == 'f']
    dtype = np.result_type(*(floats or [np.float32]))
    return np.concatenate(columns, axis=1, dtype=dtype, casting='unsafe')
  if isinstance(source, sources_lib.TextFromCodes):
    rows = [bytes(row.astype(np.uint8)) for row in make(source.source)]
    return np.array([row.split(b'\0')[0] for row in rows], object)
  if isinstance(source, sources_lib.TerminalOnSuccess):
    end = make(source.success)[-2:].any()
    return np.array([False] * (_LENGTH - 1) + [end])
  if isinstance(source, sources_lib.TerminalOnZeroDiscount):
    end = make(source.discount).reshape([_LENGTH])[-2] == 0
    return np.array([False] * (_LENGTH - 1) + [end])
  if isinstance(source, sources_lib.DiscountFromTransitions):
    discount = np.array(make(source.discount)).reshape([_LENGTH])
    discount[-1] = discount[-2]
    return discount
  if not isinstance(source, str):
    return np.full([_LENGTH], source, np.float32)
  path, first, last = re.fullmatch(
      r'(.*?)(?:\[(-?\d*):(-?\d*)\])?', source
  ).groups()
  if path.startswith('../'):
    value = _find(episode, path[3:])
    value = np.repeat(np.asarray(value)[None], _LENGTH, axis=0)
  else:
    value = _find(episode['steps'], path)
  value = tf.nest.map_structure(
      lambda leaf: leaf.astype(cast.get(leaf.dtype.name, leaf.dtype)), value
  )
  if first is None:
    return value
  return value[:, slice(*(int(n) if n else None for n in (first, last)))]


def _expected(mapping, episode):
  fields = {
      name: _made(source, episode, mapping.cast)
      for name, source in vars(mapping).items()
      if name not in ('cast', 'last_reward', 'last_action')
      and source is not None
  }
  at_end = np.arange(_LENGTH) == _LENGTH - 1
  fields.setdefault('is_first', at_end[::-1])
  fields.setdefault('is_last', at_end)
  fields.setdefault('is_terminal', np.zeros([_LENGTH], bool))
  reward = fields.get('reward', np.zeros([_LENGTH], np.float32))
  reward = np.reshape(reward, [_LENGTH])
  if mapping.last_reward == 'transition':
    reward = np.array([*reward[:-2], reward[-2] + reward[-1], 0], reward.dtype)
  fields['reward'] = reward
  if mapping.last_action:
    fields['has_action'] = np.ones([_LENGTH], bool)
  ends = [1, 1, 0, 0] if fields['is_terminal'][-1] else [1, 1, 1, 1]
  discount = np.reshape(fields.get('discount', ends), [_LENGTH])
  fields['discount'] = discount.astype(np.float32)
  return fields


class FittingTest(parameterized.TestCase):

  def test_config_without_known_features(self):
    self.assertEqual(configs.load_known_features(_UNKNOWN), {})

  @parameterized.parameters(
      *(name for name in configs.config_names() if name != _UNKNOWN)
  )
  @pytest.mark.few(20)
  def test_mapped_steps_equal_numpy(self, config):
    mapping = configs.load_mapping(config)
    features = [*configs.load_known_features(config).values()]
    for each, is_terminal in (features[0], True), (features[-1], False):
      episode = known_data.random_episode(each, _LENGTH, is_terminal)
      if isinstance(mapping.is_terminal, sources_lib.TerminalOnSuccess):
        # Of the second episode it is success in the transition to the end.
        episode['steps']['is_terminal'][-2] = not is_terminal
      actual = mapping(tf.nest.map_structure(tf.constant, episode))['steps']
      actual = dict(tree.flatten_with_path(actual))
      expected = dict(tree.flatten_with_path(_expected(mapping, episode)))
      self.assertEqual(actual.keys(), expected.keys())
      for path, leaf in expected.items():
        np.testing.assert_array_equal(actual[path], leaf, f'{path}')
        self.assertEqual(actual[path].dtype, tf.as_dtype(leaf.dtype), path)


if __name__ == '__main__':
  absltest.main()
