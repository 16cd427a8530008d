"""Speed of converting RLDS steps to trajectories, beside TF-Agents.

    python -m benchmarks.conversion

Read the ratios: all cases are run in turn, on the same machine and data. Data
sets are consumed in the graph, but for the one that says otherwise. The last
columns are ratios: over reading the same source alone, and over TF-Agents in an
eager loop and in the graph.
"""

import functools
from typing import Callable, List

from absl import app
from absl import flags
from absl import logging
import rlds
import tensorflow as tf
from tf_agents.replay_buffers import rlds_to_reverb as reference

from benchmarks import data
from benchmarks import timing
from rlds2reverb import rlds_to_reverb

_STEPS = flags.DEFINE_integer(
    'steps',
    4_000_000,
    'Steps of the stacked cases: so many that the start of a pipeline, a tenth'
    ' of a second, does not count.',
    lower_bound=1,
)
_NESTED_STEPS = flags.DEFINE_integer(
    'nested_steps',
    200_000,
    'Steps of the nested cases, and of those one frame an element.',
    lower_bound=1,
)
_REFERENCE_STEPS = flags.DEFINE_integer(
    'reference_steps', 10_000, 'Steps of the TF-Agents cases.', lower_bound=1
)
_LONG_EPISODE_STEPS = flags.DEFINE_integer(
    'long_episode_steps',
    100_000,
    'Steps of the one nested episode, generated in the graph.',
    lower_bound=2,
)
_REPEATS = flags.DEFINE_integer(
    'repeats', 5, 'How many times each case is run.', lower_bound=3
)

_READ_STACKED = 'stacked files: reading alone'
_READ_NESTED = 'nested files: reading alone'
_READ_LONG = 'one long nested episode: reading alone'
_REFERENCE_EAGER = 'tf_agents, nested files: eager loop'
_REFERENCE_GRAPH = 'tf_agents, nested files: in graph, batches'
_BATCH = 256


def _stacked_steps(episodes: tf.data.Dataset) -> tf.data.Dataset:
  return episodes.map(lambda episode: episode[rlds.STEPS])


def _batch_steps(episodes: tf.data.Dataset) -> tf.data.Dataset:
  return episodes.flat_map(lambda episode: episode[rlds.STEPS].batch(1000))


def _batch_frames(
    convert: Callable[[tf.data.Dataset], tf.data.Dataset],
    episodes: tf.data.Dataset,
) -> tf.data.Dataset:
  return convert(episodes).batch(_BATCH)


def _cases(directory: str) -> List[timing.Case]:
  """Returns all cases, on the data set in `directory`."""
  stacked = data.read_stacked(directory)
  nested = data.read_nested(directory)
  long_episode = data.one_nested_episode(_LONG_EPISODE_STEPS.value)
  to_blocks = functools.partial(
      rlds_to_reverb.convert_rlds_to_trajectories, batched=True
  )
  to_frames = functools.partial(
      _batch_frames, rlds_to_reverb.convert_rlds_to_trajectories
  )
  reference_frames = functools.partial(
      _batch_frames, reference.convert_rlds_to_trajectories
  )

  def case(name, episodes, steps, convert, baseline=None, read=data.reading):
    if episodes is long_episode:
      dataset = convert(episodes)
    else:
      steps = data.whole_steps(steps)
      dataset = convert(episodes.take(data.count_episodes(steps)))
    return timing.Case(name, steps, read(dataset, steps), baseline)

  steps, nested_steps, reference_steps, long_steps = (
      _STEPS.value,
      _NESTED_STEPS.value,
      _REFERENCE_STEPS.value,
      _LONG_EPISODE_STEPS.value,
  )
  return [
      case(_READ_STACKED, stacked, steps, _stacked_steps),
      case('stacked files: blocks', stacked, steps, to_blocks, _READ_STACKED),
      case(
          'stacked files: frames, in batches',
          stacked,
          nested_steps,
          to_frames,
          _READ_STACKED,
      ),
      case(_READ_NESTED, nested, nested_steps, _batch_steps),
      case(
          'nested files: blocks',
          nested,
          nested_steps,
          to_blocks,
          _READ_NESTED,
      ),
      case(
          'nested files: frames, in batches',
          nested,
          nested_steps,
          to_frames,
          _READ_NESTED,
      ),
      case(_READ_LONG, long_episode, long_steps, _batch_steps),
      case(
          'one long nested episode: blocks',
          long_episode,
          long_steps,
          to_blocks,
          _READ_LONG,
      ),
      case(
          _REFERENCE_EAGER,
          nested,
          reference_steps,
          reference.convert_rlds_to_trajectories,
          _READ_NESTED,
          read=data.reading_eagerly,
      ),
      case(
          _REFERENCE_GRAPH,
          nested,
          reference_steps,
          reference_frames,
          _READ_NESTED,
      ),
  ]


def main(argv):
  if len(argv) > 1:
    raise app.UsageError('Too many command-line arguments.')
  logging.set_verbosity(logging.WARNING)
  num_steps = max(_STEPS.value, _NESTED_STEPS.value, _REFERENCE_STEPS.value)
  with data.temporary_episodes(num_steps) as directory:
    cases = _cases(directory)
    speeds = timing.measure(cases, _REPEATS.value)
  print(
      f'{data.OBSERVATION_SIZE.value}-float observations,'
      f' {data.ACTION_SIZE.value}-float actions,'
      f' {data.EPISODE_LENGTH.value}-step episodes; batches of {_BATCH};'
      f' {_REPEATS.value} repeats.\n'
  )
  timing.print_table(
      cases,
      speeds,
      [
          ('eager loop', _REFERENCE_EAGER),
          ('in graph', _REFERENCE_GRAPH),
      ],
  )


if __name__ == '__main__':
  app.run(main)
