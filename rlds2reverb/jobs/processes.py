"""Engines that run the tasks of a job on this machine.

`InProcessEngine` runs them in this process, and `Processes` in several:

    this process -- forker --+-- worker
                             +-- worker

The forker passes tasks to workers, and forks a worker if one is missing, has
died, or has run its maximum number of tasks. Forking is fast, as it does not
import TensorFlow again, but a process in which TensorFlow has started threads
cannot be forked. So the forker only imports TensorFlow. A program forks the
forker before it does anything else. Otherwise the forker starts from the fork
server of `multiprocessing`, which imports TensorFlow once.

The pools of the standard library do not survive the death of a worker:
`multiprocessing.Pool` blocks indefinitely, and `concurrent.futures` fails all
other tasks. They do not report the progress of a task, either.

If a process is killed, its child processes are killed at the same time.
"""

import abc
import collections
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
import contextlib
import ctypes
import functools
import multiprocessing
from multiprocessing import connection as connections
import os
import pathlib
import signal
from typing import Any

from rlds2reverb.episodes import checks
from rlds2reverb.jobs import tasks as tasks_lib
from rlds2reverb.jobs import usage

# TensorFlow leaks a third of a MiB per task, so a process runs no more tasks.
TASKS_PER_WORKER = 64
# Minimum bytes per worker: about as much as is converted while a worker builds
# its first graphs.
_BYTES_PER_WORKER = 32 << 20
# From linux/prctl.h.
_PR_SET_PDEATHSIG = 1
# From malloc.h.
_M_MMAP_THRESHOLD = -3


class WorkerDiedError(RuntimeError):
  """The outcome of a task whose process has died."""


class Engine(abc.ABC):
  """Runs tasks, which are functions of their number, on any machine."""

  @abc.abstractmethod
  def map(
      self,
      job_runner: tasks_lib.JobRunner,
      numbers: Iterable[int],
      on_progress: Callable[[int, tasks_lib.Progress], None],
  ) -> Iterator[tuple[int, Any]]:
    """Yields the outcomes of tasks in the order in which they finish.

    Args:
      job_runner: runs a task. It can be pickled.
      numbers: the numbers of the tasks.
      on_progress: may be called in this process with the number of a task and
        its progress. If it raises an error, all tasks are stopped.

    Yields:
      The number of a task and the result of `job_runner`; or a
      `WorkerDiedError`, after which the task may be retried.
    """

  def join(self, job_runner: tasks_lib.JobRunner) -> None:
    """Joins the outputs of all tasks."""
    job_runner.join()

  def stop(self) -> None:  # noqa: B027  Engines without workers need none.
    """Stops unfinished tasks, after a `map` that was not exhausted."""


class InProcessEngine(Engine):
  """Runs one task after the other in this process."""

  def map(self, job_runner, numbers, on_progress):
    for number in numbers:
      yield number, job_runner(number, functools.partial(on_progress, number))


def choose_num_workers(num_bytes: int, num_tasks: int) -> int:
  """Returns the fastest number of workers for a job on this machine.

  It is at most one per processor and per task. Small jobs get fewer workers, as
  starting a worker would take longer than it saves.

  Args:
    num_bytes: the bytes of files that the job reads.
    num_tasks: the number of tasks.
  """
  useful = max(num_bytes // _BYTES_PER_WORKER, 1)
  return min(len(os.sched_getaffinity(0)), num_tasks, useful)


class Processes(Engine):
  """Runs several tasks concurrently, each in a worker process.

  A worker that dies is replaced, except if it was killed (exit code -9), as
  Linux does when memory runs out. Then the number of workers is reduced.

  Attributes:
    num_workers: the number of concurrent tasks.
  """

  def __init__(self, num_workers: int, fork: bool = False):
    """Creates the engine.

    Args:
      num_workers: the number of concurrent tasks.
      fork: whether to fork this process immediately. That is fast, and only
        allowed before TensorFlow has started threads.

    Raises:
      RuntimeError: if the calling script has no `__main__` guard.
      ValueError: if `num_workers` is not a positive integer.
    """
    checks.check_main_guard()
    checks.check_positive('num_workers', num_workers)
    self.num_workers = num_workers
    self._forker: Any = None
    self._is_forked = fork
    if fork:
      self._start('fork')

  def map(self, job_runner, numbers, on_progress):
    if self._forker is None:
      self._start('forkserver')
    waiting, num_busy, has_received = collections.deque(numbers), 0, False
    while waiting or num_busy:
      try:
        while waiting and num_busy < self.num_workers:
          self._pipe.send((job_runner, waiting.popleft()))
          num_busy += 1
        number, is_done, content = self._pipe.recv()
        has_received = True
      except (EOFError, OSError) as e:
        problem = 'The process that starts the workers has died.'
        if has_received or self._is_forked:
          problem += ' Start the same command again.'
        else:  # The fork server has imported the script.
          problem = checks.explain_main_guard(problem)
        raise tasks_lib.TaskError(problem) from e
      if not is_done:
        on_progress(number, content)
        continue
      num_busy -= 1
      is_death = isinstance(content, int)
      yield number, self._make_death_error(content) if is_death else content

  def stop(self):
    if self._forker is None:
      return
    self._forker.kill()
    with contextlib.suppress(EOFError, OSError):
      while True:  # Until the workers have closed their ends of the pipe.
        self._pipe.recv_bytes()
    self._forker.join()
    self._pipe.close()
    self._forker = None

  def _start(self, method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    context.set_forkserver_preload([tasks_lib.__name__])
    self._pipe, child_end = context.Pipe()
    self._forker = context.Process(
        target=_fork_workers, args=(child_end, TASKS_PER_WORKER), daemon=True
    )
    self._forker.start()
    child_end.close()

  def _make_death_error(self, code: int) -> WorkerDiedError:
    message = f'The worker process has died, with exit code {code}.'
    if code == -signal.SIGKILL:
      self.num_workers = max(self.num_workers - 1, 1)
      message += (
          ' Memory may have been short. From now on the number of workers is'
          f' {self.num_workers}.'
      )
    return WorkerDiedError(message)


def _fork_workers(pipe: connections.Connection, num_tasks: int) -> None:
  """Passes tasks from a pipe to workers, until this process is killed."""
  _die_with_parent()
  _return_free_memory()
  usage.quiet_logs()
  # By the pipes of workers: process ids, numbers of started tasks, and current
  # tasks.
  pids: dict[Any, int] = {}
  started: dict[Any, int] = collections.Counter()
  busy: dict[Any, int] = {}
  ready: Any
  with contextlib.suppress(EOFError, OSError):  # The job has died.
    while True:
      for ready in connections.wait([pipe, *pids]):
        if ready is pipe:
          task = pipe.recv()
          free = [w for w in pids if w not in busy and started[w] < num_tasks]
          worker = free[0] if free else _fork_worker(pids, num_tasks)
          started[worker] += 1
          _, busy[worker] = task
          with contextlib.suppress(OSError):  # Its death is handled below.
            worker.send(task)
          continue
        try:
          is_done, content = ready.recv()
        except (EOFError, OSError):
          ready.close()
          _, status = os.waitpid(pids.pop(ready), 0)
          is_done, content = True, os.waitstatus_to_exitcode(status)
        if ready in busy:
          pipe.send((busy[ready], is_done, content))
          if is_done:
            del busy[ready]


def _fork_worker(pids: dict[Any, int], num_tasks: int) -> Any:
  """Forks a worker and stores its id; returns its pipe."""
  pipe, child_end = multiprocessing.Pipe()
  pids[pipe] = os.fork()
  if not pids[pipe]:
    pipe.close()
    _work(child_end, num_tasks)
  child_end.close()
  return pipe


def _work(pipe: connections.Connection, num_tasks: int) -> None:
  """Runs tasks from a pipe, and exits."""
  _die_with_parent()
  # If memory is short, Linux kills this worker first, and the job reports it.
  with contextlib.suppress(OSError):
    pathlib.Path('/proc/self/oom_score_adj').write_text('1000')
  try:
    for _ in range(num_tasks):
      runner, number = pipe.recv()
      outcome = runner(number, lambda progress: pipe.send((False, progress)))
      pipe.send((True, outcome))
  finally:
    os._exit(1)


def _return_free_memory() -> None:
  """Makes the C library return free large blocks to the system.

  By default it keeps them, and fragmentation makes a process grow with the
  number of its tasks.
  """
  with contextlib.suppress(AttributeError):  # Not in other C libraries.
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 256 << 10)


def _die_with_parent() -> None:
  """Kills this process when its parent dies, and ignores Ctrl-C."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  signal.signal(signal.SIGTERM, signal.SIG_DFL)
  ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
