"""Shows the progress of a job: a bar on a terminal, or lines in a log."""

import collections
import math
import sys
import time
from typing import Any, Counter, Dict, Mapping

import tqdm

# How many `episodes`, `steps` and `num_bytes` were converted, and how many
# episodes were `skipped` as invalid, or `filtered`, by these names.
Progress = Counter[str]
NOTHING: Progress = collections.Counter()

_SECONDS_PER_LINE = 30.0
# What tqdm writes in a log.
_LINE = '{n_fmt} of {total_fmt} episodes{postfix}, {remaining} to go'


def make(
    counts: Mapping[str, Any], skipped: int = 0, filtered: int = 0
) -> Progress:
  """Returns the progress of a task that has these counts."""
  found = {name: counts[name] for name in ('episodes', 'steps', 'num_bytes')}
  return collections.Counter(
      {**found, 'skipped': skipped, 'filtered': filtered}
  )


def of_receipt(receipt: Mapping[str, Any]) -> Progress:
  """Returns the progress of a task that is done."""
  return make(receipt, len(receipt['skipped']), receipt['filtered'])


class ProgressDisplay:
  """Adds up the progress of all tasks, and shows it.

  Attributes:
    total: the progress of all tasks, earlier starts of the job included.
  """

  def __init__(self, num_episodes: int, done: Progress):
    """Starts the display, on the standard error.

    Args:
      num_episodes: how many episodes all tasks have.
      done: the progress of earlier starts of the job, which does not count for
        the rate.
    """
    self._done = done
    self.total = collections.Counter(done)
    self._tasks: Dict[int, Progress] = {}
    self._start = self._last_line = time.monotonic()
    self._is_terminal = sys.stderr.isatty()
    self._bar = tqdm.tqdm(
        total=num_episodes,
        initial=_seen(done),
        unit=' episodes',
        file=sys.stderr,
        dynamic_ncols=True,
        # In a log a bar would fill a line without end.
        delay=0 if self._is_terminal else math.inf,
        bar_format=None if self._is_terminal else _LINE,
    )

  def update(self, number: int, progress: Progress) -> None:
    """Takes the progress of a task, which replaces its earlier one.

    The bar is brought up to date, or a line written if it is time for one.
    """
    self.total.update(progress)
    self.total.subtract(self._tasks.get(number, {}))
    self._tasks[number] = progress
    now = time.monotonic()
    steps, num_bytes = (
        (self.total[name] - self._done[name]) / max(now - self._start, 1e-3)
        for name in ('steps', 'num_bytes')
    )
    self._bar.set_postfix_str(
        f'{steps:,.0f} steps/s, {num_bytes / 1e6:,.1f} MB/s,'
        f' {self.total["skipped"]} skipped',
        refresh=False,
    )
    self._bar.update(_seen(self.total) - self._bar.n)
    is_time = now - self._last_line >= _SECONDS_PER_LINE
    if is_time and not self._is_terminal:
      self._last_line = now
      self.say(str(self._bar))

  def say(self, message: str) -> None:
    """Writes a line beside the display."""
    if self._is_terminal:
      self._bar.write(message, file=sys.stderr)
    else:
      print(message, file=sys.stderr, flush=True)

  def close(self) -> None:
    self._bar.close()


def _seen(progress: Progress) -> int:
  return sum(progress[name] for name in ('episodes', 'skipped', 'filtered'))
