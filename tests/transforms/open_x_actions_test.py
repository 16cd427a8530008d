"""The actions of Open X-Embodiment's configs, as Octo and OpenVLA make them.

What they do is computed anew here, step by step in numpy, of random episodes
with the features of the data sets. The action of a last step has no meaning.
"""

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf

from rlds2reverb.fields import configs
from rlds2reverb.transforms import applying
from rlds2reverb.transforms.robotics import rotations
from tests import known_data
from tests.transforms import octo

_LENGTH = 12
_RLDS = '_converted_externally_to_rlds'


_as_it_is = lambda gripper: gripper
_closed = lambda gripper: 1 - gripper
_closed_byte = lambda gripper: 1 - gripper / 255
_closed_clipped = lambda gripper: 1 - np.clip(gripper, 0, 1)
_open_clipped = lambda gripper: np.clip(gripper, 0, 1)
# What becomes of the gripper, which is the last number of the mapped action.
_GRIPPERS = {
    'berkeley_autolab_ur5': octo.absolute,
    'fractal20220817_data': octo.absolute,
    'jaco_play': octo.absolute,
    'kuka': octo.absolute,
    'nyu_door_opening_surprising_effectiveness': octo.absolute,
    f'austin_buds_dataset{_RLDS}': _closed_clipped,
    f'austin_sailor_dataset{_RLDS}': _closed_clipped,
    f'austin_sirius_dataset{_RLDS}': _closed_clipped,
    'libero': _closed_clipped,
    'mujoco_manip': _closed_byte,
    'robo_set': _closed_clipped,
    'roboturk': _closed_clipped,
    'utaustin_mutex': _closed_clipped,
    'viola': _closed_clipped,
    'bc_z': _closed,
    f'berkeley_mvp{_RLDS}': _closed,
    'berkeley_fanuc_manipulation': _closed,
    f'dlr_edan_shared_control{_RLDS}': _closed,
    'droid': _closed,
    'droid_wipe': _closed,
    f'stanford_hydra_dataset{_RLDS}': _closed,
    f'nyu_franka_play_dataset{_RLDS}': _open_clipped,
    'taco_play': _open_clipped,
    'tdroid': octo.binarized,
}
# Theirs is another rotation, or other actions altogether.
_OTHERS = {
    'aloha_mobile': _as_it_is,
    'aloha_static_dataset': _as_it_is,
    'bridge': octo.binarized,
    'bridge_open_x': _as_it_is,
    f'berkeley_rpt{_RLDS}': _closed,
    'gnm_dataset': _as_it_is,
    'cmu_playing_with_food': _as_it_is,
    f'furniture_bench_dataset{_RLDS}': _closed_clipped,
    f'iamlab_cmu_pickup_insert{_RLDS}': _as_it_is,
}


class OpenXActionsTest(tf.test.TestCase, parameterized.TestCase):

  def _treat(self, config):
    """Returns a random episode's steps, mapped; and transformed as well."""
    features, *_ = configs.load_known_features(config).values()
    episode = known_data.random_episode(features, _LENGTH, True)
    mapped = configs.load_mapping(config)(episode)
    treated = applying.Compose(configs.load_transforms(config))(mapped)
    return mapped['steps'], treated['steps']['action'].numpy()

  @parameterized.named_parameters(
      (config, config, gripper) for config, gripper in _GRIPPERS.items()
  )
  @pytest.mark.few(6)
  def test_gripper(self, config, gripper):
    mapped, actual = self._treat(config)
    expected = mapped['action'].numpy()
    # All commands decide, and the last one is not looked at.
    expected[:, -1] = gripper(expected[:, -1])
    self.assertAllClose(actual[:-1], expected[:-1], rtol=0, atol=1e-6)

  @parameterized.parameters('bridge', 'bridge_open_x')
  def test_actions_of_states(self, config):
    mapped, actual = self._treat(config)
    moved = np.diff(mapped['observation']['state'].numpy()[:, :6], axis=0)
    # All commands decide; the last one has no state that it leads to.
    gripper = _OTHERS[config](mapped['action'].numpy()[:, -1])
    expected = np.concatenate([moved, gripper[:-1, None]], 1)
    self.assertAllClose(actual[:-1], expected, rtol=0, atol=1e-6)

  @parameterized.parameters('aloha_mobile', 'aloha_static_dataset')
  def test_every_fifth_step(self, config):
    mapped, actual = self._treat(config)
    # Of 12 steps; the last one stays, where Octo drops it.
    self.assertAllEqual(actual, mapped['action'].numpy()[[0, 5, 10, 11]])

  def test_every_third_step(self):
    mapped, actual = self._treat(f'berkeley_rpt{_RLDS}')
    kept = [0, 3, 6, 9, 11]
    joints = mapped['observation']['state'].numpy()[kept, :7]
    gripper = 1 - mapped['action'].numpy()[kept, 7:]
    expected = np.concatenate([np.diff(joints, axis=0), gripper[:-1]], axis=1)
    self.assertAllClose(actual[:-1], expected, rtol=0, atol=1e-6)

  def test_waypoints(self):
    mapped, actual = self._treat('gnm_dataset')
    steps = tf.nest.map_structure(np.asarray, mapped)
    steps['x'] = steps['reward']
    expected = octo.waypoints(steps)['action']
    self.assertAllClose(actual, expected, rtol=1e-5, atol=1e-6)

  @parameterized.parameters(
      'cmu_playing_with_food',
      f'furniture_bench_dataset{_RLDS}',
      f'iamlab_cmu_pickup_insert{_RLDS}',
  )
  def test_rotations(self, config):
    mapped, actual = self._treat(config)
    action = mapped['action'].numpy().astype(np.float64)
    expected = np.concatenate(
        [
            action[:, :3],
            rotations.convert(action[:, 3:7], 'quaternion_xyzw', 'euler_xyz'),
            _OTHERS[config](action[:, 7:]),
        ],
        axis=1,
    )
    self.assertAllClose(actual, expected, rtol=0, atol=1e-5)

  def test_no_other_config_has_transforms(self):
    for config in configs.config_names():
      if config not in (_GRIPPERS | _OTHERS):
        with self.subTest(config):
          self.assertEmpty(configs.load_transforms(config))


if __name__ == '__main__':
  tf.test.main()
