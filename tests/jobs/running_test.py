"""Tests of the local runner, with processes that do real tasks."""

import os
import signal
import subprocess
import sys
import threading
import time
from unittest import mock

from absl.testing import absltest
import pytest

from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import receipts
from rlds2reverb.jobs import running
from tests.jobs import job_testing

# It runs workers, says the ids of their processes, and is killed.
_PARENT = """
import sys
from rlds2reverb.jobs import plan, running

if __name__ == '__main__':
  made = plan.from_json(open(sys.argv[1]).read())
  workers = running._Processes(made, sys.argv[2], 2, None)
  print(*[each.pid for each in workers._processes.values()], flush=True)
  sys.stdin.read()
"""


class _Listener(running.Listener):

  def __init__(self, on_first=lambda: None):
    self.done = []
    self.retries = 0
    self._on_first = on_first

  def on_done(self, number, receipt):
    self.done.append(number)
    if len(self.done) == 1:
      self._on_first()

  def on_retry(self, number, message):
    self.retries += 1


@pytest.mark.long
class RunningTest(job_testing.JobTestCase):

  def test_every_task_is_done_once_and_a_worker_that_dies_is_no_end(self):
    plan = self.plan(plan_lib.CHECKPOINT, self.new(), episodes_per_task=1)
    folder = self.new('job')
    os.mkdir(folder)
    killed = []

    def kill_one():
      child = next(
          process
          for process in running.multiprocessing.active_children()
          if process.is_alive()
      )
      killed.append(child.pid)
      os.kill(child.pid, signal.SIGKILL)

    listener = _Listener(kill_one)
    failures = running.run_tasks(
        plan, folder, range(8), num_workers=2, listener=listener
    )
    self.assertLen(killed, 1)
    self.assertLessEqual(len(failures), 1)
    for message in failures.values():
      self.assertIn('exit code -9', message)
    self.assertEqual(sorted([*listener.done, *failures]), list(range(8)))
    self.assertContainsSubset(listener.done, receipts.read(folder, plan.hash))
    self.assertEmpty(running.multiprocessing.active_children())

  def test_workers_end_with_their_parent(self):
    plan = self.plan(plan_lib.CHECKPOINT, self.new())
    program = self.create_tempfile('parent.py', _PARENT).full_path
    stored = self.create_tempfile('plan.json', plan.to_json()).full_path
    process = subprocess.Popen(
        [sys.executable, program, stored, self.new('job')],
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    self.addCleanup(process.communicate)
    self.addCleanup(process.kill)
    workers = list(map(int, process.stdout.readline().split()))
    self.assertLen(workers, 2)
    time.sleep(0.5)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while any(map(_is_running, workers)):
      self.assertLess(time.monotonic(), deadline)
      time.sleep(0.1)

  def test_a_server_that_comes_back_is_waited_for(self):
    server = self.start_server()
    port = server.port
    plan = self.plan(plan_lib.SERVER, f'localhost:{port}')
    server.stop()
    listener = _Listener()

    def come_back():
      while not listener.retries:
        time.sleep(0.05)
      self.start_server(port)

    thread = threading.Thread(target=come_back)
    thread.start()
    folder = self.new('job')
    os.mkdir(folder)
    with mock.patch.object(
        running.tasks_lib.output_kinds.server_output, '_TIMEOUT_SECONDS', 1
    ):
      failures = running.run_tasks(
          plan, folder, range(4), num_workers=1, listener=listener
      )
    thread.join()
    self.assertEqual(failures, {})
    self.assertGreater(listener.retries, 0)
    self.assertSameElements(listener.done, range(4))


def _is_running(pid):
  try:
    with open(f'/proc/{pid}/stat', encoding='utf-8') as f:
      return f.read().rpartition(')')[2].split()[0] != 'Z'
  except FileNotFoundError:
    return False


if __name__ == '__main__':
  absltest.main()
