"""Tests of finding and reading sources."""

import numpy as np
import tensorflow as tf

from rlds2reverb.fields import field_sources

_EPISODE = {
    'steps': {
        'a': np.array([1, 2, 3]),
        'b': {'c': np.array([[1.5], [2.5], [3.5]], np.float32)},
    },
    'goal': np.array(7, np.int64),
}


def _read(source, cast=tf.identity):
  episode = tf.nest.map_structure(tf.constant, _EPISODE)
  problems = []
  resolved = field_sources.resolve(
      source, field_sources.nest_of(episode), problems
  )
  assert not problems, problems
  return field_sources.read(resolved, episode, tf.constant(3), cast, 'field')


class FieldSourcesTest(tf.test.TestCase):

  def test_paths(self):
    self.assertAllEqual(_read('a'), [1, 2, 3])
    self.assertAllEqual(_read('b/c'), [[1.5], [2.5], [3.5]])
    self.assertAllEqual(_read(('b', 'c')), [[1.5], [2.5], [3.5]])
    self.assertAllEqual(_read('../goal'), [7, 7, 7])
    self.assertEqual(set(_read('b')), {'c'})

  def test_constants_dicts_and_functions(self):
    found = _read(
        {
            'constant': 2.5,
            'function': lambda episode: episode['steps']['a'] * 2,
        }
    )
    self.assertAllEqual(found['constant'], [2.5, 2.5, 2.5])
    self.assertAllEqual(found['function'], [2, 4, 6])

  def test_lists_are_vectors(self):
    found = _read(['b', 'a', '../goal'])
    self.assertEqual(found.dtype, tf.float32)
    self.assertAllEqual(found, [[1.5, 1, 7], [2.5, 2, 7], [3.5, 3, 7]])

  def test_cast(self):
    found = _read('a', lambda leaf: tf.cast(leaf, tf.float64))
    self.assertEqual(found.dtype, tf.float64)

  def test_a_function_that_returns_another_length(self):
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, 'field'):
      _read(lambda episode: episode['steps']['a'][:2])

  def test_problems(self):
    problems = []
    field_sources.resolve(
        {'x': 'aa', 'y': ['b', 'nothing']},
        field_sources.nest_of(_EPISODE),
        problems,
    )
    self.assertLen(problems, 2)
    self.assertIn('aa', problems[0])
    self.assertIn('nothing', problems[1])

  def test_used(self):
    nest = field_sources.nest_of(_EPISODE)
    resolved = field_sources.resolve(['a', {'x': '../goal'}, 3], nest, [])
    self.assertEqual(field_sources.used(resolved), [('a',), ('..', 'goal')])

  def test_describe(self):
    self.assertCountEqual(
        field_sources.describe(_EPISODE),
        ['a: int64 ()', 'b/c: float32 (1,)', '../goal: int64 ()'],
    )

  def test_measured(self):
    steps, length = field_sources.measured(
        _EPISODE['steps'], field_sources.Field(('a',))
    )
    self.assertEqual(length, 3)
    self.assertAllEqual(steps['a'], [1, 2, 3])
    unequal = {'a': np.zeros(3), 'b': {'c': np.zeros(2)}}
    field_sources.measured(unequal, field_sources.Field(('a',)))
    with self.assertRaises(tf.errors.InvalidArgumentError):
      field_sources.measured(
          unequal,
          [field_sources.Field(('a',)), field_sources.Field(('b',))],
      )


if __name__ == '__main__':
  tf.test.main()
