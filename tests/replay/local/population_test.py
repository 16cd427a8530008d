"""Tests of the items that can be drawn."""

import dataclasses

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.replay.local import population
from rlds2reverb.replay.local import store
from tests.replay.local import cuts


class PopulationTest(parameterized.TestCase, tf.test.TestCase):

  def test_rows_of_items(self):
    # Episodes of 3, 1, 2 and 5 frames, in rows 0, 3, 4 and 6.
    found = population.Population(cuts.make_store([2, 0, 1, 4]))
    self.assertEqual((found.num_items, found.num_frames), (7, 11))
    self.assertEqual(found.first_item.tolist(), [0, 2, 3, 7])
    items = np.array([6, 0, 2, 1, 3])
    self.assertEqual(found.starts(items).tolist(), [9, 0, 4, 1, 6])
    self.assertEqual(found.length(items), 2)
    self.assertEqual(found.all_rows().tolist(), list(range(11)))

  def test_rows_of_random_items(self):
    rng = np.random.default_rng(0)
    for length, stride in ((1, 1), (3, 1), (2, 5), (4, 2)):
      counts = rng.integers(0, 4, 30)
      counts[7] = 3
      # Runs with padding between them, which belongs to no run.
      spans = np.where(counts, (counts - 1) * stride + length, 0)
      gaps = rng.integers(0, 3, 30)
      first = np.cumsum(spans + gaps) - spans
      expected = [
          list(range(begin + k * stride, begin + k * stride + length))
          for begin, count in zip(first, counts)
          for k in range(count)
      ]
      base = cuts.make_store([1])
      found = population.Population(
          dataclasses.replace(
              base,
              windows=store.ItemWindows(length, stride, False),
              runs=store.Runs(first, spans, counts, np.zeros(30)),
          )
      )
      order = rng.permutation(len(expected))
      self.assertEqual(found.num_items, len(expected))
      self.assertEqual(
          found.starts(order).tolist(), [expected[k][0] for k in order]
      )
      self.assertEqual(
          found.all_rows().tolist(),
          [b + k for b, span in zip(first, spans) for k in range(span)],
      )

  def test_whole_episodes(self):
    base = cuts.make_store([2, 0, 1])
    found = population.Population(
        dataclasses.replace(
            base,
            windows=store.ItemWindows(None, 1, False),
            runs=base.runs._replace(num_items=np.ones(3, np.int64)),
        )
    )
    self.assertEqual(
        [
            (found.starts(np.array([k])).tolist(), found.length(np.array([k])))
            for k in range(3)
        ],
        [([0], 3), ([3], 1), ([4], 2)],
    )

  def test_top_episodes_by_return(self):
    # The contract: ranks 5, 1, 3, 3, 9, 2; of ties the older one stays.
    base = cuts.make_store(
        [1, 2, 1, 3, 2, 1],
        priorities=range(10),
        returns=[5, 1, 3, 3, 9, 2],
    )
    found = population.Population(base.top_episodes(3))
    self.assertEqual(sorted(found.runs.undiscounted_return.tolist()), [3, 5, 9])
    # Rows: 2, 3, 2, 4, 3, 2. Of the two episodes of 3, the first: rows 5, 6.
    self.assertEqual(found.num_items, 1 + 1 + 2)
    self.assertEqual(found.starts(np.arange(4)).tolist(), [0, 5, 11, 12])
    self.assertEqual(found.priorities.tolist(), [0, 3, 7, 8])
    self.assertEqual(found.priority(np.array([3, 0])).tolist(), [8, 0])
    everything = population.Population(base.top_episodes(100))
    self.assertEqual(everything.num_items, 10)

  def test_top_episodes_are_of_those_that_have_items(self):
    base = cuts.make_store([0, 1, 2], returns=[9, 1, 2])
    self.assertEqual(population.Population(base.top_episodes(2)).num_items, 3)

  @parameterized.parameters(
      dict(returns=[1, np.nan], crosses_episodes=False),
      dict(returns=[1, 2], crosses_episodes=True),
  )
  def test_episodes_without_returns(self, **settings):
    base = cuts.make_store([1, 1], **settings)
    with self.assertRaisesRegex(ValueError, 'top_episodes'):
      population.Population(base.top_episodes(1))

  def test_an_episode_of_no_return_that_has_no_items(self):
    base = cuts.make_store([1, 0], returns=[1, np.nan])
    self.assertEqual(population.Population(base.top_episodes(1)).num_items, 1)

  def test_items_that_there_are_not(self):
    found = population.Population(cuts.make_store([2, 1]))
    self.assertEqual(found.alive(np.array([0, 2, 2])).tolist(), [True] * 3)
    for wrong in -1, 3:
      with self.assertRaisesRegex(
          tf.errors.InvalidArgumentError,
          rf'no item of this key.*\[{wrong}\] of 3',
      ):
        found.alive(np.array([0, wrong]))


if __name__ == '__main__':
  tf.test.main()
