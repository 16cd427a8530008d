"""Tests of jobs in this process and in several, which are killed."""

import dataclasses
import gc
import os
import pathlib
import signal
import threading
import time
from typing import Any, NamedTuple
from unittest import mock

from absl.testing import absltest
import pytest
from tensorflow.python.framework import func_graph

from rlds2reverb.jobs import convert
from rlds2reverb.jobs import engines
from rlds2reverb.jobs import job as job_lib
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import processes
from rlds2reverb.jobs import tasks
from tests.jobs import job_testing


class _Dying(NamedTuple):
  """Kills the process that does a task, a number of times.

  It notes the process of every attempt in a file of the folder.
  """

  attempt: Any
  folder: str
  signals: Any  # By the number of the task.
  times: int

  def __call__(self, number, report):
    path = pathlib.Path(self.folder, str(number))
    before = path.read_text().split() if path.exists() else []
    path.write_text(' '.join([*before, str(os.getpid())]))
    if number in self.signals and len(before) < self.times:
      os.kill(os.getpid(), self.signals[number])
    return self.attempt(number, report)


class _DyingProcesses(processes.Processes):

  def __init__(self, folder, signals, times, num_workers=2):
    super().__init__(num_workers)
    os.mkdir(folder)
    self._with = folder, signals, times

  def map(self, attempt, numbers, report):
    return super().map(_Dying(attempt, *self._with), numbers, report)


class NumWorkersTest(job_testing.JobTestCase):

  def test_as_many_as_processors_tasks_and_bytes_are_worth(self):
    plan = self.plan(episodes_per_task=2)
    self.assertLen(plan.tasks, 4)
    for num_processors, num_mib, count, reason in (
        (3, 1000, 3, 'one for each processor'),
        (8, 1000, 4, 'one for each task'),
        (8, 64, 2, 'each reads 34 MB'),
        (8, 63, 1, 'longer to start than it saves'),
        (8, 0, 1, 'longer to start than it saves'),
    ):
      data = dataclasses.replace(plan.data_sets[0], num_bytes=num_mib << 20)
      sized = dataclasses.replace(plan, data_sets=(data,))
      with mock.patch.object(
          os, 'sched_getaffinity', lambda _, n=num_processors: set(range(n))
      ):
        found, why = processes.choose_num_workers(sized)
      self.assertEqual(found, count)
      self.assertIn(reason, why)


class HereTest(job_testing.JobTestCase):

  def test_tasks_are_heard_of_one_by_one_and_leave_no_graphs(self):
    plan = self.plan(episodes_per_task=2)
    job = job_lib.Job(plan, self.new('job'))
    os.mkdir(job.folder)
    job.begin()
    counts = []
    gc.disable()  # What is left to Python comes too late.
    self.addCleanup(gc.enable)
    outcomes = engines.Here().map(
        tasks.Attempt(job), range(3), lambda *unused: None
    )
    for number, (done, outcome) in enumerate(outcomes):
      self.assertEqual((done, outcome['task']), (number, number))
      self.assertEqual(sorted(job.receipts()), list(range(number + 1)))
      counts.append(
          sum(isinstance(one, func_graph.FuncGraph) for one in gc.get_objects())
      )
    # The first task leaves what the next ones use.
    self.assertEqual(counts[1:], counts[:1] * 2)

  def test_whatever_a_task_raises_the_others_are_done(self):
    plan = self.plan(episodes_per_task=4)
    run_task = tasks.run_task
    for error, message in (
        (MemoryError('Unable to allocate 8 GiB'), 'not enough memory: Unable'),
        (TypeError('Of no kind.'), 'TypeError: Of no kind.'),
        (OSError('No space left.'), 'task 0: No space left.'),
    ):

      def run(attempt, number, *args, error=error):
        if number == 0:
          raise error
        return run_task(attempt, number, *args)

      with mock.patch.object(tasks, 'run_task', run):
        self.assert_fails(convert.JobError, f'1 are done.\n.*{message}', plan)

  @pytest.mark.long
  def test_a_server_that_comes_back_is_waited_for(self):
    server = self.start_server()
    port = server.port
    plan = self.plan(plan_lib.SERVER, f'localhost:{port}')
    attempt = tasks.Attempt.__call__
    calls = []

    def call(self, number, report):
      calls.append(number)
      if len(calls) == 1:
        server.stop()
      return attempt(self, number, report)

    def come_back():
      while len(calls) < 5:
        time.sleep(0.05)
      self.start_server(port)

    thread = threading.Thread(target=come_back)
    thread.start()
    with mock.patch.object(
        tasks.server_output, '_TIMEOUT_SECONDS', 1
    ), mock.patch.object(tasks.Attempt, '__call__', call):
      self.convert(plan)
    thread.join()
    self.assertGreaterEqual(len(calls), 8)


@pytest.mark.long
class ProcessesTest(job_testing.JobTestCase):

  def test_workers_that_die_are_replaced_and_all_tasks_are_done(self):
    plan = self.plan(episodes_per_task=1)
    # As the kernel does it where memory is short, and by something else.
    signals = {1: signal.SIGKILL, 2: signal.SIGTERM, 5: signal.SIGSEGV}
    notes = self.new('notes')
    self.convert(plan, engine=_DyingProcesses(notes, signals, 1))
    self.assertEqual(
        job_testing.rewards_of(job_testing.items_of(plan.output.place)),
        job_testing.ALL_PAIRS,
    )
    for number in range(8):
      pids = pathlib.Path(notes, str(number)).read_text().split()
      self.assertLen(pids, 2 if number in signals else 1)
      self.assertFalse(any(map(_is_running, pids)))

  def test_a_task_whose_process_always_dies(self):
    plan = self.plan(episodes_per_task=4)
    engine = _DyingProcesses(self.new('notes'), {0: signal.SIGKILL}, 9)
    self.assert_fails(
        convert.JobError,
        '1 of 2 tasks have failed; 1 are done.\n  task 0: .* exit code -9. '
        'Memory may have been short. From now on the number of workers is 1.',
        plan,
        engine=engine,
    )

  def test_a_worker_is_replaced_when_it_has_done_many_tasks(self):
    plan = self.plan(episodes_per_task=1)
    notes = self.new('notes')
    with mock.patch.object(processes, 'TASKS_PER_PROCESS', 3):
      self.convert(plan, engine=_DyingProcesses(notes, {}, 0, num_workers=1))
    pids = [pathlib.Path(notes, str(n)).read_text() for n in range(8)]
    self.assertEqual(
        [pids.count(pid) for pid in dict.fromkeys(pids)], [3, 3, 2]
    )


def _is_running(pid):
  try:
    with open(f'/proc/{pid}/stat', encoding='utf-8') as f:
      return f.read().rpartition(')')[2].split()[0] != 'Z'
  except FileNotFoundError:
    return False


if __name__ == '__main__':
  absltest.main()
