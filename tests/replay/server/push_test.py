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
from rlds2reverb.trajectories import rules as rules_lib
from rlds2reverb.trajectories import specs
from tests import golden
from tests import testing

_ROW_OF_THREE = golden.CASES['truncated_single_complete'].episodes
_FAULTS = golden.INVALID_CASES
_ADD = reverb_utils.ReverbAddTrajectoryObserver
_EPISODES = reverb_utils.ReverbAddEpisodeObserver
_SEQUENCES = reverb_utils.ReverbTrajectorySequenceObserver
_SKIP = rules_lib.ConversionRules(invalid_episodes='skip')
_STREAM = rules_lib.ConversionRules(validation='tf_agents')


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
  with testing.reverb_server(data, info) as client:
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


def _check_items(test, client, expected):
  items = testing.drain(client)
  test.assertEqual(list(map(len, items)), list(map(len, expected)))
  golden.assert_frames_equal(test, sum(items, []), sum(expected, []))


class PushTest(parameterized.TestCase, tf.test.TestCase):
  """Of the way that is taken unless another is asked for."""

  method = 'auto'

  def push(self, data, observer, info=None, **options):
    options = options_lib.ConversionOptions(**options)
    return push.push_rlds_to_reverb(
        data, observer, info, options=options, method=self.method
    )

  def test_what_is_in_the_table_is_what_went_in(self):
    rng = np.random.default_rng(1)
    episodes = golden.random_episodes(rng, 6, nested_fields=True)
    data = golden.nested(episodes)
    expected = _pairs(episodes, _policy_info)
    report = report_lib.ConversionReport()
    with _observed(data, info=_policy_info) as (client, observer):
      self.assertEqual(
          self.push(data, observer, _policy_info, report=report),
          sum(map(golden.length_of, episodes)),
      )
      self.assertEqual(report.inserted_items, {testing.TABLE: len(expected)})
      _check_items(self, client, expected)

  @parameterized.named_parameters(
      ('pairs', _ADD, {}, [4, 0, 4], 2),
      ('single_steps', _ADD, {'sequence_length': 1}, [4, 1, 4], 1),
      ('crossing', _SEQUENCES, {}, [9], 2),
      ('episodes', _EPISODES, {'max_sequence_length': 4}, [4, 1, 4], None),
      (
          'bypassed',
          _EPISODES,
          {'max_sequence_length': 3, 'bypass_partial_episodes': True},
          [0, 1, 0],
          None,
      ),
      ('padded', _ADD, {'pad_end_of_episodes': True}, [4, 2, 4], 2),
  )
  def test_items_of_observers(self, observer_class, settings, runs, length):
    # What an item is cut from: runs of the 9 frames of truncated(4), single(1)
    # and complete(4); the single one may be padded.
    data = golden.stacked(_ROW_OF_THREE)
    frames = _frames_of(_ROW_OF_THREE)
    if runs == [9]:
      frames = [sum(frames, [])]
    if runs[1:2] == [2]:
      zeros = tf.nest.map_structure(np.zeros_like, frames[1][0])
      frames[1].append(zeros._replace(step_type=np.int32(2)))
    expected = []
    for run, of_run in zip(runs, frames):
      if run:
        expected += _windows(of_run, length or run)
    with _observed(data, observer_class, **settings) as (client, observer):
      self.assertEqual(self.push(data, observer), 9)
      _check_items(self, client, expected)

  @parameterized.parameters(
      (
          _ADD,
          'terminal_before_last',
          f'{golden.TERMINAL_NOT_LAST} Found at episode 2',
      ),
      (_SEQUENCES, 'first_alone', 'Found at episode 2'),
      (_EPISODES, '', ''),
  )
  def test_an_observer_can_be_used_after_an_error(self, kind, fault, message):
    wrong = [golden.SINGLE_TRUNCATED, golden.SINGLE_TERMINAL, golden.COMPLETE]
    right, settings = golden.SINGLE_TRUNCATED, {'max_sequence_length': 3}
    items_of = _frames_of
    if fault:
      wrong = [golden.COMPLETE, golden.TRUNCATED, _FAULTS[fault].episode]
      right, settings, items_of = golden.COMPLETE, {}, _pairs
    expected = items_of(wrong[:2]) + items_of([right])
    if kind is _SEQUENCES:
      expected.insert(3, [_frames_of(wrong[:2])[0][-1], expected[3][0]])
    with _observed(golden.stacked(wrong), kind, **settings) as (
        client,
        observer,
    ):
      with self.assertRaisesRegex(
          (ValueError, tf.errors.InvalidArgumentError), message
      ):
        self.push(golden.stacked(wrong), observer)
      self.push(golden.stacked([right]), observer)
      _check_items(self, client, expected)

  def test_episodes_that_are_skipped_or_missing(self):
    bad = [_FAULTS[name].episode for name in ('stops_at_mid', 'empty')]
    good = [golden.COMPLETE, golden.TRUNCATED]
    data = golden.stacked([bad[0], good[0], bad[1], good[1]])
    report = report_lib.ConversionReport()
    with _observed(data) as (client, observer):
      with self.assertLogs(level='WARNING') as logs:
        pushed = self.push(data, observer, rules=_SKIP, report=report)
      self.assertEqual(pushed, 8)
      self.assertIn('Skipped 2 invalid', str(logs.output))
      self.assertEqual([e.episode for e in report.skipped_episodes], [0, 2])
      _check_items(self, client, _pairs(good))
      self.assertEqual(self.push(data.take(1), observer, rules=_SKIP), 0)
      with self.assertRaisesRegex(ValueError, 'No dataset representing RLDS'):
        self.push(data.take(0), observer)
      self.assertEqual(self.push(data.take(0), observer, rules=_STREAM), 0)

  def test_policy_info_that_does_not_fit(self):
    data = golden.stacked([golden.TRUNCATED])
    other = lambda current, _: current['reward']
    with _observed(data) as (client, observer):
      # TF-Agents calls the function whether or not the table has policy_info.
      with self.assertRaisesRegex(TypeError, 'positional argument'):
        self.push(data, observer, lambda current: current['reward'])
      with self.assertLogs(level='WARNING') as logs:
        self.push(data, observer, _policy_info)
      self.assertIn('has no policy_info', logs.output[0])
      _check_items(self, client, _pairs([golden.TRUNCATED]))
    with _observed(data, info=_policy_info) as (_, observer):
      with self.assertRaises(specs.SpecMismatchError):
        self.push(data, observer, other)


class PushFrameByFrameTest(PushTest):
  """Of the same through the observers' own calls."""

  method = 'observer'


class OtherObserversTest(tf.test.TestCase):

  def test_any_callable_with_the_interface(self):
    episodes = [golden.TRUNCATED, golden.COMPLETE]
    data = golden.stacked(episodes)
    frames, calls = [], []

    class Recorder:

      def __call__(self, frame):
        frames.append(frame)

      def get_table_signature(self):
        return testing.signature_of(data)

      def flush(self):
        calls.append('flush')

      def reset(self, write_cached_steps=True):
        calls.append(write_cached_steps)

    self.assertEqual(push.push_rlds_to_reverb(data, Recorder()), 8)
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
    with self.assertRaisesRegex(ValueError, 'are trajectories already'):
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

  def test_which_way_is_taken(self):
    data = golden.stacked([golden.TRUNCATED])
    [frames] = _frames_of([golden.TRUNCATED])
    options = options_lib.ConversionOptions
    with _observed(data) as (client, observer):
      for observed, kwargs, message in (
          (observer, {'options': options(identity='a')}, 'with the bulk way'),
          (observer, {'options': options(episode_id='a')}, 'the bulk way'),
          (observer, {'method': 'fast'}, "must be one of 'auto'"),
          (lambda frame: None, {'method': 'bulk'}, 'is not known'),
      ):
        with self.assertRaisesRegex(ValueError, message):
          push.push_rlds_to_reverb(
              data, observed, **{'method': 'observer', **kwargs}
          )
      observer(frames[0])  # of an episode that goes on
      with self.assertRaisesRegex(ValueError, 'unfinished episode'):
        push.push_rlds_to_reverb(data, observer, method='bulk')
      push.push_rlds_to_reverb(data, observer)
      _check_items(self, client, _windows([frames[0], *frames]))


if __name__ == '__main__':
  tf.test.main()
