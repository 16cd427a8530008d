"""Each config, on data of just the features that its data sets have.

The data is written to disk by TFDS, read, mapped and converted, and compared
with what numpy makes of the same arrays.
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
from tests.trajectories import open_x_cases
from tests.trajectories import second_release_cases

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


def _step(steps, index):
  return tf.nest.map_structure(lambda leaf: leaf[index], steps)


def _float32(nest):
  return tf.nest.map_structure(
      lambda leaf: np.float32(leaf) if leaf.dtype == np.float64 else leaf, nest
  )


def _as_it_is(steps, _):
  return steps['observation'], steps['action'], ()


def _in_float32(steps, _):
  return _float32(steps['observation']), _float32(steps['action']), ()


def _robosuite(steps, _):
  observation = {
      'robot': np.float32(steps['observation']['robot0_proprio-state']),
      'object': np.float32(steps['observation']['object-state']),
  }
  info = {'placed': steps['tag:placed']}
  return observation, np.float32(steps['action']), info


def _mt_opt(steps, episode):
  own, action = steps['observation'], steps['action']
  state = open_x_cases.vector(
      own['state_dense'], own['height_to_bottom'], own['gripper_closed']
  )
  action = open_x_cases.vector(
      action['target_pose'],
      action['close_gripper'],
      action['open_gripper'],
      action['terminate'],
  )
  info = {
      'skill': open_x_cases.every_step(episode['skill'], steps),
      'task': open_x_cases.every_step(episode['task_code'], steps),
  }
  return {'image': own['image'], 'state': state}, action, info


def _bridge(steps, _):
  observation = {
      'image': steps['observation']['image_0'],
      'state': steps['observation']['state'],
      'language': steps['language_embedding'],
  }
  info = {'instruction': steps['language_instruction']}
  return observation, steps['action'], info


def _bridge_open_x(steps, _):
  own, action = steps['observation'], steps['action']
  observation = {
      'image': own['image'],
      'state': own['state'],
      'language': own['natural_language_embedding'],
  }
  action = open_x_cases.vector(
      action['world_vector'], action['rotation_delta'], action['open_gripper']
  )
  info = {'instruction': own['natural_language_instruction']}
  return observation, action, info


def _fractal(steps, episode):
  own, action = steps['observation'], steps['action']
  observation = {
      'image': own['image'],
      'pose': own['base_pose_tool_reached'],
      'gripper': own['gripper_closed'],
      'language': own['natural_language_embedding'],
  }
  action = open_x_cases.vector(
      action['world_vector'],
      action['rotation_delta'],
      action['gripper_closedness_action'],
  )
  info = {
      'instruction': own['natural_language_instruction'],
      'success': open_x_cases.every_step(episode['aspects']['success'], steps),
      'has_aspects': open_x_cases.every_step(
          episode['aspects']['has_aspects'], steps
      ),
  }
  return observation, action, info


def _recon(steps, _):
  observation = {
      'image': steps['observation']['image'],
      'state': np.float32(steps['observation']['state']),
  }
  return observation, np.float32(steps['action_angle']), ()


def _maze2d(steps, _):
  observation = open_x_cases.vector(
      steps['observation'], steps['infos']['goal']
  )
  return observation, steps['action'], ()


def _minari_kitchen(steps, _):
  observation = np.float32(steps['observation']['observation'])
  return observation, np.float32(steps['action']), ()


def _minari_antmaze(steps, _):
  own = steps['observation']
  observation = open_x_cases.vector(
      own['observation'], own['achieved_goal'], own['desired_goal']
  )
  return observation, steps['action'], ()


def _locomotion(steps, _):
  return steps['observation']['walker'], steps['action'], ()


# By the name of a data set: its config, and what is expected of it.
_CASES = {
    'berkeley_gnm_recon': ('berkeley_gnm_recon', _recon),
    'bridge': ('bridge', _bridge),
    'bridge_open_x': ('bridge_open_x', _bridge_open_x),
    'd4rl_adroit_pen/v0-cloned': ('d4rl_adroit', _in_float32),
    'd4rl_antmaze/umaze-v2': ('d4rl_antmaze', _as_it_is),
    'd4rl_maze2d': ('d4rl_maze2d', _maze2d),
    'd4rl_mujoco_hopper/v1-medium-replay': ('d4rl_mujoco', _in_float32),
    'd4rl_mujoco_ant/v2-medium': ('d4rl_mujoco', _in_float32),
    'fractal20220817_data': ('fractal20220817_data', _fractal),
    'minari_antmaze': ('minari_antmaze', _minari_antmaze),
    'minari_kitchen': ('minari_kitchen', _minari_kitchen),
    'mt_opt/rlds': ('mt_opt', _mt_opt),
    'recorded_gym': ('recorded_gym', _as_it_is),
    'rlu_atari/Pong_run_1': ('rlu_atari', _as_it_is),
    'rlu_control_suite/fish_swim': ('rlu_control_suite', _as_it_is),
    'rlu_locomotion/rodent_gaps': ('rlu_locomotion', _locomotion),
    'rlu_rwrl/walker_walk_combined_challenge_none_100_percent': (
        'rlu_rwrl',
        _as_it_is,
    ),
    'robomimic_ph/can_ph_image': ('robomimic', _in_float32),
    'robomimic_mh/transport_mh_low_dim': ('robomimic', _in_float32),
    'robosuite_panda_pick_place_can/human_dc29b40a': (
        'robosuite_panda_pick_place_can',
        _robosuite,
    ),
    **{
        name: (name, open_x_cases.CASES[name])
        for name in ('kuka', 'language_table', 'libero', 'taco_play')
    },
}
_LONG_CASES = {
    name: (name.split('/')[0], expected)
    for name, expected in {
        **open_x_cases.CASES,
        **second_release_cases.CASES,
    }.items()
    if name not in _CASES
}
# Of their data sets no features are known, so there is nothing to read.
_UNKNOWN_FEATURES = ('d4rl_kitchen',)
# What is filled in, and not read: rewards, and discounts.
_NO_REWARD = ('mt_opt',)
_NO_DISCOUNT = (
    'bridge_open_x',
    'fractal20220817_data',
    'mt_opt',
    'robomimic',
    *open_x_cases.NO_DISCOUNT,
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
    *{name.split('/')[0] for name in second_release_cases.CASES},
)
# Its ends are not marked rightly, so none of them is taken for terminal.
_NEVER_TERMINAL = ('aloha_static_dataset', 'calvin')


class ConfigsTest(tf.test.TestCase, parameterized.TestCase):

  def test_there_is_a_case_for_each_config(self):
    cases = [*_CASES.values(), *_LONG_CASES.values()]
    self.assertCountEqual(
        configs.config_names(),
        [*{config for config, _ in cases}, *_UNKNOWN_FEATURES],
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
      (name.replace('/', '_'), name, *case) for name, case in _CASES.items()
  )
  @pytest.mark.few(4)
  def test_from_disk_to_trajectories(self, name, config, expected_fields):
    self._check(name, config, expected_fields)

  @pytest.mark.long
  @parameterized.named_parameters(
      (name.replace('/', '_'), name, *case)
      for name, case in _LONG_CASES.items()
  )
  @pytest.mark.long
  def test_more_from_disk_to_trajectories(self, name, config, expected_fields):
    self._check(name, config, expected_fields)

  def _check(self, name, config, expected_fields):
    features = known_features.known_features(config)[name]
    rng = np.random.default_rng(0)
    episodes = [
        _random_episode(features, rng, length, terminal)
        for length, terminal in zip(_LENGTHS, (True, False))
    ]
    if config in ('robomimic', 'rlu_rwrl'):
      episodes[0]['steps']['is_terminal'][-2] = True
    directory = self.create_tempdir().full_path
    writing.write_episodes(
        [
            {
                **episode,
                'steps': [
                    _step(episode['steps'], index) for index in range(length)
                ],
            }
            for episode, length in zip(episodes, _LENGTHS)
        ],
        directory,
        name=name,
        description='Random episodes.',
        features=dict(features),
    )
    mapping = configs.load_mapping(config)
    mapped = mapping_lib.map_fields(loading.load_episodes(directory), mapping)
    frames = conversion.convert_rlds_to_trajectories(
        mapped,
        step_mapping.step_policy_info
        if mapping.policy_info is not None
        else None,
    )
    found = frames.batch(sum(_LENGTHS) + 1).get_single_element()
    expected = [
        self._expected(config, episode, expected_fields) for episode in episodes
    ]
    expected = tf.nest.map_structure(
        lambda *leaves: np.concatenate(leaves), *expected
    )
    self._assert_same(found._asdict(), expected)

  def _expected(self, config, episode, expected_fields):
    steps = episode['steps']
    observation, action, policy_info = expected_fields(steps, episode)
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
