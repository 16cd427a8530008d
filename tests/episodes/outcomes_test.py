"""Tests of how episodes are summed up."""

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import episode_batches
from rlds2reverb.episodes import outcomes


def _steps(reward, is_last, is_terminal):
  return {
      'reward': tf.constant(reward),
      'is_last': tf.constant(is_last),
      'is_terminal': tf.constant(is_terminal),
  }


class OutcomesTest(tf.test.TestCase):

  def test_the_reward_of_the_last_step_does_not_count(self):
    found = outcomes.outcome(
        _steps([1.0, 2.0, 100.0], [False, False, True], [False, False, True])
    )
    self.assertAllEqual(found, (3.0, 2, True))
    self.assertEqual(found.undiscounted_return.dtype, tf.float64)
    self.assertEqual(found.length.dtype, tf.int64)

  def test_rewards_in_a_nest_and_flags_that_are_integers(self):
    found = outcomes.outcome(
        {
            **_steps(0, [[0], [1]], [0, 0]),
            'reward': {'task': tf.constant([[1], [2]])},
        }
    )
    self.assertAllEqual(found, (1.0, 1, False))

  def test_the_last_step_is_the_one_at_the_end_whatever_its_flag(self):
    for is_last in [0, 0, 0], [0, 1, 0], [0, 0, 1]:
      found = outcomes.outcome(_steps([1.0, 2.0, 100.0], is_last, [0, 0, 0]))
      self.assertAllEqual(found, (3.0, 2, False))

  def test_one_step_has_no_transition(self):
    found = outcomes.outcome(_steps([5.0], [True], [True]))
    self.assertAllEqual(found, (0.0, 0, True))

  def test_float32_rewards_are_added_exactly(self):
    steps = _steps(np.float32([2**24, 1, 1, 0]), [0, 0, 0, 1], [0, 0, 0, 0])
    self.assertEqual(outcomes.outcome(steps).undiscounted_return, 2**24 + 2)

  def test_what_has_no_return(self):
    for reward in (
        {'a': tf.zeros([2]), 'b': tf.zeros([2])},
        tf.zeros([2, 3]),
    ):
      with self.assertRaisesRegex(ValueError, 'one number a step'):
        outcomes.outcome({**_steps(0.0, [0, 1], [0, 0]), 'reward': reward})
    with self.assertRaisesRegex(ValueError, 'must be of numbers'):
      outcomes.outcome(_steps(['a', 'b'], [0, 1], [0, 0]))

  def test_a_batch_of_episodes_of_all_lengths(self):
    rng = np.random.default_rng(0)
    lengths = [3, 0, 1, 700, 0, 1, 20, 0]
    row_splits = np.cumsum([0, *lengths])
    reward = rng.normal(size=[row_splits[-1], 1]).astype(np.float32)
    is_last = np.zeros(len(reward), np.uint8)
    is_last[[2, 3, 704, 724]] = 1  # The episode of 700 steps has no end.
    is_terminal = np.zeros(len(reward), bool)
    is_terminal[[3, 30, 704]] = True
    reward[[3, 703]] = np.nan  # the first has no meaning
    steps = _steps(reward, is_last, is_terminal)
    batch = episode_batches.EpisodeBatch(steps, tf.constant(row_splits), {})

    (in_graph,) = tf.data.Dataset.from_tensors(batch).map(outcomes.outcomes)
    for found in outcomes.outcomes(batch), in_graph:
      self.assertEqual(
          [column.dtype for column in found], [tf.float64, tf.int64, tf.bool]
      )
      for episode, (begin, end) in enumerate(
          zip(row_splits[:-1], row_splits[1:])
      ):
        one = {name: leaf[begin:end] for name, leaf in steps.items()}
        of_episode = [column[episode] for column in found]
        # Not even the last bit may differ.
        np.testing.assert_array_equal(of_episode, outcomes.outcome(one))
        counts = np.arange(begin, end) < end - 1
        total = reward[begin:end, 0][counts].astype(np.float64).sum()
        self.assertAllClose(of_episode[0], total, 1e-12, 1e-12)
        self.assertEqual(of_episode[1], counts.sum())
        self.assertEqual(of_episode[2], is_terminal[begin:end].any())

  def test_a_batch_of_no_episodes(self):
    steps = _steps(np.zeros(0), np.zeros(0, bool), np.zeros(0, bool))
    for column in outcomes.outcomes(
        episode_batches.EpisodeBatch(steps, np.int64([0]), {})
    ):
      self.assertEqual(column.shape, [0])


if __name__ == '__main__':
  tf.test.main()
