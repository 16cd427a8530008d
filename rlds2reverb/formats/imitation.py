"""Trajectories of the library imitation, in HuggingFace folders or npz files.

    a folder   a table of Arrow, with a row for each trajectory
    a file     arrays of all trajectories, one after the other, and `indices`,
               where all but the first begin; imitation wrote these before 1.0

    obs        [T + 1, ...]
    acts       [T, ...]
    rews       [T]; only of trajectories with rewards
    infos      [T]; in a folder text, as jsonpickle makes it of dicts
    terminal   whether the trajectory ends in a terminal state

The format is that of imitation.readthedocs.io, as imitation 1.0.1 reads it.
"""

import json
import os
from typing import Dict, Iterator, List, Sequence

import gin
import numpy as np
import pyarrow as pa
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.episodes import rlds
from rlds2reverb.formats import arrow
from rlds2reverb.formats import columns as columns_lib
from rlds2reverb.formats import npz
from rlds2reverb.formats import python_episodes

_STATE_FILE = 'state.json'
_OBSERVATIONS = 'obs'
_ACTIONS = 'acts'
_TERMINAL = 'terminal'
_INDICES = 'indices'
_INFOS = 'infos'
_FIELDS = {
    rlds.OBSERVATION: _OBSERVATIONS,
    rlds.ACTION: _ACTIONS,
    rlds.REWARD: 'rews',
    _INFOS: _INFOS,
}


@gin.configurable(module='rlds2reverb')
def load_imitation(path: files.PathLike) -> tf.data.Dataset:
  """Reads the trajectories that imitation's `serialize.save` wrote.

  Args:
    path: the folder of a HuggingFace data set, or an `.npz` file, on the local
      disk.

  Returns:
    A data set of episodes, `{'episode_id': int64 [], 'steps': {...}}`, in the
    order of the trajectories, their steps stacked `[T + 1, ...]`; `episode_id`
    counts them. Fields have the dtypes of their columns. A reward is float32
    zeros if there is none. The `infos` of a folder are a step field of strings,
    JSON by jsonpickle; those of a file are pickles, and are left out.

  Raises:
    ValueError: if there are no such trajectories, or if the files are damaged.
    InvalidArgumentError: while iterating, if a trajectory is damaged or is not
      like the first.
  """
  path = files.expand_local(path, 'A data set of imitation')
  state = os.path.join(path, _STATE_FILE)
  if os.path.isfile(state):
    with files.open_text(state) as f:
      tables = [one['filename'] for one in json.load(f)['_data_files']]
    return _load_tables([os.path.join(path, table) for table in tables])
  if not os.path.isfile(path):
    raise ValueError(
        f'{path} is neither the folder of a HuggingFace data set, which has a'
        f' {_STATE_FILE}, nor an npz file.'
    )
  return _load_npz(path)


def _load_tables(paths: List[str]) -> tf.data.Dataset:
  """Reads the tables of a HuggingFace data set."""

  def batches() -> Iterator[pa.RecordBatch]:
    for path in paths:
      with arrow.open_errors(path), pa.memory_map(path) as file:
        with pa.ipc.open_stream(file) as reader:
          yield from reader

  def read() -> python_episodes.Episodes:
    index = 0
    for batch in batches():
      names = _names_of(paths[0], batch.schema.names)
      for row in arrow.read_rows(batch):
        steps = {field: row[name] for field, name in names.items()}
        yield python_episodes.make_episode(
            steps, index, row[_TERMINAL], has_last=True
        )
        index += 1

  return python_episodes.to_dataset(read, sum(map(len, batches())))


def _load_npz(path: str) -> tf.data.Dataset:
  """Reads the arrays of an npz file."""
  with npz.open_columns(path) as columns:
    names = _names_of(path, [*columns])
    if _INDICES not in columns:
      raise ValueError(
          f'{path} has {_OBSERVATIONS} and {_ACTIONS}, but no {_INDICES}, by'
          ' which imitation cuts trajectories. They are flat arrays, of the'
          ' format npz.'
      )
    is_terminal = columns[_TERMINAL][:].astype(bool)
    starts = columns[_INDICES][:]
    lengths = np.diff([0, *starts, len(columns[_ACTIONS])])
  if len(lengths) != len(is_terminal) or (lengths < 0).any():
    raise ValueError(
        f'{path} has {len(is_terminal)} trajectories by {_TERMINAL}, but'
        f' {_INDICES} are {starts.tolist()[:10]}.'
    )
  names.pop(_INFOS, None)

  def read() -> python_episodes.Episodes:
    with npz.open_columns(path) as columns:
      begin = 0
      for index, length in enumerate(lengths):
        rows = slice(begin, begin + length)
        # Each earlier trajectory has one observation more than actions.
        observed = slice(begin + index, begin + index + length + 1)
        steps = {
            field: columns[name][observed if name == _OBSERVATIONS else rows]
            for field, name in names.items()
        }
        yield python_episodes.make_episode(
            steps, index, is_terminal[index], has_last=True
        )
        begin += length

  return python_episodes.to_dataset(read, len(lengths))


def _names_of(path: str, names: Sequence[str]) -> Dict[str, str]:
  """Returns the columns that there are, by the names of their fields."""
  required = _OBSERVATIONS, _ACTIONS, _TERMINAL
  advice = ' Trajectories of imitation have all of these.'
  columns_lib.check_has(path, required, names, advice)
  return {field: name for field, name in _FIELDS.items() if name in names}
