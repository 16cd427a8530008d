"""Holds transforms to loops in numpy over the steps of one episode.

Every transform of the table meets random episodes of 1 to 12 steps, many at
once, eagerly and in a graph. In half of the data sets the last action counts,
in some episodes.
"""

import functools

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb import transforms
from rlds2reverb.episodes import data_sets
from rlds2reverb.transforms import rotations
from tests import golden
from tests.transforms import episodes
from tests.transforms import octo


def _assert_near(test, found, expected):
  """Asserts equal fields and dtypes, and numbers that differ by rounding."""
  tf.nest.assert_same_structure(found, expected)
  for one, other in zip(tf.nest.flatten(found), tf.nest.flatten(expected)):
    one = np.asarray(one)
    test.assertEqual(one.dtype, other.dtype)
    if other.dtype.kind == 'f':
      test.assertAllClose(one, other, 1e-5, 1e-5)
    else:
      test.assertAllEqual(one, other)


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
  """Replaces the commands in `action` by those of a function of Octo's."""

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
  made = octo.take(steps, range(count))
  for name in 'is_last', 'is_terminal':
    made[name][-1] = steps[name][-1]
  has = steps.get('has_action', np.arange(length) < length - 1)[:count].copy()
  has[-1] |= count < length
  return {**made, 'has_action': has}


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


def _padded(steps, mask=None):
  action = np.pad(steps['action'], [[0, 0], [0, 2]])
  real = np.tile(np.arange(5) < 3, [len(action), 1])
  masks = {mask: {'real': real}} if mask else {'action_pad_mask': real}
  return {**steps, 'action': action, **masks}


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
  # rotations_test compares it with SciPy's.
  found = rotations.convert(steps['action'], 'euler_xyz', 'quaternion_wxyz')
  return {**steps, 'action': found.numpy()}


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
    transforms.ActionsFromStates, _STATE, start=1, size=4, kept=(0, -1)
)
_ONE_LOW, _ONE_HIGH = np.array([[-9, -0.5, -9], [9, 0.25, 9]], np.float32)
# A transform, what it does, and whether `invert` undoes it.
_TABLE = {
    'binarize': (transforms.BinarizeGripper(), _commands(octo.binarized)),
    'absolute': (
        transforms.RelativeToAbsoluteGripper(),
        _commands(octo.absolute),
    ),
    'inverted_gripper': (
        transforms.InvertGripper('x', None, closed=2.0),
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
    'waypoints': (transforms.ActionsFromWaypoints(_STATE), octo.waypoints),
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
    'padded': (transforms.PadField('action', 3, 5), _padded, True),
    'padded_with_a_mask': (
        transforms.PadField('action', 3, 5, 'is/real'),
        lambda steps: _padded(steps, mask='is'),
        True,
    ),
    'clipped': (
        _CLIP('action', -0.5, 0.25, 1),
        _change(lambda a: a.clip(_ONE_LOW, _ONE_HIGH), 'action'),
    ),
    'bounds_by_dimension': (
        _CLIP('action', [-1.0, -9.0, 0.1], [9, 0, np.inf]),
        _change(lambda a: a.clip([-1, -9, 0.1], [9, 0, np.inf]), 'action'),
    ),
    'clipped_below': (
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
        transforms.Compose(
            [
                _SCALE(0.5, 1.0),
                transforms.Compose([_SCALE(2.0)]),
                transforms.RenameFields({'x': 'y'}),
            ]
        ),
        lambda steps: {
            **{name: steps[name] for name in steps if name != 'x'},
            'reward': steps['reward'] + 2,
            'y': steps['x'],
        },
        True,
    ),
    'clipped_reward': (
        _SCALE(2.0, minimum=-1.0, maximum=0.5),
        _change(lambda r: (2 * r).clip(-1, 0.5), 'reward'),
    ),
    'rotation': (
        transforms.ConvertRotation('action', 0, 'euler_xyz', 'quaternion_wxyz'),
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
        has: list(data_sets.batches_of(golden.batched(episodes.make(has))))
        for has in (False, True)
    }

  @parameterized.parameters(*_TABLE)
  def test_as_a_loop_does(self, name):
    transform, oracle, *undoes = _TABLE[name]
    for has_action in {True, name not in _OF_LAST_ACTIONS}:
      made = map(transform.transform_batch, self.batches[has_action])
      found = [steps for batch in made for steps in _steps_of(batch)]
      for steps, given in zip(found, episodes.make(has_action), strict=True):
        _assert_near(self, steps, oracle(given))
        if undoes:
          _assert_near(self, transform.invert(steps), given)
          self.assertEqual(transform.invert({}), {})
      # The steps of one episode, as arrays.
      given = episodes.make(has_action)[0]
      _assert_near(self, transform.transform(given), oracle(given))

  def test_in_a_graph_with_known_dtypes_and_shapes(self):
    given = episodes.make(False)
    data = data_sets.batches_of(golden.batched(given)).map(
        lambda batch: {
            name: one[0].transform_batch(batch) for name, one in _TABLE.items()
        }
    )
    made = list(data)
    for name, (_, oracle, *_) in _TABLE.items():
      with self.subTest(name):
        found = [steps for row in made for steps in _steps_of(row[name])]
        for steps, one in zip(found, given, strict=True):
          _assert_near(self, steps, oracle(one))
        tf.nest.map_structure(
            lambda spec, leaf: self.assertEqual(
                spec.shape.as_list(), [None, *leaf.shape[1:]]
            ),
            data.element_spec[name].steps,
            oracle(given[0]),
        )


if __name__ == '__main__':
  tf.test.main()
