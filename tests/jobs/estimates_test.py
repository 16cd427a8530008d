"""Tests of estimates, against data sets whose steps are known."""

import os

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow_datasets as tfds

from rlds2reverb.datasets import writing
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.jobs import estimates
from rlds2reverb.jobs import plan
from rlds2reverb.jobs import sources
from rlds2reverb.replay import items
from tests.jobs import data_sets
from tests.jobs import job_testing


class EstimatesTest(parameterized.TestCase):

  def _open(self, lengths):
    directory = os.path.join(self.create_tempdir().full_path, 'data')
    return sources.open_source(
        sources.make_source(data_sets.numbered(directory, lengths))
    )

  @parameterized.parameters(2, 6, 20, 200, 2000)
  def test_steps(self, length):
    opened = self._open([length] * 3)
    self.assertBetween(
        estimates.steps_of(opened), 2.9 * length, 3.1 * length + 1
    )
    self.assertLessEqual(
        estimates.steps_of(opened, fewest=True), 3 * length + 1
    )

  def test_steps_with_images_do_not_show(self):
    opened = sources.open_source(
        sources.make_source(os.path.join(job_testing.RECORDED, 'breakout'))
    )
    self.assertIsNone(estimates.steps_of(opened))
    # The first episodes of the files tell: of so small a data set, all of them.
    lengths = [
        len(episode['steps']['reward'])
        for episode in opened.read().as_numpy_iterator()
    ]
    self.assertEqual(
        estimates.steps_or_sample(opened),
        (sum(lengths), len(lengths)),
    )

  @parameterized.parameters(1, 10**6)
  def test_integers_take_as_many_bytes_as_their_values_say(self, value):
    episodes = [data_sets.episode(index, 40) for index in range(20)]
    for episode in episodes:
      for step in episode['steps']:
        step['count'] = np.full([9], value)
    features = dict(data_sets.FEATURES['steps'].feature)
    features['count'] = tfds.features.Tensor(shape=(9,), dtype=np.int64)
    directory = os.path.join(self.create_tempdir().full_path, 'data')
    os.mkdir(directory)
    writing.write_episodes(
        episodes,
        directory,
        name='counts',
        description='Episodes with counts.',
        features={'steps': tfds.features.Dataset(features)},
    )
    steps = estimates.steps_or_sample(
        sources.open_source(sources.make_source(directory))
    )
    self.assertEqual(steps, (800, 8))

  def test_a_sample_is_about_right(self):
    # The name of an episode's agent is a string, so the sizes tell nothing.
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
        features={
            **data_sets.FEATURES,
            'agent_id': tfds.features.Text(),
        },
        max_episodes_per_file=10,
    )
    opened = sources.open_source(sources.make_source(directory))
    self.assertIsNone(estimates.steps_of(opened))
    steps = estimates.steps_or_sample(opened)
    self.assertEqual(steps.sampled, 48)
    self.assertBetween(steps.about, 0.93 * sum(lengths), 1.07 * sum(lengths))

  def test_items_of_episodes_of_10_steps(self):
    for table, expected in (
        (items.TableItems('t'), 9),
        (items.TableItems('t', windows_lib.Windows(3, 2)), 4),
        (items.TableItems('t', windows_lib.Windows(3, 2, 'tile')), 5),
        (items.TableItems('t', windows_lib.Windows(20, end='pad')), 1),
        (items.TableItems('t', windows_lib.Windows(20)), 0),
        (items.TableItems('t', None), 1),
    ):
      self.assertEqual(estimates.items_of(table, 7, 70), 7 * expected)

  def test_the_fewest_items_are_never_more_than_there_are(self):
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 60, 9).tolist()
    opened = self._open(lengths)
    for table in (
        items.TableItems('t'),
        items.TableItems('t', windows_lib.Windows(5, 3)),
        items.TableItems('t', None),
        items.TableItems('t', windows_lib.Windows(80, end='pad')),
    ):
      made = plan.make_plan(
          [opened], plan.Output(plan.CHECKPOINT, '/out'), tables=[table]
      )
      counted = table.count(np.array(lengths)).sum()
      self.assertLessEqual(estimates.fewest_items(made, table), counted)


if __name__ == '__main__':
  absltest.main()
