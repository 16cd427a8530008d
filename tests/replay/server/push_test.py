"""Tests of pushing RLDS data into a real Reverb server."""

import contextlib

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.replay_buffers import reverb_utils
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import trajectory

from rlds2reverb.replay.server import push
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import report as report_lib
from rlds2reverb.trajectories import rules as rules_lib
from rlds2reverb.trajectories import specs
from tests import golden
from tests import testing

_ROW_OF_THREE = golden.CASES['truncated_single_complete'].episodes

_ADD = reverb_utils.ReverbAddTrajectoryObserver
_EPISODES = reverb_utils.ReverbAddEpisodeObserver
_SEQUENCES = reverb_utils.ReverbTrajectorySequenceObserver
_SKIP = rules_lib.ConversionRules(invalid_episodes='skip')
_STREAM = rules_lib.ConversionRules(validation='tf_agents')


_FAULTS = golden.INVALID_CASES


def _policy_info(current, following):
  return {
      'next_action': following['action'],
      'is_last': (current['is_last'], current['reward'] + following['reward']),
  }


@contextlib.contextmanager
def _observed(data, observer_class=_ADD, info=None, **settings):
  """Yields a client of a new server, and an observer that writes to it."""
  if observer_class is not _EPISODES:
    settings = {'sequence_length': 2, **settings}
  spec = specs.create_trajectory_data_spec(data, info)
  with testing.reverb_server(spec) as client:
    observer = observer_class(client, testing.TABLE, **settings)
    yield client, observer
    observer.close()


def _windows(frames, length=2):
  return [frames[i : i + length] for i in range(len(frames) - length + 1)]


def _frames_of(episodes, policy_info_fn=None):
  """Returns the frames of each episode."""
  frames = golden.expected_frames(episodes, policy_info=policy_info_fn)
  ends = np.cumsum([0, *map(golden.length_of, episodes)])
  return [frames[begin:end] for begin, end in zip(ends, ends[1:])]


def _pairs(episodes, policy_info_fn=None):
  return sum(map(_windows, _frames_of(episodes, policy_info_fn)), [])


class PushTest(parameterized.TestCase, tf.test.TestCase):
  """Of the way that is taken unless another is asked for."""

  method = 'auto'

  def _push(self, data, observer, info=None, **options):
    return push.push_rlds_to_reverb(
        data,
        observer,
        info,
        options=options_lib.ConversionOptions(**options),
        method=self.method,
    )

  def _assert_items(self, client, expected):
    items = testing.drain(client)
    self.assertLen(items, len(expected))
    for item, frames in zip(items, expected):
      golden.assert_frames_equal(self, item, frames)

  @parameterized.product(
      form=list(golden.FORMS),
      nested_fields=[False, True],
      info=[None, _policy_info],
  )
  @pytest.mark.few(3)
  def test_what_is_in_the_table_is_what_went_in(
      self, form, nested_fields, info
  ):
    episodes = golden.random_episodes(
        np.random.default_rng(1), 6, nested_fields=nested_fields
    )
    data = golden.FORMS[form](episodes)
    expected = _pairs(episodes, info)
    report = report_lib.ConversionReport()
    with _observed(data, info=info) as (client, observer):
      self.assertEqual(
          self._push(data, observer, info, report=report),
          sum(map(golden.length_of, episodes)),
      )
      self.assertEqual(report.inserted_items, {testing.TABLE: len(expected)})
      self._assert_items(client, expected)

  @parameterized.named_parameters(
      ('pairs', _ADD, dict(), [4, 0, 4], 2),
      ('single_steps', _ADD, dict(sequence_length=1), [4, 1, 4], 1),
      ('crossing', _SEQUENCES, dict(), [9], 2),
      ('episodes', _EPISODES, dict(max_sequence_length=4), [4, 1, 4], None),
      (
          'bypassed',
          _EPISODES,
          dict(max_sequence_length=3, bypass_partial_episodes=True),
          [0, 1, 0],
          None,
      ),
  )
  def test_items_of_observers(self, observer_class, settings, runs, length):
    # What an item is cut from: runs of the 9 frames of truncated(4), single(1)
    # and complete(4).
    data = golden.stacked(_ROW_OF_THREE)
    frames = _frames_of(_ROW_OF_THREE)
    if runs == [9]:
      frames = [sum(frames, [])]
    expected = []
    for run, of_run in zip(runs, frames):
      if run:
        expected += _windows(of_run, length or run)
    with _observed(data, observer_class, **settings) as (client, observer):
      self.assertEqual(self._push(data, observer), 9)
      self._assert_items(client, expected)

  def test_padded_items(self):
    data = golden.stacked(_ROW_OF_THREE)
    with _observed(data, pad_end_of_episodes=True) as (client, observer):
      self.assertEqual(self._push(data, observer), 9)
      items = testing.drain(client)
    self.assertLen(items, 7)
    first, second = items[3]
    self.assertEqual([first.step_type, second.step_type], [2, 2])
    self.assertEqual([first.next_step_type, second.next_step_type], [2, 0])
    self.assertAllEqual(second.observation, [0, 0])

  @parameterized.parameters(*golden.FORMS)
  def test_an_error_in_the_seventh_episode(self, form):
    fault = _FAULTS['terminal_before_last']
    good = [golden.COMPLETE, golden.TRUNCATED] * 3
    data = golden.FORMS[form](good + [fault.episode] + good[:3])
    with _observed(data) as (client, observer):
      with self.assertRaisesRegex(
          tf.errors.InvalidArgumentError,
          f'{fault.sentence} Found at {golden.place(6, fault.step)}',
      ):
        self._push(data, observer)
      self._push(golden.stacked([golden.COMPLETE]), observer)
      self._assert_items(client, _pairs(good + [golden.COMPLETE]))

  @parameterized.parameters(
      (
          _SEQUENCES,
          {},
          [golden.TRUNCATED, _FAULTS['first_alone'].episode],
          golden.COMPLETE,
          _pairs([golden.TRUNCATED, golden.COMPLETE]),
      ),
      (
          _EPISODES,
          {'max_sequence_length': 3},
          _ROW_OF_THREE,
          golden.SINGLE_TERMINAL,
          [golden.expected_frames([golden.SINGLE_TERMINAL])],
      ),
  )
  def test_an_observer_can_be_used_after_an_error(
      self, observer_class, settings, wrong, right, expected
  ):
    data = golden.stacked(wrong)
    with _observed(data, observer_class, **settings) as (client, observer):
      with self.assertRaises((ValueError, tf.errors.InvalidArgumentError)):
        self._push(data, observer)
      self._push(golden.stacked([right]), observer)
      self._assert_items(client, expected)

  def test_skipped_episodes_leave_nothing_and_are_reported(self):
    bad = [_FAULTS[name].episode for name in ('stops_at_mid', 'empty')]
    good = [golden.COMPLETE, golden.TRUNCATED]
    data = golden.stacked([bad[0], good[0], bad[1], good[1]])
    report = report_lib.ConversionReport()
    with _observed(data) as (client, observer):
      with self.assertLogs(level='WARNING') as logs:
        pushed = self._push(data, observer, rules=_SKIP, report=report)
      self.assertEqual(pushed, 8)
      self.assertIn('Skipped 2 invalid', str(logs.output))
      self.assertEqual([e.episode for e in report.skipped_episodes], [0, 2])
      self._assert_items(client, _pairs(good))
      self.assertEqual(self._push(data.take(1), observer, rules=_SKIP), 0)

  def test_no_episodes(self):
    data = golden.stacked([golden.COMPLETE]).take(0)
    with _observed(data) as (_, observer):
      with self.assertRaisesRegex(ValueError, 'No dataset representing RLDS'):
        self._push(data, observer)
      self.assertEqual(self._push(data, observer, rules=_STREAM), 0)

  def test_policy_info_that_does_not_fit(self):
    data = golden.stacked([golden.TRUNCATED])
    other = lambda current, _: current['reward']
    with _observed(data) as (client, observer):
      # TF-Agents calls the function whether or not the table has policy_info.
      with self.assertRaisesRegex(TypeError, 'positional argument'):
        self._push(data, observer, lambda current: current['reward'])
      self.assertEqual(testing.size(client), 0)
      with self.assertLogs(level='WARNING') as logs:
        self._push(data, observer, _policy_info)
      self.assertIn('has no policy_info', logs.output[0])
      self._assert_items(client, _pairs([golden.TRUNCATED]))
    with _observed(data, info=_policy_info) as (_, observer):
      with self.assertRaises(specs.SpecMismatchError):
        self._push(data, observer, other)

  def test_any_callable_with_the_interface(self):
    episodes = [golden.TRUNCATED, golden.COMPLETE]
    data = golden.stacked(episodes)
    frames, calls = [], []

    class Recorder:

      def __call__(self, frame):
        frames.append(frame)

      def get_table_signature(self):
        return tensor_spec.add_outer_dim(
            specs.create_trajectory_data_spec(data)
        )

      def flush(self):
        calls.append('flush')

      def reset(self, write_cached_steps=True):
        calls.append(write_cached_steps)

    self.assertEqual(self._push(data, Recorder()), 8)
    self.assertIsInstance(frames[0], trajectory.Trajectory)
    self.assertTrue(all(map(tf.is_tensor, tf.nest.flatten(frames))))
    golden.assert_frames_equal(
        self,
        [tf.nest.map_structure(lambda leaf: leaf.numpy(), f) for f in frames],
        golden.expected_frames(episodes),
    )
    bad = golden.stacked([_FAULTS['first_alone'].episode])
    with self.assertRaises(tf.errors.InvalidArgumentError):
      self._push(bad, Recorder())
    self.assertEqual(calls, ['flush', False])
    with self.assertRaisesRegex(
        TypeError,
        'reverb_observer must have __call__, get_table_signature, flush,'
        ' reset, but .*print> has no get_table_signature, flush, reset.'
        ' write_rlds_to_reverb takes a server',
    ):
      self._push(data, print)

  def test_which_way_is_taken(self):
    data = golden.stacked([golden.TRUNCATED])
    [frames] = _frames_of([golden.TRUNCATED])
    options = options_lib.ConversionOptions
    with _observed(data) as (client, observer):
      for kwargs, message in (
          ({'options': options(identity='a')}, 'go with the bulk way'),
          ({'options': options(episode_id='a')}, 'go with the bulk way'),
          ({'method': 'fast'}, "must be one of 'auto'"),
      ):
        with self.assertRaisesRegex(ValueError, message):
          push.push_rlds_to_reverb(
              data, observer, **{'method': 'observer', **kwargs}
          )
      with self.assertRaisesRegex(ValueError, 'is not known'):
        push.push_rlds_to_reverb(data, lambda frame: None, method='bulk')
      observer(frames[0])  # of an episode that goes on
      with self.assertRaisesRegex(ValueError, 'unfinished episode'):
        push.push_rlds_to_reverb(data, observer, method='bulk')
      push.push_rlds_to_reverb(data, observer)
      self._assert_items(client, _windows([frames[0], *frames]))


class PushFrameByFrameTest(PushTest):
  """Of the same through the observers' own calls."""

  method = 'observer'


if __name__ == '__main__':
  tf.test.main()
