"""Tests of jobs on a Dask cluster, one of whose processes is killed."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

from absl.testing import absltest
import pytest

from rlds2reverb.jobs import progress
from tests.jobs import job_testing

try:
  import distributed

  from rlds2reverb.jobs import dask_engine
except ModuleNotFoundError:
  distributed = None


@unittest.skipIf(distributed is None, 'Dask is not installed.')
@pytest.mark.long
class DaskEngineTest(job_testing.JobTestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = tempfile.TemporaryDirectory()
    cls.addClassCleanup(folder.cleanup)
    file = os.path.join(folder.name, 'scheduler.json')
    common = '--no-dashboard', f'--scheduler-file={file}'
    cls._start('distributed.cli.dask_scheduler', '--port=0', *common)
    cls.workers = [
        cls._start(
            'distributed.cli.dask_worker',
            '--nthreads=1',
            '--no-nanny',
            f'--local-directory={folder.name}',
            *common,
        )
        for _ in range(3)
    ]
    deadline = time.monotonic() + 60
    while not os.path.exists(file):
      assert time.monotonic() < deadline
      time.sleep(0.1)
    with distributed.Client(scheduler_file=file) as client:
      client.wait_for_workers(3, timeout=120)
      cls.address = client.scheduler.address

  @classmethod
  def _start(cls, module, *args):
    process = subprocess.Popen(
        [sys.executable, '-m', module, *args],
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
        stderr=subprocess.DEVNULL,
    )
    cls.addClassCleanup(process.wait)
    cls.addClassCleanup(process.kill)
    return process

  def test_the_output_is_that_of_one_process_though_a_worker_dies(self):
    here, on_dask = (self.plan(episodes_per_task=1) for _ in range(2))
    update = progress.ProgressDisplay.update

    def kill_and_update(*args):
      self.workers[0].kill()
      self.workers[0].wait()
      update(*args)

    with mock.patch.object(progress.ProgressDisplay, 'update', kill_and_update):
      self.convert(on_dask, engine=dask_engine.DaskEngine(self.address))
    self.assertEqual(self.workers[0].poll(), -signal.SIGKILL)
    self.convert(here)
    self.assertEqual(
        job_testing.contents_of(on_dask.output.place),
        job_testing.contents_of(here.output.place),
    )

  def test_no_scheduler(self):
    with distributed.dask.config.set({'distributed.comm.timeouts.connect': 1}):
      with self.assertRaisesRegex(ConnectionError, 'no Dask scheduler at'):
        dask_engine.DaskEngine('tcp://localhost:1')


if __name__ == '__main__':
  absltest.main()
