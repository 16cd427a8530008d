"""A progress bar on a terminal, or progress lines in a log."""

from collections.abc import Iterable
from collections.abc import Iterator
import os
import sys
import threading
import time
from typing import TypeVar

import tqdm

_T = TypeVar('_T')

_REFRESH_SECONDS = 0.5
_BAR = '{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]'
_LINE = '{desc}{n_fmt} of {total_fmt} {unit}{postfix}'
# The width of a terminal that does not know its size, as of `docker run -t`.
_DEFAULT_COLUMNS = 80
# A log gets a line after 2, 4, 8, 16 and 32 seconds, then every 30 seconds.
_FIRST_LINE_SECONDS = 2.0
_MAX_LINE_SECONDS = 30.0
# There is an estimate of the remaining time only after some seconds, and when
# the rate of the recent half of the time is near the overall rate. The time in
# which workers start and graphs are built would give an estimate of hours.
_MIN_ESTIMATE_SECONDS = 5.0
_MAX_RATE_RATIO = 1.5
_MAX_SAMPLES = 256


class ProgressBar:
  """Shows how many items of a total are done, on standard error.

  A thread refreshes the display, also while nothing is reported.

  Attributes:
    done: how many are done.
  """

  def __init__(
      self,
      total: int,
      *,
      initial: int = 0,
      unit: str = 'episodes',
      description: str = '',
  ):
    """Starts the display.

    Args:
      total: the number of items.
      initial: how many were done earlier. They do not count for the estimate
        of the remaining time.
      unit: the plural name of the items.
      description: text at the start of the line.
    """
    self._total, self._initial, self._unit = total, initial, unit
    self._description = f'{description}: ' if description else ''
    self._note = ''
    self.done = initial
    self._stream = sys.stderr
    self._is_terminal = self._stream.isatty()
    self._start = time.monotonic()
    self._samples: list[tuple[float, int]] = [(0.0, initial)]
    self._next_line = _FIRST_LINE_SECONDS
    self._logged = initial  # `done` in the last line of a log
    self._drawn = ''
    self._lock = threading.RLock()
    self._closed = threading.Event()
    self._refresh()
    self._thread = threading.Thread(target=self._keep_refreshing, daemon=True)
    self._thread.start()

  def __enter__(self) -> 'ProgressBar':
    return self

  def __exit__(self, *unused_error) -> None:
    self.close()

  @property
  def elapsed(self) -> float:
    """The seconds since the start."""
    return time.monotonic() - self._start

  def update(self, done: int, note: str = '') -> None:
    """Sets how many are done, and a note at the end of the line."""
    with self._lock:
      self.done, self._note = done, note
      self._samples.append((self.elapsed, done))
      if len(self._samples) > _MAX_SAMPLES:
        self._samples = self._samples[::2]

  def write(self, message: str) -> None:
    """Writes a line above the bar."""
    with self._lock:
      self._clear()
      print(message, file=self._stream, flush=True)
      if self._is_terminal and not self._closed.is_set():
        self._draw()

  def close(self) -> None:
    """Shows the final state, and ends the display."""
    if self._closed.is_set():
      return
    self._closed.set()
    self._thread.join()
    with self._lock:
      if self._is_terminal:
        self._draw()
        print(file=self._stream, flush=True)
        self._drawn = ''
      elif self.done != self._logged:
        self.write(self._text(_LINE))

  def remaining_seconds(self) -> float | None:
    """Returns the estimate of the remaining time, or None if it is unknown."""
    elapsed = self.elapsed
    if elapsed < _MIN_ESTIMATE_SECONDS or self.done <= self._initial:
      return None
    half = elapsed / 2
    done_at_half = next(
        done for time_, done in reversed(self._samples) if time_ <= half
    )
    overall = (self.done - self._initial) / elapsed
    recent = (self.done - done_at_half) / half
    if recent <= 0 or max(recent / overall, overall / recent) > _MAX_RATE_RATIO:
      return None
    return (self._total - self.done) / recent

  @classmethod
  def track(
      cls, items: Iterable[_T], total: int, *, unit: str, description: str = ''
  ) -> Iterator[_T]:
    """Yields items, and shows how many of `total` have been used."""
    with cls(total, unit=unit, description=description) as bar:
      for number, item in enumerate(items, 1):
        yield item
        bar.update(number)

  def _keep_refreshing(self) -> None:
    while not self._closed.wait(_REFRESH_SECONDS):
      try:
        self._refresh()
      except (OSError, ValueError):
        return  # Standard error is closed.

  def _refresh(self) -> None:
    with self._lock:
      if self._is_terminal:
        self._draw()
      elif self.elapsed >= self._next_line:
        self._next_line += min(self._next_line, _MAX_LINE_SECONDS)
        self._logged = self.done
        self.write(self._text(_LINE))

  def _text(self, bar_format: str, columns: int | None = None) -> str:
    notes = [self._note] if self._note else []
    remaining = self.remaining_seconds()
    if remaining is not None and self.done < self._total:
      notes.append(f'{tqdm.tqdm.format_interval(remaining)} to go')
    return tqdm.tqdm.format_meter(
        self.done,
        self._total,
        self.elapsed,
        ncols=columns,
        prefix=self._description,
        unit=self._unit,
        bar_format=bar_format,
        postfix=', '.join(notes),
    )

  def _draw(self) -> None:
    text = self._text(_BAR, self._columns() - 1)
    if text != self._drawn:
      self._stream.write('\r' + text.ljust(len(self._drawn)))
      self._stream.flush()
      self._drawn = text

  def _clear(self) -> None:
    if self._drawn:
      self._stream.write('\r' + ' ' * len(self._drawn) + '\r')
      self._drawn = ''

  def _columns(self) -> int:
    try:
      columns = os.get_terminal_size(self._stream.fileno()).columns
    except (OSError, ValueError):
      columns = 0
    return columns or _DEFAULT_COLUMNS
