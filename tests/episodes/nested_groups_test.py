"""Tests of groups of short episodes with nested steps."""

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import nested_groups

_UNKNOWN = tf.data.UNKNOWN_CARDINALITY


def _data_set(*lengths):
  """Returns episodes whose steps are numbered throughout.

  A negative length stands for as many steps, the number of which is not known.
  """
  firsts = np.cumsum([0, *map(abs, lengths)])[:-1]

  def episode(first, length):
    steps = tf.data.Dataset.range(first, first + tf.abs(length))
    unknown = steps.filter(lambda number: number >= 0)
    variant = tf.cond(
        length < 0,
        lambda: tf.data.experimental.to_variant(unknown),
        lambda: tf.data.experimental.to_variant(steps),
    )
    return {
        'steps': tf.data.experimental.from_variant(variant, steps.element_spec),
        'name': tf.strings.as_string(first),
    }

  return tf.data.Dataset.from_tensor_slices(
      (firsts, np.array(lengths, np.int64))
  ).map(episode)


def _groups(rlds_data, max_steps, **kwargs):
  """Returns the lengths, the first index, and the steps of each group."""
  groups = nested_groups.group_episodes(rlds_data, max_steps, **kwargs)
  return [
      (
          group.lengths.numpy().tolist(),
          int(group.first),
          list(group.steps.as_numpy_iterator()),
      )
      for group in groups
  ]


class GroupEpisodesTest(tf.test.TestCase):

  def test_few_steps_come_together(self):
    self.assertEqual(
        _groups(_data_set(2, 1, 0, 3, 4, 1), 5),
        [
            ([2, 1, 0], 0, [0, 1, 2]),
            ([3], 3, [3, 4, 5]),
            ([4, 1], 4, [6, 7, 8, 9, 10]),
        ],
    )

  def test_a_long_episode_is_alone(self):
    self.assertEqual(
        _groups(_data_set(1, 7, 1, 1), 5),
        [
            ([1], 0, [0]),
            ([7], 1, [1, 2, 3, 4, 5, 6, 7]),
            ([1, 1], 2, [8, 9]),
        ],
    )

  def test_an_episode_of_unknown_length_is_alone(self):
    self.assertEqual(
        _groups(_data_set(1, 1, -2, -1, 1), 5),
        [
            ([1, 1], 0, [0, 1]),
            ([_UNKNOWN], 2, [2, 3]),
            ([_UNKNOWN], 3, [4]),
            ([1], 4, [5]),
        ],
    )

  def test_no_episodes(self):
    self.assertEqual(_groups(_data_set(1).take(0), 5), [])

  def test_many_episodes(self):
    lengths = [len(group[0]) for group in _groups(_data_set(*[1] * 70), 100)]
    self.assertEqual(lengths, [32, 32, 6])

  def test_what_identifies_the_episodes(self):
    groups = nested_groups.group_episodes(
        _data_set(2, 1, 9, 1), 5, episode_id='name'
    )
    self.assertEqual(
        [group.episode_id.numpy().tolist() for group in groups],
        [[b'0', b'2'], [b'3'], [b'12']],
    )


if __name__ == '__main__':
  tf.test.main()
