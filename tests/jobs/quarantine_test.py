"""Tests of finding the episodes of a quarantine file."""

import json
import os

from absl.testing import absltest

from rlds2reverb.jobs import ranges
from rlds2reverb.jobs import sources
from tests.jobs import data_sets


class QuarantineTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    folder = self.create_tempdir().full_path
    self.opened = [
        sources.open_source(
            sources.make_source(
                data_sets.numbered(os.path.join(folder, name), [3] * 9), split
            )
        )
        for name, split in (('one', 'train'), ('other', 'train[2:5]'))
    ]

  def _read(self, *lines):
    text = ''.join(
        each
        if isinstance(each, str)
        else json.dumps(
            {
                'directory': self.opened[each[0]].directory,
                'episode': each[1],
                'split': each[2] if len(each) > 2 else 'train',
            }
        )
        + '\n'
        for each in lines
    )
    file = self.create_tempfile('quarantine.jsonl', text)
    return ranges.of_quarantine(file.full_path, self.opened)

  def test_neighbours_become_ranges_whatever_the_order_of_lines(self):
    self.assertEqual(
        self._read((0, 4), (0, 1), (0, 3), (0, 8), (0, 1), (1, 2)),
        [
            [('train', 1, 2), ('train', 3, 5), ('train', 8, 9)],
            [('train', 2, 3)],
        ],
    )

  def test_what_cannot_be_found(self):
    for message, *lines in (
        ('line 1: episode 7 of split train', (1, 7)),
        ('line 2: episode 9 of', (0, 0), (0, 9)),
        ('line 1: episode 0 of split test', (0, 0, 'test')),
        ('line 1 is not of a quarantine file', '{}'),
        ('line 1 is not of a quarantine file', 'nonsense'),
        ('lists no episodes',),
    ):
      with self.assertRaisesRegex(ValueError, message):
        self._read(*lines)
    with self.assertRaises(FileNotFoundError):
      ranges.of_quarantine('/nowhere', self.opened)


if __name__ == '__main__':
  absltest.main()
