"""Tests for maniskill, on files of the layout of ManiSkill 3.0.1.

ManiSkill needs a simulator, so they are written here, as its `RecordEpisode`
calls h5py.
"""

import json
import os

import h5py
import numpy as np
import tensorflow as tf

from rlds2reverb.formats import maniskill
from tests.formats import expected

_LENGTHS = {0: 4, 2: 1, 10: 3}


def _trajectory(number, is_flat=False):
  """Returns the columns of a trajectory, nested as in the file."""
  rng = np.random.default_rng(number)
  length = _LENGTHS[number]
  is_end = np.arange(length) == length - 1
  pose = rng.normal(size=(length + 1, 7)).astype(np.float32)
  camera = {
      'rgb': rng.integers(0, 255, (length + 1, 8, 8, 3)).astype(np.uint8),
      'depth': rng.integers(0, 999, (length + 1, 8, 8, 1)).astype(np.uint16),
  }
  return {
      'obs': pose
      if is_flat
      else {
          'agent': {'qpos': pose},
          'sensor_data': {'base_camera': camera},
      },
      'actions': rng.normal(size=(length, 8)).astype(np.float32),
      'terminated': is_end & (number != 2),
      'truncated': is_end & (number == 2),
      'success': is_end & (number != 2),
      'env_states': {'actors': {'cube': pose[:, :3]}},
      'rewards': rng.random(length).astype(np.float32),
  }


def _write(group, columns):
  for name, value in columns.items():
    if isinstance(value, dict):
      _write(group.create_group(name, track_order=True), value)
    else:
      is_image = name in ('rgb', 'depth')
      group.create_dataset(
          name, data=value, compression='gzip' if is_image else None
      )


class ManiskillTest(tf.test.TestCase):

  def setUp(self):
    super().setUp()
    self._path = os.path.join(self.create_tempdir().full_path, 'a.h5')

  def _write(self, **kwargs):
    with h5py.File(self._path, 'w') as file:
      for number in _LENGTHS:
        _write(
            file.create_group(f'traj_{number}', track_order=True),
            _trajectory(number, **kwargs),
        )

  def test_trajectories(self):
    self._write()
    info = {'env_id': 'PickCube-v1', 'env_kwargs': {'obs_mode': 'rgbd'}}
    with open(self._path.replace('.h5', '.json'), 'w', encoding='utf-8') as f:
      json.dump({'env_info': info, 'episodes': []}, f)
    dataset = maniskill.load_maniskill(self._path)
    self.assertEqual(dataset.cardinality(), 3)
    trajectories = [_trajectory(number) for number in _LENGTHS]
    episodes = expected.assert_read(
        self,
        dataset,
        [
            expected.steps(
                one.pop('obs'),
                one.pop('actions'),
                one.pop('rewards'),
                terminal=one['terminated'][-1],
                **one,
            )
            for one in trajectories
        ],
        _LENGTHS,
    )
    for episode in episodes:
      self.assertEqual(json.loads(episode['env_info']), info)

  def _without(self, name, **kwargs):
    self._write(**kwargs)
    with h5py.File(self._path, 'a') as file:
      for number in _LENGTHS:
        del file[f'traj_{number}/{name}']

  def test_flat_observations_without_rewards(self):
    self._without('rewards', is_flat=True)
    first = next(maniskill.load_maniskill(self._path).as_numpy_iterator())
    self.assertAllEqual(
        first['steps']['observation'], _trajectory(0, True)['obs']
    )
    self.assertAllEqual(first['steps']['reward'], np.zeros(5, np.float32))
    self.assertNotIn('env_info', first)

  def test_what_cannot_be_read(self):
    self._without('obs')
    with self.assertRaisesRegex(ValueError, 'has no obs.*replay_trajectory'):
      maniskill.load_maniskill(self._path)
    with h5py.File(self._path, 'w') as file:
      file['data/demo_0/actions'] = np.zeros(3)
    with self.assertRaisesRegex(ValueError, 'must have traj_0 and so on'):
      maniskill.load_maniskill(self._path)


if __name__ == '__main__':
  tf.test.main()
