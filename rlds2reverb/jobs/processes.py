"""Tasks in several processes on this machine.

    this process -- forker --+-- worker
                             +-- worker

The forker hands tasks on to workers, and forks another worker where there is
none, or one has died or done its share. Forking takes no time, as importing
TensorFlow does, but a process in which TensorFlow has started its threads
cannot be forked. So the forker has only imported it. A program forks the forker
from itself before it does anything else; otherwise it comes from a process that
has imported TensorFlow once.

The pools of the standard library do not survive the death of a worker: that of
`multiprocessing` waits for its task for ever, and that of `concurrent.futures`
gives up all the others. They do not show the progress of a task, either.

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
from typing import Any, Dict

from rlds2reverb.jobs import engines
from rlds2reverb.jobs import quiet
from rlds2reverb.jobs import tasks as tasks_lib

# TensorFlow keeps a third of a MiB of every task, so a process does no more.
TASKS_PER_WORKER = 64
# From linux/prctl.h.
_PR_SET_PDEATHSIG = 1
# From malloc.h.
_M_MMAP_THRESHOLD = -3


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
      fork: whether to fork from this process, now. That takes no time, and may
        only be done before TensorFlow's threads are started.

    Raises:
      ValueError: if `num_workers` is not positive.
    """
    if num_workers < 1:
      raise ValueError(f'num_workers must be positive, but is {num_workers}.')
    self.num_workers = num_workers
    self._forker: Any = None
    if fork:
      self._start('fork')

  def map(self, attempt, numbers, report):
    if self._forker is None:
      self._start('forkserver')
    waiting, num_busy = collections.deque(numbers), 0
    while waiting or num_busy:
      try:
        while waiting and num_busy < self.num_workers:
          self._pipe.send((attempt, waiting.popleft()))
          num_busy += 1
        number, is_done, content = self._pipe.recv()
      except (EOFError, OSError) as e:
        raise tasks_lib.TaskError(
            'The process that starts the workers has died. Start the same'
            ' command again.'
        ) from e
      if not is_done:
        report(number, content)
        continue
      num_busy -= 1
      is_death = isinstance(content, int)
      yield number, self._death(content) if is_death else content

  def stop(self):
    if self._forker is None:
      return
    self._forker.kill()
    with contextlib.suppress(EOFError, OSError):
      while True:  # The workers have the other end of the pipe, too.
        self._pipe.recv_bytes()
    self._forker.join()
    self._pipe.close()
    self._forker = None

  def _start(self, method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    context.set_forkserver_preload([tasks_lib.__name__])
    self._pipe, theirs = context.Pipe()
    self._forker = context.Process(
        target=_fork_workers, args=(theirs, TASKS_PER_WORKER), daemon=True
    )
    self._forker.start()
    theirs.close()

  def _death(self, code: int) -> engines.WorkerDiedError:
    message = f'The process that did the task has died, with exit code {code}.'
    if code == -signal.SIGKILL:
      self.num_workers = max(self.num_workers - 1, 1)
      message += (
          ' Memory may have been short. From now on the number of workers is'
          f' {self.num_workers}.'
      )
    return engines.WorkerDiedError(message)


def _fork_workers(pipe: connections.Connection, num_tasks: int) -> None:
  """Has the tasks done that come through a pipe, until it is killed."""
  _end_with_parent()
  _keep_memory_flat()
  quiet.quiet_logs()
  # The workers by their pipes: their ids, how many tasks they have got, and the
  # numbers of those that they are doing.
  pids: Dict[Any, int] = {}
  started: Dict[Any, int] = collections.Counter()
  busy: Dict[Any, int] = {}
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
          with contextlib.suppress(OSError):  # It has died, as is seen then.
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


def _fork_worker(pids: Dict[Any, int], num_tasks: int) -> Any:
  """Forks a worker, and adds its id; returns its pipe."""
  pipe, theirs = multiprocessing.Pipe()
  pids[pipe] = os.fork()
  if not pids[pipe]:
    pipe.close()
    _work(theirs, num_tasks)
  theirs.close()
  return pipe


def _work(pipe: connections.Connection, num_tasks: int) -> None:
  """Does the tasks that come through a pipe, and ends."""
  _end_with_parent()
  # If memory is short, Linux kills this worker first, and the job can report
  # it.
  with contextlib.suppress(OSError):
    pathlib.Path('/proc/self/oom_score_adj').write_text('1000')
  try:
    for _ in range(num_tasks):
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
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 256 << 10)


def _end_with_parent() -> None:
  """Lets this process be killed when that ends, but not by Ctrl-C."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  signal.signal(signal.SIGTERM, signal.SIG_DFL)
  ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
