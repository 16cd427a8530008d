"""Tests for calvin, on files that NumPy writes here, as CALVIN does."""

import os

import numpy as np
import tensorflow as tf

from rlds2reverb.formats import calvin
from tests import golden
from tests.formats import expected

_SPANS = ((3, 6), (9, 9))
_TEXTS = ((4, 6, 'move the door', 'move_door_rel'), (3, 4, 'lift', 'lift_red'))


def _frame(number):
  rng = np.random.default_rng(number)
  return {
      'actions': rng.normal(size=7),
      'rel_actions': rng.normal(size=7),
      'robot_obs': rng.normal(size=15),
      'scene_obs': rng.normal(size=24),
      'rgb_static': rng.integers(0, 255, (8, 8, 3)).astype(np.uint8),
      'depth_static': rng.random((8, 8)).astype(np.float32),
  }


class _Evil:

  def __reduce__(self):
    return os.mkdir, ('/tmp/rlds2reverb_calvin_test_evil',)


class CalvinTest(tf.test.TestCase):

  def setUp(self):
    super().setUp()
    self._folder = self.create_tempdir().full_path
    for first, last in _SPANS:
      for number in range(first, last + 1):
        np.savez(self._at(f'episode_{number:07d}.npz'), **_frame(number))
    np.save(self._at('ep_start_end_ids.npy'), np.array(_SPANS))
    os.mkdir(self._at('lang_annotations'))
    self._save_language(
        {
            'language': {
                'ann': [text for _, _, text, _ in _TEXTS],
                'task': [task for _, _, _, task in _TEXTS],
                'emb': np.zeros((2, 1, 4), np.float32),
            },
            'info': {'episodes': [], 'indx': [one[:2] for one in _TEXTS]},
        }
    )

  def _at(self, *names):
    return os.path.join(self._folder, *names)

  def _save_language(self, value):
    np.save(self._at('lang_annotations', 'auto_lang_ann.npy'), value)

  def _expected(self, first, last):
    frames = [_frame(number) for number in range(first, last + 1)]
    rows = {name: np.stack([f[name] for f in frames]) for name in frames[0]}
    actions = rows.pop('actions')
    others = {'rel_actions': rows.pop('rel_actions')}
    return expected.steps(rows, actions, **others)

  def test_episodes(self):
    dataset = calvin.load_calvin(self._folder)
    self.assertEqual(dataset.cardinality(), 2)
    golden.assert_frames_equal(
        self,
        [one['steps'] for one in dataset.as_numpy_iterator()],
        [self._expected(*span) for span in _SPANS],
    )

  def test_language(self):
    dataset = calvin.load_calvin(self._folder, language=True)
    episodes = list(dataset.as_numpy_iterator())
    golden.assert_frames_equal(
        self,
        [one['steps'] for one in episodes],
        [self._expected(*one[:2]) for one in _TEXTS],
    )
    for one, (_, _, text, task) in zip(episodes, _TEXTS):
      self.assertEqual(one['language_instruction'].decode(), text)
      self.assertEqual(one['task'].decode(), task)

  def test_arrays_left_out(self):
    spec = calvin.load_calvin(
        self._folder, leave_out=['rgb_static', 'rel_actions']
    ).element_spec['steps']
    self.assertNotIn('rel_actions', spec)
    self.assertNotIn('rgb_static', spec['observation'])
    with self.assertRaisesRegex(ValueError, "no field 'rgb'"):
      calvin.load_calvin(self._folder, leave_out=['rgb'])

  def test_a_pickle_that_runs_code(self):
    self._save_language({'language': _Evil()})
    with self.assertRaisesRegex(ValueError, 'mkdir, which may run any code'):
      calvin.load_calvin(self._folder, language=True)
    self.assertFalse(os.path.exists('/tmp/rlds2reverb_calvin_test_evil'))

  def test_what_is_damaged(self):
    with self.assertRaisesRegex(ValueError, 'must have a ep_start_end_ids.npy'):
      calvin.load_calvin(self._at('lang_annotations'))
    os.remove(self._at('episode_0000009.npz'))
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, 'no frame .*episode_0000009.npz'
    ):
      list(calvin.load_calvin(self._folder))
    os.truncate(self._at('episode_0000003.npz'), 100)
    with self.assertRaisesRegex(ValueError, '003.npz is not a whole frame'):
      calvin.load_calvin(self._folder)
    np.save(self._at('ep_start_end_ids.npy'), np.array([[4, 3]]))
    with self.assertRaisesRegex(ValueError, r'has \[\(4, 3\)\]'):
      calvin.load_calvin(self._folder)


if __name__ == '__main__':
  tf.test.main()
