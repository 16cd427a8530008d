"""Timing of several cases against each other, their table, and memory."""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import pathlib
import statistics
import subprocess
import sys
import time

from absl import flags

REPEATS = flags.DEFINE_integer(
    'repeats', 5, 'How many times each case is run.', lower_bound=1
)
CPU = flags.DEFINE_boolean(
    'cpu',
    False,
    'Measures the CPU time of this process, for a machine that does other work.'
    ' What two threads do at once counts twice.',
)


@dataclasses.dataclass(frozen=True)
class Case:
  """Something to time.

  Attributes:
    name: what the table calls it.
    steps: how many steps one run goes through.
    run: does one run. Returns the seconds it took, or None where all of it is
      to be timed.
    limit: the name of the case that does only what cannot be left out, such as
      reading the same source; None for none.
  """

  name: str
  steps: int
  run: Callable[[], float | None]
  limit: str | None = None


def compare(
    cases: Sequence[Case], references: Sequence[tuple[str, str]] = ()
) -> dict[str, float]:
  """Runs the cases in turn, again and again, and prints a row for each.

  A first run of each does not count: in it graphs are traced, and files come
  into the page cache. Then all cases share the noise of the machine.

  Args:
    cases: the cases.
    references: pairs of a column's heading and the name of a case; the column
      has each case's speed over that of this case.

  Returns:
    The median steps a second of each case, by its name.
  """
  clock = time.process_time if CPU.value else time.perf_counter
  found = {case.name: [] for case in cases}
  for repeat in range(REPEATS.value + 1):
    for case in cases:
      start = clock()
      seconds = case.run()
      if seconds is None:
        seconds = clock() - start
      if repeat:
        found[case.name].append(case.steps / seconds)
  speeds = {name: statistics.median(values) for name, values in found.items()}
  headings = ['thousand steps/s', 'steps', 'median', 'slowest', 'fastest']
  rows = [
      [*headings, '/ limit', *(f'/ {heading}' for heading, _ in references)]
  ]
  for case in cases:
    values = speeds[case.name], min(found[case.name]), max(found[case.name])
    others = [case.limit, *(name for _, name in references)]
    rows.append(
        [
            case.name,
            f'{case.steps:,}',
            *(f'{value / 1000:,.1f}' for value in values),
            *(
                f'{values[0] / speeds[other]:.2f}' if other in speeds else '-'
                for other in others
            ),
        ]
    )
  widths = [max(map(len, column)) for column in zip(*rows)]
  for first, *others in rows:
    cells = [first.ljust(widths[0]), *map(str.rjust, others, widths[1:])]
    print('  '.join(cells), flush=True)
  print(flush=True)
  return speeds


def memory_mib(what: str = 'VmHWM') -> float:
  """Returns the peak memory of this process, or its present one (VmRSS)."""
  status = pathlib.Path('/proc/self/status').read_text()
  fields = dict(line.split(':', 1) for line in status.splitlines())
  return int(fields[what].split()[0]) / 1024


def run_alone(module: str, *args: str) -> str:
  """Runs a benchmark in a process of its own; returns the last line it prints.

  Args:
    module: its name in this folder.
    *args: its flags.
  """
  done = subprocess.run(
      [sys.executable, '-m', f'benchmarks.{module}', *args],
      check=True,
      stdout=subprocess.PIPE,
      text=True,
      timeout=3600,
  )
  return done.stdout.splitlines()[-1]
