"""Replay buffers of d3rlpy: HDF5 files that `ReplayBuffer.dump` writes.

    columns, num_episodes, version
    observations_0      [T, ...]; observations_0_0 and so on for a tuple
    actions_0           [T, ...]
    rewards_0           [T, 1]
    terminated_0        whether the episode ends in a terminal state

d3rlpy 2.0 to 2.8 write version 2.1. Files of d3rlpy 1 are flat arrays.
"""

from __future__ import annotations

from typing import Any

from etils import epy
import gin
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.datasets import format_registry
from rlds2reverb.episodes import rlds
from rlds2reverb.formats import columns as columns_lib
from rlds2reverb.formats import hdf5_files
from rlds2reverb.formats import python_episodes

with epy.lazy_imports(error_callback=format_registry.explain_missing_library):
  import h5py

_VERSION = '2.1'
_COUNT = 'num_episodes'


@gin.configurable(module='rlds2reverb')
@python_episodes.naming_path
def load_d3rlpy(path: files.PathLike) -> tf.data.Dataset:
  """Reads the episodes that d3rlpy's `ReplayBuffer.dump` wrote.

  d3rlpy stores no observation after the last action. As in `from_flat_arrays`
  without next observations, the last observation of a truncated episode becomes
  its last step, whose action is ignored, and a step of zeros is appended to a
  terminal episode.

  Args:
    path: the path of a local file.

  Returns:
    A data set of episodes with stacked steps, in the order of the file. Dtypes
    are kept, and so are tuples of observations. A reward `[T, 1]` becomes
    `[T]`.

  Raises:
    ValueError: if the file does not exist or has another layout or version.
    InvalidArgumentError: while iterating, if the fields of an episode differ
      from the first episode, or have different numbers of rows.
  """
  path = files.expand_local(path, 'A replay buffer of d3rlpy')
  names = hdf5_files.check_file(path)
  if not {_COUNT, 'version'} <= set(names):
    raise ValueError(
        f'{path} is not a replay buffer of d3rlpy: it must contain {_COUNT}'
        ' and version.'
    )
  with h5py.File(path, 'r') as file:
    count = int(file[_COUNT][()])
    version = file['version'].asstr()[()]
  if version != _VERSION:
    raise ValueError(
        f'{path} has version {version} of replay buffers of d3rlpy. Only'
        f' {_VERSION} is supported. Load and dump it with d3rlpy 2.'
    )

  def read_one(file: h5py.File, index: int) -> python_episodes.PythonEpisode:
    steps = {
        field: _column(file, f'{name}_{index}')
        for field, name in columns_lib.NAMES.items()
    }
    rewards = steps[rlds.REWARD]
    if rewards.shape[1:] == (1,):
      steps[rlds.REWARD] = rewards[:, 0]
    terminated = _column(file, f'terminated_{index}')
    return python_episodes.make_episode(steps, index, terminated)

  def read() -> python_episodes.Episodes:
    with h5py.File(path, 'r') as file:
      for index in range(count):
        place = f'number {index} of {path}'
        yield python_episodes.attempt(
            read_one, file, index, place=place, file=path
        )

  return python_episodes.to_dataset(read, count, is_last_dropped=True)


def _column(file: h5py.File, name: str) -> Any:
  """Returns a column, or a tuple of columns."""
  try:
    return file[name][()]
  except KeyError:
    if name in file:
      raise  # The column is damaged.
  parts = []
  while f'{name}_{len(parts)}' in file:
    parts.append(file[f'{name}_{len(parts)}'][()])
  if not parts:
    raise ValueError(f'{file.filename} has no {name}.')
  return tuple(parts)
