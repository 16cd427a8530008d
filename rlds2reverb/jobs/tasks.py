"""Tasks of a plan: reading, counting and writing a part of the episodes.

A task is a function of the job and of its number. Its output is moved into
place when it is complete and on disk, and its receipt is written after that. A
task without a receipt is repeated, and a task with a receipt is finished.
"""

import collections
from collections.abc import Callable
from collections.abc import Mapping
from concurrent import futures
import dataclasses
import errno
import gc
import os
import time
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from rlds2reverb.episodes import errors
from rlds2reverb.episodes import tf_private
from rlds2reverb.jobs import job as job_lib
from rlds2reverb.jobs import outputs
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import rlds_output
from rlds2reverb.jobs import sources as sources_lib
from rlds2reverb.replay import frames as frames_lib
from rlds2reverb.replay.server import insert
from rlds2reverb.trajectories import conversion
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import report as report_lib

_OUTPUTS: dict[str, Callable[[job_lib.Job], outputs.JobOutput]] = {
    plan_lib.CHECKPOINT: outputs.CheckpointOutput,
    plan_lib.RLDS: rlds_output.RldsOutput,
    plan_lib.SERVER: outputs.ServerOutput,
    plan_lib.STATISTICS: outputs.StatisticsOutput,
}
# Files whose state is queried concurrently, as each query of a URL takes time.
_MAX_CONCURRENT_QUERIES = 16
_SECONDS_PER_REPORT = 0.5
_MORE_MEMORY = (
    'Each worker holds its longest episode in memory, regardless of task_mb.'
    ' Use fewer workers, or allow more memory.'
)
# Errors after which a task is retried: a server may be restarted, and a worker
# of a killed job may still be running on another machine.
_TRANSIENT_ERRORS = (
    BlockingIOError,
    ConnectionError,
    insert.InsertError,
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
    tf.errors.UnavailableError,
)


# Errors that no task could avoid, and their remedies. Only writing raises
# `_WRITE_ERRORS`. Reading data may raise the others, too.
_FREE_SPACE = 'Free space there.'
_WRITE_ERRORS = {
    os.strerror(errno.ENOSPC): _FREE_SPACE,
    os.strerror(errno.EDQUOT): _FREE_SPACE,
    os.strerror(errno.EROFS): 'Make it writable.',
}
_FOLDER_ERRORS = {
    os.strerror(errno.EACCES): 'Make it writable.',
    os.strerror(errno.EPERM): 'Make it writable.',
    os.strerror(errno.EIO): 'Check the disk.',
    os.strerror(errno.ENOTDIR): 'Remove the file that is in its place.',
}

# The keys of a range of numbers in counts.
_RANGE = {'count', 'sum', 'min', 'max'}
# `episodes`, `steps` and `num_bytes` that were converted, and episodes that
# were `skipped` as invalid or `filtered`.
Progress = collections.Counter[str]


class TaskError(RuntimeError):
  """An error in the data or the output of a task. It names the place."""


class InvalidEpisodesError(TaskError):
  """An error because of too many invalid episodes."""


class CommonError(TaskError):
  """An error that affects every task of the job, so that the job stops."""


class JobRunner(NamedTuple):
  """Runs the work of a job for engines: each task, and joining all outputs.

  It is a function of the number of a task.

  Attributes:
    job: the job.
    skips: whether invalid episodes are skipped. Otherwise the task fails.
    checksums: whether receipts get checksums of the input files.
  """

  job: job_lib.Job
  skips: bool = True
  checksums: bool = False

  def __call__(
      self, number: int, on_progress: Callable[[Progress], None]
  ) -> Any:
    """Runs a task.

    Args:
      number: the number of the task.
      on_progress: is called with the progress about twice a second.

    Returns:
      The receipt of the task, or an error that can be pickled: a
      `ConnectionError` if the task should be retried; another `OSError` if the
      output could not be written; or a `TaskError`. Other tasks may succeed,
      except after a `CommonError`.
    """
    return self.run(lambda: run_task(self, number, on_progress))

  def join(self) -> None:
    """Joins the outputs of all tasks."""
    make_output(self.job).join(self.job.receipts())

  def run(self, function: Callable[[], Any]) -> Any:
    """Returns the result of a function, or its error as a task's error."""
    # Garbage collection after the task skips objects that exist now. If the
    # program has frozen objects itself, they stay frozen.
    is_frozen = gc.get_freeze_count() > 0
    gc.freeze()
    try:
      with tf_private.temporary_default_graph():
        return function()
    except CommonError as error:
      return error
    except Exception as error:
      problem = find_output_problem(error, self.job, self.job.folder)
      if problem:
        return CommonError(problem)
      if isinstance(error, TaskError):
        return error
      message = str(error)
      if isinstance(error, _TRANSIENT_ERRORS):
        return ConnectionError(message)
      if isinstance(error, MemoryError):
        message = f'There is not enough memory: {error}. {_MORE_MEMORY}'
      elif not isinstance(error, (OSError, RuntimeError, ValueError)):
        message = f'{type(error).__name__}: {error}'
      # Retrying does not help if a file of the data is missing.
      is_missing = isinstance(error, FileNotFoundError)
      is_output = isinstance(error, OSError) and not is_missing
      return OSError(message) if is_output else TaskError(message)
    finally:
      # The graphs of a task form cycles and hold memory that Python does not
      # count, so automatic collection would come too late.
      gc.collect()
      if not is_frozen:
        gc.unfreeze()


def run_task(
    runner: JobRunner, number: int, on_progress: Callable[[Progress], None]
) -> job_lib.Receipt:
  """Runs a task, and writes its receipt into the folder of the job.

  Args:
    runner: the job, and whether to skip invalid episodes.
    number: the number of the task.
    on_progress: see `JobRunner.__call__`.

  Returns:
    The receipt.

  Raises:
    TaskError: if the data has changed since the plan was made or cannot be
      read, or if an episode is invalid. It is a `CommonError` if the data of
      all tasks is missing or has changed. No receipt is written.
    OSError: if the output cannot be written; a `ConnectionError`, if a server
      or a file system does not answer.
    InsertError: if a server fails.
    ValueError: if the data does not fit the output.
  """
  start = time.monotonic()
  job, plan = runner.job, runner.job.plan
  task = plan.tasks[number]
  data_set = plan.data_sets[task.source]
  # The tasks of another source may succeed.
  source_error = CommonError if len(plan.sources) == 1 else TaskError
  try:
    source = plan.open_source(task.source)
  except (FileNotFoundError, ValueError) as error:
    raise source_error(str(error)) from error
  if source.fingerprint != data_set.fingerprint:
    raise source_error(
        f'{data_set.name} in {data_set.directory} has changed since the plan of'
        ' this job was made.'
    )
  input_state = source.compute_state(task.ranges)
  checksum = (
      {'checksum': source.compute_checksum(task.ranges)}
      if runner.checksums
      else {}
  )

  def report_progress(episodes: TaskEpisodes) -> None:
    skipped = len(episodes.report.skipped_faults)
    if skipped and not runner.skips:
      invalid = episodes.list_skipped()
      lines = [f'  {bad["file"]}: {bad["message"]}' for bad in invalid[:5]]
      if len(invalid) > 5:
        lines.append(f'  and {len(invalid) - 5} more')
      raise TaskError(
          f'Invalid episodes: {skipped} so far. To skip them, pass'
          ' --invalid_episodes=skip and a max_invalid_fraction above 0:\n'
          + '\n'.join(lines)
      )
    on_progress(make_progress(episodes.counts, skipped))

  episodes = TaskEpisodes(plan, task, source, report_progress)
  try:
    items, output = make_output(job).write(number, episodes)
  except tf.errors.OpError as error:
    is_transient = isinstance(error, _TRANSIENT_ERRORS)
    error_class = ConnectionError if is_transient else TaskError
    raise error_class(source.describe_error(error, task.ranges)) from error
  if source.compute_state(task.ranges) != input_state:
    raise TaskError(
        f'{source.describe_place(task.ranges)} has changed while it was read.'
    )
  report_progress(episodes)
  skipped, counts = episodes.list_skipped(), episodes.get_counts()
  receipt = {
      'task': number,
      'plan': job.hash,
      'input_state': input_state,
      **checksum,
      **counts,
      'items': items,
      'skipped': skipped,
      'filtered': task.num_episodes - counts['episodes'] - len(skipped),
      'seconds': time.monotonic() - start,
      'output': output,
  }
  job.write_receipt(receipt)
  return receipt


def make_output(job: job_lib.Job) -> outputs.JobOutput:
  """Returns the output of a job."""
  return _OUTPUTS[job.plan.output.kind](job)


def find_changed(
    plan: plan_lib.Plan,
    receipts: Mapping[int, job_lib.Receipt],
    checksums: bool = False,
) -> list[int]:
  """Returns the finished tasks whose input files have changed since.

  Args:
    plan: the plan.
    receipts: the receipts of the finished tasks.
    checksums: whether to compare checksums in addition to sizes and times.
  """
  indices = {plan.tasks[number].source for number in receipts}
  opened = {index: plan.open_source(index) for index in indices}

  def is_changed(number):
    task, receipt = plan.tasks[number], receipts[number]
    source = opened[task.source]
    try:
      return source.compute_state(task.ranges) != receipt['input_state'] or (
          checksums
          and source.compute_checksum(task.ranges) != receipt.get('checksum')
      )
    except FileNotFoundError:
      return True

  with futures.ThreadPoolExecutor(_MAX_CONCURRENT_QUERIES) as pool:
    changed = pool.map(is_changed, receipts)
    return [number for number, changes in zip(receipts, changed) if changes]


def find_output_problem(
    error: BaseException, job: job_lib.Job, folder: str
) -> str:
  """Returns why no output can be written, or '' for other errors.

  Args:
    error: the error.
    job: the job.
    folder: the output folder, for errors that name no path.
  """
  # With a separator: `/data/robot_raw` is not in `/data/robot`.
  folders = tuple(f'{f}/' for f in (job.folder, job.plan.output.place))
  cause: BaseException | None = error
  while cause is not None:
    path, reason = None, ''
    if isinstance(cause, OSError) and cause.errno:
      path, reason = cause.filename, os.strerror(cause.errno)
    elif isinstance(cause, tf.errors.OpError):
      path, _, reason = errors.message_of(cause).rpartition('; ')
    is_output = f'{path}/'.startswith(folders)
    remedy = _WRITE_ERRORS.get(reason)
    if remedy is None and is_output:
      remedy = _FOLDER_ERRORS.get(reason)
    if remedy is not None:
      place = path if path and not is_output else folder
      return f'{place} cannot be written: {reason}. {remedy}'
    cause = cause.__cause__ or cause.__context__
  return ''


class TaskEpisodes:
  """The episodes of a task, with counts of the valid and invalid ones.

  An output reads either `frames` or `blocks`, once.

  Attributes:
    counts: the counts of the frames so far, in the form of `make_counts`.
    report: the report of the conversion.
  """

  def __init__(
      self,
      plan: plan_lib.Plan,
      task: plan_lib.Task,
      source: sources_lib.OpenSource,
      on_progress: Callable[['TaskEpisodes'], None],
  ):
    """Creates the episodes.

    Args:
      plan: the plan.
      task: the task.
      source: the opened source of the task.
      on_progress: is called with these episodes about twice a second.
    """
    self._plan = plan
    self._task = task
    self._source = source
    self._on_progress = on_progress
    self._last_progress = time.monotonic()
    self._counter = FrameCounter()
    self.report = report_lib.ConversionReport()

  @property
  def counts(self) -> dict[str, Any]:
    return self._counter.counts

  def read(self, *, with_index: bool = False) -> tf.data.Dataset:
    """Returns all episodes, optionally with their index as a field."""
    return self._source.read(*self._task.ranges, with_index=with_index)

  def frames(self) -> frames_lib.FrameSource:
    """Returns the frames and items of the valid episodes."""
    # Otherwise the position of an episode determines its index.
    needs_index = len(self._task.ranges) > 1 or self._source.has_filter
    episodes = self.read(with_index=needs_index)
    frames = frames_lib.make_frame_source(
        episodes,
        self._plan.table_items,
        self._make_options(
            episodes,
            identity=self._plan.identity(self._task),
            episode_id=sources_lib.EPISODE_INDEX if needs_index else None,
        ),
    )
    return frames._replace(
        first_episode=self._task.ranges[0].begin,
        # The job logs one warning for all its tasks.
        options=dataclasses.replace(frames.options, report=None),
        watch=self.watch,
    )

  def blocks(self) -> tf.data.Dataset:
    """Returns the valid episodes: `FrameBlock`s with all their fields.

    The caller passes each used block to `watch`.
    """
    episodes = self.read()
    return conversion.trajectory_blocks(
        episodes, self._make_options(episodes), with_steps=True
    )

  def watch(self, block: conversion.FrameBlock) -> None:
    """Counts a block of NumPy arrays."""
    self._counter.add(block)
    if time.monotonic() - self._last_progress >= _SECONDS_PER_REPORT:
      self._last_progress = time.monotonic()
      self._on_progress(self)

  def get_counts(self) -> dict[str, Any]:
    """Returns all counts of the valid episodes so far; see `make_counts`."""
    report = self.report
    statistics = {
        'bootstrapped_terminals': len(report.bootstrapped_terminals),
        'last_rewards': _sum_rewards(report.last_rewards),
        'dropped_rewards': _sum_rewards(report.dropped_rewards),
        'nan': report.nan_counts,
        'removed_steps': report.removed_steps,
    }
    return merge_counts(self.counts, {'statistics': statistics})

  def list_skipped(self) -> list[dict[str, Any]]:
    """Returns the invalid episodes so far: lines of a quarantine file.

    Each has the name and the `directory` of its `data_set`, the `split`, the
    `file`, and the index of the `episode` in the split; the broken `rule`, the
    `message` and the invalid `values`; and the `step` and the `field`, None or
    empty if the rule is not about a single one.
    """
    source, split = self._source, self._task.split
    faults = self.report.skipped_faults
    indices = self._task.indices
    if faults and source.has_filter:
      indices = sources_lib.read_indices(self.read(with_index=True))
    skipped = []
    for position, fault in faults.items():
      index = indices[position]
      episode = sources_lib.Range(split, index, index + 1)
      skipped.append(
          {
              'data_set': source.name,
              'directory': source.directory,
              'split': split,
              'file': fault.file or source.find_file(episode),
              'episode': index,
              'step': None if fault.step < 0 else fault.step,
              'rule': fault.rule,
              'values': fault.values,
              'message': errors.describe_fault(fault, index).numpy().decode(),
              'field': fault.field,
          }
      )
    return skipped

  def _make_options(
      self, episodes, **options: Any
  ) -> options_lib.ConversionOptions:
    return options_lib.ConversionOptions(
        self._plan.conversion_rules,
        sources_lib.get_policy_info_fn(episodes.element_spec),
        self.report,
        **options,
    )


def make_counts() -> dict[str, Any]:
  """Returns the counts of no episodes, as JSON values.

  `removed_steps` has a number for each class of transforms and filters.
  `last_rewards` counts the episodes whose last step has a reward, and sums
  these rewards. `dropped_rewards` does so for rewards that belong to a
  transition after the last step. `length` is the range of the numbers of
  transitions of an episode, and `return` the range of its sum of rewards.
  """
  return {
      'episodes': 0,
      'steps': 0,
      'num_bytes': 0,
      'statistics': {
          'bootstrapped_terminals': 0,
          'last_rewards': _sum_rewards({}),
          'dropped_rewards': _sum_rewards({}),
          'nan': {},
          'removed_steps': {},
          'length': _make_range(np.zeros(0)),
          'return': _make_range(np.zeros(0)),
      },
  }


def _sum_rewards(rewards: Mapping[int, float]) -> dict[str, Any]:
  return {'episodes': len(rewards), 'sum': sum(rewards.values())}


def _make_range(values: np.ndarray) -> dict[str, Any]:
  numbers = values.tolist()
  return {
      'count': len(values),
      'sum': float(values.sum()),
      'min': min(numbers, default=None),
      'max': max(numbers, default=None),
  }


def merge_counts(first: Any, second: Any) -> Any:
  """Returns the sum of two counts. Either may lack some keys."""
  if not isinstance(first, dict):
    return first + second
  if first.keys() == _RANGE:
    ranges = [r for r in (first, second) if r['count']]
    return {
        'count': first['count'] + second['count'],
        'sum': first['sum'] + second['sum'],
        'min': min((r['min'] for r in ranges), default=None),
        'max': max((r['max'] for r in ranges), default=None),
    }
  common = {
      key: merge_counts(first[key], second[key])
      for key in first
      if key in second
  }
  return {**first, **second, **common}


def make_progress(
    counts: Mapping[str, Any], skipped: int = 0, filtered: int = 0
) -> Progress:
  """Returns the progress of a task with given counts."""
  numbers = {name: counts[name] for name in ('episodes', 'steps', 'num_bytes')}
  return collections.Counter(
      {**numbers, 'skipped': skipped, 'filtered': filtered}
  )


def get_progress(receipt: job_lib.Receipt) -> Progress:
  """Returns the progress of a finished task."""
  return make_progress(receipt, len(receipt['skipped']), receipt['filtered'])


class FrameCounter:
  """Counts frames and finished episodes of a stream of blocks.

  Attributes:
    counts: the counts so far, in the form of `make_counts`.
  """

  def __init__(self):
    self.counts = make_counts()
    # Sums over earlier blocks of an unfinished episode.
    self._carry: dict[str, Any] = {'length': 0, 'return': 0}

  def add(self, block: conversion.FrameBlock) -> None:
    """Adds frames of one or several episodes."""
    frames = block.frames
    begins, ends = block.row_splits[:-1], block.row_splits[1:]
    # Only the last episode of a block may continue in the next block.
    is_unfinished = frames.step_type[-1] != ts.StepType.LAST
    last_frames = ends[: len(ends) - is_unfinished] - 1
    num_finished = len(last_frames)
    numbers = {'length': ends - begins}
    numbers['length'][:num_finished] -= 1
    rewards = tf.nest.flatten(frames.reward)
    if len(rewards) == 1 and rewards[0].size == len(frames.step_type):
      reward = rewards[0].reshape(-1).astype(np.float64)
      reward[last_frames] = 0  # The last step has no transition.
      numbers['return'] = np.add.reduceat(reward, begins)
    statistics = {}
    for name, values in numbers.items():
      values[0] += self._carry[name]
      self._carry[name] = values[-1] if is_unfinished else 0
      statistics[name] = _make_range(values[:num_finished])
    new_counts = {
        'episodes': num_finished,
        'steps': len(frames.step_type),
        'num_bytes': sum(leaf.nbytes for leaf in tf.nest.flatten(frames)),
        'statistics': statistics,
    }
    self.counts = merge_counts(self.counts, new_counts)
