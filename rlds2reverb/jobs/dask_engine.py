"""Tasks on a Dask cluster, whose workers may come, go and die.

It needs the extra: `pip install '.[dask]'` in a clone.
"""

import distributed

from rlds2reverb.jobs import engines
from rlds2reverb.jobs import quiet
from rlds2reverb.replay.server import tables as tables_lib


class DaskEngine(engines.Engine):
  """Does tasks on the workers of a Dask cluster.

      convert.convert(plan, engine=DaskEngine('tcp://host:8786'))

  The folder of the job, the data and the output must be where every worker
  finds them under the same path, and rlds2reverb must be installed there. Start
  the workers with one thread each. The parts are joined in this process.
  """

  def __init__(self, scheduler: str):
    """Creates the engine.

    Args:
      scheduler: the address of the scheduler.

    Raises:
      ConnectionError: if there is no scheduler.
      ValueError: if the address is not valid. Dask would wait for a minute.
    """
    distributed.comm.get_address_host_port(scheduler)  # Refuses others.
    tables_lib.check_address(scheduler.rpartition('/')[2])
    self._futures = []
    try:
      self._client = distributed.Client(scheduler, set_as_default=False)
    except (OSError, ValueError) as e:
      raise ConnectionError(
          f'There is no Dask scheduler at {scheduler}: {e}.'
      ) from e

  def map(self, attempt, numbers, report):
    def call(number):
      quiet.quiet_logs()
      return attempt(number, lambda progress: None)

    numbers = list(numbers)
    self._futures = self._client.map(call, numbers, pure=False)
    number_of = dict(zip(self._futures, numbers))
    for future in distributed.as_completed(
        self._futures, loop=self._client.loop
    ):
      try:
        outcome = future.result()
      # The error of a worker that died, or of a cluster that is short of
      # something.
      except Exception as e:  # pylint: disable=broad-exception-caught
        outcome = engines.WorkerDiedError(f'{type(e).__name__}: {e}')
      yield number_of[future], outcome

  def stop(self):
    self._client.cancel(self._futures)
