"""Speed and memory of conversion jobs, beside calling the library directly.

    python -m benchmarks.jobs

Every job writes a Reverb checkpoint. Its rate is that of the whole call: the
plan, the tasks, joining their output, and the summary. Workers are started by
every job, and the process that they are forked from by the first one.
"""

import os
import statistics
import tempfile
import time
from typing import List

from absl import app
from absl import flags
from absl import logging

from benchmarks import data
from benchmarks import processes
from benchmarks import timing
import rlds2reverb
from rlds2reverb.jobs import convert
from rlds2reverb.jobs import memory
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import running
from rlds2reverb.jobs import sources

_STEPS = flags.DEFINE_integer(
    'steps',
    1_000_000,
    'Steps of vectors to convert; 0 for none.',
    lower_bound=0,
)
_IMAGE_STEPS = flags.DEFINE_integer(
    'image_steps',
    60_000,
    'Steps of images to convert; 0 for none.',
    lower_bound=0,
)
_MEMORY_STEPS = flags.DEFINE_list(
    'memory_steps', ['100000', '2000000'], 'Steps whose peak is measured.'
)
_REPEATS = flags.DEFINE_integer(
    'repeats', 3, 'How many times each case is run.', lower_bound=1
)
_TIMEOUT_SECONDS = flags.DEFINE_integer(
    'timeout_seconds', 600, 'The longest that one process may take.'
)
_DIRECTORY = flags.DEFINE_string(
    'directory', None, 'Converts this data set only, to print the peak.'
)

_TABLE = rlds2reverb.TableItems('transitions')


def _convert(directory: str, num_workers: int, episodes: str = '') -> None:
  """Does a job."""
  with tempfile.TemporaryDirectory() as folder:
    source = sources.make_source(directory, f'train{episodes}')
    plan = plan_lib.make_plan(
        [sources.open_source(source)],
        plan_lib.Output(plan_lib.CHECKPOINT, os.path.join(folder, 'output')),
        tables=[_TABLE],
    )
    convert.convert(
        plan,
        runner=running.LocalRunner(num_workers),
        say=lambda text: None,
    )


def _convert_directly(directory: str) -> None:
  with tempfile.TemporaryDirectory() as folder:
    rlds2reverb.write_reverb_checkpoint(
        rlds2reverb.load_episodes(directory),
        os.path.join(folder, 'output'),
        _TABLE,
        options=rlds2reverb.ConversionOptions(identity='benchmark'),
    )


def _cases(directory: str, steps: int) -> List[timing.Case]:
  return [
      timing.Case('directly', steps, lambda: _convert_directly(directory)),
      timing.Case('job, 1 worker', steps, lambda: _convert(directory, 1)),
      timing.Case('job, 2 workers', steps, lambda: _convert(directory, 2)),
  ]


def _print_speeds(kind: str, num_steps: int) -> None:
  steps = data.whole_steps(num_steps)
  with data.temporary_episodes(steps, kind) as directory:
    cases = _cases(directory, steps)
    for what, clock in (
        ('time', time.perf_counter),
        ('CPU time of all processes', processes.cpu_seconds),
    ):
      speeds = timing.measure(cases, _REPEATS.value, clock)
      print(f'{kind}, {what}:')
      timing.print_table(
          cases,
          speeds,
          [('directly', cases[0].name), ('1 worker', cases[1].name)],
      )
      print(flush=True)


def _print_start() -> None:
  """Prints how long a job of one episode takes."""
  with data.temporary_episodes(data.whole_steps(100_000)) as directory:
    case = timing.Case('start', 1, lambda: _convert(directory, 1, '[:1]'))
    speeds = timing.measure([case], _REPEATS.value)
  print(
      'A job of one episode, from the call to the whole checkpoint:'
      f' {1 / speeds[case.name].median:.2f} s\n',
      flush=True,
  )


def _print_peaks() -> None:
  for text in _MEMORY_STEPS.value:
    steps = data.whole_steps(int(text))
    with data.temporary_episodes(steps) as directory:
      peaks = [
          processes.run(
              'benchmarks.jobs',
              [f'--directory={directory}'],
              _TIMEOUT_SECONDS.value,
          )
          for _ in range(_REPEATS.value)
      ]
    print(
        f'Peak memory of a job of {steps:,} steps, 1 worker:'
        f' {statistics.median(peaks):,.0f} MiB',
        flush=True,
    )


def main(argv):
  if len(argv) > 1:
    raise app.UsageError('Too many command-line arguments.')
  logging.set_verbosity(logging.ERROR)
  if _DIRECTORY.value:
    memory.keep_flat()  # As the program does.
    _convert(_DIRECTORY.value, 1)
    print(processes.peak_mib())
    return
  _print_start()
  if _STEPS.value:
    _print_speeds(data.VECTORS, _STEPS.value)
  if _IMAGE_STEPS.value:
    _print_speeds(data.IMAGES, _IMAGE_STEPS.value)
  _print_peaks()


if __name__ == '__main__':
  app.run(main)
