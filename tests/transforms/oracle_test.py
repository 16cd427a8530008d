"""Compares transforms with loops in NumPy over the steps of one episode.

Every transform of the table meets random episodes of 1 to 12 steps, many at
once, and one by one in a graph. In half of the data sets the last action
counts, in some episodes.
"""

import functools

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf

from rlds2reverb import transforms
from rlds2reverb.episodes import episode_dataset
from tests import call_modes
from tests import golden
from tests.transforms import octo

_COMMANDS = np.array([0, 0.02, 0.3, 0.7, 0.98, 1, -1, -0.05, 0.05, -0.1, 0.1])


def _episode(rng, length, has_action):
  """Returns random steps; `x` is an action of one number."""
  step = np.arange(length)
  action = rng.normal(size=(length, 3)).astype(np.float32)
  action[:, 2] = rng.choice(_COMMANDS, length)
  action[rng.random(length) < 0.3] = 0
  state = rng.normal(size=(length, 9))
  state[rng.random(length) < 0.3] = state[0]
  image = rng.integers(0, 256, (length, 2, 2, 3)).astype(np.uint8)
  image[rng.random(length) < 0.4] = 0
  steps = {
      'observation': {
          'state': state,
          'image': image,
          'words': np.array([b'', b'a', b'bc'], object)[
              rng.integers(0, 3, length)
          ],
          'both': {'a': image, 'b': image[::-1].copy()},
      },
      'action': action,
      'x': action[:, 2].astype(np.float64),
      'reward': rng.normal(size=length).astype(np.float32),
      'discount': rng.choice([1, 0.5], length).astype(np.float32),
      'is_first': step == 0,
      'is_last': step == length - 1,
      'is_terminal': (step == length - 1) & (rng.random() < 0.5),
  }
  if has_action:
    steps['has_action'] = (step < length - 1) | (rng.random() < 0.5)
  return steps


def _episodes(has_action):
  rng = np.random.default_rng(8)
  lengths = [4, 1, 2, 12, 1, 3, 7, 2, 5]
  episodes = [_episode(rng, length, has_action) for length in lengths]
  # The first row of a batch opens the gripper, which is nothing to the others.
  episodes[3]['action'][0, 2] = episodes[3]['x'][0] = -1
  return episodes


def _assert_near(test, actual, expected):
  """Asserts equal fields and dtypes, and numbers that differ by rounding."""
  tf.nest.assert_same_structure(actual, expected)
  for actual_leaf, expected_leaf in zip(
      tf.nest.flatten(actual), tf.nest.flatten(expected)
  ):
    actual_leaf = np.asarray(actual_leaf)
    test.assertEqual(actual_leaf.dtype, expected_leaf.dtype)
    if expected_leaf.dtype.kind == 'f':
      test.assertAllClose(actual_leaf, expected_leaf, 1e-5, 1e-5)
    else:
      test.assertAllEqual(actual_leaf, expected_leaf)


def _acting(steps):
  """Returns how many actions of an episode count."""
  acts = steps.get('has_action', steps['is_first'][:0])
  return len(steps['x']) - 1 + bool(len(acts) and acts[-1])


def _with(steps, path, value):
  *above, last = path.split('/')
  if not above:
    return {**steps, last: value}
  below = _with(steps[above[0]], '/'.join([*above[1:], last]), value)
  return {**steps, above[0]: below}


def _commands(change):
  """Replaces the commands in `action` with the result of a function of Octo."""

  def apply(steps):
    action = steps['action'].copy()
    count = _acting(steps)
    if count:
      action[:count, 2] = change(action[:count, 2])
      action[count:, 2] = action[count - 1, 2]
    elif change is octo.absolute:
      action[:, 2] = 1
    return {**steps, 'action': action}

  return apply


def _thin(keep):
  return lambda steps: octo.thin(keep, steps)


def _drop_end(steps):
  count = max(_acting(steps), 1)
  length = len(steps['x'])
  result = octo.take(steps, range(count))
  for name in 'is_last', 'is_terminal':
    result[name][-1] = steps[name][-1]
  has = steps.get('has_action', np.arange(length) < length - 1)[:count].copy()
  has[-1] |= count < length
  return {**result, 'has_action': has}


def _mark_padding(steps):
  seen = steps['observation']
  image, both = seen['image'], seen['both']
  masks = {
      'state': np.ones(len(image), bool),
      'image': image.any((1, 2, 3)),
      'words': seen['words'] != b'',
      'both': (both['a'] | both['b']).any((1, 2, 3)),
  }
  return _with(steps, 'observation/pad_mask_dict', masks)


def _mark_actions(steps):
  length = len(steps['x'])
  return {**steps, 'has_action': np.arange(length) < _acting(steps)}


def _states(is_absolute):
  def apply(steps):
    state = steps['observation']['state'][:, 1:5]
    reached = np.concatenate([state[1:], state[-1:]])
    moved = reached if is_absolute else reached - state
    new = np.concatenate([moved, steps['action'][:, [0, -1]]], 1)
    steps = {**steps, 'action': new.astype(np.float32)}
    if 'has_action' in steps:
      steps['has_action'] = np.arange(len(state)) < len(state) - 1
    return steps

  return apply


def _last_goal(steps):
  words = steps['observation']['words']
  last = len(words) - 1
  steps = _with(steps, 'observation/goal', words[[last] * (last + 1)])
  return {**steps, 'goal_step': np.full(last + 1, last)}


def _padded(steps):
  action = np.pad(steps['action'], [[0, 0], [0, 2]])
  real = np.tile(np.arange(5) < 3, [len(action), 1])
  return {**steps, 'action': action, 'is': {'real': real}}


def _renamed(steps):
  seen = dict(steps['observation'])
  both = seen['both']
  moved = {'x': seen.pop('state'), 'a/b': {'c:d': steps['x']}, 'b': both['b']}
  seen = {**seen, 'both': {'a': both['a']}}
  return {**steps, **moved, 'observation': seen}


def _selected(steps):
  both = {'a': steps['observation']['both']['a']}
  kept = {name: leaf for name, leaf in steps.items() if name != 'x'}
  return {**kept, 'observation': {'both': both}}


def _excluded(steps):
  seen = steps['observation']
  kept = {name: seen[name] for name in ('state', 'words')}
  return {**steps, 'observation': {**kept, 'both': {'b': seen['both']['b']}}}


def _turned(steps):
  a, b, c = np.float64(steps['action']).T / 2
  x = [np.cos(a), np.sin(a), 0 * a, 0 * a]
  y = [np.cos(b), 0 * b, np.sin(b), 0 * b]
  z = [np.cos(c), 0 * c, 0 * c, np.sin(c)]
  found = functools.reduce(_product, (z, y, x))
  found = np.stack(found, 1) * np.where(found[0] < 0, -1, 1)[:, None]
  return {**steps, 'action': found.astype(np.float32)}


def _product(p, q):
  """Returns the product of quaternions w, x, y, z."""
  a, b, c, d = p
  e, f, g, h = q
  return (
      a * e - b * f - c * g - d * h,
      a * f + b * e + c * h - d * g,
      a * g - b * h + c * e + d * f,
      a * h + b * g - c * f + d * e,
  )


def _with_wrist(steps):
  black = np.zeros([len(steps['x']), 3, 4, 3], np.uint8)
  return _with(steps, 'observation/wrist', black)


def _change(change, *fields):
  def apply(steps):
    for path in fields:
      leaf = functools.reduce(lambda nest, k: nest[k], path.split('/'), steps)
      steps = _with(steps, path, change(leaf).astype(leaf.dtype))
    return steps

  return apply


_SCALE = transforms.ScaleReward
_STATE = 'observation/state'
_SEEN = (_STATE, *(f'observation/{n}' for n in ('image', 'both/a', 'both/b')))
_NO_OP = transforms.DropNoOps
_CLIP = transforms.ClipField
_FROM_STATES = functools.partial(
    transforms.robotics.ActionsFromStates, _STATE, start=1, size=4, keep=(0, -1)
)
_ONE_LOW, _ONE_HIGH = np.array([[-9, -0.5, -9], [9, 0.25, 9]], np.float32)
# A transform, its oracle, and whether `invert` reverts it.
_TABLE = {
    'binarize': (
        transforms.robotics.BinarizeGripper(),
        _commands(octo.binarized),
    ),
    'absolute': (
        transforms.robotics.RelativeToAbsoluteGripper(),
        _commands(octo.absolute),
    ),
    'inverted_gripper': (
        transforms.robotics.InvertGripper('x', None, closed=2.0),
        _change(lambda x: 1 - x / 2, 'x'),
        True,
    ),
    'frame_skip': (transforms.FrameSkip(3), _thin(lambda _, t: t % 3 == 0)),
    'no_ops': (_NO_OP(), _thin(lambda steps, t: steps['action'][t].any())),
    'predicate': (
        _NO_OP(predicate=lambda steps: tf.cumsum(steps['x']) < 0),
        _thin(lambda steps, t: steps['x'][: t + 1].cumsum()[-1] >= 0),
    ),
    'near_no_ops': (
        _NO_OP(_STATE, 0.1, tolerance=1.4),
        _thin(
            lambda steps, t: (
                abs(steps['observation']['state'][t] - 0.1).max() > 1.4
            )
        ),
    ),
    'first_no_op': (
        _NO_OP(only_first=True),
        _thin(lambda steps, t: t or steps['action'][t].any()),
    ),
    'waypoints': (
        transforms.robotics.ActionsFromWaypoints(_STATE),
        octo.waypoints,
    ),
    'drop_end': (transforms.DropEnd(), _drop_end),
    'mark_padding': (transforms.MarkPadding(), _mark_padding),
    'mark_actions': (transforms.MarkActions(), _mark_actions),
    'timestep': (
        transforms.AddTimestep('t'),
        lambda steps: {**steps, 't': np.arange(len(steps['x']), dtype='i4')},
    ),
    'differences': (_FROM_STATES(), _states(False)),
    'next_states': (_FROM_STATES(kind='absolute'), _states(True)),
    'last_goal': (
        transforms.RelabelGoals(
            'last', field='observation/words', goal='observation/goal'
        ),
        _last_goal,
        True,
    ),
    'padded': (transforms.PadField('action', 3, 5, 'is/real'), _padded, True),
    'clipped': (
        _CLIP('action', -0.5, 0.25, 1),
        _change(lambda a: a.clip(_ONE_LOW, _ONE_HIGH), 'action'),
    ),
    'bounds_by_dimension': (
        _CLIP('action', [-1.0, -9.0, 0.1], [9, 0, np.inf]),
        _change(lambda a: a.clip([-1, -9, 0.1], [9, 0, np.inf]), 'action'),
    ),
    'clipped_nest': (
        _CLIP('observation', 0, 100),
        _change(lambda x: x.clip(0, 100), *_SEEN),
    ),
    'renamed': (
        transforms.RenameFields(
            {'x': ('a/b', 'c:d'), _STATE: 'x', 'observation/both/b': 'b'}
        ),
        _renamed,
        True,
    ),
    'selected': (
        transforms.SelectFields(['action', 'observation/both/a', 'reward']),
        _selected,
    ),
    'excluded': (
        transforms.SelectFields(
            exclude=['observation/image', ('observation', 'both', 'a')]
        ),
        _excluded,
    ),
    'fitted': (
        transforms.FitImages(
            {'observation/image': (2, 2), 'observation/wrist': (3, 4)}
        ),
        _with_wrist,
    ),
    'composed': (
        transforms.Compose([_SCALE(2.0), _SCALE(shift=1.0)]),
        _change(lambda reward: 2 * reward + 1, 'reward'),
        True,
    ),
    'clipped_reward': (
        _SCALE(2.0, 1.0, minimum=-1.0, maximum=0.5),
        _change(lambda r: (2 * r + 1).clip(-1, 0.5), 'reward'),
    ),
    'rotation': (
        transforms.robotics.ConvertRotation(
            'action', 0, 'euler_xyz', 'quaternion_wxyz'
        ),
        _turned,
    ),
}
# Those that look at the last action are tried without `has_action`, too.
_OF_LAST_ACTIONS = (
    *('binarize', 'absolute', 'waypoints', 'drop_end', 'mark_actions'),
    'differences',
)


def _steps_of(batch):
  """Returns the steps of each episode of a batch, in numpy."""
  splits = batch.row_splits.numpy()
  return [
      tf.nest.map_structure(lambda leaf: leaf.numpy()[start:stop], batch.steps)
      for start, stop in zip(splits, splits[1:])
  ]


class OracleTest(tf.test.TestCase, parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.batches = {
        has_action: list(
            episode_dataset.batches_of(golden.batched(_episodes(has_action)))
        )
        for has_action in (True, False)
    }

  @parameterized.parameters(*_TABLE)
  def test_transform_equals_loop(self, name):
    transform, oracle, *undoes = _TABLE[name]
    for has_action in {True, name not in _OF_LAST_ACTIONS}:
      transformed = map(transform.transform_batch, self.batches[has_action])
      actual = [steps for batch in transformed for steps in _steps_of(batch)]
      for steps, given in zip(actual, _episodes(has_action), strict=True):
        _assert_near(self, steps, oracle(given))
        if undoes:
          _assert_near(self, transform.invert(steps), given)
          self.assertEqual(transform.invert({}), {})
      # The steps of one episode, as arrays.
      given = _episodes(has_action)[0]
      _assert_near(self, transform.transform(given), oracle(given))

  @pytest.mark.long
  def test_results_dtypes_and_shapes_in_a_graph(self):
    transform = lambda e: {name: row[0](e) for name, row in _TABLE.items()}
    episodes = _episodes(False)[:4]
    data = golden.nested(episodes).map(transform)
    for found, given in zip(data, episodes, strict=True):
      for name, (_, oracle, *_) in _TABLE.items():
        with self.subTest(name):
          transformed = found[name]['steps']
          expected = oracle(given)
          _assert_near(self, transformed, expected)
          tf.nest.map_structure(
              lambda spec, leaf: self.assertEqual(
                  spec.shape.as_list(), [None, *leaf.shape[1:]]
              ),
              data.element_spec[name]['steps'],
              expected,
          )


_CASE = {
    **_episodes(True)[3],
    'chunks': np.ones([12, 4, 3], np.float32),
    'count': np.arange(12, dtype=np.int32),
}
# A transform, its arguments, and the ValueError when it is made, or when it
# meets `_CASE`.
_ERRORS = (
    ('FrameSkip', [0], 'skip must be a positive'),
    ('DropNoOps', ['observation/words'], 'must be numbers, but is string'),
    ('DropNoOps', dict(no_op=[0, 0]), '^(?s:.*)action has the shape'),
    ('DropNoOps', dict(predicate=lambda _: True), 'a bool for every step'),
    (
        'DropNoOps',
        dict(predicate=lambda steps: steps['x'][1:] > 0),
        'must have the same number of steps',
    ),
    ('DropNoOps', ['actoin'], 'Did you mean action'),
    ('RelativeToAbsoluteGripper', dict(threshold=-1), 'threshold must be 0'),
    ('BinarizeGripper', ['count'], 'must be floats.*int32'),
    ('BinarizeGripper', dict(index=3), '3 numbers, but 1 are'),
    ('BinarizeGripper', ['x'], 'must be one number per step'),
    ('BinarizeGripper', ['chunks'], 'Chunk actions after'),
    ('BinarizeGripper', ['observation/both'], 'one leaf, but has .*a.*b'),
    ('ActionsFromWaypoints', dict(state=_STATE, every=0), 'every must be'),
    ('MarkPadding', ['reward'], 'reward must be a dict'),
    ('ActionsFromStates', ['a'], 'no field a'),
    ('ActionsFromStates', dict(state='a', kind='delta'), "'delta'"),
    (
        'ActionsFromStates',
        dict(state=_STATE, start=6, size=4),
        'has 9 numbers, but 4 are needed from number 6',
    ),
    ('ActionsFromStates', dict(state=_STATE, keep=[3]), r'numbers \[3\]'),
    ('ActionsFromStates', [_STATE, 'chunks'], 'must be vectors'),
    (
        'MotionsFromPoses',
        dict(pose=_STATE, rotation='euler_xyz', frame='tool'),
        "frame must be one of.*'tool'",
    ),
    ('MotionsFromPoses', [_STATE, 'euler'], "one of.*'euler'"),
    ('MotionsFromPoses', [_STATE, 'matrix'], 'but 12 are needed from number 0'),
    ('ConvertRotation', ['x', 3, 'euler', 'matrix'], "'euler'"),
    ('ConvertRotation', ['action', -1, 'euler_xyz', 'matrix'], 'number -1 on'),
    ('PadField', ['action', 2, 4], 'must have 2 numbers, but'),
    ('PadField', ['action', 3, 2], 'from size=3 to width=2'),
    ('PadField', dict(field='action', width=2), '2 numbers at most'),
    ('SelectFields', [['observation/imag']], 'ation/image'),
    ('SelectFields', dict(exclude=['acton']), 'Did you mean action'),
    ('SelectFields', ['action'], r"Write \['action'\]"),
    ('RenameFields', [{'rewards': 'y'}], 'Did you mean reward'),
    ('RenameFields', [{'x': 'action'}], "'action' already"),
    ('ClipField', ['action', 0, 1, 3], 'from number 3 on'),
    ('ClipField', ['action', [0, 1]], 'do not broadcast'),
    ('ClipField', ['observation/words', 0, 1, 0], 'must be floats'),
    (
        'ClipField',
        ['observation/image', -1],
        'uint8, which cannot represent -1',
    ),
    (
        'ClipField',
        dict(field='count', high=0.5),
        'int32, which cannot represent',
    ),
    ('ClipField', ['count', np.nan], 'int32, which cannot represent nan'),
    ('ClipField', ['reward', 1e39], 'float32, which cannot represent .* wider'),
    ('RelabelGoals', ['futuer'], "strategy must be one of.*'futuer'"),
    ('RelabelGoals', ['geometric'], 'needs a discount between'),
    ('RelabelGoals', dict(discount=0.9), 'needs a discount between'),
    (
        'RelabelGoals',
        dict(strategy='last', include_current=1),
        'include_current is for',
    ),
    ('RelabelGoals', dict(max_distance=0), 'max_distance must be a positive'),
    (
        'RelabelGoals',
        dict(current_probability=2),
        'current_probability must be',
    ),
    ('RelabelGoals', dict(field='camera'), 'no field camera'),
    ('RelabelGoals', dict(goal='action'), "a field 'action' already"),
    ('DropConditioning', dict(keep_goal=1.5), 'keep_goal must be'),
    ('DropConditioning', dict(instruction='reward'), 'a string'),
    ('DrawInstruction', ['a', 'y'], r"Write \['a'\]"),
    ('DrawInstruction', [[], 'y'], 'There are no fields'),
    ('DrawInstruction', [['a'], 'y', 'frame'], "'frame'"),
    ('DrawInstruction', [['reward'], 'y'], 'be a string'),
    ('DrawInstruction', [['observation/wrods'], 'y'], 'Did you mean observ'),
    (
        'NormalizeField',
        dict(field='action', mask=[True, False]),
        'do not broadcast',
    ),
    ('NormalizeField', ['count'], 'count is int32, but only floats'),
)


class ErrorsTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.parameters(*_ERRORS)
  def test_invalid_arguments_raise(self, name, arguments, message):
    make = getattr(transforms, name, None) or getattr(transforms.robotics, name)
    errors = (ValueError, tf.errors.InvalidArgumentError)
    with self.assertRaisesRegex(errors, message):
      by_name = isinstance(arguments, dict)
      transform = make(**arguments) if by_name else make(*arguments)
      transform({'steps': _CASE}, 0)

  def test_invalid_steps_of_frame_skip_and_scale_raise(self):
    thin = transforms.FrameSkip(2)
    with self.assertRaisesRegex(ValueError, 'There is no field discount'):
      thin.transform({k: _CASE[k] for k in _CASE if k != 'discount'})
    with self.assertRaisesRegex(ValueError, 'leading time dimension'):
      thin.transform(golden.step_of(_CASE, 0))
    with self.assertRaisesRegex(ValueError, 'must be numbers, but is string'):
      _SCALE(2).transform({'reward': tf.constant('a')})

  def test_a_flag_that_is_missing(self):
    without = {name: _CASE[name] for name in _CASE if name != 'is_first'}
    for transform in (
        transforms.FitImages({'observation/side': (2, 2)}),
        _NO_OP(predicate=lambda steps: steps['x'] > 0),
    ):
      with self.assertRaisesRegex(ValueError, 'There is no field is_first'):
        transform.transform(without)


class SpecialCasesTest(tf.test.TestCase):
  """Properties of individual transforms that the table does not cover."""

  def test_thinning_of_a_cut_episode(self):
    cut = tf.nest.map_structure(lambda leaf: leaf[1:4], call_modes.FIVE)
    steps = transforms.FrameSkip(2)({'steps': cut})['steps']
    self.assertAllEqual(steps['is_first'] | steps['is_last'], [False, False])
    self.assertAllEqual(steps['reward'], [5, 4])

  def test_relative_commands_undo_absolute_ones(self):
    relative = np.float32([0, 1, 0, 0, -1, 0, 1, 0])
    gripper = transforms.robotics.RelativeToAbsoluteGripper(index=None)
    absolute = gripper.transform({'action': relative})['action']
    previous = np.float32([1, *absolute[:-1]])
    self.assertAllEqual(gripper.relative(absolute, previous), relative)
    with self.assertRaisesRegex(ValueError, 'previous must be floats.*int'):
      gripper.relative([1.0], [1])

  def test_states_are_reached(self):
    state = _CASE['observation']['state']
    motions = functools.partial(
        transforms.robotics.MotionsFromPoses, 'state', 'rotation_6d'
    )
    for transform in (
        transforms.robotics.ActionsFromStates('state'),
        transforms.robotics.ActionsFromStates('state', kind='absolute'),
        motions(),
        motions(motion_rotation='matrix', frame='end_effector'),
    ):
      first = transforms.robotics.ConvertRotation(
          'state', 3, 'rotation_6d', 'matrix'
      )
      steps = {'state': state, 'action': np.zeros([12, 1], np.float32)}
      steps = first.invert(first.transform(steps))  # of unit length
      transformed = transform.transform(steps)
      reached = transform.target(transformed)[:-1]
      self.assertAllClose(reached, steps['state'][1:], 1e-5, 1e-5)

  def test_common_width_of_a_mixture(self):
    pad = transforms.PadField
    data = {'one': golden.stacked([_CASE]), 'two': golden.nested([_CASE])}
    data['two'] = data['two'].map(pad('action', 3, 5))
    self.assertIn('action_pad_mask', data['two'].element_spec['steps'])
    pads = pad.to_common_width(data)
    expected = {'one': pad('action', 3, 5), 'two': pad('action', 5, 5)}
    self.assertEqual(pads, expected)
    wide = pad.to_common_width(data, width=8)
    self.assertEqual(wide['one'], pad('action', 3, 8))
    with self.assertRaisesRegex(ValueError, 'reward of the data set one must'):
      pad.to_common_width(data, 'reward')
    with self.assertRaisesRegex(ValueError, 'size of the data is not known'):
      pad('action', width=5).invert({'action': np.zeros(5)})

  def test_an_inverse_of_some_fields_and_nan(self):
    rename = transforms.RenameFields({'observation/a': 'action', 'x': 'y'})
    self.assertEqual(rename.invert({'action': 1}), {'observation': {'a': 1}})
    self.assertEqual(_TABLE['rotation'][0].invert({}), {})
    clip = transforms.ClipField('x', -1, 1)
    clipped = clip.transform({'x': tf.constant([np.nan, 5.0])})['x']
    self.assertAllEqual(clipped, [np.nan, 1.0])

  def test_integer_reward(self):
    reward = tf.constant([0, 1, 127], tf.int8)
    for wrap in (lambda fn: fn, tf.function):
      clip = wrap(_SCALE(2, minimum=0, maximum=127).transform)
      actual = clip({'reward': reward})['reward']
      self.assertAllEqual(actual, [0, 2, 127])
      self.assertEqual(actual.dtype, tf.int8)
      scale = wrap(_SCALE(2).transform)
      for steps in {'reward': reward}, {'reward': reward[2], 'is_last': False}:
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, '(?s)reward must fit int8.*254'
        ):
          scale(steps)
      # The reward of a last step has no meaning, whatever it is.
      for is_last in ([False, False, True], [[False], [False], [True]]):
        actual = scale({'reward': reward, 'is_last': is_last})['reward']
        self.assertAllEqual(actual[:2], [0, 2])
    with self.assertRaisesRegex(ValueError, 'reward is int8.*Cast'):
      _SCALE(0.5).transform({'reward': reward})


if __name__ == '__main__':
  tf.test.main()
