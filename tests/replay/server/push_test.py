"""Tests of pushing RLDS data into a real Reverb server."""

import contextlib

from absl.testing import parameterized
import numpy as np
import tensorflow as tf
from tf_agents.replay_buffers import reverb_utils
from tf_agents.trajectories import trajectory

from rlds2reverb.replay.server import push
from rlds2reverb.trajectories import conversion
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import report as report_lib
from rlds2reverb.trajectories import specs
from tests import golden
from tests import reverb_testing

_FAULTS = golden.INVALID_CASES
_ADD = reverb_utils.ReverbAddTrajectoryObserver
_EPISODES = reverb_utils.ReverbAddEpisodeObserver
_SEQUENCES = reverb_utils.ReverbTrajectorySequenceObserver
_SKIP = options_lib.ConversionRules(invalid_episodes='skip')
_STREAM = options_lib.ConversionRules(validation='tf_agents')


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
  with reverb_testing.reverb_server(data, info) as client:
    observer = observer_class(client, reverb_testing.TABLE, **settings)
    yield client, observer
    observer.close()


def _windows(frames, length=2):
  return [frames[i : i + length] for i in range(len(frames) - length + 1)]


def _frames_of(episodes):
  """Returns the frames of each episode."""
  frames = golden.expected_frames(episodes)
  ends = np.cumsum([0, *map(golden.length_of, episodes)])
  return [frames[begin:end] for begin, end in zip(ends, ends[1:])]


def _pairs(episodes):
  return sum(map(_windows, _frames_of(episodes)), [])


def _check_items(test, client, expected):
  items = reverb_testing.drain(client)
  test.assertEqual(list(map(len, items)), list(map(len, expected)))
  golden.assert_frames_equal(test, sum(items, []), sum(expected, []))


def _push(method, data, observer, info=None, **options):
  return push.push_rlds_to_reverb(
      data,
      observer,
      info,
      options=options_lib.ConversionOptions(**options),
      method=method,
  )


class PushTest(parameterized.TestCase, tf.test.TestCase):
  """Arguments and effects of a push. `bulk_test` compares the contents."""

  @parameterized.parameters(
      (
          'auto',
          _ADD,
          'terminal_before_last',
          f'{golden.TERMINAL_NOT_LAST} Found at episode 2',
      ),
      ('observer', _SEQUENCES, 'first_alone', 'Found at episode 2'),
      ('auto', _EPISODES, '', ''),
      ('observer', _EPISODES, '', ''),
  )
  def test_an_observer_can_be_used_after_an_error(
      self, method, kind, fault, message
  ):
    invalid = [golden.SINGLE_TRUNCATED, golden.SINGLE_TERMINAL, golden.COMPLETE]
    right, settings = golden.SINGLE_TRUNCATED, {'max_sequence_length': 3}
    items_of = _frames_of
    if fault:
      invalid = [golden.COMPLETE, golden.TRUNCATED, _FAULTS[fault].episode]
      right, settings, items_of = golden.COMPLETE, {}, _pairs
    expected = items_of(invalid[:2]) + items_of([right])
    if kind is _SEQUENCES:
      expected.insert(3, [_frames_of(invalid[:2])[0][-1], expected[3][0]])
    with _observed(golden.stacked(invalid), kind, **settings) as (
        client,
        observer,
    ):
      with self.assertRaisesRegex(
          (ValueError, tf.errors.InvalidArgumentError), message
      ):
        _push(method, golden.stacked(invalid), observer)
      _push(method, golden.stacked([right]), observer)
      _check_items(self, client, expected)

  @parameterized.parameters('auto', 'observer')
  def test_episodes_that_are_skipped_or_missing(self, method):
    bad = [_FAULTS[name].episode for name in ('stops_at_mid', 'empty')]
    good = [golden.COMPLETE, golden.TRUNCATED]
    data = golden.stacked([bad[0], good[0], bad[1], good[1]])
    report = report_lib.ConversionReport()
    with _observed(data) as (client, observer):
      with self.assertLogs(level='WARNING') as logs:
        pushed = _push(method, data, observer, rules=_SKIP, report=report)
      self.assertEqual(pushed, 8)
      self.assertIn('Skipped 2 invalid', str(logs.output))
      self.assertEqual([e.episode for e in report.skipped_episodes], [0, 2])
      self.assertEqual(report.inserted_items, {reverb_testing.TABLE: 6})
      _check_items(self, client, _pairs(good))
      self.assertEqual(_push(method, data.take(1), observer, rules=_SKIP), 0)
      with self.assertRaisesRegex(ValueError, 'No dataset representing RLDS'):
        _push(method, data.take(0), observer)
      self.assertEqual(_push(method, data.take(0), observer, rules=_STREAM), 0)

  @parameterized.parameters('auto', 'observer')
  def test_policy_info_that_does_not_fit(self, method):
    data = golden.stacked([golden.TRUNCATED])
    other = lambda current, _: current['reward']
    with _observed(data) as (client, observer):
      # TF-Agents calls the function whether or not the table has policy_info.
      with self.assertRaisesRegex(TypeError, 'positional argument'):
        _push(method, data, observer, lambda current: current['reward'])
      with self.assertLogs(level='WARNING') as logs:
        _push(method, data, observer, _policy_info)
      self.assertIn('has no policy_info', logs.output[0])
      _check_items(self, client, _pairs([golden.TRUNCATED]))
    with _observed(data, info=_policy_info) as (_, observer):
      with self.assertRaises(specs.SpecMismatchError):
        _push(method, data, observer, other)


class OtherObserversTest(tf.test.TestCase):

  def test_any_callable_with_the_interface(self):
    episodes = golden.CASES['truncated_single_complete'].episodes
    data = golden.stacked(episodes)
    frames, calls = [], []

    class Recorder:

      def __call__(self, frame):
        frames.append(frame)

      def get_table_signature(self):
        return reverb_testing.signature_of(data)

      def flush(self):
        calls.append('flush')

      def reset(self, write_cached_steps=True):
        calls.append(write_cached_steps)

    self.assertEqual(push.push_rlds_to_reverb(data, Recorder()), 9)
    self.assertIsInstance(frames[0], trajectory.Trajectory)
    self.assertTrue(all(map(tf.is_tensor, tf.nest.flatten(frames))))
    golden.assert_frames_equal(
        self,
        [tf.nest.map_structure(lambda leaf: leaf.numpy(), f) for f in frames],
        golden.expected_frames(episodes),
    )
    bad = golden.stacked([_FAULTS['first_alone'].episode])
    with self.assertRaises(tf.errors.InvalidArgumentError):
      push.push_rlds_to_reverb(bad, Recorder())
    self.assertEqual(calls, ['flush', False])
    with self.assertRaisesRegex(ValueError, 'already has trajectories'):
      push.push_rlds_to_reverb(
          conversion.convert_rlds_to_trajectories(data), Recorder()
      )
    with self.assertRaisesRegex(
        TypeError,
        'reverb_observer must have __call__, get_table_signature, flush,'
        ' reset, but .*print> has no get_table_signature, flush, reset.'
        ' write_rlds_to_reverb takes a server',
    ):
      push.push_rlds_to_reverb(data, print)

  def test_choice_of_the_method(self):
    data = golden.stacked([golden.TRUNCATED])
    [frames] = _frames_of([golden.TRUNCATED])
    options = options_lib.ConversionOptions
    with _observed(data) as (client, observer):
      for observed, kwargs, message in (
          (observer, {'options': options(identity='a')}, 'written in bulk'),
          (observer, {'options': options(episode_id='a')}, 'written in bulk'),
          (observer, {'method': 'fast'}, "must be one of 'auto'"),
          (lambda frame: None, {'method': 'bulk'}, 'are unknown'),
      ):
        with self.assertRaisesRegex(ValueError, message):
          push.push_rlds_to_reverb(
              data, observed, **{'method': 'observer', **kwargs}
          )
      observer(frames[0])  # of an episode that continues
      with self.assertRaisesRegex(ValueError, 'unfinished episode'):
        push.push_rlds_to_reverb(data, observer, method='bulk')
      push.push_rlds_to_reverb(data, observer)
      _check_items(self, client, _windows([frames[0], *frames]))


if __name__ == '__main__':
  tf.test.main()
