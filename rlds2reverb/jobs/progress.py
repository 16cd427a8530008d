"""Shows the progress of a job: a bar on a terminal, or lines in a log."""

import math
import sys
import time
from typing import Dict

import tqdm

from rlds2reverb.jobs import job as job_lib
from rlds2reverb.jobs import tasks as tasks_lib

_SECONDS_PER_LINE = 30.0
# What tqdm writes in a log.
_LINE = '{n_fmt} of {total_fmt} episodes{postfix}, {remaining} to go'


class ProgressDisplay:
  """Adds up the progress of all tasks, and shows it.

  Attributes:
    total: the progress of all tasks, earlier starts of the job included.
  """

  def __init__(self, num_episodes: int, done: tasks_lib.Progress):
    """Starts the display, on the standard error.

    Args:
      num_episodes: how many episodes all tasks have.
      done: the progress of earlier starts of the job, which does not count for
        the rate.
    """
    self._stream = sys.stderr
    self.total = self._done = done
    self._tasks: Dict[int, tasks_lib.Progress] = {}
    self._start = self._last_line = time.monotonic()
    self._is_terminal = self._stream.isatty()
    self._bar = tqdm.tqdm(
        total=num_episodes,
        initial=_seen(done),
        unit=' episodes',
        file=self._stream,
        dynamic_ncols=True,
        # In a log a bar would fill a line without end.
        delay=0 if self._is_terminal else math.inf,
        bar_format=None if self._is_terminal else _LINE,
    )

  def update(self, number: int, progress: tasks_lib.Progress) -> None:
    """Takes the progress of a task, which replaces its earlier one.

    The bar is brought up to date, or a line written if it is time for one.
    """
    before = self._tasks.get(number, tasks_lib.Progress())
    self._tasks[number] = progress
    total = self.total = tasks_lib.Progress(
        *(a + b - c for a, b, c in zip(self.total, progress, before))
    )
    now = time.monotonic()
    seconds = max(now - self._start, 1e-3)
    steps = (total.steps - self._done.steps) / seconds
    mb = (total.num_bytes - self._done.num_bytes) / seconds / 1e6
    self._bar.set_postfix_str(
        f'{steps:,.0f} steps/s, {mb:,.1f} MB/s, {total.skipped} skipped',
        refresh=False,
    )
    self._bar.update(_seen(total) - self._bar.n)
    is_time = now - self._last_line >= _SECONDS_PER_LINE
    if is_time and not self._is_terminal:
      self._last_line = now
      self.say(str(self._bar))

  def say(self, message: str) -> None:
    """Writes a line beside the display."""
    if self._is_terminal:
      self._bar.write(message, file=self._stream)
    else:
      print(message, file=self._stream, flush=True)

  def close(self) -> None:
    self._bar.close()


def _seen(progress: tasks_lib.Progress) -> int:
  return progress.episodes + progress.skipped + progress.filtered


def of_receipts(*done: job_lib.Receipt) -> tasks_lib.Progress:
  """Returns the progress of tasks that are done, all together."""
  of_each = [
      tasks_lib.progress_of(one, len(one['skipped']), one['filtered'])
      for one in done
  ]
  return tasks_lib.Progress(*map(sum, zip(*of_each)))
