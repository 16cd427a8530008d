"""Tests of pickles of NumPy arrays, right and hostile ones."""

import contextlib
import os
import pickle

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from rlds2reverb.formats import numpy_pickles


class _Reduced:
  """An object that pickle writes as a call, and a state."""

  def __init__(self, *reduced):
    self._reduced = reduced

  def __reduce__(self):
    return self._reduced


def _array(dtype, data, shape):
  """Returns an array as NumPy pickles it, with any dtype and data."""
  function, arguments, _ = np.zeros(1).__reduce__()
  return _Reduced(function, arguments, (1, shape, dtype, False, data))


# Its bytes would be the addresses of objects.
_POINTERS = _Reduced(
    np.dtype,
    ('V16', False, True),
    (
        *(3, '|', None, ('a', 'b')),
        {'a': (np.dtype('O'), 0), 'b': (np.dtype('O'), 8)},
        *(16, 1, 0),
    ),
)


class NumpyPicklesTest(parameterized.TestCase):

  def _assert_equal(self, value, expected):
    self.assertIs(type(value), type(expected))
    if isinstance(expected, np.ndarray):
      self.assertEqual(value.dtype, expected.dtype)
      self.assertEqual(value.shape, expected.shape)
      for actual_value, expected_value in zip(value.ravel(), expected.ravel()):
        self._assert_equal(actual_value, expected_value)
    elif isinstance(expected, dict):
      self.assertEqual(list(value), list(expected))
      for key, one in expected.items():
        self._assert_equal(value[key], one)
    elif isinstance(expected, (list, tuple)):
      self.assertLen(value, len(expected))
      for actual_value, expected_value in zip(value, expected):
        self._assert_equal(actual_value, expected_value)
    else:
      self.assertEqual(value, expected)

  @parameterized.product(
      value=(
          np.arange(6, dtype=np.float32).reshape(2, 3),
          np.asfortranarray(np.arange(6).reshape(2, 3)),
          np.arange(6).reshape(2, 3)[:, ::2],
          np.arange(3, dtype='>i4'),
          np.zeros([0, 3], np.uint8),
          np.array(7, np.float64),
          np.array([True, False]),
          np.array([1 + 2j], np.complex64),
          np.array(['a', 'bc']),
          np.array([b'a', b'bc']),
          np.array([{'x': np.arange(3)}, None], object),
          np.float32(1.5),
          np.str_('text'),
          {'a': [1, (2.5, 'x', b'y', None, True)], 'b': np.arange(2)},
      ),
      protocol=(*range(pickle.HIGHEST_PROTOCOL + 1),),
  )
  def test_loaded_values_equal_pickled_values(self, value, protocol):
    content = pickle.dumps(value, protocol)
    self._assert_equal(numpy_pickles.loads(content), value)

  @parameterized.parameters(
      (_Reduced(os.mkdir, ('ran',)), 'mkdir, but only .* could run code'),
      (_array(_POINTERS, b'A' * 16, (1,)), 'the dtype V16'),
      (_array(np.dtype('i4,O'), b'A' * 12, (1,)), 'the dtype V12'),
      (_array(np.dtype('2i4'), b'A' * 8, (1,)), 'the dtype V8'),
      (_array(np.dtype('i8'), b'A' * 8, (9, 2)), 'reshape'),
      (_array(np.dtype('i8'), b'A' * 7, (1,)), 'buffer size'),
      (_array(np.dtype('O'), [1], (9, 2)), 'reshape'),
      (_array(np.dtype('O'), b'A' * 8, (1,)), 'reshape'),
      (_array(np.dtype('U9'), b'', (9**9, 9**9)), 'reshape'),
      (_array('O', [1], (1,)), 'to_numpy'),
      (np.dtype('i8'), 'dtype without an array'),
      (np.datetime64(0, 's'), 'the dtype M8'),
  )
  def test_pickles_of_other_types_raise(self, value, message):
    with self.assertRaisesRegex(ValueError, message):
      numpy_pickles.loads(pickle.dumps(value))

  def test_lists_that_contain_each_other(self):
    nested = ['x']  # Its text would be as long as 2 to the power of 60.
    for _ in range(60):
      nested = [nested, nested]
    for value in nested, _array(np.dtype('O'), nested, (2,)):
      content = pickle.dumps(value)
      self.assertLess(len(content), 2000)
      with self.assertRaisesRegex(ValueError, 'more values than it has bytes'):
        numpy_pickles.loads(content)

  def test_damages_are_value_errors_or_do_no_harm(self):
    rng = np.random.default_rng(0)
    content = pickle.dumps({'a': np.arange(9), 'b': [np.float32(1), 'x']})
    for _ in range(3000):
      changed = bytearray(content[: rng.integers(len(content) + 1)])
      for _ in range(rng.integers(3)):
        if changed:
          changed[rng.integers(len(changed))] = rng.integers(256)
      with contextlib.suppress(ValueError):
        numpy_pickles.loads(bytes(changed))


if __name__ == '__main__':
  absltest.main()
