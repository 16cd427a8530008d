"""Tests of the conversion of RLDS episodes to sequences, against NumPy."""

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf

import rlds2reverb
from tests import contract
from tests import golden

_FORMS = golden.FORMS_AND_BATCHES


def _expected(episodes, length, stride, end, groups=None, **kwargs):
  """Returns the sequences of valid episodes, and their masks."""
  if groups is None:
    groups = [
        golden.expected_frames([episode], **kwargs) for episode in episodes
    ]
  if end == 'cross':
    groups = [sum(groups, [])]
  found = []
  for frames in groups:
    after = 'repeat'
    if end != 'repeat_last':
      # A boundary frame, as TF-Agents' observers pad with.
      after = contract.zero_like(frames[0])._replace(
          step_type=np.int32(golden.LAST)
      )
    for start in contract.window_starts(len(frames), length, stride, end):
      places = range(start, start + length)
      found.append(
          (
              contract.window(frames, places, None, after),
              np.array([at < len(frames) for at in places]),
          )
      )
  return found


def _convert(data, *windows, **kwargs):
  return rlds2reverb.convert_rlds_to_sequences(
      data, rlds2reverb.Windows(*windows), **kwargs
  )


class SequencesTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(
      ('drop', [[0, 1, 2], [2, 3, 4]]),
      ('pad', [[0, 1, 2], [2, 3, 4], [10, 11, 0]]),
      ('tile', [[0, 1, 2], [2, 3, 4], [4, 5, 0], [10, 11, 0]]),
      ('zero_pad', [[0, 1, 2], [2, 3, 4], [4, 5, 0], [10, 11, 0]]),
      ('repeat_last', [[0, 1, 2], [2, 3, 4], [4, 5, 5], [10, 11, 11]]),
      ('overlap', [[0, 1, 2], [2, 3, 4], [3, 4, 5], [10, 11, 0]]),
      ('cross', [[0, 1, 2], [2, 3, 4], [4, 5, 10]]),
  )
  @pytest.mark.few(3)
  def test_worked_example(self, end, expected):
    short = contract.make_steps([10, 11], [10], terminal=False)
    dataset = _convert(golden.stacked([contract.A, short]), 3, 2, end)
    self.assertAllEqual([one.observation for one in dataset], expected)

  # Each end, with episodes of 1 to about 50 steps, in one block or several.
  @parameterized.parameters(
      ('drop', 3, 1, 'stacked'),
      ('pad', 16, 1, 'nested'),
      ('tile', 2, 5, 'batched'),
      ('zero_pad', 4, 3, 'stacked'),
      ('repeat_last', 5, 3, 'nested'),
      ('overlap', 36, 2, 'batched'),
      ('cross', 24, 1, 'batched'),
  )
  @pytest.mark.few(1)
  def test_edge_cases_equal_numpy(self, end, length, stride, form):
    episodes = contract.edge_episodes(max(min(length, 16), 2), seed=length)
    windows = length, stride, end
    dataset = _convert(_FORMS[form](episodes), *windows, with_mask=True)
    for spec in tf.nest.flatten(dataset.element_spec):
      self.assertEqual(spec.shape[0], length)
      self.assertTrue(spec.shape.is_fully_defined())
    golden.assert_frames_equal(
        self, golden.frames_of(dataset), _expected(episodes, *windows)
    )

  @parameterized.parameters((None, 1), (100, 7))
  def test_a_long_episode_in_batches(self, max_batch_size, stride):
    count = 3000
    steps = contract.make_steps(range(count), range(count - 1), terminal=True)
    dataset = _convert(
        golden.stacked([steps, contract.B]),
        5,
        stride,
        'drop',
        batched=True,
        max_batch_size=max_batch_size,
    )
    self.assertEqual(dataset.element_spec.reward.shape.as_list(), [None, 5])
    actual = [batch.observation for batch in dataset.as_numpy_iterator()]
    view = np.lib.stride_tricks.sliding_window_view(np.arange(count), 5)
    self.assertAllEqual(np.concatenate(actual), view[::stride])
    if max_batch_size:
      self.assertEqual(max(map(len, actual)), max_batch_size)

  def test_images_of_unknown_size_and_no_episodes(self):
    steps = contract.make_steps(range(3), [1, 2], terminal=True)
    steps['observation'] = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    spec = golden.stacked_spec(steps)
    spec['observation'] = tf.TensorSpec([None, None, None], tf.uint8)
    for end in ('tile', 'repeat_last', 'cross'):
      episodes = [steps, steps]
      data = golden.stacked(episodes, spec)
      dataset = _convert(data, 2, 1, end, with_mask=True)
      golden.assert_frames_equal(
          self, golden.frames_of(dataset), _expected(episodes, 2, 1, end)
      )
      episodes.clear()
      self.assertEmpty(list(dataset))

  def test_options_of_the_conversion(self):
    info = lambda current, following: following['reward']
    bad = golden.INVALID_CASES['stops_at_mid'].episode
    data = golden.stacked([golden.COMPLETE, bad, golden.TRUNCATED])
    report = rlds2reverb.ConversionReport()
    dataset = _convert(
        data,
        2,
        options=rlds2reverb.ConversionOptions(
            policy_info_fn=info,
            rules=rlds2reverb.ConversionRules(
                terminal_discount='transition', invalid_episodes='skip'
            ),
            report=report,
        ),
    )
    # The policy_info looks ahead to the next episode that is left.
    frames = golden.expected_frames(
        [golden.COMPLETE, golden.TRUNCATED], 'transition', info
    )
    expected = _expected((), 2, 1, 'drop', groups=[frames[:4], frames[4:]])
    golden.assert_frames_equal(
        self, golden.frames_of(dataset), [one for one, _ in expected]
    )
    self.assertEqual([s.episode for s in report.skipped_episodes], [1])
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, golden.FIRST_AFTER_MID
    ):
      list(_convert(data, 2))


if __name__ == '__main__':
  tf.test.main()
