"""Tests of sources, on data sets of several files."""

import json
import os

from absl.testing import absltest

from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import sources
from rlds2reverb.jobs import sources as sources_lib
from tests.jobs import data_sets
from tests.jobs import job_testing

_LENGTHS = (3, 4, 5, 6, 3, 4, 5)


def _indices(episodes):
  return [int(episode[sources_lib.EPISODE_INDEX]) for episode in episodes]


class _SourcesTestCase(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.directory = self._write(_LENGTHS)

  def _write(self, lengths, **kwargs):
    directory = os.path.join(self.create_tempdir().full_path, 'numbered')
    return data_sets.numbered(directory, lengths, **kwargs)

  def _open(self, split='train', directory='', **kwargs):
    source = sources.make_source(directory or self.directory, split, **kwargs)
    return sources.open_source(source)


class SourcesTest(_SourcesTestCase):

  def test_a_range_is_read_in_the_order_of_the_data_set(self):
    paths = data_sets.files_of(self.directory)
    for split, part, expected in (
        ('train', (), [0, 1, 2, 3, 4, 5, 6]),
        ('train', ('train', 1, 6), [1, 2, 3, 4, 5]),
        # Indices refer to the split, also if only a part of it is read.
        ('train[5:]+train[1:3]', (), [5, 6, 1, 2]),
    ):
      opened = self._open(split)
      parts = [sources_lib.Range(*part)] if part else []
      episodes = list(opened.read(*parts, with_index=True))
      self.assertEqual(_indices(episodes), expected)
      written = [int(e['steps']['observation'][0, 0]) for e in episodes]
      self.assertEqual(written, expected)
      files = dict.fromkeys(paths[index // 2] for index in expected)
      self.assertEqual(opened.files(*parts), list(files))
    self.assertEqual(opened.ranges, [('train', 5, 7), ('train', 1, 3)])
    self.assertEqual(
        opened.shards,
        [('train', 5, 6), ('train', 6, 7), ('train', 1, 2), ('train', 2, 3)],
    )
    self.assertEqual(opened.num_episodes, 4)
    opened = self._open()
    self.assertEqual(
        (opened.name, opened.directory), ('numbered/1.0.0', self.directory)
    )
    size = sum(map(os.path.getsize, paths))
    self.assertBetween(opened.num_bytes, 0.8 * size, size)

  def test_invalid_sources_raise(self):
    transforms = 'transform_episodes.transfroms'
    job = os.path.join(self.create_tempdir().full_path, 'rlds')
    os.makedirs(f'{job}.job')
    for message, arguments in (
        (r"no split 'trian'. Did you mean train\?", {'split': 'trian[:2]'}),
        (r'Did you mean recorded_gym\?', {'config': 'recorded_gymn'}),
        (r'Did you mean transforms\?', {'bindings': [f'{transforms} = []']}),
        ('not registered with gin', {'bindings': ['StepMaping.action = 1']}),
        (r'Did you mean numbered\?', {'directory': self.directory[:-1]}),
        ('Its job, .*rlds.job, is unfinished', {'directory': job}),
        (r'train\[1:3\] twice', {'split': 'train[:3]+train[1:]'}),
        (r'\[3:3\].* has no episodes', {'split': 'train[3:3]'}),
    ):
      with self.assertRaisesRegex(
          (ValueError, TypeError, FileNotFoundError), message
      ):
        self._open(**arguments)

  def test_quarantine_file_selects_its_episodes(self):
    opened = [self._open(), self._open('train[2:5]', self._write([3] * 9))]

    def read(*lines):
      text = ''
      for line in lines:
        if not isinstance(line, str):
          source, episode, *split = line
          line = {'directory': opened[source].directory, 'episode': episode}
          line = json.dumps({**line, 'split': (*split, 'train')[0]}) + '\n'
        text += line
      file = self.create_tempfile(
          'quarantine.jsonl', text, 'w', 'utf-8', 'surrogateescape'
      )
      return plan_lib.read_quarantine(file.full_path, opened)

    self.assertEqual(
        read((0, 4), (0, 1), (0, 3), (0, 6), (0, 1), (1, 2)),
        [
            [('train', 1, 2), ('train', 3, 5), ('train', 6, 7)],
            [('train', 2, 3)],
        ],
    )
    for message, *lines in (
        ('line 1: episode 7 of split train', (1, 7)),
        ('line 2: episode 9 of', (0, 0), (0, 9)),
        ('line 1: episode 0 of split test', (0, 0, 'test')),
        ('line 1 is not of a quarantine file', '{}'),
        ('line 1 is not of a quarantine file', 'nonsense'),
        ('line 1 is not of a quarantine file', '[' * 5000 + ']' * 5000),
        ('quarantine.jsonl is not a text file in UTF-8', '{}\udcff'),
        ('lists no episodes',),
    ):
      with self.assertRaisesRegex(ValueError, message):
        read(*lines)


class EstimatesTest(_SourcesTestCase):

  def test_sample_of_all_episodes_is_exact(self):
    # One that has all is exact.
    breakout = os.path.join(job_testing.RECORDED, 'breakout')
    opened = self._open(directory=breakout)
    episodes = opened.read().as_numpy_iterator()
    lengths = [len(episode['steps']['reward']) for episode in episodes]
    self.assertEqual(opened.sample_lengths(), (lengths, 1.0))
    # Of parts of files, the episodes of the parts are read.
    opened = self._open(
        'train[3:6]+train[8:]', self._write(range(1, 10), per_file=5)
    )
    self.assertEqual(opened.sample_lengths(), ([4, 5, 6, 9], 1.0))
    # What cannot be read is not known.
    for path in data_sets.files_of(opened.directory):
      with open(path, 'wb') as f:
        f.truncate(1000)  # Zeros, which are no record.
    self.assertEqual(opened.sample_lengths(), ([], 1.0))

  def test_sample_of_some_episodes_estimates_the_total(self):
    lengths = [3 + 7 * index % 11 for index in range(60)]
    directory = self._write(lengths, per_file=10)
    sampled, factor = self._open(directory=directory).sample_lengths()
    self.assertLen(sampled, 48)
    about = sum(sampled) * factor
    self.assertBetween(about, 0.93 * sum(lengths), 1.07 * sum(lengths))


if __name__ == '__main__':
  absltest.main()
