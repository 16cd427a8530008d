"""Tasks in several processes on this machine.

    this process -- helper --+-- worker
                             +-- worker

Workers are forked, so that they need not import TensorFlow, which takes longer
than many a task. A process in which TensorFlow has started its threads cannot
be forked, so the helper has only imported it. A program forks its helper from
itself before it does anything else; otherwise the helper is a new process.

If a process is killed, those below it are, too, at that moment.
"""

import collections
import contextlib
import ctypes
import multiprocessing
from multiprocessing import connection as connections
import os
import pathlib
import signal
from typing import Any, Dict, List, Optional, Tuple

from rlds2reverb.jobs import engines
from rlds2reverb.jobs import memory
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import quiet
from rlds2reverb.jobs import tasks as tasks_lib

# TensorFlow keeps a third of a MiB of every task, so a worker does no more.
TASKS_PER_PROCESS = 64
# The least number of bytes for each of several workers: about as much as is
# converted while they build their first graphs.
_BYTES_PER_WORKER = 32 << 20
# From linux/prctl.h.
_PR_SET_PDEATHSIG = 1


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


class Helper:
  """A process that forks workers."""

  def __init__(self, fork: bool = False):
    """Starts the process.

    Args:
      fork: whether to fork it from this one, which takes no time, and may only
        be done before TensorFlow's threads are started.
    """
    context: Any = multiprocessing.get_context('fork' if fork else 'spawn')
    self.pipe, theirs = context.Pipe()
    self._process = context.Process(
        target=_help, args=(theirs, os.getpid()), daemon=True
    )
    # It and its workers inherit this, and so never hear of Ctrl-C.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
      self._process.start()
    finally:
      signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    theirs.close()

  def stop(self) -> None:
    """Kills the process and its workers; returns when all have ended."""
    self._process.kill()
    with contextlib.suppress(EOFError, OSError):
      while True:  # Every worker has the other end of the pipe, too.
        self.pipe.recv_bytes()
    self._process.join()
    self.pipe.close()


class Processes(engines.Engine):
  """Does several tasks at once, each in its process.

  A worker that dies is replaced. One that was killed (exit code -9), as Linux
  does when memory runs out, is not: from then on there are fewer workers.
  """

  def __init__(self, num_workers: int, helper: Optional[Helper] = None):
    """Creates the engine.

    Args:
      num_workers: how many tasks are done at once.
      helper: the helper of this program, if it has one.

    Raises:
      ValueError: if `num_workers` is not positive.
    """
    if num_workers < 1:
      raise ValueError(f'num_workers must be positive, but is {num_workers}.')
    self._num_workers = num_workers
    self._helper = helper

  def map(self, attempt, numbers, report):
    self._helper = self._helper or Helper()
    left = list(numbers)
    job = attempt, left, self._num_workers, TASKS_PER_PROCESS
    try:
      self._helper.pipe.send(job)
      for _ in left:
        number, is_done, content = self._helper.pipe.recv()
        while not is_done:
          report(number, content)
          number, is_done, content = self._helper.pipe.recv()
        yield number, content
    except (EOFError, BrokenPipeError, ConnectionResetError) as e:
      raise tasks_lib.TaskError(
          'The process that starts the workers has died. Start the same command'
          ' again.'
      ) from e

  def stop(self):
    if self._helper:
      self._helper.stop()
      self._helper = None


class _Worker:
  """A process that does one task after the other; it is of the helper."""

  def __init__(self, attempt: Any):
    self.pipe, theirs = multiprocessing.Pipe()
    self.number = -1
    self.num_tasks = 0
    helper = os.getpid()
    self._pid = os.fork()
    if not self._pid:
      try:
        _work(theirs, attempt, helper)
      finally:
        os._exit(1)  # pylint: disable=protected-access
    theirs.close()

  def start(self, number: int) -> None:
    self.number = number
    self.num_tasks += 1
    with contextlib.suppress(OSError):  # It has died, which `recv` finds.
      self.pipe.send(number)

  def end(self) -> int:
    """Lets the process end, or finds that it has; returns its exit code."""
    with contextlib.suppress(OSError):
      self.pipe.send(None)
    self.pipe.close()
    return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])


def _help(pipe: connections.Connection, parent: int) -> None:
  """Has the tasks done that come through a pipe, until it is killed."""
  _end_with(parent)
  memory.keep_flat()
  quiet.quiet_logs()
  num_workers = None
  while True:
    attempt, numbers, most_workers, most_tasks = pipe.recv()
    num_workers = num_workers or most_workers
    waiting = collections.deque(numbers)
    free: List[_Worker] = []
    busy: Dict[Any, _Worker] = {}  # By their pipes.
    while waiting or busy:
      while waiting and len(busy) < num_workers:
        worker = free.pop() if free else _Worker(attempt)
        worker.start(waiting.popleft())
        busy[worker.pipe] = worker
      ready: List[Any] = connections.wait(list(busy))
      for connection in ready:
        worker = busy[connection]
        try:
          is_done, content = connection.recv()
        except (EOFError, OSError):
          code = worker.end()
          num_workers = max(num_workers - (code == -signal.SIGKILL), 1)
          is_done, content = True, _death(code, num_workers)
          worker.num_tasks = most_tasks
        else:
          if is_done and worker.num_tasks == most_tasks:
            worker.end()
        if is_done:
          del busy[connection]
          if worker.num_tasks < most_tasks:
            free.append(worker)
        pipe.send((worker.number, is_done, content))
    for worker in free:  # They have the attempts of this job alone.
      worker.end()


def _work(pipe: connections.Connection, attempt: Any, helper: int) -> None:
  """Does the tasks whose numbers come through a pipe, until None comes."""
  _end_with(helper)
  # If memory is short, Linux kills this worker first, and the job can report
  # it.
  with contextlib.suppress(OSError):
    pathlib.Path('/proc/self/oom_score_adj').write_text('1000')
  report = lambda progress: pipe.send((False, progress))
  while (number := pipe.recv()) is not None:
    # C++ messages about a lack of memory mean nothing to a user.
    with quiet.quiet_stderr(noise='\0'):
      outcome = attempt(number, report)
    pipe.send((True, outcome))


def _end_with(parent: int) -> None:
  """Lets this process be killed when the one that started it ends."""
  signal.signal(signal.SIGTERM, signal.SIG_DFL)
  ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
  if os.getppid() != parent:  # It has ended already.
    os._exit(1)  # pylint: disable=protected-access


def _death(code: int, num_workers: int) -> engines.WorkerDiedError:
  message = f'The process that did the task has died, with exit code {code}.'
  if code == -signal.SIGKILL:
    message += (
        ' Memory may have been short. From now on the number of workers is'
        f' {num_workers}.'
    )
  return engines.WorkerDiedError(message)
