"""Tests of jobs on a portable runner: a job service and workers of its own.

The job service is Beam's, in a process; its workers are processes, too.
"""

import os
import signal
import subprocess
import sys
import threading
import time

from absl.testing import absltest
import pytest
import reverb

from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import receipts
from rlds2reverb.jobs import tasks
from tests.jobs import job_testing
from tests.jobs.beam import beam_testing

_WORKER = 'apache_beam.runners.worker.sdk_worker_main'


@beam_testing.needs_beam
class PortableRunnerTest(beam_testing.BeamTestCase):

  def _start_job_service(self):
    """Starts a job service; returns its process and Beam's options for it."""
    folder = self.new('service')
    port_file = os.path.join(folder, 'port')
    process = subprocess.Popen(
        [
            sys.executable,
            '-m',
            'apache_beam.runners.portability.local_job_service_main',
            f'--port_file={port_file}',
            f'--staging_dir={folder}',
        ],
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
        # Its workers are in its group of processes.
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )
    self.addCleanup(process.wait)
    self.addCleanup(_kill_group, process.pid)
    deadline = time.monotonic() + 60
    while not os.path.exists(port_file) or not os.path.getsize(port_file):
      self.assertLess(time.monotonic(), deadline)
      time.sleep(0.1)
    with open(port_file, encoding='utf-8') as f:
      port = f.read()
    return process, (
        '--runner=PortableRunner',
        f'--job_endpoint=localhost:{port}',
        '--environment_type=beam:env:harness_subprocess_python:v1',
        f'--environment_config={sys.executable} -m {_WORKER}',
    )

  @pytest.mark.long
  def test_the_same_checkpoint(self):
    _, options = self._start_job_service()
    local = self.plan(plan_lib.CHECKPOINT, self.new())
    portable = self.plan(plan_lib.CHECKPOINT, self.new())
    self.convert(local)
    self.run_on_beam(portable, *options)
    self.assertEqual(
        beam_testing.contents_of(portable.output.place),
        beam_testing.contents_of(local.output.place),
    )
    self.assertEqual(self.receipts_of(portable), self.receipts_of(local))
    self.assertEqual(self.runner.counters['episodes'], 8)

  @pytest.mark.long
  def test_a_worker_that_is_killed(self):
    server = self.start_server()
    plan = self.plan(
        plan_lib.SERVER, f'localhost:{server.port}', episodes_per_task=1
    )
    process, options = self._start_job_service()
    folder = self.job_folder(plan)
    killed = []

    def kill_when_a_task_is_done():
      while not receipts.read(folder, plan.hash):
        time.sleep(0.05)
      for pid in _workers_of(process.pid):
        os.kill(pid, signal.SIGKILL)
        killed.append(pid)
      # A service that does not notice would wait for ever.
      time.sleep(10)
      _kill_group(process.pid)

    thread = threading.Thread(target=kill_when_a_task_is_done)
    thread.start()
    with self.assertRaisesRegex(
        tasks.TaskError, 'The Beam pipeline has failed'
    ):
      self.run_on_beam(plan, *options)
    thread.join()
    self.assertNotEmpty(killed)
    self.assertLess(len(receipts.read(folder, plan.hash)), 8)
    _, options = self._start_job_service()
    summary = self.run_on_beam(plan, *options)
    self.assertEqual(summary['items'], {job_testing.TABLE: 26})
    self.assertEqual(
        job_testing.rewards_of(
            job_testing.items_in(reverb.Client(plan.output.place))
        ),
        job_testing.ALL_PAIRS,
    )


def _workers_of(group):
  """Returns the ids of the Python workers in a group of processes."""
  found = []
  for name in filter(str.isdigit, os.listdir('/proc')):
    try:
      with open(f'/proc/{name}/cmdline', encoding='utf-8') as f:
        words = f.read().split('\0')
      if _WORKER in words and os.getpgid(int(name)) == group:
        found.append(int(name))
    except (FileNotFoundError, ProcessLookupError):
      pass
  return found


def _kill_group(group):
  try:
    os.killpg(group, signal.SIGKILL)
  except ProcessLookupError:
    pass


if __name__ == '__main__':
  absltest.main()
