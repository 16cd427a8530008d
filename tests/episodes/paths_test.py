"""Tests of finding and moving fields by their paths."""

import collections

from absl.testing import absltest
from absl.testing import parameterized

from rlds2reverb.episodes import paths

_Pair = collections.namedtuple('_Pair', ['left', 'right'])
_NEST = {
    'observation': {'camera': ({'rgb': 1}, 2), 'state': 3},
    'pair': _Pair(4, {'x': 5}),
    'a/b': {'c': 6},
    'task:text': 7,
}


class PathsTest(parameterized.TestCase):

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

  def test_nearest_name(self):
    with self.assertRaisesRegex(
        ValueError,
        'no field observation/stat. Did you mean observation/state',
    ):
      paths.find(_NEST, 'observation/stat')
    with self.assertRaisesRegex(ValueError, 'no field zzz. The fields are'):
      paths.find(_NEST, ('zzz',))
    self.assertFalse(paths.contains(_NEST, 'zzz'))

  def test_ambiguous(self):
    nest = {'a/b': 1, 'a': {'b': 2}}
    with self.assertRaisesRegex(ValueError, 'may be any of'):
      paths.find(nest, 'a/b')
    self.assertEqual(paths.find(nest, ('a/b',)), ('a/b',))
    self.assertEqual(paths.find(nest, ('a', 'b')), ('a', 'b'))
    with self.assertRaisesRegex(ValueError, 'Two fields have the name a/b'):
      paths.leaves(nest)

  def test_map_leaves(self):
    names = []

    def negate(name, leaf):
      names.append(name)
      return -leaf

    mapped = paths.map_leaves(negate, _NEST, 'observation/camera')
    self.assertEqual(
        mapped,
        {**_NEST, 'observation': {'camera': ({'rgb': -1}, -2), 'state': 3}},
    )
    self.assertEqual(
        names, ['observation/camera/0/rgb', 'observation/camera/1']
    )
    mapped = paths.map_leaves(negate, _NEST, 'pair')
    self.assertEqual(mapped['pair'], _Pair(-4, {'x': -5}))

  def test_the_whole_nest(self):
    self.assertEqual(paths.get(3, ()), 3)
    self.assertEqual(paths.get(_NEST, ()), _NEST)
    self.assertEqual(paths.map_leaves(lambda _, x: -x, 3, ()), -3)
    self.assertEqual(paths.remove(_NEST, ()), {})
    with self.assertRaisesRegex(ValueError, 'must have a path'):
      paths.insert(_NEST, (), 1)

  def test_remove(self):
    self.assertEqual(
        paths.remove(_NEST, ('observation', 'state'))['observation'],
        {'camera': ({'rgb': 1}, 2)},
    )
    # No empty dict is left.
    self.assertNotIn('a/b', paths.remove(_NEST, ('a/b', 'c')))
    with self.assertRaisesRegex(ValueError, '1 is sought in a tuple'):
      paths.remove(_NEST, ('observation', 'camera', 1))
    self.assertIn('c', _NEST['a/b'])

  def test_insert(self):
    inserted = paths.insert(_NEST, ('observation', 'new', 'deep'), 8)
    self.assertEqual(inserted['observation']['new'], {'deep': 8})
    self.assertEqual(inserted['observation']['state'], 3)
    with self.assertRaisesRegex(ValueError, "field 'state' already"):
      paths.insert(_NEST, ('observation', 'state'), 8)
    with self.assertRaisesRegex(ValueError, 'in a int'):
      paths.insert(_NEST, ('observation', 'state', 'x'), 8)

  def test_leaves(self):
    self.assertEqual(
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
    )

  def test_check_list(self):
    for fields in (['a'], ('a', 'b/c'), [('a', 0)], []):
      paths.check_list('fields', fields)
    with self.assertRaisesRegex(ValueError, r"fields must .* Write \['a/b'\]"):
      paths.check_list('fields', 'a/b')


if __name__ == '__main__':
  absltest.main()
