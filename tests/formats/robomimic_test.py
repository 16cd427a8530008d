"""Tests for robomimic, on a file in tests/data and copies of it."""

import json
import os

import h5py
import numpy as np
import tensorflow as tf

from rlds2reverb.formats import robomimic
from tests import golden
from tests.formats import expected

_DATA = os.path.join(expected.DATA, 'robomimic')
_FILE = os.path.join(_DATA, 'low_dim.hdf5')


def _read(path=_FILE, **kwargs):
  return list(robomimic.load_robomimic(path, **kwargs).as_numpy_iterator())


class RobomimicTest(tf.test.TestCase):

  def _changed(self, change):
    """Changes the demonstrations of a copy; returns its episodes."""
    path = expected.copy_of(self, 'robomimic', 'low_dim.hdf5')
    with h5py.File(path, 'a') as file:
      for group in file['data'].values():
        change(group)
      file['data'].attrs['problem_info'] = '{"language_instruction": "lift"}'
    return _read(path)

  def test_transitions_equal_robomimic(self):
    with np.load(os.path.join(_DATA, 'expected.npz')) as arrays:
      wanted = dict(arrays)
    for filter_key, ids in (
        ('train', [0, 10]),
        ('valid', [2]),
        ('20_percent', [0]),
    ):
      episodes = _read(filter_key=filter_key)
      self.assertEqual([e['episode_id'] for e in episodes], ids)
      rows = [
          {
              'actions': steps['action'][row],
              'rewards': steps['reward'][row],
              'dones': steps['dones'][row],
              'states': steps['states'][row],
              **{f'obs/{k}': v[row] for k, v in steps['observation'].items()},
              **{
                  f'next_obs/{k}': v[row + 1]
                  for k, v in steps['observation'].items()
              },
          }
          for steps in (episode['steps'] for episode in episodes)
          for row in range(len(steps['action']) - 1)
      ]
      for index, found in enumerate(rows):
        for name, value in found.items():
          # robomimic gives actions as float32.
          other = wanted[f'{filter_key}/{index}/{name}']
          self.assertAllEqual(np.asarray(value, other.dtype), other, name)
      self.assertNotIn(f'{filter_key}/{len(rows)}/actions', wanted)

  def test_flags_metadata_and_order(self):
    episodes = _read()
    self.assertEqual([e['episode_id'] for e in episodes], [0, 2, 10])
    for episode, length, terminal in zip(episodes, [5, 4, 6], [1, 1, 0]):
      self.assertEqual(json.loads(episode['env_args'])['env_name'], 'Lift')
      self.assertNotIn('ep_meta', episode)
      steps = episode['steps']
      self.assertEqual(steps['observation']['image'].shape, (length, 8, 8, 3))
      wanted = expected.steps(
          steps['observation'], steps['action'][:-1], terminal=terminal == 1
      )
      names = ('is_first', 'is_last', 'is_terminal', 'discount', 'action')
      for name in names:
        self.assertAllEqual(steps[name], wanted[name])

  def test_without_next_observations_as_in_libero(self):
    def change(group):
      del group['next_obs']
      del group['rewards']

    for actual, whole in zip(self._changed(change), _read()):
      self.assertIn(b'lift', actual['problem_info'])
      terminal = whole['steps']['is_terminal'][-1]
      part = lambda name, whole=whole: tf.nest.map_structure(
          lambda column: column[:-1], whole['steps'][name]
      )
      wanted = expected.steps(
          part('observation'),
          part('action'),
          terminal=terminal,
          **{name: part(name) for name in ('dones', 'states')},
      )
      golden.assert_frames_equal(self, [actual['steps']], [wanted])

  def test_extra_columns_and_language_of_robocasa(self):
    names = [f'extra_{letter}' for letter in 'abcdefg']

    def change(group):
      length = len(group['actions'])
      group.update({name: np.zeros(length) for name in names})
      group['action_dict/gripper'] = np.arange(length)
      group['camera'] = np.eye(3)[:2]
      if group.name != '/data/demo_2':
        group.attrs['ep_meta'] = json.dumps({'lang': f'open {group.name}'})

    with self.assertLogs(level='WARNING') as logs:
      episodes = self._changed(change)
    self.assertIn('camera', logs.output[0])
    self.assertEqual(
        [episode['ep_meta'] for episode in episodes],
        [
            b'{"lang": "open /data/demo_0"}',
            b'',
            b'{"lang": "open /data/demo_10"}',
        ],
    )
    steps = episodes[0]['steps']
    self.assertAllEqual(steps['action_dict']['gripper'], [0, 1, 2, 3, 0])
    self.assertNotIn('camera', steps)
    # The fields are in the order of the file.
    self.assertEqual([name for name in steps if name in names], names)

  def test_inconsistent_next_observations_raise(self):
    path = expected.copy_of(self, 'robomimic', 'low_dim.hdf5')
    with h5py.File(path, 'a') as file:
      demo = file['data/demo_10']
      name = next(one for one in demo['obs'] if one != 'image')
      demo['obs'][name][2] = demo['next_obs'][name][1] = np.nan  # Equal.
      after = demo['next_obs'][name]
      after[3] = after[3] + 1
      demo['next_obs/image'][-1] = 7  # The last one is in no other row.
    data = robomimic.load_robomimic(path)
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError,
        rf'next_obs/{name} at step 3 of data/demo_10 of {path} is not'
        rf' obs/{name} at step 4. They differ in 1 of 4 steps',
    ):
      list(data)
    actual = list(data.ignore_errors().as_numpy_iterator())
    self.assertEqual([episode['episode_id'] for episode in actual], [0, 2])

  def test_an_empty_demonstration(self):
    def change(group):
      if group.name == '/data/demo_2':
        names = []
        group.visit(names.append)
        for name in names:
          if isinstance(group[name], h5py.Dataset):
            rows = group[name][:0]
            del group[name]
            group[name] = rows

    lengths = [len(e['steps']['action']) for e in self._changed(change)]
    self.assertEqual(lengths, [5, 0, 6])


if __name__ == '__main__':
  tf.test.main()
