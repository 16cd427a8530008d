"""Compares the reports of conversions with NumPy, and tests their options."""

import functools
import operator

from absl.testing import parameterized
import gin
import numpy as np
import pytest
import tensorflow as tf
import tree

import rlds2reverb
from rlds2reverb import formats
from rlds2reverb import transforms
from tests import golden

_FORMS = golden.FORMS_AND_BATCHES
_USED = ('observation', 'action', 'reward', 'discount')
_RULES = rlds2reverb.ConversionRules()


def _convert(data, report=None, *, block_length=None, **rules):
  return rlds2reverb.convert_rlds_to_trajectories(
      data,
      options=rlds2reverb.ConversionOptions(
          rules=rlds2reverb.ConversionRules(**rules), report=report
      ),
      block_length=block_length,
      batched=True,
  )


def _episodes(nested_fields):
  """Random episodes with NaN, zeros of discounts and rewards of last steps."""
  rng = np.random.default_rng(12)
  episodes = golden.random_episodes(rng, 30, nested_fields=nested_fields)
  for episode in episodes:
    episode['unused'] = np.full(golden.length_of(episode), np.nan)
    for leaf in tf.nest.flatten([episode['observation'], episode['action']]):
      if leaf.dtype.kind == 'f':
        leaf[rng.random(leaf.shape) < 0.02] = np.nan
    episode['reward'][rng.random(len(episode['reward'])) < 0.1] = np.nan
    last = rng.integers(3)
    episode['reward'][-1] = [0, np.nan, 2.5][last]
    episode['discount'][rng.random(len(episode['discount'])) < 0.3] = 0
  return episodes


def _nans(episode):
  """Returns the NaNs of each step, `[T]`, by the paths of fields."""
  used = {name: episode[name] for name in _USED}
  return {
      '/'.join(map(str, path)): np.isnan(leaf.reshape(len(leaf), -1)).sum(1)
      for path, leaf in tree.flatten_with_path(used)
      if leaf.dtype.kind == 'f'
  }


class ReportTest(tf.test.TestCase, parameterized.TestCase):

  def test_each_pass_over_reshuffled_data_replaces_the_report(self):
    lengths = [5, 2, 7, 4, 9, 3]
    episodes = golden.make_episodes(lengths, terminal=False)
    episodes[1]['reward'][0] = np.nan
    data = golden.FORMS_AND_BATCHES['stacked'](episodes)
    data = data.shuffle(6, seed=3, reshuffle_each_iteration=True)
    keep = transforms.KeepEpisodes(min_length=4)
    report = rlds2reverb.ConversionReport()
    frames = _convert(transforms.transform_episodes(data, [keep]), report)
    nan_report = rlds2reverb.ConversionReport()
    all_frames = _convert(data, nan_report)
    for _ in range(4):
      self.assertEqual(sum(len(each.reward) for each in frames), 5 + 7 + 9)
      self.assertEqual(report.removed_steps, {'KeepEpisodes': 2 + 4 + 3})
      self.assertEqual(sum(len(each.reward) for each in all_frames), 30)
      self.assertEqual(list(nan_report.nan_counts.values()), [1])

  def test_skipped_episodes_of_reshuffled_data(self):
    episodes = golden.make_episodes([5, 2, 7, 4, 9, 3], terminal=False)
    episodes[2]['discount'][1] = 7
    data = golden.FORMS_AND_BATCHES['stacked'](episodes)
    data = data.shuffle(6, seed=3, reshuffle_each_iteration=True)
    report = rlds2reverb.ConversionReport()
    frames = _convert(data, report, invalid_episodes='skip')
    for _ in range(4):
      lengths = [len(frame.reward) for frame in frames]
      self.assertEqual(sum(lengths), 30 - 7)
      self.assertLen(report.skipped_episodes, 1)

  @parameterized.parameters(*_FORMS)
  @pytest.mark.few(1)
  def test_removed_steps(self, form):
    rng = np.random.default_rng(5)
    lengths = rng.integers(2, 40, 50).tolist()
    episodes = golden.make_episodes(lengths, terminal=False)
    invalid = lengths.index(max(lengths))
    episodes[invalid]['discount'][:] = 1.5
    removed = {'DropNoOps': 0, 'FrameSkip': 0, 'KeepEpisodes': 0}
    num_frames = 0
    for index, episode in enumerate(episodes):
      length = lengths[index]
      is_no_op = rng.random(length) < 0.3
      episode['action'] = np.where(is_no_op, 0, 1).astype(np.float32)
      left = [t for t in range(length) if not is_no_op[t] or t == length - 1]
      removed['DropNoOps'] += length - len(left)
      # Compose is divided, and what its operations removed is added.
      for skip in 2, 3:
        before = len(left)
        left = [t for t in left[::skip] if t != left[-1]] + [left[-1]]
        removed['FrameSkip'] += before - len(left)
      if len(left) < 3:
        removed['KeepEpisodes'] += len(left)
      elif index != invalid:
        num_frames += len(left)
    transformed = transforms.transform_episodes(
        golden.FORMS_AND_BATCHES[form](episodes),
        [
            transforms.DropNoOps(),
            transforms.Compose(
                [transforms.FrameSkip(2), transforms.FrameSkip(3)]
            ),
            transforms.KeepEpisodes(min_length=2),
        ],
    )
    report = rlds2reverb.ConversionReport()
    frames = _convert(transformed, report, invalid_episodes='skip')
    self.assertEqual(report.removed_steps, {})
    for _ in range(2):  # A second time changes nothing.
      self.assertEqual(sum(len(each.reward) for each in frames), num_frames)
      self.assertEqual(report.removed_steps, removed)
    self.assertLen(report.skipped_episodes, 1)
    counts = ', '.join(f'{n} by {name}' for name, n in removed.items())
    self.assertEndsWith(
        str(report), f'Transforms and filters removed steps: {counts}.'
    )

  @parameterized.parameters(
      ('stacked', False, 1, 'step'),
      ('nested', True, None, 'transition'),
      ('batched', True, 2, 'step'),
  )
  @pytest.mark.few(1)
  def test_report_has_nans_last_rewards_and_bootstrapped_terminals(
      self, form, nested_fields, length, at
  ):
    episodes = _episodes(nested_fields)
    nans = {}
    bootstraps, last_rewards = [], {}
    for index, episode in enumerate(episodes):
      for field, count in _nans(episode).items():
        nans[field] = nans.get(field, 0) + int(count.sum())
      if np.nan_to_num(episode['reward'][-1]):
        last_rewards[index] = float(episode['reward'][-1])
      into_end = episode['discount'][-2:-1].any() and at == 'step'
      if episode['is_terminal'][-1] and into_end:
        bootstraps.append(index)
    report = rlds2reverb.ConversionReport()
    frames = _convert(
        _FORMS[form](episodes),
        report,
        block_length=length,
        terminal_discount=at,
    )
    for _ in range(2):  # A second pass counts nothing twice.
      golden.assert_frames_equal(
          self,
          golden.rows_of_blocks(frames),
          golden.expected_frames(episodes, at),
      )
      self.assertEqual(
          report.nan_counts, {field: n for field, n in nans.items() if n}
      )
      self.assertEqual(report.last_rewards, last_rewards)
      self.assertEqual(report.bootstrapped_terminals, bootstraps)
      self.assertEmpty(report.skipped_episodes)
    self.assertLen(report.warnings, 3 if at == 'step' else 2)

  @parameterized.parameters(('stacked', False, 1), ('batched', True, None))
  @pytest.mark.few(1)
  def test_nan_is_invalid(self, form, nested_fields, length):
    episodes = _episodes(nested_fields)
    expected = []
    for index, episode in enumerate(episodes):
      nans = _nans(episode)
      steps = np.flatnonzero(sum(nans.values()))
      if len(steps):
        field = next(name for name, count in nans.items() if count[steps[0]])
        expected.append((index, golden.NAN, steps[0], field))
    self.assertBetween(len(expected), 8, 28)
    report = rlds2reverb.ConversionReport()
    data = _FORMS[form](episodes)
    frames = _convert(
        data,
        report,
        block_length=length,
        nan='invalid',
        invalid_episodes='skip',
    )
    skipped = [index for index, *_ in expected]
    golden.assert_frames_equal(
        self,
        golden.rows_of_blocks(frames),
        golden.expected_frames(
            [e for index, e in enumerate(episodes) if index not in skipped]
        ),
    )
    self.assertEqual(
        [
            (
                skipped.episode,
                skipped.fault.rule,
                skipped.fault.step,
                skipped.fault.field,
            )
            for skipped in report.skipped_episodes
        ],
        expected,
    )
    index, _, step, field = expected[0]
    message = rf'episode {index}, step {step}: .*, NaN in {field}\.'
    self.assertRegex(report.skipped_episodes[0].reason, message)
    self.assertEqual(report.nan_counts, {})
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, message):
      list(_convert(data, nan='invalid'))

  def test_last_rewards_of_vectors_and_data_without_floats(self):
    # Vector rewards whose components cancel out are reported.
    reward = np.float32([[0, 0], [1, 1], [0, 0], [1, -1]])
    report = rlds2reverb.ConversionReport()
    list(
        _convert(
            golden.stacked([{**golden.COMPLETE, 'reward': reward}]), report
        )
    )
    self.assertEqual(report.last_rewards, {0: 2.0})
    no_floats = {
        **golden.COMPLETE,
        'observation': np.zeros(4, np.uint8),
        'reward': np.zeros(4, np.int64),
        'discount': np.ones(4, np.int32),
    }
    report = rlds2reverb.ConversionReport()
    (frames,) = _convert(golden.stacked([no_floats]), report, nan='invalid')
    self.assertLen(frames.reward, 4)
    self.assertEqual(report.nan_counts, {})

  def test_advice_for_rewards_of_transition_into_last_step(
      self,
  ):
    of_success = golden.make_episode([1, 1], terminal=False)
    of_success['reward'] = np.float32([0, 1])
    rewards = {'sparse': [0, 0, 0, 1], 'dense': [1, 2, 3, 100]}
    flat = {
        name: formats.load(
            {
                'observations': np.arange(8, dtype=np.float32),
                'actions': np.zeros(8),
                'rewards': np.float32([*row, *row]),
                'terminals': np.zeros(8),
                'timeouts': np.tile([0, 0, 0, 1], 2),
            }
        )
        for name, row in rewards.items()
    }
    for data, advice, left_out in (
        (golden.stacked([of_success]), True, {}),
        (flat['sparse'], False, {0: 1, 1: 1}),
        (flat['dense'].map(lambda episode: episode), False, {0: 100, 1: 100}),
        (flat['dense'].take(1), False, {0: 100}),
    ):
      report = rlds2reverb.ConversionReport()
      list(_convert(data, report))
      self.assertEqual('StepMapping' in str(report), advice)
      self.assertEqual(report.dropped_rewards, left_out)
      if left_out:
        self.assertIn(f'In {len(left_out)} episodes (', str(report))
        self.assertIn('the last transition is dropped', str(report))
        total = sum(left_out.values())
        self.assertIn(f'{total:g} in all', str(report))

  def test_report_as_text(self):
    report = rlds2reverb.ConversionReport()
    self.assertEqual(
        str(report), 'No episode was skipped, and nothing looks wrong.'
    )
    self.assertEqual(
        (report.skipped_episodes, report.bootstrapped_terminals), ([], [])
    )
    self.assertEqual(
        (report.last_rewards, report.nan_counts, report.inserted_items),
        ({}, {}, {}),
    )
    last = golden.make_episode([1, 1], terminal=False, base=2)
    nan = {**golden.COMPLETE, 'reward': np.float32([np.nan, np.nan, 0, 0])}
    empty = golden.INVALID_CASES['empty'].episode
    list(
        _convert(
            golden.stacked([last, nan, *[empty] * 12]),
            report,
            invalid_episodes='skip',
        )
    )
    self.assertEqual(
        str(report).splitlines(),
        [
            'In 1 terminal episodes (the first is episode 1) the last'
            ' transition has a discount other than 0, so a learner bootstraps'
            ' through the terminal state. Pass'
            ' options=rlds2reverb.ConversionOptions(rules='
            'rlds2reverb.ConversionRules(terminal_discount="transition")), or'
            ' to rlds2reverb-convert --terminal_discount=transition, which'
            ' makes it 0.',
            # Moving it would add two rewards.
            'In 1 episodes (the first is episode 0) the last transition is'
            ' dropped, because its next observation is not in the data. Their'
            ' last steps have its reward, 30 in all, which no learner sees.',
            'The data holds NaN: 2 in reward. ConversionRules(nan="invalid")'
            ' makes that an error.',
            'Skipped 12 invalid episodes. The first: An episode must have a'
            ' step. Found at episode 2: it has none.',
            *(
                f'  An episode must have a step. Found at episode {n}: it has'
                ' none.'
                for n in range(3, 12)
            ),
            '  and 2 more',
        ],
    )

  def test_report_serves_one_successful_conversion(self):
    data = golden.stacked([golden.COMPLETE])
    report = rlds2reverb.ConversionReport()
    options = rlds2reverb.ConversionOptions(report=report)
    for windows, kwargs in (
        (2, {}),
        (rlds2reverb.Windows(2), {'max_batch_size': 0}),
    ):
      with self.assertRaises(ValueError):
        rlds2reverb.convert_rlds_to_sequences(
            data, windows, options=options, **kwargs
        )
    frames = _convert(data, report)
    for _ in range(2):  # A call that is refused the report does not free it.
      with self.assertRaisesRegex(ValueError, 'Create a new report'):
        _convert(data, report)
    list(frames)
    self.assertEqual(report.bootstrapped_terminals, [0])


_WINDOWS = rlds2reverb.Windows(2)
# Functions with options, and the arguments before the options.
_TAKE_OPTIONS = {
    'convert_rlds_to_trajectories': (),
    'convert_rlds_to_sequences': (_WINDOWS,),
    'push_rlds_to_reverb': (print,),
    'write_rlds_to_reverb': ('localhost:1', rlds2reverb.TableItems('t')),
    'write_reverb_checkpoint': ('/proc/no', rlds2reverb.TableItems('t')),
    'open_replay_buffer': (),
    'EpisodesReplayBuffer': (),
    'replay.local.AppendableReplayBuffer': (8,),
}
_OPTIONS = r'Write options=rlds2reverb.ConversionOptions\('
_PASSED = r"got an unexpected keyword argument '{}'. " + _OPTIONS
_call = rlds2reverb.convert_rlds_to_trajectories


def _cut(*args, **kwargs):
  data = golden.stacked([golden.COMPLETE])
  return rlds2reverb.convert_rlds_to_sequences(data, *args, **kwargs)


def _options(**kwargs):
  return rlds2reverb.ConversionOptions(**kwargs)


class OptionsTest(tf.test.TestCase, parameterized.TestCase):

  def test_invalid_options_raise(self):
    data = golden.stacked([golden.COMPLETE])
    no = functools.partial(self.assertRaisesRegex, ValueError)
    no_type = functools.partial(self.assertRaisesRegex, TypeError)
    for call in (
        rlds2reverb.convert_rlds_to_trajectories,
        rlds2reverb.open_replay_buffer,
    ):
      for invalid in (_RULES, {'rules': _RULES}, 'skip', {}, False):
        no_type('is no ConversionOptions. Write', call, data, options=invalid)
    no_type(
        r'is no ConversionRules\. ' + _OPTIONS + 'rules=rlds2reverb.Conv',
        _options,
        rules=rlds2reverb.ConversionReport(),
    )
    for call in (
        rlds2reverb.convert_rlds_to_trajectories,
        rlds2reverb.create_trajectory_data_spec,
        lambda data, invalid: rlds2reverb.push_rlds_to_reverb(
            data, print, invalid
        ),
    ):
      for invalid in (_RULES, _options()):
        no_type(
            'policy_info_fn must be .* is Conversion.*\\. Rules of a conv',
            call,
            data,
            invalid,
        )
    no_type("but is 'reward'", _call, data, 'reward')
    no(
        'they differ. Pass it once',
        _call,
        data,
        print,
        options=_options(policy_info_fn=lambda a, b: ()),
    )
    no('but is 0', _call, data, block_length=0)
    no('but is -1', _call, data, block_length=-1)
    no('max_batch_size must be a pos', _cut, _WINDOWS, max_batch_size=0)
    no(r'must be Windows\(length, stride, end\), but are 2', _cut, 2)
    no(
        'need validation="strict"',
        _cut,
        _WINDOWS,
        options=_options(
            rules=rlds2reverb.ConversionRules(validation='tf_agents')
        ),
    )
    no(
        'episode_id must be a field of the episodes, but is .missing',
        _cut,
        _WINDOWS,
        options=_options(episode_id='missing'),
    )
    no(
        'episode_id must be one integer or string',
        _call,
        data.map(lambda e: {**e, 'episode_id': 0.5}),
        options=_options(episode_id='episode_id'),
    )
    no(
        'words must be a dense tensor',
        _call,
        golden.with_unused_fields(data),
        lambda current, following: current['words'].to_tensor(),
    )
    for name, value, words in (
        ('validation', 'lax', "'strict', 'tf_agents'"),
        ('terminal_discount', 'stp', 'Did you mean step'),
        ('invalid_episodes', 'drop', "'raise', 'skip'"),
        ('nan', True, "'report', 'invalid'"),
    ):
      no(
          f'{name} must be one of.*{words}',
          rlds2reverb.ConversionRules,
          **{name: value},
      )
    no(
        'no episode can be skipped',
        rlds2reverb.ConversionRules,
        'tf_agents',
        'step',
        'skip',
    )

  @parameterized.parameters(
      ('rules', r'rules=rlds2reverb.ConversionRules\(...\)\).'),
      ('nan', r'rules=rlds2reverb.ConversionRules\(nan=...\)\).'),
      ('identity', r'identity=...\).'),
  )
  def test_attributes_are_no_arguments(self, argument, written):
    data = golden.stacked([golden.COMPLETE])
    for path, before in _TAKE_OPTIONS.items():
      name = path.split('.')[-1]
      message = rf'{name}\(\) ' + _PASSED.format(argument) + written
      with self.subTest(name), self.assertRaisesRegex(TypeError, message):
        operator.attrgetter(path)(rlds2reverb)(
            data, *before, **{argument: None}
        )

  def test_omitted_rules_are_those_configured_by_gin(self):
    self.assertEqual(
        _RULES, rlds2reverb.ConversionRules('strict', 'step', 'raise', 'report')
    )
    self.addCleanup(gin.clear_config)
    gin.parse_config("rlds2reverb.ConversionRules.invalid_episodes = 'skip'")
    bad = golden.INVALID_CASES['stops_at_mid'].episode
    data = golden.stacked([bad, golden.COMPLETE])
    self.assertLen(list(rlds2reverb.convert_rlds_to_trajectories(data)), 4)
    with self.assertRaises(tf.errors.InvalidArgumentError):
      list(_convert(data, invalid_episodes='raise'))


if __name__ == '__main__':
  tf.test.main()
