"""Tests of estimates, against data sets whose steps are known."""

import os

from absl.testing import absltest
import numpy as np
import tensorflow_datasets as tfds

from rlds2reverb.datasets import writing
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.jobs import estimates
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import sources
from rlds2reverb.replay import items
from tests.jobs import data_sets
from tests.jobs import job_testing

_TABLES = [
    items.TableItems('pairs'),
    items.TableItems('strided', windows_lib.Windows(5, 3)),
    items.TableItems('episodes', None),
    items.TableItems('padded', windows_lib.Windows(80, end='pad')),
]


class EstimatesTest(absltest.TestCase):

  def _open(self, lengths, split='train', **kwargs):
    directory = os.path.join(self.create_tempdir().full_path, 'data')
    data_sets.numbered(directory, lengths, **kwargs)
    return sources.open_source(sources.make_source(directory, split))

  def test_a_sample_that_has_all_is_exact(self):
    breakout = os.path.join(job_testing.RECORDED, 'breakout')
    opened = sources.open_source(sources.make_source(breakout))
    episodes = opened.read().as_numpy_iterator()
    lengths = [len(episode['steps']['reward']) for episode in episodes]
    self.assertEqual(opened.sample(), (lengths, 1.0))
    # Of parts of files, the episodes of the parts are read.
    opened = self._open(range(1, 10), 'train[3:6]+train[8:]', per_file=5)
    self.assertEqual(opened.sample(), ([4, 5, 6, 9], 1.0))

  def test_a_sample_of_some_is_about_right(self):
    # The name of an episode's agent is a string, which takes bytes, too.
    lengths = [3 + 7 * index % 11 for index in range(60)]
    episodes = [
        {**data_sets.episode(index, length), 'agent_id': 'a' * index}
        for index, length in enumerate(lengths)
    ]
    directory = os.path.join(self.create_tempdir().full_path, 'data')
    os.mkdir(directory)
    writing.write_episodes(
        episodes,
        directory,
        name='named',
        description='Episodes of agents with names.',
        features={**data_sets.FEATURES, 'agent_id': tfds.features.Text()},
        max_episodes_per_file=10,
    )
    opened = sources.open_source(sources.make_source(directory))
    sampled, factor = opened.sample()
    self.assertLen(sampled, 48)
    about = sum(sampled) * factor
    self.assertBetween(about, 0.93 * sum(lengths), 1.07 * sum(lengths))

  def test_what_cannot_be_read_is_not_known(self):
    opened = self._open([3, 4])
    for path in data_sets.files_of(opened.directory):
      with open(path, 'wb') as f:
        f.truncate(1000)  # Zeros, which are no record.
    self.assertEqual(opened.sample(), ([], 1.0))

  def test_the_fewest_items_are_never_more_than_there_are(self):
    lengths = np.random.default_rng(0).integers(1, 60, 40)
    for per_file, is_all in (2, False), (40, False), (5, True):
      opened = self._open(lengths.tolist(), per_file=per_file)
      plan = plan_lib.make_plan(
          [opened],
          plan_lib.Output(plan_lib.CHECKPOINT, '/out'),
          tables=_TABLES,
      )
      for table in _TABLES:
        counted = table.count(lengths).sum()
        fewest = estimates.fewest_items(plan)[table.table_name]
        self.assertBetween(fewest, counted if is_all else 1, counted)


if __name__ == '__main__':
  absltest.main()
