"""Does one task of a plan, wherever it runs.

A task is a function of the job and of its number. Its output appears when it is
whole and on disk, and its receipt after that. So a task that has no receipt is
done again, and one that has it need not be.
"""

from concurrent import futures
import gc
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Type

import tensorflow as tf

from rlds2reverb.episodes import private
from rlds2reverb.jobs import error_location
from rlds2reverb.jobs import job as job_lib
from rlds2reverb.jobs import outputs
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import progress as progress_lib
from rlds2reverb.jobs import rlds_output
from rlds2reverb.jobs import server_output
from rlds2reverb.jobs import sources as sources_lib
from rlds2reverb.jobs import statistics_output
from rlds2reverb.jobs import task_episodes
from rlds2reverb.replay.server import insert

_OUTPUTS: Dict[str, Type[outputs.JobOutput]] = {
    plan_lib.CHECKPOINT: outputs.CheckpointOutput,
    plan_lib.RLDS: rlds_output.RldsOutput,
    plan_lib.SERVER: server_output.ServerOutput,
    plan_lib.STATISTICS: statistics_output.StatisticsOutput,
}
_QUESTIONS_AT_ONCE = 16
_MORE_MEMORY = (
    'A worker holds the longest episode, whatever task_mb is: allow more, or'
    ' take fewer workers.'
)
# Errors after which a task is tried again: a server may come back, and a worker
# of a killed job on another machine may need a moment to end.
_TRANSIENT_ERRORS = (
    BlockingIOError,
    ConnectionError,
    insert.InsertError,
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
    tf.errors.UnavailableError,
)


class TaskError(RuntimeError):
  """An error in the data or the output of a task, which names the place."""


class InvalidEpisodesError(TaskError):
  """An error that says that too many episodes are invalid."""


class Attempt(NamedTuple):
  """Does the tasks of a job; a function of their numbers, for an engine.

  Attributes:
    job: the job.
    skips: whether invalid episodes are left out. Otherwise the task fails.
  """

  job: job_lib.Job
  skips: bool = True

  def __call__(
      self, number: int, report: Callable[[progress_lib.Progress], None]
  ) -> Any:
    """Does a task.

    Args:
      number: the number of the task.
      report: is called with the progress about twice a second.

    Returns:
      The receipt of the task. Or an error, which can be pickled: a
      `ConnectionError`, if the task is worth another try; another `OSError`, if
      its output could not be written; or a `TaskError`. The other tasks can be
      done after any of them.
    """
    return self.outcome_of(lambda: run_task(self, number, report))

  def join(self) -> None:
    """Makes the whole output of a job whose tasks are all done."""
    output_of(self.job).join(self.job.receipts())

  def outcome_of(self, work: Callable[[], Any]) -> Any:
    """Returns what a function returns, or its error as that of a task."""
    # Objects that exist now are not looked at after the task. What the program
    # has frozen itself stays so.
    is_frozen = gc.get_freeze_count() > 0
    gc.freeze()
    try:
      with private.own_default_graph():
        return work()
    except TaskError as error:
      return error
    except Exception as error:  # pylint: disable=broad-exception-caught
      text = str(error)
      if isinstance(error, _TRANSIENT_ERRORS):
        return ConnectionError(text)
      if isinstance(error, MemoryError):
        text = f'There is not enough memory: {error}. {_MORE_MEMORY}'
      elif not isinstance(error, (OSError, RuntimeError, ValueError)):
        text = f'{type(error).__name__}: {error}'
      # A file of the data that is missing will be missing again.
      is_missing = isinstance(error, FileNotFoundError)
      is_output = isinstance(error, OSError) and not is_missing
      return OSError(text) if is_output else TaskError(text)
    finally:
      # The graphs of a task refer to each other, and hold memory that Python
      # does not count, so it would collect them too late.
      gc.collect()
      if not is_frozen:
        gc.unfreeze()


def run_task(
    attempt: Attempt,
    number: int,
    on_progress: Callable[[progress_lib.Progress], None],
) -> job_lib.Receipt:
  """Does a task, and leaves its receipt in the folder of the job.

  Args:
    attempt: the job, and whether invalid episodes are left out.
    number: which of its tasks to do.
    on_progress: see `Attempt.__call__`.

  Returns:
    The receipt.

  Raises:
    TaskError: if the data has changed since the plan was made, or cannot be
      read, or an episode is invalid. There is no receipt.
    OSError: if the output cannot be written; a `ConnectionError`, if a server
      or a file system does not answer.
    InsertError: if a server fails.
    ValueError: if the data does not fit the output.
  """
  start = time.monotonic()
  job, skips = attempt
  plan = job.plan
  task = plan.tasks[number]
  data_set = plan.data_sets[task.source]
  source = sources_lib.open_source(plan.sources[task.source])
  if source.fingerprint != data_set.fingerprint:
    raise TaskError(
        f'{data_set.name} in {data_set.directory} has changed since the plan of'
        ' this job was made.'
    )
  state = source.state_of(task.ranges)

  def look(counts, num_skipped):
    if num_skipped and not skips:
      raise TaskError(
          f'Invalid episodes: {num_skipped} so far, and 0 may be'
          ' (--invalid_episodes=skip, or max_invalid_fraction, leaves them'
          f' out):\n{_describe(episodes.skipped())}'
      )
    on_progress(progress_lib.make(counts, num_skipped))

  episodes = task_episodes.TaskEpisodes(plan, task, source, look)
  try:
    items, output = output_of(job).write(number, episodes)
  except tf.errors.OpError as error:
    is_transient = isinstance(error, _TRANSIENT_ERRORS)
    kind = ConnectionError if is_transient else TaskError
    raise kind(error_location.explain(error, source, task.ranges)) from error
  if source.state_of(task.ranges) != state:
    raise TaskError(
        f'{error_location.place_of(source, task.ranges)} has changed while it'
        ' was read.'
    )
  episodes.look()
  skipped, counts = episodes.skipped(), episodes.counts()
  receipt = {
      'task': number,
      'plan': job.hash,
      'data': state,
      **counts,
      'items': items,
      'skipped': skipped,
      'filtered': task.num_episodes - counts['episodes'] - len(skipped),
      'seconds': time.monotonic() - start,
      'output': output,
  }
  job.write_receipt(receipt)
  return receipt


def output_of(job: job_lib.Job) -> outputs.JobOutput:
  """Returns the output of a job."""
  return _OUTPUTS[job.plan.output.kind](job)


def changed(
    plan: plan_lib.Plan, done: Mapping[int, job_lib.Receipt]
) -> List[int]:
  """Returns the tasks whose files were written anew since they were done.

  Args:
    plan: the plan.
    done: the receipts of these tasks.
  """
  opened = plan.open()

  def is_changed(number):
    task = plan.tasks[number]
    try:
      return opened[task.source].state_of(task.ranges) != done[number]['data']
    except FileNotFoundError:
      return True

  # Each question about files at a URL takes time.
  with futures.ThreadPoolExecutor(_QUESTIONS_AT_ONCE) as pool:
    return [n for n, is_one in zip(done, pool.map(is_changed, done)) if is_one]


def _describe(bad: List[Dict[str, Any]]) -> str:
  shown = [f'  {each["file"]}: {each["message"]}' for each in bad[:5]]
  more = len(bad) - len(shown)
  return '\n'.join([*shown, *[f'  and {more} more'] * (more > 0)])
