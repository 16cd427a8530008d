"""Does one task of a plan, wherever it runs.

A task is a function of the plan and of its number. Its output appears when it
is whole and on disk, and its receipt after that. So a task that has no receipt
is done again, and one that has it need not be.
"""

from concurrent import futures
import time
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Type

import tensorflow as tf

from rlds2reverb.jobs import checkpoint_output
from rlds2reverb.jobs import damage
from rlds2reverb.jobs import outputs
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import receipts
from rlds2reverb.jobs import rlds_output
from rlds2reverb.jobs import server_output
from rlds2reverb.jobs import sources as sources_lib
from rlds2reverb.jobs import statistics_output
from rlds2reverb.jobs import task_episodes

_OUTPUTS: Dict[str, Type[outputs.JobOutput]] = {
    plan_lib.CHECKPOINT: checkpoint_output.CheckpointOutput,
    plan_lib.RLDS: rlds_output.RldsOutput,
    plan_lib.SERVER: server_output.ServerOutput,
    plan_lib.STATISTICS: statistics_output.StatisticsOutput,
}
_SECONDS_PER_REPORT = 0.5
_QUESTIONS_AT_ONCE = 16
# Transient errors, which are worth a retry.
_PASSING = (
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
  source = sources_lib.open_source(plan.sources[task.source])
  _check_unchanged(plan.data_sets[task.source], source.fingerprint)
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
  except _PASSING as error:
    raise ConnectionError(damage.explain(error, source, task.ranges)) from error
  except tf.errors.OpError as error:
    raise TaskError(damage.explain(error, source, task.ranges)) from error
  if source.state_of(task.ranges) != state:
    raise TaskError(
        f'{damage.place_of(source, task.ranges)} has changed while it was read.'
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
      state = opened[task.source].state_of(task.ranges)
    except FileNotFoundError:
      return True
    return state != done[number].data

  # Each question about files at a URL takes time.
  with futures.ThreadPoolExecutor(_QUESTIONS_AT_ONCE) as pool:
    return [
        number
        for number, is_one in zip(done, pool.map(is_changed, done))
        if is_one
    ]


def _check_unchanged(data_set: plan_lib.DataSet, fingerprint: str) -> None:
  if fingerprint != data_set.fingerprint:
    raise TaskError(
        f'{data_set.name} in {data_set.directory} has changed since the plan of'
        ' this job was made.'
    )


def _describe(bad: List[receipts.Bad]) -> str:
  shown = [f'  {each.file}: {each.message}' for each in bad[:5]]
  if len(bad) > len(shown):
    shown.append(f'  and {len(bad) - len(shown)} more')
  return '\n'.join(shown)


def name_of(plan: plan_lib.Plan, number: int) -> str:
  """Returns the ranges of a task, and the files that they are in."""
  task = plan.tasks[number]
  return damage.place_of(
      sources_lib.open_source(plan.sources[task.source]), task.ranges
  )
