"""Tests of pushing RLDS data into a real Reverb server."""

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


def _pair_observer(client, **kwargs):
  return reverb_utils.ReverbAddTrajectoryObserver(
      client, testing.TABLE, sequence_length=2, **kwargs
  )


def _policy_info(current, following):
  return {
      'next_action': following['action'],
      'is_last': (current['is_last'], current['reward'] + following['reward']),
  }


def _server(data, **kwargs):
  return testing.reverb_server(
      specs.create_trajectory_data_spec(data), **kwargs
  )


def _windows(frames, length):
  return [frames[i : i + length] for i in range(len(frames) - length + 1)]


class PushTest(parameterized.TestCase, tf.test.TestCase):
  """Of the way that is taken unless another is asked for."""

  method = 'auto'

  def _push(self, *args, **kwargs):
    return push.push_rlds_to_reverb(*args, method=self.method, **kwargs)

  def _assert_items(self, client, expected):
    items = testing.drain(client)
    self.assertLen(items, len(expected))
    for item, frames in zip(items, expected):
      golden.assert_frames_equal(self, item, frames)

  @parameterized.product(
      form=list(golden.FORMS), nested_fields=[False, True], info=[False, True]
  )
  @pytest.mark.few(3)
  def test_what_is_in_the_table_is_what_went_in(
      self, form, nested_fields, info
  ):
    episodes = golden.random_episodes(
        np.random.default_rng(1), 6, nested_fields=nested_fields
    )
    policy_info_fn = _policy_info if info else None
    data = golden.FORMS[form](episodes)
    expected = []
    for frames in self._frames_by_episode(episodes, policy_info_fn):
      expected += _windows(frames, 2)
    spec = specs.create_trajectory_data_spec(data, policy_info_fn)
    with testing.reverb_server(spec) as client:
      observer = _pair_observer(client)
      report = report_lib.ConversionReport()
      pushed = self._push(
          data,
          observer,
          policy_info_fn,
          options=options_lib.ConversionOptions(report=report),
      )
      self.assertEqual(pushed, sum(map(golden.length_of, episodes)))
      self.assertEqual(report.inserted_items, {testing.TABLE: len(expected)})
      self._assert_items(client, expected)
      observer.close()

  def _frames_by_episode(self, episodes, policy_info_fn=None):
    frames = golden.expected_frames(episodes, policy_info=policy_info_fn)
    for episode in episodes:
      length = golden.length_of(episode)
      yield frames[:length]
      frames = frames[length:]

  @parameterized.named_parameters(
      ('pairs', _ADD, dict(sequence_length=2), [4, 0, 4], 2),
      ('single_steps', _ADD, dict(sequence_length=1), [4, 1, 4], 1),
      ('crossing', _SEQUENCES, dict(sequence_length=2), [9], 2),
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
    frames = golden.expected_frames(_ROW_OF_THREE)
    sizes = [9] if runs == [9] else [4, 1, 4]
    expected, begin = [], 0
    for run, size in zip(runs, sizes):
      if run:
        expected += _windows(frames[begin : begin + size], length or size)
      begin += size
    with _server(data) as client:
      observer = observer_class(client, testing.TABLE, **settings)
      self.assertEqual(self._push(data, observer), 9)
      self._assert_items(client, expected)
      observer.close()

  def test_padded_items(self):
    data = golden.stacked(_ROW_OF_THREE)
    with _server(data) as client:
      observer = _pair_observer(client, pad_end_of_episodes=True)
      self.assertEqual(self._push(data, observer), 9)
      items = testing.drain(client)
      self.assertLen(items, 7)
      first, second = items[3]
      self.assertEqual([first.step_type, second.step_type], [2, 2])
      self.assertEqual([first.next_step_type, second.next_step_type], [2, 0])
      self.assertAllEqual(second.observation, [0, 0])
      observer.close()

  def test_episode_observer_raises_and_can_be_used_again(self):
    single = [golden.SINGLE_TERMINAL]
    with _server(golden.stacked(single)) as client:
      observer = _EPISODES(client, testing.TABLE, max_sequence_length=3)
      with self.assertRaisesRegex(ValueError, 'max_sequence_length'):
        self._push(golden.stacked(_ROW_OF_THREE), observer)
      observer.reset()
      self.assertEqual(testing.size(client), 0)
      self._push(golden.stacked(single), observer)
      self._assert_items(client, [golden.expected_frames(single)])
      observer.close()

  @parameterized.parameters(*golden.FORMS)
  def test_an_error_in_the_seventh_episode(self, form):
    fault = golden.INVALID_CASES['terminal_before_last']
    good = [golden.COMPLETE, golden.TRUNCATED] * 3
    episodes = good + [fault.episode] + good[:3]
    data = golden.FORMS[form](episodes)
    before = [
        pair
        for frames in self._frames_by_episode(good)
        for pair in _windows(frames, 2)
    ]
    after = _windows(golden.expected_frames([golden.COMPLETE]), 2)
    with _server(data) as client:
      observer = _pair_observer(client)
      with self.assertRaisesRegex(
          tf.errors.InvalidArgumentError,
          f'{fault.sentence} Found at {golden.place(6, fault.step)}',
      ):
        self._push(data, observer)
      self._push(golden.stacked([golden.COMPLETE]), observer)
      self._assert_items(client, before + after)
      observer.close()

  def test_an_error_does_not_join_two_pushes(self):
    data = golden.stacked(
        [golden.TRUNCATED, golden.INVALID_CASES['first_alone'].episode]
    )
    with _server(data) as client:
      observer = reverb_utils.ReverbTrajectorySequenceObserver(
          client, testing.TABLE, sequence_length=2
      )
      with self.assertRaises(tf.errors.InvalidArgumentError):
        self._push(data, observer)
      self._push(golden.stacked([golden.COMPLETE]), observer)
      self._assert_items(
          client,
          _windows(golden.expected_frames([golden.TRUNCATED]), 2)
          + _windows(golden.expected_frames([golden.COMPLETE]), 2),
      )
      observer.close()

  def test_skipped_episodes_leave_nothing_and_are_reported(self):
    names = ['stops_at_mid', 'discount_above_one', 'empty']
    bad = [golden.INVALID_CASES[name] for name in names]
    data = golden.stacked(
        [
            bad[0].episode,
            golden.COMPLETE,
            bad[1].episode,
            golden.TRUNCATED,
            bad[2].episode,
        ]
    )
    good = [golden.COMPLETE, golden.TRUNCATED]
    with _server(data) as client:
      observer = _pair_observer(client)
      report = report_lib.ConversionReport()
      with self.assertLogs(level='WARNING') as logs:
        pushed = self._push(
            data,
            observer,
            options=options_lib.ConversionOptions(_SKIP, report=report),
        )
      self.assertEqual(pushed, 8)
      self.assertLen(
          [line for line in logs.output if 'Skipped 3 invalid' in line], 1
      )
      self.assertEqual(
          [skipped.episode for skipped in report.skipped_episodes], [0, 2, 4]
      )
      for skipped, fault in zip(report.skipped_episodes, bad):
        self.assertStartsWith(skipped.reason, fault.sentence)
        self.assertIn(golden.place(skipped.episode, fault.step), skipped.reason)
      self._assert_items(
          client,
          [
              pair
              for frames in self._frames_by_episode(good)
              for pair in _windows(frames, 2)
          ],
      )
      observer.close()

  def test_nothing_but_skipped_episodes(self):
    data = golden.stacked([golden.INVALID_CASES['first_alone'].episode])
    with _server(data) as client:
      observer = _pair_observer(client)
      self.assertEqual(
          self._push(
              data, observer, options=options_lib.ConversionOptions(_SKIP)
          ),
          0,
      )
      observer.close()

  def test_no_episodes(self):
    data = golden.stacked([golden.COMPLETE]).take(0)
    with _server(data) as client:
      observer = _pair_observer(client)
      with self.assertRaisesRegex(ValueError, 'No dataset representing RLDS'):
        self._push(data, observer)
      self.assertEqual(
          self._push(
              data, observer, options=options_lib.ConversionOptions(_STREAM)
          ),
          0,
      )
      observer.close()

  def test_names_and_bounds_may_differ(self):
    data = golden.stacked([golden.TRUNCATED])
    spec = specs.create_trajectory_data_spec(data)
    spec = spec._replace(
        observation=tensor_spec.BoundedTensorSpec(
            [2], tf.float32, -1, 1, 'state'
        ),
        discount=tf.TensorSpec([], tf.float32, 'gamma'),
    )
    with testing.reverb_server(spec) as client:
      observer = _pair_observer(client)
      self.assertEqual(self._push(data, observer), 4)
      observer.close()

  def test_policy_info_that_the_table_lacks_is_left_out(self):
    data = golden.stacked([golden.TRUNCATED])
    with _server(data) as client:
      observer = _pair_observer(client)
      with self.assertLogs(level='WARNING') as logs:
        self._push(data, observer, _policy_info)
      self.assertIn('has no policy_info', logs.output[0])
      self._assert_items(
          client, _windows(golden.expected_frames([golden.TRUNCATED]), 2)
      )
      observer.close()

  def test_a_policy_info_fn_of_another_arity_is_an_error(self):
    # TF-Agents calls the function whether or not the table has policy_info.
    data = golden.stacked([golden.TRUNCATED])
    with _server(data) as client:
      observer = _pair_observer(client)
      with self.assertRaisesRegex(TypeError, 'positional argument'):
        self._push(data, observer, lambda current: current['reward'])
      self.assertEqual(testing.size(client), 0)
      observer.close()

  def test_other_policy_info_is_an_error(self):
    data = golden.stacked([golden.TRUNCATED])
    spec = specs.create_trajectory_data_spec(data, _policy_info)
    with testing.reverb_server(spec) as client:
      observer = _pair_observer(client)
      with self.assertRaises(specs.SpecMismatchError):
        self._push(data, observer, lambda current, _: current['reward'])
      observer.close()

  def test_any_callable_with_the_interface(self):
    data = golden.stacked([golden.TRUNCATED, golden.COMPLETE])

    class Recorder:

      def __init__(self):
        self.frames = []
        self.flushes = 0
        self.resets = []

      def __call__(self, frame):
        self.frames.append(frame)

      def get_table_signature(self):
        return tensor_spec.add_outer_dim(
            specs.create_trajectory_data_spec(data)
        )

      def flush(self):
        self.flushes += 1

      def reset(self, write_cached_steps=True):
        self.resets.append(write_cached_steps)

    recorder = Recorder()
    self.assertEqual(self._push(data, recorder), 8)
    self.assertIsInstance(recorder.frames[0], trajectory.Trajectory)
    self.assertTrue(all(map(tf.is_tensor, tf.nest.flatten(recorder.frames))))
    golden.assert_frames_equal(
        self,
        [
            tf.nest.map_structure(lambda x: x.numpy(), f)
            for f in recorder.frames
        ],
        golden.expected_frames([golden.TRUNCATED, golden.COMPLETE]),
    )
    self.assertEqual(recorder.flushes, 1)
    self.assertEmpty(recorder.resets)

    bad = golden.stacked([golden.INVALID_CASES['first_alone'].episode])
    with self.assertRaises(tf.errors.InvalidArgumentError):
      self._push(bad, recorder)
    self.assertEqual(recorder.resets, [False])

  def test_an_observer_needs_methods(self):
    data = golden.stacked([golden.TRUNCATED])
    for method in 'auto', 'observer':
      with self.assertRaisesRegex(
          TypeError,
          'reverb_observer must have __call__, get_table_signature, flush,'
          ' reset, but .*print> has no get_table_signature, flush, reset.'
          ' write_rlds_to_reverb takes a server',
      ):
        push.push_rlds_to_reverb(data, print, method=method)
    with self.assertRaisesRegex(TypeError, 'has no __call__, get_table'):
      push.push_rlds_to_reverb(data, 'localhost:1')

  def test_auto_goes_by_the_state_of_the_observer(self):
    data = golden.stacked([golden.TRUNCATED])
    frames = golden.expected_frames([golden.TRUNCATED])
    with _server(data) as client:
      observer = _pair_observer(client)
      observer(frames[0])  # of an episode that goes on
      with self.assertRaisesRegex(ValueError, 'unfinished episode'):
        push.push_rlds_to_reverb(data, observer, method='bulk')
      push.push_rlds_to_reverb(data, observer)
      self._assert_items(client, _windows([frames[0], *frames], 2))
      observer.close()

  def test_settings_of_the_bulk_way_alone(self):
    data = golden.stacked([golden.TRUNCATED])
    with _server(data) as client:
      observer = _pair_observer(client)
      for settings in (
          {'options': options_lib.ConversionOptions(identity='a')},
          {'options': options_lib.ConversionOptions(episode_id='a')},
      ):
        with self.assertRaisesRegex(ValueError, 'go with the bulk way'):
          push.push_rlds_to_reverb(
              data, observer, method='observer', **settings
          )
      with self.assertRaisesRegex(ValueError, "must be one of 'auto'"):
        push.push_rlds_to_reverb(data, observer, method='fast')
      with self.assertRaisesRegex(ValueError, 'is not known'):
        push.push_rlds_to_reverb(data, lambda frame: None, method='bulk')
      self.assertEqual(testing.size(client), 0)
      observer.close()


class PushFrameByFrameTest(PushTest):
  """Of the same through the observers' own calls."""

  method = 'observer'


if __name__ == '__main__':
  tf.test.main()
