"""Does tasks on a Dask cluster, whose workers may die.

It needs the extra: `pip install '.[dask]'` in a clone. A worker does a task,
and a failed task is tried again, as in the local runner. Dask gives the task of
a worker that died to another one.
"""

import functools
import queue
from typing import Dict, List, Optional

import distributed

from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import quiet
from rlds2reverb.jobs import running
from rlds2reverb.jobs import tasks as tasks_lib
from rlds2reverb.jobs import workers as workers_lib
from rlds2reverb.replay.server import addresses

_SECONDS_TO_WAIT = 1.0


class DaskRunner(running.LocalRunner):
  """Does tasks on the workers of a Dask cluster.

      runner = DaskRunner('tcp://host:8786')
      convert.convert(plan, runner=runner)

  The folder of the job, the data and the output must be where every worker
  finds them under the same path, and rlds2reverb must be installed there. Start
  the workers with one thread each. The output is finished in this process.
  """

  def __init__(self, scheduler: str, patience: float = 60.0):
    """Creates the runner.

    Args:
      scheduler: the address of the scheduler.
      patience: see `LocalRunner`.

    Raises:
      ConnectionError: if there is no scheduler.
      ValueError: if the address is not valid. Dask would wait for a minute.
    """
    super().__init__(patience=patience)
    distributed.comm.get_address_host_port(scheduler)  # Refuses others.
    addresses.check_address(scheduler.rpartition('/')[2])
    try:
      self._client = distributed.Client(scheduler, set_as_default=False)
    except (OSError, ValueError) as e:
      raise ConnectionError(
          f'There is no Dask scheduler at {scheduler}: {e}.'
      ) from e

  def workers(self, plan, folder, count, max_skipped):
    return _Cluster(self._client, folder, max_skipped)


class _Cluster(workers_lib.Workers):
  """The workers of a cluster, which may come and go."""

  def __init__(self, client, folder, max_skipped):
    self._client = client
    self._folder, self._max_skipped = folder, max_skipped
    self._futures: Dict[int, distributed.Future] = {}
    self._done: queue.Queue = queue.Queue()

  @property
  def num_free(self) -> int:  # type: ignore[override]
    return sum(self._client.ncores().values()) - len(self._futures)

  @property
  def num_busy(self) -> int:  # type: ignore[override]
    return len(self._futures)

  def start(self, number, on_progress):
    future = self._client.submit(
        _do, self._folder, self._max_skipped, number, pure=False
    )
    self._futures[number] = future
    future.add_done_callback(lambda future: self._done.put(number))

  def events(self) -> List[workers_lib.Event]:
    try:
      number = self._done.get(timeout=_SECONDS_TO_WAIT)
    except queue.Empty:
      return []
    future = self._futures.pop(number)
    try:
      return [future.result()]
    # The error of a worker that died, or of a cluster that is short of
    # something.
    except Exception as e:  # pylint: disable=broad-exception-caught
      return [(workers_lib.DIED, number, f'{type(e).__name__}: {e}')]

  def stop(self):
    self._client.cancel(list(self._futures.values()))


def _do(
    folder: str, max_skipped: Optional[int], number: int
) -> workers_lib.Event:
  """Does a task of the plan that is in the folder, on a worker."""
  quiet.quiet_logs()
  plan = plan_lib.read(folder)
  if plan is None:
    error = tasks_lib.TaskError(f'This worker finds no plan in {folder}.')
    return workers_lib.FAILED, number, error
  run = functools.partial(
      tasks_lib.run_task, plan, folder=folder, max_skipped=max_skipped
  )
  return workers_lib.do(run, number, lambda progress: None)
