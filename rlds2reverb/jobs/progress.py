"""Shows the progress of a job: a line on a terminal, or lines in a log."""

import collections
import datetime
import sys
import time
from typing import Any, Counter, Dict, Mapping

# How many `episodes`, `steps` and `num_bytes` were converted, and how many
# episodes were `skipped` as invalid, or `filtered`, by these names.
Progress = Counter[str]
NOTHING: Progress = collections.Counter()

_SECONDS_PER_LINE = 30.0
_SECONDS_PER_CHANGE = 0.1


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
  """Adds up the progress of all tasks, and shows it on the standard error.

  On a terminal it is one line, which changes; in a log, a line now and then.

  Attributes:
    total: the progress of all tasks, earlier starts of the job included.
  """

  def __init__(self, num_episodes: int, done: Progress):
    """Starts the display.

    Args:
      num_episodes: how many episodes all tasks have.
      done: the progress of earlier starts of the job, which does not count for
        the rate.
    """
    self._num_episodes = num_episodes
    self._done = done
    self.total = collections.Counter(done)
    self._tasks: Dict[int, Progress] = {}
    self._start = self._last = time.monotonic()
    self._is_terminal = sys.stderr.isatty()

  def update(self, number: int, progress: Progress) -> None:
    """Takes the progress of a task, which replaces its earlier one."""
    self.total.update(progress)
    self.total.subtract(self._tasks.get(number, {}))
    self._tasks[number] = progress
    now = time.monotonic()
    pause = _SECONDS_PER_CHANGE if self._is_terminal else _SECONDS_PER_LINE
    if now - self._last < pause:
      return
    self._last = now
    total, seconds = self.total, max(now - self._start, 1e-3)
    new = collections.Counter(total)
    new.subtract(self._done)
    seen = _seen(total)
    to_go = (self._num_episodes - seen) * seconds / max(_seen(new), 1)
    self.say(
        f'{seen:,} of {self._num_episodes:,} episodes,'
        f' {new["steps"] / seconds:,.0f} steps/s,'
        f' {new["num_bytes"] / seconds / 1e6:,.1f} MB/s,'
        f' {total["skipped"]:,} skipped,'
        f' {datetime.timedelta(seconds=round(to_go))} to go',
        end='' if self._is_terminal else '\n',
    )

  def say(self, message: str, end: str = '\n') -> None:
    """Writes a message, in the place of the line on a terminal."""
    begin = '\r\033[K' if self._is_terminal else ''
    print(begin + message, end=end, file=sys.stderr, flush=True)

  def close(self) -> None:
    """Leaves the last line, if there is one, where it is."""
    if self._is_terminal:
      print(file=sys.stderr)


def _seen(progress: Progress) -> int:
  return sum(progress[name] for name in ('episodes', 'skipped', 'filtered'))
