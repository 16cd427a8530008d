"""Compares reading and converting RLDS steps with TF-Agents and RLDS.

    python -m benchmarks.conversion

The cases of a table alternate and read the same data, so compare their ratios.
Passes over few steps measure the startup time of a pipeline.
"""

from absl import app
from absl import flags
from absl import logging
import rlds
import tensorflow as tf
from tf_agents.replay_buffers import rlds_to_reverb as reference

from benchmarks import data
from benchmarks import timing
import rlds2reverb
from rlds2reverb import transforms

_STEPS = flags.DEFINE_integer('steps', 4_000_000, 'Steps of stacked cases.')
_NESTED_STEPS = flags.DEFINE_integer(
    'nested_steps', 200_000, 'Steps of nested cases.'
)
_REFERENCE_STEPS = flags.DEFINE_integer(
    'reference_steps', 10_000, 'Steps of cases that convert step by step.'
)
_SHORT_EPISODES = flags.DEFINE_integer(
    'short_episodes', 200_000, 'The number of short episodes.'
)
_STARTS = flags.DEFINE_list(
    'starts',
    ['1000', '3000', '10000', '100000'],
    'Steps of a pass; each pass builds its own pipeline.',
)
_PEAK = flags.DEFINE_integer(
    'peak', 0, 'Only converts this many steps, and prints the peak memory.'
)
_PEAK_STEPS = flags.DEFINE_list(
    'peak_steps', ['100000', '2000000'], 'The numbers of steps for peak memory.'
)

_SHORT = 5
_WINDOW = 80
_BATCH = 256
_ours = rlds2reverb.convert_rlds_to_trajectories


def _case(name, episodes, steps, convert, limit=None, rows=None):
  """Returns a case on the first episodes with at least `steps` in all."""
  count = data.count_episodes(steps)
  steps = count * data.EPISODE_LENGTH.value
  rows = count * rows if rows else steps
  read = data.reading(convert(episodes.take(count)), rows)
  return timing.Case(name, steps, read, limit)


def _compare_conversions(stacked, nested) -> None:
  steps, many, few = (
      flag.value for flag in (_STEPS, _NESTED_STEPS, _REFERENCE_STEPS)
  )
  blocks = lambda episodes: _ours(episodes, batched=True)
  by_reference = lambda episodes: (
      reference.convert_rlds_to_trajectories(episodes).batch(_BATCH)
  )
  by_step = 'TF-Agents, in a graph'
  timing.compare(
      [
          _case('stacked: reading', stacked, steps, data.steps_of),
          _case('stacked: blocks', stacked, steps, blocks, 'stacked: reading'),
          _case('nested: reading', nested, many, data.steps_of),
          _case('nested: blocks', nested, many, blocks, 'nested: reading'),
          _case(
              'nested: frames, batched',
              nested,
              many,
              lambda episodes: _ours(episodes).batch(_BATCH),
              'nested: reading',
          ),
          _case(by_step, nested, few, by_reference, 'nested: reading'),
      ],
      [('TF-Agents', by_step)],
  )


def _compare_starts(nested, stacked, loaded) -> None:
  """Compares passes that each build their own pipeline, as user calls do."""

  def make_pass(convert, episodes, num_steps):
    def run():
      for _ in convert(episodes.take(data.count_episodes(num_steps))):
        pass

    return run

  for num_steps in map(int, _STARTS.value):
    theirs = f'{num_steps}: TF-Agents'
    conversions = {
        theirs: (reference.convert_rlds_to_trajectories, nested),
        f'{num_steps}: nested': (lambda e: _ours(e, batched=True), nested),
        f'{num_steps}: stacked': (lambda e: _ours(e, batched=True), stacked),
        f'{num_steps}: load_episodes': (
            lambda e: _ours(e, batched=True),
            loaded,
        ),
    }
    timing.compare(
        [
            timing.Case(name, num_steps, make_pass(*conversion, num_steps))
            for name, conversion in conversions.items()
        ],
        [('TF-Agents', theirs)],
    )


def _compare_windows(stacked, nested) -> None:
  rows = data.EPISODE_LENGTH.value - _WINDOW + 1

  def by_rlds(episodes):
    windows = lambda episode: rlds.transformations.batch(
        episode[rlds.STEPS], _WINDOW, shift=1, drop_remainder=True
    )
    return episodes.flat_map(windows).batch(_BATCH)

  def ours(episodes):
    return rlds2reverb.convert_rlds_to_sequences(
        episodes, rlds2reverb.Windows(_WINDOW), batched=True
    )

  reading, name = 'stacked: reading', f'windows of {_WINDOW}'
  steps = _STEPS.value // 4
  timing.compare(
      [
          _case(reading, stacked, steps, data.steps_of),
          _case(name, stacked, steps, ours, reading, rows),
          _case(
              f'{name}, RLDS',
              nested,
              _REFERENCE_STEPS.value,
              by_rlds,
              reading,
              rows,
          ),
      ],
      [('RLDS', f'{name}, RLDS')],
  )


def _compare_short_episodes() -> None:
  steps = _SHORT * _SHORT_EPISODES.value
  with data.temporary_episodes(steps, length=_SHORT) as folder:
    episodes = rlds2reverb.load_episodes(folder)
    reading = f'episodes of {_SHORT}: reading by TFDS'
    changes = {
        '': lambda episodes: episodes,
        ', after take': lambda episodes: episodes.take(10**9),
        ', after map': lambda episodes: episodes.map(lambda e: e),
        ', after a transform': lambda episodes: transforms.transform_episodes(
            episodes, [transforms.ScaleReward(0.5)]
        ),
    }
    cases = [
        timing.Case(
            reading,
            steps,
            data.reading(data.steps_of(data.read_stacked(folder)), steps),
        )
    ]
    for name, change in changes.items():
      blocks = _ours(change(episodes), batched=True)
      read = data.reading(blocks, steps)
      cases.append(timing.Case(f'blocks{name}', steps, read, reading))
    timing.compare(cases)


def _print_peaks() -> None:
  for num_steps in _PEAK_STEPS.value:
    peak = timing.run_alone('conversion', f'--peak={num_steps}')
    print(f'Peak memory of a process that converts {num_steps} steps: {peak}')


def main(_) -> None:
  logging.set_verbosity(logging.ERROR)
  if _PEAK.value:
    with data.temporary_episodes(_PEAK.value) as folder:
      for _ in _ours(data.read_stacked(folder), batched=True):
        pass
    print(f'{timing.memory_mib():.0f} MiB')
    return
  num_steps = max(
      _STEPS.value,
      _NESTED_STEPS.value,
      _REFERENCE_STEPS.value,
      *map(int, _STARTS.value),
  )
  tf.get_logger().setLevel('ERROR')
  with data.temporary_episodes(num_steps) as folder:
    stacked, nested = data.read_stacked(folder), data.read_nested(folder)
    _compare_conversions(stacked, nested)
    _compare_starts(nested, stacked, rlds2reverb.load_episodes(folder))
    _compare_windows(stacked, nested)
  _compare_short_episodes()
  _print_peaks()


if __name__ == '__main__':
  app.run(main)
