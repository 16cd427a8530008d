"""Tests of what a conversion reports."""

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import faults as faults_lib
from rlds2reverb.trajectories import conversion
from rlds2reverb.trajectories import frame_blocks
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import report as report_lib
from tests import golden


def _block(episodes, step, reward, ends=(), splits=None):
  """Returns the first arguments of `add_block`."""
  is_last = np.zeros(len(reward), bool)
  is_last[list(ends)] = True
  block = frame_blocks.FrameBlock(
      (),
      episode_ids=tf.constant(np.atleast_1d(episodes), tf.int64),
      row_splits=tf.constant(splits or [0, len(reward)], tf.int64),
      step=tf.constant(step, tf.int64),
      steps={'reward': tf.constant(reward), 'action': tf.zeros([2], tf.int32)},
  )
  return block, tf.constant(is_last)


def _add_skipped(tables, episode, fault):
  tables.add_skipped(
      tf.constant([episode], tf.int64),
      tf.nest.map_structure(lambda leaf: leaf[tf.newaxis], fault.tensors()),
  )


class ConversionReportTest(tf.test.TestCase):

  def test_empty(self):
    report = report_lib.ConversionReport()
    self.assertEqual(report.skipped_episodes, [])
    self.assertEqual(report.bootstrapped_terminals, [])
    self.assertEqual(report.nan_counts, {})
    self.assertEqual(report.inserted_items, {})
    self.assertEqual(
        str(report), 'No episode was skipped, and nothing looks wrong.'
    )

  def test_it_prints_what_was_skipped_and_looks_wrong(self):
    report = report_lib.ConversionReport()
    tables = report.attach(['reward'])
    tables.add_block(*_block(1, 2, [np.nan] * 2), tf.constant([True, False]))
    fault = faults_lib.Fault('A rule.')
    for episode in range(2, 14):
      _add_skipped(tables, episode, fault)
    self.assertEqual(
        str(report).splitlines(),
        [
            'In 1 terminal episodes (the first is episode 1) the last'
            ' transition has a discount other than 0, so a learner bootstraps'
            ' through the terminal state. Pass'
            ' options=rlds2reverb.ConversionOptions(rules='
            'rlds2reverb.ConversionRules(terminal_discount="transition")), or'
            ' to rlds2reverb-convert --terminal_discount=transition, which'
            ' makes it 0.',
            'The data holds NaN: 2 in reward. ConversionRules(nan="invalid")'
            ' makes that an error.',
            'Skipped 12 invalid episodes. The first: A rule. Found at episode'
            ' 2.',
            *(f'  A rule. Found at episode {n}.' for n in range(3, 12)),
            '  and 2 more',
        ],
    )

  def test_skipped_episodes_come_in_order_and_once(self):
    report = report_lib.ConversionReport()
    tables = report.attach([])
    faults = {
        2: faults_lib.Fault('A rule.', 3, 'reward', 'NaN', 'record 2 of F'),
        5: faults_lib.Fault('Another.', advice='Mend it.'),
    }
    for episode in (5, 2, 5):
      _add_skipped(tables, episode, faults[episode])
    self.assertEqual(
        report.skipped_episodes,
        [
            report_lib.SkippedEpisode(
                2,
                'A rule. Found at episode 2, step 3, record 2 of F: NaN.',
                faults[2],
            ),
            report_lib.SkippedEpisode(
                5, 'Another. Found at episode 5. Mend it.', faults[5]
            ),
        ],
    )

  def test_blocks_are_counted_once(self):
    report = report_lib.ConversionReport()
    tables = report.attach(['reward'])
    for _ in range(2):
      tables.add_block(*_block(1, 0, [np.nan, 1.0]), tf.constant([False] * 2))
      tables.add_block(*_block(1, 2, [np.nan] * 2), tf.constant([True, False]))
      tables.add_block(*_block(3, 0, [0.0, 1.0]), tf.constant([True, False]))
      tables.add_block(*_block(4, 0, [0.0, 1.0]), tf.constant([False] * 2))
    self.assertEqual(report.nan_counts, {'reward': 3})
    self.assertEqual(report.bootstrapped_terminals, [1, 3])

  def test_episodes_of_a_block_are_told_apart(self):
    report = report_lib.ConversionReport()
    tables = report.attach(['reward'])
    # Episodes 5, 6 and 7 have 2, 1 and 3 steps; the first and the last of them
    # bootstrap.
    rewards = [0.0, np.nan, 1.0, np.nan, np.nan, 1.0]
    block = _block([5, 6, 7], 0, rewards, splits=[0, 2, 3, 6])
    tables.add_block(
        *block, tf.constant([True, False, False, False, True, False])
    )
    self.assertEqual(report.nan_counts, {'reward': 3})
    self.assertEqual(report.bootstrapped_terminals, [5, 7])

  def test_a_reward_of_another_length_breaks_its_rule(self):
    steps = dict(golden.COMPLETE)
    steps['reward'] = steps['reward'][:-1]
    spec = tf.nest.map_structure(
        lambda a: tf.TensorSpec([None, *a.shape[1:]], a.dtype),
        {'steps': steps},
    )
    episodes = tf.data.Dataset.from_generator(
        lambda: iter([{'steps': steps}]), output_signature=spec
    )
    converted = conversion.convert_rlds_to_trajectories(
        episodes,
        options=options_lib.ConversionOptions(
            report=report_lib.ConversionReport()
        ),
        batched=True,
    )
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, 'fields must have a row for every step'
    ):
      list(converted)

  def test_rewards_of_last_steps(self):
    report = report_lib.ConversionReport()
    self.assertEqual(report.last_rewards, {})
    tables = report.attach(['reward'])
    none = tf.constant([False] * 4)
    # Episodes 0, 1 and 2 have 2, 1 and 1 steps.
    block = _block(
        [0, 1, 2], 0, [3.0, 1.0, np.nan, -0.5], [1, 2, 3], [0, 2, 3, 4]
    )
    for _ in range(2):
      tables.add_block(*block, none)
      # One that bootstraps in one block, and ends in the next.
      tables.add_block(*_block(7, 0, [1.0, 1.0]), tf.constant([False, True]))
      tables.add_block(*_block(7, 2, [2.0], [0]), tf.constant([False]))
      # Rewards that cancel out are there.
      tables.add_block(*_block(8, 0, [[1.0, -1.0]], [0]), tf.constant([False]))
    self.assertEqual(report.last_rewards, {0: 1.0, 2: -0.5, 7: 2.0, 8: 2.0})
    self.assertEqual(report.bootstrapped_terminals, [7])
    self.assertEqual(report.nan_counts, {'reward': 1})

  def test_serves_one_conversion(self):
    report = report_lib.ConversionReport()
    report.attach([])
    with self.assertRaisesRegex(ValueError, 'serves one conversion'):
      report.attach([])

  def test_a_call_that_fails_frees_the_report_that_it_took(self):

    @options_lib.takes_options
    def fail(*, options=None):
      if options:
        options.report.attach([])
      raise KeyError('no')

    report = report_lib.ConversionReport()
    options = options_lib.ConversionOptions(report=report)
    for _ in range(2):
      with self.assertRaises(KeyError):
        fail(options=options)
    with self.assertRaises(KeyError):
      fail()
    report.attach([])
    # A report that another call has taken is not freed.
    with self.assertRaisesRegex(ValueError, 'serves one conversion'):
      fail(options=options)
    with self.assertRaisesRegex(ValueError, 'serves one conversion'):
      report.attach([])


if __name__ == '__main__':
  tf.test.main()
