"""Speed of windows on steps, beside RLDS and Reverb, and of other functions.

    python -m benchmarks.sequences

Read the ratios: all cases are run in turn, on the same machine and data. Speeds
are of the steps read, whatever the rows that are made of them. Data sets are
consumed in the graph, but for the eager loops. The columns of ratios are over
reading the same source alone, and over the two ways to make the same windows
without this library.
"""

import functools
import math
from typing import Any, Callable, Dict, List

from absl import app
from absl import flags
from absl import logging
import rlds
import tensorflow as tf

from benchmarks import data
from benchmarks import timing
import rlds2reverb
from rlds2reverb import windows
from rlds2reverb.windows import unrolling

_STEPS = flags.DEFINE_integer(
    'steps',
    4_000_000,
    'Steps of the stacked cases: so many that the start of a pipeline, a tenth'
    ' of a second, does not count.',
    lower_bound=1,
)
_GRAPH_REFERENCE_STEPS = flags.DEFINE_integer(
    'graph_reference_steps',
    100_000,
    'Steps of the RLDS and Reverb cases in the graph, and of reading nested'
    ' steps.',
    lower_bound=1,
)
_EAGER_REFERENCE_STEPS = flags.DEFINE_integer(
    'eager_reference_steps',
    30_000,
    'Steps of the RLDS and Reverb cases in an eager loop.',
    lower_bound=1,
)
_REPEATS = flags.DEFINE_integer(
    'repeats', 5, 'How many times each case is run.', lower_bound=3
)

_READ_STACKED = 'stacked files: reading alone'
_READ_NESTED = 'nested files: reading alone'
_BATCH = 256  # Windows of a batch, where the reference makes one an element.
_LENGTHS = (2, 10, 80)
_LONGEST = max(_LENGTHS)  # Of the chunks and the slices, too.
_NUM_FRAMES = 4
_N_STEP = 5
_GAMMA = 0.99
_VIEWS = {
    'frames': windows.ViewRequirement(rlds.OBSERVATION, '-3:0'),
    'following_observation': windows.ViewRequirement(rlds.OBSERVATION, 1),
    'previous_action': windows.ViewRequirement(rlds.ACTION, -1),
    'previous_reward': windows.ViewRequirement(rlds.REWARD, -1),
}


def _read_stacked(episodes: tf.data.Dataset) -> tf.data.Dataset:
  return episodes.map(lambda episode: episode[rlds.STEPS])


def _read_nested(episodes: tf.data.Dataset) -> tf.data.Dataset:
  return episodes.flat_map(lambda episode: episode[rlds.STEPS].batch(1000))


def _rlds_windows(episodes: tf.data.Dataset, length: int) -> tf.data.Dataset:
  return episodes.flat_map(
      lambda episode: rlds.transformations.batch(
          episode[rlds.STEPS], length, shift=1, drop_remainder=True
      )
  )


def _reverb_windows(episodes: tf.data.Dataset, length: int) -> tf.data.Dataset:
  # Makes a `reverb.PatternDataset` of the last steps.
  return rlds.transformations.pattern_map_from_transform(
      episodes,
      lambda step: tf.nest.map_structure(lambda leaf: leaf[-length:], step),
  )


def _sample(steps: Dict[str, Any], num_slices: int) -> Any:
  rows = windows.transition_rows(steps)
  return windows.sample_slices(rows, (num_slices, _LONGEST), seed=7)


def _chop(steps: Dict[str, Any]) -> Any:
  return windows.chop_into_sequences(windows.transition_rows(steps), _LONGEST)


def _r2d2(steps: Dict[str, Any]) -> unrolling.Chunks:
  rows = windows.n_step_transitions(steps, _N_STEP, _GAMMA)
  return windows.unroll(
      rows,
      rlds2reverb.Windows(_LONGEST, stride=_LONGEST // 2, end='repeat_last'),
  )


def _num_chunks(rows: int, length: int, stride: int) -> int:
  """Returns how many chunks `unroll` makes of an episode."""
  return max(math.ceil((rows - length) / stride), 0) + 1


def _case(
    name: str,
    episodes: tf.data.Dataset,
    steps: int,
    convert: Callable[[tf.data.Dataset], tf.data.Dataset],
    rows: int,
    baseline: str,
    read: Callable[..., Callable[[], None]] = data.reading,
) -> timing.Case:
  """Returns a case that makes `rows` rows of every episode."""
  num_episodes = data.count_episodes(steps)
  return timing.Case(
      name,
      data.whole_steps(steps),
      read(convert(episodes.take(num_episodes)), num_episodes * rows),
      None if name == baseline else baseline,
  )


def _window_cases(
    stacked: tf.data.Dataset, nested: tf.data.Dataset, length: int
) -> List[timing.Case]:
  """Returns the case of this library, then two each of RLDS and of Reverb."""
  rows = data.EPISODE_LENGTH.value - length + 1

  def reference_cases(name, convert):
    def case(how, steps, how_to_convert, read):
      return _case(
          f'windows of {length}: {name}, {how}',
          nested,
          steps,
          how_to_convert,
          rows,
          _READ_NESTED,
          read,
      )

    def in_batches(episodes):
      return convert(episodes, length).batch(_BATCH)

    return [
        case(
            'in graph',
            _GRAPH_REFERENCE_STEPS.value,
            in_batches,
            data.reading,
        ),
        case(
            'eager loop',
            _EAGER_REFERENCE_STEPS.value,
            functools.partial(convert, length=length),
            data.reading_eagerly,
        ),
    ]

  return [
      _case(
          f'windows of {length}: convert_rlds_to_sequences',
          stacked,
          _STEPS.value,
          lambda episodes: rlds2reverb.convert_rlds_to_sequences(
              episodes, rlds2reverb.Windows(length), batched=True
          ),
          rows,
          _READ_STACKED,
      ),
      *reference_cases('rlds.transformations.batch', _rlds_windows),
      *reference_cases('reverb.PatternDataset', _reverb_windows),
  ]


def _episode_cases(stacked: tf.data.Dataset) -> List[timing.Case]:
  """Returns a case a function of one episode's steps."""
  num_steps = data.EPISODE_LENGTH.value
  transitions = num_steps - 1
  chunks = math.ceil(transitions / _LONGEST)

  def case(name, function, rows):
    def convert(episodes):
      return episodes.map(lambda episode: function(episode[rlds.STEPS]))

    return _case(name, stacked, _STEPS.value, convert, rows, _READ_STACKED)

  return [
      case('transition_rows', windows.transition_rows, transitions),
      case(
          f'unroll: {_LONGEST}',
          lambda steps: windows.unroll(
              steps,
              rlds2reverb.Windows(_LONGEST, stride=_LONGEST, end='repeat_last'),
          ),
          chunks,
      ),
      case(
          f'n_step_transitions: {_N_STEP}',
          lambda steps: windows.n_step_transitions(steps, _N_STEP, _GAMMA),
          transitions,
      ),
      case(
          'reward_to_go',
          lambda steps: windows.reward_to_go(steps, _GAMMA),
          transitions,
      ),
      case(
          'advantages',
          lambda steps: windows.advantages(
              steps, steps[rlds.REWARD], _GAMMA  # Any values will do.
          ),
          transitions,
      ),
      case(
          f'apply_views: {len(_VIEWS)}, 4 frames in one',
          lambda steps: windows.apply_views(steps, _VIEWS),
          transitions,
      ),
      case(
          f'stack_and_chunk: {_NUM_FRAMES} frames',
          lambda steps: windows.stack_and_chunk(steps, _NUM_FRAMES),
          num_steps,
      ),
      case(
          f'stack_and_chunk: {_NUM_FRAMES} actions',
          lambda steps: windows.stack_and_chunk(
              steps, num_actions=_NUM_FRAMES, fill='zeros'
          ),
          num_steps,
      ),
      case(
          f'sample_slices: {chunks} of {_LONGEST} an episode',
          lambda steps: _sample(steps, chunks),
          chunks,
      ),
      case(f'chop_into_sequences: {_LONGEST}', _chop, chunks),
      case(
          f'n_step_transitions: {_N_STEP}, unroll: {_LONGEST}, half a stride',
          _r2d2,
          _num_chunks(transitions, _LONGEST, _LONGEST // 2),
      ),
  ]


def main(argv):
  if len(argv) > 1:
    raise app.UsageError('Too many command-line arguments.')
  length = data.EPISODE_LENGTH.value
  if length <= _LONGEST:
    raise app.UsageError(f'--episode_length must be more than {_LONGEST}.')
  logging.set_verbosity(logging.WARNING)
  steps, nested_steps = _STEPS.value, _GRAPH_REFERENCE_STEPS.value
  most = max(steps, nested_steps, _EAGER_REFERENCE_STEPS.value)
  with data.temporary_episodes(most) as directory:
    stacked = data.read_stacked(directory)
    nested = data.read_nested(directory)
    reading = [
        _case(
            _READ_STACKED, stacked, steps, _read_stacked, length, _READ_STACKED
        ),
        _case(
            _READ_NESTED,
            nested,
            nested_steps,
            _read_nested,
            length,
            _READ_NESTED,
        ),
    ]
    window_cases = [_window_cases(stacked, nested, size) for size in _LENGTHS]
    functions = _episode_cases(stacked)
    cases = sum(window_cases, reading) + functions
    speeds = timing.measure(cases, _REPEATS.value)
  print(
      f'{data.OBSERVATION_SIZE.value}-float observations,'
      f' {data.ACTION_SIZE.value}-float actions, {length}-step episodes;'
      f' references in graph in batches of {_BATCH}; {_REPEATS.value} repeats.'
  )
  for group in window_cases:
    names = [case.name for case in group[1:]]
    headings = ['RLDS', 'RLDS, eager', 'Reverb', 'Reverb, eager']
    print()
    timing.print_table(
        reading + group,
        speeds,
        list(zip(headings, names)),
    )
  print()
  timing.print_table([reading[0]] + functions, speeds, [])


if __name__ == '__main__':
  app.run(main)
