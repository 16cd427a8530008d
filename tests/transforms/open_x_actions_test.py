"""The actions of Open X-Embodiment's configs, as Octo and OpenVLA make them.

What they do is computed anew here, step by step in numpy, of random episodes
with the features of the data sets. The action of a last step has no meaning.
"""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.fields import configs
from rlds2reverb.fields import known_features
from rlds2reverb.transforms import applying
from tests.transforms import octo

_LENGTH = 12
_RLDS = '_converted_externally_to_rlds'


def _euler(quaternions):
  """Roll, pitch and yaw of quaternions x, y, z, w, about fixed axes."""
  x, y, z, w = (quaternions / np.linalg.norm(quaternions, axis=1)[:, None]).T
  return np.stack(
      [
          np.arctan2(2 * (w * x + y * z), 1 - 2 * (x * x + y * y)),
          np.arcsin(2 * (w * y - z * x)),
          np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z)),
      ],
      axis=1,
  )


def _as_it_is(gripper):
  return gripper


def _closed(gripper):
  return 1 - gripper


def _closed_byte(gripper):
  return 1 - gripper / 255


def _closed_clipped(gripper):
  return 1 - np.clip(gripper, 0, 1)


def _open_clipped(gripper):
  return np.clip(gripper, 0, 1)


def _gripper(change, count=-1):
  """Changes the last number of so many actions: all that have a meaning."""

  def apply(steps):
    action = steps['action'][:count].copy()
    action[:, -1] = change(action[:, -1])
    return action

  return apply


def _of_states(change, size=6, kept=slice(None)):
  """Motions between the states; all of the commands decide on the gripper."""

  def apply(steps):
    state = steps['observation']['state'][kept, :size]
    gripper = change(steps['action'][:, -1])[kept]
    motions = np.diff(state, axis=0)
    return np.concatenate([motions, gripper[:-1, None]], 1)

  return apply


def _turned(change):
  """Rolls, pitches and yaws for quaternions."""

  def apply(steps):
    action = np.float64(steps['action'])
    parts = action[:, :3], _euler(action[:, 3:7]), change(action[:, 7:])
    return np.concatenate(parts, 1)

  return apply


def _every_fifth(steps):
  # Of 12 steps; the last one stays, where Octo drops it.
  return steps['action'][[0, 5, 10, 11]]


def _waypoints(steps):
  return octo.waypoints({**steps, 'x': steps['reward']})['action']


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
    # Taken as they are, by both.
    'berkeley_cable_routing': _as_it_is,
    'calvin': _as_it_is,
    'columbia_cairlab_pusht_real': _as_it_is,
    'cmu_stretch': _as_it_is,
    'dobbe': _as_it_is,
    'fmb': _as_it_is,
    'rh20t': _as_it_is,
    'robo_net': _as_it_is,
    'language_table': _as_it_is,
    'toto': _as_it_is,
    f'ucsd_kitchen_dataset{_RLDS}': _as_it_is,
}
# The actions that have a meaning.
_ACTIONS = {
    **{config: _gripper(change) for config, change in _GRIPPERS.items()},
    # Theirs is another rotation, or other actions altogether.
    'aloha_mobile': _every_fifth,
    'aloha_static_dataset': _every_fifth,
    'bridge': _of_states(octo.binarized),
    'bridge_open_x': _of_states(_as_it_is),
    f'berkeley_rpt{_RLDS}': _of_states(_closed, 7, [0, 3, 6, 9, 11]),
    'gnm_dataset': _waypoints,
    'tdroid': _gripper(octo.binarized, None),
    'cmu_playing_with_food': _turned(_as_it_is),
    f'furniture_bench_dataset{_RLDS}': _turned(_closed_clipped),
    f'iamlab_cmu_pickup_insert{_RLDS}': _turned(_as_it_is),
}


def _random_leaf(rng, info):
  shape = [_LENGTH, *info.shape]
  if info.dtype == tf.string:
    return np.full(shape, b'', object)
  if info.dtype.is_floating:
    return rng.uniform(-1, 1.5, shape).astype(info.dtype.as_numpy_dtype)
  if info.dtype == tf.uint8:
    return np.zeros(shape, np.uint8)
  return rng.integers(0, 2, shape).astype(info.dtype.as_numpy_dtype)


class OpenXActionsTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.parameters(*_ACTIONS)
  def test_as_octo_and_openvla(self, config):
    rng = np.random.default_rng(len(config))
    features, *_ = known_features.known_features(config).values()
    spec = features.get_tensor_spec()
    steps = tf.nest.map_structure(
        lambda info: _random_leaf(rng, info), spec.pop('steps')
    )
    metadata = tf.nest.map_structure(
        lambda info: tf.constant(_random_leaf(rng, info)[0]), spec
    )
    mapped = configs.load_mapping(config)({**metadata, 'steps': steps})
    transform = applying.Compose(configs.load_transforms(config))
    found = transform(mapped)['steps']['action'].numpy()
    steps = tf.nest.map_structure(np.asarray, mapped['steps'])
    expected = _ACTIONS[config](steps)
    self.assertBetween(len(found) - len(expected), 0, 1)
    self.assertAllClose(found[: len(expected)], expected, 1e-5, 1e-5)

  def test_no_other_config_has_transforms(self):
    for config in configs.config_names():
      if config not in _ACTIONS:
        with self.subTest(config):
          self.assertEmpty(configs.load_transforms(config))


if __name__ == '__main__':
  tf.test.main()
