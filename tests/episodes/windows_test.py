"""Tests of how windows are found, by NumPy and by TensorFlow."""

import itertools

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import windows as windows_lib
from tests import contract

_End = windows_lib.EndOfEpisode
_ENDS = [end.value for end in _End if end != _End.CROSS]
_check = windows_lib.check_windows
_CROSS = windows_lib.Windows(3, end='cross')


class WindowsTest(parameterized.TestCase):

  @parameterized.parameters(*_ENDS)
  def test_whole_episodes_and_parts(self, end):
    rng = np.random.default_rng(1)
    num_rows = np.arange(13)
    for length, stride in itertools.product([1, 2, 3, 5], [1, 2, 3, 4, 7]):
      windows = windows_lib.Windows(length, stride, end)
      with self.subTest(str(windows)):
        starts = [
            contract.window_starts(int(count), length, stride, end)
            for count in num_rows
        ]
        padding = [
            max([start + length - count for start in some] + [0])
            for count, some in zip(num_rows, starts)
        ]
        for rows in (num_rows, tf.constant(num_rows)):
          found = windows.find(rows)
          episode = [index for index, some in enumerate(starts) for _ in some]
          self.assertEqual(list(np.asarray(found.episode)), episode)
          self.assertEqual(list(np.asarray(found.start)), sum(starts, []))
          self.assertEqual(list(np.asarray(windows.padding(rows))), padding)
        seen, found = 0, []
        for end_of_part in [*sorted(rng.integers(1, 12, 3)), 12]:
          found += windows.find(
              np.array([end_of_part]),
              np.array([seen]),
              np.array([end_of_part == 12]),
          ).start.tolist()
          seen = end_of_part
        self.assertEqual(found, starts[-1])

  def test_windows_that_cross_episodes(self):
    self.assertEqual(
        windows_lib.Windows(3, 2, 'cross').find(np.array([8])).start.tolist(),
        [0, 2, 4],
    )
    self.assertTrue(_CROSS.crosses_episodes)
    self.assertFalse(_CROSS.pads_episodes)

  def test_ranges(self):
    first, count = np.array([5, 1, 0, 7]), np.array([2, 0, 3, 1])
    for arguments in ((first, count), (tf.constant(first), tf.constant(count))):
      index, numbers = windows_lib.expand_ranges(*arguments, 10)
      self.assertEqual(np.asarray(index).tolist(), [0, 0, 2, 2, 2, 3])
      self.assertEqual(np.asarray(numbers).tolist(), [5, 15, 0, 10, 20, 7])

  @parameterized.parameters(
      (lambda: windows_lib.Windows(0), 'length of windows must be .* but is 0'),
      (lambda: windows_lib.Windows(2, 1.5), 'stride of .* but is 1.5'),
      (lambda: windows_lib.Windows(2, 1, 'tiles'), "one of 'drop'.*mean tile"),
      (lambda: windows_lib.Windows(2, 1, None), 'end of windows must be one'),
      (lambda: _check(3), r'must be Windows\(length, stride, end\), but are 3'),
      (
          lambda: _check(_CROSS, {_End.CROSS: 'Because.'}, ' of x'),
          "of x cannot be 'cross': Because.",
      ),
  )
  def test_invalid_windows_raise(self, call, message):
    with self.assertRaisesRegex(ValueError, message):
      call()
    _check(_CROSS, {_End.PAD: 'Because.'})
    self.assertIs(windows_lib.Windows(3, end='pad').end, _End.PAD)


if __name__ == '__main__':
  absltest.main()
