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
    'Measures the CPU time of this process, for a machine that is shared with'
    ' other work. The time of parallel threads is added.',
)


@dataclasses.dataclass(frozen=True)
class Case:
  """Something to time.

  Attributes:
    name: the name in the table.
    steps: the number of steps of one run.
    run: performs one run. Returns its seconds, or None to time the entire call.
    limit: the name of a case that does only the necessary work, such as reading
      the same source; None if there is no limit.
  """

  name: str
  steps: int
  run: Callable[[], float | None]
  limit: str | None = None


def compare(
    cases: Sequence[Case], references: Sequence[tuple[str, str]] = ()
) -> dict[str, float]:
  """Runs all cases repeatedly, in turn, and prints a row for each.

  The first run of each case is a warmup, which traces graphs and fills the page
  cache. The cases alternate, so that the noise of the machine affects all.

  Args:
    cases: the cases.
    references: pairs of a column's heading and the name of a case; the column
      has the speed of each case relative to the named case.

  Returns:
    The median steps a second of each case, by its name.
  """
  clock = time.process_time if CPU.value else time.perf_counter
  samples = {case.name: [] for case in cases}
  for repeat in range(REPEATS.value + 1):
    for case in cases:
      start = clock()
      seconds = case.run()
      if seconds is None:
        seconds = clock() - start
      if repeat:
        samples[case.name].append(case.steps / seconds)
  speeds = {name: statistics.median(values) for name, values in samples.items()}
  headings = ['thousand steps/s', 'steps', 'median', 'slowest', 'fastest']
  rows = [
      [*headings, '/ limit', *(f'/ {heading}' for heading, _ in references)]
  ]
  for case in cases:
    values = samples[case.name]
    values = speeds[case.name], min(values), max(values)
    baselines = [case.limit, *(name for _, name in references)]
    rows.append(
        [
            case.name,
            f'{case.steps:,}',
            *(f'{value / 1000:,.1f}' for value in values),
            *(
                f'{values[0] / speeds[name]:.2f}' if name in speeds else '-'
                for name in baselines
            ),
        ]
    )
  widths = [max(map(len, column)) for column in zip(*rows)]
  for name, *numbers in rows:
    cells = [name.ljust(widths[0]), *map(str.rjust, numbers, widths[1:])]
    print('  '.join(cells), flush=True)
  print(flush=True)
  return speeds


def memory_mib(field: str = 'VmHWM') -> float:
  """Returns the peak memory of this process, or its current one (VmRSS)."""
  status = pathlib.Path('/proc/self/status').read_text()
  fields = dict(line.split(':', 1) for line in status.splitlines())
  return int(fields[field].split()[0]) / 1024


def run_alone(module: str, *args: str) -> str:
  """Runs a benchmark in a new process; returns the last line that it prints.

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
