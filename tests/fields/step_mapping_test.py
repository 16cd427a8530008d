"""Tests of mapping a data set's own step fields to those of RLDS."""

import dataclasses

from absl.testing import parameterized
import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.episodes import batching
from rlds2reverb.episodes import data_sets
from rlds2reverb.fields import derived_sources
from rlds2reverb.fields import mapping as mapping_lib
from rlds2reverb.fields import step_mapping
from tests import golden

_MAPPING = step_mapping.StepMapping


def _own_episode(length, base=0):
  """A step of fields that are not those of RLDS, and an episode's metadata."""
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
      },
      'task': np.array(b'task %d' % base, object),
      'camera': {'extrinsics': np.full([2, 2], base, np.float64)},
  }


_EPISODES = [_own_episode(4), _own_episode(1, 10), _own_episode(2, 20)]


def _spec(nest):
  return tf.nest.map_structure(
      lambda leaf: tf.TensorSpec(
          leaf.shape, tf.string if leaf.dtype == object else leaf.dtype
      ),
      nest,
  )


def _dataset(episodes, form='stacked'):
  spec = _spec(episodes[0])
  spec['steps'] = tf.nest.map_structure(
      lambda leaf: tf.TensorSpec([None] + leaf.shape[1:], leaf.dtype),
      spec['steps'],
  )
  data = tf.data.Dataset.from_generator(
      lambda: iter(episodes), output_signature=spec
  )
  if form == 'stacked':
    return data
  return data.map(
      lambda episode: {
          **episode,
          'steps': tf.data.Dataset.from_tensor_slices(episode['steps']),
      }
  )


def _mapped(mapping, form='stacked', episodes=None, eagerly=False):
  """Returns the steps of all mapped episodes, in numpy."""
  data = _dataset(_EPISODES if episodes is None else episodes, form)
  if eagerly:
    mapped = [mapping(episode) for episode in data]
  else:
    mapped = mapping_lib.map_fields(data, mapping)
  return [
      tf.nest.map_structure(lambda leaf: leaf.numpy(), episode['steps'])
      for episode in mapped
  ]


_HARD = _MAPPING(
    observation={
        'robot': ['obs/pose', 'a:gripper'],
        'image': ('obs', 'camera/rgb'),
        'language': {'step': 'obs/words', 'task': '../task'},
        'extrinsics': '../camera/extrinsics',
        'one': 1,
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


_REWARDS = ([0, 0, 0, 1], [7], [2, 3])


def _rewarded():
  """Returns episodes with these rewards, and the mapping's other arguments."""
  episodes = [
      {
          'steps': {
              'x': np.arange(len(reward)),
              'r': {'a': np.float32(reward), 'b': np.array(reward)[:, None]},
          }
      }
      for reward in _REWARDS
  ]
  fields = ('discount', 'is_first', 'is_last', 'is_terminal')
  names = {'observation': 'x', 'action': 'x', 'reward': 'r'}
  return episodes, {**names, **dict.fromkeys(fields)}


def _expected_hard(episode):
  """Maps an episode as `_HARD` does, step by step."""
  own = episode['steps']
  length = len(own['r'])
  rows = []
  for t in range(length):
    pose, angle = own['obs']['pose']
    rows.append(
        {
            'observation': {
                'robot': np.float32([*pose[t], angle[t], own['a:gripper'][t]]),
                'image': own['obs']['camera/rgb'][t],
                'language': {
                    'step': own['obs']['words'][t],
                    'task': episode['task'].item(),
                },
                'extrinsics': np.float32(episode['camera']['extrinsics']),
                'one': np.int32(1),
            },
            'action': {
                'vector': np.float32(
                    [own['a']['count'][t], *own['a']['delta'][t]]
                ),
                'gripper': own['a:gripper'][t],
            },
            'reward': np.float32(own['r'][t][0]),
            'discount': np.float32(0 if t >= length - 2 else 1),
            'is_first': np.bool_(t == 0),
            'is_last': np.bool_(t == length - 1),
            'is_terminal': np.bool_(t == length - 1),
            'policy_info': np.float32(pose[t]),
        }
    )
  return rows


class StepMappingTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.product(form=['stacked', 'nested'], eagerly=[False, True])
  def test_every_kind_of_source(self, form, eagerly):
    mapped = _mapped(_HARD, form, [*_EPISODES, _own_episode(0)], eagerly)
    *mapped, nothing = mapped
    self.assertLen(mapped, len(_EPISODES))
    for steps, episode in zip(mapped, _EPISODES):
      golden.assert_frames_equal(
          self, golden.rows_of(steps), _expected_hard(episode)
      )
      info = step_mapping.step_policy_info(steps, {})
      self.assertAllEqual(info, steps['policy_info'])
    for leaf in tree.flatten(nothing):
      self.assertEqual(len(leaf), 0)

  def test_batches_with_every_kind_of_source(self):
    none = _own_episode(0, 30)
    episodes = [none, *_EPISODES, none, _own_episode(1, 40), none]
    data = golden.in_batches(_dataset(episodes), batch_size=5)
    for mapping in (
        _HARD,
        dataclasses.replace(
            _HARD,
            reward=None,
            is_first='reached',
            is_last='a:gripper',
            is_terminal=None,
            policy_info=None,
            cast={},
        ),
        dataclasses.replace(_HARD, discount='r', reward=[1.5, '../camera']),
        dataclasses.replace(_HARD, last_reward='transition', last_action=True),
    ):
      mapped = mapping_lib.map_fields(data, mapping)
      found = golden.assert_batches_hold(self, mapped)
      self.assertLen(found, 7)
    mapped = mapping_lib.map_fields(data, _HARD)
    found = batching.unbatch(data_sets.batches_of(mapped)).as_numpy_iterator()
    for mapped, episode in zip(found, episodes):
      self.assertEqual(mapped['task'], episode['task'].item())
      expected = _expected_hard(episode)
      rows = golden.rows_of(mapped['steps'])
      self.assertLen(rows, len(expected))
      if expected:
        golden.assert_frames_equal(self, rows, expected)

  @parameterized.parameters('success', 'reward')
  def test_a_function_takes_single_episodes_and_batches_come_out(self, field):
    function = lambda episode: episode['steps']['r']
    source = derived_sources.TerminalOnSuccess('reached')
    mapping = dataclasses.replace(
        _HARD,
        **(
            {'is_terminal': source}
            if field == 'success'
            else {'observation': {'deep': [function]}}
        ),
    )
    data = golden.in_batches(_dataset(_EPISODES))
    mapped = mapping_lib.map_fields(data, mapping)
    golden.assert_batches_hold(self, mapped)
    self.assertLen(list(mapped), 3)

  def test_batches_with_an_episode_of_unequal_lengths(self):
    # The field that is longer is not used, so it does no harm; in the last
    # episode a field is that is used.
    long = tf.nest.map_structure(np.array, _own_episode(2, 30))
    long['steps']['a:gripper'] = np.zeros(5, bool)
    episodes = [*_EPISODES, long, _own_episode(3, 40)]
    data = golden.in_batches(_dataset(episodes), batch_size=5)
    mapping = dataclasses.replace(
        _HARD, action='a', observation={'o': 'obs/pose', 'task': '../task'}
    )
    mapped = mapping_lib.map_fields(data, mapping)
    self.assertLen(golden.assert_batches_hold(self, mapped), 5)
    for batch in data_sets.batches_of(mapped):
      self.assertEqual(batch.row_splits[-1], len(batch.steps['reward']))

    data = golden.in_batches(_dataset([_own_episode(3), long]))
    mapped = mapping_lib.map_fields(data, _HARD)
    for found in mapped, data_sets.batches_of(mapped):
      with self.assertRaisesRegex(
          tf.errors.InvalidArgumentError, 'must have a row for every step'
      ):
        list(found)

  def test_static_shapes_and_metadata(self):
    spec = mapping_lib.map_fields(_dataset(_EPISODES), _HARD).element_spec
    self.assertNotIn('obs', spec['steps'])
    self.assertEqual(spec['task'], tf.TensorSpec([], tf.string))
    for leaf, shape, dtype in (
        (spec['steps']['observation']['robot'], [4], tf.float32),
        (spec['steps']['observation']['image'], [1, 1], tf.uint8),
        (spec['steps']['observation']['extrinsics'], [2, 2], tf.float32),
        (spec['steps']['reward'], [], tf.float32),
    ):
      self.assertEqual(leaf, tf.TensorSpec([None, *shape], dtype))

  @parameterized.parameters(*golden.FORMS)
  def test_the_default_keeps_rlds_steps(self, form):
    for name, case in golden.CASES.items():
      with self.subTest(name):
        mapped = mapping_lib.map_fields(golden.FORMS[form](case.episodes))
        for episode, expected in zip(mapped, case.episodes):
          tree.map_structure(
              self.assertAllEqual, dict(episode['steps']), expected
          )

  @parameterized.parameters(
      ('is_terminal', None, bool, [0, 0, 0, 0]),
      ('is_terminal', False, bool, [0, 0, 0, 0]),
      ('is_terminal', 'reached', bool, [0, 0, 0, 1]),
      (
          'is_terminal',
          derived_sources.TerminalOnSuccess('reached'),
          bool,
          [0, 0, 0, 1],
      ),
      ('reward', None, np.float32, [0, 0, 0, 0]),
      ('reward', 0.5, np.float32, [0.5] * 4),
      (
          'reward',
          lambda episode: tf.cast(episode['steps']['reached'], tf.float64) * 2,
          np.float32,
          [0, 0, 0, 2],
      ),
      ('reward', 'a/delta', np.float32, [[t] * 3 for t in range(4)]),
      ('discount', 'r', np.float32, [0, 1, 2, 3]),
      ('cast', {}, None, None),
  )
  def test_what_a_field_becomes(self, field, source, dtype, expected):
    mapping = dataclasses.replace(_HARD, **{field: source})
    for eagerly in (False, True):
      steps = _mapped(mapping, episodes=_EPISODES[:1], eagerly=eagerly)[0]
      if field == 'cast':  # Without one, dtypes stay.
        self.assertEqual(steps['observation']['robot'].dtype, np.float64)
        self.assertEqual(steps['discount'].dtype, np.float32)
        continue
      self.assertEqual(steps[field].dtype, dtype)
      self.assertAllEqual(steps[field], np.array(expected, dtype))
      if field == 'is_terminal':
        ends = [1, 1, 0, 0] if expected[-1] else [1, 1, 1, 1]
        self.assertAllEqual(steps['discount'], ends)

  @parameterized.parameters(
      ('a/delta[:2]', slice(0, 2)),
      ('a/delta[1:]', slice(1, 3)),
      ('a/delta[-1:]', slice(2, 3)),
      ('a/delta[-3:-1]', slice(0, 2)),
      ('a/delta[:]', slice(0, 3)),
  )
  def test_numbers_of_a_vector(self, source, columns):
    mapping = dataclasses.replace(_HARD, action=source, observation=[source, 7])
    data = golden.in_batches(_dataset(_EPISODES))
    mapped = mapping_lib.map_fields(data, mapping)
    self.assertNotEmpty(golden.assert_batches_hold(self, mapped))
    size = columns.stop - columns.start
    self.assertEqual(mapped.element_spec['steps']['action'].shape, [None, size])
    for episode, own in zip(mapped, _EPISODES):
      expected = own['steps']['a']['delta'][:, columns]
      self.assertAllEqual(episode['steps']['action'], expected)
      self.assertAllEqual(
          episode['steps']['observation'],
          [[*numbers, 7] for numbers in expected],
      )

  def test_a_key_that_looks_like_numbers_of_a_vector(self):
    data = _dataset(_EPISODES).map(
        lambda episode: {
            **episode,
            'steps': {**episode['steps'], 'a[:1]': episode['steps']['r']},
        }
    )
    mapping = dataclasses.replace(_HARD, action='a[:1]')
    (episode,) = mapping_lib.map_fields(data, mapping).take(1)
    self.assertAllEqual(episode['steps']['action'], _EPISODES[0]['steps']['r'])

  @parameterized.parameters(
      ('action', 'a/detla[:2]', 'no field a/detla. Did you mean a/delta'),
      ('action', 'a/delta[:4]', r'a/delta has 3 numbers, so \[:4\] of it'),
      ('action', 'a/delta[-4:]', r'a/delta has 3 numbers, so \[-4:\] of it'),
      ('action', 'a/delta[2:1]', r'a/delta has 3 numbers, so \[2:1\] of it'),
      ('action', 'a[:2]', 'Only of a vector .* be taken, but a is a nest'),
      ('action', 'a/count[:1]', r'but a/count is int64 \(\)'),
      ('action', ['obs/words', 'r'], r'concatenated to a .*string \(\)'),
      ('action', ['a/count', 'a:gripper'], r'concatenated to a .*bool \(\)'),
      ('action', None, 'action: It cannot be filled in'),
      ('observation', None, 'observation: It cannot be filled in'),
      ('is_terminal', 'a/delta', 'is_terminal must be one number'),
      *(
          (field, 'obs/words', f'{field} must be .*number')
          for field in ('reward', 'discount', 'is_first', 'is_last')
      ),
      ('cast', {'float46': 'float32'}, "but has 'float46'"),
      ('last_reward', 'next', 'last_reward must be one of'),
  )
  def test_what_cannot_be(self, field, source, message):
    with self.assertRaisesRegex(ValueError, message):
      _mapped(dataclasses.replace(_HARD, **{field: source}))

  @parameterized.parameters(*golden.FORMS)
  def test_unused_fields_that_cannot_be_stacked(self, form):
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
      mapping = _MAPPING(observation=source, reward=None)
      (episode,) = mapping_lib.map_fields(one, mapping)
      steps = episode['steps']
      self.assertAllEqual(steps['observation'], golden.COMPLETE[seen])
      self.assertAllEqual(steps['reward'], np.zeros(4, np.float32))
      self.assertNotIn('words', steps)

  @parameterized.parameters(*golden.FORMS)
  def test_a_used_field_that_is_not_dense(self, form):
    data = golden.with_unused_fields(golden.FORMS[form]([golden.COMPLETE]))
    with self.assertRaisesRegex(
        ValueError, 'observation: words is not a dense tensor; make it'
    ):
      mapping_lib.map_fields(data, _MAPPING(observation={'said': 'words'}))

  @parameterized.parameters('stacked', 'nested')
  def test_every_misfit_is_listed(self, form):
    mapping = _MAPPING(
        observation={'pose': 'obs/poses', 'task': '../tsk'},
        action=['a/delta', ('a', 'size')],
        reward='r',
        discount='discount',
        is_first=None,
        is_last=None,
        is_terminal='reached',
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
            '  discount: There is no field discount. Did you mean a/count? None'
            ' fills it in.',
            'The data set has:',
            '  ../camera/extrinsics: float64 (2, 2)',
            '  ../task: string ()',
            '  a/count: int64 ()',
            '  a/delta: float64 (3,)',
            '  a:gripper: bool ()',
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
        mapping_lib.map_fields(data, dataclasses.replace(_HARD, action=source))
    for keys in (('obs', 'camera', 'rgb'), ('obs', 'camera/rgb')):
      mapping_lib.map_fields(data, dataclasses.replace(_HARD, action=keys))

  def test_the_name_of_a_config(self):
    path = self.create_tempfile(
        'mine.gin', "StepMapping.observation = 'r'\nStepMapping.action = 'a'"
    ).full_path
    filled = ('reward', 'discount', 'is_first', 'is_last', 'is_terminal')
    nothing = dict.fromkeys(filled)
    found, *_ = mapping_lib.map_fields(_dataset(_EPISODES), path, **nothing)
    steps = found['steps']
    self.assertAllEqual(steps['observation'], _EPISODES[0]['steps']['r'])
    self.assertAllEqual(steps['reward'], [0] * 4)
    with self.assertRaisesRegex(TypeError, "argument 'discout'"):
      mapping_lib.map_fields(_dataset(_EPISODES), path, discout=None)
    with self.assertRaisesRegex(ValueError, 'Did you mean bridge'):
      mapping_lib.map_fields(_dataset(_EPISODES), 'brigde')

  @parameterized.parameters(
      (3, "must be a dict with 'steps'"),
      ({'steps': np.zeros([2, 3])}, 'must be a dict of fields, but is'),
  )
  def test_no_episodes(self, element, message):
    with self.assertRaisesRegex(ValueError, message):
      mapping_lib.map_fields(tf.data.Dataset.from_tensors(element))

  @parameterized.parameters(
      ('stacked', False), ('stacked', True), ('nested', False)
  )
  def test_what_the_last_step_has(self, form, eagerly):
    episodes, names = _rewarded()
    for place, acts, rewards in (
        ('step', False, _REWARDS),
        ('transition', True, ([0, 0, 1, 0], [7], [5, 0])),
    ):
      mapping = _MAPPING(**names, last_reward=place, last_action=acts)
      for steps, reward in zip(
          _mapped(mapping, form, episodes, eagerly), rewards
      ):
        self.assertAllEqual(steps['reward']['a'], reward)
        self.assertAllEqual(steps['reward']['b'], reward)
        self.assertEqual(steps['reward']['b'].dtype, np.int64)
        if acts:
          self.assertAllEqual(steps['has_action'], [True] * len(reward))
        self.assertEqual('has_action' in steps, acts)


if __name__ == '__main__':
  tf.test.main()
