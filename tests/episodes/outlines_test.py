"""Tests of the outlines of episodes."""

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import outlines
from rlds2reverb.episodes import stacked_steps
from tests import golden


class OutlineTest(tf.test.TestCase):

  def test_a_whole_episode(self):
    episode = dict(golden.TRUNCATED, discount=np.float64([[1], [1], [1], [0]]))
    episode['observation'] = np.float32([[1, 2], [3, np.nan], [5, 6], [7, 8]])
    (outline,) = golden.stacked([episode]).map(
        lambda episode: outlines.outline_of(episode['steps'], ['observation'])
    )
    self.assertEqual(outline['discount'].dtype, tf.float32)
    self.assertAllEqual(outline['discount'], [1, 1, 1, 0])
    self.assertAllEqual(outline['is_last'], episode['is_last'])
    self.assertAllEqual(outline[outlines.NAN_FIELD], [0, 1, 0, 0])

  def test_lengths_that_differ(self):
    episode = dict(golden.TRUNCATED, reward=np.zeros([3], np.float32))
    steps = tf.nest.map_structure(tf.constant, episode)
    lengths = stacked_steps.Lengths(['reward', 'rest'], tf.constant([3, 4]))
    outline = outlines.outline_of(steps, lengths=lengths)
    self.assertEqual({len(column) for column in outline.values()}, {0})

  def test_the_end_is_a_first_step(self):
    end = outlines.end_outline(find_nan=True)
    self.assertEqual(
        {name: column.numpy().tolist() for name, column in end.items()},
        {
            'is_first': [True],
            'is_last': [False],
            'is_terminal': [False],
            'discount': [0.0],
            'nan_field': [0],
        },
    )
    self.assertNotIn(outlines.NAN_FIELD, outlines.end_outline())


if __name__ == '__main__':
  tf.test.main()
