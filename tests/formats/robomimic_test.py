"""Tests for robomimic, on a file in tests/data and copies of it."""

import json
import os

from absl.testing import parameterized
import h5py
import numpy as np
import pytest
import tensorflow as tf

from rlds2reverb.formats import columns
from rlds2reverb.formats import robomimic
from tests import golden
from tests.formats import expected

_DATA = os.path.join(expected.DATA, 'robomimic')
_FILE = os.path.join(_DATA, 'low_dim.hdf5')
_KEYS = ('image', 'robot0_eef_pos')


def _read(path=_FILE, **kwargs):
  return list(robomimic.load_robomimic(path, **kwargs).as_numpy_iterator())


class RobomimicTest(tf.test.TestCase, parameterized.TestCase):

  def _changed(self, change):
    """Returns the path of a copy of the file, in which `change` is made."""
    path = expected.copy_of(self, 'robomimic', 'low_dim.hdf5')
    with h5py.File(path, 'a') as file:
      change(file)
    return path

  @parameterized.parameters(
      ('train', [0, 10], [5, 6]), ('valid', [2], [4]), ('20_percent', [0], [5])
  )
  def test_transitions_are_those_of_robomimic(self, filter_key, ids, lengths):
    episodes = _read(filter_key=filter_key)
    self.assertEqual([e['episode_id'] for e in episodes], ids)
    self.assertEqual([len(e['steps']['action']) for e in episodes], lengths)
    with np.load(os.path.join(_DATA, 'expected.npz')) as arrays:
      wanted = dict(arrays)
    index = 0
    for episode in episodes:
      steps = episode['steps']
      for row in range(len(steps['action']) - 1):
        at = f'{filter_key}/{index}'
        found = {
            'actions': steps['action'][row],
            'rewards': steps['reward'][row],
            'dones': steps['dones'][row],
            'states': steps['states'][row],
            **{f'obs/{k}': steps['observation'][k][row] for k in _KEYS},
            **{
                f'next_obs/{k}': steps['observation'][k][row + 1] for k in _KEYS
            },
        }
        for name, value in found.items():
          # robomimic gives actions as float32.
          other = wanted[f'{at}/{name}']
          self.assertAllEqual(np.asarray(value, other.dtype), other, name)
        index += 1
    self.assertNotIn(f'{filter_key}/{index}/actions', wanted)

  def test_flags_metadata_and_order(self):
    dataset = robomimic.load_robomimic(_FILE)
    self.assertEqual(dataset.cardinality(), 3)
    self.assertEqual(
        dataset.element_spec['steps']['observation']['image'],
        tf.TensorSpec([None, 8, 8, 3], tf.uint8),
    )
    episodes = list(dataset.as_numpy_iterator())
    self.assertEqual([e['episode_id'] for e in episodes], [0, 2, 10])
    for episode, length, terminal in zip(
        episodes, [5, 4, 6], [True, True, False]
    ):
      self.assertEqual(json.loads(episode['env_args'])['env_name'], 'Lift')
      steps = episode['steps']
      last = np.arange(length) == length - 1
      self.assertAllEqual(steps['is_last'], last)
      self.assertAllEqual(steps['is_terminal'], last & terminal)
      discount = np.ones(length)
      discount[-2:] -= terminal
      self.assertAllEqual(steps['discount'], discount)
      self.assertAllEqual(steps['action'][-1], np.zeros(7))

  @pytest.mark.long
  def test_without_next_observations_as_in_libero(self):
    def change(file):
      for group in file['data'].values():
        del group['next_obs']
        del group['rewards']
      file['data'].attrs['problem_info'] = '{"language_instruction": "lift"}'

    episodes = _read(self._changed(change))
    kept = _read()
    self.assertEqual(
        [e['problem_info'] for e in episodes],
        [b'{"language_instruction": "lift"}'] * 3,
    )
    for index, (found, whole) in enumerate(zip(episodes, kept)):
      steps, whole = found['steps'], whole['steps']
      length = len(whole['action']) - 1
      self.assertLen(steps['action'], length + (index < 2))
      for key in _KEYS:
        observations = steps['observation'][key]
        self.assertAllEqual(
            observations[:length], whole['observation'][key][:length]
        )
        self.assertAllEqual(observations[length:], 0 * observations[length:])
      self.assertEqual(steps['is_terminal'][-1], index < 2)
      golden.assert_frames_equal(
          self, [steps['reward']], [np.zeros(length + (index < 2), np.float32)]
      )

  def test_other_columns_and_the_language_of_robocasa(self):
    names = [f'extra_{letter}' for letter in 'abcdefg']

    def change(file):
      for demo, group in file['data'].items():
        length = len(group['actions'])
        for name in names:
          group[name] = np.zeros(length)
        group['action_dict/gripper'] = np.arange(length)
        group['camera'] = np.eye(3)[:2]
        if demo != 'demo_2':
          group.attrs['ep_meta'] = json.dumps({'lang': f'open {demo}'})

    path = self._changed(change)
    with self.assertLogs(level='WARNING') as logs:
      episodes = _read(path)
    self.assertIn('camera', logs.output[0])
    self.assertEqual(
        [one['ep_meta'] for one in episodes],
        [b'{"lang": "open demo_0"}', b'', b'{"lang": "open demo_10"}'],
    )
    steps = episodes[0]['steps']
    self.assertAllEqual(steps['action_dict']['gripper'], [0, 1, 2, 3, 0])
    self.assertNotIn('camera', steps)
    # The fields are in the order of the file.
    spec = robomimic.load_robomimic(path).element_spec['steps']
    self.assertEqual([name for name in spec if name in names], names)

  def test_an_empty_demonstration(self):
    def change(file):
      group = file['data/demo_2']
      for name in columns.leaves(group):
        empty = group[name][:0]
        del group[name]
        group[name] = empty

    lengths = [len(e['steps']['action']) for e in _read(self._changed(change))]
    self.assertEqual(lengths, [5, 0, 6])


if __name__ == '__main__':
  tf.test.main()
