"""The loop that has tasks done, whatever the engine.

A task that fails does not keep the others from being done. One whose process
has died, or whose server is gone, is tried again after the others.
"""

import collections
import time
from typing import Any, Dict, Sequence

from rlds2reverb.jobs import engines
from rlds2reverb.jobs import receipts
from rlds2reverb.jobs import tasks as tasks_lib

# How often the process that does a task may die before the task has failed.
_MAX_DEATHS = 3
_SECONDS_TO_WAIT = 1.0


def do_all(
    engine: engines.Engine,
    attempt: tasks_lib.Attempt,
    numbers: Sequence[int],
    patience: float,
    *,
    listener: Any,
) -> Dict[int, str]:
  """Has tasks done.

  Args:
    engine: what does them.
    attempt: does a task.
    numbers: the numbers of the tasks.
    patience: how many seconds a server may be gone before a task that needs it
      fails.
    listener: its `on_progress`, `on_done` and `on_retry` hear how tasks go on.
      An exception from them ends all work.

  Returns:
    The messages of the tasks that have failed, by their numbers.

  Raises:
    InvalidEpisodesError: if a task has too many invalid episodes, unless none
      may be invalid: then the task fails.
  """
  failures: Dict[int, str] = {}
  gone_since: Dict[int, float] = {}
  deaths: Dict[int, int] = collections.Counter()

  def report(number, progress):
    gone_since.pop(number, None)
    listener.on_progress(number, progress)

  def is_worth_a_retry(number, error):
    if isinstance(error, engines.WorkerDiedError):
      deaths[number] += 1
      return deaths[number] < _MAX_DEATHS
    now = time.monotonic()
    return isinstance(error, ConnectionError) and (
        now - gone_since.setdefault(number, now) < patience
    )

  while numbers:
    again = []
    for number, outcome in engine.map(attempt, numbers, report):
      if isinstance(outcome, receipts.Receipt):
        listener.on_done(number, outcome)
      elif attempt.max_skipped and isinstance(
          outcome, tasks_lib.InvalidEpisodesError
      ):
        raise outcome
      elif is_worth_a_retry(number, outcome):
        listener.on_retry(number, outcome)
        again.append(number)
        time.sleep(_SECONDS_TO_WAIT)
      else:
        failures[number] = str(outcome)
    numbers = again
  return failures
