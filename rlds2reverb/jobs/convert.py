"""Converts data sets from end to end, as a job that survives interruptions.

One loop has the tasks done that have no receipt, by an engine, and joins the
parts. `job` says what is in the folder of a job.
"""

import collections
import contextlib
import dataclasses
import math
import time
from typing import Any, Callable, Dict, List, Optional, Sequence

from rlds2reverb.datasets import files
from rlds2reverb.datasets import locks
from rlds2reverb.episodes import checks
from rlds2reverb.jobs import engines
from rlds2reverb.jobs import job as job_lib
from rlds2reverb.jobs import opened as opened_lib
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import progress as progress_lib
from rlds2reverb.jobs import summary as summary_lib
from rlds2reverb.jobs import tasks as tasks_lib

# How often a server may lose confirmed items before the job gives up.
_MAX_ROUNDS = 3
# How often the process that does a task may die before the task has failed.
_MAX_DEATHS = 3
_SECONDS_TO_WAIT = 1.0


class JobError(RuntimeError):
  """An error that says why a job is not finished, and how to go on."""


def convert(
    plan: plan_lib.Plan,
    folder: Optional[files.PathLike] = None,
    *,
    dry_run: bool = False,
    max_invalid_fraction: float = 1.0,
    allow_empty: bool = False,
    engine: Optional[engines.Engine] = None,
    patience: float = 60.0,
    say: Callable[[str], None] = print,
) -> Dict[str, Any]:
  """Carries out a plan, or the rest of it.

      plan = make_plan([open_source(make_source('/data/cartpole'))],
                       Output('checkpoint', '/data/checkpoint'),
                       tables=[TableItems('transitions')])
      convert(plan, engine=processes.Processes(2))

  After an interruption, by an error or the end of the process or the machine,
  the same call goes on, and the output is the same as without it.

  Args:
    plan: the plan.
    folder: the folder of the job, by default beside the output, with `.job`
      after its name, or for a server in `~/.cache/rlds2reverb/jobs`.
    dry_run: whether to only say what would be done.
    max_invalid_fraction: the job stops as soon as more than this fraction of
      all episodes is invalid, and lists those that it found. With 0 the tasks
      that have invalid episodes fail, and the others are done.
    allow_empty: whether a table may end without an item, because no episode is
      long enough, or none is valid. Samplers of such a table wait for ever.
    engine: what does the tasks; by default this process. `Processes(2)` does
      two at a time.
    patience: how many seconds a server may be gone before a task that needs it
      fails.
    say: is called with messages for the user, a few lines each.

  Returns:
    The summary; after a dry run, an empty dict.

  Raises:
    BlockingIOError: if another process does the same job, or has the same
      output.
    FileExistsError: if there is something else in the place of the output.
    InvalidEpisodesError: if too many episodes are invalid.
    JobError: if tasks have failed. The others are done.
    KeyboardInterrupt: if the user interrupts.
    OSError: if a file cannot be read or written.
    ValueError: if the job was started with another plan, or if the data does
      not fit the output.
  """
  if not 0 <= max_invalid_fraction <= 1:
    raise ValueError(
        'max_invalid_fraction must lie in [0, 1], but is'
        f' {max_invalid_fraction}.'
    )
  job = job_lib.Job(plan, folder)
  job.check_same_plan()
  receipts = job.receipts()
  output = tasks_lib.output_of(job)
  opened = plan.open()
  spec = _common_frame_spec(
      [opened[i] for i in sorted({task.source for task in plan.tasks})]
  )
  lines = output.check(spec, receipts)
  say(summary_lib.describe(job, opened, spec, lines, receipts))
  if dry_run:
    return {}
  with files.writing_to(job.folder):
    files.make_folder(job.folder)
  with contextlib.ExitStack() as stack:
    for path in job.locks():
      if not files.is_url(path):  # There are no locks at a URL.
        stack.enter_context(locks.locked(path, plan.output.place))
    # Another process may have begun a job in the meantime.
    job.begin()
    max_skipped = math.floor(max_invalid_fraction * plan.num_episodes)
    run = _Run(
        job, max_skipped, engine or engines.InProcessEngine(), patience, say
    )
    return run.finish(allow_empty)


@dataclasses.dataclass
class _Run:
  """One start of a job; the arguments are those of `convert`."""

  job: job_lib.Job
  max_skipped: int
  engine: engines.Engine
  patience: float
  say: Callable[[str], None]

  def __post_init__(self):
    self.plan = self.job.plan
    self.output = tasks_lib.output_of(self.job)
    self.receipts = self.job.receipts()

  def finish(self, allow_empty: bool) -> Dict[str, Any]:
    """Does the tasks that are left, joins their parts; returns the summary."""
    start = time.monotonic()
    was_finished = self.output.is_finished(self.receipts)
    if was_finished:
      self._check_still_true()
    else:
      files.remove(self.job.path('summary.json'))
      self._do_all()
    # Repaired episodes go into an output that has items.
    if not allow_empty and self.plan.only is None:
      self._check_not_empty()
    if not was_finished:
      self.engine.join(tasks_lib.Attempt(self.job))
    summary = self.job.read('summary.json')
    if summary:
      self.say('All of it is done already; there is nothing to do.')
    else:
      quarantine = self.job.write_quarantine(self.receipts)
      summary = summary_lib.make(self.plan, self.receipts)
      summary['seconds'] = time.monotonic() - start
      self.job.write(summary, 'summary.json')
      self.say(summary_lib.to_text(summary, quarantine))
    self.job.remove_parts()
    return summary

  def _do_all(self) -> None:
    """Does tasks until all have a receipt that is true."""
    for _ in range(_MAX_ROUNDS):
      changed = tasks_lib.changed(self.plan, self.receipts)
      lost = self.output.lost(self.receipts, changed)
      for number in lost:
        self.job.forget(number)
        del self.receipts[number]
      for reason, count in collections.Counter(lost.values()).items():
        tasks = checks.counted(count, 'task is', 'tasks are')
        self.say(f'{tasks} done again: {reason}.')
      numbers = range(len(self.plan.tasks))
      left = [number for number in numbers if number not in self.receipts]
      if not left:
        return
      failures = self._do(left)
      if failures:
        self.job.write_quarantine(self.receipts)
        raise JobError(
            f'{len(failures)} of {len(numbers)} tasks have failed;'
            f' {len(self.receipts)} are done.\n'
            + '\n'.join(f'  task {n}: {e}' for n, e in sorted(failures.items()))
            + '\nStart the same command again to do the rest.'
        )
    raise JobError(
        f'The output was lost {_MAX_ROUNDS} times while the job ran. Start it'
        ' again when the server is well.'
    )

  def _do(self, numbers: List[int]) -> Dict[int, Exception]:
    """Does tasks; returns the errors of those that have failed.

    A task that fails does not keep the others from being done. One whose
    process has died, or whose server is gone, is tried again after the others.
    """
    attempt = tasks_lib.Attempt(self.job, skips=self.max_skipped > 0)
    failures: Dict[int, Exception] = {}
    gone_since: Dict[int, float] = {}
    deaths: Dict[int, int] = collections.Counter()
    done = map(progress_lib.of_receipt, self.receipts.values())
    display = progress_lib.ProgressDisplay(
        self.plan.num_episodes, sum(done, progress_lib.NOTHING)
    )

    def on_progress(number, progress):
      gone_since.pop(number, None)
      display.update(number, progress)
      self._check_skipped(display.total['skipped'])

    def is_worth_a_retry(number, error):
      if isinstance(error, engines.WorkerDiedError):
        deaths[number] += 1
        return deaths[number] < _MAX_DEATHS
      now = time.monotonic()
      return isinstance(error, ConnectionError) and (
          now - gone_since.setdefault(number, now) < self.patience
      )

    try:
      self._check_skipped(display.total['skipped'])
      while numbers:
        again = []
        for number, outcome in self.engine.map(attempt, numbers, on_progress):
          if not isinstance(outcome, Exception):
            self.receipts[number] = outcome
            on_progress(number, progress_lib.of_receipt(outcome))
          elif isinstance(outcome, tasks_lib.InvalidEpisodesError):
            raise outcome  # `on_progress` has raised it within a task.
          elif is_worth_a_retry(number, outcome):
            display.say(f'Task {number} is tried again: {outcome}')
            again.append(number)
            time.sleep(_SECONDS_TO_WAIT)
          else:
            failures[number] = outcome
        numbers = again
    finally:
      self.engine.stop()
      display.close()
    return failures

  def _check_skipped(self, skipped: int) -> None:
    if skipped > self.max_skipped:
      quarantine = self.job.write_quarantine(self.receipts)
      raise tasks_lib.InvalidEpisodesError(
          f'{checks.counted(skipped, "episode is", "episodes are")} invalid,'
          f' and {self.max_skipped} of {self.plan.num_episodes} may be. Those'
          f' of the tasks that are done are in {quarantine}.'
      )

  def _check_still_true(self) -> None:
    """Raises a JobError if the data has changed since the job was finished."""
    changed = tasks_lib.changed(self.plan, self.receipts)
    if changed:
      place = self.plan.output.place
      raise JobError(
          f'All of it is done, but the files of {len(changed)} of'
          f' {len(self.plan.tasks)} tasks have changed since, so that {place}'
          f' does not hold what they hold now. Remove it and {self.job.folder}'
          ' to convert them anew, or choose another output.'
      )

  def _check_not_empty(self) -> None:
    """Raises a JobError if the output would be empty."""
    totals = summary_lib.make(self.plan, self.receipts)
    lengths = totals['statistics']['length']
    reason = summary_lib.why_empty(
        self.plan.table_items,
        totals['items'],
        # A transition lies between two steps.
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


def _common_frame_spec(opened: Sequence[opened_lib.OpenSource]) -> Any:
  """Returns the spec of a frame; a ValueError if it is not that of all."""
  first, *others = opened
  spec = first.frame_spec()
  for other in others:
    if other.frame_spec() != spec:
      raise ValueError(
          f'{other.name} has other frames than {first.name}:'
          f' {other.frame_spec()} rather than {spec}. Map their fields to the'
          ' same names, dtypes and shapes.'
      )
  return spec
