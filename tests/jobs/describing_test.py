"""Tests of describing data sets on disk, and Reverb checkpoints."""

import os

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from rlds2reverb.datasets import writing
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.jobs import describing
from rlds2reverb.jobs import sources
from rlds2reverb.jobs.descriptions import metadata
from rlds2reverb.jobs.descriptions import views
from rlds2reverb.replay import items
from rlds2reverb.replay.checkpoint import serve
from rlds2reverb.replay.checkpoint import write
from tests import golden
from tests.jobs import data_sets


def _kinds(description):
  return [one['kind'] for one in description.oddities]


def _write(directory, episode, **features):
  """Writes an episode, some of whose fields have other features."""
  os.mkdir(directory)
  steps = {**data_sets.FEATURES['steps'].feature, **features}
  writing.write_episodes(
      [episode],
      directory,
      name='games',
      version='2.1.0',
      description='Two actions.',
      features={'steps': tfds.features.Dataset(steps)},
  )


def _without_places(value):
  """Returns JSON without the indices of episodes, and without the last bits.

  Means and deviations depend on the order of the episodes by these.
  """
  if isinstance(value, list):
    return list(map(_without_places, value))
  if isinstance(value, float):
    return float(f'{value:.12g}')
  if not isinstance(value, dict):
    return value
  return {
      key: _without_places(part)
      for key, part in value.items()
      if key not in ('at', 'min_at', 'max_at')
  }


class DescribeSourceTest(tf.test.TestCase):

  @pytest.mark.long
  def test_episodes_have_their_index_in_the_split(self):
    folder = self.create_tempdir().full_path
    episodes = [data_sets.episode(index, 4, discount=0) for index in range(40)]
    for index in (21, 30):  # These bootstrap.
      episodes[index] = data_sets.episode(index, 6)
    directory = data_sets.write(f'{folder}/data', episodes, per_file=7)
    for split, episode in (
        ('train', 21),
        ('train[22:]', 30),
        ('train[30:]+train[:2]', 0),
    ):
      found = describing.describe(sources.make_source(directory, split))
      (odd,) = [one for one in found.oddities if one['kind'] == 'bootstraps']
      self.assertEqual((odd['episode'], odd['step']), (episode, 4))
      self.assertFalse(found.is_sample)
    self.assertEqual(found.source, 'numbered/1.0.0, split train[30:]+train[:2]')
    self.assertEqual(found.counts['episodes'], 12)

    found = describing.describe(
        sources.make_source(directory, 'train[4:]'), sample=20
    )
    self.assertTrue(found.is_sample)
    # Each run of consecutive episodes is a line of its own.
    order = {bin['first']: bin['run'] for bin in found.order}
    for (index, run), (following, next_run) in zip(
        list(order.items()), list(order.items())[1:]
    ):
      self.assertEqual(next_run - run, int(following - index > 1))
    self.assertGreater(found.order[-1]['run'], 0)
    self.assertEqual((found.num_available, found.counts['episodes']), (36, 20))
    # It is spread over all: 16 runs of one or two episodes.
    rewards = next(
        field for field in found.fields if field['path'] == 'steps/reward'
    )
    self.assertEqual(rewards['min'], 400)
    self.assertGreater(rewards['max'], 3600)
    self.assertIn(
        'a sample of 20 of 36 episodes; all that follows is about the sample',
        views.to_text(found),
    )
    whole = describing.describe(
        sources.make_source(directory), sample=1000, num_excerpts=0
    )
    self.assertFalse(whole.is_sample)
    self.assertEqual({bin['run'] for bin in whole.order}, {0})
    self.assertEmpty(whole.episodes)

  def test_what_the_data_set_says_of_itself(self):
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
    found = describing.describe(sources.make_source(directory))
    (file,) = data_sets.files_of(directory)
    expected = {
        'name': 'games',
        'version': '2.1.0',
        'description': 'Two actions.',
        'citation': '',
        'homepage': '',
        'folder': directory,
        'format': 'tfrecord',
        'splits': [
            {
                'name': 'train',
                'episodes': 1,
                'files': 1,
                'bytes': os.path.getsize(file),
            }
        ],
        'class_names': {'steps/action': ['stay', 'go']},
        'notes': {'steps/reward': 'One for each coin.'},
    }
    self.assertEqual(found.about, expected)
    self.assertEqual(found.histograms['action']['labels'], ['go'])
    lines = views.to_text(found)
    self.assertRegex(lines, r'description: +Two actions\.')
    self.assertIn(f'1 episode in 1 file, {os.path.getsize(file)} bytes', lines)
    self.assertRegex(lines, 'steps/action: +stay, go')

  def test_a_mapping(self):
    directory = data_sets.numbered(
        f'{self.create_tempdir().full_path}/data', [3, 5]
    )
    found = describing.describe(
        sources.make_source(
            directory, bindings=["StepMapping.action = ['action', 'reward']"]
        )
    )
    (action,) = [
        field for field in found.fields if field['path'] == 'steps/action'
    ]
    self.assertEqual(action['shape'], [2])
    # The rewards of the second episode, but for its last.
    self.assertEqual(action['columns'][1]['max'], 103)

  @pytest.mark.long
  def test_bounds_of_features_and_of_the_environment(self):
    directory = f'{self.create_tempdir().full_path}/data'
    _write(
        directory,
        data_sets.episode(0, 4),
        action=tfds.features.Tensor(
            shape=(1,), dtype=np.float32, minimum=-1, maximum=1
        ),
    )
    # The actions are 0, -1, -2, and one that does not count.
    source = sources.make_source(directory)
    (odd,) = [
        one
        for one in describing.describe(source).oddities
        if one['kind'] == 'outside_bounds'
    ]
    self.assertEqual(odd['step'], 2)
    self.assertIn(
        "1 of 3 values outside the bounds of the data set's features",
        odd['message'],
    )
    # Pendulum's actions are within -2 to 2.
    found = describing.describe(source, bounds='Pendulum-v1')
    self.assertNotIn('outside_bounds', _kinds(found))
    with self.assertRaisesRegex(ValueError, "no gym environment 'Pend'"):
      describing.describe(source, bounds='Pend')

    (discrete,) = metadata.bounds_of_environment('CartPole-v1').values()
    self.assertEqual((discrete.low, discrete.high), (0, 1))


class DescribeCheckpointTest(tf.test.TestCase):

  def setUp(self):
    super().setUp()
    folder = self.create_tempdir().full_path
    directory = data_sets.numbered(f'{folder}/data', [2, 30, 5, 250, 4])
    self._opened = sources.open_source(sources.make_source(directory))
    self._path = f'{folder}/checkpoint'
    write.write_reverb_checkpoint(
        self._opened.read(),
        self._path,
        [
            items.TableItems('pairs'),
            items.TableItems('long', windows_lib.Windows(100)),
        ],
    )

  def _check(self, found):
    expected = describing.describe(self._opened.read())
    self.assertEqual(found.counts, expected.counts)

    # The discount of a frame of a terminal step is 0.
    def fields(description):
      return {
          field['path']: _without_places(field)
          for field in description.fields
          if field['path'] != 'steps/discount'
      }

    self.assertEqual(fields(found), fields(expected))
    self.assertEqual(
        _without_places(found.histograms), _without_places(expected.histograms)
    )

  @pytest.mark.long
  def test_the_episodes_and_the_tables(self):
    found = describing.describe(self._path)
    self._check(found)
    tables = {table['name']: table for table in found.tables}
    self.assertEqual(tables['pairs']['num_items'], 1 + 29 + 4 + 249 + 3)
    self.assertEqual(tables['long']['num_items'], 151)
    self.assertEqual(tables['pairs']['sampler'], 'uniform')
    self.assertRegex(
        tables['pairs']['rate_limiter'], r'min_diff=none, max_diff=none$'
    )
    (split,) = found.about['splits']
    self.assertEqual(
        split['bytes'],
        sum(entry.stat().st_size for entry in os.scandir(self._path)),
    )
    self.assertEqual(
        tables['long']['signature']['observation'], 'float32 (None, 2)'
    )
    lines = views.to_text(found)
    self.assertIn('Table pairs: 286 items of at most 286', lines)
    sample = describing.describe(self._path, sample=2)
    self.assertTrue(sample.is_sample)
    self.assertEqual(sample.counts['episodes'], 2)
    self.assertIn('a sample of 2 episodes', views.to_text(sample))
    pytest.importorskip('vl_convert')
    # How many episodes there are in all tables, is not known.
    self.assertNotIn('<th>episodes</th>', views.to_html(found))

  def test_what_a_server_writes(self):
    # It writes the chunks in another order.
    server = serve.restore_reverb_server(self._path)
    try:
      path = server.localhost_client().checkpoint()
      self._check(describing.describe(path))
    finally:
      server.stop()

  @pytest.mark.long
  def test_a_table_of_whole_episodes_and_no_checkpoint(self):
    data = golden.stacked([golden.COMPLETE])
    path = f'{self.create_tempdir().full_path}/other'
    write.write_reverb_checkpoint(data, path, items.TableItems('whole', None))
    found = describing.describe(path)
    self.assertEqual(found.counts['steps'], 4)
    with self.assertRaisesRegex(FileNotFoundError, 'not a whole Reverb'):
      describing.describe(f'{path}/no')


if __name__ == '__main__':
  tf.test.main()
