"""Tests of the conversion of RLDS episodes to trajectories.

Golden and random episodes, valid and corrupted, are compared with
`golden.expected_frames` and `golden.find_fault`, and with TF-Agents.
"""

import itertools

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.replay_buffers import rlds_to_reverb as original

import rlds2reverb
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.trajectories import conversion
from rlds2reverb.trajectories import specs
from tests import golden

_FORMS = golden.FORMS_AND_BATCHES
_INVALID = golden.INVALID_CASES
_EMPTY = _INVALID['empty'].episode
# Rules that say no more than that an episode with NaN is invalid.
_SKIP = {'invalid_episodes': 'skip', 'nan': 'invalid'}


def _options(report=None, policy_info_fn=None, **rules):
  return rlds2reverb.ConversionOptions(
      rules=rlds2reverb.ConversionRules(**rules),
      report=report,
      policy_info_fn=policy_info_fn,
  )


def _convert(data, *args, report=None, rules=None, **kwargs):
  return rlds2reverb.convert_rlds_to_trajectories(
      data, *args, options=_options(report, **(rules or {})), **kwargs
  )


def _replaced(episode, **leaves):
  """Returns `episode` with other leaves, of `episode`'s dtypes."""
  return {
      name: np.array(leaves[name], leaf.dtype) if name in leaves else leaf
      for name, leaf in episode.items()
  }


def _cut(episode, *bounds):
  return tf.nest.map_structure(lambda leaf: leaf[slice(*bounds)], episode)


def _expected_places(episodes, block_length, batch_size):
  """Returns the episodes, the first step and the row splits of each block."""
  lengths = list(map(golden.length_of, episodes))
  if block_length:
    return [
        ([episode], start, [0, min(block_length, length - start)])
        for episode, length in enumerate(lengths)
        for start in range(0, length, block_length)
    ]
  places = []
  for start in range(0, len(episodes), batch_size):
    some = list(range(len(episodes)))[start : start + batch_size]
    splits = [0, *itertools.accumulate(lengths[episode] for episode in some)]
    places.append((some, 0, splits))
  return places


class ValidEpisodesTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.parameters(
      ('stacked', {'block_length': 3}, 3, None),
      ('nested', {}, None, 100),
      ('batched', {'single_episode_blocks': True}, None, 1),
      ('batched', {'block_length': 2}, 2, None),
  )
  @pytest.mark.few(2)
  def test_golden_episodes_in_blocks(self, form, arguments, *sizes):
    episodes = [golden.COMPLETE]
    data = conversion.trajectory_blocks(
        _FORMS[form](episodes), _options(), **arguments
    )
    for name, case in golden.CASES.items():
      with self.subTest(name):
        episodes[:] = case.episodes
        blocks = list(data.as_numpy_iterator())
        frames = sum((golden.rows_of(block.frames) for block in blocks), [])
        self.assertEqual([f.step_type for f in frames], case.step_type)
        self.assertEqual(
            [f.next_step_type for f in frames], case.next_step_type
        )
        self.assertAllEqual(
            [f.discount for f in frames], np.float32(case.discount)
        )
        golden.assert_frames_equal(
            self, frames, golden.expected_frames(case.episodes)
        )
        self.assertEqual(
            [
                (b.episode_indices.tolist(), int(b.step), b.row_splits.tolist())
                for b in blocks
            ],
            _expected_places(case.episodes, *sizes),
        )
    episodes.clear()
    self.assertEmpty(list(data))

  @parameterized.named_parameters(
      ('flat', 'nested', {}, 3),
      ('nested_fields', 'batched', {'nested_fields': True}, None),
      ('int32_discount', 'batched', {'discount_dtype': np.int32}, 2),
      (
          'discount_of_shape_one',
          'nested',
          {'discount_dtype': np.float64, 'discount_shape': (1,)},
          None,
      ),
  )
  @pytest.mark.few(1)
  def test_random_episodes(self, form, case, block_length):
    episodes = golden.random_episodes(np.random.default_rng(1), 25, **case)
    for episode in episodes:
      if not case.get('nested_fields'):
        cost = (episode['reward'].astype(np.float64),)
        episode['reward'] = {'task': episode['reward'], 'cost': cost}
      for flag in ('is_first', 'is_last', 'is_terminal'):
        if 'discount_shape' in case:
          episode[flag] = episode[flag].astype(np.int64)[:, np.newaxis]
    data = golden.with_unused_fields(_FORMS[form](episodes))
    blocks = _convert(data, block_length=block_length, batched=True)
    golden.assert_frames_equal(
        self, golden.rows_of_blocks(blocks), golden.expected_frames(episodes)
    )
    spec = rlds2reverb.create_trajectory_data_spec(data)
    for block, leaf in zip(*map(tf.nest.flatten, (blocks.element_spec, spec))):
      self.assertTrue(leaf.shape.is_fully_defined())
      self.assertEqual(block.shape.as_list(), [None, *leaf.shape])
      self.assertEqual(block.dtype, leaf.dtype)

  def test_in_map_and_in_a_function(self):
    data = golden.nested([golden.TRUNCATED, golden.COMPLETE])
    seen = []
    shown = _convert(data).map(
        lambda frame: seen.append(frame) or frame.observation[..., 0]
    )
    self.assertEqual(seen[0].observation.shape, [2])
    self.assertAllEqual(list(shown), [10, 11, 12, 13, 0, 1, 2, 3])

    @tf.function
    def sum_of_discounts():
      return _convert(data).reduce(0.0, lambda total, one: total + one.discount)

    self.assertAlmostEqual(float(sum_of_discounts()), 6.9, places=5)


class PolicyInfoTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.parameters(('stacked', 1), ('batched', None))
  @pytest.mark.few(1)
  def test_info_fn_receives_both_steps(self, form, block_length):
    def info_fn(current, following):
      return (
          following['observation']['camera'],
          {'state': current['observation']['state'][0]},
          following['reward'] - current['reward'],
          (following['is_first'], following['is_last'], following['discount']),
      )

    episodes = golden.random_episodes(
        np.random.default_rng(8), 15, nested_fields=True
    )
    data = golden.with_unused_fields(_FORMS[form](episodes))
    blocks = _convert(data, info_fn, block_length=block_length, batched=True)
    golden.assert_frames_equal(
        self,
        golden.rows_of_blocks(blocks),
        # Before the last one, and after it, comes a first step of zeros.
        golden.expected_frames(episodes, policy_info=info_fn),
    )
    spec = rlds2reverb.create_trajectory_data_spec(data, info_fn)
    for block, leaf in zip(*map(tf.nest.flatten, (blocks.element_spec, spec))):
      self.assertEqual(block.shape.as_list(), [None, *leaf.shape])
    episodes.clear()
    self.assertEmpty(list(blocks))

  def test_reads_fields_that_are_in_no_frame(self):
    reads = (
        lambda step: step['return'],
        lambda step: step.get('return', step.get('no such')),
        lambda step: step.get('return', 0),
        lambda step: dict(step.items())['return'],
        lambda step: step.values() and step['return'],
        lambda step: step[sorted(step.keys())[-2]],
        lambda step: {**step}['return'],
        lambda step: step.copy()['return'],
        lambda step: tf.nest.map_structure(lambda x: x, dict(step))['return'],
    )
    episodes = [
        {**episode, 'return': episode['reward'].astype(np.float64) * 2}
        for episode in (golden.COMPLETE, golden.SINGLE_TERMINAL)
    ]
    data = golden.stacked(episodes)
    spec = steps_lib.get_steps_spec(data.element_spec).step
    for read in (*reads, lambda step: len(list(step))):
      self.assertIn(
          'return', specs.PolicyInfo(lambda a, _: read(a), spec).fields
      )
    info_fn = lambda step, following: (reads[0](step), reads[0](following))
    frames = golden.frames_of(_convert(data, info_fn))
    infos = np.transpose([frame.policy_info for frame in frames])
    self.assertAllEqual(infos, [[0, 20, 40, 60, 400], [20, 40, 60, 400, 0]])
    self.assertDTypeEqual(frames[0].policy_info[0], np.float64)

  def test_list_becomes_one_tensor_as_in_tf_data(self):
    info_fn = lambda step, following: {'x': [step['reward'], 2.0]}
    data = golden.stacked([golden.COMPLETE])
    spec = specs.create_trajectory_data_spec(data, info_fn).policy_info
    self.assertEqual(spec, {'x': tf.TensorSpec([2], tf.float32)})
    for frame in golden.frames_of(_convert(data, info_fn)):
      self.assertAllEqual(frame.policy_info['x'], [frame.reward, 2])
    with self.assertRaisesRegex(
        ValueError, 'its elements differ.*Return a tuple'
    ):
      _convert(data, lambda step, _: [step['reward'], step['is_last']])

  def test_images_of_unknown_size_and_squeezed_values(self):
    episode = dict(golden.COMPLETE)
    episode['observation'] = np.arange(120, dtype=np.uint8).reshape(4, 2, 5, 3)
    spec = golden.stacked_spec(episode)
    spec['observation'] = tf.TensorSpec([None, None, None, 3], tf.uint8)
    calls = []

    def info_fn(current, following):
      calls.append(current)
      return following['observation'], tf.squeeze(current['reward'][None])

    frames = _convert(golden.nested([episode], spec), info_fn)
    traced = len(calls)
    golden.assert_frames_equal(
        self,
        golden.frames_of(frames),
        golden.expected_frames(
            [episode], policy_info=lambda a, b: (b['observation'], a['reward'])
        ),
    )
    self.assertLen(calls, traced)


class InvalidEpisodesTest(tf.test.TestCase, parameterized.TestCase):

  def _lists_of_episodes(self, rng):
    """Golden invalid episodes among valid ones, and random ones."""
    for case in _INVALID.values():
      before = [golden.COMPLETE, golden.SINGLE_TERMINAL]
      yield [*before, case.episode, golden.TRUNCATED]
      yield [case.episode]
    for _ in range(12):
      episodes = [
          golden.make_episode(
              rng.uniform(size=rng.integers(1, 6)),
              terminal=bool(rng.integers(2)),
              base=int(rng.integers(99)),
          )
          for _ in range(6)
      ]
      yield [
          golden.corrupted(rng, episode) if rng.random() < 0.3 else episode
          for episode in episodes
      ]

  @parameterized.parameters(
      ('batched', 2, None),
      ('stacked', None, None),
      ('nested', None, lambda current, following: following['reward']),
  )
  @pytest.mark.few(1)
  def test_invalid_episodes_are_raised_or_skipped(
      self, form, block_length, info_fn
  ):
    episodes = [golden.COMPLETE]
    data = _FORMS[form](episodes)
    convert = lambda rules, report=None: _convert(
        data,
        info_fn,
        block_length=block_length,
        batched=True,
        rules=rules,
        report=report,
    ).unbatch()
    raising = convert({'nan': 'invalid'})
    seen = set()
    for episodes[:] in self._lists_of_episodes(np.random.default_rng(9)):
      faults = [golden.find_fault(episode) for episode in episodes]
      bad = next((i for i, fault in enumerate(faults) if fault), None)
      frames, error = golden.frames_and_error(raising)
      golden.assert_frames_equal(
          self,
          frames,
          golden.expected_frames(episodes[:bad], policy_info=info_fn),
          may_be_empty=True,
      )
      self.assertEqual(error is None, bad is None)
      if bad is not None:
        sentence, step = faults[bad]
        seen.add(sentence)
        self.assertIn(sentence, error.message)
        self.assertIn(golden.place(bad, step), error.message)
    self.assertLen(seen, 8)

    episodes[:] = sum(self._lists_of_episodes(np.random.default_rng(10)), [])
    faults = [golden.find_fault(episode) for episode in episodes]
    expected = golden.expected_frames(
        [episode for episode, fault in zip(episodes, faults) if not fault],
        policy_info=info_fn,
    )
    report = rlds2reverb.ConversionReport()
    skipping = convert(_SKIP, report)
    for _ in range(2):
      golden.assert_frames_equal(self, golden.frames_of(skipping), expected)
      self.assertEqual(
          [
              (s.episode, s.fault.rule, s.fault.step)
              for s in report.skipped_episodes
          ],
          [
              (index, fault[0], -1 if fault[1] is None else fault[1])
              for index, fault in enumerate(faults)
              if fault
          ],
      )
    for skipped in report.skipped_episodes:
      self.assertStartsWith(skipped.reason, skipped.fault.rule)
      self.assertIn(
          golden.place(skipped.episode, faults[skipped.episode][1]),
          skipped.reason,
      )

  def test_oracle_finds_the_fault_of_each_case(self):
    for name, case in _INVALID.items():
      with self.subTest(name):
        self.assertEqual(
            golden.find_fault(case.episode), (case.sentence, case.step)
        )
    for case in golden.CASES.values():
      self.assertEqual(set(map(golden.find_fault, case.episodes)), {None})

  @parameterized.parameters(
      (
          'discount_above_one',
          'Discount must lie in [0, 1]. Found at episode 0, step 1: is_first=0,'
          ' is_last=0, is_terminal=0, discount=2.5.',
      ),
      (
          'stops_at_mid',
          'If the data set never sets is_last, StepMapping(is_last=None) marks',
      ),
  )
  def test_message_explains_the_fix(self, name, message):
    _, error = golden.frames_and_error(
        _convert(golden.stacked([_INVALID[name].episode]))
    )
    self.assertIn(message, error.message)


class TfAgentsTest(tf.test.TestCase, parameterized.TestCase):

  def test_frames_equal_tf_agents(self):
    def info_fn(current, following):
      return {
          'delta': following['reward'] - current['reward'],
          'next': (following['observation'], following['is_first']),
          # No sum: its last bit depends on how a graph is optimized.
          'largest_action': tf.reduce_max(tf.abs(current['action'])),
      }

    data = golden.nested(golden.random_episodes(np.random.default_rng(6), 12))
    expected = golden.frames_of(
        original.convert_rlds_to_trajectories(data, info_fn)
    )
    for validation in ('strict', 'tf_agents'):
      frames = _convert(data, info_fn, rules={'validation': validation})
      golden.assert_frames_equal(self, golden.frames_of(frames), expected)

  def _streams(self, rng):
    """Streams of episodes, most of which TF-Agents accepts."""
    for name in (
        'first_alone',
        'first_first',
        'mid_at_start',
        'last_first',
        'discount_above_one',
    ):
      yield [_INVALID[name].episode]
    yield [_EMPTY, golden.COMPLETE]
    yield [_replaced(golden.COMPLETE, is_terminal=[0, 1, 0, 0])]
    yield [golden.joined(golden.TRUNCATED, golden.COMPLETE)]
    yield [_cut(golden.COMPLETE, 2), _cut(golden.COMPLETE, 2, None)]
    # Faults between two episodes, and one that is found two blocks on.
    tail = _cut(golden.COMPLETE, 1, None)
    no_last = _replaced(golden.COMPLETE, is_last=[0] * 4, is_terminal=[0] * 4)
    for following in (
        [golden.TRUNCATED, tail],
        [golden.TRUNCATED, _EMPTY, _EMPTY, tail],
        [no_last, golden.COMPLETE],
        [no_last, _EMPTY],
    ):
      yield [golden.TRUNCATED, *following]
    yield [
        _replaced(no_last, is_first=[0] * 4, is_last=[0, 0, 1, 1]),
        golden.COMPLETE,
    ]
    for _ in range(12):
      episodes = []
      for length in rng.integers(0, 6, rng.integers(1, 5)):
        discount = rng.uniform(-1, 2, length)
        one = golden.make_episode(discount, terminal=bool(rng.integers(2)))
        episodes.append(
            golden.corrupted(rng, one) if rng.random() < 0.2 else one
        )
      yield [golden.joined(*episodes)] if rng.random() < 0.3 else episodes

  @parameterized.parameters(('batched', 2), ('stacked', 1), ('nested', None))
  @pytest.mark.long
  def test_same_streams_are_valid_as_in_tf_agents(self, form, block_length):
    episodes = [golden.COMPLETE]
    ours = _convert(
        _FORMS[form](episodes),
        block_length=block_length,
        rules={'validation': 'tf_agents'},
        batched=True,
    ).unbatch()
    theirs = original.convert_rlds_to_trajectories(golden.nested(episodes))
    sentences = set()
    for episodes[:] in self._streams(np.random.default_rng(11)):
      expected, refused = golden.frames_and_error(theirs)
      frames, error = golden.frames_and_error(ours)
      self.assertEqual(error is None, refused is None, episodes)
      if error is None:
        golden.assert_frames_equal(self, frames, expected, may_be_empty=True)
        continue
      # TF-Agents stops at the step at fault, and we stop before its episode.
      bad, step = 0, len(expected)
      while step >= golden.length_of(episodes[bad]):
        step -= golden.length_of(episodes[bad])
        bad += 1
      golden.assert_frames_equal(
          self, frames, expected[: len(expected) - step], may_be_empty=True
      )
      self.assertIn(golden.place(bad, step), error.message)
      (sentence,) = [
          one
          for one in (
              golden.TERMINAL_NOT_LAST,
              golden.FIRST_AFTER_MID,
              golden.NO_FIRST_AFTER_LAST,
          )
          if one in refused.message
      ]
      self.assertIn(sentence, error.message)
      sentences.add(sentence)
    self.assertLen(sentences, 3)
    episodes.clear()
    self.assertEmpty(list(ours))


if __name__ == '__main__':
  tf.test.main()
