"""Tests of which items go into a table."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import items


class TableItemsTest(parameterized.TestCase):

  @parameterized.parameters(
      (dict(windows=2), "windows of table 'table' must be Windows"),
      (
          dict(windows=windows_lib.Windows(2, end='repeat_last')),
          "table 'table' cannot be 'repeat_last'.*holds each frame once",
      ),
      (dict(max_sequence_length=3), 'for complete episodes'),
      (dict(windows=None, max_sequence_length=0), 'must be a positive integer'),
      (dict(priority=-1.0), 'a finite number from 0 up'),
      (dict(priority=float('nan')), 'a finite number from 0 up'),
  )
  def test_invalid_settings_raise(self, settings, message):
    with self.assertRaisesRegex(ValueError, message):
      items.TableItems('table', **settings)

  def test_counts_of_whole_episodes(self):
    for longest, expected in ((None, [1, 1, 1]), (4, [1, 1, 0])):
      table = items.TableItems('table', None, longest)
      self.assertEqual(table.count(np.array([4, 1, 9])).tolist(), expected)


if __name__ == '__main__':
  absltest.main()
