"""Tests that the numpy arrays of a user stay as they are.

TensorFlow 2.15 lends the arrays of a `from_generator` data set to the graph,
where they are aligned to 64 bytes, and may write into a slice of one.
"""

import functools

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf

import rlds2reverb
from rlds2reverb.trajectories import options as options_lib
from tests import golden

_LENGTHS = (2, 3, 16, 17, 33, 65)


def _aligned(array):
  """Returns a copy of `array` that begins at a multiple of 64 bytes."""
  room = np.zeros(array.nbytes + 64, np.uint8)
  start = -room.ctypes.data % 64
  copy = room[start : start + array.nbytes].view(array.dtype)
  copy = copy.reshape(array.shape)
  copy[...] = array
  return copy


def _episode(rng, length, terminal):
  step = np.arange(length)
  last = step == length - 1
  steps = {
      'observation': rng.normal(size=(length, 16)).astype(np.float32),
      'action': rng.normal(size=(length, 8)).astype(np.float32),
      'reward': rng.normal(size=length).astype(np.float32),
      'discount': rng.uniform(0.1, 1, length).astype(np.float32),
      'is_first': step == 0,
      'is_last': last,
      'is_terminal': last & terminal,
  }
  return tf.nest.map_structure(_aligned, steps)


def _double(nest):
  """What a user does next: an operation that can write over its input."""

  def double(leaf):
    return leaf * 2 if leaf.dtype.is_floating else leaf

  return tf.nest.map_structure(double, nest)


def _of_steps(function):
  def on_data(data):
    return data.map(lambda e: function(e['steps'])).map(_double)

  return on_data


def _by_agent(steps):
  return {
      **steps,
      'reward': {'a': steps['reward'], 'b': steps['reward']},
      'is_present': {
          'a': steps['discount'] > 0,
          'b': steps['is_first'] | steps['is_last'],
      },
  }


def _of_agents(function):
  return _of_steps(lambda steps: function(_by_agent(steps)))


def _transformed(transform, data):
  transformed = rlds2reverb.transforms.transform_episodes(data, [transform])
  inverted = transformed.map(lambda e: transform.invert(_double(e['steps'])))
  return inverted.map(_double)


_NORMALIZE = rlds2reverb.transforms.NormalizeField(
    'action', offset=1.0, scale=2.0
)
_FUNCTIONS = {
    'transition_rows': _of_steps(rlds2reverb.windows.transition_rows),
    'n_step': _of_steps(
        lambda s: rlds2reverb.windows.n_step_transitions(s, 3, 0.5)
    ),
    'reward_to_go': _of_steps(
        lambda s: rlds2reverb.windows.reward_to_go(s, 0.5)
    ),
    'advantages': _of_steps(
        lambda s: rlds2reverb.windows.advantages(s, s['reward'], 0.5)
    ),
    'unroll': _of_steps(
        lambda s: rlds2reverb.windows.unroll(
            s, rlds2reverb.Windows(4, stride=4, end='zero_pad')
        )
    ),
    'apply_views': _of_steps(
        lambda s: rlds2reverb.windows.apply_views(
            s, {'last': rlds2reverb.windows.ViewRequirement('reward', -1)}
        )
    ),
    'stack_observations': _of_steps(
        lambda s: rlds2reverb.windows.stack_and_chunk(s, 2)
    ),
    'chunk_actions': _of_steps(
        lambda s: rlds2reverb.windows.stack_and_chunk(s, num_actions=2)
    ),
    'stack_and_chunk': _of_steps(
        lambda s: rlds2reverb.windows.stack_and_chunk(s, 2, 2)
    ),
    'apply_horizon': lambda d: rlds2reverb.windows.apply_horizon(
        d, 15, no_done_at_end=True
    ).map(_double),
    'soft_horizon': lambda d: rlds2reverb.windows.apply_horizon(
        d, 15, soft=True
    ).map(_double),
    'fragments': lambda d: rlds2reverb.windows.convert_rlds_to_fragments(
        d, 16
    ).map(_double),
    'complete_fragments': lambda d: (
        rlds2reverb.windows.convert_rlds_to_fragments(
            d, 2, 'complete_episodes'
        ).map(_double)
    ),
    'frames': lambda d: rlds2reverb.convert_rlds_to_trajectories(d).map(
        _double
    ),
    'blocks': lambda d: rlds2reverb.convert_rlds_to_trajectories(
        d, batched=True
    ).map(_double),
    'short_blocks': lambda d: rlds2reverb.convert_rlds_to_trajectories(
        d,
        block_length=16,
        options=options_lib.ConversionOptions(
            rules=rlds2reverb.ConversionRules(terminal_discount='transition')
        ),
        batched=True,
    ).map(_double),
    'tf_agents': lambda d: rlds2reverb.convert_rlds_to_trajectories(
        d,
        lambda current, following: following['reward'] * current['discount'],
        options=options_lib.ConversionOptions(
            rules=rlds2reverb.ConversionRules(validation='tf_agents')
        ),
        batched=True,
    ).map(_double),
    'sequences': lambda d: rlds2reverb.convert_rlds_to_sequences(
        d, rlds2reverb.Windows(2, end='tile')
    ).map(_double),
    'map_fields': lambda d: rlds2reverb.map_fields(
        d,
        rlds2reverb.fields.StepMapping(
            discount=None,
            is_terminal=rlds2reverb.fields.TerminalOnSuccess('is_last'),
        ),
    ).map(_double),
    'transforms': lambda d: rlds2reverb.transforms.transform_episodes(
        d,
        [
            rlds2reverb.transforms.ScaleReward(3.0, minimum=0.0),
            rlds2reverb.transforms.ClipField('action', -0.5, 0.5),
            _NORMALIZE,
            rlds2reverb.transforms.KeepEpisodes(min_length=1, min_return=-1e9),
            rlds2reverb.transforms.DropNoOps(no_op=0.5),
            rlds2reverb.transforms.FrameSkip(2),
        ],
    ).map(_double),
    **{
        f'{type(transform).__name__}_{number}': functools.partial(
            _transformed, transform
        )
        for number, transform in enumerate(
            [
                rlds2reverb.transforms.BinarizeGripper(),
                rlds2reverb.transforms.RelativeToAbsoluteGripper(),
                rlds2reverb.transforms.InvertGripper(),
                rlds2reverb.transforms.ActionsFromStates('observation'),
                rlds2reverb.transforms.ActionsFromStates(
                    'observation', kind='absolute', kept=()
                ),
                rlds2reverb.transforms.MotionsFromPoses(
                    'observation', 'quaternion_xyzw', kept=()
                ),
                rlds2reverb.transforms.ConvertRotation(
                    'action', 0, 'axis_angle', 'axis_angle'
                ),
                rlds2reverb.transforms.PadField('action', 8, 8),
                rlds2reverb.transforms.RelabelGoals(include_current=True),
                rlds2reverb.transforms.NormalizeField(
                    'action', 1.0, 2.0, mask=[True, False] * 4
                ),
            ]
        )
    },
    'ted': lambda d: rlds2reverb.formats.load(
        rlds2reverb.formats.to_ted(d), 'ted'
    ).map(_double),
    'select_agent': _of_agents(
        lambda s: rlds2reverb.agents.select_agent({'steps': s}, 'a')
    ),
    'select_agent_that_was_away': _of_agents(
        lambda s: rlds2reverb.agents.select_agent(
            {'steps': s}, 'b', gaps='skip'
        )
    ),
    'stack_agents': _of_agents(
        lambda s: rlds2reverb.agents.stack_agents(s, team_reward='sum')
    ),
    'unroll_agents': _of_agents(
        lambda s: rlds2reverb.agents.unroll_agents(
            s, rlds2reverb.Windows(2, stride=2, end='repeat_last')
        )
    ),
    'agent_views': _of_agents(
        lambda s: rlds2reverb.windows.apply_views(
            s,
            {'b': rlds2reverb.windows.ViewRequirement('reward', -1, agent='b')},
        )
    ),
    'token_episodes': _of_steps(
        lambda s: rlds2reverb.tokens.make_token_episode(
            tf.constant([1], tf.int32),
            tf.cast(s['discount'] * 9, tf.int32),
            penalty=s['reward'],
        )
    ),
    'statistics': lambda d: tf.data.Dataset.from_tensors(
        rlds2reverb.statistics.compute_statistics(d).num_steps
    ),
    'mixture': lambda d: rlds2reverb.datasets.mix_datasets(
        {'a': d, 'b': d}, stop_when='first'
    ).map(_double),
}


@pytest.mark.long
class LentArraysTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.named_parameters(
      (name, function) for name, function in _FUNCTIONS.items()
  )
  def test_stay_as_they_are(self, function):
    rng = np.random.default_rng(3)
    episodes = [
        _episode(rng, length, bool(index % 2))
        for index, length in enumerate(_LENGTHS)
    ]
    before = tf.nest.map_structure(np.copy, episodes)
    dataset = function(golden.stacked(episodes))
    for _ in range(2):
      list(dataset)
    for episode, copy in zip(episodes, before):
      for field, leaf in episode.items():
        self.assertAllEqual(leaf, copy[field], f'{field}, {len(leaf)} steps')

  def test_flat_arrays(self):
    rng = np.random.default_rng(4)
    rows = 128
    arrays = tf.nest.map_structure(
        _aligned,
        {
            'observations': rng.normal(size=(rows, 16)).astype(np.float32),
            'actions': rng.normal(size=(rows, 16)).astype(np.float32),
            'rewards': rng.normal(size=rows).astype(np.float32),
            'terminals': np.arange(rows) % 16 == 15,
        },
    )
    before = {name: np.copy(array) for name, array in arrays.items()}
    dataset = rlds2reverb.formats.load(arrays).map(_double)
    for _ in range(2):
      list(dataset.map(lambda e: {'steps': _first_steps(e)}))
    for name, array in arrays.items():
      self.assertAllEqual(array, before[name], name)


def _first_steps(episode):
  return tf.nest.map_structure(lambda leaf: leaf[:1], episode['steps'])


if __name__ == '__main__':
  tf.test.main()
