"""Tests of mapping the step fields of a data set to RLDS step fields."""

import dataclasses
import functools

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf
import tree

from rlds2reverb.episodes import episode_dataset
from rlds2reverb.fields import mapping as mapping_lib
from rlds2reverb.fields import sources as sources_lib
from rlds2reverb.fields import step_mapping
from tests import contract
from tests import golden

_MAPPING = step_mapping.StepMapping
_ON_SUCCESS = sources_lib.TerminalOnSuccess
_TEXT = sources_lib.TextFromCodes


def _own_episode(length, base=0):
  """Returns an episode whose step fields differ from RLDS, with metadata."""
  step = np.arange(length)
  values = (base + step).astype(np.float64)
  return {
      'steps': {
          'obs': {
              'pose': (np.stack([values, -values], 1), values + 0.5),
              'camera/rgb': (base + step).astype(np.uint8)[:, None, None],
              'words': np.array([b'%d' % v for v in base + step], object),
          },
          'a:gripper': step % 2 == 0,
          'a': {'delta': np.stack([values] * 3, 1), 'count': base + step},
          'r': values[:, None],
          'reached': step == length - 1,
          'a[:1]': values,  # a name that looks like numbers of a vector
      },
      'task': np.array(b'task %d' % base, object),
      'camera': {'extrinsics': np.full([2, 2], base, np.float64)},
  }


_EPISODES = [_own_episode(4), _own_episode(1, 10), _own_episode(2, 20)]


def _dataset(episodes, form='stacked'):
  """Returns a data set of episodes, whose other fields have known shapes."""
  as_spec = lambda leaf: tf.type_spec_from_value(tf.constant(leaf))
  spec = tf.nest.map_structure(as_spec, episodes[0])
  spec['steps'] = tf.nest.map_structure(
      lambda leaf: tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype),
      spec['steps'],
  )
  data = golden.from_generator(lambda: episodes, spec)
  if form == 'batched':
    return golden.in_batches(data, batch_size=5)
  if form == 'stacked':
    return data
  slices = tf.data.Dataset.from_tensor_slices
  return data.map(lambda e: {**e, 'steps': slices(e['steps'])})


def _mapped(mapping, form='stacked', episodes=None, eagerly=False):
  """Returns the steps of all mapped episodes, in numpy."""
  data = _dataset(episodes or _EPISODES, form)
  mapped = mapping_lib.map_fields(data, mapping)
  return [
      tf.nest.map_structure(lambda leaf: leaf.numpy(), episode['steps'])
      for episode in (map(mapping, data) if eagerly else mapped)
  ]


# Some numbers of a vector of three.
_PARTS = {
    '[:2]': slice(0, 2),
    '[1:]': slice(1, 3),
    '[-1:]': slice(2, 3),
    '[-3:-1]': slice(0, 2),
    '[:]': slice(0, 3),
}
_HARD = _MAPPING(
    observation={
        'robot': ['obs/pose', 'a:gripper'],
        'image': ('obs', 'camera/rgb'),
        'language': {'step': 'obs/words', 'task': '../task'},
        'extrinsics': '../camera/extrinsics',
        'one': 1,
        'parts': {part: [f'a/delta{part}', 7] for part in _PARTS},
        'part_of_a_name': 'a[:1]',
    },
    action={'vector': ['a/count', 'a/delta'], 'gripper': 'a:gripper'},
    reward='r',
    discount=None,
    is_first=None,
    is_last=None,
    is_terminal='reached',
    policy_info=('obs', 'pose', 0),
    cast={'float64': 'float32', 'int64': 'int32'},
)
_FLAGS = dict.fromkeys(('discount', 'is_first', 'is_last', 'is_terminal'))
_PLAIN = _MAPPING(observation='r', action='r', reward='r', **_FLAGS)


def _expected(episode):
  """Returns what `_HARD` makes of an episode."""
  own, length = episode['steps'], len(episode['steps']['r'])
  (pose, angle), gripper = own['obs']['pose'], own['a:gripper']
  extrinsics = episode['camera']['extrinsics'][None]
  step, ones = np.arange(length), np.ones(length, np.int32)

  def floats(*columns):
    return np.column_stack(columns).astype(np.float32)

  return {
      'observation': {
          'robot': floats(pose, angle, gripper),
          'image': own['obs']['camera/rgb'],
          'language': {
              'step': own['obs']['words'],
              'task': np.repeat(episode['task'], length),
          },
          'extrinsics': np.repeat(extrinsics, length, 0).astype(np.float32),
          'one': ones,
          'parts': {
              part: floats(own['a']['delta'][:, columns], 7 * ones)
              for part, columns in _PARTS.items()
          },
          'part_of_a_name': floats(own['a[:1]'])[:, 0],
      },
      'action': {
          'vector': floats(own['a']['count'], own['a']['delta']),
          'gripper': gripper,
      },
      'reward': floats(own['r'])[:, 0],
      'discount': np.float32(step < length - 2),
      'is_first': step == 0,
      'is_last': step == length - 1,
      'is_terminal': step == length - 1,
      'policy_info': floats(pose),
  }


class StepMappingTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.parameters(
      ('stacked', True), ('nested', False), ('batched', False)
  )
  @pytest.mark.few(1)
  def test_all_kinds_of_sources_in_all_forms(self, form, eagerly):
    episodes = [_own_episode(0), *_EPISODES, _own_episode(0)]
    mapped = _mapped(_HARD, form, episodes, eagerly)
    for steps, episode in zip(mapped, episodes, strict=True):
      contract.assert_equal(self, steps, _expected(episode))
      info = step_mapping.step_policy_info(steps, {})
      self.assertAllEqual(info, steps['policy_info'])
    spec = mapping_lib.map_fields(_dataset(episodes, form), _HARD).element_spec
    self.assertEqual(spec['task'], tf.TensorSpec([], tf.string))
    tf.nest.map_structure(
        lambda leaf, expected: self.assertEqual(
            leaf.shape.as_list(), [None, *expected.shape[1:]]
        ),
        spec['steps'],
        _expected(episodes[0]),
    )

  def test_batches_as_single_episodes(self):
    none = _own_episode(0, 30)
    episodes = [none, *_EPISODES, none, _own_episode(1, 40), none]
    data = _dataset(episodes, 'batched')
    function = lambda episode: episode['steps']['r']
    for changes in (
        dict(
            reward=None,
            is_first='reached',
            is_last='a:gripper',
            is_terminal=None,
            policy_info=None,
            cast={},
        ),
        dict(
            discount='r',
            reward=[1.5, '../camera'],
            last_reward='transition',
            last_action=True,
        ),
        dict(observation={'deep': [function]}),
    ):
      mapping = dataclasses.replace(_HARD, **changes)
      mapped = mapping_lib.map_fields(data, mapping)
      self.assertLen(golden.assert_batches_hold(self, mapped), 7)

  def test_batches_with_an_episode_of_unequal_lengths(self):
    # The field that is longer is not used, so it does no harm; in the last
    # episode a field is that is used.
    long = tf.nest.map_structure(np.array, _own_episode(2, 30))
    long['steps']['a:gripper'] = np.zeros(5, bool)
    episodes = [*_EPISODES, long, _own_episode(3, 40)]
    data = _dataset(episodes, 'batched')
    mapping = dataclasses.replace(
        _HARD, action='a', observation={'o': 'obs/pose', 'task': '../task'}
    )
    mapped = mapping_lib.map_fields(data, mapping)
    self.assertLen(golden.assert_batches_hold(self, mapped), 5)
    for batch in episode_dataset.batches_of(mapped):
      self.assertEqual(batch.row_splits[-1], len(batch.steps['reward']))

    data = _dataset([_own_episode(3), long], 'batched')
    mapped = mapping_lib.map_fields(data, _HARD)
    for found in mapped, episode_dataset.batches_of(mapped):
      with self.assertRaisesRegex(
          tf.errors.InvalidArgumentError, 'must have the same number of steps'
      ):
        list(found)

  def test_default_mapping_keeps_rlds_steps(self):
    episodes = [e for case in golden.CASES.values() for e in case.episodes]
    for form in golden.FORMS_AND_BATCHES.values():
      mapped = mapping_lib.map_fields(form(episodes))
      for episode, expected in zip(mapped, episodes, strict=True):
        tree.map_structure(
            self.assertAllEqual, dict(episode['steps']), expected
        )

  @parameterized.parameters(
      (None, [0, 0, 0, 0], None, [0, 0, 0, 0]),
      (False, [0, 0, 0, 0], 0.5, [0.5] * 4),
      (
          _ON_SUCCESS('reached'),
          [0, 0, 0, 1],
          'a/delta',
          [[t] * 3 for t in range(4)],
      ),
      (
          'reached',
          [0, 0, 0, 1],
          lambda episode: tf.cast(episode['steps']['reached'], tf.float64) * 2,
          [0, 0, 0, 2],
      ),
  )
  @pytest.mark.few(2)
  def test_values_and_dtypes_of_mapped_fields(
      self, is_terminal, ends, reward, rewards
  ):
    mapping = dataclasses.replace(
        _PLAIN, is_terminal=is_terminal, reward=reward
    )
    (steps,) = _mapped(mapping, episodes=_EPISODES[:1])
    self.assertAllEqual(steps['is_terminal'], np.array(ends, bool))
    discounts = [1, 1, 0, 0] if ends[-1] else [1, 1, 1, 1]
    self.assertAllEqual(steps['discount'], np.array(discounts, np.float32))
    self.assertAllEqual(steps['reward'], np.array(rewards, np.float32))
    # Without a cast, dtypes stay.
    self.assertEqual(steps['observation'].dtype, np.float64)

  def test_a_discount_becomes_float32(self):
    mapping = dataclasses.replace(_PLAIN, discount='r')
    (steps,) = _mapped(mapping, episodes=_EPISODES[:1])
    self.assertEqual(steps['discount'].dtype, np.float32)
    self.assertAllEqual(steps['discount'], [0, 1, 2, 3])

  @parameterized.parameters(
      ('action', 'a/detla[:2]', 'no field a/detla. Did you mean a/delta'),
      ('action', 'a/delta[:4]', r'slice \[:4\] of a/delta .* has 3 numbers'),
      ('action', 'a/delta[-4:]', r'slice \[-4:\] of a/delta .* has 3 numbers'),
      ('action', 'a/delta[2:1]', r'slice \[2:1\] of a/delta .* has 3 numbers'),
      ('action', 'a[:2]', 'Only vectors can be sliced, but a is a nest'),
      ('action', 'a/count[:1]', r'but a/count is int64 \(\)'),
      ('action', ['obs/words', 'r'], r'concatenated to a .*string \(\)'),
      ('action', ['a/count', 'a:gripper'], r'concatenated to a .*bool \(\)'),
      ('action', None, 'action: It needs a source'),
      ('observation', None, 'observation: It needs a source'),
      ('is_terminal', 'a/delta', 'is_terminal must be one number'),
      ('is_terminal', _ON_SUCCESS('reachd'), 'Did you mean reached'),
      ('observation', _TEXT('a/count'), r"'a/count' is int64 \(\)"),
      ('observation', _TEXT('a'), "'a' is a nest"),
      *(
          (field, 'obs/words', f'{field} must be .*number')
          for field in ('reward', 'discount', 'is_first', 'is_last')
      ),
      ('cast', {'float46': 'float32'}, "but has 'float46'"),
      ('last_reward', 'next', 'last_reward must be one of'),
  )
  def test_invalid_sources_raise(self, field, source, message):
    with self.assertRaisesRegex(ValueError, message):
      mapping = dataclasses.replace(_PLAIN, **{field: source})
      mapping_lib.map_fields(_dataset(_EPISODES), mapping)

  @parameterized.parameters(*golden.FORMS)
  def test_fields_that_cannot_be_stacked(self, form):
    def move(steps):
      return {**steps, 'observation': {'seen': steps, 'words': steps['words']}}

    def move_all(episode):
      steps = episode['steps']
      nested = isinstance(steps, tf.data.Dataset)
      return {'steps': steps.map(move) if nested else move(steps)}

    data = golden.with_unused_fields(golden.FORMS[form]([golden.COMPLETE]))
    for one, source, seen in (
        (data, 'observation', 'observation'),
        (data.map(move_all), 'observation/seen/action', 'action'),
    ):
      (episode,) = mapping_lib.map_fields(one, observation=source, reward=None)
      steps = episode['steps']
      self.assertAllEqual(steps['observation'], golden.COMPLETE[seen])
      self.assertAllEqual(steps['reward'], np.zeros(4, np.float32))
      self.assertNotIn('words', steps)
    with self.assertRaisesRegex(ValueError, '(said|words) must be a dense'):
      mapping_lib.map_fields(data, observation={'said': 'words'})

  @parameterized.parameters('stacked', 'nested')
  def test_every_misfit_is_listed(self, form):
    mapping = dataclasses.replace(
        _HARD,
        observation={'pose': 'obs/poses', 'task': '../tsk'},
        action=['a/delta', ('a', 'size')],
        discount='discount',
    )
    with self.assertRaises(ValueError) as caught:
      mapping_lib.map_fields(_dataset(_EPISODES, form), mapping)
    self.assertEqual(
        str(caught.exception).splitlines(),
        [
            'The mapping does not fit the data set.',
            '  observation: There is no field obs/poses. Did you mean obs/pose'
            ' or obs/pose/1 or obs/pose/0?',
            '  observation: There is no field ../tsk. Did you mean ../task?',
            '  action: There is no field a/size.',
            '  discount: There is no field discount. Did you mean a/count? With'
            ' None it gets default values.',
            'The data set has:',
            '  ../camera/extrinsics: float64 (2, 2)',
            '  ../task: string ()',
            '  a/count: int64 ()',
            '  a/delta: float64 (3,)',
            '  a:gripper: bool ()',
            '  a[:1]: float64 ()',
            '  obs/camera/rgb: uint8 (1, 1)',
            '  obs/pose/0: float64 (2,)',
            '  obs/pose/1: float64 ()',
            '  obs/words: string ()',
            '  r: float64 (1,)',
            '  reached: bool ()',
        ],
    )

  def test_a_path_with_two_readings(self):
    episode = _own_episode(2)
    episode['steps']['obs']['camera'] = {'rgb': np.zeros([2])}
    data = _dataset([episode])
    for source in ('obs/camera/rgb', ['obs/camera/rgb']):
      with self.assertRaisesRegex(
          ValueError,
          r"may be any of \[\('obs', 'camera', 'rgb'\),"
          r" \('obs', 'camera/rgb'\)\]. Write the path as one of these",
      ):
        mapping_lib.map_fields(data, dataclasses.replace(_PLAIN, action=source))
    for keys in (('obs', 'camera', 'rgb'), ('obs', 'camera/rgb')):
      mapping_lib.map_fields(data, dataclasses.replace(_PLAIN, action=keys))

  def test_map_fields_accepts_config_and_overrides(self):
    text = "StepMapping.observation = 'r'\nStepMapping.action = 'a'"
    path = self.create_tempfile('mine.gin', text).full_path
    map_fields = functools.partial(mapping_lib.map_fields, _dataset(_EPISODES))
    found, *_ = map_fields(path, reward=None, **_FLAGS)
    steps = found['steps']
    self.assertAllEqual(steps['observation'], _EPISODES[0]['steps']['r'])
    self.assertAllEqual(steps['reward'], [0] * 4)
    with self.assertRaisesRegex(TypeError, "argument 'discout'"):
      map_fields(path, discout=None)
    with self.assertRaisesRegex(ValueError, 'Did you mean bridge'):
      map_fields('brigde')

  @parameterized.parameters(
      (3, "must be a dict with 'steps'"),
      ({'steps': np.zeros([2, 3])}, 'must be a dict of fields, but is'),
  )
  def test_no_episodes(self, element, message):
    with self.assertRaisesRegex(ValueError, message):
      mapping_lib.map_fields(tf.data.Dataset.from_tensors(element))

  def test_last_reward_of_transitions_and_last_action(self):
    episodes = [
        {
            'steps': {
                'x': np.arange(len(reward)),
                'r': {'a': np.float32(reward), 'b': np.array(reward)[:, None]},
            }
        }
        for reward in ([0, 0, 0, 1], [7], [2, 3])
    ]
    mapping = _MAPPING(
        observation='x',
        action='x',
        reward='r',
        last_reward='transition',
        last_action=True,
        **_FLAGS,
    )
    for form, eagerly in (('nested', True), ('batched', False)):
      mapped = _mapped(mapping, form, episodes, eagerly)
      for steps, reward in zip(
          mapped, ([0, 0, 1, 0], [7], [5, 0]), strict=True
      ):
        self.assertAllEqual(steps['reward']['a'], reward)
        self.assertAllEqual(steps['reward']['b'], reward)
        self.assertEqual(steps['reward']['b'].dtype, np.int64)
        self.assertAllEqual(steps['has_action'], [True] * len(reward))


if __name__ == '__main__':
  tf.test.main()
