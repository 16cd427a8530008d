"""Converts data sets from end to end, as a job that survives interruptions.

The folder of a job holds all its state:

    plan.json          the plan, which never changes
    receipts/          a file for each task that is done
    parts/             the output of these tasks, until it is joined
    quarantine.jsonl   the invalid episodes
    summary.json       what was done, when all is done
"""

import collections
import contextlib
import errno
import math
import os
import time
from typing import Any, Callable, Dict, Optional, Sequence

from rlds2reverb.datasets import files
from rlds2reverb.datasets import locks
from rlds2reverb.episodes import checks
from rlds2reverb.jobs import engines
from rlds2reverb.jobs import estimates
from rlds2reverb.jobs import job_folder
from rlds2reverb.jobs import opened as opened_lib
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import progress as progress_lib
from rlds2reverb.jobs import receipts as receipts_lib
from rlds2reverb.jobs import rounds
from rlds2reverb.jobs import sources as sources_lib
from rlds2reverb.jobs import summary as summary_lib
from rlds2reverb.jobs import tasks as tasks_lib

_FULL = (errno.ENOSPC, errno.EDQUOT)
# How often a server may lose confirmed items before the job gives up.
_MAX_ROUNDS = 3


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
    folder: the folder of the job, by default `job_folder.default(plan)`.
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
  folder = files.expand(folder or job_folder.default(plan))
  job_folder.check_same_plan(plan, folder)
  engine = engine or engines.Here()
  job = _Job(
      plan,
      folder,
      engine=engine,
      max_skipped=math.floor(max_invalid_fraction * plan.num_episodes),
      allow_empty=allow_empty,
      say=say,
  )
  if dry_run:
    job.prepare()
    return {}
  with files.writing_to(folder):
    files.make_folder(folder)
  try:
    with contextlib.ExitStack() as stack:
      for path in job_folder.lock_paths(plan, folder):
        stack.enter_context(locks.locked(path, plan.output.place))
      # Another process may have written the plan in the meantime.
      job_folder.check_same_plan(plan, folder)
      try:
        job.prepare()
        if plan_lib.read(folder) != plan:
          job_folder.remove(folder)
          plan_lib.write(folder, plan)
        return job.run(patience)
      except BaseException:
        job.leave_nothing_if_nothing_is_done()
        raise
  finally:
    with contextlib.suppress(OSError):
      os.rmdir(folder)


class _Job:
  """One start of a job."""

  def __init__(self, plan, folder, *, engine, max_skipped, allow_empty, say):
    self._plan = plan
    self._folder = folder
    self._engine = engine
    self._max_skipped = max_skipped
    self._allow_empty = allow_empty
    self._say = say
    self._output = tasks_lib.output_of(plan)
    self._display = None
    self._receipts = {}

  def prepare(self) -> None:
    """Checks that the plan can work, and says what will be done."""
    plan = self._plan
    self._receipts = receipts_lib.read(self._folder, plan.hash)
    opened = [sources_lib.open_source(source) for source in plan.sources]
    spec = opened_lib.common_frame_spec(
        [opened[i] for i in sorted({task.source for task in plan.tasks})]
    )
    lines = self._output.check(self._folder, spec, self._receipts)
    self._say(
        estimates.describe(
            plan, opened, spec, lines, self._folder, self._receipts
        )
    )
    if not self._output.is_finished(self._folder, self._receipts):
      job_folder.check_space(plan, self._output, self._folder, self._receipts)

  def run(self, patience: float) -> Dict[str, Any]:
    """Does the tasks that are left, and finishes the output."""
    start = time.monotonic()
    if self._output.is_finished(self._folder, self._receipts):
      self._check_still_true()
      self._check_not_empty()
      known = summary_lib.read(self._folder, self._plan.hash)
      self._output.clean(self._folder)
      if known:
        self._say('All of it is done already; there is nothing to do.')
        return known
      self._say('All of it is done; only the summary was missing.')
      return self._sum_up(start)
    files.remove(os.path.join(self._folder, summary_lib.SUMMARY))
    for _ in range(_MAX_ROUNDS):
      self._forget_lost()
      self._forget_changed()
      left = sorted(set(range(len(self._plan.tasks))) - self._receipts.keys())
      if not left:
        break
      self._do(left, patience)
    else:
      raise JobError(
          f'The output was lost {_MAX_ROUNDS} times while the job ran. Start it'
          ' again when the server is well.'
      )
    self._check_not_empty()
    if not self._output.is_finished(self._folder, self._receipts):
      self._finish()
    summary = self._sum_up(start)
    self._output.clean(self._folder)
    return summary

  def leave_nothing_if_nothing_is_done(self) -> None:
    """Removes the folder of a job that did nothing.

    It would stop a corrected command. A list of invalid episodes stays.
    """
    if not job_folder.is_of_use(self._folder, self._plan):
      job_folder.remove(self._folder)

  def _do(self, numbers: Sequence[int], patience: float) -> None:
    """Does tasks; raises a JobError if some have failed."""
    self._display = progress_lib.ProgressDisplay(
        self._plan.num_episodes,
        done=progress_lib.of_receipts(*self._receipts.values()),
    )
    attempt = tasks_lib.Attempt(
        self._folder, self._plan.hash, self._max_skipped
    )
    try:
      self._check_skipped()
      failures = rounds.do_all(
          self._engine, attempt, numbers, patience, listener=self
      )
    finally:
      self._engine.stop()
      self._display.close()
    self._check_all_done(failures)

  def on_progress(self, number: int, progress: tasks_lib.Progress) -> None:
    """Receives the progress of a task."""
    self._display.update(number, progress)
    self._check_skipped()

  def on_done(self, number: int, receipt: receipts_lib.Receipt) -> None:
    """Receives the receipt of a task that is done."""
    self._receipts[number] = receipt
    self.on_progress(number, progress_lib.of_receipts(receipt))

  def on_retry(self, number: int, error: Exception) -> None:
    """Receives the error after which a task is tried again."""
    self._display.say(f'Task {number} is tried again: {error}')

  def _check_all_done(self, failures: Dict[int, str]) -> None:
    if not failures:
      return
    if self._receipts:
      summary_lib.write_quarantine(self._folder, self._receipts)
    lines = [
        f'  task {number}: {message}'
        for number, message in sorted(failures.items())
    ]
    raise JobError(
        f'{len(failures)} of {len(self._plan.tasks)} tasks have failed;'
        f' {len(self._receipts)} are done.\n'
        + '\n'.join(lines)
        + '\nStart the same command again to do the rest.'
    )

  def _check_skipped(self) -> None:
    skipped = self._display.total.skipped
    if skipped > self._max_skipped:
      summary_lib.write_quarantine(self._folder, self._receipts)
      raise tasks_lib.InvalidEpisodesError(
          f'{checks.counted(skipped, "episode is", "episodes are")} invalid,'
          f' and {self._max_skipped} of'
          f' {self._plan.num_episodes} may be. Those of the tasks that are done'
          f' are in {os.path.join(self._folder, summary_lib.QUARANTINE)}.'
      )

  def _check_still_true(self) -> None:
    """Raises a JobError if the data has changed since the job was finished."""
    changed = tasks_lib.changed(self._plan, self._receipts)
    if changed:
      raise JobError(
          f'All of it is done, but the files of {len(changed)} of'
          f' {len(self._plan.tasks)} tasks have changed since, so that'
          f' {self._plan.output.place} does not hold what they hold now. Remove'
          f' it and {self._folder} to convert them anew, or choose another'
          ' output.'
      )

  def _check_not_empty(self) -> None:
    """Raises a JobError if the output would be empty."""
    if self._allow_empty or self._plan.only is not None:
      return  # Repaired episodes go into an output that has items.
    totals = summary_lib.make(self._plan, self._receipts)
    lengths = totals['statistics']['length']
    reason = summary_lib.why_empty(
        self._plan.table_items,
        totals['items'],
        # A transition lies between two steps.
        lengths['max'] + 1 if lengths['count'] else 0,
    )
    if not self._plan.tables and not totals['episodes']:
      place = self._plan.output.place
      reason = f'{place} would be empty: there is no valid episode.'
    if reason and totals['skipped']:
      summary_lib.write_quarantine(self._folder, self._receipts)
      reason += (
          f' {os.path.join(self._folder, summary_lib.QUARANTINE)} lists'
          f' {checks.counted(totals["skipped"], "invalid episode")}.'
      )
    if reason:
      raise JobError(reason)

  def _forget_changed(self) -> None:
    """Discards the output of tasks whose files were written anew since."""
    changed = tasks_lib.changed(self._plan, self._receipts)
    if not changed:
      return
    # The output goes first, so an interruption leaves no output of old data
    # that has no receipt.
    self._output.discard(self._folder, changed)
    self._forget(dict.fromkeys(changed, 'files have changed since'))
    self._forget_lost()

  def _forget_lost(self) -> None:
    """Removes the receipts of tasks whose output is gone, and says so."""
    self._forget(self._output.lost(self._folder, self._receipts))

  def _forget(self, reasons: Dict[int, str]) -> None:
    """Removes the receipts of tasks, and says why, by their numbers."""
    for number in reasons:
      receipts_lib.remove(self._folder, number)
      del self._receipts[number]
    for reason, count in collections.Counter(reasons.values()).items():
      tasks = checks.counted(count, 'task is', 'tasks are')
      self._say(f'{tasks} done again: {reason}.')

  def _finish(self) -> None:
    """Makes the whole output from the outputs of the tasks."""
    try:
      self._engine.finish(tasks_lib.Finish(self._folder, self._plan.hash))
    except OSError as e:
      if e.errno not in _FULL:
        raise
      reason = job_folder.explain_full(
          self._plan, self._output, self._folder, self._receipts
      )
      raise JobError(
          f'{reason} All tasks are done, and kept in {self._folder}: make room,'
          ' and the same command goes on with the result.'
      ) from e

  def _sum_up(self, start) -> Dict[str, Any]:
    summary = summary_lib.write(
        self._plan, self._folder, self._receipts, time.monotonic() - start
    )
    self._say(summary_lib.to_text(summary, self._folder))
    return summary
