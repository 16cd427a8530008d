"""Engines, which do the tasks of a job, and the one of this process."""

import abc
import functools
import os
from typing import Any, Callable, Iterable, Iterator, Tuple

# The least number of bytes for each of several workers: about as much as is
# converted while they build their first graphs.
_BYTES_PER_WORKER = 32 << 20


class WorkerDiedError(RuntimeError):
  """The outcome of a task whose process has died."""


class Engine(abc.ABC):
  """Does tasks, anywhere; they are functions of their number."""

  @abc.abstractmethod
  def map(
      self,
      attempt: Any,
      numbers: Iterable[int],
      report: Callable[[int, Any], None],
  ) -> Iterator[Tuple[int, Any]]:
    """Yields the outcomes of tasks, as they come.

    Args:
      attempt: a `tasks.Attempt`, which may be pickled.
      numbers: the numbers of the tasks.
      report: may be called in this process with the number of a task and its
        `Progress`. An error that it raises ends all work.

    Yields:
      The number of a task, and what `attempt` has returned for it; or a
      `WorkerDiedError`, after which a task may be tried again.
    """

  def join(self, attempt: Any) -> None:
    """Has the parts joined, when all tasks are done."""
    attempt.join()

  def stop(self) -> None:
    """Ends what is still at work, after a `map` that was not exhausted."""


class InProcessEngine(Engine):
  """Does one task after the other, in this process."""

  def map(self, attempt, numbers, report):
    for number in numbers:
      yield number, attempt(number, functools.partial(report, number))


def choose_num_workers(num_bytes: int, num_tasks: int) -> int:
  """Returns the fastest number of workers for a job on this machine.

  That is at most one for each processor and each task, and not so many that
  another one would take longer to start than it saves.

  Args:
    num_bytes: how many bytes of files the job reads.
    num_tasks: how many tasks it has.
  """
  worth = max(num_bytes // _BYTES_PER_WORKER, 1)
  return min(len(os.sched_getaffinity(0)), num_tasks, worth)
