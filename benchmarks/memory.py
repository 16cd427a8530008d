"""Peak memory of converting RLDS steps to blocks, beside that of reading alone.

    python -m benchmarks.memory

Every case has a process of its own. Memory is bounded where the larger data
does not take more than the smaller, beyond what reading it alone takes.
"""

import statistics
import tempfile

from absl import app
from absl import flags
from absl import logging
import rlds

from benchmarks import data
from benchmarks import processes
from rlds2reverb import datasets
from rlds2reverb import rlds_to_reverb
from rlds2reverb.episodes import data_sets

_SMALL_STEPS = flags.DEFINE_integer(
    'small_steps', 100_000, 'Steps of the smaller files.', lower_bound=1
)
_LARGE_STEPS = flags.DEFINE_integer(
    'large_steps', 2_000_000, 'Steps of the larger files.', lower_bound=1
)
_SHORT_EPISODE_STEPS = flags.DEFINE_integer(
    'short_episode_steps',
    5_000,
    'Steps of the shorter nested episode.',
    lower_bound=2,
)
_LONG_EPISODE_STEPS = flags.DEFINE_integer(
    'long_episode_steps',
    500_000,
    'Steps of the longer nested episode.',
    lower_bound=2,
)
_MIXED_SHORT = flags.DEFINE_integer(
    'mixed_short', 40_000, 'Short episodes among the long ones.', lower_bound=2
)
_MIXED_LONG = flags.DEFINE_integer(
    'mixed_long', 40, 'Long episodes, side by side.', lower_bound=1
)
_MIXED_LONG_STEPS = flags.DEFINE_integer(
    'mixed_long_steps', 125_000, 'Steps of each of these.', lower_bound=2
)
_REPEATS = flags.DEFINE_integer(
    'repeats', 3, 'How many times each case is run.', lower_bound=1
)
_TIMEOUT_SECONDS = flags.DEFINE_integer(
    'timeout_seconds', 300, 'The longest that one process may take.'
)
_CASE = flags.DEFINE_enum(
    'case',
    None,
    [
        'files:read',
        'files:blocks',
        'episode:read',
        'episode:blocks',
        'mixed:read',
        'mixed:packs',
    ],
    'Runs this case only, in this process.',
)
_CASE_STEPS = flags.DEFINE_integer('case_steps', None, 'The steps of --case.')
_DIRECTORY = flags.DEFINE_string(
    'directory', None, 'The data set of a --case on files.'
)


def _run_case(case: str, steps: int) -> None:
  """Iterates the data set of `case` and prints the peak, in MiB."""
  source, action = case.split(':')
  if source == 'mixed':
    episodes = datasets.load_episodes(_DIRECTORY.value)
  elif source == 'files':
    episodes = data.read_stacked(_DIRECTORY.value)
  else:
    episodes = data.one_nested_episode(steps)
  if action == 'blocks':
    dataset = rlds_to_reverb.convert_rlds_to_trajectories(
        episodes, batched=True
    )
  elif action == 'packs':
    dataset = data_sets.packs_of(episodes).map(lambda pack: pack.steps)
  elif source in ('files', 'mixed'):
    dataset = episodes.map(lambda episode: episode[rlds.STEPS])
  else:
    dataset = episodes.flat_map(lambda episode: episode[rlds.STEPS].batch(1000))
  data.reading(dataset, steps)()
  print(processes.peak_mib())


def _start_case(case: str, steps: int, directory: str = '') -> float:
  """Runs `case` in a new process; returns its peak, in MiB."""
  return processes.run(
      'benchmarks.memory',
      [f'--case={case}', f'--case_steps={steps}', f'--directory={directory}'],
      _TIMEOUT_SECONDS.value,
  )


def _measure(source: str, sizes, directories) -> None:
  """Prints the peaks of one source, of reading it and of its blocks."""
  peaks = {}
  cases = [
      (f'{source}:{action}', size, directory)
      for action in ('read', 'blocks')
      for size, directory in zip(sizes, directories)
  ]
  for _ in range(_REPEATS.value):
    for case in cases:
      peaks.setdefault(case[:2], []).append(_start_case(*case))
  for action, title in (('read', 'reading alone'), ('blocks', 'blocks')):
    small, large = (
        statistics.median(peaks[f'{source}:{action}', size]) for size in sizes
    )
    print(
        f'  {title:<16}{sizes[0]:>9,} steps {small:7.0f} MiB'
        f'{sizes[1]:>12,} steps {large:7.0f} MiB{large - small:+10.0f} MiB',
        flush=True,
    )
  spread = max(max(values) - min(values) for values in peaks.values())
  print(f'  spread of the repeats: up to {spread:.0f} MiB\n', flush=True)


def _measure_mixed() -> None:
  """Prints the peaks of a data set whose large episodes stand side by side."""
  short, long = _MIXED_SHORT.value, _MIXED_LONG.value
  with tempfile.TemporaryDirectory() as directory:
    steps = data.write_mixed_episodes(
        directory,
        [(short // 2, 5), (long, _MIXED_LONG_STEPS.value), (short // 2, 5)],
    )
    peaks = {'mixed:read': [], 'mixed:packs': []}
    for _ in range(_REPEATS.value):
      for case, found in peaks.items():
        found.append(_start_case(case, steps, directory))
  for case, found in peaks.items():
    print(f'  {case:<16}{statistics.median(found):7.0f} MiB', flush=True)


def main(argv):
  if len(argv) > 1:
    raise app.UsageError('Too many command-line arguments.')
  logging.set_verbosity(logging.WARNING)
  if _CASE.value:
    _run_case(_CASE.value, _CASE_STEPS.value)
    return
  print(
      f'Peak memory of a process, the median of {_REPEATS.value};'
      f' {data.OBSERVATION_SIZE.value}-float observations,'
      f' {data.ACTION_SIZE.value}-float actions.\n'
  )
  small = data.whole_steps(_SMALL_STEPS.value)
  large = data.whole_steps(_LARGE_STEPS.value)
  print(f'Files, {data.EPISODE_LENGTH.value}-step episodes, stacked:')
  with data.temporary_episodes(small) as small_files:
    with data.temporary_episodes(large) as large_files:
      _measure('files', (small, large), (small_files, large_files))
  print('One nested episode, generated in the graph:')
  _measure(
      'episode',
      (_SHORT_EPISODE_STEPS.value, _LONG_EPISODE_STEPS.value),
      ('', ''),
  )
  print(
      f'{_MIXED_LONG.value} episodes of {_MIXED_LONG_STEPS.value:,} steps side'
      f' by side, among {_MIXED_SHORT.value:,} of 5, in one file:'
  )
  _measure_mixed()


if __name__ == '__main__':
  app.run(main)
