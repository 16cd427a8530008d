"""Tests of the numbers of a step as one row."""

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import data_sets
from rlds2reverb.episodes import episode_batches
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.statistics import rows
from tests import golden
from tests import ways


def _rows(steps, leaves, *args):
  return rows.to_rows(episode_batches.of_one(steps), leaves, *args)


class RowsTest(tf.test.TestCase):

  def test_numbers_without_a_meaning_are_nan(self):
    data = golden.stacked([ways.THREE])
    leaves = rows.choose_leaves(
        steps_lib.steps_spec(data.element_spec).step, None
    )
    self.assertEqual(
        [keys for keys, _ in leaves],
        [('action',), ('discount',), ('observation',), ('reward',)],
    )
    (mapped,) = data.map(lambda episode: _rows(episode['steps'], leaves))
    nan = np.nan
    expected = [
        # Two of the action, then one of each; then the return, the numbers of
        # transitions and of actions, and whether the episode is terminal.
        [10.5, 9.5, 1, 10, 10, nan, nan, nan, nan],
        [11.5, 10.5, 1, 11, 20, nan, nan, nan, nan],
        [12.5, 11.5, 1, 12, 30, nan, nan, nan, nan],
        [nan, nan, nan, 13, nan, 60, 3, 3, 0],
    ]
    self.assertAllEqual(_rows(next(iter(data))['steps'], leaves), mapped)
    self.assertAllEqual(mapped[:, :2], np.array(expected)[:, :2])
    self.assertAllEqual(mapped[:, 3:], np.array(expected)[:, 3:])

  def test_an_action_of_the_last_step(self):
    steps = {**ways.THREE, 'has_action': np.ones(4, bool)}
    data = golden.stacked([steps])
    leaves = rows.choose_leaves(
        steps_lib.steps_spec(data.element_spec).step, None
    )
    found = _rows(next(iter(data))['steps'], leaves)
    self.assertAllEqual(found[:, 0], steps['action'][:, 0])
    self.assertAllEqual(found[3, 3:], [13, np.nan, 60, 3, 4, 0])

  def test_steps_that_act_only(self):
    data = golden.stacked([ways.THREE])
    leaves = rows.choose_leaves(
        steps_lib.steps_spec(data.element_spec).step, None
    )
    found = _rows(next(iter(data))['steps'], leaves, True)
    self.assertAllEqual(found[:, 3], [10, 11, 12, np.nan])

  def test_the_rows_of_a_batch_are_those_of_its_episodes(self):
    single = ways.make([20], [], terminal=True)
    none = {name: leaf[:0] for name, leaf in single.items()}
    episodes = [none, ways.FIVE, none, single, ways.THREE, none]
    data = golden.batched(episodes, batch_size=9)
    leaves = rows.choose_leaves(
        steps_lib.steps_spec(data.element_spec).step, None
    )
    expected = np.concatenate(
        [_rows(episode['steps'], leaves) for episode in data]
    )
    self.assertEqual(np.isfinite(expected[:, -1]).sum(), 3)
    self.assertAllEqual(expected[6, -4:], [0, 0, 0, 1])
    all_batches = data_sets.batches_of(data)
    (eager,) = (rows.to_rows(batch, leaves) for batch in all_batches)
    (mapped,) = all_batches.map(lambda batch: rows.to_rows(batch, leaves))
    self.assertAllEqual(eager, expected)
    self.assertAllEqual(mapped, expected)


if __name__ == '__main__':
  tf.test.main()
