"""Runs a conversion as a job that can be resumed after any interruption.

An engine runs the tasks that have no receipt. Afterwards their outputs are
joined. `job` describes the folder of a job.
"""

import collections
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import dataclasses
import math
import time
from typing import Any

import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.datasets import progress_bar
from rlds2reverb.episodes import checks
from rlds2reverb.jobs import job as job_lib
from rlds2reverb.jobs import outputs
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import processes
from rlds2reverb.jobs import sources as sources_lib
from rlds2reverb.jobs import summary as summary_lib
from rlds2reverb.jobs import tasks as tasks_lib

# How often a server may lose confirmed items before the job gives up.
_MAX_ROUNDS = 3
# How often the process of a task may die before the task has failed.
_MAX_DEATHS = 3
_RETRY_SECONDS = 1.0
_MAX_LISTED_TASKS = 8  # With the same error.


class JobError(RuntimeError):
  """An error that explains why a job stopped, and how to resume it."""


def convert(
    plan: plan_lib.Plan,
    folder: files.PathLike | None = None,
    *,
    dry_run: bool = False,
    max_invalid_fraction: float = 1.0,
    allow_empty: bool = False,
    engine: processes.Engine | None = None,
    retry_timeout: float = 60.0,
    compare_checksums: bool = False,
    print_fn: Callable[[str], None] = print,
) -> dict[str, Any]:
  """Runs a plan, or resumes it.

      plan = make_plan([open_source(make_source('/data/cartpole'))],
                       Output('checkpoint', '/data/checkpoint'),
                       tables=[TableItems('transitions')])
      convert(plan, engine=processes.Processes(2))

  After an error, or after the process or machine stopped, the same call
  resumes the job. Its output is the same as without the interruption.

  Args:
    plan: the plan.
    folder: the folder of the job, by default next to the output, with `.job`
      after its name, or for a server in `~/.cache/rlds2reverb/jobs`.
    dry_run: whether to only describe the job.
    max_invalid_fraction: invalid episodes are skipped, but the job stops when
      they are more than this fraction of all episodes. With 0 no episode is
      skipped: the tasks with invalid episodes fail, and the others are
      finished. By default any number is skipped, unlike in the command
      `rlds2reverb-convert`, which skips none without `--invalid_episodes=skip`.
    allow_empty: whether a table may end up without items, because no episode is
      long enough or valid. Samplers of such a table block indefinitely.
    engine: runs the tasks, by default in this process. `Processes(2)` runs two
      at a time.
    retry_timeout: how many seconds a task is retried while a server does not
      answer.
    compare_checksums: whether to compare the contents of input files with those
      of finished tasks. By default only their sizes and modification times are
      compared, which some tools preserve. Every start reads all files once
      more.
    print_fn: prints a message for the user, a few lines each.

  Returns:
    The summary; after a dry run, an empty dict.

  Raises:
    BlockingIOError: if another process runs the same job, or has the same
      output.
    FileExistsError: if something else is at the path of the output.
    InvalidEpisodesError: if too many episodes are invalid.
    JobError: if tasks have failed. The other tasks are finished, unless they
      would have failed, too, as on a full disk.
    KeyboardInterrupt: if the user interrupts.
    OSError: if a file cannot be read or written.
    ValueError: if the job was started with another plan or without checksums,
      or if the data does not fit the output.
  """
  if not 0 <= max_invalid_fraction <= 1:
    raise ValueError(
        'max_invalid_fraction must lie in [0, 1], but is'
        f' {max_invalid_fraction}.'
    )
  job = job_lib.Job(plan, folder)
  job.check_same_plan()
  receipts = job.receipts()
  unverified = [n for n in receipts if 'checksum' not in receipts[n]]
  if compare_checksums and unverified:
    raise ValueError(
        f'{len(unverified)} tasks of the job in {job.folder} were done without'
        ' checksums, so that there is nothing to compare. Remove'
        ' --compare_checksums, or that folder and the output.'
    )
  opened = plan.open()
  spec = _get_common_spec(
      [opened[i] for i in sorted({task.source for task in plan.tasks})]
  )
  output = tasks_lib.make_output(job)
  lines = output.check(spec, receipts)
  print_fn(summary_lib.describe_job(job, opened, spec, lines, receipts))
  if dry_run:
    return {}
  with files.writing_to(job.folder):
    files.make_folder(job.folder)
  with contextlib.ExitStack() as stack:
    for path in job.locks():
      if not files.is_url(path):  # Object stores have no locks.
        stack.enter_context(files.lock(path, plan.output.place))
    # Another process may have started a job in the meantime.
    job.begin()
    run = _Run(
        job,
        output,
        max_invalid_fraction,
        engine or processes.InProcessEngine(),
        retry_timeout,
        compare_checksums,
        print_fn,
    )
    return run.finish(allow_empty)


@dataclasses.dataclass
class _Run:
  """A run of a job; see the arguments of `convert`."""

  job: job_lib.Job
  output: outputs.JobOutput
  max_invalid_fraction: float
  engine: processes.Engine
  retry_timeout: float
  compare_checksums: bool
  print_fn: Callable[[str], None]

  def __post_init__(self):
    self.plan = self.job.plan
    self.receipts = self.job.receipts()
    # In floating point, 0.58 * 50 is less than 29.
    self.max_skipped = math.floor(
        self.max_invalid_fraction * self.plan.num_episodes + 1e-6
    )

  def finish(self, allow_empty: bool) -> dict[str, Any]:
    """Runs unfinished tasks and joins their outputs; returns the summary."""
    start = time.monotonic()
    was_finished = self.output.is_finished(self.receipts)
    if was_finished:
      changed = self._find_changed()
      if changed:
        place = self.plan.output.place
        raise JobError(
            f'The job is finished, but the files of {len(changed)} of'
            f' {len(self.plan.tasks)} tasks have changed since, so {place} is'
            f' out of date. Remove it and {self.job.folder} to convert the data'
            ' again, or choose another output.'
        )
    else:
      files.remove(self.job.path('summary.json'))
      self._run_tasks()
    # Repaired episodes are added to an output with items.
    if not allow_empty and self.plan.only_listed_in is None:
      self._check_not_empty()
    if not was_finished:
      try:
        self.engine.join(tasks_lib.JobRunner(self.job))
      except (OSError, tf.errors.OpError) as error:
        problem = tasks_lib.find_output_problem(
            error, self.job, self.plan.output.place
        )
        if not problem:
          raise
        raise JobError(
            f'All tasks are done, but {problem} Start the same command again.'
        ) from error
    summary = self.job.read('summary.json')
    if summary:
      self.print_fn('The job is already finished; there is nothing to do.')
    else:
      quarantine = self.job.write_quarantine(self.receipts)
      summary = summary_lib.make_summary(self.plan, self.receipts)
      summary['seconds'] = time.monotonic() - start
      self.job.write(summary, 'summary.json')
      self.print_fn(summary_lib.to_text(summary, quarantine))
    self.job.remove_parts()
    return summary

  def _run_tasks(self) -> None:
    """Runs tasks until all have a valid receipt."""
    num_tasks = len(self.plan.tasks)
    for _ in range(_MAX_ROUNDS):
      lost = self.output.find_lost(self.receipts, self._find_changed())
      for number in lost:
        self.job.remove_receipt(number)
        del self.receipts[number]
      for reason, count in collections.Counter(lost.values()).items():
        tasks = checks.counted(count, 'task is', 'tasks are')
        self.print_fn(f'{tasks} repeated: {reason}.')
      unfinished = [n for n in range(num_tasks) if n not in self.receipts]
      if not unfinished:
        return
      failures = self._run_round(unfinished)
      if failures:
        self.job.write_quarantine(self.receipts)
        raise JobError(
            f'{len(failures)} of {num_tasks} tasks have failed;'
            f' {len(self.receipts)} are done.\n'
            + '\n'.join(_describe_failures(failures))
            + '\nStart the same command again to do the rest.'
        )
    raise JobError(
        f'The output was lost {_MAX_ROUNDS} times while the job ran. Repair the'
        ' server, and start the job again.'
    )

  def _run_round(self, numbers: list[int]) -> dict[int, Exception]:
    """Runs tasks; returns the errors of failed ones.

    A failed task does not stop the others. A task whose process died, or whose
    server does not answer, is retried after the others.

    Raises:
      JobError: after an error that every other task would raise, too.
    """
    runner = tasks_lib.JobRunner(
        self.job, self.max_invalid_fraction > 0, self.compare_checksums
    )
    failures: dict[int, Exception] = {}
    unavailable_since: dict[int, float] = {}
    deaths: dict[int, int] = collections.Counter()
    display = ProgressDisplay(
        self.plan.num_episodes,
        sum(
            map(tasks_lib.get_progress, self.receipts.values()),
            collections.Counter(),
        ),
    )

    def on_progress(number, progress):
      unavailable_since.pop(number, None)
      display.update(number, progress)
      self._check_skipped(display.total['skipped'])

    def should_retry(number, error):
      if isinstance(error, processes.WorkerDiedError):
        deaths[number] += 1
        return deaths[number] < _MAX_DEATHS
      now = time.monotonic()
      return isinstance(error, ConnectionError) and (
          now - unavailable_since.setdefault(number, now) < self.retry_timeout
      )

    try:
      self._check_skipped(display.total['skipped'])
      while numbers:
        retries = []
        for number, outcome in self.engine.map(runner, numbers, on_progress):
          if not isinstance(outcome, Exception):
            self.receipts[number] = outcome
            on_progress(number, tasks_lib.get_progress(outcome))
          elif isinstance(outcome, tasks_lib.InvalidEpisodesError):
            raise outcome  # `on_progress` raised it within a task.
          elif isinstance(outcome, tasks_lib.CommonError):
            raise JobError(
                f'{outcome} {len(self.receipts)} of {len(self.plan.tasks)}'
                ' tasks are done. Start the same command again to do the rest.'
            )
          elif should_retry(number, outcome):
            display.write(f'Retrying task {number}: {outcome}')
            retries.append(number)
            time.sleep(_RETRY_SECONDS)
          else:
            failures[number] = outcome
        numbers = retries
    finally:
      self.engine.stop()
      display.close()
    return failures

  def _check_skipped(self, skipped: int) -> None:
    if skipped > self.max_skipped:
      quarantine = self.job.write_quarantine(self.receipts)
      raise tasks_lib.InvalidEpisodesError(
          f'{checks.counted(skipped, "episode is", "episodes are")} invalid,'
          f' but max_invalid_fraction={self.max_invalid_fraction:g} allows at'
          f' most {self.max_skipped} of {self.plan.num_episodes}. To skip more,'
          ' pass a larger --max_invalid_fraction, with --invalid_episodes=skip.'
          f' {quarantine} lists the invalid episodes of finished tasks, and'
          ' rlds2reverb-validate lists all.'
      )

  def _find_changed(self) -> list[int]:
    return tasks_lib.find_changed(
        self.plan, self.receipts, self.compare_checksums
    )

  def _check_not_empty(self) -> None:
    """Raises a JobError if the output would be empty."""
    totals = summary_lib.make_summary(self.plan, self.receipts)
    lengths = totals['statistics']['length']
    reason = summary_lib.explain_empty(
        self.plan.table_items,
        totals['items'],
        # An episode has one transition less than steps.
        lengths['max'] + 1 if lengths['count'] else 0,
    )
    if not self.plan.tables and not totals['episodes']:
      place = self.plan.output.place
      reason = f'{place} would be empty: there is no valid episode.'
    if reason and totals['skipped']:
      quarantine = self.job.write_quarantine(self.receipts)
      invalid = checks.counted(totals['skipped'], 'invalid episode')
      reason += f' {quarantine} lists {invalid}.'
    if reason:
      raise JobError(reason)


class ProgressDisplay:
  """Adds up the progress of all tasks, and shows it on the standard error.

  Attributes:
    total: the progress of all tasks, including earlier runs of the job.
  """

  def __init__(self, num_episodes: int, initial: tasks_lib.Progress):
    """Starts the display.

    Args:
      num_episodes: the number of episodes of all tasks.
      initial: the progress of earlier runs, which is excluded from the rate.
    """
    self._initial = initial
    self.total = collections.Counter(initial)
    self._tasks: dict[int, tasks_lib.Progress] = {}
    self._bar = progress_bar.ProgressBar(
        num_episodes, initial=_count_read(initial)
    )

  def update(self, number: int, progress: tasks_lib.Progress) -> None:
    """Replaces the progress of a task."""
    self.total.update(progress)
    self.total.subtract(self._tasks.get(number, {}))
    self._tasks[number] = progress
    steps, num_bytes = (
        (self.total[name] - self._initial[name]) / max(self._bar.elapsed, 1e-3)
        for name in ('steps', 'num_bytes')
    )
    self._bar.update(
        _count_read(self.total),
        f'{steps:,.0f} steps/s, {num_bytes / 1e6:,.1f} MB/s,'
        f' {self.total["skipped"]} skipped',
    )

  def write(self, message: str) -> None:
    """Writes a line above the display."""
    self._bar.write(message)

  def close(self) -> None:
    self._bar.close()


def _count_read(progress: tasks_lib.Progress) -> int:
  return sum(progress[name] for name in ('episodes', 'skipped', 'filtered'))


def _describe_failures(failures: Mapping[int, Exception]) -> Iterator[str]:
  """Yields a line for each distinct message, with its tasks."""
  tasks_of: dict[str, list[int]] = collections.defaultdict(list)
  for number, error in sorted(failures.items()):
    tasks_of[str(error)].append(number)
  for message, tasks in tasks_of.items():
    listed = ', '.join(map(str, tasks[:_MAX_LISTED_TASKS]))
    more = len(tasks) - _MAX_LISTED_TASKS
    if more > 0:
      listed += f' and {more} more'
    yield f'  {"tasks" if len(tasks) > 1 else "task"} {listed}: {message}'


def _get_common_spec(opened: list[sources_lib.OpenSource]) -> Any:
  """Returns the frame spec; raises a ValueError if sources differ."""
  first, *remaining = opened
  spec = first.make_frame_spec()
  for other in remaining:
    other_spec = other.make_frame_spec()
    if other_spec != spec:
      raise ValueError(
          f'{other.name} has other frames than {first.name}:'
          f' {other_spec} rather than {spec}. Map their fields to the'
          ' same names, dtypes and shapes.'
      )
  return spec
