"""Does one task of a plan, wherever it runs.

A task is a function of the plan and of its number. Its output appears when it
is whole and on disk, and its receipt after that. So a task that has no receipt
is done again, and one that has it need not be.
"""

from concurrent import futures
import functools
import gc
import time
from typing import (
    Any,
    Callable,
    Dict,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Type,
)

import tensorflow as tf

from rlds2reverb.episodes import private
from rlds2reverb.jobs import checkpoint_output
from rlds2reverb.jobs import error_location
from rlds2reverb.jobs import outputs
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import receipts
from rlds2reverb.jobs import rlds_output
from rlds2reverb.jobs import server_output
from rlds2reverb.jobs import sources as sources_lib
from rlds2reverb.jobs import statistics_output
from rlds2reverb.jobs import task_episodes
from rlds2reverb.replay.server import insert_stream

_OUTPUTS: Dict[str, Type[outputs.JobOutput]] = {
    plan_lib.CHECKPOINT: checkpoint_output.CheckpointOutput,
    plan_lib.RLDS: rlds_output.RldsOutput,
    plan_lib.SERVER: server_output.ServerOutput,
    plan_lib.STATISTICS: statistics_output.StatisticsOutput,
}
_SECONDS_PER_REPORT = 0.5
_QUESTIONS_AT_ONCE = 16
# Errors after which a task is tried again: a server may come back, and a worker
# of a killed job on another machine may need a moment to end.
_TRANSIENT_ERRORS = (
    BlockingIOError,
    ConnectionError,
    insert_stream.InsertError,
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
    tf.errors.UnavailableError,
)


class Progress(NamedTuple):
  """The progress of a task.

  Attributes:
    episodes: how many episodes were converted so far.
    steps: how many steps they have.
    num_bytes: how many bytes their frames have.
    skipped: how many episodes were left out because they are invalid.
    filtered: how many episodes filters left out; known when a task is done.
  """

  episodes: int = 0
  steps: int = 0
  num_bytes: int = 0
  skipped: int = 0
  filtered: int = 0


class TaskError(RuntimeError):
  """An error in the data or the output of a task, which names the place."""


class InvalidEpisodesError(TaskError):
  """An error that says that too many episodes are invalid."""


class Attempt(NamedTuple):
  """Does the tasks of a job; a function of their numbers, for an engine.

  Attributes:
    folder: the folder of the job, in which the plan is.
    plan: the hash of the plan.
    max_skipped: see `run_task`.
  """

  folder: str
  plan: str
  max_skipped: Optional[int] = None

  def __call__(self, number: int, report: Callable[[Progress], None]) -> Any:
    """Does a task; returns its receipt, or an error, which can be pickled.

    Args:
      number: the number of the task.
      report: see `run_task`.

    Returns:
      The receipt; an `InvalidEpisodesError`; a `ConnectionError`, if the task
      is worth another try; another `OSError`, if its output could not be
      written; or a `TaskError`.
    """
    try:
      with private.own_default_graph():
        plan = _stored(self.folder, self.plan)
        return run_task(
            plan,
            number,
            self.folder,
            max_skipped=self.max_skipped,
            on_progress=report,
        )
    except TaskError as error:
      return error
    except _TRANSIENT_ERRORS as error:
      return ConnectionError(str(error))
    except MemoryError as error:
      return TaskError(
          f'There is not enough memory: {error}. A worker holds the longest'
          ' episode, whatever task_mb is: allow more, or take fewer workers.'
      )
    # A file of the data that is missing will be missing again.
    except (FileNotFoundError, RuntimeError, ValueError) as error:
      return TaskError(str(error))
    except OSError as error:
      return OSError(str(error))
    # The other tasks can be done after any error.
    except Exception as error:  # pylint: disable=broad-exception-caught
      return TaskError(f'{type(error).__name__}: {error}')
    finally:
      # The graphs of a task refer to each other, and hold memory that Python
      # does not count, so it would collect them too late.
      gc.collect()


class Finish(NamedTuple):
  """Makes the whole output of a job whose tasks are all done.

  Attributes:
    folder: the folder of the job.
    plan: the hash of its plan.
  """

  folder: str
  plan: str

  def __call__(self) -> None:
    plan = _stored(self.folder, self.plan)
    source = sources_lib.open_source(plan.sources[plan.tasks[0].source])
    done = receipts.read(self.folder, self.plan)
    output_of(plan).finish(self.folder, source.frame_spec(), done)


@functools.lru_cache(maxsize=1)
def _stored(folder: str, plan_hash: str) -> plan_lib.Plan:
  """Returns the plan in the folder of a job."""
  plan = plan_lib.read(folder)
  if plan is None or plan.hash != plan_hash:
    raise TaskError(f'This worker does not find the plan in {folder}.')
  return plan


def _open_unchanged(plan, task):
  """Returns the source of a task; a TaskError if it is not that of the plan."""
  source = sources_lib.open_source(plan.sources[task.source])
  data_set = plan.data_sets[task.source]
  if source.fingerprint != data_set.fingerprint:
    raise TaskError(
        f'{data_set.name} in {data_set.directory} has changed since the plan of'
        ' this job was made.'
    )
  return source


def run_task(
    plan: plan_lib.Plan,
    number: int,
    folder: str,
    *,
    max_skipped: Optional[int] = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> receipts.Receipt:
  """Does a task, and leaves its receipt in the folder of the job.

  Args:
    plan: the plan.
    number: which of its tasks to do.
    folder: the folder of the job.
    max_skipped: how many episodes may be invalid; None for no limit.
    on_progress: a function that is called about twice a second.

  Returns:
    The receipt.

  Raises:
    InvalidEpisodesError: if more episodes are invalid. There is no receipt.
    TaskError: if the data has changed since the plan was made, or cannot be
      read.
    OSError: if the output cannot be written; a `ConnectionError`, if a server
      or a file system does not answer.
    InsertError: if a server fails.
    ValueError: if the data does not fit the output.
  """
  start = last = time.monotonic()
  task = plan.tasks[number]
  source = _open_unchanged(plan, task)
  state = source.state_of(task.ranges)

  def report():
    num_skipped = len(episodes.report.skipped_episodes)
    if max_skipped is not None and num_skipped > max_skipped:
      raise InvalidEpisodesError(
          f'Invalid episodes: {num_skipped} so far, and {max_skipped} may be'
          ' (--invalid_episodes=skip, or max_invalid_fraction, leaves them'
          f' out):\n{_describe(episodes.skipped())}'
      )
    on_progress(
        Progress(
            measures.episodes, measures.steps, measures.num_bytes, num_skipped
        )
    )

  def on_block():
    nonlocal last
    if time.monotonic() - last >= _SECONDS_PER_REPORT:
      last = time.monotonic()
      report()

  episodes = task_episodes.TaskEpisodes(plan, task, source, on_block)
  measures = episodes.measures
  try:
    written = output_of(plan).write(number, folder, episodes)
  except tf.errors.OpError as error:
    is_transient = isinstance(error, _TRANSIENT_ERRORS)
    kind = ConnectionError if is_transient else TaskError
    raise kind(error_location.explain(error, source, task.ranges)) from error
  if source.state_of(task.ranges) != state:
    raise TaskError(
        f'{error_location.place_of(source, task.ranges)} has changed while it'
        ' was read.'
    )
  report()
  skipped = episodes.skipped()
  receipt = receipts.Receipt(
      task=number,
      plan=plan.hash,
      data=state,
      episodes=measures.episodes,
      steps=measures.steps,
      items=written.items,
      num_bytes=measures.num_bytes,
      skipped=skipped,
      filtered=task.num_episodes - measures.episodes - len(skipped),
      statistics=measures.statistics(episodes.report),
      seconds=time.monotonic() - start,
      output=written.details,
  )
  receipts.write(folder, receipt)
  return receipt


def output_of(plan: plan_lib.Plan) -> outputs.JobOutput:
  """Returns the output of a plan."""
  return _OUTPUTS[plan.output.kind](plan)


def changed(
    plan: plan_lib.Plan, done: Mapping[int, receipts.Receipt]
) -> List[int]:
  """Returns the tasks whose files were written anew since they were done.

  Args:
    plan: the plan.
    done: the receipts of these tasks.
  """
  opened = [sources_lib.open_source(source) for source in plan.sources]

  def is_changed(number):
    task = plan.tasks[number]
    try:
      return opened[task.source].state_of(task.ranges) != done[number].data
    except FileNotFoundError:
      return True

  # Each question about files at a URL takes time.
  with futures.ThreadPoolExecutor(_QUESTIONS_AT_ONCE) as pool:
    return [n for n, is_one in zip(done, pool.map(is_changed, done)) if is_one]


def _describe(bad: List[receipts.Bad]) -> str:
  shown = [f'  {each.file}: {each.message}' for each in bad[:5]]
  if len(bad) > len(shown):
    shown.append(f'  and {len(bad) - len(shown)} more')
  return '\n'.join(shown)
