"""Tests of how windows are found, by NumPy and by TensorFlow."""

import itertools
import subprocess
import sys

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import windows as windows_lib

_End = windows_lib.EndOfEpisode

_WITHOUT_TENSORFLOW = """
import sys
import numpy as np
from rlds2reverb.episodes import windows
found = windows.Windows(3, 2, 'overlap').find(np.array([6, 2]))
assert found.episode.tolist() == [0, 0, 0, 1], found
assert found.start.tolist() == [0, 2, 3, 0], found
assert 'tensorflow' not in sys.modules
"""


def _expected(windows, num_rows):
  """Returns the starts of the windows of an episode, and its padding."""
  length, stride = windows.length, windows.stride
  whole = [
      start
      for start in range(0, num_rows, stride)
      if start + length <= num_rows
  ]
  starts = list(whole)
  last = whole[-1] + length if whole else 0
  if windows.end == _End.PAD and 0 < num_rows < length:
    starts = [0]
  elif windows.end == _End.TILE:
    starts = list(range(0, num_rows, stride))
  elif windows.end in (_End.ZERO_PAD, _End.REPEAT_LAST, _End.OVERLAP):
    following = whole[-1] + stride if whole else 0
    if last < num_rows and following < num_rows:
      starts.append(following)
      if windows.end == _End.OVERLAP:
        starts[-1] = max(num_rows - length, 0)
  return starts, max([start + length - num_rows for start in starts] + [0])


class WindowsTest(parameterized.TestCase):

  def test_the_example(self):
    starts = {
        'drop': [0, 2],
        'pad': [0, 2, 6],
        'tile': [0, 2, 4, 6],
        'zero_pad': [0, 2, 4, 6],
        'repeat_last': [0, 2, 4, 6],
        'overlap': [0, 2, 3, 6],
    }
    for end, expected in starts.items():
      with self.subTest(end):
        found = windows_lib.Windows(3, 2, end).find(np.array([6, 2]))
        begins = np.array([0, 6])
        self.assertEqual(
            (begins[found.episode] + found.start).tolist(), expected
        )
    crossing = windows_lib.Windows(3, 2, 'cross').find(np.array([8]))
    self.assertEqual(crossing.start.tolist(), [0, 2, 4])

  @parameterized.parameters(*(end.value for end in _End))
  def test_whole_episodes(self, end):
    num_rows = np.arange(13)
    for length, stride in itertools.product([1, 2, 3, 5], [1, 2, 3, 4, 7]):
      windows = windows_lib.Windows(length, stride, end)
      with self.subTest(str(windows)):
        expected = [_expected(windows, each) for each in num_rows.tolist()]
        episode = [i for i, (starts, _) in enumerate(expected) for _ in starts]
        start = [each for starts, _ in expected for each in starts]
        padding = [padding for _, padding in expected]
        for found in (
            windows.find(num_rows),
            windows.find(tf.constant(num_rows)),
        ):
          self.assertEqual(np.asarray(found.episode).tolist(), episode)
          self.assertEqual(np.asarray(found.start).tolist(), start)
        for found in (
            windows.padding(num_rows),
            windows.padding(tf.constant(num_rows)),
        ):
          self.assertEqual(np.asarray(found).tolist(), padding)

  @parameterized.parameters(*(end.value for end in _End))
  def test_episodes_that_come_in_parts(self, end):
    random = np.random.default_rng(1)
    for _ in range(50):
      windows = windows_lib.Windows(
          int(random.integers(1, 7)), int(random.integers(1, 7)), end
      )
      total = int(random.integers(1, 30))
      cuts = np.unique(random.integers(1, total + 1, 4)).tolist() + [total]
      starts, begin = [], 0
      for cut in sorted(set(cuts)):
        found = windows.find(
            np.array([cut]), np.array([begin]), np.array([cut == total])
        )
        starts += found.start.tolist()
        begin = cut
      self.assertEqual(starts, _expected(windows, total)[0], (windows, cuts))

  def test_no_episodes(self):
    for num_rows in (np.zeros(0, np.int64), tf.zeros([0], tf.int64)):
      found = windows_lib.Windows(3, end='tile').find(num_rows)
      self.assertEmpty(np.asarray(found.start))

  def test_ranges(self):
    first, count = np.array([5, 1, 0, 7]), np.array([2, 0, 3, 1])
    for arguments in ((first, count), (tf.constant(first), tf.constant(count))):
      index, numbers = windows_lib.ranges(*arguments, 10)
      self.assertEqual(np.asarray(index).tolist(), [0, 0, 2, 2, 2, 3])
      self.assertEqual(np.asarray(numbers).tolist(), [5, 15, 0, 10, 20, 7])

  def test_arrays_do_without_tensorflow(self):
    subprocess.run([sys.executable, '-c', _WITHOUT_TENSORFLOW], check=True)

  def test_values(self):
    self.assertEqual(
        windows_lib.Windows(3, end='pad'), windows_lib.Windows(3, 1, _End.PAD)
    )
    self.assertIs(windows_lib.Windows(3, end='pad').end, _End.PAD)
    self.assertEqual(_End.PAD, 'pad')
    for arguments, message in (
        ((0,), 'length of windows must be a positive integer, but is 0'),
        ((2, 1.5), 'stride of windows must be a positive integer, but is 1.5'),
        ((2, True), 'stride of windows must be a positive integer'),
        ((2, 1, 'tiles'), "end of windows must be one of 'drop'.*mean tile"),
        ((2, 1, None), 'end of windows must be one of'),
    ):
      with self.subTest(str(arguments)):
        with self.assertRaisesRegex(ValueError, message):
          windows_lib.Windows(*arguments)

  def test_what_cannot_be_cut(self):
    with self.assertRaisesRegex(ValueError, 'Windows.length, stride, end.*3'):
      windows_lib.check_windows(3)
    windows = windows_lib.Windows(3, end='cross')
    windows_lib.check_windows(windows)
    with self.assertRaisesRegex(ValueError, "of x cannot be 'cross': Because."):
      windows_lib.check_windows(windows, {_End.CROSS: 'Because.'}, ' of x')


if __name__ == '__main__':
  absltest.main()
