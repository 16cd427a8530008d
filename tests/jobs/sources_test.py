"""Tests of sources, on data sets of several files."""

import dataclasses
import json
import os
import tempfile

from absl.testing import absltest

from rlds2reverb.datasets import identity
from rlds2reverb.jobs import opened as opened_lib
from rlds2reverb.jobs import ranges as ranges_lib
from rlds2reverb.jobs import sources
from rlds2reverb.transforms import normalization
from tests.jobs import data_sets

_LENGTHS = (3, 4, 5, 6, 3, 4, 5)


def _first_numbers(episodes):
  """Returns the index that each episode was written with."""
  return [int(episode['steps']['observation'][0, 0]) for episode in episodes]


def _indices(episodes):
  return [int(episode[opened_lib.EPISODE_INDEX]) for episode in episodes]


class SourcesTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = tempfile.TemporaryDirectory()
    cls.addClassCleanup(folder.cleanup)
    cls.directory = data_sets.numbered(
        os.path.join(folder.name, 'numbered'), _LENGTHS
    )

  def _open(self, *args, **kwargs):
    return sources.open_source(
        sources.make_source(self.directory, *args, **kwargs)
    )

  def test_what_is_known_without_reading(self):
    opened = self._open()
    self.assertEqual(opened.num_episodes, 7)
    self.assertEqual(opened.name, 'numbered/1.0.0')
    self.assertEqual(opened.directory, self.directory)
    self.assertEqual(
        opened.shards,
        [('train', 0, 2), ('train', 2, 4), ('train', 4, 6), ('train', 6, 7)],
    )
    size = sum(map(os.path.getsize, data_sets.files_of(self.directory)))
    self.assertBetween(opened.num_bytes, 0.8 * size, size)
    self.assertEqual(
        *opened.files(ranges_lib.Range('train', 4, 5)),
        data_sets.files_of(self.directory)[2],
    )

  def test_a_range_is_read_in_the_order_of_the_data_set(self):
    for split, part, expected in (
        ('train', (), [0, 1, 2, 3, 4, 5, 6]),
        ('train', ('train', 1, 6), [1, 2, 3, 4, 5]),
        # Indices are those of the split, whatever part of it is read.
        ('train[5:]+train[1:3]', (), [5, 6, 1, 2]),
    ):
      opened = self._open(split)
      parts = [ranges_lib.Range(*part)] if part else []
      episodes = list(opened.read(*parts, with_index=True))
      self.assertEqual(_first_numbers(episodes), expected)
      self.assertEqual(_indices(episodes), expected)
      paths = data_sets.files_of(self.directory)
      self.assertEqual(
          opened.files(*parts),
          list(dict.fromkeys(paths[index // 2] for index in expected)),
      )
    self.assertEqual(opened.ranges, [('train', 5, 7), ('train', 1, 3)])
    self.assertEqual(
        opened.shards,
        [('train', 5, 6), ('train', 6, 7), ('train', 1, 2), ('train', 2, 3)],
    )
    self.assertEqual(opened.num_episodes, 4)

  def test_a_source_survives_json_and_the_end_of_its_config(self):
    config = self.create_tempfile(
        'mine.gin',
        "StepMapping.action = 'observation'\n"
        'transform_episodes.transforms = [@ScaleReward()]\n'
        'ScaleReward.scale = 0.5\n'
        'convert.num_workers = 3\n',
    )
    source = sources.make_source(
        self.directory,
        config=config.full_path,
        bindings=['ScaleReward.scale = 2.0'],
    )
    os.remove(config.full_path)
    text = json.dumps(dataclasses.asdict(source))
    opened = sources.open_source(sources.Source(**json.loads(text)))
    episode = next(iter(opened.read(ranges_lib.Range('train', 2, 3))))
    self.assertEqual(
        episode['steps']['reward'].numpy().tolist(), [400, 402, 404, 406, 408]
    )
    self.assertEqual(episode['steps']['action'].shape, (5, 2))
    self.assertEqual(
        opened.treatment,
        identity.fingerprint(opened.mapping, [normalization.ScaleReward(2.0)]),
    )
    self.assertEqual(
        sources.arguments_of('convert', source), {'num_workers': 3}
    )

  def test_a_filter_does_not_change_indices(self):
    opened = self._open(
        bindings=[
            'transform_episodes.transforms = [@KeepEpisodes()]',
            'KeepEpisodes.min_length = 4',
        ]
    )
    self.assertTrue(opened.has_filter)
    part = ranges_lib.Range('train', 1, 7)
    episodes = opened.read(part, with_index=True)
    self.assertEqual(_indices(episodes), [2, 3, 6])  # Of 4 transitions or more.

  def test_nearest_names(self):
    transforms = 'transform_episodes.transfroms'
    for message, arguments in (
        ("no split 'trian'. Did you mean train?", {'split': 'trian[:2]'}),
        ('Did you mean recorded_gym?', {'config': 'recorded_gymn'}),
        (transforms, {'bindings': [f'{transforms} = []']}),
        ('not registered with gin', {'bindings': ['StepMaping.action = 1']}),
    ):
      with self.assertRaisesRegex(
          (ValueError, TypeError), message.replace('?', r'\?')
      ):
        self._open(**arguments)
    with self.assertRaisesRegex(FileNotFoundError, r'Did you mean numbered\?'):
      sources.open_source(sources.make_source(self.directory[:-1]))
    folder = os.path.join(self.create_tempdir().full_path, 'rlds')
    os.makedirs(f'{folder}.job')
    with self.assertRaisesRegex(
        FileNotFoundError, 'Its job, .*rlds.job, has not'
    ):
      sources.open_source(sources.make_source(folder))

  def test_an_episode_is_not_read_twice(self):
    with self.assertRaisesRegex(ValueError, r'train\[1:3\] twice'):
      self._open('train[:3]+train[1:]')
    with self.assertRaisesRegex(ValueError, r'\[3:3\].* has no episodes'):
      self._open('train[3:3]')


if __name__ == '__main__':
  absltest.main()
