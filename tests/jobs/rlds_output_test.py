"""Tests of RLDS output; convert_test.py tests complete jobs."""

import json
import os

from absl.testing import absltest
import numpy as np
import pytest
import tensorflow_datasets as tfds
import tree

from rlds2reverb.datasets import loading
from rlds2reverb.datasets import saving
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import sources
from rlds2reverb.jobs import sources as sources_lib
from tests.jobs import data_sets
from tests.jobs import job_testing


class RldsOutputTest(job_testing.JobTestCase):

  def _write(self, name, names, citation, version='1.2.0'):
    """Writes two episodes with the name of a task; returns the directory."""
    directory = self.new(name)
    os.mkdir(directory)
    episodes = [
        {**data_sets.episode(index, 3), 'task': index, 'agent_id': 'a'}
        for index in range(2)
    ]
    for episode in episodes:
      for step in episode['steps']:
        step['gripper'] = 'shut'
    features = {
        'steps': tfds.features.Dataset(
            {
                **data_sets.FEATURES['steps'].feature,
                'gripper': tfds.features.ClassLabel(names=['open', 'shut']),
            }
        ),
        'task': tfds.features.ClassLabel(names=names),
        'agent_id': tfds.features.Text(),
    }
    saving.write_episodes(
        episodes,
        directory,
        name=name,
        description=f'About {name}.',
        features=features,
        version=version,
    )
    path = os.path.join(directory, 'dataset_info.json')
    with open(path, encoding='utf-8') as f:
      info = json.load(f)
    info['citation'] = citation
    info['location'] = {'urls': ['https://example.com']}
    info['redistributionInfo'] = {'license': 'CC BY 4.0'}
    with open(path, 'w', encoding='utf-8') as f:
      json.dump(info, f)
    return directory

  @pytest.mark.long
  def test_output_keeps_metadata_of_data_set(self):
    one = self._write('one', ['push', 'pull'], '@one')
    plan = self.plan(plan_lib.RLDS, self.new('again'), directory=one)
    self.convert(plan)
    info = tfds.builder_from_directory(plan.output.place).info
    self.assertEqual(info.full_name, 'again/1.2.0')
    self.assertEqual(
        info.description, 'About one.\n\nEpisodes converted by rlds2reverb.'
    )
    self.assertEqual(info.citation, '@one')
    self.assertEqual(info.homepage, 'https://example.com')
    self.assertEqual(info.redistribution_info.license, 'CC BY 4.0')
    self.assertEqual(info.features['task'].names, ['push', 'pull'])
    self.assertEqual(
        info.features['steps'].feature['gripper'].names, ['open', 'shut']
    )
    self.assertIsInstance(info.features['agent_id'], tfds.features.Text)
    actual, expected = (
        list(loading.load_episodes(path).as_numpy_iterator())
        for path in (plan.output.place, one)
    )
    for episode, other in zip(actual, expected, strict=True):
      tree.map_structure(np.testing.assert_array_equal, episode, other)

    # Two data sets: the common metadata, and the version in the folder name.
    other = self._write('other', ['push', 'lift'], '@other', '3.0.0')
    plan = self.plan(
        plan_lib.RLDS,
        os.path.join(self.new('both'), '2.0.0'),
        opened=[
            sources.open_source(sources.make_source(each))
            for each in (one, other)
        ],
    )
    self.convert(plan)
    info = tfds.builder_from_directory(plan.output.place).info
    self.assertEqual(info.full_name, 'both/2.0.0')
    self.assertEqual(info.citation, '@one\n\n@other')
    self.assertStartsWith(info.description, 'About one.\n\nAbout other.')
    self.assertNotIsInstance(info.features['task'], tfds.features.ClassLabel)
    self.assertEqual(
        info.features['steps'].feature['gripper'].names, ['open', 'shut']
    )

  def test_repaired_episodes_into_other_outputs_raise(self):
    other = self.new()
    os.mkdir(other)
    open(os.path.join(other, 'mine.txt'), 'wb').close()
    tested = data_sets.numbered(self.new('data'), [3], split='test')
    opened = [sources.open_source(sources.make_source(self.directory))]
    only = ('quarantine.jsonl', [[sources_lib.Range('train', 3, 4)]])
    for kind, place, error, message in (
        (plan_lib.RLDS, other, FileExistsError, 'not the output of'),
        (plan_lib.RLDS, tested, ValueError, r"which has the splits \['test'\]"),
        (plan_lib.STATISTICS, other, FileExistsError, 'not the output of'),
    ):
      plan = self.plan(kind, place, opened=opened, only=only)
      self.assert_fails(error, message, plan)
    self.assertEqual(os.listdir(other), ['mine.txt'])


if __name__ == '__main__':
  absltest.main()
