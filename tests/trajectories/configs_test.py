"""Each config, on data of just the features that its data sets have.

The data is mapped, and compared with what numpy makes of the same arrays. That
of the most used configs is written to disk by TFDS, read, mapped and converted.
"""

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf
import tree

from rlds2reverb import transforms  # noqa: F401
from rlds2reverb.datasets import loading
from rlds2reverb.datasets import writing
from rlds2reverb.fields import configs
from rlds2reverb.fields import known_features
from rlds2reverb.fields import mapping as mapping_lib
from rlds2reverb.fields import step_mapping
from rlds2reverb.trajectories import conversion
from tests import golden
from tests.trajectories import config_cases

_LENGTHS = (4, 2)


def _random_leaf(info, rng, length=None):
  shape = [5 if dim is None else dim for dim in info.shape]
  shape = shape if length is None else [length] + shape
  dtype = tf.as_dtype(info.dtype)
  if dtype == tf.string:
    size = int(np.prod(shape))
    values = np.array([b'%d' % v for v in rng.integers(0, 99, size)])
    return values.astype(object).reshape(shape)
  if dtype.is_floating:
    return rng.random(shape).astype(dtype.as_numpy_dtype)
  return rng.integers(0, 2, shape).astype(dtype.as_numpy_dtype)


def _random_episode(features, rng, length, terminal):
  spec = features.get_tensor_spec()
  steps = tf.nest.map_structure(
      lambda info: _random_leaf(info, rng, length), spec.pop('steps')
  )
  step = np.arange(length)
  steps['is_first'] = step == 0
  steps['is_last'] = step == length - 1
  steps['is_terminal'] = (step == length - 1) & terminal
  episode = tf.nest.map_structure(lambda info: _random_leaf(info, rng), spec)
  return {**episode, 'steps': steps}


def _config_of(name):
  prefixes = ('d4rl_adroit', 'd4rl_mujoco', 'robomimic')
  found = [prefix for prefix in prefixes if name.startswith(prefix)]
  return found[0] if found else name.split('/')[0]


def _data_of(name):
  """Returns the features of a data set, and two random episodes of it."""
  config = _config_of(name)
  features = known_features.known_features(config)[name]
  rng = np.random.default_rng(0)
  episodes = [
      _random_episode(features, rng, length, terminal)
      for length, terminal in zip(_LENGTHS, (True, False))
  ]
  if config in ('robomimic', 'rlu_rwrl'):
    episodes[0]['steps']['is_terminal'][-2] = True
  return features, episodes


# Those that are read from disk.
_CASES = {
    **config_cases.OTHERS,
    **{
        name: config_cases.OPEN_X[name]
        for name in ('kuka', 'language_table', 'libero', 'taco_play')
    },
}
_IN_MEMORY = {
    name: case
    for name, case in {
        **config_cases.OPEN_X,
        **config_cases.SECOND_RELEASE,
    }.items()
    if name not in _CASES
}
# Of their data sets no features are known, so there is nothing to read.
_UNKNOWN_FEATURES = ('d4rl_kitchen',)
# What is filled in, and not read: rewards, and discounts, which the data of the
# first release of Open X-Embodiment do not have.
_NO_REWARD = ('mt_opt',)
_NO_DISCOUNT = (
    'bc_z',
    'berkeley_autolab_ur5',
    'berkeley_cable_routing',
    'bridge_open_x',
    'columbia_cairlab_pusht_real',
    'fractal20220817_data',
    'jaco_play',
    'kuka',
    'language_table',
    'mt_opt',
    'nyu_door_opening_surprising_effectiveness',
    'robomimic',
    'roboturk',
    'taco_play',
    'toto',
    'viola',
)
# The reward of the last step is that of the transition into it.
_LAST_REWARD = (
    'austin_buds_dataset_converted_externally_to_rlds',
    'austin_sailor_dataset_converted_externally_to_rlds',
    'austin_sirius_dataset_converted_externally_to_rlds',
    'berkeley_fanuc_manipulation',
    'berkeley_gnm_recon',
    'cmu_stretch',
    'dlr_edan_shared_control_converted_externally_to_rlds',
    'iamlab_cmu_pickup_insert_converted_externally_to_rlds',
    'libero',
    'nyu_franka_play_dataset_converted_externally_to_rlds',
    'stanford_hydra_dataset_converted_externally_to_rlds',
    'ucsd_kitchen_dataset_converted_externally_to_rlds',
    'utaustin_mutex',
    *{name.split('/')[0] for name in config_cases.SECOND_RELEASE},
)
# Its ends are not marked rightly, so none of them is taken for terminal.
_NEVER_TERMINAL = ('aloha_static_dataset', 'calvin')


class ConfigsTest(tf.test.TestCase, parameterized.TestCase):

  def test_there_is_a_case_for_each_config(self):
    self.assertCountEqual(
        configs.config_names(),
        {*map(_config_of, {**_CASES, **_IN_MEMORY}), *_UNKNOWN_FEATURES},
    )
    for config in _UNKNOWN_FEATURES:
      self.assertEmpty(known_features.known_features(config))

  def test_whose_last_action_counts(self):
    acting = [
        name
        for name in configs.config_names()
        if configs.load_mapping(name).last_action
    ]
    self.assertCountEqual(acting, [*_LAST_REWARD, 'bridge'])

  @parameterized.named_parameters(
      (name.replace('/', '_'), name) for name in _CASES
  )
  @pytest.mark.few(2)
  def test_from_disk_to_trajectories(self, name):
    features, episodes = _data_of(name)
    directory = self.create_tempdir().full_path
    writing.write_episodes(
        [
            {**episode, 'steps': golden.rows_of(episode['steps'])}
            for episode in episodes
        ],
        directory,
        name=name,
        description='Random episodes.',
        features=dict(features),
    )
    data = loading.load_episodes(directory)
    self._check(name, _CASES[name], data, episodes)

  @parameterized.named_parameters(
      (name.replace('/', '_'), name) for name in _IN_MEMORY
  )
  @pytest.mark.few(20)
  def test_from_memory_to_steps(self, name):
    _, episodes = _data_of(name)
    config = _config_of(name)
    mapping = configs.load_mapping(config)
    for episode in episodes:
      found = mapping(tf.nest.map_structure(tf.constant, episode))['steps']
      expected = self._expected(config, episode, _IN_MEMORY[name])
      is_end = found['is_last'] & found['is_terminal']
      types = tf.where(found['is_first'], 0, tf.where(found['is_last'], 2, 1))
      made = {
          'step_type': types,
          'next_step_type': tf.roll(types, -1, 0),
          'policy_info': found.get('policy_info', ()),
          'discount': tf.where(is_end, 0.0, found['discount']),
      }
      self._assert_same(
          {key: made[key] if key in made else found[key] for key in expected},
          expected,
      )

  def _check(self, name, case, data, episodes):
    config = _config_of(name)
    mapping = configs.load_mapping(config)
    mapped = mapping_lib.map_fields(data, mapping)
    frames = conversion.convert_rlds_to_trajectories(
        mapped,
        step_mapping.step_policy_info
        if mapping.policy_info is not None
        else None,
    )
    found = frames.batch(sum(_LENGTHS) + 1).get_single_element()
    expected = [self._expected(config, episode, case) for episode in episodes]
    expected = tf.nest.map_structure(
        lambda *leaves: np.concatenate(leaves), *expected
    )
    self._assert_same(found._asdict(), expected)

  def _expected(self, config, episode, case):
    steps = episode['steps']
    observation, action, policy_info = config_cases.fields_of(
        case, steps, episode
    )
    length = len(steps['is_first'])
    reward, discount = np.zeros(length), np.ones(length)
    if config not in _NO_REWARD:
      reward = np.reshape(steps['reward'], [length])
    if config in _LAST_REWARD:
      reward = np.float32(reward)
      reward = np.append(reward[:-2], [reward[-2] + reward[-1], 0])
    if config not in _NO_DISCOUNT:
      discount = np.reshape(steps['discount'], [length]).copy()
    if steps['is_terminal'][-1] and config not in _NEVER_TERMINAL:
      discount[-1] = 0
      if config in _NO_DISCOUNT:
        discount[-2] = 0
    middle = [1] * (length - 2)
    return {
        'step_type': np.int32([0, *middle, 2]),
        'next_step_type': np.int32([*middle, 2, 0]),
        'observation': observation,
        'action': action,
        'policy_info': policy_info,
        'reward': np.float32(reward),
        'discount': np.float32(discount),
    }

  def _assert_same(self, found, expected):
    found = dict(tree.flatten_with_path(found))
    expected = dict(tree.flatten_with_path(expected))
    self.assertEqual(found.keys(), expected.keys())
    for path, leaf in expected.items():
      with self.subTest(str(path)):
        self.assertEqual(found[path].dtype, tf.as_dtype(leaf.dtype))
        self.assertAllEqual(found[path], leaf)


if __name__ == '__main__':
  tf.test.main()
