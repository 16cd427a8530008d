"""Tests of instructions that are drawn."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.transforms import applying
from rlds2reverb.transforms import tasks
from tests import golden
from tests import testing

_FIELDS = ['language', 'language_2', 'language_3']


def _episode(words, length=3):
  episode = golden.make_episode([1.0] * length, terminal=True)
  episode['observation'] = {'state': episode['observation']}
  for field, word in zip(_FIELDS, words):
    episode[field] = np.array([word] * length, object)
  return episode


def _draw(episodes, form=golden.stacked, **kwargs):
  transform = tasks.DrawInstruction(
      _FIELDS, 'observation/instruction', **kwargs
  )
  return applying.transform_episodes(form(episodes), [transform])


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

  @parameterized.parameters(*tasks.LEVELS)
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
    transform = tasks.DrawInstruction(['texts'], 'instruction')
    steps = transform({'steps': episode}, 0)['steps']
    self.assertAllEqual(steps['instruction'], [b'only'] * 3)
    self.assertCountEqual(transform.invert(steps), episode)

  def test_errors(self):
    with self.assertRaisesRegex(ValueError, r"Write \['language'\]"):
      tasks.DrawInstruction('language', 'x')
    with self.assertRaisesRegex(ValueError, 'There are no fields'):
      tasks.DrawInstruction([], 'x')
    with self.assertRaisesRegex(ValueError, "level must be one of.*'frame'"):
      tasks.DrawInstruction(['a'], 'x', level='frame')
    data = golden.stacked([_episode([b'a'])])
    for path, message in (
        ('reward', 'reward must be a string'),
        ('observation', 'observation must be one leaf'),
        ('langauge', 'Did you mean language'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        applying.transform_episodes(data, [tasks.DrawInstruction([path], 'x')])


if __name__ == '__main__':
  tf.test.main()
