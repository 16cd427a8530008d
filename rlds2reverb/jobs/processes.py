"""Tasks in several processes on this machine.

    this process --+-- nanny -- worker
                   +-- nanny -- worker

A nanny hands tasks on to its worker, and forks another one when that has died
or done its share. Forking takes no time, as importing TensorFlow does, but a
process in which TensorFlow has started its threads cannot be forked. So a nanny
has only imported it. A program forks its nannies from itself before it does
anything else; otherwise they come from a process that has imported it once.

If a process is killed, those below it are, too, at that moment.
"""

import collections
import contextlib
import ctypes
import gc
import multiprocessing
from multiprocessing import connection as connections
import os
import pathlib
import signal
from typing import Any, Dict

from rlds2reverb.jobs import engines
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import quiet
from rlds2reverb.jobs import tasks as tasks_lib

# TensorFlow keeps a third of a MiB of every task, so a worker does no more.
_TASKS_PER_WORKER = 64
# The least number of bytes for each of several workers: about as much as is
# converted while they build their first graphs.
_BYTES_PER_WORKER = 32 << 20
# From linux/prctl.h.
_PR_SET_PDEATHSIG = 1
# An option of `mallopt` of the C library, and its value here.
_M_MMAP_THRESHOLD = -3
_LEAST_MAPPED = 1 << 18


def choose_num_workers(plan: plan_lib.Plan) -> int:
  """Returns the fastest number of workers for a job here.

  That is at most one for each processor and each task, and not so many that
  another one would take longer to start than it saves.
  """
  num_bytes = sum(data.num_bytes for data in plan.data_sets)
  worth = max(num_bytes // _BYTES_PER_WORKER, 1)
  return min(len(os.sched_getaffinity(0)), len(plan.tasks), worth)


class Processes(engines.Engine):
  """Does several tasks at once, each in its process.

  A worker that dies is replaced. One that was killed (exit code -9), as Linux
  does when memory runs out, is not: from then on there are fewer workers.

  Attributes:
    num_workers: how many tasks are done at once.
  """

  def __init__(self, num_workers: int, fork: bool = False):
    """Creates the engine.

    Args:
      num_workers: how many tasks are done at once.
      fork: whether to fork the nannies from this process, now. That takes no
        time, and may only be done before TensorFlow's threads are started.

    Raises:
      ValueError: if `num_workers` is not positive.
    """
    if num_workers < 1:
      raise ValueError(f'num_workers must be positive, but is {num_workers}.')
    self.num_workers = num_workers
    self._nannies: Dict[Any, Any] = {}  # By their pipes.
    if fork:
      self._start('fork')

  def map(self, attempt, numbers, report):
    self._start('forkserver')
    waiting = collections.deque(numbers)
    free = list(self._nannies)[: self.num_workers]
    busy: Dict[Any, int] = {}
    try:
      while waiting or busy:
        while waiting and free:
          pipe = free.pop()
          busy[pipe] = waiting.popleft()
          pipe.send((attempt, busy[pipe]))
        for pipe in connections.wait(list(busy)):
          is_done, content = pipe.recv()
          if not is_done:
            report(busy[pipe], content)
            continue
          number = busy.pop(pipe)
          if isinstance(content, int):
            content = self._death(content)
          if len(free) + len(busy) < self.num_workers:
            free.append(pipe)
          yield number, content
    except (EOFError, BrokenPipeError, ConnectionResetError) as e:
      raise tasks_lib.TaskError(
          'The process that starts the workers has died. Start the same command'
          ' again.'
      ) from e

  def stop(self):
    for process in self._nannies.values():
      process.kill()
    for pipe, process in self._nannies.items():
      with contextlib.suppress(EOFError, OSError):
        while True:  # The worker has the other end of the pipe, too.
          pipe.recv_bytes()
      process.join()
      pipe.close()
    self._nannies = {}

  def _start(self, method: str) -> None:
    """Starts the nannies that are not there."""
    context: Any = multiprocessing.get_context(method)
    context.set_forkserver_preload([tasks_lib.__name__])
    while len(self._nannies) < self.num_workers:
      pipe, theirs = context.Pipe()
      process = context.Process(
          target=_nanny, args=(theirs, _TASKS_PER_WORKER), daemon=True
      )
      process.start()
      theirs.close()
      self._nannies[pipe] = process

  def _death(self, code: int) -> engines.WorkerDiedError:
    message = f'The process that did the task has died, with exit code {code}.'
    if code == -signal.SIGKILL:
      self.num_workers = max(self.num_workers - 1, 1)
      message += (
          ' Memory may have been short. From now on the number of workers is'
          f' {self.num_workers}.'
      )
    return engines.WorkerDiedError(message)


def _nanny(pipe: connections.Connection, num_tasks: int) -> None:
  """Has the tasks done that come through a pipe, until it is killed."""
  _end_with_parent()
  _keep_memory_flat()
  quiet.quiet_logs()
  left = 0  # How many more tasks the worker does.
  with contextlib.suppress(EOFError, OSError):  # The other end has died.
    while True:
      task = pipe.recv()
      if not left:
        left = num_tasks
        worker, theirs = multiprocessing.Pipe()
        pid = os.fork()
        if not pid:
          worker.close()
          _work(theirs)
        theirs.close()
      left -= 1
      try:
        worker.send(task)
        is_done = False
        while not is_done:
          is_done, content = worker.recv()
          pipe.send((is_done, content))
      except (EOFError, OSError):
        left = 0
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        pipe.send((True, code))
      else:
        if not left:
          worker.close()
          os.waitpid(pid, 0)


def _work(pipe: connections.Connection) -> None:
  """Does the tasks that come through a pipe, and ends with it."""
  _end_with_parent()
  # If memory is short, Linux kills this worker first, and the job can report
  # it.
  with contextlib.suppress(OSError):
    pathlib.Path('/proc/self/oom_score_adj').write_text('1000')
  try:
    while True:
      attempt, number = pipe.recv()
      outcome = attempt(number, lambda progress: pipe.send((False, progress)))
      pipe.send((True, outcome))
  finally:
    os._exit(1)  # pylint: disable=protected-access


def _keep_memory_flat() -> None:
  """Lets this process give large blocks of memory back when they are free.

  Otherwise the C library keeps them, for blocks of other sizes, and a process
  grows with the number of its tasks.
  """
  with contextlib.suppress(AttributeError):  # Another C library has none.
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LEAST_MAPPED)
  # Objects that exist now live on, so later garbage collections skip them.
  gc.collect()
  gc.freeze()


def _end_with_parent() -> None:
  """Lets this process be killed when that ends, but not by Ctrl-C."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  signal.signal(signal.SIGTERM, signal.SIG_DFL)
  ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
