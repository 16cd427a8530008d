"""Tests of jobs in several processes, which are killed, and of progress."""

import gc
import io
import os
import pathlib
import signal
import sys
from typing import Any, NamedTuple
from unittest import mock

from absl.testing import absltest
import pytest
from tensorflow.python.framework import func_graph

from rlds2reverb.jobs import convert
from rlds2reverb.jobs import job as job_lib
from rlds2reverb.jobs import processes
from rlds2reverb.jobs import tasks
from tests.jobs import job_testing


class _Dying(NamedTuple):
  """Kills the processes that do some tasks, each a number of times.

  It notes the process of every run in a file of the folder.
  """

  job_runner: Any
  folder: str
  kills: Any  # A signal, and how often, by the number of the task.

  def __call__(self, number, on_progress):
    path = pathlib.Path(self.folder, str(number))
    before = path.read_text().split() if path.exists() else []
    path.write_text(' '.join([*before, str(os.getpid())]))
    number_of_signal, times = self.kills.get(number, (0, 0))
    if len(before) < times:
      os.kill(os.getpid(), number_of_signal)
    return self.job_runner(number, on_progress)


class _DyingProcesses(processes.Processes):

  def __init__(self, folder, kills, num_workers=2):
    super().__init__(num_workers)
    os.mkdir(folder)
    self._with = folder, kills

  def map(self, job_runner, numbers, on_progress):
    return super().map(_Dying(job_runner, *self._with), numbers, on_progress)


class InProcessEngineTest(job_testing.JobTestCase):

  def test_tasks_report_one_by_one_and_leave_no_graphs(self):
    plan = self.plan(episodes_per_task=2)
    job = job_lib.Job(plan, self.new('job'))
    os.mkdir(job.folder)
    job.begin()
    graphs = []
    heard = []
    gc.disable()  # Graphs must be freed without the garbage collector.
    self.addCleanup(gc.enable)
    gc.unfreeze()
    self.addCleanup(gc.freeze)
    with mock.patch.object(tasks, '_SECONDS_PER_REPORT', 0.0):
      for number, (done, outcome) in enumerate(
          processes.InProcessEngine().map(
              tasks.JobRunner(job),
              range(3),
              lambda *found: heard.append(found),
          )
      ):
        self.assertEqual((done, outcome['task']), (number, number))
        self.assertEqual(sorted(job.receipts()), list(range(number + 1)))
        self.assertGreater(len(heard), 1)
        self.assertEqual(heard[-1], (number, tasks.get_progress(outcome)))
        graphs.append(
            sum(isinstance(e, func_graph.FuncGraph) for e in gc.get_objects())
        )
    # The first task leaves objects that the next tasks reuse.
    self.assertEqual(graphs[1:], graphs[:1] * 2)
    self.assertEqual(gc.get_freeze_count(), 0)

  def test_objects_frozen_by_the_program_stay_frozen(self):
    gc.freeze()
    frozen = gc.get_freeze_count()
    self.assertEqual(tasks.JobRunner(None).run(lambda: 1), 1)
    self.assertGreaterEqual(gc.get_freeze_count(), frozen)

  def test_num_workers_is_limited_by_processors_tasks_and_bytes(self):
    for num_processors, num_mib, count in (
        (3, 1000, 3),
        (8, 1000, 4),  # There are four tasks.
        (8, 64, 2),
        (8, 63, 1),
        (8, 0, 1),
    ):
      with mock.patch.object(
          os, 'sched_getaffinity', lambda _, n=num_processors: set(range(n))
      ):
        actual = processes.choose_num_workers(num_mib << 20, 4)
        self.assertEqual(actual, count)
    for count in 0, 2.5:
      message = f'num_workers must be a positive integer, but is {count}'
      with self.assertRaisesRegex(ValueError, message):
        processes.Processes(count)


@pytest.mark.long
class ProcessesTest(job_testing.JobTestCase):

  def test_workers_that_die_are_replaced(self):
    plan = self.plan()
    # As the kernel does it where memory is short, and by something else.
    kills = {
        0: (signal.SIGKILL, 9),
        1: (signal.SIGTERM, 1),
        2: (signal.SIGSEGV, 1),
    }
    notes = self.new('notes')
    message = (
        '1 of 4 tasks have failed; 3 are done.\n  task 0: .* exit code -9. '
        'Memory may have been short. From now on the number of workers is 1.'
    )
    engine = _DyingProcesses(notes, kills)
    self.assert_fails(convert.JobError, message, plan, engine=engine)
    for number, times in enumerate((3, 2, 2, 1)):
      pids = pathlib.Path(notes, str(number)).read_text().split()
      self.assertLen(pids, times)
      self.assertFalse(any(map(_is_running, pids)))
    self.convert(plan)
    undisturbed = self.plan()
    self.convert(undisturbed)
    actual, expected = (
        job_testing.contents_of(each.output.place)
        for each in (plan, undisturbed)
    )
    self.assertEqual(actual, expected)
    self.assertEqual(
        job_testing.rewards_of(job_testing.items_of(plan.output.place)),
        job_testing.ALL_PAIRS,
    )

  def test_worker_is_replaced_after_many_tasks(self):
    plan = self.plan(episodes_per_task=1)
    notes = self.new('notes')
    with mock.patch.object(processes, 'TASKS_PER_WORKER', 3):
      self.convert(plan, engine=_DyingProcesses(notes, {}, num_workers=1))
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


class ProgressDisplayTest(absltest.TestCase):

  def test_progress_of_all_tasks_is_one_log_line(self):
    counts = {'episodes': 2, 'steps': 20, 'num_bytes': 200}
    one = tasks.make_progress({**counts, 'episodes': 1})
    stream = io.StringIO()
    with mock.patch.object(sys, 'stderr', stream):
      display = convert.ProgressDisplay(10, tasks.make_progress(counts, 1))
      display.update(3, one)
      display.update(
          3, tasks.make_progress(counts, 1)
      )  # It replaces the first.
      display.update(4, one)
      display.write('A line.')
      display.close()
    self.assertEqual(
        display.total,
        {'episodes': 5, 'steps': 60, 'num_bytes': 600, 'skipped': 2}
        | {'filtered': 0},
    )
    said, line = stream.getvalue().splitlines()
    self.assertEqual(said, 'A line.')
    self.assertRegex(
        line, r'^7 of 10 episodes, [\d,]+ steps/s, [\d.,]+ MB/s, 2 skipped$'
    )


if __name__ == '__main__':
  absltest.main()
