"""Tests of the conversion of RLDS episodes to trajectories."""

import itertools

from absl.testing import parameterized
import gin
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.replay_buffers import rlds_to_reverb as original

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.formats import flat_arrays
from rlds2reverb.trajectories import conversion
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import report as report_lib
from rlds2reverb.trajectories import rules as rules_lib
from rlds2reverb.trajectories import sequences
from rlds2reverb.trajectories import specs
from tests import golden

_FORMS = tuple(golden.FORMS_AND_BATCHES.items())


def _forms_and_lengths(*lengths):
  """Returns named parameters: a form, and the length of blocks."""
  return [
      (f'{name}_{length}', form, length)
      for (name, form), length in itertools.product(_FORMS, lengths)
      # Where blocks have a length, batches are not read.
      if length is None or form is not golden.batched
  ]


_EVERY_CASE = list(
    itertools.chain(*(case.episodes for case in golden.CASES.values()))
)


def _replaced(episode, **leaves):
  """Returns `episode` with other leaves, of `episode`'s dtypes."""
  return {
      name: np.array(leaves[name], leaf.dtype) if name in leaves else leaf
      for name, leaf in episode.items()
  }


class GoldenEpisodesTest(tf.test.TestCase, parameterized.TestCase):

  def _assert_rows(self, frames, case):
    self.assertEqual([frame.step_type for frame in frames], case.step_type)
    self.assertEqual(
        [frame.next_step_type for frame in frames], case.next_step_type
    )
    self.assertAllEqual(
        [frame.discount for frame in frames], np.float32(case.discount)
    )
    golden.assert_frames_equal(
        self, frames, golden.expected_frames(case.episodes)
    )

  @parameterized.named_parameters(*_FORMS)
  def test_frames(self, form):
    episodes = [golden.COMPLETE]
    dataset = conversion.convert_rlds_to_trajectories(form(episodes))
    for name, case in golden.CASES.items():
      with self.subTest(name):
        episodes[:] = case.episodes
        self._assert_rows(golden.frames_of(dataset), case)

  @parameterized.named_parameters(*_forms_and_lengths(1, 2, 3, None))
  def test_blocks(self, form, block_length):
    episodes = [golden.COMPLETE]
    dataset = conversion.convert_rlds_to_trajectories(
        form(episodes), block_length=block_length, batched=True
    )
    for name, case in golden.CASES.items():
      with self.subTest(name):
        episodes[:] = case.episodes
        blocks = list(dataset.as_numpy_iterator())
        self._assert_rows(sum(map(golden.rows_of, blocks), []), case)
        expected_lengths = []
        for episode in case.episodes:
          left = golden.length_of(episode)
          while left:
            expected_lengths.append(min(left, block_length or left))
            left -= expected_lengths[-1]
        if block_length is None:
          # Batches have three episodes, and a block of others many.
          size = 3 if form is golden.batched else len(expected_lengths)
          expected_lengths = [
              sum(expected_lengths[start : start + size])
              for start in range(0, len(expected_lengths), size)
          ]
        self.assertEqual(
            [len(block.reward) for block in blocks], expected_lengths
        )

  @parameterized.named_parameters(*_FORMS)
  def test_blocks_know_their_place(self, form):
    dataset = conversion.trajectory_blocks(
        form(golden.CASES['truncated_single_complete'].episodes),
        options_lib.ConversionOptions(),
        block_length=3,
    )
    self.assertEqual(
        [
            (
                *block.episode_ids.tolist(),
                int(block.step),
                *block.row_splits.tolist(),
            )
            for block in dataset.as_numpy_iterator()
        ],
        [(0, 0, 0, 3), (0, 3, 0, 1), (1, 0, 0, 1), (2, 0, 0, 3), (2, 3, 0, 1)],
    )

  def test_blocks_of_batches_know_their_place(self):
    case = golden.CASES['truncated_single_complete']
    self.assertEqual(list(map(golden.length_of, case.episodes)), [4, 1, 4])
    for arguments, expected in (
        ({}, [([0, 1], 0, [0, 4, 5]), ([2], 0, [0, 4])]),
        (
            {'one_episode_blocks': True},
            [([0], 0, [0, 4]), ([1], 0, [0, 1]), ([2], 0, [0, 4])],
        ),
        (
            {'block_length': 3},
            [
                ([0], 0, [0, 3]),
                ([0], 3, [0, 1]),
                ([1], 0, [0, 1]),
                ([2], 0, [0, 3]),
                ([2], 3, [0, 1]),
            ],
        ),
    ):
      with self.subTest(str(arguments)):
        blocks = conversion.trajectory_blocks(
            golden.batched(case.episodes, batch_size=2),
            options_lib.ConversionOptions(),
            **arguments,
        )
        self.assertEqual(
            [
                (
                    block.episode_ids.tolist(),
                    int(block.step),
                    block.row_splits.tolist(),
                )
                for block in blocks.as_numpy_iterator()
            ],
            expected,
        )

  @parameterized.named_parameters(*_FORMS)
  def test_no_episodes(self, form):
    rlds_data = form([], golden.stacked_spec(golden.COMPLETE))
    info_fn = lambda current, following: following['reward']
    for arguments in (
        {},
        {'rules': rules_lib.ConversionRules(validation='tf_agents')},
        {
            'policy_info_fn': info_fn,
            'rules': rules_lib.ConversionRules(invalid_episodes='skip'),
        },
    ):
      with self.subTest(str(arguments)):
        self.assertEmpty(
            golden.frames_of(
                conversion.convert_rlds_to_trajectories(
                    rlds_data,
                    options=options_lib.ConversionOptions(**arguments),
                )
            )
        )

  def test_integer_flags_of_shape_one(self):
    episode = dict(golden.COMPLETE)
    for flag in ('is_first', 'is_last', 'is_terminal'):
      episode[flag] = episode[flag].astype(np.int64)[:, np.newaxis]
    for name, form in _FORMS:
      with self.subTest(name):
        golden.assert_frames_equal(
            self,
            golden.frames_of(
                conversion.convert_rlds_to_trajectories(form([episode]))
            ),
            golden.expected_frames([golden.COMPLETE]),
        )


@pytest.mark.long
class RandomEpisodesTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.named_parameters(
      (f'{name}_{case_name}', form, seed, case)
      for (name, form), (seed, (case_name, case)) in itertools.product(
          _FORMS,
          enumerate(
              (
                  ('flat', {}),
                  ('nested_fields', {'nested_fields': True}),
                  (
                      'float64_discount',
                      {'nested_fields': True, 'discount_dtype': np.float64},
                  ),
                  ('int32_discount', {'discount_dtype': np.int32}),
                  (
                      'float64_discount_of_shape_one',
                      {'discount_dtype': np.float64, 'discount_shape': (1,)},
                  ),
              )
          ),
      )
  )
  def test_equal_a_computation_step_by_step(self, form, seed, case):
    episodes = golden.random_episodes(np.random.default_rng(seed), 25, **case)
    rlds_data = golden.with_unused_fields(form(episodes))
    expected = golden.expected_frames(episodes)
    golden.assert_frames_equal(
        self,
        golden.rows_of_blocks(
            conversion.convert_rlds_to_trajectories(
                rlds_data, block_length=3, batched=True
            )
        ),
        expected,
    )
    golden.assert_frames_equal(
        self,
        golden.frames_of(conversion.convert_rlds_to_trajectories(rlds_data)),
        expected,
    )

  @parameterized.named_parameters(*_FORMS)
  def test_nested_reward(self, form):
    episodes = golden.random_episodes(np.random.default_rng(5), 6)
    for episode in episodes:
      episode['reward'] = {
          'task': episode['reward'],
          'cost': (episode['reward'].astype(np.float64),),
      }
    golden.assert_frames_equal(
        self,
        golden.frames_of(
            conversion.convert_rlds_to_trajectories(form(episodes))
        ),
        golden.expected_frames(episodes),
    )

  def test_equal_tf_agents_on_flat_float32_steps(self):
    episodes = golden.random_episodes(np.random.default_rng(6), 30)
    rlds_data = golden.nested(episodes)
    for validation in ('strict', 'tf_agents'):
      with self.subTest(validation):
        golden.assert_frames_equal(
            self,
            golden.frames_of(
                conversion.convert_rlds_to_trajectories(
                    rlds_data,
                    options=options_lib.ConversionOptions(
                        rules=rules_lib.ConversionRules(validation=validation)
                    ),
                )
            ),
            golden.frames_of(original.convert_rlds_to_trajectories(rlds_data)),
        )


class FlatArraysTest(tf.test.TestCase):

  def test_frames(self):
    rlds_data = flat_arrays.from_flat_arrays(
        {
            'observations': np.array([0, 1, 2, 10, 11], np.float32),
            'next_observations': np.array([1, 2, 3, 11, 12], np.float32),
            'actions': np.array([5, 6, 7, 8, 9]),
            'rewards': np.array([0.1, 0.2, 0.3, 0.4, 0.5]),
            'terminals': np.array([0, 0, 1, 0, 0]),
        }
    )
    frames = golden.frames_of(
        conversion.convert_rlds_to_trajectories(rlds_data)
    )
    self.assertEqual([f.step_type for f in frames], [0, 1, 1, 2, 0, 1, 2])
    self.assertEqual([f.next_step_type for f in frames], [1, 1, 2, 0, 1, 2, 0])
    self.assertEqual([f.discount for f in frames], [1, 1, 0, 0, 1, 1, 1])
    self.assertEqual([f.observation for f in frames], [0, 1, 2, 3, 10, 11, 12])


class PolicyInfoTest(tf.test.TestCase, parameterized.TestCase):

  @pytest.mark.long
  def test_equal_tf_agents(self):
    def info_fn(current, following):
      return {
          'delta': following['reward'] - current['reward'],
          'next': (following['observation'], following['is_first']),
          # No sum: its last bit depends on how a graph is optimized.
          'largest_action': tf.reduce_max(tf.abs(current['action'])),
          'discount': following['discount'],
      }

    episodes = golden.random_episodes(np.random.default_rng(7), 30)
    expected = golden.frames_of(
        original.convert_rlds_to_trajectories(golden.nested(episodes), info_fn)
    )
    for name, form in _FORMS:
      with self.subTest(name):
        golden.assert_frames_equal(
            self,
            golden.frames_of(
                conversion.convert_rlds_to_trajectories(form(episodes), info_fn)
            ),
            expected,
        )

  def test_function_that_squeezes_all_dimensions(self):
    episodes = [golden.SINGLE_TRUNCATED, golden.COMPLETE]
    frames = golden.frames_of(
        conversion.convert_rlds_to_trajectories(
            golden.stacked(episodes),
            lambda current, following: tf.squeeze(current['observation'][:1]),
        )
    )
    self.assertAllEqual(
        [frame.policy_info for frame in frames], [30, 0, 1, 2, 3]
    )

  @parameterized.named_parameters(*_forms_and_lengths(1, None))
  def test_nested_fields_of_both_steps(self, form, block_length):
    def info_fn(current, following):
      return (
          following['observation']['camera'],
          {'state': current['observation']['state'][0]},
          following['reward'] - current['reward'],
      )

    episodes = golden.random_episodes(
        np.random.default_rng(8), 15, nested_fields=True
    )
    golden.assert_frames_equal(
        self,
        golden.rows_of_blocks(
            conversion.convert_rlds_to_trajectories(
                golden.with_unused_fields(form(episodes)),
                info_fn,
                block_length=block_length,
                batched=True,
            )
        ),
        golden.expected_frames(episodes, policy_info=info_fn),
    )

  @parameterized.named_parameters(*_FORMS)
  def test_last_step_is_followed_by_a_first_step_of_zeros(self, form):
    def info_fn(unused_current, following):
      return {name: following[name] for name in golden.COMPLETE}

    frames = golden.frames_of(
        conversion.convert_rlds_to_trajectories(
            form([golden.TRUNCATED, golden.COMPLETE]), info_fn
        )
    )
    self.assertAllEqual(
        frames[3].policy_info['observation'], golden.COMPLETE['observation'][0]
    )
    end = frames[-1].policy_info
    self.assertAllEqual(end['observation'], [0, 0])
    self.assertEqual(end['action'], 0)
    self.assertEqual(end['reward'], 0)
    self.assertEqual(end['discount'], 0)
    self.assertTrue(end['is_first'])
    self.assertFalse(end['is_last'])
    self.assertFalse(end['is_terminal'])

  @parameterized.named_parameters(*_FORMS)
  @pytest.mark.long
  def test_reads_fields_that_are_in_no_frame(self, form):
    episodes = [dict(golden.COMPLETE), dict(golden.SINGLE_TERMINAL)]
    for episode in episodes:
      episode['return'] = (episode['reward'] * 2).astype(np.float64)
      episode['info'] = {'seed': 7 + episode['action']}
    functions = {
        'by_key': lambda current, following: (
            current['return'],
            following['info']['seed'],
        ),
        'by_get': lambda current, following: (
            current.get('return'),
            following.get('info', {'seed': 0})['seed'],
        ),
        'by_items': lambda current, following: (
            dict(current.items())['return'],
            {name: value for name, value in following.items()}['info']['seed'],
        ),
        'by_unpacking': lambda current, following: (
            {**current}['return'],
            dict(following)['info']['seed'],
        ),
    }
    for name, info_fn in functions.items():
      with self.subTest(name):
        frames = golden.frames_of(
            conversion.convert_rlds_to_trajectories(
                golden.with_unused_fields(form(episodes))
                if name in ('by_key', 'by_get')
                else form(episodes),
                info_fn,
            )
        )
        self.assertAllEqual(
            [frame.policy_info[0] for frame in frames], [0, 20, 40, 60, 400]
        )
        self.assertDTypeEqual(frames[0].policy_info[0], np.float64)
        self.assertAllEqual(
            [frame.policy_info[1] for frame in frames],
            [108, 109, 110, 127, 0],
        )

  @parameterized.named_parameters(*_FORMS)
  def test_image_of_unknown_size(self, form):
    episode = dict(golden.COMPLETE)
    episode['observation'] = np.arange(4 * 2 * 5 * 3, dtype=np.uint8).reshape(
        (4, 2, 5, 3)
    )
    spec = golden.stacked_spec(episode)
    spec['observation'] = tf.TensorSpec([None, None, None, 3], tf.uint8)
    frames = golden.frames_of(
        conversion.convert_rlds_to_trajectories(
            form([episode], spec),
            lambda current, following: following['observation'],
        )
    )
    golden.assert_frames_equal(
        self,
        frames,
        golden.expected_frames(
            [episode],
            policy_info=lambda current, following: following['observation'],
        ),
    )
    self.assertAllEqual(frames[-1].policy_info, np.zeros([2, 5, 3]))

  def test_traced_once_per_pipeline(self):
    infos = []

    def info_fn(current, following):
      infos.append(current)
      self.assertEqual(current['observation'].shape, [2])
      return tf.constant(len(following), tf.int32)

    dataset = conversion.convert_rlds_to_trajectories(
        golden.nested([golden.COMPLETE, golden.TRUNCATED]), info_fn
    )
    calls = len(infos)
    self.assertLen(golden.frames_of(dataset), 8)
    self.assertLen(infos, calls)


class StrictValidationTest(tf.test.TestCase, parameterized.TestCase):

  def test_invalid_cases(self):
    self._check_invalid_cases(golden.stacked)

  @parameterized.named_parameters(
      (name, form) for name, form in _FORMS if name != 'stacked'
  )
  @pytest.mark.long
  def test_invalid_cases_in(self, form):
    self._check_invalid_cases(form)

  @parameterized.named_parameters(
      (f'{name}_{extra_name}', form, extra)
      for (name, form), (extra_name, extra) in itertools.product(
          _FORMS,
          (
              ('block_length_2', {'block_length': 2}),
              (
                  'policy_info',
                  {'policy_info_fn': lambda current, following: ()},
              ),
          ),
      )
  )
  @pytest.mark.long
  def test_invalid_cases_with(self, form, extra):
    self._check_invalid_cases(form, **extra)

  def _check_invalid_cases(self, form, **extra):
    episodes = [golden.COMPLETE]
    dataset = conversion.convert_rlds_to_trajectories(
        form(episodes), **extra, batched=True
    ).unbatch()
    before = [golden.COMPLETE, golden.SINGLE_TERMINAL]
    for name, case in golden.INVALID_CASES.items():
      with self.subTest(name):
        episodes[:] = [*before, case.episode, golden.TRUNCATED]
        frames, error = golden.frames_and_error(dataset)
        self.assertIsNotNone(error)
        self.assertIn(case.sentence, error.message)
        self.assertIn(golden.place(2, case.step), error.message)
        golden.assert_frames_equal(self, frames, golden.expected_frames(before))
        episodes[:] = [case.episode]
        frames, error = golden.frames_and_error(dataset)
        self.assertEmpty(frames)
        self.assertIn(golden.place(0, case.step), error.message)

  def test_message_tells_what_was_found(self):
    dataset = conversion.convert_rlds_to_trajectories(
        golden.stacked([golden.INVALID_CASES['discount_above_one'].episode])
    )
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError,
        'Found at episode 0, step 1: is_first=0, is_last=0, is_terminal=0,'
        ' discount=2.5',
    ):
      golden.frames_of(dataset)

  def test_cases_agree_with_the_checker(self):
    for name, case in golden.INVALID_CASES.items():
      with self.subTest(name):
        self.assertEqual(
            golden.find_fault(case.episode), (case.sentence, case.step)
        )
    for episode in _EVERY_CASE:
      self.assertIsNone(golden.find_fault(episode))

  @parameterized.named_parameters(*_FORMS)
  @pytest.mark.long
  def test_random_corruption_raises_at_the_first_fault(self, form):
    rng = np.random.default_rng(9)
    episodes = golden.random_episodes(rng, 1)
    dataset = conversion.convert_rlds_to_trajectories(form(episodes))
    refused = 0
    for _ in range(25):
      episodes[:] = [
          golden.corrupted(rng, episode) if rng.random() < 0.3 else episode
          for episode in golden.random_episodes(rng, 4, max_length=5)
      ]
      faults = [golden.find_fault(episode) for episode in episodes]
      bad = next((i for i, fault in enumerate(faults) if fault), None)
      frames, error = golden.frames_and_error(dataset)
      golden.assert_frames_equal(
          self,
          frames,
          golden.expected_frames(episodes[:bad]),
          may_be_empty=bad == 0,
      )
      self.assertEqual(error is not None, bad is not None, episodes)
      if bad is not None:
        refused += 1
        sentence, step = faults[bad]
        self.assertIn(sentence, error.message)
        self.assertIn(golden.place(bad, step), error.message)
    self.assertBetween(refused, 8, 20)

  @parameterized.named_parameters(
      (f'{name}_{length}', form, length)
      for (name, form), length in zip(_FORMS, (None, 2))
  )
  @pytest.mark.long
  def test_random_corruption_is_skipped(self, form, block_length):
    rng = np.random.default_rng(10)
    episodes = [
        golden.corrupted(rng, episode) if rng.random() < 0.5 else episode
        for episode in golden.random_episodes(rng, 150)
    ]
    report = report_lib.ConversionReport()
    dataset = conversion.convert_rlds_to_trajectories(
        form(episodes),
        block_length=block_length,
        options=options_lib.ConversionOptions(
            rules=rules_lib.ConversionRules(invalid_episodes='skip'),
            report=report,
        ),
        batched=True,
    )
    faults = [golden.find_fault(episode) for episode in episodes]
    expected = golden.expected_frames(
        [episode for episode, fault in zip(episodes, faults) if not fault]
    )
    bad = [index for index, fault in enumerate(faults) if fault]
    self.assertBetween(len(bad), 40, 80)
    for _ in range(2):
      golden.assert_frames_equal(self, golden.rows_of_blocks(dataset), expected)
      self.assertEqual(
          [skipped.episode for skipped in report.skipped_episodes], bad
      )
    for skipped in report.skipped_episodes:
      sentence, step = faults[skipped.episode]
      self.assertStartsWith(skipped.reason, sentence)
      self.assertIn(golden.place(skipped.episode, step), skipped.reason)
      self.assertEqual(skipped.fault.rule, sentence)
      self.assertEqual(skipped.fault.step, -1 if step is None else step)

  @pytest.mark.long
  def test_skip_with_policy_info(self):
    invalid = golden.INVALID_CASES
    info_fn = lambda current, following: following['reward']
    for name, form in _FORMS:
      with self.subTest(name):
        report = report_lib.ConversionReport()
        dataset = conversion.convert_rlds_to_trajectories(
            form(
                [
                    invalid['empty'].episode,
                    golden.TRUNCATED,
                    invalid['first_first'].episode,
                    golden.COMPLETE,
                    invalid['stops_at_mid'].episode,
                ]
            ),
            info_fn,
            options=options_lib.ConversionOptions(
                rules=rules_lib.ConversionRules(invalid_episodes='skip'),
                report=report,
            ),
        )
        golden.assert_frames_equal(
            self,
            golden.frames_of(dataset),
            golden.expected_frames(
                [golden.TRUNCATED, golden.COMPLETE], policy_info=info_fn
            ),
        )
        self.assertEqual(
            [skipped.episode for skipped in report.skipped_episodes], [0, 2, 4]
        )


class TfAgentsValidationTest(tf.test.TestCase, parameterized.TestCase):

  def test_accepts_what_strict_does_not(self):
    episodes = [golden.COMPLETE]
    rlds_data = golden.nested(episodes)
    ours = conversion.convert_rlds_to_trajectories(
        rlds_data,
        options=options_lib.ConversionOptions(
            rules=rules_lib.ConversionRules(validation='tf_agents')
        ),
    )
    theirs = original.convert_rlds_to_trajectories(rlds_data)
    invalid = golden.INVALID_CASES
    halves = [
        tf.nest.map_structure(lambda leaf: leaf[:2], golden.COMPLETE),
        tf.nest.map_structure(lambda leaf: leaf[2:], golden.COMPLETE),
    ]
    for name, accepted in {
        'first_alone': [invalid['first_alone'].episode],
        'first_first': [invalid['first_first'].episode],
        'mid_at_start': [invalid['mid_at_start'].episode],
        'last_first': [invalid['last_first'].episode],
        'discount': [invalid['discount_above_one'].episode],
        'empty': [invalid['empty'].episode, golden.COMPLETE],
        'two_merged': [golden.joined(golden.TRUNCATED, golden.COMPLETE)],
        'one_split': halves,
    }.items():
      with self.subTest(name):
        episodes[:] = accepted
        frames = golden.frames_of(ours)
        self.assertLen(frames, sum(map(golden.length_of, accepted)))
        golden.assert_frames_equal(self, frames, golden.frames_of(theirs))

  @pytest.mark.long
  def test_random_streams_as_tf_agents(self):
    rng = np.random.default_rng(11)
    episodes = [golden.COMPLETE]
    variants = {
        f'{name}_{length}': conversion.convert_rlds_to_trajectories(
            form(episodes),
            block_length=length,
            options=options_lib.ConversionOptions(
                rules=rules_lib.ConversionRules(validation='tf_agents')
            ),
            batched=True,
        ).unbatch()
        for (name, form), length in zip(_FORMS, (2, None))
    }
    theirs = original.convert_rlds_to_trajectories(golden.nested(episodes))
    rejected = 0
    for _ in range(25):
      episodes[:] = self._random_stream(rng)
      expected, expected_error = golden.frames_and_error(theirs)
      rejected += expected_error is not None
      for name, ours in variants.items():
        frames, error = golden.frames_and_error(ours)
        self.assertEqual(
            error is None, expected_error is None, (name, episodes, error)
        )
        if error is None:
          # A stream may be of empty episodes alone.
          golden.assert_frames_equal(self, frames, expected, may_be_empty=True)
          continue
        # TF-Agents stops at the step at fault, and we stop before its episode.
        bad, step = self._place(episodes, len(expected))
        golden.assert_frames_equal(
            self, frames, expected[: len(expected) - step], may_be_empty=True
        )
        self.assertIn(golden.place(bad, step), error.message)
        (sentence,) = [
            sentence
            for sentence in (
                golden.TERMINAL_NOT_LAST,
                golden.FIRST_AFTER_MID,
                golden.NO_FIRST_AFTER_LAST,
            )
            if sentence in expected_error.message
        ]
        self.assertIn(sentence, error.message)
    self.assertBetween(rejected, 6, 19)

  def _random_stream(self, rng):
    """Returns episodes with flags that break a rule of TF-Agents or not."""
    episodes = []
    for length in rng.integers(0, 6, rng.integers(1, 5)):
      discount = rng.uniform(-1, 2, length)
      terminal = bool(rng.integers(2))
      episode = golden.make_episode(discount, terminal=terminal)
      if rng.random() < 0.2:
        episode = golden.corrupted(rng, episode)
      if rng.random() < 0.2:
        episode = _replaced(episode, is_last=np.zeros_like(episode['is_last']))
        episode['is_terminal'] = episode['is_last']
      episodes.append(episode)
    if rng.random() < 0.3:
      episodes = [golden.joined(*episodes)]
    return episodes

  def _place(self, episodes, index):
    for number, episode in enumerate(episodes):
      if index < golden.length_of(episode):
        return number, index
      index -= golden.length_of(episode)
    raise IndexError(index)

  @parameterized.named_parameters(*golden.FORMS.items())
  def test_first_fault_is_told_whatever_the_block_length(self, form):
    # MID, MID, LAST, LAST: the fault is at step 2, two blocks on.
    late = _replaced(
        golden.COMPLETE,
        is_first=[False, False, False, False],
        is_last=[False, False, True, True],
        is_terminal=[False, False, False, False],
    )
    dataset = conversion.convert_rlds_to_trajectories(
        form([late, golden.COMPLETE]),
        block_length=1,
        options=options_lib.ConversionOptions(
            rules=rules_lib.ConversionRules(validation='tf_agents')
        ),
        batched=True,
    )
    for _ in range(5):
      _, error = golden.frames_and_error(dataset)
      self.assertIsNotNone(error)
      self.assertIn(golden.NO_FIRST_AFTER_LAST, error.message)
      self.assertIn(golden.place(0, 2), error.message)

  @parameterized.named_parameters(
      (f'{name}_{length}', form, length)
      for (name, form), length in itertools.product(
          golden.FORMS.items(), (1, 2, 3, None)
      )
  )
  def test_fault_between_two_episodes(self, form, block_length):
    tail = tf.nest.map_structure(lambda leaf: leaf[1:], golden.COMPLETE)
    no_last = _replaced(golden.COMPLETE, is_last=[0] * 4, is_terminal=[0] * 4)
    empty = golden.INVALID_CASES['empty'].episode
    episodes = [golden.TRUNCATED]
    dataset = conversion.convert_rlds_to_trajectories(
        form(episodes),
        block_length=block_length,
        options=options_lib.ConversionOptions(
            rules=rules_lib.ConversionRules(validation='tf_agents')
        ),
        batched=True,
    ).unbatch()
    for name, bad, following, sentence in (
        ('last_mid', golden.TRUNCATED, [tail], golden.NO_FIRST_AFTER_LAST),
        (
            'last_nothing_mid',
            golden.TRUNCATED,
            [empty, empty, tail],
            golden.NO_FIRST_AFTER_LAST,
        ),
        ('mid_first', no_last, [golden.COMPLETE], golden.FIRST_AFTER_MID),
        ('mid_end', no_last, [empty], golden.FIRST_AFTER_MID),
    ):
      with self.subTest(name):
        episodes[:] = [golden.TRUNCATED, bad, *following]
        # No block of the invalid episode comes out, not even its first one.
        frames, error = golden.frames_and_error(dataset)
        golden.assert_frames_equal(
            self, frames, golden.expected_frames([golden.TRUNCATED])
        )
        self.assertIn(sentence, error.message)
        self.assertIn(golden.place(1, 3), error.message)


class TerminalDiscountTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.named_parameters(*_forms_and_lengths(1, None))
  def test_transition(self, form, block_length):
    two_steps = golden.make_episode([0.5, 1], terminal=True)
    episodes = [
        *golden.CASES['truncated_single_complete'].episodes,
        two_steps,
        golden.TRUNCATED,
    ]
    frames = golden.rows_of_blocks(
        conversion.convert_rlds_to_trajectories(
            form(episodes),
            block_length=block_length,
            options=options_lib.ConversionOptions(
                rules=rules_lib.ConversionRules(terminal_discount='transition')
            ),
            batched=True,
        )
    )
    self.assertAllEqual(
        [frame.discount for frame in frames],
        np.float32([1, 1, 1, 0.9, 0, 1, 1, 0, 0, 0, 0, 1, 1, 1, 0.9]),
    )
    golden.assert_frames_equal(
        self, frames, golden.expected_frames(episodes, 'transition')
    )

  @parameterized.named_parameters(*_forms_and_lengths(1, None))
  def test_report_of_bootstrapped_terminals(self, form, block_length):
    episodes = [
        golden.TRUNCATED,
        golden.COMPLETE,
        golden.SINGLE_TERMINAL,
        golden.make_episode([1, 1, 0, 1], terminal=True),
        golden.make_episode([0, 0, 0.25, 1], terminal=True),
    ]
    rlds_data = form(episodes)
    for terminal_discount, expected in (('step', [1, 4]), ('transition', [])):
      with self.subTest(terminal_discount):
        report = report_lib.ConversionReport()
        dataset = conversion.convert_rlds_to_trajectories(
            rlds_data,
            block_length=block_length,
            options=options_lib.ConversionOptions(
                rules=rules_lib.ConversionRules(
                    terminal_discount=terminal_discount
                ),
                report=report,
            ),
            batched=True,
        )
        for _ in range(2):
          self.assertLen(golden.rows_of_blocks(dataset), 17)
          self.assertEqual(report.bootstrapped_terminals, expected)


class NanTest(tf.test.TestCase, parameterized.TestCase):

  def _episodes(self):
    episodes = golden.random_episodes(
        np.random.default_rng(12), 6, nested_fields=True
    )
    episodes = [
        tf.nest.map_structure(np.copy, episode)
        for episode in episodes
        if golden.length_of(episode) > 1
    ]
    while len(episodes) < 3:
      episodes.append(tf.nest.map_structure(np.copy, episodes[0]))
    for episode in episodes:
      episode['unused'] = np.full(golden.length_of(episode), np.nan)
    episodes[0]['observation']['camera']['pose'][0][1, :2] = np.nan
    episodes[2]['observation']['camera']['pose'][0][0, 2] = np.nan
    episodes[2]['reward'][1] = np.nan
    return episodes

  @parameterized.named_parameters(*_forms_and_lengths(1, None))
  def test_reported(self, form, block_length):
    episodes = self._episodes()
    report = report_lib.ConversionReport()
    dataset = conversion.convert_rlds_to_trajectories(
        form(episodes),
        block_length=block_length,
        options=options_lib.ConversionOptions(report=report),
        batched=True,
    )
    for _ in range(2):
      golden.assert_frames_equal(
          self, golden.rows_of_blocks(dataset), golden.expected_frames(episodes)
      )
      self.assertEqual(
          report.nan_counts,
          {'observation/camera/pose/0': 3, 'reward': 1},
      )

  @parameterized.named_parameters(*_forms_and_lengths(1, None))
  def test_invalid(self, form, block_length):
    episodes = self._episodes()
    rlds_data = form(episodes)
    raised = conversion.convert_rlds_to_trajectories(
        rlds_data,
        block_length=block_length,
        options=options_lib.ConversionOptions(
            rules=rules_lib.ConversionRules(nan='invalid')
        ),
        batched=True,
    )
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError,
        f'{golden.NAN} Found at episode 0, step 1:.*, NaN in'
        r' observation/camera/pose/0\.',
    ):
      golden.rows_of_blocks(raised)
    report = report_lib.ConversionReport()
    skipped = conversion.convert_rlds_to_trajectories(
        rlds_data,
        block_length=block_length,
        options=options_lib.ConversionOptions(
            rules=rules_lib.ConversionRules(
                nan='invalid', invalid_episodes='skip'
            ),
            report=report,
        ),
        batched=True,
    )
    golden.assert_frames_equal(
        self,
        golden.rows_of_blocks(skipped),
        golden.expected_frames([episodes[1], *episodes[3:]]),
    )
    self.assertEqual(
        [episode.episode for episode in report.skipped_episodes], [0, 2]
    )
    self.assertIn('episode 2, step 0:', report.skipped_episodes[1].reason)
    self.assertEqual(report.nan_counts, {})

  @pytest.mark.long
  def test_invalid_in_reward_and_action(self):
    reward = _replaced(golden.COMPLETE, reward=[0, 0, 0, np.nan])
    action = dict(golden.COMPLETE, action=np.zeros([4, 2], np.float32))
    action['action'][2, 1] = np.nan
    for name, episode, step in (('reward', reward, 3), ('action', action, 2)):
      with self.subTest(name):
        report = report_lib.ConversionReport()
        dataset = conversion.convert_rlds_to_trajectories(
            golden.nested([episode]),
            options=options_lib.ConversionOptions(
                rules=rules_lib.ConversionRules(
                    nan='invalid', invalid_episodes='skip'
                ),
                report=report,
            ),
        )
        self.assertEmpty(golden.frames_of(dataset))
        (skipped,) = report.skipped_episodes
        self.assertStartsWith(skipped.reason, golden.NAN)
        self.assertIn(golden.place(0, step), skipped.reason)
        self.assertEndsWith(skipped.reason, f'NaN in {name}.')
        self.assertEqual(skipped.fault.field, name)

  def test_nan_discount(self):
    episode = _replaced(golden.TRUNCATED, discount=[1, np.nan, 1, 1])
    with self.subTest('reported'):
      report = report_lib.ConversionReport()
      frames, error = golden.frames_and_error(
          conversion.convert_rlds_to_trajectories(
              golden.stacked([episode]),
              options=options_lib.ConversionOptions(report=report),
          )
      )
      # NaN does not lie in [0, 1]. If it passes, it must be counted.
      if error is None:
        self.assertLen(frames, 4)
        self.assertEqual(report.nan_counts, {'discount': 1})
      else:
        self.assertIn(golden.place(0, 1), error.message)
    with self.subTest('invalid'):
      _, error = golden.frames_and_error(
          conversion.convert_rlds_to_trajectories(
              golden.stacked([episode]),
              options=options_lib.ConversionOptions(
                  rules=rules_lib.ConversionRules(nan='invalid')
              ),
          )
      )
      self.assertIsNotNone(error)
      self.assertIn(golden.place(0, 1), error.message)

  def test_no_float_fields(self):
    episode = dict(golden.COMPLETE)
    episode['observation'] = np.zeros([4], np.uint8)
    episode['reward'] = np.zeros([4], np.int64)
    report = report_lib.ConversionReport()
    dataset = conversion.convert_rlds_to_trajectories(
        golden.stacked([episode]),
        options=options_lib.ConversionOptions(
            rules=rules_lib.ConversionRules(nan='invalid'), report=report
        ),
    )
    self.assertLen(golden.frames_of(dataset), 4)
    self.assertEqual(report.nan_counts, {})


class ElementSpecTest(tf.test.TestCase, parameterized.TestCase):

  def _assert_same_types(self, actual, expected):
    tf.nest.assert_same_structure(actual, expected)
    for one, other in zip(tf.nest.flatten(actual), tf.nest.flatten(expected)):
      self.assertEqual(one.shape, other.shape)
      self.assertTrue(one.shape.is_fully_defined())
      self.assertEqual(one.dtype, other.dtype)

  @parameterized.named_parameters(
      (f'{name}_{fields}', form, fields == 'nested_fields', validation)
      for (name, form), (fields, validation) in itertools.product(
          _FORMS, (('flat', 'tf_agents'), ('nested_fields', 'strict'))
      )
  )
  def test_equals_the_trajectory_data_spec(
      self, form, nested_fields, validation
  ):
    episodes = golden.random_episodes(
        np.random.default_rng(13),
        2,
        nested_fields=nested_fields,
        discount_dtype=np.float64,
        discount_shape=(1,),
    )
    rlds_data = form(episodes)
    info_fn = lambda current, following: {'next': following['reward']}
    for name, arguments in {'no_info': (), 'info': (info_fn,)}.items():
      with self.subTest(name):
        spec = specs.create_trajectory_data_spec(rlds_data, *arguments)
        self._assert_same_types(
            conversion.convert_rlds_to_trajectories(
                rlds_data,
                *arguments,
                options=options_lib.ConversionOptions(
                    rules=rules_lib.ConversionRules(validation=validation)
                ),
            ).element_spec,
            spec,
        )
        blocks = conversion.convert_rlds_to_trajectories(
            rlds_data,
            *arguments,
            options=options_lib.ConversionOptions(
                rules=rules_lib.ConversionRules(validation=validation)
            ),
            batched=True,
        ).element_spec
        for block, leaf in zip(tf.nest.flatten(blocks), tf.nest.flatten(spec)):
          self.assertEqual(block.shape.as_list(), [None, *leaf.shape])
          self.assertEqual(block.dtype, leaf.dtype)

  def test_static_inside_map(self):
    episodes = golden.random_episodes(
        np.random.default_rng(14), 3, nested_fields=True
    )
    rlds_data = golden.nested(episodes)
    spec = specs.create_trajectory_data_spec(rlds_data)
    seen = []
    dataset = conversion.convert_rlds_to_trajectories(rlds_data).map(
        lambda frame: seen.append(frame)
        or frame.observation['camera']['rgb'][..., 0]
    )
    for leaf, expected in zip(tf.nest.flatten(seen[0]), tf.nest.flatten(spec)):
      self.assertEqual(leaf.shape, expected.shape)
      self.assertEqual(leaf.dtype, expected.dtype)
    self.assertEqual(dataset.element_spec.shape, [2, 3])
    self.assertAllEqual(
        golden.frames_of(dataset),
        np.concatenate(
            [e['observation']['camera']['rgb'][..., 0] for e in episodes]
        ),
    )

  def test_conversion_inside_a_function(self):
    rlds_data = golden.nested([golden.TRUNCATED, golden.COMPLETE])

    @tf.function
    def sum_of_discounts():
      return conversion.convert_rlds_to_trajectories(rlds_data).reduce(
          0.0, lambda total, frame: total + frame.discount
      )

    self.assertAlmostEqual(float(sum_of_discounts()), 6.9, places=5)


class ArgumentsTest(tf.test.TestCase, parameterized.TestCase):

  def test_rules_left_out_are_those_that_gin_configures(self):
    self.addCleanup(gin.clear_config)
    gin.parse_config("rlds2reverb.ConversionRules.invalid_episodes = 'skip'")
    bad = golden.INVALID_CASES['stops_at_mid'].episode
    rlds_data = golden.stacked([bad, golden.COMPLETE])
    for convert in (
        conversion.convert_rlds_to_trajectories,
        lambda data: sequences.convert_rlds_to_sequences(
            data, windows_lib.Windows(1)
        ),
    ):
      self.assertLen(list(convert(rlds_data)), 4)
    with self.assertRaises(tf.errors.InvalidArgumentError):
      list(
          conversion.convert_rlds_to_trajectories(
              rlds_data,
              options=options_lib.ConversionOptions(
                  rules=rules_lib.ConversionRules(invalid_episodes='raise')
              ),
          )
      )

  def test_sequences_are_not_cut_from_a_stream(self):
    with self.assertRaisesRegex(ValueError, 'need validation="strict"'):
      sequences.convert_rlds_to_sequences(
          golden.stacked([golden.COMPLETE]),
          windows_lib.Windows(2),
          options=options_lib.ConversionOptions(
              rules=rules_lib.ConversionRules(validation='tf_agents')
          ),
      )

  @parameterized.parameters(0, -1)
  def test_block_length_not_positive(self, block_length):
    with self.assertRaisesRegex(
        ValueError, f'positive integer, but is {block_length}'
    ):
      conversion.convert_rlds_to_trajectories(
          golden.stacked([golden.COMPLETE]),
          block_length=block_length,
          batched=True,
      )

  def test_report_serves_one_conversion(self):
    rlds_data = golden.stacked([golden.COMPLETE])
    report = report_lib.ConversionReport()
    conversion.convert_rlds_to_trajectories(
        rlds_data, options=options_lib.ConversionOptions(report=report)
    )
    with self.assertRaisesRegex(ValueError, 'Create a new report'):
      conversion.convert_rlds_to_trajectories(
          rlds_data, options=options_lib.ConversionOptions(report=report)
      )

  def test_report_of_a_call_that_failed_serves_another(self):
    rlds_data = golden.nested([golden.COMPLETE])
    report = report_lib.ConversionReport()
    for call in (
        lambda: conversion.convert_rlds_to_trajectories(
            rlds_data,
            block_length=0,
            options=options_lib.ConversionOptions(report=report),
            batched=True,
        ),
        lambda: sequences.convert_rlds_to_sequences(
            rlds_data,
            windows_lib.Windows(2),
            options=options_lib.ConversionOptions(
                episode_id='missing', report=report
            ),
        ),
        lambda: sequences.convert_rlds_to_sequences(
            rlds_data,
            windows_lib.Windows(2),
            batched=True,
            max_batch_size=0,
            options=options_lib.ConversionOptions(report=report),
        ),
    ):
      with self.assertRaises(ValueError):
        call()
    episode = _replaced(golden.TRUNCATED, reward=[1, np.nan, 1, 1])
    frames = conversion.convert_rlds_to_trajectories(
        golden.nested([episode]),
        options=options_lib.ConversionOptions(report=report),
    )
    self.assertLen(golden.frames_of(frames), 4)
    self.assertEqual(report.nan_counts, {'reward': 1})
    # A call that is refused the report does not free it.
    with self.assertRaisesRegex(ValueError, 'Create a new report'):
      conversion.convert_rlds_to_trajectories(
          rlds_data, options=options_lib.ConversionOptions(report=report)
      )
    with self.assertRaisesRegex(ValueError, 'Create a new report'):
      conversion.convert_rlds_to_trajectories(
          rlds_data, options=options_lib.ConversionOptions(report=report)
      )
    self.assertEqual(report.nan_counts, {'reward': 1})

  def test_ragged_fields(self):
    data = golden.with_unused_fields(golden.stacked([golden.COMPLETE]))
    with self.assertRaisesRegex(ValueError, 'words must be a dense tensor'):
      conversion.convert_rlds_to_trajectories(
          data, lambda current, following: current['words'].to_tensor()
      )

  @parameterized.named_parameters(*_FORMS)
  def test_reward_that_is_no_number(self, form):
    episode = {**golden.COMPLETE, 'reward': {'a': np.array([b'1'] * 4, object)}}
    with self.assertRaisesRegex(
        ValueError, 'reward/a must be of numbers, but is string'
    ):
      conversion.convert_rlds_to_trajectories(form([episode]))

  def test_no_steps(self):
    with self.assertRaisesRegex(
        ValueError, 'No dataset representing RLDS steps exist in the data.'
    ):
      conversion.convert_rlds_to_trajectories(
          tf.data.Dataset.from_tensors({'episode_id': 1})
      )

  def test_new_report_is_empty(self):
    report = report_lib.ConversionReport()
    self.assertEqual(report.skipped_episodes, [])
    self.assertEqual(report.bootstrapped_terminals, [])
    self.assertEqual(report.nan_counts, {})
    self.assertEqual(report.inserted_items, {})


if __name__ == '__main__':
  tf.test.main()
