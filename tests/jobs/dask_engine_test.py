"""Tests of jobs on a Dask cluster, one of whose processes is killed."""

import glob
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

from rlds2reverb.jobs import convert
from rlds2reverb.jobs import tasks
from tests.jobs import data_sets
from tests.jobs import job_testing
from tests.scripts import programs

try:
  import distributed

  from rlds2reverb.jobs import dask_engine
except ModuleNotFoundError:
  distributed = None


def wait(condition):
  deadline = time.monotonic() + 300
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.1)


@unittest.skipIf(distributed is None, 'Dask is not installed.')
@pytest.mark.long
class DaskEngineTest(job_testing.JobTestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.folder = cls.enter_context(tempfile.TemporaryDirectory())
    _, cls.address, cls.workers = cls.start_cluster(2)

  @classmethod
  def start_cluster(cls, num_workers, port=0):
    """Returns the process of a scheduler, its address, and its workers."""
    file = os.path.join(tempfile.mkdtemp(dir=cls.folder), 'scheduler.json')
    common = '--no-dashboard', f'--scheduler-file={file}'
    scheduler = cls.start('dask_scheduler', f'--port={port}', *common)
    workers = [
        cls.start(
            'dask_worker',
            *('--nthreads=1', '--no-nanny', f'--local-directory={cls.folder}'),
            *common,
        )
        for _ in range(num_workers)
    ]
    wait(lambda: os.path.exists(file))
    with distributed.Client(scheduler_file=file) as client:
      if num_workers:
        client.wait_for_workers(num_workers, timeout=120)
      return scheduler, client.scheduler.address, workers

  @classmethod
  def start(cls, program, *args):
    process = subprocess.Popen(
        [sys.executable, '-m', f'distributed.cli.{program}', *args],
        env=programs.environment(),
        stderr=subprocess.DEVNULL,
    )
    cls.addClassCleanup(process.wait)
    cls.addClassCleanup(process.kill)
    return process

  def start_program(self, address, output, directory=None):
    return self.start_convert(
        output,
        f'--dask_scheduler={address}',
        directory=directory,
        DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT='3s',
    )

  def assert_resumes(self, address, output):
    self.assert_completes(self.start_program(address, output), output)

  def test_output_after_death_of_worker_equals_single_process(self):
    here, on_dask = (self.plan(episodes_per_task=1) for _ in range(2))
    update = convert.ProgressDisplay.update

    def kill_and_update(*args):
      self.workers[0].kill()
      self.workers[0].wait()
      update(*args)

    with mock.patch.object(convert.ProgressDisplay, 'update', kill_and_update):
      self.convert(on_dask, engine=dask_engine.DaskEngine(self.address))
    self.assertEqual(self.workers[0].poll(), -signal.SIGKILL)
    self.convert(here)
    self.assertEqual(
        job_testing.contents_of(on_dask.output.place),
        job_testing.contents_of(here.output.place),
    )

  def test_failed_task_does_not_stop_other_tasks(self):
    folder = data_sets.numbered(self.new('data'), job_testing.LENGTHS)
    path = data_sets.files_of(folder)[1]
    os.rename(path, f'{path}.away')
    plan = self.plan(directory=folder)
    self.assert_fails(
        convert.JobError,
        f'task 1: {path} is missing',
        plan,
        engine=dask_engine.DaskEngine(self.address),
    )
    self.assertCountEqual(self.receipts_of(plan), [0, 2, 3])

  def test_a_scheduler_is_killed_and_the_program_resumes(self):
    scheduler, address, _ = self.start_cluster(1)
    output = self.new()
    process = self.start_program(address, output)
    # The worker still imports TensorFlow.
    wait(lambda: os.path.exists(os.path.join(f'{output}.job', 'plan.json')))
    scheduler.kill()
    scheduler.wait()
    _, errors = process.communicate(timeout=60)
    self.assertEqual(process.returncode, 1, errors)
    self.assertRegex(
        errors,
        r'^(\d+ of \d+ episodes.*\n)*The connection to the Dask scheduler at'
        rf' {address} is lost\. The tasks that are done are kept: start the'
        r' same command again when there is a scheduler\.\n$',
    )
    process = self.start_program(address, output)
    _, errors = process.communicate(timeout=60)
    self.assertEqual(process.returncode, 1, errors)
    self.assertRegex(errors, f'^There is no Dask scheduler at {address}: .*\n$')
    _, again, _ = self.start_cluster(1, address.rpartition(':')[2])
    self.assertEqual(again, address)
    self.assert_resumes(address, output)

  def test_one_signal_to_the_process_group_ends_the_program(self):
    # So many tasks that most are left when a signal comes, however fast.
    lengths = (2,) * 150
    data = data_sets.numbered(self.new('data'), lengths, per_file=50)
    output = self.new()
    lock = os.path.join(f'{output}.job', '.lock')
    receipts = os.path.join(f'{output}.job', 'receipts', '*.json')
    for number, num_tasks in (
        (signal.SIGTERM, 0),
        (signal.SIGINT, 1),
        (signal.SIGTERM, 10),
    ):
      process = self.start_program(self.address, output, data)
      # The program converts. Workers may still finish tasks of the one before.
      wait(lambda: os.path.exists(lock))
      done = len(glob.glob(receipts))
      wait(lambda n=done + num_tasks: len(glob.glob(receipts)) >= n)
      os.killpg(process.pid, number)
      _, errors = process.communicate(timeout=10)
      self.assertEqual(process.returncode, 130, errors)
      self.assertRegex(
          errors, r'^(\d+ of \d+ episodes.*\n)*Interrupted\. .*\n$'
      )
    self.assertLess(len(glob.glob(receipts)), len(lengths))
    process = self.start_program(self.address, output, data)
    self.assert_completes(process, output, lengths)

  def test_a_scheduler_without_workers(self):
    _, address, _ = self.start_cluster(0)
    self.assert_fails(
        tasks.TaskError,
        f'^The Dask scheduler at {address} has no workers. .*start workers',
        self.plan(),
        engine=dask_engine.DaskEngine(address, worker_timeout=1),
    )

  def test_invalid_timeout_and_missing_scheduler_raise(self):
    for timeout in 0, -1.5, float('nan'):
      with self.assertRaisesRegex(ValueError, f'positive .*, but is {timeout}'):
        dask_engine.DaskEngine('tcp://localhost:1', worker_timeout=timeout)
    with distributed.dask.config.set({'distributed.comm.timeouts.connect': 1}):
      with self.assertRaisesRegex(ConnectionError, 'no Dask scheduler at'):
        dask_engine.DaskEngine('tcp://localhost:1')


if __name__ == '__main__':
  absltest.main()
