"""Measures speed and peak memory of operations on whole episodes.

    python -m benchmarks.episodes

The ratios are what counts: all cases of a kind of data run in turn, on the same
machine and data, and their results are consumed in the graph. A speed is the
number of steps read per second. A peak is that of a process that runs one case;
subtract the peak of reading alone.
"""

import functools
import os
from typing import Any, Callable, Dict, List

from absl import app
from absl import flags
from absl import logging
import h5py
import numpy as np
import rlds
import tensorflow as tf

from benchmarks import data
from benchmarks import processes
from benchmarks import timing
import rlds2reverb
from rlds2reverb import formats
from rlds2reverb import statistics
from rlds2reverb import transforms
from rlds2reverb import windows

_STEPS = {
    kind: flags.DEFINE_integer(
        f'{kind}_steps', steps, f'The steps of the {kind}; 0 to leave them out.'
    )
    for kind, steps in (
        (data.VECTORS, 1_000_000),
        (data.NESTED, 300_000),
        (data.IMAGES, 10_000),
    )
}
_REPEATS = flags.DEFINE_integer(
    'repeats',
    5,
    'How many times each case is timed.',
    lower_bound=1,
)
_TIMEOUT_SECONDS = flags.DEFINE_integer(
    'timeout_seconds', 300, 'The longest that the process of a case may take.'
)
_KIND = flags.DEFINE_enum(
    'kind', None, data.KINDS, 'Run only one --case, in this process.'
)
_CASE = flags.DEFINE_string('case', None, 'The case of --kind to run.')
_DIRECTORY = flags.DEFINE_string(
    'directory', None, 'The directory of the data of --kind.'
)

_READ = 'reading alone'
_FLAT_FILE = 'flat.hdf5'
_SLICE_LENGTH = 8
_USED_SHARE = 8  # One frame in 8 is in a slice.


def _steps_of(episodes: tf.data.Dataset) -> tf.data.Dataset:
  return episodes.map(lambda episode: episode[rlds.STEPS])


def _read_statistics(episodes: tf.data.Dataset, steps: int) -> None:
  found = statistics.compute_statistics(episodes).num_steps
  if found != steps:
    raise RuntimeError(f'Expected {steps} steps, but got {found}.')


def _transforms() -> List[Callable[[Dict[str, Any]], Any]]:
  return [
      transforms.KeepEpisodes(min_length=1),
      transforms.ScaleReward(0.1),
      transforms.ClipField(rlds.ACTION, -1.0, 1.0),
  ]


def _cases(kind: str, directory: str) -> List[timing.Case]:
  """Returns the cases of a kind of data. The first only reads."""
  steps = data.whole_steps(_STEPS[kind].value)
  episodes = data.read_stacked(directory)

  def case(name, run):
    return timing.Case(name, steps, run, None if name == _READ else _READ)

  def rows(name, dataset, num_rows=steps):
    return case(name, data.reading(dataset, num_rows))

  cases = [rows(_READ, _steps_of(episodes))]
  if kind == data.IMAGES:
    return cases + _image_cases(rows, episodes)
  mapping = rlds2reverb.fields.StepMapping(
      # A vector of all leaves.
      observation=[rlds.OBSERVATION],
      discount=None,
      cast={'float64': 'float32'},
  )
  cases += [
      rows('map_fields', _steps_of(rlds2reverb.map_fields(episodes, mapping))),
      rows(
          'transform_episodes: keep, scale, clip',
          _steps_of(transforms.transform_episodes(episodes, _transforms())),
      ),
      rows(
          'NormalizeField: observation',
          _steps_of(
              transforms.transform_episodes(
                  episodes,
                  [transforms.NormalizeField(rlds.OBSERVATION, 0.5, 2.0)],
              )
          ),
      ),
      case(
          'compute_statistics',
          functools.partial(_read_statistics, episodes, steps),
      ),
  ]
  if kind == data.VECTORS:
    flat = formats.load(os.path.join(directory, _FLAT_FILE))
    cases.append(rows('flat arrays', _steps_of(flat)))
  return cases


def _image_cases(rows, episodes) -> List[timing.Case]:
  """Returns cases that use only some frames, decoded before or after."""
  num_slices = data.EPISODE_LENGTH.value // (_SLICE_LENGTH * _USED_SHARE)
  num_rows = num_slices * data.count_episodes(_STEPS[data.IMAGES].value)

  def decode(nest):
    return transforms.decode_images(
        nest, [rlds.OBSERVATION], size=data.IMAGE_SIZE
    )

  def draw(steps):
    return windows.sample_slices(
        windows.transition_rows(steps), (num_slices, _SLICE_LENGTH), seed=7
    ).rows

  def mapped(*functions):
    dataset = _steps_of(episodes)
    for function in functions:
      dataset = dataset.map(function, num_parallel_calls=tf.data.AUTOTUNE)
    return dataset

  return [
      rows(f'slices: 1 frame in {_USED_SHARE}', mapped(draw), num_rows),
      rows('slices, decoded late', mapped(draw, decode), num_rows),
      rows('slices, decoded early', mapped(decode, draw), num_rows),
  ]


def _write_flat_file(path: str, num_steps: int) -> None:
  """Writes episodes of vectors, one after the other, in D4RL's layout."""
  num_episodes = data.count_episodes(num_steps)
  steps = data.random_steps(np.random.default_rng(0))
  # The rows of the file are transitions, one fewer than steps.
  observations = steps[rlds.OBSERVATION]
  columns = {
      'observations': observations[:-1],
      'next_observations': observations[1:],
      'actions': steps[rlds.ACTION][:-1],
      'rewards': steps[rlds.REWARD][:-1],
      'terminals': steps[rlds.IS_LAST][1:],
  }
  with h5py.File(path, 'w') as file:
    for name, column in columns.items():
      shape = (num_episodes * len(column), *column.shape[1:])
      dataset = file.create_dataset(name, shape, column.dtype)
      for episode in range(num_episodes):
        start = episode * len(column)
        dataset[start : start + len(column)] = column


def _print_peaks(kind: str, cases: List[timing.Case], directory: str) -> None:
  print('\npeak memory of a process, and above reading alone')
  reading = None
  for case in cases:
    peak = processes.run(
        'benchmarks.episodes',
        [
            f'--kind={kind}',
            f'--case={case.name}',
            f'--directory={directory}',
            f'--{kind}_steps={_STEPS[kind].value}',
        ],
        _TIMEOUT_SECONDS.value,
    )
    reading = peak if reading is None else reading
    print(
        f'{case.name:<40}{peak:7.0f} MiB{peak - reading:+7.0f} MiB', flush=True
    )


def main(argv):
  if len(argv) > 1:
    raise app.UsageError('Too many command-line arguments.')
  if data.EPISODE_LENGTH.value < _SLICE_LENGTH * _USED_SHARE:
    raise app.UsageError(
        f'--episode_length must be at least {_SLICE_LENGTH * _USED_SHARE}.'
    )
  logging.set_verbosity(logging.WARNING)
  if _KIND.value:
    cases = _cases(_KIND.value, _DIRECTORY.value)
    {case.name: case for case in cases}[_CASE.value].run()
    print(processes.peak_mib())
    return
  for kind in data.KINDS:
    num_steps = _STEPS[kind].value
    if not num_steps:
      continue
    with data.temporary_episodes(num_steps, kind) as directory:
      if kind == data.VECTORS:
        _write_flat_file(os.path.join(directory, _FLAT_FILE), num_steps)
      cases = _cases(kind, directory)
      speeds = timing.measure(cases, _REPEATS.value)
      print(f'\n{kind}; {data.EPISODE_LENGTH.value}-step episodes')
      timing.print_table(cases, speeds, [])
      _print_peaks(kind, cases, directory)


if __name__ == '__main__':
  app.run(main)
