"""Tests of what names, sizes and numbers of arguments mean, in tables."""

import collections
import functools

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib

_Pair = collections.namedtuple('_Pair', ['left', 'right'])
_NEST = {
    'observation': {'camera': ({'rgb': 1}, 2), 'state': 3},
    'pair': _Pair(4, {'x': 5}),
    'a/b': {'c': 6},
    'task:text': 7,
}
_TWICE = {'a/b': 1, 'a': {'b': 2}}
_spec = tf.TensorSpec
_VALUES = [
    (checks.counted(1, 'file'), '1 file'),
    (checks.counted(0, 'file'), '0 files'),
    (checks.counted(1234, 'file is', 'files are'), '1,234 files are'),
    (checks.did_you_mean('b', ['b', 'a'], 'x/'), ' Did you mean x/b?'),
    (checks.did_you_mean('zzz', ['reward']), ''),
    (paths.get(3, ()), 3),
    (paths.get(_NEST, ()), _NEST),
    (paths.find(_TWICE, ('a/b',)), ('a/b',)),
    (paths.contains(_NEST, 'zzz'), False),
    (paths.remove(_NEST, ()), {}),
    (paths.split('a/b'), ('a', 'b')),
    (paths.split(['a/b', 0]), ('a/b', 0)),
    (paths.insert({}, 'a/b', 1), {'a': {'b': 1}}),
    (paths.name_of(('a', 0)), 'a/0'),
    (paths.check_list('fields', [('a', 0), 'b/c']), None),
    (paths.map_leaves(lambda _, x: -x, 3, ()), -3),
    (
        paths.remove(_NEST, ('observation', 'state'))['observation'],
        {'camera': ({'rgb': 1}, 2)},
    ),
    # No empty dict remains, and the argument is unchanged.
    ('a/b' in paths.remove(_NEST, ('a/b', 'c')), False),
    (_NEST['a/b'], {'c': 6}),
    (
        paths.insert(_NEST, ('observation', 'new', 'deep'), 8)['observation'],
        {**_NEST['observation'], 'new': {'deep': 8}},
    ),
    (
        paths.leaves(_NEST),
        {
            'a/b/c': 6,
            'observation/camera/0/rgb': 1,
            'observation/camera/1': 2,
            'observation/state': 3,
            'pair/left': 4,
            'pair/right/x': 5,
            'task:text': 7,
        },
    ),
]


class ArgumentsTest(tf.test.TestCase, parameterized.TestCase):

  def test_invalid_arguments_raise(self):
    no = functools.partial(self.assertRaisesRegex, ValueError)
    no(
        "^end must be one of 'drop', 'pad', but is 'drp'. Did you mean drop"
        r'\?$',
        checks.check_choice,
        'end',
        'drp',
        ['drop', 'pad'],
    )
    no(
        r"^A file has no agent 'lfet'. Did you mean left\? It has \['left',"
        r" 'right'\].$",
        checks.check_known,
        'A file',
        'agent',
        'lfet',
        ['right', 'left'],
    )
    for value, more in (
        (0, ''),
        (-1, ''),
        (True, ''),
        (np.int64(0), ''),
        (2.0, 'known when the pipeline is built.'),
        ('2', 'known when the pipeline is built.'),
        (None, 'known when the pipeline is built.'),
    ):
      no(
          f'^length must be a positive integer, but is .*{value}.*{more}$',
          checks.check_positive,
          'length',
          value,
      )
    no(r'length must be below 2\*\*63', checks.check_positive, 'length', 2**63)
    no('length must be an', checks.check_not_negative, 'length', -1)
    no(
        'finite numbers above 0, but data set 1 has 0.0',
        checks.check_weights,
        [1, 0],
        are_positive=True,
    )
    no('finite numbers', checks.check_weights, {'a': 0, 'b': np.nan})
    no('data set 0 has inf', checks.check_weights, [np.inf, 1])
    no('All weights are 0', checks.check_weights, [0, 0])
    no(
        r"must be of the data sets \['a'\], but are of \['b'\]",
        checks.check_weights,
        {'b': 1},
        ['a'],
    )
    no(
        r'each of the 2 data sets, but weights are \[1\]',
        checks.check_count,
        [1],
        2,
    )
    # Paths.
    no(
        'no field observation/stat. Did you mean observation/state',
        paths.find,
        _NEST,
        'observation/stat',
    )
    no('no field zzz. The fields are', paths.get, _NEST, ('zzz',))
    no('may be any of', paths.find, _TWICE, 'a/b')
    no('Two fields have the name a/b', paths.leaves, _TWICE)
    no('must have a path', paths.insert, _NEST, (), 1)
    no(
        '1 is sought in a tuple',
        paths.remove,
        _NEST,
        ('observation', 'camera', 1),
    )
    no(
        "field 'state' already",
        paths.insert,
        _NEST,
        ('observation', 'state'),
        8,
    )
    no('in a int', paths.insert, _NEST, ('observation', 'state', 'x'), 8)
    no(r"fields must .* Write \['a/b'\]", paths.check_list, 'fields', 'a/b')
    for value in (1, 7, np.int32(3)):
      checks.check_positive('length', value)
    checks.check_not_negative('length', 0)
    checks.check_weights({'a': 0, 'b': 2}, ['b', 'a'])
    checks.check_count([1, 2], 2)

  def test_values(self):
    for actual, expected in _VALUES:
      self.assertEqual(actual, expected)

  @parameterized.parameters(
      ('observation/state', ('observation', 'state'), 3),
      ('observation/camera/0/rgb', ('observation', 'camera', 0, 'rgb'), 1),
      (('observation', 'camera', 1), ('observation', 'camera', 1), 2),
      (['observation', 'camera', 1], ('observation', 'camera', 1), 2),
      ('observation/camera/0', ('observation', 'camera', 0), {'rgb': 1}),
      ('pair/left', ('pair', 'left'), 4),
      ('pair/right/x', ('pair', 'right', 'x'), 5),
      ('a/b/c', ('a/b', 'c'), 6),
      ('a/b', ('a/b',), {'c': 6}),
      ('task:text', ('task:text',), 7),
  )
  def test_find_and_get(self, path, keys, value):
    self.assertEqual(paths.find(_NEST, path), keys)
    self.assertTrue(paths.contains(_NEST, path))
    self.assertEqual(paths.get(_NEST, path), value)

  def test_map_leaves(self):
    names = []
    mapped = paths.map_leaves(
        lambda name, leaf: names.append(name) or -leaf,
        _NEST,
        'observation/camera',
    )
    self.assertEqual(
        mapped,
        {**_NEST, 'observation': {'camera': ({'rgb': -1}, -2), 'state': 3}},
    )
    self.assertEqual(
        names, ['observation/camera/0/rgb', 'observation/camera/1']
    )

  @parameterized.parameters(
      (_spec([64, 64, 3], tf.uint8), (2 << 20) // 12288),
      (_spec([128], tf.float32), 4096),
      (_spec([256], tf.float32), 2048),
      (_spec([4096, 4096], tf.float64), 1),
      (_spec([4], tf.string), 128),
      (_spec([None, None, 4], tf.uint8), 8),
      (_spec(None, tf.float64), 1024),
      ({}, 4096),
      ({'a': (_spec([256], tf.float32),), 'b': _spec([128], tf.float64)}, 1024),
  )
  def test_blocks_of_about_two_mebibytes(self, spec, expected):
    self.assertEqual(steps_lib.default_block_length(spec), expected)

  def test_names_equal_those_of_rlds(self):
    import rlds as original

    names = [
        name
        for name, value in vars(rlds).items()
        if isinstance(value, str) and name.isupper()
    ]
    for name in names:
      self.assertEqual(getattr(rlds, name), getattr(original, name))
    self.assertCountEqual(
        steps_lib.get_rlds_step_features(),
        [getattr(original, name) for name in names if name != 'STEPS'],
    )


if __name__ == '__main__':
  tf.test.main()
