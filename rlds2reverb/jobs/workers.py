"""Workers, which do tasks: in this process, or in processes of their own.

A worker gets the number of a task when it has done the last. A worker that dies
is replaced. One that was killed (exit code -9), as Linux does when memory runs
out, is not: from then on there are fewer workers. A worker whose parent has
died ends, so that it does not go on writing.
"""

import abc
import contextlib
import functools
import gc
import multiprocessing
from multiprocessing import connection
from multiprocessing import forkserver
import os
import pathlib
import signal
import threading
from typing import (
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    Tuple,
)

from rlds2reverb.episodes import private
from rlds2reverb.jobs import memory
from rlds2reverb.jobs import quiet
from rlds2reverb.jobs import receipts as receipts_lib
from rlds2reverb.jobs import tasks as tasks_lib
from rlds2reverb.replay.server import insert as insert_lib

# What a worker reports of a task: its `Progress`, its receipt, its error, or
# how its process died.
PROGRESS, DONE, FAILED, DIED = 'progress', 'done', 'failed', 'died'
Event = Tuple[str, int, Any]
OnProgress = Callable[[int, tasks_lib.Progress], None]
# `tasks.run_task` with its arguments for a job, and without a task.
Run = Callable[..., receipts_lib.Receipt]

# Errors after which a task is tried again. A server may come back, and a worker
# of a killed job may need a moment to end.
_GONE = (ConnectionError, BlockingIOError, insert_lib.InsertError)
_SECONDS_TO_WAIT = 1.0
# The number of tasks that a process does. TensorFlow keeps a third of a MiB of
# every task, so memory would grow with the number of tasks.
TASKS_PER_PROCESS = 64


class Workers(abc.ABC):
  """Workers that do one task each at a time.

  Attributes:
    num_free: how many wait for a task.
    num_busy: how many are doing a task, or have events to report.
  """

  num_free: int
  num_busy: int

  @abc.abstractmethod
  def start(self, number: int, on_progress: OnProgress) -> None:
    """Starts a task."""

  @abc.abstractmethod
  def events(self) -> List[Event]:
    """Returns new events; waits a moment if there are none."""

  def stop(self) -> None:
    """Ends all workers."""


class Here(Workers):
  """Does tasks in this process, which starts at once."""

  def __init__(self, run: Run):
    self._run = run
    self._events: List[Event] = []

  @property
  def num_free(self) -> int:  # type: ignore[override]
    return 1 - self.num_busy

  @property
  def num_busy(self) -> int:  # type: ignore[override]
    return len(self._events)

  def start(self, number, on_progress):
    report = functools.partial(on_progress, number)
    self._events.append(do(self._run, number, report))

  def events(self):
    events, self._events = self._events, []
    return events


class Processes(Workers):
  """Does tasks in processes of their own.

  They are forked from one that has imported TensorFlow and nothing else, so
  that a worker need not import it itself.
  """

  def __init__(self, run: Run, count: int):
    self._run = run
    self._free: List[connection.Connection] = []
    # The number of the task of each busy worker, by its connection.
    self._busy: Dict[connection.Connection, int] = {}
    self._processes: Dict[connection.Connection, Any] = {}
    self._num_done: Dict[connection.Connection, int] = {}
    self._add(count)

  @property
  def num_free(self) -> int:  # type: ignore[override]
    return len(self._free)

  @property
  def num_busy(self) -> int:  # type: ignore[override]
    return len(self._busy)

  def start(self, number, on_progress):
    worker = self._free.pop()
    self._busy[worker] = number
    try:
      worker.send(number)
    except OSError:
      pass  # The worker has died, which `events` will find.

  def events(self):
    events: List[Event] = []
    ready: List[Any] = connection.wait(list(self._busy), _SECONDS_TO_WAIT)
    for worker in ready:
      number = self._busy[worker]
      try:
        event = worker.recv()
      except (EOFError, OSError):
        event = DIED, number, self._bury(worker)
      else:
        if event[0] != PROGRESS:
          del self._busy[worker]
          self._free.append(worker)
          self._retire_if_old(worker)
      events.append(event)
    return events

  def stop(self):
    for process in self._processes.values():
      # The output that it was writing never became visible.
      process.kill()
    for worker, process in self._processes.items():
      process.join()
      worker.close()

  def _add(self, count: int) -> None:
    """Starts more workers."""
    with _starting() as context:
      for _ in range(count):
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_work, args=(theirs, self._run), daemon=True
        )
        process.start()
        theirs.close()
        self._processes[ours] = process
        self._num_done[ours] = 0
        self._free.append(ours)

  def _retire_if_old(self, worker: connection.Connection) -> None:
    """Replaces a free worker that has done enough tasks."""
    self._num_done[worker] += 1
    if self._num_done[worker] < TASKS_PER_PROCESS:
      return
    self._free.remove(worker)
    worker.close()  # The worker ends when its pipe closes.
    self._processes.pop(worker).join()
    self._add(1)

  def _bury(self, worker: connection.Connection) -> str:
    """Removes a dead worker; returns a message about its death."""
    process = self._processes.pop(worker)
    process.join(_SECONDS_TO_WAIT)
    worker.close()
    del self._busy[worker]
    message = (
        'The process that did the task has died, with exit code'
        f' {process.exitcode}.'
    )
    limit = memory.limit()
    was_killed = process.exitcode == -signal.SIGKILL
    if limit:
      message += (
          f' Memory is limited to {limit / 1e6:,.0f} MB and may have been'
          ' short: allow more.'
      )
    elif was_killed:
      message += ' Memory may have been short.'
    if not was_killed or not self._processes:
      self._add(1)
    if was_killed:
      count = len(self._processes)
      message += f' From now on the number of workers is {count}.'
    return message


@contextlib.contextmanager
def _starting() -> Iterator[Any]:
  """Yields a context for new processes, which ignore Ctrl-C.

  Otherwise they would print tracebacks.
  """
  context = multiprocessing.get_context('forkserver')
  context.set_forkserver_preload(['rlds2reverb.jobs.preloaded'])
  in_main = threading.current_thread() is threading.main_thread()
  handler = signal.getsignal(signal.SIGINT)
  if in_main:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
  try:
    yield context
  finally:
    if in_main:
      signal.signal(signal.SIGINT, handler)


def warm_up() -> None:
  """Starts the process that workers are forked from, and does not wait."""
  with _starting():
    forkserver.ensure_running()


def do(
    run: Run, number: int, on_progress: Callable[[tasks_lib.Progress], None]
) -> Event:
  """Does a task, and returns its receipt or its error as an event."""
  try:
    with private.own_default_graph():
      return _do(run, number, on_progress)
  finally:
    # The graphs of a task refer to each other, and hold memory that Python does
    # not count, so it would collect them too late.
    gc.collect()


def _do(run, number, on_progress) -> Event:
  try:
    receipt = run(number=number, on_progress=on_progress)
  except tasks_lib.InvalidEpisodesError as error:
    return FAILED, number, error
  except _GONE as error:
    return FAILED, number, ConnectionError(str(error))
  except MemoryError as error:
    message = (
        f'There is not enough memory: {error}. A worker holds the longest'
        ' episode, whatever task_mb is: allow more, or take fewer workers.'
    )
    return FAILED, number, tasks_lib.TaskError(message)
  # Some errors have arguments of their own, and would not survive a pipe.
  except (OSError, RuntimeError, ValueError) as error:
    return FAILED, number, tasks_lib.TaskError(str(error))
  # The other tasks can be done after any error.
  except Exception as error:  # pylint: disable=broad-exception-caught
    message = f'{type(error).__name__}: {error}'
    return FAILED, number, tasks_lib.TaskError(message)
  return DONE, number, receipt


def _work(pipe, run: Run) -> None:
  """Does the tasks whose numbers come through a pipe."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  threading.Thread(target=_end_with_parent, daemon=True).start()
  # If memory is short, Linux kills this worker first, and the job can report
  # it.
  with contextlib.suppress(OSError):
    pathlib.Path('/proc/self/oom_score_adj').write_text('1000')
  memory.keep_flat()
  while True:
    try:
      number = pipe.recv()
    except EOFError:
      return
    report = functools.partial(_send_progress, pipe, number)
    # C++ messages about a lack of memory mean nothing to a user.
    with quiet.quiet_stderr(noise='\0'):
      event = do(run, number, report)
    pipe.send(event)


def _send_progress(pipe, number, progress) -> None:
  pipe.send((PROGRESS, number, progress))


def _end_with_parent() -> None:
  multiprocessing.parent_process().join()
  os._exit(1)  # pylint: disable=protected-access
