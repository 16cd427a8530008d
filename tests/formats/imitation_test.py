"""Tests for imitation, on trajectories that imitation has written."""

import json
import os
import shutil

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.formats import imitation
from tests import golden

_DATA = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
    'data',
    'imitation',
)
_FOLDER = os.path.join(_DATA, 'folder')
_FILE = os.path.join(_DATA, 'trajectories.npz')


def _read(path):
  return list(imitation.load_imitation(path).as_numpy_iterator())


def _padded(array):
  return np.concatenate([array, np.zeros_like(array[:1])])


class ImitationTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.parameters(('folder', _FOLDER), ('npz', _FILE))
  def test_trajectories(self, name, path):
    dataset = imitation.load_imitation(path)
    self.assertEqual(dataset.cardinality(), 3)
    episodes = list(dataset.as_numpy_iterator())
    self.assertEqual([e['episode_id'] for e in episodes], [0, 1, 2])
    with np.load(os.path.join(_DATA, 'expected.npz')) as arrays:
      expected = dict(arrays)
    for index, (episode, length, terminal) in enumerate(
        zip(episodes, [5, 2, 7], [True, False, True])
    ):
      steps = episode['steps']
      infos = steps.pop('infos', None)
      last = np.arange(length) == length - 1
      discount = np.ones(length, np.float32)
      discount[-2:] -= terminal
      at = lambda key, index=index: expected[f'{name}/{index}/{key}']
      self.assertEqual(at('terminal'), terminal)
      golden.assert_frames_equal(
          self,
          [steps],
          [
              {
                  # imitation reads the float32 of a folder through Python.
                  'observation': at('obs').astype(np.float32),
                  'action': _padded(at('acts')),
                  'reward': _padded(at('rews')),
                  'discount': discount,
                  'is_first': np.arange(length) == 0,
                  'is_last': last,
                  'is_terminal': last & terminal,
              }
          ],
      )
      if name == 'folder':
        found = [json.loads(info)['step'] for info in infos[:-1]]
        self.assertEqual(found, at('step').tolist())
        self.assertEqual(infos[-1], b'')
      else:
        self.assertIsNone(infos)

  def test_without_rewards(self):
    for found, whole in zip(
        _read(os.path.join(_DATA, 'without_rewards')), _read(_FOLDER)
    ):
      steps, whole = found['steps'], whole['steps']
      self.assertEqual(steps['reward'].dtype, np.float32)
      self.assertAllEqual(steps['reward'], np.zeros(len(whole['reward'])))
      self.assertAllEqual(steps['action'], whole['action'])
      self.assertAllEqual(steps['is_terminal'], whole['is_terminal'])

  def _saved(self, **changes):
    """Returns the path of a copy of the npz file, with other arrays."""
    with np.load(_FILE) as arrays:
      kept = {key: arrays[key] for key in arrays if key != 'infos'}
    kept.update(changes)
    path = os.path.join(self.create_tempdir().full_path, 'a.npz')
    np.savez(path, **{k: v for k, v in kept.items() if v is not None})
    return path

  def test_errors(self):
    with self.assertRaisesRegex(ValueError, '/nowhere is neither the folder'):
      imitation.load_imitation('/nowhere')
    with self.assertRaisesRegex(ValueError, 'which has a state.json'):
      imitation.load_imitation(
          os.path.join(os.path.dirname(_DATA), 'minari', 'rooms')
      )
    with self.assertRaisesRegex(ValueError, 'no terminal.'):
      imitation.load_imitation(self._saved(terminal=None))
    with self.assertRaisesRegex(ValueError, 'flat arrays, of the format npz'):
      imitation.load_imitation(self._saved(indices=None))
    with self.assertRaisesRegex(ValueError, r'3 trajectories .*are \[4\]'):
      imitation.load_imitation(self._saved(indices=np.array([4])))
    path = os.path.join(self.create_tempdir().full_path, 'copy')
    shutil.copytree(_FOLDER, path)
    (table,) = [name for name in os.listdir(path) if name.endswith('.arrow')]
    with open(os.path.join(path, table), 'w', encoding='utf-8') as f:
      f.write('damaged')
    with self.assertRaisesRegex(ValueError, 'not a whole file'):
      imitation.load_imitation(path)

  def test_errors_while_iterating(self):
    path = self._saved(obs=np.zeros((13, 3), np.float32))
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, 'Trajectory 2 has 6 obs and 6 acts'
    ):
      _read(path)


if __name__ == '__main__':
  tf.test.main()
