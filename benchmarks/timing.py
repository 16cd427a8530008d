"""Timing of several cases against each other, and the table of the results."""

import dataclasses
import statistics
import time
from typing import Callable, Dict, List, Optional, Sequence, Tuple


@dataclasses.dataclass(frozen=True)
class Case:
  """Something to time.

  Attributes:
    name: what the table calls it.
    steps: how many steps one run goes through.
    run: does one run. Returns the seconds it took, or None where all of it is
      to be timed.
    baseline: the name of the case that reads the same source and does nothing.
  """

  name: str
  steps: int
  run: Callable[[], Optional[float]]
  baseline: Optional[str] = None


@dataclasses.dataclass(frozen=True)
class Speed:
  """Steps/s over the repeats of a case."""

  median: float
  slowest: float
  fastest: float


def measure(
    cases: Sequence[Case],
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Dict[str, Speed]:
  """Runs the cases in turn, again and again, so that all share the noise.

  A first run of each, before, does not count: in it graphs are traced, and
  files come into the page cache.

  Args:
    cases: the cases.
    repeats: how many times each is run.
    clock: returns the seconds since some moment.

  Returns:
    The speeds, by the names of the cases.
  """
  for case in cases:
    case.run()
  speeds = {case.name: [] for case in cases}
  for _ in range(repeats):
    for case in cases:
      start = clock()
      seconds = case.run()
      if seconds is None:
        seconds = clock() - start
      speeds[case.name].append(case.steps / seconds)
  return {
      name: Speed(statistics.median(values), min(values), max(values))
      for name, values in speeds.items()
  }


def print_table(
    cases: Sequence[Case],
    speeds: Dict[str, Speed],
    references: Sequence[Tuple[str, str]],
) -> None:
  """Prints a row a case, in thousands of steps a second, and ratios.

  Args:
    cases: the cases.
    speeds: what `measure` returned.
    references: pairs of a column's heading and the name of a case; the column
      has each case's speed over that case's.
  """
  has_baselines = any(case.baseline for case in cases)
  header = ['thousand steps/s', 'steps', 'median', 'slowest', 'fastest']
  header += ['/ reading'] * has_baselines
  header += [f'/ {heading}' for heading, _ in references]
  rows = [header]
  for case in cases:
    speed = speeds[case.name]
    row = [case.name, f'{case.steps:,}']
    row += [
        f'{value / 1000:,.1f}'
        for value in (speed.median, speed.slowest, speed.fastest)
    ]
    if has_baselines:
      row.append(_ratio(speed, speeds[case.baseline]) if case.baseline else '-')
    row += [_ratio(speed, speeds[name]) for _, name in references]
    rows.append(row)
  print('\n'.join(_aligned(rows)))


def _ratio(speed: Speed, other: Speed) -> str:
  ratio = speed.median / other.median
  return f'{ratio:,.0f}' if ratio >= 10 else f'{ratio:.2f}'


def _aligned(rows: List[List[str]]) -> List[str]:
  """Returns lines whose first column is left-aligned, the others right."""
  widths = [max(map(len, column)) for column in zip(*rows)]
  return [
      '  '.join(
          cell.rjust(width) if index else cell.ljust(width)
          for index, (cell, width) in enumerate(zip(row, widths))
      )
      for row in rows
  ]
