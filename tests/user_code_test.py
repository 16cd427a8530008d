"""Functions of users, which may have an `if` that depends on a tensor.

AutoGraph rewrites them in graphs, wherever the library takes one. It leaves the
functions of the library as they are.
"""

import dataclasses

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf

import rlds2reverb
from rlds2reverb import fields
from rlds2reverb import transforms
from rlds2reverb import windows
from tests import call_modes
from tests import golden

_REWARD = call_modes.FIVE['reward']


def _doubled(steps):
  reward = steps['reward']
  if tf.reduce_sum(reward) > 0:
    reward *= 2
  return reward


def _is_good(steps):
  good = False
  if tf.reduce_sum(steps['reward']) > 0:
    good = True
  return good


@dataclasses.dataclass(frozen=True, eq=False)
class _Double(transforms.EpisodeTransform):

  def transform(self, steps):
    return {**steps, 'reward': _doubled(steps)}

  def invert(self, steps):
    return self.transform(steps)


@dataclasses.dataclass(frozen=True, eq=False)
class _DoubleRows(transforms.EpisodeTransform):

  def transform_rows(self, steps, rows):
    return {**steps, 'reward': _doubled(steps)}


@dataclasses.dataclass(frozen=True, eq=False)
class _KeepGood(transforms.EpisodeFilter):

  def keep(self, episode):
    return _is_good(episode['steps'])


def _double_episode(episode):
  return {**episode, 'steps': _Double().transform(episode['steps'])}


def _nothing_of_the_good(steps):
  nothing = steps['reward'] < 0
  if _is_good(steps):
    nothing = steps['reward'] > np.inf
  return nothing


def _double_rows(rows):
  reward = _doubled(rows.columns)
  return rows._replace(columns={**rows.columns, 'reward': reward})


def _doubled_item(frames):
  return _doubled(frames._asdict())


def _all_of(*operations):
  return lambda data: transforms.transform_episodes(data, operations)


def _rewards_of(data):
  return [np.ravel(episode['steps']['reward']) for episode in data]


_COMPOSED = transforms.Compose([_Double(), _DoubleRows()])
_NO_OPS = transforms.DropNoOps(predicate=_nothing_of_the_good)
_KEEP = transforms.KeepEpisodes(
    predicate=lambda episode: _is_good(episode['steps'])
)
_MAPPING = fields.StepMapping(reward=lambda episode: _doubled(episode['steps']))


class UserCodeTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('transform', _all_of(_Double()), 2),
      ('transform_rows', _all_of(_DoubleRows()), 2),
      ('function', _all_of(_double_episode), 2),
      ('keep', _all_of(_KeepGood()), 1),
      ('predicate', _all_of(_KEEP), 1),
      ('predicate_of_steps', _all_of(_NO_OPS), 1),
      ('composed', _all_of(_COMPOSED, _KeepGood()), 4),
      ('mapping', lambda data: fields.map_fields(data, _MAPPING), 2),
      ('called', lambda data: data.map(_COMPOSED), 4),
      ('filter', lambda data: data.filter(_KeepGood()), 1),
      (
          'method',
          lambda data: data.map(lambda episode: episode['steps'])
          .map(_COMPOSED.transform)
          .map(lambda steps: {'steps': steps}),
          4,
      ),
      (
          'on_steps',
          lambda data: data.map(
              lambda episode: {'steps': _COMPOSED.transform(episode['steps'])}
          ),
          4,
      ),
      (
          'inverse',
          lambda data: data.map(
              lambda episode: {
                  'steps': transforms.Compose([_Double()]).invert(
                      episode['steps']
                  )
              }
          ),
          2,
      ),
  )
  @pytest.mark.few(4)
  def test_on_episodes(self, function, factor):
    (actual,) = _rewards_of(function(golden.stacked([call_modes.FIVE])))
    np.testing.assert_array_equal(actual, factor * _REWARD)

  @parameterized.parameters(_COMPOSED, _KeepGood(), _MAPPING)
  def test_function_disabled_by_the_user_is_not_converted(self, function):
    disabled = tf.autograph.experimental.do_not_convert(
        lambda episode: function(episode)
    )
    with self.assertRaises(tf.errors.OperatorNotAllowedInGraphError):
      golden.stacked([call_modes.FIVE]).map(disabled)

  @pytest.mark.long
  def test_on_fragments_frames_and_items(self):
    data = golden.stacked([call_modes.FIVE])
    (fragment,) = windows.convert_rlds_to_fragments(
        data, 5, fragment_fn=_double_rows
    )
    np.testing.assert_array_equal(fragment['reward'], 2 * _REWARD[:-1])
    (frames,) = rlds2reverb.convert_rlds_to_trajectories(
        data, lambda step, unused_next: _doubled(step), batched=True
    )
    np.testing.assert_array_equal(frames.policy_info, 2 * _REWARD)
    buffer = rlds2reverb.EpisodesReplayBuffer(data, rlds2reverb.Windows(2))
    doubled = buffer.as_dataset(
        sequence_preprocess_fn=_doubled_item, single_deterministic_pass=True
    )
    pairs = [reward.numpy().tolist() for reward, _ in doubled]
    expected = 2 * np.stack([_REWARD[:-1], _REWARD[1:]], 1)
    np.testing.assert_array_equal(pairs, expected)

  @parameterized.parameters(False, True)
  def test_a_function_that_is_false(self, reverb_server):
    data = golden.stacked([call_modes.FIVE])
    info = call_modes.Empty(lambda step, unused_next: 3 * step['reward'])
    (frames,) = rlds2reverb.convert_rlds_to_trajectories(
        data, info, batched=True
    )
    np.testing.assert_array_equal(frames.policy_info, 3 * _REWARD)
    spec = rlds2reverb.create_trajectory_data_spec(data, info)
    self.assertEqual(spec.policy_info, tf.TensorSpec([], tf.float32))
    buffer = rlds2reverb.open_replay_buffer(data, reverb_server=reverb_server)
    pairs = buffer.as_dataset(
        2,
        2,
        sequence_preprocess_fn=call_modes.Empty(lambda frames: frames.reward),
    )
    rewards, _ = next(iter(pairs))
    self.assertEqual(rewards.shape, [2, 2])


if __name__ == '__main__':
  absltest.main()
