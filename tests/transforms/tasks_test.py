"""Tests of instructions and goals, drawn and dropped."""

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf

from rlds2reverb import transforms
from tests import call_modes
from tests import chi_square
from tests import golden

_FIELDS = ['language', 'language_2', 'language_3']


def _with_task(steps, words):
  """Returns steps with an instruction, and with the last step for a goal."""
  length = golden.length_of(steps)
  return {
      **steps,
      'words': np.array([words] * length, object),
      'goal': {'image': np.ones([length, 2, 2, 3], np.uint8)},
      'goal_step': np.full(length, 1),
  }


_FIVE = _with_task(call_modes.FIVE, b'pick')
_EPISODES = [_FIVE, _with_task(call_modes.THREE, b''), _FIVE]


def _episode(words, length=3):
  steps = golden.make_episode([1.0] * length, terminal=True)
  steps['observation'] = {'state': steps['observation']}
  return {
      **steps,
      **{
          field: np.array([word] * length, object)
          for field, word in zip(_FIELDS, words)
      },
  }


class TasksTest(tf.test.TestCase, parameterized.TestCase):

  def _apply(self, transform, episodes):
    """Returns the steps that come out."""
    transformed = transforms.transform_episodes(
        golden.batched(episodes), [transform]
    )
    return [
        episode['steps']
        for episode in golden.assert_batches_hold(self, transformed)
    ]

  def test_exactly_one_of_goal_and_instruction_is_kept(self):
    drop = transforms.DropConditioning(instruction='words', seed=3)
    has_goals = []
    for steps, given in zip(self._apply(drop, _EPISODES * 40), _EPISODES * 40):
      has_goal = steps['goal']['image'].any((1, 2, 3))
      self.assertAllEqual(
          steps['words'], np.where(has_goal, b'', given['words'])
      )
      last = golden.length_of(given) - 1
      self.assertAllEqual(steps['goal_step'], np.where(has_goal, 1, last))
      if given['words'][0]:
        has_goals += list(has_goal)
      else:
        self.assertTrue(has_goal.all())
    self.assertAllClose(np.mean(has_goals), 0.5, rtol=0, atol=0.1)
    self.assertNotAllEqual(has_goals[:6], has_goals[6:12])

  def test_goal_is_kept_with_probability_1_and_0(self):
    for keep, words in ((1.0, b''), (0.0, b'pick')):
      drop = transforms.DropConditioning('goal', 'words', keep, None)
      (steps,) = self._apply(drop, _EPISODES[:1])
      self.assertAllEqual(steps['words'], [words] * 6)
      self.assertAllEqual(steps['goal']['image'], np.full([6, 2, 2, 3], keep))
      self.assertAllEqual(steps['goal_step'], [1] * 6)

  @parameterized.parameters(
      ('episode', [b'', b'b', b'c'], 300, 3),
      ('episode', [b''] * 3, 1, 3),
      ('step', [b'a', b'b', b'c'], 1, 600),
  )
  @pytest.mark.few(1)
  def test_instructions_are_as_likely(self, level, words, count, length):
    target = 'observation/instruction'
    draw = transforms.DrawInstruction(_FIELDS, target, level=level, seed=1)
    given = [word for word in words if word] or [b'']
    # Each episode has different words.
    episodes = [
        _episode([word and word + b' %d' % n for word in words], length + n % 2)
        for n in range(count)
    ]
    drawn = []
    for n, steps in enumerate(self._apply(draw, episodes)):
      said = list(steps['observation']['instruction'])
      if level == 'episode':
        self.assertLen(set(said), 1)
      drawn += said[:1] if level == 'episode' else said
      own = [word and word + b' %d' % n for word in given]
      self.assertContainsSubset(said, own)
    drawn = [word.split(b' ')[0] for word in drawn]
    counts = [drawn.count(word) for word in given]
    self.assertEqual(sum(counts), len(drawn))
    if len(given) > 1:
      statistic = chi_square.compute_statistic(
          counts, [1 / len(given)] * len(given)
      )
      self.assertLess(statistic, chi_square.LIMITS[len(given) - 1])

  def test_a_list_of_instructions_and_the_inverse(self):
    episode = _episode([])
    episode['texts'] = np.array([[b'', b'only', b'']] * 3, object)
    transform = transforms.DrawInstruction(['texts'], 'instruction')
    steps = transform({'steps': episode}, 0)['steps']
    self.assertAllEqual(steps['instruction'], [b'only'] * 3)
    self.assertCountEqual(transform.invert(steps), episode)


if __name__ == '__main__':
  tf.test.main()
