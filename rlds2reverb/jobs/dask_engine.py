"""An engine for Dask clusters, whose workers may join, leave and die.

It needs the extra `dask`: `pip install '.[dask]'` in a clone.
"""

from collections.abc import Iterator
import contextlib
import queue
import time
from typing import Any

from absl import logging
import distributed

from rlds2reverb.jobs import processes
from rlds2reverb.jobs import tasks as tasks_lib
from rlds2reverb.jobs import usage
from rlds2reverb.replay.server import tables as tables_lib

_POLL_SECONDS = 5.0


class DaskEngine(processes.Engine):
  """Runs tasks on the workers of a Dask cluster.

      convert.convert(plan, engine=DaskEngine('tcp://host:8786'))

  All workers need rlds2reverb, and access to the folder of the job, the data
  and the output under the same paths. Start the workers with one thread each.
  The outputs of tasks are joined in this process.
  """

  def __init__(self, scheduler: str, *, worker_timeout: float = 600.0):
    """Creates the engine.

    Args:
      scheduler: the address of the scheduler.
      worker_timeout: how many seconds a job waits for a worker. Clusters take
        minutes to start machines.

    Raises:
      ConnectionError: if no scheduler answers.
      ValueError: if the address is not valid, or the timeout is not positive.
    """
    if not worker_timeout > 0:
      raise ValueError(
          'worker_timeout must be a positive number of seconds, but is'
          f' {worker_timeout!r}.'
      )
    # Dask would retry an invalid address for a minute.
    distributed.comm.get_address_host_port(scheduler)
    tables_lib.check_address(scheduler.rpartition('/')[2])
    self._address = scheduler
    self._worker_timeout = worker_timeout
    self._futures: list[Any] = []
    try:
      self._client = distributed.Client(scheduler, set_as_default=False)
    except (OSError, ValueError) as e:
      raise ConnectionError(
          f'There is no Dask scheduler at {scheduler}: {e}.'
      ) from e

  def map(self, job_runner, numbers, on_progress):
    def call(number):
      usage.quiet_logs()
      return job_runner(number, lambda progress: None)

    numbers = list(numbers)
    with self._scheduler_errors():
      self._futures = self._client.map(call, numbers, pure=False)
    finished: queue.Queue = queue.Queue()
    for number, future in zip(numbers, self._futures):
      future.add_done_callback(lambda f, n=number: finished.put((n, f)))
    for _ in numbers:
      number, future = self._wait_for_next(finished)
      try:
        with self._scheduler_errors():
          outcome = future.result()
      except tasks_lib.TaskError:
        raise
      # A worker died, or lacks a package.
      except Exception as e:
        outcome = processes.WorkerDiedError(f'{type(e).__name__}: {e}')
      yield number, outcome

  def stop(self):
    if self._client.status != 'running':
      return  # Nobody could cancel tasks.
    with contextlib.suppress(OSError, RuntimeError, ValueError):
      self._client.cancel(self._futures)

  def _wait_for_next(self, finished: queue.Queue) -> Any:
    """Returns the next finished task; raises a TaskError without workers."""
    without_workers_since = None
    while True:
      try:
        return finished.get(timeout=min(_POLL_SECONDS, self._worker_timeout))
      except queue.Empty:
        pass
      if self._client.status == 'closed':
        raise self._make_connection_error()
      with self._scheduler_errors():
        has_workers = bool(self._client.nthreads())
      if has_workers:
        without_workers_since = None
        continue
      if without_workers_since is None:
        without_workers_since = time.monotonic()
        logging.warning(
            'The Dask scheduler at %s has no workers. The job waits %.0f'
            ' seconds for one.',
            self._address,
            self._worker_timeout,
        )
      if time.monotonic() - without_workers_since > self._worker_timeout:
        raise tasks_lib.TaskError(
            f'The Dask scheduler at {self._address} has no workers. The tasks'
            ' that are done are kept: start workers, then the same command'
            ' again.'
        )

  @contextlib.contextmanager
  def _scheduler_errors(self) -> Iterator[None]:
    """Raises a TaskError if the connection to the scheduler is lost."""
    try:
      yield
    except (
        distributed.CancelledError,
        distributed.client.ClosedClientError,
        distributed.comm.CommClosedError,
        OSError,
    ) as e:
      raise self._make_connection_error() from e

  def _make_connection_error(self) -> tasks_lib.TaskError:
    return tasks_lib.TaskError(
        f'The connection to the Dask scheduler at {self._address} is lost. The'
        ' tasks that are done are kept: start the same command again when there'
        ' is a scheduler.'
    )
