"""Tests of jobs on data sets of other formats, and on functions of Python."""

import os

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pytest

from rlds2reverb.formats import readers
from rlds2reverb.jobs import job as job_lib
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import sources
from rlds2reverb.jobs import tasks
from tests.jobs import job_testing

_DATA = os.path.dirname(job_testing.RECORDED)


_READ = []
_NUMBERED = list(enumerate(job_testing.LENGTHS))[2:5]


def python_episodes():
  """Yields episodes as `from_episodes` takes them; notes which are read."""
  for index, length in enumerate(job_testing.LENGTHS):
    _READ.append(index)
    yield {
        'observation': np.zeros([length, 1], np.float32),
        'action': np.zeros([length - 1, 1], np.float32),
        'reward': 100 * index + np.arange(length - 1, dtype=np.float32),
    }


def _total_reward(episodes):
  return sum(
      float(np.sum(episode['steps']['reward'][:-1]))
      for episode in episodes.as_numpy_iterator()
  )


class FormatSourceTest(job_testing.JobTestCase):

  @parameterized.parameters(
      'd3rlpy/arrays.h5',
      'lerobot/v3.0',
      'robomimic/low_dim.hdf5',
      'zarr/pusht.zarr',
  )
  @pytest.mark.few(1)
  def test_job_detects_the_format_from_files(self, name):
    path = os.path.join(_DATA, name)
    form = readers.find_format(path)
    # Rendered images would only take time.
    exclude = {
        'zarr': ["load_zarr.exclude = ['img']"],
        'lerobot': ['load_lerobot.decode_videos = False'],
    }
    source = sources.make_source(path, bindings=exclude.get(form, []))
    self.assertEqual(source.format, form)
    opened = sources.open_source(source)
    plan = self.plan(plan_lib.RLDS, self.new(), opened=[opened])
    self.assertLen(plan.tasks, 1)
    summary = self.convert(plan)
    written = sources.open_source(sources.make_source(plan.output.place))
    self.assertEqual(summary['episodes'], opened.num_episodes)
    self.assertEqual(summary['steps'], sum(opened.sample_lengths()[0]))
    self.assertEqual(written.num_episodes, opened.num_episodes)
    self.assertIn(f', {form}.', written.info.description)
    self.assertEqual(
        _total_reward(written.read()), _total_reward(readers.load(path))
    )

  def test_a_function_of_python_is_called_once_by_a_task(self):
    source = sources.make_source(
        'tests.jobs.format_source_test:python_episodes',
        'train[2:5]',
        format='python',
    )
    opened = [sources.open_source(source)]
    self.assertEqual(opened[0].num_episodes, 3)
    for kind in plan_lib.CHECKPOINT, plan_lib.STATISTICS:
      plan = self.plan(kind, self.new(), opened=opened)
      _READ.clear()
      job = job_lib.Job(plan, self.create_tempdir().full_path)
      receipt = tasks.JobRunner(job)(0, lambda progress: None)
      self.assertEqual(receipt['episodes'], 3)
      self.assertEqual(receipt['steps'], sum(job_testing.LENGTHS[2:5]))
      # The last reward of each is 0, as there is none.
      returns = [sum(range(100 * i, 100 * i + n - 1)) for i, n in _NUMBERED]
      self.assertEqual(receipt['statistics']['return']['sum'], sum(returns))
      # The first one may be read once more, for the spec.
      self.assertEqual(_READ.count(4), 1)


if __name__ == '__main__':
  absltest.main()
