"""Tests of instructions and goals that are dropped, and of drawn steps."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb import transforms
from rlds2reverb import windows
from tests import golden
from tests import ways


def _with_task(steps, words):
  """Returns steps with an instruction, and with the last step for a goal."""
  length = golden.length_of(steps)
  return {
      **steps,
      'words': np.array([words] * length, object),
      'goal': {'image': np.ones([length, 2, 2, 3], np.uint8)},
      'goal_step': np.full(length, 1),
  }


_EPISODES = [
    _with_task(ways.FIVE, b'pick'),
    _with_task(ways.THREE, b''),
    _with_task(ways.FIVE, b'place'),
]


def _apply(transform, episodes, batched):
  data = (
      golden.batched(episodes, batch_size=99)
      if batched
      else golden.stacked(episodes)
  )
  return [
      tf.nest.map_structure(lambda leaf: leaf.numpy(), episode['steps'])
      for episode in transforms.transform_episodes(data, [transform])
  ]


class DropConditioningTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.parameters(False, True)
  def test_one_of_the_two_is_kept(self, batched):
    drop = transforms.DropConditioning(instruction='words', seed=3)
    found = _apply(drop, _EPISODES * 40, batched)
    kept = []
    for steps, given in zip(found, _EPISODES * 40):
      has_goal = steps['goal']['image'].any((1, 2, 3))
      self.assertAllEqual(
          steps['words'], np.where(has_goal, b'', given['words'])
      )
      last = golden.length_of(given) - 1
      self.assertAllEqual(steps['goal_step'], np.where(has_goal, 1, last))
      if given['words'][0]:
        kept += list(has_goal)
      else:
        self.assertTrue(has_goal.all())
    self.assertAllClose(np.mean(kept), 0.5, rtol=0, atol=0.1)
    self.assertNotAllEqual(kept[:6], kept[6:12])
    again = _apply(drop, _EPISODES * 40, not batched)
    self.assertAllEqual(
        np.concatenate([steps['words'] for steps in found]),
        np.concatenate([steps['words'] for steps in again]),
    )

  def test_always_and_never(self):
    for keep, words in ((1.0, b''), (0.0, b'pick')):
      (steps,) = _apply(
          transforms.DropConditioning(
              instruction='words', keep_goal=keep, goal_step=None
          ),
          _EPISODES[:1],
          False,
      )
      self.assertAllEqual(steps['words'], [words] * 6)
      self.assertAllEqual(steps['goal']['image'], np.full([6, 2, 2, 3], keep))
      self.assertAllEqual(steps['goal_step'], [1] * 6)

  def test_bad_arguments(self):
    with self.assertRaisesRegex(ValueError, 'keep_goal must be in'):
      transforms.DropConditioning(keep_goal=1.5)
    with self.assertRaisesRegex(ValueError, 'reward must be a string'):
      _apply(
          transforms.DropConditioning(instruction='reward'), _EPISODES, False
      )


class KeepEpisodesTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.parameters(False, True)
  def test_those_with_an_instruction(self, batched):
    late = _with_task(ways.THREE, b'')
    late['words'][-1] = b'late'
    found = _apply(
        transforms.KeepEpisodes(labeled='words'), [*_EPISODES, late], batched
    )
    self.assertEqual(
        [steps['words'][-1] for steps in found], [b'pick', b'place', b'late']
    )


class DrawStepsTest(tf.test.TestCase):

  def test_some_steps_are_drawn(self):
    steps = {'a': tf.range(100), 'b': {'c': tf.range(100) * 2}}
    drawn = [windows.draw_steps(steps, 30, (1, seed)) for seed in range(2)]
    for one in drawn:
      self.assertLen(set(one['a'].numpy()), 30)
      self.assertAllEqual(one['b']['c'], 2 * one['a'])
    self.assertNotAllEqual(drawn[0]['a'], drawn[1]['a'])
    again = windows.draw_steps(steps, 30, (1, 0))
    self.assertAllEqual(again['a'], drawn[0]['a'])
    whole = windows.draw_steps(steps, 100, 5)
    self.assertAllEqual(whole['a'], steps['a'])
    with self.assertRaisesRegex(ValueError, 'num_steps'):
      windows.draw_steps(steps, 0, 5)


if __name__ == '__main__':
  tf.test.main()
