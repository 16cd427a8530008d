"""Conversion jobs on Apache Beam, beside those of the local runner.

    python -m benchmarks.beam

It needs `pip install '.[beam]'`. All jobs do the same tasks, and write
a Reverb checkpoint; their rate is that of the whole call. Then it prints how
fast parts are merged, beside copying their bytes, and in how much memory.
"""

import os
import shutil
import statistics
import tempfile
import time
from typing import List, Optional

from absl import app
from absl import flags
from absl import logging

from benchmarks import data
from benchmarks import processes
from benchmarks import timing
import rlds2reverb
from rlds2reverb.datasets import durable
from rlds2reverb.jobs import convert
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import quiet
from rlds2reverb.jobs import running
from rlds2reverb.jobs import sources
from rlds2reverb.jobs import tasks as tasks_lib
from rlds2reverb.jobs.beam import runner

_STEPS = flags.DEFINE_integer(
    'steps', 2_000_000, 'Steps to convert.', lower_bound=1
)
_TASKS = flags.DEFINE_integer(
    'tasks', 8, 'About how many tasks a job has.', lower_bound=1
)
_PARTS = flags.DEFINE_integer(
    'parts',
    64,
    'About how many parts are merged; few are joined without.',
    lower_bound=32,
)
_REPEATS = flags.DEFINE_integer(
    'repeats', 3, 'How many times each case is run.', lower_bound=1
)
_TIMEOUT_SECONDS = flags.DEFINE_integer(
    'timeout_seconds', 600, 'The longest that one process may take.'
)
_MERGE = flags.DEFINE_string(
    'merge', None, 'Merges the parts of the job in this folder only.'
)

_PROCESSES = (
    '--runner=FnApiRunner',
    '--direct_num_workers=2',
    '--direct_running_mode=multi_processing',
)


def _plan(directory: str, folder: str, num_tasks: int) -> plan_lib.Plan:
  opened = sources.open_source(sources.make_source(directory))
  return plan_lib.make_plan(
      [opened],
      plan_lib.Output(plan_lib.CHECKPOINT, os.path.join(folder, 'output')),
      tables=[rlds2reverb.TableItems('transitions')],
      task_bytes=-(-opened.num_bytes // num_tasks),
  )


def _convert(directory: str, runner: running.Runner) -> None:
  with tempfile.TemporaryDirectory() as folder:
    plan = _plan(directory, folder, _TASKS.value)
    convert.convert(plan, runner=runner, say=lambda text: None)


def _cases(directory: str, steps: int) -> List[timing.Case]:
  runners = {
      'local, 1 worker': running.LocalRunner(1),
      'FnApiRunner, in memory': runner.BeamRunner(['--runner=FnApiRunner']),
      'local, 2 workers': running.LocalRunner(2),
      'FnApiRunner, 2 processes': runner.BeamRunner(_PROCESSES),
  }
  return [
      timing.Case(
          name, steps, lambda runner=runner: _convert(directory, runner)
      )
      for name, runner in runners.items()
  ]


def _merge(folder: str) -> float:
  """Merges the parts of a job, level by level; returns the seconds."""
  plan = plan_lib.read(folder)
  output = tasks_lib.output_of(plan)
  start = time.perf_counter()
  for level in output.merges():
    for numbers in level:
      output.merge(folder, numbers)
  return time.perf_counter() - start


def _copy(folder: str) -> float:
  """Copies the files of the parts, so that they are on disk."""
  with tempfile.TemporaryDirectory(dir=folder) as copy:
    start = time.perf_counter()
    shutil.copytree(os.path.join(folder, 'parts'), os.path.join(copy, 'parts'))
    durable.sync_tree(copy)
    return time.perf_counter() - start


def _print_merges(directory: str) -> None:
  with tempfile.TemporaryDirectory() as parent:
    plan = _plan(directory, parent, _PARTS.value)
    folder = os.path.join(parent, 'job')
    plan_lib.write(_made(folder), plan)
    num_items = 0
    for number in range(len(plan.tasks)):
      receipt = tasks_lib.run_task(plan, number, folder)
      num_items += sum(receipt.items.values())
    size = sum(
        entry.stat().st_size
        for part in os.scandir(os.path.join(folder, 'parts'))
        for entry in os.scandir(part)
    )
    copying, merging, peaks = [], [], []
    for _ in range(_REPEATS.value):
      copy = os.path.join(parent, 'copy')
      shutil.copytree(folder, copy)
      copying.append(_copy(copy))
      merging.append(_merge(copy))
      shutil.rmtree(copy)
      shutil.copytree(folder, copy)
      peaks.append(_peak(copy) - _peak(None))
      shutil.rmtree(copy)
  rates = [
      size / statistics.median(seconds) / 1e6 for seconds in (merging, copying)
  ]
  print(
      f'{len(plan.tasks)} parts with {num_items:,} items, {size / 1e6:,.0f} MB,'
      f' in {len(tasks_lib.output_of(plan).merges())} levels of merges:'
      f' {rates[0]:,.0f} MB/s, {rates[0] / rates[1]:.2f} of copying the bytes;'
      f' {statistics.median(peaks):,.0f} MiB above what the process needs'
      ' without a merge.'
  )


def _made(folder: str) -> str:
  os.makedirs(folder)
  return folder


def _peak(folder: Optional[str]) -> float:
  return processes.run(
      'benchmarks.beam', [f'--merge={folder or ""}'], _TIMEOUT_SECONDS.value
  )


def main(argv):
  if len(argv) > 1:
    raise app.UsageError('Too many command-line arguments.')
  quiet.quiet_logs()
  logging.set_verbosity(logging.ERROR)
  if _MERGE.value is not None:
    if _MERGE.value:
      _merge(_MERGE.value)
    print(processes.peak_mib())
    return
  steps = data.whole_steps(_STEPS.value)
  with data.temporary_episodes(steps) as directory:
    cases = _cases(directory, steps)
    speeds = timing.measure(cases, _REPEATS.value)
    timing.print_table(
        cases,
        speeds,
        [
            ('local, 1', 'local, 1 worker'),
            ('local, 2', 'local, 2 workers'),
        ],
    )
    print(flush=True)
    _print_merges(directory)


if __name__ == '__main__':
  app.run(main)
