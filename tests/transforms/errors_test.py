"""What transforms refuse, and what is said of single ones besides."""

import functools

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb import transforms
from tests import golden
from tests import ways
from tests.transforms import episodes

_NO_OP = transforms.DropNoOps
_SCALE = transforms.ScaleReward
_STATE = 'observation/state'

_CASE = {
    **episodes.make(True)[3],
    'chunks': np.ones([12, 4, 3], np.float32),
    'count': np.arange(12, dtype=np.int32),
}
_TEXTS = {'reward': _CASE['observation']['words']}
_SHORT = {'action': _CASE['action'][1:]}
# A transform, its arguments, and the error when it is made, or when it meets
# `_CASE`, of which fields may change; None is not there.
_ERRORS = (
    ('FrameSkip', [0], 'skip must be a positive'),
    ('DropNoOps', ['observation/words'], 'must be numbers, but is string'),
    ('DropNoOps', dict(no_op=[0, 0]), '^(?s:.*)action has the shape'),
    ('DropNoOps', dict(predicate=lambda _: True), 'a bool for every step'),
    ('DropNoOps', ['actoin'], 'Did you mean action'),
    ('RelativeToAbsoluteGripper', dict(threshold=-1), 'threshold must be 0'),
    ('BinarizeGripper', ['count'], 'must be floats.*int32'),
    ('BinarizeGripper', dict(index=3), '3 numbers, but 1 are'),
    ('BinarizeGripper', dict(index=-4), '3 numbers, but 1 are'),
    ('BinarizeGripper', ['x'], 'must be one number a step'),
    ('BinarizeGripper', ['chunks'], 'Cut chunks later'),
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
    ('ActionsFromStates', dict(state=_STATE, kept=[3]), r'numbers \[3\]'),
    ('ActionsFromStates', [_STATE, 'chunks'], 'Both must be vectors'),
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
    ('SelectFields', dict(exclude='x'), r"Write \['x'\]"),
    ('RenameFields', [{'rewards': 'y'}], 'Did you mean reward'),
    ('RenameFields', [{'x': 'action'}], "'action' already"),
    ('ClipField', ['action', 0, 1, 3], 'from number 3 on'),
    ('ClipField', ['action', [0, 1]], 'do not fit'),
    ('ClipField', ['x', np.zeros([1, 1])], 'do not fit'),
    ('ClipField', ['observation/words', 0, 1, 0], 'must be floats'),
    ('RelabelGoals', ['future'], "strategy must be one of.*'future'"),
    ('RelabelGoals', ['geometric'], 'needs a discount between'),
    ('RelabelGoals', ['geometric', 1.0], 'needs a discount between'),
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
    ('NormalizeField', dict(field='action', mask=[True, False]), 'do not fit'),
    ('NormalizeField', ['count'], 'count is int32. Only floats'),
    ('ScaleReward', [2], 'must be numbers, but is string', _TEXTS),
    ('FrameSkip', [2], 'no field discount', {'discount': None}),
    ('DropNoOps', [], 'no field discount', {'discount': None}),
    (
        'DropNoOps',
        dict(predicate=lambda steps: steps['x'] > 0),
        'no field is_first',
        {'is_first': None},
    ),
    (
        'FitImages',
        [{'observation/side': (2, 2)}],
        'no field is_first',
        {'is_first': None},
    ),
    ('FrameSkip', [2], 'must have a row for every step', _SHORT),
    ('DropNoOps', [], 'must have a row for every step', _SHORT),
    (
        'DropNoOps',
        dict(predicate=lambda steps: steps['x'][1:] > 0),
        'must have a row for every step',
    ),
)


class ErrorsTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.parameters(*_ERRORS)
  def test_errors(self, name, arguments, message, changes=None):
    make = getattr(transforms, name)
    steps = {**_CASE, **(changes or {})}
    steps = {name: leaf for name, leaf in steps.items() if leaf is not None}
    errors = ValueError, tf.errors.InvalidArgumentError
    with self.assertRaisesRegex(errors, message):
      by_name = isinstance(arguments, dict)
      made = make(**arguments) if by_name else make(*arguments)
      made({'steps': steps}, 0)

  def test_only_whole_episodes_are_thinned(self):
    for transform in (transforms.FrameSkip(2), _NO_OP()):
      with self.assertRaisesRegex(ValueError, 'leading time dimension'):
        transform.transform(golden.step_of(_CASE, 0))

  @parameterized.parameters(
      *((tf.uint8, bound) for bound in (-1, 300, 0.5)),
      *((tf.int64, 2.0**63), (tf.uint64, -1)),
      *((tf.int32, np.nan), (tf.int32, np.inf)),
      *((tf.float16, 1e5), (tf.float16, -1e5), (tf.float32, [0.0, 1e39])),
  )
  def test_bounds_that_the_dtype_cannot_hold(self, dtype, bound):
    for clip in (
        transforms.ClipField('x', low=bound),
        transforms.ClipField('x', high=bound),
    ):
      with self.assertRaisesRegex(ValueError, f'x is {dtype.name}, which can'):
        clip.transform({'x': tf.zeros([3, 2], dtype)})


class MoreTest(tf.test.TestCase):
  """What is said of single transforms besides."""

  def test_thinning_of_no_steps_and_of_a_cut_episode(self):
    for transform in (transforms.FrameSkip(2), _NO_OP()):
      empty = tf.nest.map_structure(lambda leaf: leaf[:0], ways.FIVE)
      steps = transform({'steps': empty})['steps']
      tf.nest.map_structure(self.assertAllEqual, steps, empty)
    cut = tf.nest.map_structure(lambda leaf: leaf[1:4], ways.FIVE)
    steps = transforms.FrameSkip(2)({'steps': cut})['steps']
    self.assertAllEqual(steps['is_first'] | steps['is_last'], [False, False])
    self.assertAllEqual(steps['reward'], [5, 4])

  def test_relative_commands_undo_absolute_ones(self):
    relative = np.float32([0, 1, 0, 0, -1, 0, 1, 0])
    gripper = transforms.RelativeToAbsoluteGripper(index=None)
    absolute = gripper.transform({'action': relative})['action']
    previous = np.float32([1, *absolute[:-1]])
    self.assertAllEqual(gripper.relative(absolute, previous), relative)
    with self.assertRaisesRegex(ValueError, 'previous must be floats.*int'):
      gripper.relative([1.0], [1])

  def test_states_are_reached(self):
    state = _CASE['observation']['state']
    motions = functools.partial(
        transforms.MotionsFromPoses, 'state', 'rotation_6d'
    )
    for transform in (
        transforms.ActionsFromStates('state'),
        transforms.ActionsFromStates('state', kind='absolute'),
        motions(),
        motions(motion_rotation='matrix', frame='end_effector'),
    ):
      first = transforms.ConvertRotation('state', 3, 'rotation_6d', 'matrix')
      steps = {'state': state, 'action': np.zeros([12, 1], np.float32)}
      steps = first.invert(first.transform(steps))  # of unit length
      made = transform.transform(steps)
      reached = transform.target(made)[:-1]
      self.assertAllClose(reached, steps['state'][1:], 1e-5, 1e-5)

  def test_a_rotation_is_turned_back(self):
    convert = transforms.ConvertRotation(
        'action', 0, 'euler_xyz', 'quaternion_wxyz'
    )
    steps = {'action': np.float32([0.5, -1.0, 2.0])}
    self.assertAllClose(convert.invert(convert.transform(steps)), steps)
    self.assertEqual(convert.invert({}), {})

  def test_common_width_of_a_mixture(self):
    pad = transforms.PadField
    data = {'one': golden.stacked([_CASE]), 'two': golden.nested([_CASE])}
    data['two'] = data['two'].map(pad('action', 3, 5))
    pads = pad.to_common_width(data)
    expected = {'one': pad('action', 3, 5), 'two': pad('action', 5, 5)}
    self.assertEqual(pads, expected)
    wide = pad.to_common_width(data, width=8)
    self.assertEqual(wide['one'], pad('action', 3, 8))
    with self.assertRaisesRegex(ValueError, 'reward of the data set one must'):
      pad.to_common_width(data, 'reward')
    with self.assertRaisesRegex(ValueError, 'it was padded is not known'):
      pad('action', width=5).invert({'action': np.zeros(5)})

  def test_an_inverse_of_some_fields_and_nan(self):
    rename = transforms.RenameFields({'observation/a': 'action', 'x': 'y'})
    self.assertEqual(rename.invert({'action': 1}), {'observation': {'a': 1}})
    clip = transforms.ClipField('x', -1, 1)
    clipped = clip.transform({'x': tf.constant([np.nan, 5.0])})['x']
    self.assertAllEqual(clipped, [np.nan, 1.0])

  def test_integer_reward(self):
    clip = functools.partial(_SCALE, 2, minimum=0)
    for dtype in (tf.int8, tf.uint8, tf.int32):
      reward = tf.constant([0, 1, dtype.max], dtype)
      for wrap in (lambda fn: fn, tf.function):
        scale = wrap(_SCALE(2).transform)
        steps = {'reward': reward}
        found = wrap(clip(maximum=dtype.max).transform)(steps)['reward']
        self.assertAllEqual(found, [0, 2, dtype.max])
        self.assertEqual(found.dtype, dtype)
        for steps in steps, {'reward': reward[2], 'is_last': False}:
          with self.assertRaisesRegex(
              tf.errors.InvalidArgumentError,
              f'(?s)reward must fit {dtype.name}.*{2 * dtype.max}',
          ):
            scale(steps)
        # The reward of a last step has no meaning, whatever it is.
        for is_last in ([False, False, True], [[False], [False], [True]]):
          found = scale({'reward': reward, 'is_last': is_last})['reward']
          self.assertAllEqual(found[:2], [0, 2])
    with self.assertRaisesRegex(ValueError, 'reward is int32.*Cast'):
      _SCALE(0.5).transform({'reward': reward})


if __name__ == '__main__':
  tf.test.main()
