"""Tests for imitation, on trajectories that imitation has written."""

import json
import os

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.formats import imitation
from tests.formats import expected

_DATA = os.path.join(expected.DATA, 'imitation')
_FOLDER = os.path.join(_DATA, 'folder')
_FILE = os.path.join(_DATA, 'trajectories.npz')


def _read(path):
  return list(imitation.load_imitation(path).as_numpy_iterator())


class ImitationTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.parameters(('folder', _FOLDER), ('npz', _FILE))
  def test_trajectories(self, name, path):
    dataset = imitation.load_imitation(path)
    self.assertEqual(dataset.cardinality(), 3)
    with np.load(os.path.join(_DATA, 'expected.npz')) as arrays:
      columns = dict(arrays)
    episodes = []
    for index, terminal in enumerate([True, False, True]):
      at = lambda key, index=index: columns[f'{name}/{index}/{key}']
      self.assertEqual(at('terminal'), terminal)
      # imitation reads the float32 of a folder through Python.
      episodes.append(
          expected.steps(
              at('obs').astype(np.float32),
              at('acts'),
              at('rews'),
              terminal=terminal,
          )
      )
      if name == 'folder':
        found = list(dataset.as_numpy_iterator())[index]['steps']['infos']
        steps = [json.loads(info)['step'] for info in found[:-1]]
        self.assertEqual(steps, at('step').tolist())
        self.assertEqual(found[-1], b'')
        episodes[-1]['infos'] = found
    expected.assert_read(self, dataset, episodes)

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
    path = expected.copy_of(self, 'imitation', 'folder')
    (table,) = [name for name in os.listdir(path) if name.endswith('.arrow')]
    os.truncate(os.path.join(path, table), 9)
    expected.assert_refused(
        self,
        imitation.load_imitation,
        ('/nowhere', '/nowhere is neither the folder'),
        (f'{expected.DATA}/minari/rooms', 'which has a state.json'),
        (self._saved(terminal=None), 'no terminal, but'),
        (self._saved(indices=None), 'flat arrays, of the format npz'),
        (
            self._saved(indices=np.array([4])),
            r'3 trajectories .*are \[4\]',
        ),
        (path, 'not a whole file'),
    )
    path = self._saved(obs=np.zeros((13, 3), np.float32))
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, 'Trajectory 2 has 6 obs and 6 acts'
    ):
      _read(path)


if __name__ == '__main__':
  tf.test.main()
