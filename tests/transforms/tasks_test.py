"""Tests of instructions and goals, drawn and dropped, and of drawn steps."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb import transforms
from rlds2reverb import windows
from tests import golden
from tests import testing
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


_FIELDS = ['language', 'language_2', 'language_3']


def _episode(words, length=3):
  episode = golden.make_episode([1.0] * length, terminal=True)
  episode['observation'] = {'state': episode['observation']}
  for field, word in zip(_FIELDS, words):
    episode[field] = np.array([word] * length, object)
  return episode


def _draw(episodes, form=golden.stacked, **kwargs):
  transform = transforms.DrawInstruction(
      _FIELDS, 'observation/instruction', **kwargs
  )
  return transforms.transform_episodes(form(episodes), [transform])


def _drawn(rlds_data):
  return [
      episode['steps']['observation']['instruction'].tolist()
      for episode in rlds_data.as_numpy_iterator()
  ]


class DrawInstructionTest(tf.test.TestCase, parameterized.TestCase):

  def test_frequencies(self):
    drawn = _drawn(_draw([_episode([b'a', b'b', b'c'])] * 900, seed=1))
    for words in drawn:
      self.assertLen(set(words), 1)
    counts = [
        sum(one[0] == word for one in drawn) for word in (b'a', b'b', b'c')
    ]
    self.assertEqual(sum(counts), 900)
    self.assertLess(
        testing.chi_square(counts, [1 / 3] * 3), testing.CHI_SQUARE_LIMITS[2]
    )

  def test_empty_ones_are_left_out(self):
    drawn = _drawn(_draw([_episode([b'', b'b', b'c'])] * 400, seed=2))
    counts = [sum(one[0] == word for one in drawn) for word in (b'b', b'c')]
    self.assertEqual(sum(counts), 400)
    self.assertLess(
        testing.chi_square(counts, [1 / 2] * 2), testing.CHI_SQUARE_LIMITS[1]
    )
    self.assertEqual(_drawn(_draw([_episode([b''] * 3)])), [[b''] * 3])

  def test_each_step(self):
    words = [b'a', b'b', b'c']
    drawn = _drawn(_draw([_episode(words, 900)], level='step'))[0]
    counts = [drawn.count(word) for word in words]
    self.assertLess(
        testing.chi_square(counts, [1 / 3] * 3), testing.CHI_SQUARE_LIMITS[2]
    )

  @parameterized.parameters(*('episode', 'step'))
  def test_batches_draw_what_single_episodes_do(self, level):
    episodes = [
        _episode([f'{n} a', f'{n} b' * (n % 2), f'{n} c'], length)
        for n, length in enumerate([3, 1, 4, 2, 6, 1, 5])
    ]
    found = golden.assert_batches_hold(
        self, _draw(episodes, golden.batched, level=level, seed=4)
    )
    for number, episode in enumerate(found):
      for word in episode['steps']['observation']['instruction']:
        self.assertStartsWith(word.decode(), f'{number} ')
    self.assertEqual(
        _drawn(_draw(episodes, golden.nested, level=level, seed=4)),
        [e['steps']['observation']['instruction'].tolist() for e in found],
    )

  def test_a_list_of_instructions_and_the_inverse(self):
    episode = _episode([])
    episode['texts'] = np.array([[b'', b'only', b'']] * 3, object)
    transform = transforms.DrawInstruction(['texts'], 'instruction')
    steps = transform({'steps': episode}, 0)['steps']
    self.assertAllEqual(steps['instruction'], [b'only'] * 3)
    self.assertCountEqual(transform.invert(steps), episode)

  def test_errors(self):
    with self.assertRaisesRegex(ValueError, r"Write \['language'\]"):
      transforms.DrawInstruction('language', 'x')
    with self.assertRaisesRegex(ValueError, 'There are no fields'):
      transforms.DrawInstruction([], 'x')
    with self.assertRaisesRegex(ValueError, "level must be one of.*'frame'"):
      transforms.DrawInstruction(['a'], 'x', level='frame')
    data = golden.stacked([_episode([b'a'])])
    for path, message in (
        ('reward', 'reward must be a string'),
        ('observation', 'observation must be one leaf'),
        ('langauge', 'Did you mean language'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        transforms.transform_episodes(
            data, [transforms.DrawInstruction([path], 'x')]
        )


if __name__ == '__main__':
  tf.test.main()
