"""Tests of the rule that an episode's fields have a row for every step.

It is held by every function that takes an episode or its steps.
"""

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf

import rlds2reverb
from rlds2reverb.trajectories import options as options_lib
from tests import golden


def _with(episode, **leaves):
  return {**episode, **leaves}


# The likeliest mistake: an action a transition, not a step.
_SHORT_ACTION = _with(golden.TRUNCATED, action=golden.TRUNCATED['action'][:-1])
_LONG_OBSERVATION = _with(
    golden.COMPLETE, observation=np.zeros([6, 2], np.float32)
)
# Such columns are compared with each other where flags are checked.
_SHORT_FLAG = _with(golden.COMPLETE, is_first=golden.COMPLETE['is_first'][:-2])
_NO_DISCOUNT = _with(golden.COMPLETE, discount=np.zeros([0], np.float32))
_BAD = {
    'short_action': (_SHORT_ACTION, ('action: 3', 'is_first: 4')),
    'long_observation': (_LONG_OBSERVATION, ('observation: 6', 'reward: 4')),
    'short_flag': (_SHORT_FLAG, ('is_first: 2', 'is_last: 4')),
    'no_discount': (_NO_DISCOUNT, ('discount: 0', 'is_last: 4')),
}


def _by_agent(steps):
  return {**steps, 'is_present': {'a': steps['is_first'] | True}}


_STREAM = rlds2reverb.ConversionRules(validation='tf_agents')
_STEP_FUNCTIONS = {
    'transition_rows': rlds2reverb.windows.transition_rows,
    'unroll': lambda steps: rlds2reverb.windows.unroll(
        steps, rlds2reverb.Windows(2, stride=2, end='repeat_last')
    ),
    'n_step': lambda steps: rlds2reverb.windows.n_step_transitions(steps, 2),
    'reward_to_go': rlds2reverb.windows.reward_to_go,
    'stack_observations': lambda steps: rlds2reverb.windows.stack_and_chunk(
        steps, 2
    ),
    'chunk_actions': lambda steps: rlds2reverb.windows.stack_and_chunk(
        steps, num_actions=2
    ),
    'advantages': lambda steps: rlds2reverb.windows.advantages(
        steps, [0.0] * 4
    ),
    'apply_views': lambda steps: rlds2reverb.windows.apply_views(steps, {}),
    'scale_reward': lambda steps: rlds2reverb.transforms.ScaleReward(2.0)(
        {'steps': steps}
    ),
    'keep_episodes': lambda steps: rlds2reverb.transforms.KeepEpisodes(
        min_length=1
    )({'steps': steps}),
    'map_fields': lambda steps: rlds2reverb.fields.StepMapping()(
        {'steps': steps}
    ),
    'select_agent': lambda steps: rlds2reverb.agents.select_agent(
        {'steps': _by_agent(steps)}, 'a'
    ),
    'stack_agents': lambda steps: rlds2reverb.agents.stack_agents(
        _by_agent(steps)
    ),
}


# TensorFlow writes the apostrophe of the sentence as \\'.
_SENTENCE = golden.UNEQUAL_LENGTHS.split("'")[-1]


def _unbracketed(error):
  """Returns the message of an error without the brackets of `tf.Assert`."""
  message = str(error.exception)
  return message.replace('[', '').replace(']', '')


class StepFunctionsTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.named_parameters(
      (name, function) for name, function in _STEP_FUNCTIONS.items()
  )
  def test_refused(self, function):
    bad = [_SHORT_ACTION]
    mapped = golden.stacked(bad).map(lambda e: function(e['steps']))
    for case, (episode, found) in _BAD.items():
      bad[:] = [episode]
      for name, call in {
          # pylint: disable-next=cell-var-from-loop
          'eagerly': lambda: function(episode),
          'in_map': lambda: list(mapped),
      }.items():
        with self.subTest(f'{case}, {name}'):
          with self.assertRaises(tf.errors.InvalidArgumentError) as error:
            call()
          message = _unbracketed(error)
          self.assertIn(_SENTENCE, message)
          for part in found:
            self.assertIn(part, message)

  def test_lengths_that_are_known_when_the_pipeline_is_built(self):
    data = tf.data.Dataset.from_tensors(
        {'steps': tf.nest.map_structure(tf.constant, _SHORT_ACTION)}
    )
    for build in (
        lambda: data.map(
            lambda e: rlds2reverb.windows.transition_rows(e['steps'])
        ),
        lambda: rlds2reverb.convert_rlds_to_trajectories(data),
    ):
      with self.assertRaisesRegex(ValueError, 'action: 3, .*reward: 4'):
        build()

  @pytest.mark.long
  def test_data_sets(self):
    data = golden.stacked([golden.COMPLETE, _SHORT_ACTION])
    for function in (
        lambda d: rlds2reverb.windows.apply_horizon(d, 2),
        lambda d: rlds2reverb.windows.apply_horizon(d, 2, soft=True),
        lambda d: rlds2reverb.windows.convert_rlds_to_fragments(d, 2),
        lambda d: tf.data.Dataset.from_tensors(
            rlds2reverb.windows.FlatRows.of(d)
        ),
        lambda d: tf.data.Dataset.from_tensors(
            rlds2reverb.statistics.compute_statistics(d).num_steps
        ),
        rlds2reverb.map_fields,
        lambda d: [rlds2reverb.formats.to_ted(d)],
    ):
      with self.assertRaisesRegex(tf.errors.InvalidArgumentError, _SENTENCE):
        list(function(data))


class ConversionTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(
      {},
      {'options': rlds2reverb.ConversionOptions(_STREAM)},
      {'block_length': 2},
      {
          'block_length': 2,
          'options': rlds2reverb.ConversionOptions(_STREAM),
      },
      {
          'options': rlds2reverb.ConversionOptions(
              rlds2reverb.ConversionRules(nan='invalid')
          )
      },
      {'policy_info_fn': lambda current, following: following['reward']},
  )
  @pytest.mark.long
  def test_refused_whole(self, **settings):
    episodes = [golden.COMPLETE]
    converted = rlds2reverb.convert_rlds_to_trajectories(
        golden.stacked(episodes), **settings, batched=True
    ).unbatch()
    for name, (bad, found) in _BAD.items():
      for after in ([], [golden.COMPLETE]):
        with self.subTest(f'{name}, {len(after)} after'):
          episodes[:] = [golden.TRUNCATED, bad, *after]
          frames, error = golden.frames_and_error(converted)
          self.assertLen(frames, 4)
          self.assertIn(f'{_SENTENCE} Found at episode 1: ', error.message)
          for part in found:
            self.assertIn(part, error.message)

  @parameterized.parameters(
      {},
      {'block_length': 2},
      {'nan': 'invalid'},
      {'policy_info_fn': lambda current, following: following['reward']},
  )
  def test_skipped(self, nan='report', **settings):
    bad = [episode for episode, _ in _BAD.values()]
    report = rlds2reverb.ConversionReport()
    blocks = rlds2reverb.convert_rlds_to_trajectories(
        golden.stacked([golden.TRUNCATED, *bad, golden.COMPLETE]),
        options=options_lib.ConversionOptions(
            rules=rlds2reverb.ConversionRules(invalid_episodes='skip', nan=nan),
            report=report,
        ),
        **settings,
        batched=True,
    )
    self.assertAllEqual(
        [frame.action for frame in golden.frames_of(blocks.unbatch())],
        [110, 111, 112, 113, 100, 101, 102, 103],
    )
    self.assertEqual(
        [skipped.episode for skipped in report.skipped_episodes],
        [1, 2, 3, 4],
    )
    self.assertEqual(
        report.skipped_episodes[0].reason,
        f'{golden.UNEQUAL_LENGTHS} Found at episode 1: action: 3,'
        ' discount: 4, is_first: 4, is_last: 4, is_terminal: 4,'
        ' observation: 4, reward: 4.',
    )

  def test_before_every_other_rule(self):
    bad = {
        **golden.INVALID_CASES['terminal_before_last'].episode,
        'action': np.zeros([2], np.int64),
    }
    _, error = golden.frames_and_error(
        rlds2reverb.convert_rlds_to_trajectories(golden.stacked([bad]))
    )
    self.assertIn(_SENTENCE, error.message)

  def test_fields_that_are_not_used_may_differ(self):
    episode = {**golden.COMPLETE, 'other': np.zeros([9], np.float32)}
    data = golden.stacked([episode])
    for converted in (data, rlds2reverb.map_fields(data)):
      golden.assert_frames_equal(
          self,
          golden.frames_of(rlds2reverb.convert_rlds_to_trajectories(converted)),
          golden.expected_frames([golden.COMPLETE]),
      )

  def test_sequences(self):
    data = golden.stacked([golden.COMPLETE, _SHORT_ACTION])
    sequences, error = golden.frames_and_error(
        rlds2reverb.convert_rlds_to_sequences(data, rlds2reverb.Windows(2))
    )
    self.assertLen(sequences, 3)
    self.assertIn(_SENTENCE, error.message)


class MappingTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(
      {'reward': lambda episode: episode['steps']['reward'][1:]},
      {'is_terminal': lambda episode: episode['steps']['is_last'][:-1]},
      {'action': ['action', lambda e: e['steps']['reward'][1:, None]]},
      {'observation': {'a': lambda e: e['steps']['reward'][1:]}},
  )
  def test_function_that_returns_another_length(self, **sources):
    mapping = rlds2reverb.fields.StepMapping(**sources)
    steps = dict(golden.COMPLETE)
    steps['action'] = steps['action'][:, None].astype(np.float32)
    (field,) = sources
    for name, call in {
        'eagerly': lambda: mapping(
            {'steps': tf.nest.map_structure(tf.constant, steps)}
        ),
        'in_map': lambda: list(
            rlds2reverb.map_fields(golden.stacked([steps]), mapping)
        ),
        'nested': lambda: list(
            rlds2reverb.map_fields(golden.nested([steps]), mapping)
        ),
    }.items():
      with self.subTest(name):
        with self.assertRaises(tf.errors.InvalidArgumentError) as error:
          call()
        message = _unbracketed(error)
        self.assertIn(_SENTENCE, message)
        self.assertRegex(message, rf'{field}.*: 3.*steps: 4')

  def test_length_is_that_of_a_field_that_is_used(self):
    steps = {'a_field': np.zeros([9], np.float32), **golden.COMPLETE}
    mapping = rlds2reverb.fields.StepMapping(
        reward=2.0,
        is_terminal=rlds2reverb.fields.TerminalOnSuccess('is_last'),
    )
    (mapped,) = rlds2reverb.map_fields(
        golden.stacked([steps]), mapping
    ).as_numpy_iterator()
    self.assertAllEqual(mapped['steps']['reward'], [2, 2, 2, 2])
    self.assertAllEqual(mapped['steps']['is_terminal'], [0, 0, 0, 1])


if __name__ == '__main__':
  tf.test.main()
