"""Tests properties of every public function of steps or data sets of episodes.

- No function modifies the NumPy arrays of the user. TensorFlow 2.15 uses arrays
  of a `from_generator` data set in place if they are aligned to 64 bytes, and
  may write to a slice of such an array.
- Every function refuses episodes whose fields differ in length.
- AutoGraph calls the functions of the library unchanged, including functions
  that the library passes to methods of data sets.

A new public function must be added to the tables of this file.
"""

from collections.abc import Iterator
import contextlib
import functools
import importlib.util
import inspect
from typing import Any
from unittest import mock

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.autograph.core import config
from tensorflow.python.autograph.impl import api

import rlds2reverb
from rlds2reverb import agents
from rlds2reverb import datasets
from rlds2reverb import fields
from rlds2reverb import formats
from rlds2reverb import indexing
from rlds2reverb import replay
from rlds2reverb import statistics
from rlds2reverb import tokens
from rlds2reverb import training
from rlds2reverb import trajectories
from rlds2reverb import transforms
from rlds2reverb import windows
from tests import call_modes
from tests import golden

_LENGTHS = (2, 3, 16, 17, 33, 65)
# TensorFlow writes the apostrophe of the sentence as \\'.
_SENTENCE = golden.UNEQUAL_LENGTHS.split("'")[-1]


def _aligned(array):
  """Returns a copy of `array` whose memory is aligned to 64 bytes."""
  room = np.zeros(array.nbytes + 64, np.uint8)
  start = -room.ctypes.data % 64
  copy = room[start : start + array.nbytes].view(array.dtype)
  copy = copy.reshape(array.shape)
  copy[...] = array
  return copy


def _episode(rng, length, terminal):
  last = np.arange(length) == length - 1
  steps = {
      'observation': rng.normal(size=(length, 16)).astype(np.float32),
      'action': rng.normal(size=(length, 8)).astype(np.float32),
      'reward': rng.normal(size=length).astype(np.float32),
      'discount': rng.uniform(0.1, 1, length).astype(np.float32),
      'is_first': np.arange(length) == 0,
      'is_last': last,
      'is_terminal': last & terminal,
  }
  return tf.nest.map_structure(_aligned, steps)


def _double(nest):
  """Doubles all floats, an operation that TensorFlow may do in place."""

  def double(leaf):
    return leaf * 2 if leaf.dtype.is_floating else leaf

  return tf.nest.map_structure(double, nest)


def _by_agent(steps):
  return {
      **steps,
      'reward': {'a': steps['reward'], 'b': steps['reward']},
      'is_present': {
          'a': steps['discount'] > 0,
          'b': steps['is_first'] | steps['is_last'],
      },
  }


def _transform_and_invert(transform, data):
  transformed = transforms.transform_episodes(data, [transform])
  return transformed.map(lambda e: transform.invert(_double(e['steps'])))


_STEP_FUNCTIONS = {
    'transition_rows': windows.transition_rows,
    'n_step': lambda s: windows.n_step_transitions(s, 3, 0.5),
    'reward_to_go': lambda s: windows.reward_to_go(s, 0.5),
    'advantages': lambda s: windows.advantages(s, s['reward'], 0.5),
    'unroll': lambda s: windows.unroll(
        s, rlds2reverb.Windows(4, stride=4, end='zero_pad')
    ),
    'apply_views': lambda s: windows.apply_views(
        s, {'last': windows.ViewRequirement('reward', -1)}
    ),
    'stack_observations': lambda s: windows.stack_and_chunk(s, 2),
    'chunk_actions': lambda s: windows.stack_and_chunk(s, num_actions=2),
    'stack_and_chunk': lambda s: windows.stack_and_chunk(s, 2, 2),
    'select_agent': lambda s: agents.select_agent({'steps': _by_agent(s)}, 'a'),
    'select_agent_that_was_away': lambda s: agents.select_agent(
        {'steps': _by_agent(s)}, 'b', gaps='skip'
    ),
    'stack_agents': lambda s: agents.stack_agents(
        _by_agent(s), team_reward='sum'
    ),
    'unroll_agents': lambda s: agents.unroll_agents(
        _by_agent(s), rlds2reverb.Windows(2, stride=2, end='repeat_last')
    ),
    'agent_views': lambda s: windows.apply_views(
        _by_agent(s), {'b': windows.ViewRequirement('reward', -1, agent='b')}
    ),
}
_TRANSFORMS = (
    transforms.robotics.BinarizeGripper(),
    transforms.robotics.RelativeToAbsoluteGripper(),
    transforms.robotics.InvertGripper(),
    transforms.robotics.ActionsFromStates('observation'),
    transforms.robotics.ActionsFromStates(
        'observation', kind='absolute', keep=()
    ),
    transforms.robotics.MotionsFromPoses(
        'observation', 'quaternion_xyzw', keep=()
    ),
    transforms.robotics.ConvertRotation(
        'action', 0, 'axis_angle', 'axis_angle'
    ),
    transforms.PadField('action', 8, 8),
    transforms.RelabelGoals(include_current=True),
    transforms.NormalizeField('action', 1.0, 2.0, mask=[True, False] * 4),
)


def _convert(data, info=None, block_length=None, **rules):
  return rlds2reverb.convert_rlds_to_trajectories(
      data,
      info,
      block_length=block_length,
      options=rlds2reverb.ConversionOptions(
          rules=rlds2reverb.ConversionRules(**rules)
      ),
      batched=True,
  )


def _reward_to_come(current, following):
  return following['reward'] * current['discount']


_DATA_FUNCTIONS = {
    **{
        f'{type(one).__name__}_{number}': functools.partial(
            _transform_and_invert, one
        )
        for number, one in enumerate(_TRANSFORMS)
    },
    'apply_horizon': lambda d: windows.apply_horizon(
        d, 15, no_done_at_end=True
    ),
    'soft_horizon': lambda d: windows.apply_horizon(d, 15, soft=True),
    'fragments': lambda d: windows.convert_rlds_to_fragments(d, 16),
    'complete_fragments': lambda d: windows.convert_rlds_to_fragments(
        d, 2, 'complete_episodes'
    ),
    'frames': rlds2reverb.convert_rlds_to_trajectories,
    'blocks': _convert,
    'short_blocks': lambda d: _convert(
        d, block_length=16, terminal_discount='transition'
    ),
    'tf_agents': lambda d: _convert(d, _reward_to_come, validation='tf_agents'),
    'sequences': lambda d: rlds2reverb.convert_rlds_to_sequences(
        d, rlds2reverb.Windows(2, end='tile')
    ),
    'map_fields': lambda d: rlds2reverb.map_fields(
        d,
        rlds2reverb.fields.StepMapping(
            discount=None,
            is_terminal=rlds2reverb.fields.TerminalOnSuccess('is_last'),
        ),
    ),
    'transforms': lambda d: transforms.transform_episodes(
        d,
        [
            transforms.ScaleReward(3.0, minimum=0.0),
            transforms.ClipField('action', -0.5, 0.5),
            transforms.KeepEpisodes(min_length=1, min_return=-1e9),
            transforms.DropNoOps(no_op=0.5),
            transforms.FrameSkip(2),
        ],
    ),
    'ted': lambda d: rlds2reverb.formats.load(
        rlds2reverb.formats.to_ted(d), 'ted'
    ),
    'statistics': lambda d: tf.data.Dataset.from_tensors(
        rlds2reverb.statistics.compute_statistics(d).num_steps
    ),
    'flat_rows': lambda d: tf.data.Dataset.from_tensors(
        windows.FlatRows.of(d).lengths
    ),
}
# These look at no steps, or at one of their fields.
_OTHERS = {
    'token_episodes': lambda d: d.map(
        lambda e: rlds2reverb.tokens.make_token_episode(
            tf.constant([1], tf.int32),
            tf.cast(e['steps']['discount'] * 9, tf.int32),
            penalty=e['steps']['reward'],
        )
    ),
    'mixture': lambda d: rlds2reverb.datasets.mix_datasets(
        {'a': d, 'b': d}, stop_when='first'
    ),
}


def _on_data(function):
  return lambda data: data.map(lambda e: function(e['steps']))


_FUNCTIONS = {
    **{name: _on_data(function) for name, function in _STEP_FUNCTIONS.items()},
    **_DATA_FUNCTIONS,
}


def _named(functions):
  return parameterized.named_parameters(*functions.items())


@pytest.mark.long
class ArraysAreUnchangedTest(parameterized.TestCase, tf.test.TestCase):

  @_named({**_FUNCTIONS, **_OTHERS})
  def test_arrays_of_episodes(self, function):
    rng = np.random.default_rng(3)
    episodes = [
        _episode(rng, length, bool(index % 2))
        for index, length in enumerate(_LENGTHS)
    ]
    copies = tf.nest.map_structure(np.copy, episodes)
    dataset = function(golden.stacked(episodes)).map(_double)
    for _ in range(2):
      list(dataset)
    for episode, copy in zip(episodes, copies):
      for field, leaf in episode.items():
        self.assertAllEqual(leaf, copy[field], f'{field}, {len(leaf)} steps')

  def test_flat_arrays(self):
    rng = np.random.default_rng(4)
    arrays = tf.nest.map_structure(
        _aligned,
        {
            'observations': rng.normal(size=(128, 16)).astype(np.float32),
            'actions': rng.normal(size=(128, 16)).astype(np.float32),
            'rewards': rng.normal(size=128).astype(np.float32),
            'terminals': np.arange(128) % 16 == 15,
        },
    )
    copies = {name: np.copy(array) for name, array in arrays.items()}
    dataset = rlds2reverb.formats.load(arrays).map(_double)
    for _ in range(2):
      list(
          dataset.map(
              lambda e: tf.nest.map_structure(lambda x: x[:1], e['steps'])
          )
      )
    for name, array in arrays.items():
      self.assertAllEqual(array, copies[name], name)


def _with(episode, **leaves):
  return {**episode, **leaves}


# Invalid episodes. The first one has the most common mistake: an action for
# each transition instead of each step.
_BAD = (
    _with(golden.TRUNCATED, action=golden.TRUNCATED['action'][:-1]),
    _with(golden.COMPLETE, observation=np.zeros([6, 2], np.float32)),
    _with(golden.COMPLETE, is_first=golden.COMPLETE['is_first'][:-2]),
    _with(golden.COMPLETE, discount=np.zeros([0], np.float32)),
)
_FOUND = ('action: 3', 'observation: 6', 'is_first: 2', 'discount: 0')


class UnequalLengthsTest(parameterized.TestCase, tf.test.TestCase):

  def _assert_refused(self, call, *parts):
    with self.assertRaises(tf.errors.InvalidArgumentError) as error:
      call()
    message = str(error.exception).replace('[', '').replace(']', '')
    for part in (_SENTENCE, *parts):
      self.assertIn(part, message)

  @_named(_FUNCTIONS)
  @pytest.mark.few(3)
  def test_unequal_lengths_raise(self, function):
    steps = _episode(np.random.default_rng(0), 4, True)
    bad = _with(steps, action=steps['action'][:3])
    data = golden.stacked([steps, bad])
    self._assert_refused(lambda: list(function(data)))

  @_named(_STEP_FUNCTIONS)
  def test_unequal_lengths_raise_eagerly(self, function):
    self._assert_refused(lambda: function(_BAD[0]), _FOUND[0])

  def test_error_names_the_field_of_unequal_length(self):
    for bad, actual in zip(_BAD, _FOUND):
      self._assert_refused(lambda: windows.transition_rows(bad), actual)

  def test_unequal_static_lengths_raise_when_pipeline_is_built(self):
    data = tf.data.Dataset.from_tensors(
        {'steps': tf.nest.map_structure(tf.constant, _BAD[0])}
    )
    for function in _on_data(windows.transition_rows), _convert:
      with self.assertRaisesRegex(ValueError, 'action: 3, .*reward: 4'):
        function(data)

  @parameterized.parameters(
      {},
      {'validation': 'tf_agents'},
      {'block_length': 2},
      {'nan': 'invalid'},
      {'info': _reward_to_come},
  )
  @pytest.mark.few(1)
  def test_conversion_refuses_unequal_lengths(self, **settings):
    episodes = []
    data = golden.stacked(episodes, golden.stacked_spec(golden.COMPLETE))
    converted = _convert(data, **settings).unbatch()
    for bad, actual in zip(_BAD, _FOUND):
      episodes[:] = [golden.TRUNCATED, bad, golden.COMPLETE]
      frames, error = golden.frames_and_error(converted)
      self.assertLen(frames, 4)
      self.assertIn(f'{_SENTENCE} Found at episode 1: ', error.message)
      self.assertIn(actual, error.message)

  def test_conversion_skips_unequal_lengths_before_other_rules(self):
    invalid = golden.INVALID_CASES['terminal_before_last'].episode
    invalid = _with(invalid, action=np.zeros([2], np.int64))
    data = [golden.TRUNCATED, invalid, *_BAD, golden.COMPLETE]
    report = rlds2reverb.ConversionReport()
    rules = rlds2reverb.ConversionRules(invalid_episodes='skip')
    frames = rlds2reverb.convert_rlds_to_trajectories(
        golden.stacked(data),
        options=rlds2reverb.ConversionOptions(rules=rules, report=report),
    )
    self.assertAllEqual(
        [frame.action for frame in frames],
        [110, 111, 112, 113, 100, 101, 102, 103],
    )
    self.assertEqual(
        report.skipped_episodes[0].reason,
        f'{golden.UNEQUAL_LENGTHS} Found at episode 1: action: 2,'
        ' discount: 3, is_first: 3, is_last: 3, is_terminal: 3,'
        ' observation: 3, reward: 3.',
    )
    for skipped, actual in zip(
        report.skipped_episodes[1:], _FOUND, strict=True
    ):
      self.assertIn(actual, skipped.reason)

  def test_fields_that_are_not_used_may_differ(self):
    data = golden.stacked([_with(golden.COMPLETE, a_field=np.zeros([9]))])
    mapping = rlds2reverb.fields.StepMapping(
        is_terminal=rlds2reverb.fields.TerminalOnSuccess('is_last')
    )
    for converted in (data, rlds2reverb.map_fields(data, mapping)):
      golden.assert_frames_equal(
          self,
          golden.frames_of(rlds2reverb.convert_rlds_to_trajectories(converted)),
          golden.expected_frames([golden.COMPLETE]),
      )

  @parameterized.parameters(
      {'is_terminal': lambda episode: episode['steps']['is_last'][:-1]},
      {'action': ['action', lambda e: e['steps']['reward'][1:, None]]},
      {'observation': {'a': lambda e: e['steps']['reward'][1:]}},
  )
  @pytest.mark.few(1)
  def test_a_mapping_whose_function_returns_another_length(self, **sources):
    mapping = rlds2reverb.fields.StepMapping(**sources)
    action = golden.COMPLETE['action'][:, None].astype(np.float32)
    steps = _with(golden.COMPLETE, action=action)
    eager = {'steps': tf.nest.map_structure(tf.constant, steps)}
    self._assert_refused(lambda: mapping(eager), ': 3', 'steps: 4')
    for form in golden.FORMS.values():
      mapped = rlds2reverb.map_fields(form([steps]), mapping)
      self._assert_refused(lambda: list(mapped), *sources, ': 3', 'steps: 4')


_PACKAGES = (
    agents,
    datasets,
    fields,
    formats,
    indexing,
    replay,
    statistics,
    tokens,
    training,
    trajectories,
    transforms,
    transforms.robotics,
    windows,
)


@contextlib.contextmanager
def _record_conversions() -> Iterator[list[str]]:
  """Records the functions of the library that AutoGraph converts."""
  converted = []
  convert = api._convert_actual

  def record(function, context):
    if f'{function.__module__}.'.startswith('rlds2reverb.'):
      converted.append(f'{function.__module__}: {function.__qualname__}')
    return convert(function, context)

  with mock.patch.object(api, '_convert_actual', record):
    yield converted


def _find_functions(package: Any) -> Iterator[Any]:
  """Yields the public functions of a package, and methods of its classes."""
  for name, value in vars(package).items():
    is_ours = getattr(value, '__module__', '').startswith('rlds2reverb.')
    if name.startswith('_') or not is_ours:
      continue
    if inspect.isfunction(value):
      yield value
    elif inspect.isclass(value):
      for cls in value.__mro__:
        if cls.__module__.startswith('rlds2reverb.'):
          for member in vars(cls).values():
            member = getattr(member, '__func__', member)
            if inspect.isfunction(member) and (
                member.__module__ == cls.__module__
            ):
              yield member


def _with_images(steps: golden.Episode) -> golden.Episode:
  image = tf.io.encode_png(tf.zeros([2, 2, 3], tf.uint8)).numpy()
  return {**steps, 'image': np.array([image] * len(steps['reward']))}


def _make_texts() -> tf.data.Dataset:
  texts = {'prompt': 'a', 'chosen': 'b c', 'rejected': 'd e', 'response': 'f'}
  return tf.data.Dataset.from_tensors(texts)


def _split(strings):
  return tf.strings.unicode_decode(strings, 'UTF-8')


def _decode_images(unused_data):
  return golden.stacked([_with_images(call_modes.FIVE)]).map(
      lambda e: transforms.decode_images(e['steps'], ['image'], size=(2, 2))
  )


def _call_in_a_function(data):
  """Calls functions of rows and of batches in a `tf.function`."""

  @tf.function
  def call(steps):
    return (
        windows.n_step_transitions(steps, 3),
        windows.sample_slices(windows.transition_rows(steps), (2, 2), 1),
        transforms.Compose([transforms.ScaleReward(2.0)])({'steps': steps}),
        transforms.FrameSkip(2).transform(steps),
        transforms.KeepEpisodes(min_length=2)({'steps': steps}),
        replay.sequence_priority(steps['reward'][tf.newaxis]),
    )

  unchanged = windows.transition_rows, transforms.FrameSkip(2).transform
  for function in call, *map(tf.function, unchanged):
    function(
        {name: tf.constant(column) for name, column in call_modes.FIVE.items()}
    )
  return data


def _look_up(data):
  index = indexing.TransitionIndex.from_episodes(data)
  return data.map(lambda e: index.lookup(e['steps']))


def _nest(data):
  return data.map(
      lambda e: {'steps': tf.data.Dataset.from_tensor_slices(e['steps'])}
  )


# Calls that the tables above do not contain.
_MORE_FUNCTIONS = {
    'in_a_function': _call_in_a_function,
    'images': _decode_images,
    'draw_steps': _on_data(lambda s: windows.draw_steps(s, 2, 1)),
    'goals': lambda d: transforms.draw_goals_from_other_episodes(
        d, 0.5, goal='observation', goal_step='reward'
    ),
    'transform_in_map': lambda d: _nest(d).map(transforms.ScaleReward(2.0)),
    'mapping_in_map': lambda d: d.map(rlds2reverb.fields.StepMapping()),
    'filter': lambda d: d.filter(transforms.KeepEpisodes(min_length=2)),
    'predicate': lambda d: transforms.transform_episodes(
        d, [transforms.DropNoOps(predicate=lambda s: s['reward'] < 0)]
    ),
    'take': lambda d: transforms.transform_episodes(
        d, [transforms.ScaleReward(2.0)]
    ).take(1),
    'function_of_episodes': lambda d: transforms.transform_episodes(
        d, [lambda e: e]
    ),
    'exact_mixture': lambda d: datasets.mix_datasets(
        {'a': _convert(d), 'b': _convert(d)}, batch_size=2
    ),
    'texts': lambda _: tokens.convert_texts_to_episodes(_make_texts(), _split),
    'text_batches': lambda _: tokens.convert_texts_to_batches(
        _make_texts(), _split, 4, 1
    ),
    'text_pairs': lambda _: tokens.convert_texts_to_pairs(
        _make_texts(), _split, 4, 1
    ),
    'index': _look_up,
    'replay_buffer': lambda d: rlds2reverb.EpisodesReplayBuffer(
        d, rlds2reverb.Windows(2)
    ).as_dataset(2, sequence_preprocess_fn=lambda frames: frames),
    'split_by_policy': lambda d: agents.split_by_policy(
        d.map(lambda e: {'steps': _by_agent(e['steps'])}), str
    ),
}


class AutoGraphTest(parameterized.TestCase):

  def test_rules_are_unchanged(self):
    # A fresh copy of the module contains the original rules of TensorFlow.
    original = importlib.util.module_from_spec(config.__spec__)
    config.__spec__.loader.exec_module(original)
    self.assertEqual(
        list(map(str, config.CONVERSION_RULES)),
        list(map(str, original.CONVERSION_RULES)),
    )

  @parameterized.parameters(*_PACKAGES)
  def test_public_functions_are_marked(self, package):
    functions = list(_find_functions(package))
    self.assertNotEmpty(functions)
    for function in functions:
      self.assertTrue(api.is_autograph_artifact(function), function)

  def _check_unchanged(self, function, data):
    with _record_conversions() as converted:
      function(data)
    self.assertEmpty(converted)

  @_named(_STEP_FUNCTIONS)
  @pytest.mark.few(3)
  def test_functions_of_steps(self, function):
    self._check_unchanged(_on_data(function), golden.stacked([call_modes.FIVE]))

  @_named({**_DATA_FUNCTIONS, **_OTHERS, **_MORE_FUNCTIONS})
  @pytest.mark.few(6)
  def test_functions_of_data(self, function):
    steps = _episode(np.random.default_rng(0), 6, True)
    data = golden.stacked([steps])
    self._check_unchanged(function, data)


if __name__ == '__main__':
  tf.test.main()
