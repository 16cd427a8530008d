"""Tests of the local runner, with processes that do real tasks."""

import dataclasses
import functools
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from unittest import mock

from absl.testing import absltest
import pytest
from tensorflow.python.framework import func_graph

from rlds2reverb.jobs import memory
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import receipts
from rlds2reverb.jobs import running
from rlds2reverb.jobs import tasks
from rlds2reverb.jobs import workers
from tests.jobs import job_testing

# It runs workers, says the ids of their processes, and is killed.
_PARENT = """
import functools
import sys
from rlds2reverb.jobs import plan, tasks, workers

if __name__ == '__main__':
  made = plan.from_json(open(sys.argv[1]).read())
  run = functools.partial(tasks.run_task, made, folder=sys.argv[2])
  made = workers.Processes(run, 2)
  print(*[each.pid for each in made._processes.values()], flush=True)
  sys.stdin.read()
"""


class _Listener(running.Listener):

  def __init__(self, on_first=lambda: None, times=1):
    self.done = []
    self.retries = 0
    self._on_first = on_first
    self._times = times

  def on_done(self, number, receipt):
    self.done.append(number)
    if len(self.done) <= self._times:
      self._on_first()

  def on_retry(self, number, message):
    self.retries += 1


class NumWorkersTest(job_testing.JobTestCase):

  def test_as_many_as_processors_tasks_and_bytes_are_worth(self):
    plan = self.plan(plan_lib.CHECKPOINT, self.new(), episodes_per_task=2)
    self.assertLen(plan.tasks, 4)
    for num_processors, num_mib, count, reason in (
        (3, 1000, 3, 'one for each processor'),
        (8, 1000, 4, 'one for each task'),
        (8, 300, 2, 'each reads 134 MB'),
        (8, 255, 1, 'longer to start than it saves'),
        (8, 0, 1, 'longer to start than it saves'),
    ):
      data = dataclasses.replace(plan.data_sets[0], num_bytes=num_mib << 20)
      sized = dataclasses.replace(plan, data_sets=(data,))
      with mock.patch.object(
          os, 'sched_getaffinity', lambda _, n=num_processors: set(range(n))
      ):
        found, why = running.choose_num_workers(sized)
      self.assertEqual(found, count)
      self.assertIn(reason, why)


class GraphsTest(job_testing.JobTestCase):

  def test_a_task_leaves_no_graphs(self):
    plan = self.plan(plan_lib.CHECKPOINT, self.new(), episodes_per_task=2)
    folder = self.new('job')
    os.mkdir(folder)
    run = functools.partial(tasks.run_task, plan, folder=folder)
    counts = []
    gc.disable()  # What is left to Python comes too late.
    self.addCleanup(gc.enable)
    for number in range(3):
      kind, *_ = workers.do(run, number, lambda progress: None)
      self.assertEqual(kind, workers.DONE)
      counts.append(
          sum(isinstance(one, func_graph.FuncGraph) for one in gc.get_objects())
      )
    # The first task leaves what the next ones use.
    self.assertEqual(counts[1:], counts[:1] * 2)


class HereTest(job_testing.JobTestCase):

  def test_each_task_is_heard_of_before_the_next_begins(self):
    plan = self.plan(plan_lib.CHECKPOINT, self.new(), episodes_per_task=4)
    folder = self.new('job')
    os.mkdir(folder)

    def interrupt():
      raise KeyboardInterrupt

    with self.assertRaises(KeyboardInterrupt):
      running.LocalRunner(1).run_tasks(
          plan, folder, range(2), listener=_Listener(interrupt)
      )
    self.assertEqual(list(receipts.read(folder, plan.hash)), [0])


@pytest.mark.long
class RunningTest(job_testing.JobTestCase):

  def test_workers_that_die_are_replaced_and_all_tasks_are_done(self):
    plan = self.plan(plan_lib.CHECKPOINT, self.new(), episodes_per_task=1)
    folder = self.new('job')
    os.mkdir(folder)
    # One is killed after each of the first tasks: as the kernel does it where
    # memory is short, and by something else.
    numbers = [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV]

    def kill():
      os.kill(_children()[0].pid, numbers.pop(0))

    listener = _Listener(kill, times=3)
    failures = running.LocalRunner(2).run_tasks(
        plan, folder, range(8), listener=listener
    )
    self.assertEmpty(numbers)
    self.assertEqual(failures, {})
    self.assertSameElements(listener.done, range(8))
    self.assertLen(receipts.read(folder, plan.hash), 8)
    self.assertEmpty(_children())

  def test_a_task_whose_process_always_dies(self):
    plan = self.plan(plan_lib.CHECKPOINT, self.new(), episodes_per_task=4)
    folder = self.new('job')
    os.mkdir(folder)
    listener = _Listener()

    def kill_all():
      for process in _children():
        os.kill(process.pid, signal.SIGKILL)

    listener.on_idle = kill_all
    with mock.patch.object(memory, 'limit', lambda: 2_000_000_000):
      failures = running.LocalRunner(2).run_tasks(
          plan, folder, range(2), listener=listener
      )
    self.assertSameElements(failures, range(2))
    for message in failures.values():
      self.assertIn('Memory is limited to 2,000 MB and may have', message)
      self.assertIn('exit code -9', message)
      self.assertIn('From now on the number of workers is 1.', message)
      self.assertIn('tried 3 times', message)
    self.assertEqual(listener.retries, 4)

  def test_a_worker_is_replaced_when_it_has_done_many_tasks(self):
    plan = self.plan(plan_lib.CHECKPOINT, self.new(), episodes_per_task=1)
    folder = self.new('job')
    os.mkdir(folder)
    pids = []
    listener = _Listener(lambda: pids.append(_children()[0].pid), times=8)
    with mock.patch.object(workers, 'TASKS_PER_PROCESS', 3):
      failures = running.LocalRunner(1).run_tasks(
          plan, folder, range(8), listener=listener
      )
    self.assertEqual(failures, {})
    self.assertLen(listener.done, 8)
    self.assertLen(set(pids), 3)
    self.assertEmpty(_children())

  def test_whatever_a_task_raises_the_others_are_done(self):
    plan = self.plan(plan_lib.CHECKPOINT, self.new(), episodes_per_task=4)
    folder = self.new('job')
    os.mkdir(folder)
    run_task = running.tasks_lib.run_task
    for error, message in (
        (MemoryError('Unable to allocate 8 GiB'), 'not enough memory: Unable'),
        (TypeError('Of no kind.'), 'TypeError: Of no kind.'),
    ):

      def run(plan, number, *args, error=error, **kwargs):
        if number == 0:
          raise error
        return run_task(plan, number, *args, **kwargs)

      listener = _Listener()
      with mock.patch.object(running.tasks_lib, 'run_task', run):
        failures = running.LocalRunner(1).run_tasks(
            plan, folder, range(2), listener=listener
        )
      self.assertSameElements(failures, [0])
      self.assertIn(message, failures[0])
      self.assertEqual(listener.done, [1])

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
        running.tasks_lib.server_output, '_TIMEOUT_SECONDS', 1
    ):
      failures = running.LocalRunner(1).run_tasks(
          plan, folder, range(4), listener=listener
      )
    thread.join()
    self.assertEqual(failures, {})
    self.assertGreater(listener.retries, 0)
    self.assertSameElements(listener.done, range(4))


def _children():
  return multiprocessing.active_children()


def _is_running(pid):
  try:
    with open(f'/proc/{pid}/stat', encoding='utf-8') as f:
      return f.read().rpartition(')')[2].split()[0] != 'Z'
  except FileNotFoundError:
    return False


if __name__ == '__main__':
  absltest.main()
