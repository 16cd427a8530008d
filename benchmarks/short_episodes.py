"""What a step costs in episodes of 5 steps, and in episodes of 1000.

    python -m benchmarks.short_episodes

Read the ratios: all cases are run in turn, on the same machine. Every length
has a data set of its own on disk. The column `/ reading` is the speed over that
of TFDS reading the same data, its steps not decoded, in the graph. The lines
below the table say how many times as much a step costs in short episodes.
"""

import os
import tempfile
from typing import Callable, Dict, List, NamedTuple

from absl import app
from absl import flags
from absl import logging
import rlds
import tensorflow_datasets as tfds

from benchmarks import data
from benchmarks import timing
from rlds2reverb import datasets
from rlds2reverb.datasets import records
from rlds2reverb.episodes import packs

_LENGTHS = flags.DEFINE_list(
    'lengths', ['5', '20', '100', '1000'], 'Steps in the episodes of each data'
    ' set, the shortest first.'
)
_STEPS = flags.DEFINE_integer(
    'steps',
    4_000_000,
    'Steps of each data set, if it does not have --episodes: so many that the'
    ' start of a pipeline, a tenth of a second, does not count.',
    lower_bound=1,
)
_EPISODES = flags.DEFINE_integer(
    'episodes', 200_000, 'Episodes of each data set, at most.', lower_bound=1
)
_SLOW_EPISODES = flags.DEFINE_integer(
    'slow_episodes',
    20_000,
    'Episodes, at most, of the cases that handle them one by one.',
    lower_bound=1,
)
_REPEATS = flags.DEFINE_integer(
    'repeats', 5, 'How many times each case is run.', lower_bound=3
)

_READING = 'TFDS reading'


class _Way(NamedTuple):
  """A way to go through the steps of a data set on disk.

  Attributes:
    prepare: a function of a directory, a split of its data set, and the number
      of steps in that split. It returns the function that goes through them.
    is_slow: whether every episode costs so much that few are enough.
  """

  prepare: Callable[[str, str, int], Callable[[], None]]
  is_slow: bool = False


def _tfds_reading(directory, split, steps):
  episodes = data.read_stacked(directory, split)
  return data.reading(
      episodes.map(lambda episode: episode[rlds.STEPS]), steps
  )


def _record_reading(directory, split, steps):
  """Returns what reads records, without parsing them: the limit of packs."""
  builder = tfds.builder_from_directory(directory)
  batches = records.record_batches(
      builder,
      split,
      shuffle_files=False,
      read_config=tfds.ReadConfig(try_autocache=False),
      max_bytes=2 << 20,
  )
  num_records = builder.info.splits[split].num_examples
  del steps  # Nobody counts them here.
  return data.reading(batches.map(records.cut_out), num_records)


def _pack_reading(directory, split, steps):
  episodes = datasets.load_episodes(directory, split)
  return data.reading(
      packs.packs_of(episodes).map(lambda pack: pack.steps), steps
  )


# Each is run for each length. Another way is one more line here.
_WAYS: Dict[str, _Way] = {
    _READING: _Way(_tfds_reading, is_slow=True),
    'records, not parsed': _Way(_record_reading),
    'packs': _Way(_pack_reading),
}


def _name(way: str, length: int) -> str:
  return f'{length} steps: {way}'


def _num_episodes(length: int) -> int:
  """Returns the number of episodes in the data set of one length."""
  return min(data.count_episodes(_STEPS.value, length), _EPISODES.value)


def _cases(directory: str, length: int) -> List[timing.Case]:
  """Returns the cases of one length, on the data set in `directory`."""
  cases = []
  for name, way in _WAYS.items():
    episodes = _num_episodes(length)
    if way.is_slow:
      episodes = min(episodes, _SLOW_EPISODES.value)
    steps = episodes * length
    run = way.prepare(directory, f'train[:{episodes}]', steps)
    baseline = None if name == _READING else _name(_READING, length)
    cases.append(timing.Case(_name(name, length), steps, run, baseline))
  return cases


def main(argv):
  if len(argv) > 1:
    raise app.UsageError('Too many command-line arguments.')
  logging.set_verbosity(logging.WARNING)
  lengths = list(map(int, _LENGTHS.value))
  cases = []
  with tempfile.TemporaryDirectory() as root:
    for length in lengths:
      directory = os.path.join(root, str(length))
      os.mkdir(directory)
      steps = _num_episodes(length) * length
      data.write_episodes(directory, steps, length=length)
      cases += _cases(directory, length)
    speeds = timing.measure(cases, _REPEATS.value)
  timing.print_table(cases, speeds, [])
  shortest, longest = lengths[0], lengths[-1]
  for way in _WAYS:
    cost = (
        speeds[_name(way, longest)].median / speeds[_name(way, shortest)].median
    )
    print(
        f'{way}: a step of an episode of {shortest} costs {cost:,.1f} times one'
        f' of {longest}'
    )


if __name__ == '__main__':
  app.run(main)
