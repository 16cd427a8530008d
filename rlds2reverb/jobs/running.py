"""Runs the tasks of a plan: what a runner is, and the one of this machine.

One worker is this process itself, which starts at once. Several are processes
of their own, each of which gets the number of a task when it has done the last.
A worker that dies is replaced, and its task is tried again. Where it was killed
(exit code -9), which is how Linux ends what takes too much memory, it is not
replaced: fewer work at once from then on. A worker whose parent has died ends,
so that it does not go on writing.
"""

import abc
import collections
import functools
import multiprocessing
from multiprocessing import connection
import os
import signal
import threading
import time
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
)

from rlds2reverb.jobs import output_kinds
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import quiet
from rlds2reverb.jobs import receipts as receipts_lib
from rlds2reverb.jobs import tasks as tasks_lib
from rlds2reverb.replay.server import insert_stream

_PROGRESS, _DONE, _FAILED, _DIED = 'progress', 'done', 'failed', 'died'
# What is tried again. A server may come back, and a worker of a job that was
# killed may need a moment to end.
_GONE = (ConnectionError, BlockingIOError, insert_stream.InsertError)
_SECONDS_TO_WAIT = 1.0
# How often the process that does a task may die before the task has failed.
_MAX_DEATHS = 3


class Listener:
  """Hears how the tasks go on; the methods are called in this process."""

  def on_progress(self, number: int, progress: tasks_lib.Progress) -> None:
    """A task has come so far."""

  def on_done(self, number: int, receipt: receipts_lib.Receipt) -> None:
    """A task is done."""

  def on_retry(self, number: int, message: str) -> None:
    """A task failed because a server or its process was gone; it is retried."""

  def on_idle(self) -> None:
    """Nothing has happened for a while."""


class Runner(abc.ABC):
  """Does the tasks of a plan, and makes the output of what they leave."""

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
    """Does tasks; see the function `run_tasks`."""

  @abc.abstractmethod
  def finish(
      self,
      plan: plan_lib.Plan,
      folder: str,
      spec: Any,
      receipts: Mapping[int, receipts_lib.Receipt],
  ) -> None:
    """Makes the whole output of that of the tasks; see `Output.finish`."""


class LocalRunner(Runner):
  """Does tasks on this machine."""

  def __init__(self, num_workers: int = 1, patience: float = 60.0):
    """Args are those of the function `run_tasks`."""
    self._num_workers = num_workers
    self._patience = patience

  def run_tasks(self, plan, folder, numbers, *, listener, max_skipped):
    return run_tasks(
        plan,
        folder,
        numbers,
        num_workers=self._num_workers,
        listener=listener,
        max_skipped=max_skipped,
        patience=self._patience,
    )

  def finish(self, plan, folder, spec, receipts):
    output_kinds.of(plan).finish(folder, spec, receipts)


def run_tasks(
    plan: plan_lib.Plan,
    folder: str,
    numbers: Iterable[int],
    *,
    num_workers: int,
    listener: Listener,
    max_skipped: Optional[int] = None,
    patience: float = 60.0,
) -> Dict[int, str]:
  """Does tasks; one that fails does not keep the others from being done.

  Args:
    plan: the plan.
    folder: the folder of the job.
    numbers: which of its tasks to do.
    num_workers: how many to do at once.
    listener: hears how they go on. What it raises ends all work.
    max_skipped: see `run_task`.
    patience: how many seconds a server may be gone before a task that needs it
      fails.

  Returns:
    The messages of the tasks that have failed, by their numbers.

  Raises:
    InvalidEpisodesError: if a task has more invalid episodes than may be.
    KeyboardInterrupt: if the user interrupts. All workers have ended then.
  """
  numbers = list(numbers)
  if min(num_workers, len(numbers)) > 1:
    workers = _Processes(
        plan, folder, min(num_workers, len(numbers)), max_skipped
    )
  else:
    workers = _Here(plan, folder, max_skipped)
  waiting = collections.deque(numbers)
  failures: Dict[int, str] = {}
  gone_since: Dict[int, float] = {}
  deaths: Dict[int, int] = collections.Counter()
  try:
    while waiting or workers.num_busy:
      while waiting and workers.num_free:
        workers.start(waiting.popleft(), listener)
      for kind, number, content in workers.events():
        if kind == _PROGRESS:
          gone_since.pop(number, None)
          listener.on_progress(number, content)
        elif kind == _DONE:
          gone_since.pop(number, None)
          listener.on_done(number, content)
        elif kind == _DIED:
          deaths[number] += 1
          if deaths[number] < _MAX_DEATHS:
            listener.on_retry(number, content)
            waiting.append(number)
          else:
            failures[number] = f'{content} It was tried {_MAX_DEATHS} times.'
        elif isinstance(content, tasks_lib.InvalidEpisodesError):
          raise content
        elif isinstance(content, ConnectionError):
          since = gone_since.setdefault(number, time.monotonic())
          if time.monotonic() - since < patience:
            listener.on_retry(number, str(content))
            time.sleep(_SECONDS_TO_WAIT)
            waiting.append(number)
          else:
            failures[number] = str(content)
        else:
          failures[number] = str(content)
      listener.on_idle()
  finally:
    workers.stop()
  return failures


Event = Tuple[str, int, Any]


class _Here:
  """Does tasks in this process."""

  num_free = 1

  def __init__(self, plan, folder, max_skipped):
    self._plan, self._folder, self._max_skipped = plan, folder, max_skipped
    self._events: List[Event] = []

  @property
  def num_busy(self) -> int:
    return len(self._events)

  def start(self, number, listener) -> None:
    self._events.append(
        _do(
            self._plan,
            number,
            self._folder,
            self._max_skipped,
            lambda progress: listener.on_progress(number, progress),
        )
    )

  def events(self) -> List[Event]:
    events, self._events = self._events, []
    return events

  def stop(self) -> None:
    pass


class _Processes:
  """Does tasks in processes that are started anew, without this one's state."""

  def __init__(self, plan, folder, num_workers, max_skipped):
    self._arguments = plan.to_json(), folder, max_skipped
    self._free: List[connection.Connection] = []
    # The number of the task of each busy worker, by its connection.
    self._busy: Dict[connection.Connection, int] = {}
    self._processes: Dict[connection.Connection, Any] = {}
    self._add(num_workers)

  def _add(self, count: int) -> None:
    """Starts more workers."""
    context = multiprocessing.get_context('spawn')
    # A process that is interrupted while it starts would print a traceback.
    handler = signal.getsignal(signal.SIGINT)
    in_main = threading.current_thread() is threading.main_thread()
    if in_main:
      signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
      for _ in range(count):
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_work,
            args=(theirs, *self._arguments),
            daemon=True,
        )
        process.start()
        theirs.close()
        self._processes[ours] = process
        self._free.append(ours)
    finally:
      if in_main:
        signal.signal(signal.SIGINT, handler)

  @property
  def num_free(self) -> int:
    return len(self._free)

  @property
  def num_busy(self) -> int:
    return len(self._busy)

  def start(self, number, listener) -> None:
    del listener
    worker = self._free.pop()
    self._busy[worker] = number
    try:
      worker.send(number)
    except OSError:
      pass  # It has died, which `events` will find.

  def events(self) -> List[Event]:
    events: List[Event] = []
    ready: List[Any] = connection.wait(list(self._busy), _SECONDS_TO_WAIT)
    for worker in ready:
      number = self._busy[worker]
      try:
        event = worker.recv()
      except (EOFError, OSError):
        event = _DIED, number, self._bury(worker)
      else:
        if event[0] != _PROGRESS:
          del self._busy[worker]
          self._free.append(worker)
      events.append(event)
    return events

  def _bury(self, worker: connection.Connection) -> str:
    """Takes a dead worker away; returns what has happened."""
    process = self._processes.pop(worker)
    process.join(_SECONDS_TO_WAIT)
    worker.close()
    del self._busy[worker]
    message = (
        'The process that did the task has died, with exit code'
        f' {process.exitcode}.'
    )
    if process.exitcode != -signal.SIGKILL:
      self._add(1)
      return message
    if not self._processes:
      self._add(1)
    return (
        f'{message} Memory may have been short: from now on the number of'
        f' workers is {len(self._processes)}.'
    )

  def stop(self) -> None:
    for process in self._processes.values():
      # What it was writing never became visible.
      process.kill()
    for worker, process in self._processes.items():
      process.join()
      worker.close()


def _work(pipe, plan_json, folder, max_skipped) -> None:
  """Does the tasks whose numbers come through a pipe."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  quiet.quiet_logs()
  threading.Thread(target=_end_with_parent, daemon=True).start()
  plan = plan_lib.from_json(plan_json)
  while True:
    try:
      number = pipe.recv()
    except EOFError:
      return
    report = functools.partial(_send_progress, pipe, number)
    pipe.send(_do(plan, number, folder, max_skipped, report))


def _send_progress(pipe, number, progress) -> None:
  pipe.send((_PROGRESS, number, progress))


def _end_with_parent() -> None:
  multiprocessing.parent_process().join()
  os._exit(1)  # pylint: disable=protected-access


def _do(
    plan,
    number,
    folder,
    max_skipped,
    on_progress: Callable[[tasks_lib.Progress], None],
) -> Event:
  """Does a task, and returns what became of it."""
  try:
    receipt = tasks_lib.run_task(
        plan,
        number,
        folder,
        max_skipped=max_skipped,
        on_progress=on_progress,
    )
  except tasks_lib.InvalidEpisodesError as error:
    return _FAILED, number, error
  except _GONE as error:
    return _FAILED, number, ConnectionError(str(error))
  except MemoryError as error:
    message = f'There is not enough memory: {error}. Try a smaller task_mb.'
    return _FAILED, number, tasks_lib.TaskError(message)
  # Some errors have arguments of their own, and would not survive a pipe.
  except (OSError, RuntimeError, ValueError) as error:
    return _FAILED, number, tasks_lib.TaskError(str(error))
  # Whatever it is, the other tasks can be done.
  except Exception as error:  # pylint: disable=broad-exception-caught
    message = f'{type(error).__name__}: {error}'
    return _FAILED, number, tasks_lib.TaskError(message)
  return _DONE, number, receipt
