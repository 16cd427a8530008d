"""What a step costs in episodes of 5 steps, and in episodes of 1000.

    python -m benchmarks.short_episodes

Read the ratios: all cases are run in turn, on the same machine. Every length
has a data set of its own on disk. The column `/ reading` is the speed over that
of TFDS reading the same data, its steps not decoded, in the graph; `/ packs`
and `/ TF-Agents` are over reading packs and over the push of TF-Agents. The
lines below the tables say how many times as much a step costs in short episodes
as in long ones.
"""

import functools
import os
import tempfile
import time
from typing import Callable, Dict, List, NamedTuple, Optional

from absl import app
from absl import flags
from absl import logging
import rlds
import tensorflow as tf
import tensorflow_datasets as tfds
from tf_agents.replay_buffers import rlds_to_reverb

from benchmarks import data
from benchmarks import serving
from benchmarks import timing
import rlds2reverb
from rlds2reverb import transforms
from rlds2reverb.datasets import records
from rlds2reverb.episodes import data_sets
from rlds2reverb.episodes import grouping

_LENGTHS = flags.DEFINE_list(
    'lengths',
    ['5', '20', '100', '1000'],
    'Steps in the episodes of each data set, the shortest first.',
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
_INSERTED_STEPS = flags.DEFINE_integer(
    'inserted_steps',
    400_000,
    'Steps, at most, of the cases that insert items or write a checkpoint.',
    lower_bound=1,
)
_REFERENCE_STEPS = flags.DEFINE_integer(
    'reference_steps',
    3_000,
    'Steps, at most, that TF-Agents pushes.',
    lower_bound=1,
)
_REPEATS = flags.DEFINE_integer(
    'repeats', 5, 'How many times each case is run.', lower_bound=3
)

_READING = 'TFDS reading'
_REFERENCE = 'tf_agents push'


class _Way(NamedTuple):
  """A way to go through the steps of a data set on disk.

  Attributes:
    prepare: a function of a `_Part`. It returns the function that goes through
      the steps; that may return the seconds that count.
    max_steps: how many steps are enough, as they take long.
    is_slow: whether every episode costs so much that few are enough.
  """

  prepare: Callable[['_Part'], Callable[[], Optional[float]]]
  max_steps: flags.FlagHolder = _STEPS
  is_slow: bool = False


class _Part(NamedTuple):
  """What a case goes through.

  Attributes:
    directory: the directory of a data set.
    split: its split.
    steps: the number of steps in the split.
    length: the number of steps in each episode.
  """

  directory: str
  split: str
  steps: int
  length: int

  def load(self) -> tf.data.Dataset:
    return rlds2reverb.load_episodes(self.directory, self.split)


def _tfds_reading(part):
  episodes = data.read_stacked(part.directory, part.split)
  return data.reading(
      episodes.map(lambda episode: episode[rlds.STEPS]), part.steps
  )


def _record_reading(part):
  """Returns what reads records, without parsing them: the limit of packs."""
  builder = tfds.builder_from_directory(part.directory)
  batches = records.record_batches(
      builder,
      part.split,
      shuffle_files=False,
      read_config=tfds.ReadConfig(try_autocache=False),
      max_bytes=2 << 20,
  )
  # Nobody counts the steps here.
  num_records = builder.info.splits[part.split].num_examples
  return data.reading(batches.map(grouping.cut_out), num_records)


def _pack_reading(part):
  return data.reading(
      data_sets.packs_of(part.load()).map(lambda pack: pack.steps), part.steps
  )


def _blocks(part, change=lambda episodes: episodes, *, num_dropped=0):
  """Returns what reads blocks after a change.

  Args:
    part: what is read.
    change: a function of the data set of episodes.
    num_dropped: how many steps of each episode it leaves out.
  """
  return data.reading(
      rlds2reverb.convert_rlds_to_trajectories(
          change(part.load()), batched=True
      ),
      part.steps - num_dropped * (part.steps // part.length),
  )


def _pairs(part):
  return data.reading(
      rlds2reverb.convert_rlds_to_sequences(
          part.load(),
          rlds2reverb.Windows(serving.SEQUENCE_LENGTH),
          batched=True,
      ),
      serving.num_items(part.steps, part.length),
  )


def _inserting(push_fn, read):
  """Returns a way to push what `read` reads of a part to a server."""

  def prepare(part):
    episodes = read(part)
    insert = functools.partial(serving.push, push_fn, episodes)
    signature = serving.signature(episodes)
    return lambda: serving.time_insert(
        insert, signature, part.steps, part.length
    )

  return prepare


def _checkpoint(part):
  episodes = part.load()
  items = rlds2reverb.TableItems(
      serving.TABLE, rlds2reverb.Windows(serving.SEQUENCE_LENGTH)
  )

  def write():
    with tempfile.TemporaryDirectory() as parent:
      path = os.path.join(parent, 'checkpoint')
      start = time.perf_counter()
      rlds2reverb.write_reverb_checkpoint(episodes, path, items)
      return time.perf_counter() - start

  return write


# What comes between reading and blocks.
_CHANGES: Dict[str, Callable[[tf.data.Dataset], tf.data.Dataset]] = {
    'take': lambda episodes: episodes.take(10**9),
    'shuffle': lambda episodes: episodes.shuffle(100),
    # A function of the user's gets the episodes one by one.
    'map': lambda episodes: episodes.map(lambda episode: episode),
    'filter': lambda episodes: episodes.filter(lambda episode: True),
    'enumerate': lambda episodes: episodes.enumerate().map(
        lambda index, episode: episode
    ),
    **{
        type(transform).__name__: functools.partial(
            transforms.transform_episodes, transforms=[transform]
        )
        for transform in (
            transforms.ScaleReward(0.5),
            transforms.NormalizeField('observation', 0.0, 2.0),
            transforms.ClipField('action', low=-1.0, high=1.0),
            transforms.KeepEpisodes(min_length=1),
            transforms.RelabelGoals(),
            transforms.AddTimestep('timestep'),
            transforms.FrameSkip(1),
            transforms.DropNoOps(),
        )
    },
}
_BY_EPISODE = ('shuffle', 'map', 'filter', 'enumerate')

_CHANGED_BLOCKS = {
    f'blocks, after {name}': _Way(
        functools.partial(_blocks, change=change), is_slow=name in _BY_EPISODE
    )
    for name, change in _CHANGES.items()
}
_CHANGED_BLOCKS['blocks, after DropEnd'] = _Way(
    functools.partial(
        _blocks,
        change=functools.partial(
            transforms.transform_episodes, transforms=[transforms.DropEnd()]
        ),
        num_dropped=1,
    )
)

# Each is run for each length.
_WAYS: Dict[str, _Way] = {
    _READING: _Way(_tfds_reading, is_slow=True),
    'records, not parsed': _Way(_record_reading),
    'packs': _Way(_pack_reading),
    'blocks': _Way(_blocks),
    **_CHANGED_BLOCKS,
    'pairs in batches': _Way(_pairs),
    'bulk insert': _Way(
        _inserting(rlds2reverb.push_rlds_to_reverb, _Part.load),
        _INSERTED_STEPS,
    ),
    'checkpoint': _Way(_checkpoint, _INSERTED_STEPS),
    _REFERENCE: _Way(
        _inserting(
            rlds_to_reverb.push_rlds_to_reverb,
            lambda part: data.read_nested(part.directory, part.split),
        ),
        _REFERENCE_STEPS,
    ),
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
    episodes = min(
        _num_episodes(length), data.count_episodes(way.max_steps.value, length)
    )
    if way.is_slow:
      episodes = min(episodes, _SLOW_EPISODES.value)
    steps = episodes * length
    split = f'train[:{episodes}]'
    run = way.prepare(_Part(directory, split, steps, length))
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
  for length in lengths:
    of_length = [_name(way, length) for way in _WAYS]
    timing.print_table(
        [case for case in cases if case.name in of_length],
        speeds,
        [
            (heading, _name(way, length))
            for heading, way in (('packs', 'packs'), ('TF-Agents', _REFERENCE))
        ],
    )
    print()
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
