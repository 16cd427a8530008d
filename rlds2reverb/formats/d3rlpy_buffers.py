"""Replay buffers of d3rlpy: HDF5 files, as `ReplayBuffer.dump` writes them.

    columns, num_episodes, version
    observations_0      [T, ...]; observations_0_0 and so on of a tuple
    actions_0           [T, ...]
    rewards_0           [T, 1]
    terminated_0        whether the episode ends in a terminal state

The layout is 2.1, that of d3rlpy 2.0 to 2.8. Files of d3rlpy 1 are flat arrays.
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
from rlds2reverb.formats import hdf5
from rlds2reverb.formats import python_episodes

with epy.lazy_imports(error_callback=format_registry.explain_missing_library):
  import h5py

_VERSION = '2.1'
_COUNT = 'num_episodes'


@gin.configurable(module='rlds2reverb')
@python_episodes.naming_path
def load_d3rlpy(path: files.PathLike) -> tf.data.Dataset:
  """Reads the episodes that d3rlpy's `ReplayBuffer.dump` wrote.

  d3rlpy stores no observation after the last action. So, as in
  `from_flat_arrays` without next observations, the last observation of a
  truncated episode is its last step, whose action does not count, and a
  terminal episode gets a step of zeros.

  Args:
    path: the path of the file, on the local disk.

  Returns:
    A data set of episodes in their order, with stacked steps. Fields have the
    dtypes in the file; observations that are tuples there are tuples. A reward
    `[T, 1]` becomes `[T]`.

  Raises:
    ValueError: if there is no such file, if it is not of this layout, or of
      another version.
    InvalidArgumentError: while iterating, if an episode does not have the
      fields of the first, or as many rows of each.
  """
  path = files.expand_local(path, 'A replay buffer of d3rlpy')
  names = hdf5.names_in(path)
  if not {_COUNT, 'version'} <= set(names):
    raise ValueError(
        f'{path} is not a replay buffer of d3rlpy, which has {_COUNT} and'
        ' version.'
    )
  with h5py.File(path, 'r') as file:
    count = int(file[_COUNT][()])
    version = file['version'].asstr()[()]
  if version != _VERSION:
    raise ValueError(
        f'{path} is a replay buffer of d3rlpy of version {version}, but'
        f' {_VERSION} is read. Load and dump it with d3rlpy 2.'
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

  return python_episodes.to_dataset(read, count, is_last_left_out=True)


def _column(file: h5py.File, name: str) -> Any:
  """Returns a column, or a tuple of the columns of its parts."""
  try:
    return file[name][()]
  except KeyError:
    if name in file:
      raise  # It is damaged.
  parts = []
  while f'{name}_{len(parts)}' in file:
    parts.append(file[f'{name}_{len(parts)}'][()])
  if not parts:
    raise ValueError(f'{file.filename} has no {name}.')
  return tuple(parts)
