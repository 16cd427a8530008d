"""Runners, which do the tasks of a plan, and the runner for this machine.

A task that fails does not keep the others from being done. One whose process
has died, or whose server is gone, is tried again.
"""

import abc
import collections
import functools
import os
import time
from typing import Any, Dict, Mapping, Sequence, Tuple

from rlds2reverb.jobs import memory
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import receipts as receipts_lib
from rlds2reverb.jobs import tasks as tasks_lib
from rlds2reverb.jobs import workers as workers_lib

_SECONDS_TO_WAIT = 1.0
# How often the process that does a task may die before the task has failed.
_MAX_DEATHS = 3
# The least number of bytes for each of several workers: about as much as is
# converted while they start (see benchmarks/jobs).
_BYTES_PER_WORKER = 128 << 20


class Listener:
  """Hears how the tasks go on; the methods are called in this process."""

  def on_progress(self, number: int, progress: tasks_lib.Progress) -> None:
    """A task has made progress."""

  def on_done(self, number: int, receipt: receipts_lib.Receipt) -> None:
    """A task is done."""

  def on_retry(self, number: int, message: str) -> None:
    """A task failed because a server or its process was gone; it is retried."""

  def on_idle(self) -> None:
    """Nothing has happened for a while."""


class Runner(abc.ABC):
  """Does the tasks of a plan, and makes the whole output from their outputs."""

  @abc.abstractmethod
  def run_tasks(
      self,
      plan: plan_lib.Plan,
      folder: str,
      numbers: Sequence[int],
      *,
      listener: Listener,
      max_skipped: int,
  ) -> Dict[int, str]:
    """Does tasks; one that fails does not keep the others from being done.

    Args:
      plan: the plan.
      folder: the folder of the job.
      numbers: which of its tasks to do.
      listener: hears how they go on. An exception from it ends all work.
      max_skipped: see `tasks.run_task`.

    Returns:
      The messages of the tasks that have failed, by their numbers.

    Raises:
      InvalidEpisodesError: if a task has more than `max_skipped` invalid
        episodes. If that is 0, the task fails instead.
      KeyboardInterrupt: if the user interrupts. All workers have ended then.
    """

  def finish(
      self,
      plan: plan_lib.Plan,
      folder: str,
      spec: Any,
      receipts: Mapping[int, receipts_lib.Receipt],
  ) -> None:
    """Makes the whole output from those of the tasks; see `Output.finish`."""
    tasks_lib.output_of(plan).finish(folder, spec, receipts)


def choose_num_workers(plan: plan_lib.Plan) -> Tuple[int, str]:
  """Returns the fastest number of workers for a job here, and why."""
  num_bytes = sum(data.num_bytes for data in plan.data_sets)
  return min(
      (len(os.sched_getaffinity(0)), 'one for each processor'),
      (len(plan.tasks), 'one for each task'),
      (
          max(num_bytes // _BYTES_PER_WORKER, 1),
          'another one would take longer to start than it saves, unless each'
          f' reads {_BYTES_PER_WORKER / 1e6:,.0f} MB of files or more',
      ),
  )


class LocalRunner(Runner):
  """Does tasks on this machine."""

  def __init__(self, num_workers: int = 1, patience: float = 60.0):
    """Creates the runner.

    Args:
      num_workers: how many tasks are done at once, each in its process.
      patience: how many seconds a server may be gone before a task that needs
        it fails.

    Raises:
      ValueError: if `num_workers` is not positive.
    """
    if num_workers < 1:
      raise ValueError(f'num_workers must be positive, but is {num_workers}.')
    self._num_workers = num_workers
    self._patience = patience

  def workers(
      self, plan: plan_lib.Plan, folder: str, count: int, max_skipped: int
  ) -> workers_lib.Workers:
    """Returns the workers for `count` tasks."""
    run = functools.partial(
        tasks_lib.run_task, plan, folder=folder, max_skipped=max_skipped
    )
    num_workers = min(count, self._num_workers)
    if (
        num_workers > 1
        or count > workers_lib.TASKS_PER_PROCESS
        or memory.limit()
    ):
      return workers_lib.Processes(run, num_workers)
    return workers_lib.Here(run)  # This process needs no start.

  def run_tasks(self, plan, folder, numbers, *, listener, max_skipped=None):
    workers = self.workers(plan, folder, len(numbers), max_skipped)
    waiting = collections.deque(numbers)
    failures: Dict[int, str] = {}
    gone_since: Dict[int, float] = {}
    deaths: Dict[int, int] = collections.Counter()
    try:
      while waiting or workers.num_busy:
        while waiting and workers.num_free:
          workers.start(waiting.popleft(), listener.on_progress)
        for kind, number, content in workers.events():
          if kind == workers_lib.PROGRESS:
            gone_since.pop(number, None)
            listener.on_progress(number, content)
          elif kind == workers_lib.DONE:
            listener.on_done(number, content)
          elif kind == workers_lib.DIED:
            deaths[number] += 1
            if deaths[number] < _MAX_DEATHS:
              listener.on_retry(number, content)
              waiting.append(number)
            else:
              failures[number] = f'{content} It was tried {_MAX_DEATHS} times.'
          elif max_skipped and isinstance(
              content, tasks_lib.InvalidEpisodesError
          ):
            raise content
          elif isinstance(content, ConnectionError) and (
              time.monotonic() - gone_since.setdefault(number, time.monotonic())
              < self._patience
          ):
            listener.on_retry(number, str(content))
            time.sleep(_SECONDS_TO_WAIT)
            waiting.append(number)
          else:
            failures[number] = str(content)
        listener.on_idle()
    finally:
      workers.stop()
    return failures
