"""Tests of the conversion of RLDS episodes to sequences."""

import itertools

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import report as report_lib
from rlds2reverb.trajectories import rules as rules_lib
from rlds2reverb.trajectories import sequences
from tests import contract
from tests import golden


def _boundary(frame):
  return contract.zero_like(frame)._replace(
      step_type=np.int32(golden.LAST), next_step_type=np.int32(golden.FIRST)
  )


def _windows(frames, length, stride, end_of_episode):
  """Returns the sequences of one list of frames, and their masks."""
  count = len(frames)
  windows, start = [], 0
  while start < count:
    missing = max(start + length - count, 0)
    window, mask = frames[start : start + length], length * [True]
    if missing:
      mask = (length - missing) * [True] + missing * [False]
    if missing and end_of_episode in ('drop', 'cross'):
      break
    if missing and end_of_episode == 'pad' and start > 0:
      break
    if missing and end_of_episode == 'overlap' and count >= length:
      window, mask = frames[count - length :], length * [True]
    elif missing and end_of_episode == 'repeat_last':
      window = window + missing * [frames[-1]]
    elif missing:
      window = window + missing * [_boundary(frames[0])]
    windows.append((window, mask))
    is_covered = start + length >= count
    if is_covered and end_of_episode in ('zero_pad', 'repeat_last', 'overlap'):
      break
    start += stride
  return windows


def _expected(episodes, length, stride, end_of_episode, **kwargs):
  """Returns the sequences of valid episodes, and their masks, stacked."""
  if end_of_episode == 'cross':
    groups = [golden.expected_frames(episodes, **kwargs)]
  else:
    groups = [golden.expected_frames([e], **kwargs) for e in episodes]
  return [
      (contract.stack(window), np.array(mask))
      for frames in groups
      for window, mask in _windows(frames, length, stride, end_of_episode)
  ]


class SequencesTest(parameterized.TestCase, tf.test.TestCase):

  def _assert_sequences(self, dataset, expected):
    found = list(dataset.as_numpy_iterator())
    self.assertLen(found, len(expected))
    for one, other in zip(found, expected):
      contract.assert_equal(self, one, other)

  @parameterized.parameters(
      ('drop', [[0, 1, 2], [2, 3, 4]]),
      ('pad', [[0, 1, 2], [2, 3, 4], [10, 11, 0]]),
      ('tile', [[0, 1, 2], [2, 3, 4], [4, 5, 0], [10, 11, 0]]),
      ('zero_pad', [[0, 1, 2], [2, 3, 4], [4, 5, 0], [10, 11, 0]]),
      ('repeat_last', [[0, 1, 2], [2, 3, 4], [4, 5, 5], [10, 11, 11]]),
      ('overlap', [[0, 1, 2], [2, 3, 4], [3, 4, 5], [10, 11, 0]]),
      ('cross', [[0, 1, 2], [2, 3, 4], [4, 5, 10]]),
  )
  def test_by_hand(self, end_of_episode, expected):
    short = contract.make_steps([10, 11], [10], terminal=False)
    dataset = sequences.convert_rlds_to_sequences(
        golden.stacked([contract.A, short]),
        windows_lib.Windows(3, 2, end_of_episode),
    )
    self.assertAllEqual([one.observation for one in dataset], expected)

  def test_pads_are_boundaries(self):
    (one,) = sequences.convert_rlds_to_sequences(
        golden.stacked([contract.B]), windows_lib.Windows(6, end='pad')
    )
    self.assertAllEqual(one.step_type, [0, 1, 1, 2, 2, 2])
    self.assertAllEqual(one.next_step_type, [1, 1, 2, 0, 0, 0])
    self.assertAllEqual(one.discount, [1, 1, 1, 1, 0, 0])
    self.assertAllEqual(one.reward, [10, 20, 30, 99, 0, 0])

  # Each case in one form, and each form in cases of every kind.
  @parameterized.parameters(
      *zip(
          itertools.product(windows_lib.EndOfEpisode, [(3, 1), (2, 5)]),
          itertools.cycle(golden.FORMS_AND_BATCHES.values()),
      )
  )
  def test_edges_against_a_loop(self, case, form):
    self._check_edges(case, form)

  @parameterized.parameters(
      *zip(
          itertools.product(
              windows_lib.EndOfEpisode, [(1, 1), (4, 4), (16, 1)]
          ),
          itertools.cycle(golden.FORMS_AND_BATCHES.values()),
      )
  )
  @pytest.mark.long
  def test_edges_of_other_windows_against_a_loop(self, case, form):
    self._check_edges(case, form)

  def _check_edges(self, case, form):
    end_of_episode, (length, stride) = case
    episodes = contract.edge_episodes(max(length, 2), seed=length)
    expected = _expected(episodes, length, stride, end_of_episode)
    dataset = sequences.convert_rlds_to_sequences(
        form(episodes),
        windows_lib.Windows(length, stride, end_of_episode),
        with_mask=True,
    )
    self._assert_sequences(dataset, expected)

  @parameterized.parameters(*windows_lib.EndOfEpisode)
  @pytest.mark.long
  def test_over_the_edges_of_blocks(self, end_of_episode):
    # Frames so large that a block of nested steps has two of them.
    size = 900_000
    episodes = []
    for length, base in ((7, 10), (1, 20), (2, 30), (4, 40)):
      steps = contract.make_steps(
          range(length), [1] * (length - 1), terminal=True
      )
      number = np.arange(base, base + length, dtype=np.uint8)
      steps['observation'] = np.repeat(number[:, np.newaxis], size, axis=1)
      episodes.append(steps)
    for length, stride in ((3, 1), (4, 3), (2, 4)):
      dataset = sequences.convert_rlds_to_sequences(
          golden.nested(episodes),
          windows_lib.Windows(length, stride, end_of_episode),
          with_mask=True,
      ).map(
          lambda one, mask: (
              one._replace(observation=one.observation[:, 0]),
              mask,
          )
      )
      small = [{**e, 'observation': e['observation'][:, 0]} for e in episodes]
      self._assert_sequences(
          dataset, _expected(small, length, stride, end_of_episode)
      )

  @pytest.mark.long
  def test_a_long_episode(self):
    count = 10_000
    steps = contract.make_steps(range(count), range(count - 1), terminal=True)
    for form, batches, stride in itertools.product(
        golden.FORMS_AND_BATCHES.values(), (None, 100), (1, 7)
    ):
      dataset = sequences.convert_rlds_to_sequences(
          form([steps]),
          windows_lib.Windows(5, stride),
          batched=True,
          max_batch_size=batches,
      )
      found = [batch.observation for batch in dataset.as_numpy_iterator()]
      self.assertAllEqual(
          np.concatenate(found),
          np.lib.stride_tricks.sliding_window_view(np.arange(count), 5)[
              ::stride
          ],
      )
      if batches:
        self.assertEqual(max(map(len, found)), batches)

  def test_batches_hold_the_same_sequences(self):
    episodes = golden.random_episodes(
        np.random.default_rng(5), 8, nested_fields=True
    )
    batches = sequences.convert_rlds_to_sequences(
        golden.stacked(episodes),
        windows_lib.Windows(3, 2, 'tile'),
        batched=True,
        max_batch_size=2,
        with_mask=True,
    )
    expected = _expected(episodes, 3, 2, 'tile')
    self._assert_sequences(batches.unbatch(), expected)
    sizes = [len(mask) for _, mask in batches.as_numpy_iterator()]
    self.assertEqual((max(sizes), min(sizes)), (2, 1))

  def test_static_shapes_and_dtypes(self):
    data = golden.stacked(contract.edge_episodes(3))
    for batched, leading in ((False, [3]), (True, [None, 3])):
      for end_of_episode in ('drop', 'tile', 'repeat_last', 'cross'):
        spec, mask = sequences.convert_rlds_to_sequences(
            data,
            windows_lib.Windows(3, end=end_of_episode),
            batched=batched,
            with_mask=True,
        ).element_spec
        self.assertEqual(mask, tf.TensorSpec(leading, tf.bool))
        self.assertEqual(
            spec.observation['camera'],
            tf.TensorSpec(leading + [2, 1], tf.uint8),
        )
        self.assertEqual(spec.reward, tf.TensorSpec(leading, tf.float64))
        self.assertEqual(spec.step_type, tf.TensorSpec(leading, tf.int32))

  def test_images_of_a_size_not_known(self):
    steps = contract.make_steps(range(3), [1, 2], terminal=True)
    steps['observation'] = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    spec = golden.stacked_spec(steps)
    spec['observation'] = tf.TensorSpec([None, None, None], tf.uint8)
    for end_of_episode in windows_lib.EndOfEpisode:
      dataset = sequences.convert_rlds_to_sequences(
          golden.stacked([steps, steps], spec),
          windows_lib.Windows(2, end=end_of_episode),
          with_mask=True,
      )
      self._assert_sequences(
          dataset, _expected([steps, steps], 2, 1, end_of_episode)
      )

  def test_no_episodes(self):
    data = golden.stacked([], golden.stacked_spec(contract.A))
    for end_of_episode in windows_lib.EndOfEpisode:
      self.assertEmpty(
          list(
              sequences.convert_rlds_to_sequences(
                  data, windows_lib.Windows(2, end=end_of_episode)
              )
          )
      )

  def test_options_of_the_conversion(self):
    info = lambda current, following: following['reward']
    bad = golden.INVALID_CASES['stops_at_mid'].episode
    report = report_lib.ConversionReport()
    dataset = sequences.convert_rlds_to_sequences(
        golden.stacked([golden.COMPLETE, bad, golden.TRUNCATED]),
        windows_lib.Windows(2),
        options=options_lib.ConversionOptions(
            policy_info_fn=info,
            rules=rules_lib.ConversionRules(
                terminal_discount='transition', invalid_episodes='skip'
            ),
            report=report,
        ),
    )
    good = [golden.COMPLETE, golden.TRUNCATED]
    # The policy_info looks ahead to the next episode that is left.
    frames = golden.expected_frames(
        good, terminal_discount='transition', policy_info=info
    )
    expected = [
        contract.stack(window)
        for group in (frames[:4], frames[4:])
        for window, _ in _windows(group, 2, 1, 'drop')
    ]
    self._assert_sequences(dataset, expected)
    self.assertEqual([s.episode for s in report.skipped_episodes], [1])

  def test_an_invalid_episode_is_an_error(self):
    bad = golden.INVALID_CASES['stops_at_mid'].episode
    dataset = sequences.convert_rlds_to_sequences(
        golden.stacked([golden.COMPLETE, bad]), windows_lib.Windows(2)
    )
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, golden.FIRST_AFTER_MID
    ):
      list(dataset)

  def test_bad_arguments(self):
    data = golden.stacked([contract.A])
    for message, arguments in (
        (r'must be Windows\(length, stride, end\), but are 2', {'windows': 2}),
        ('max_batch_size must be a positive', {'max_batch_size': 0}),
    ):
      with self.assertRaisesRegex(ValueError, message):
        sequences.convert_rlds_to_sequences(
            data, **{'windows': windows_lib.Windows(2), **arguments}
        )


if __name__ == '__main__':
  tf.test.main()
