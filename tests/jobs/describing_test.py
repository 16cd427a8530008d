"""Tests of describing data sets on disk, and Reverb checkpoints."""

import os

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from rlds2reverb import transforms as transforms_lib
from rlds2reverb.datasets import loading
from rlds2reverb.datasets import saving
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.jobs import describing
from rlds2reverb.jobs import sources
from rlds2reverb.jobs.descriptions import views
from rlds2reverb.replay import items
from rlds2reverb.replay.checkpoint import serve
from rlds2reverb.replay.checkpoint import write
from tests import reverb_testing
from tests.jobs import data_sets


def _write(directory, episode, **features):
  """Writes an episode, some of whose fields have other features."""
  os.mkdir(directory)
  steps = {**data_sets.FEATURES['steps'].feature, **features}
  saving.write_episodes(
      [episode],
      directory,
      name='games',
      version='2.1.0',
      description='Two actions.',
      features={'steps': tfds.features.Dataset(steps)},
  )


def _ends(description):
  """Returns the range of each field, but for its discounts."""
  # The discount of a frame of a terminal step is 0.
  return {
      field['path']: [
          [column[key] for key in ('min', 'max', 'count')]
          for column in field['columns']
      ]
      for field in description.fields
      if field['path'] != 'steps/discount'
  }


class DescribeSourceTest(tf.test.TestCase):

  @pytest.mark.long
  def test_removed_steps(self):
    folder = self.create_tempdir().full_path
    lengths = [3, 8, 5, 2, 7, 4, 9, 6]
    directory = data_sets.numbered(f'{folder}/data', lengths, per_file=2)
    transforms = (
        'transform_episodes.transforms = [@FrameSkip(), @KeepEpisodes()]'
    )
    bindings = [transforms, 'FrameSkip.skip = 3', 'KeepEpisodes.min_length = 2']
    source = sources.make_source(directory, bindings=bindings)
    # Of a sample, too, which is read in several runs.
    for sample, indices in (None, range(8)), (3, (0, 2, 5)):
      removed = {'FrameSkip': 0, 'KeepEpisodes': 0}
      for index in indices:
        left = len({*range(0, lengths[index], 3), lengths[index] - 1})
        removed['FrameSkip'] += lengths[index] - left
        removed['KeepEpisodes'] += left if left < 3 else 0
      actual = describing.describe(source, sample=sample, num_excerpts=0)
      self.assertEqual(actual.removed_steps, removed)
      self.assertIn(
          f'steps removed by FrameSkip: {removed["FrameSkip"]}\n',
          views.to_text(actual),
      )
    episodes = transforms_lib.transform_episodes(
        loading.load_episodes(directory), [transforms_lib.FrameSkip(3)]
    )
    actual = describing.describe(episodes, num_excerpts=0)
    left = [len({*range(0, n, 3), n - 1}) for n in lengths]
    self.assertEqual(
        actual.removed_steps, {'FrameSkip': sum(lengths) - sum(left)}
    )

  @pytest.mark.long
  def test_episodes_have_their_index_in_the_split(self):
    folder = self.create_tempdir().full_path
    episodes = [data_sets.episode(index, 4, discount=0) for index in range(40)]
    episodes[30] = data_sets.episode(30, 6)  # It bootstraps.
    directory = data_sets.write(f'{folder}/data', episodes, per_file=7)
    for split, episode in ('train[22:]', 30), ('train[30:]+train[:2]', 0):
      actual = describing.describe(sources.make_source(directory, split))
      (odd,) = [
          oddity for oddity in actual.oddities if oddity['kind'] == 'bootstraps'
      ]
      self.assertEqual((odd['episode'], odd['step']), (episode, 4))
      self.assertFalse(actual.is_sample)
    self.assertEqual(
        actual.source, 'numbered/1.0.0, split train[30:]+train[:2]'
    )
    self.assertEqual(actual.counts['episodes'], 12)
    actual = describing.describe(
        sources.make_source(directory, 'train[4:]'), sample=20
    )
    self.assertEqual(
        (actual.num_available, actual.counts['episodes']), (36, 20)
    )
    # It is spread over all: 16 runs of one or two episodes.
    firsts = [bin['first'] for bin in actual.order]
    self.assertEqual((firsts[0], firsts[-1] > 35), (4, True))
    self.assertIn(
        'a sample of 20 of 36 episodes; all that follows is about the sample',
        views.to_text(actual),
    )
    source = sources.make_source(directory)
    self.assertFalse(describing.describe(source, sample=1000).is_sample)

  def test_metadata_of_the_data_set_is_described(self):
    directory = f'{self.create_tempdir().full_path}/games'
    episode = data_sets.episode(0, 4)
    for step in episode['steps']:
      step['action'] = 1
    _write(
        directory,
        episode,
        action=tfds.features.ClassLabel(names=['stay', 'go']),
        reward=tfds.features.Scalar(np.float32, doc='One for each coin.'),
    )
    actual = describing.describe(sources.make_source(directory))
    (file,) = data_sets.files_of(directory)
    size = os.path.getsize(file)
    split = {'name': 'train', 'episodes': 1, 'files': 1, 'bytes': size}
    expected = {
        'name': 'games',
        'version': '2.1.0',
        'description': 'Two actions.',
        'citation': '',
        'homepage': '',
        'folder': directory,
        'format': 'tfrecord',
        'splits': [split],
        'class_names': {'steps/action': ['stay', 'go']},
        'notes': {'steps/reward': 'One for each coin.'},
    }
    self.assertEqual(actual.about, expected)
    self.assertEqual(actual.histograms['action']['labels'], ['go'])
    lines = views.to_text(actual)
    self.assertRegex(lines, r'description: +Two actions\.')
    self.assertIn(f'1 episode in 1 file, {size} bytes', lines)
    self.assertRegex(lines, 'steps/action: +stay, go')

  def test_a_mapping_and_the_bounds_of_features(self):
    folder = self.create_tempdir().full_path
    bounded = tfds.features.Tensor(
        shape=(1,), dtype=np.float32, minimum=-1, maximum=1
    )
    _write(f'{folder}/data', data_sets.episode(0, 4), action=bounded)
    # The actions are 0, -1, -2, and one that does not count.
    found = describing.describe(sources.make_source(f'{folder}/data'))
    (odd,) = [
        oddity
        for oddity in found.oddities
        if oddity['kind'] == 'outside_bounds'
    ]
    self.assertEqual(odd['step'], 2)
    self.assertIn(
        "1 of 3 values outside the bounds of the data set's features",
        odd['message'],
    )
    bindings = ["StepMapping.action = ['action', 'reward']"]
    found = describing.describe(
        sources.make_source(f'{folder}/data', bindings=bindings)
    )
    (action,) = [
        field for field in found.fields if field['path'] == 'steps/action'
    ]
    self.assertEqual((action['shape'], action['columns'][1]['max']), ([2], 2))


class DescribeCheckpointTest(tf.test.TestCase):

  def test_description_has_episodes_and_tables(self):
    folder = self.create_tempdir().full_path
    directory = data_sets.numbered(f'{folder}/data', [2, 30, 5, 120, 4])
    opened = sources.open_source(sources.make_source(directory))
    tables = [
        items.TableItems('pairs'),
        items.TableItems('long', windows_lib.Windows(100)),
    ]
    path = f'{folder}/checkpoint'
    write.write_reverb_checkpoint(opened.read(), path, tables)
    # A server writes the chunks in another order.
    server = serve.restore_reverb_server(path)
    try:
      other = server.localhost_client().checkpoint()
    finally:
      server.stop()
    expected = describing.describe(opened.read())
    for one in other, path:
      actual = describing.describe(one)
      self.assertEqual(actual.counts, expected.counts)
      self.assertEqual(_ends(actual), _ends(expected))
      self.assertEqual(actual.histograms, expected.histograms)
    tables = {table['name']: table for table in actual.tables}
    self.assertEqual(tables['pairs']['num_items'], 1 + 29 + 4 + 119 + 3)
    self.assertEqual(tables['long']['num_items'], 21)
    self.assertEqual(tables['pairs']['sampler'], 'uniform')
    self.assertRegex(tables['pairs']['rate_limiter'], 'max_diff=none$')
    self.assertEqual(
        tables['long']['signature']['observation'], 'float32 (None, 2)'
    )
    (split,) = actual.about['splits']
    self.assertEqual(
        split['bytes'], sum(entry.stat().st_size for entry in os.scandir(path))
    )
    lines = views.to_text(actual)
    self.assertIn('Table pairs: 156 items of at most 156', lines)
    sample = describing.describe(path, sample=2)
    self.assertEqual((sample.is_sample, sample.counts['episodes']), (True, 2))
    self.assertIn('a sample of 2 episodes', views.to_text(sample))
    with self.assertRaisesRegex(FileNotFoundError, 'not a complete Reverb'):
      describing.describe(f'{path}/no')

  def test_a_table_whose_items_are_no_trajectories(self):
    with reverb_testing.reverb_server(tf.TensorSpec([3])) as client:
      client.insert(tf.zeros([3]).numpy(), {reverb_testing.TABLE: 1.0})
      actual = describing.describe(client.checkpoint())
    (table,) = actual.tables
    self.assertEqual((table['num_items'], actual.counts), (1, {}))
    self.assertIn('Table experience: 1 item of', views.to_text(actual))


if __name__ == '__main__':
  tf.test.main()
