"""Tests of finding the episodes of a quarantine file."""

import json
import os

from absl.testing import absltest

from rlds2reverb.jobs import quarantine
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
        (line if isinstance(line, str) else json.dumps(line)) + '\n'
        for line in lines
    )
    file = self.create_tempfile('quarantine.jsonl', text)
    return quarantine.read_ranges(file.full_path, self.opened)

  def _line(self, index, episode, split='train'):
    return {
        'directory': self.opened[index].directory,
        'split': split,
        'episode': episode,
        'message': 'any',
    }

  def test_neighbours_become_ranges_whatever_the_order_of_lines(self):
    self.assertEqual(
        self._read(
            *(self._line(0, episode) for episode in (4, 1, 3, 8, 1)),
            self._line(1, 2),
        ),
        [
            [('train', 1, 2), ('train', 3, 5), ('train', 8, 9)],
            [('train', 2, 3)],
        ],
    )

  def test_what_cannot_be_found(self):
    for message, lines in (
        ('line 1: episode 7 of split train', [self._line(1, 7)]),
        ('line 2: episode 9 of', [self._line(0, 0), self._line(0, 9)]),
        ('line 1: episode 0 of split test', [self._line(0, 0, 'test')]),
        ('line 1 is not of a quarantine file', ['{}']),
        ('line 1 is not of a quarantine file', ['nonsense']),
        ('lists no episodes', []),
    ):
      with self.subTest(message):
        with self.assertRaisesRegex(ValueError, message):
          self._read(*lines)
    with self.assertRaises(FileNotFoundError):
      quarantine.read_ranges('/nowhere', self.opened)


if __name__ == '__main__':
  absltest.main()
