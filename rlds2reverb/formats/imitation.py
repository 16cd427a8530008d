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
from typing import Any, Dict, Iterator, Sequence

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
_FIELDS = {
    rlds.OBSERVATION: _OBSERVATIONS,
    rlds.ACTION: _ACTIONS,
    rlds.REWARD: 'rews',
}
_INFOS = {'infos': 'infos'}


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
  if os.path.isfile(os.path.join(path, _STATE_FILE)):
    return _load_folder(path)
  if not os.path.isfile(path):
    raise ValueError(
        f'{path} is neither the folder of a HuggingFace data set, which has a'
        f' {_STATE_FILE}, nor an npz file.'
    )
  return _load_npz(path)


def _load_folder(path: str) -> tf.data.Dataset:
  """Reads the tables of a HuggingFace data set."""
  with files.open_text(os.path.join(path, _STATE_FILE)) as f:
    names = [file['filename'] for file in json.load(f)['_data_files']]

  def batches() -> Iterator[pa.RecordBatch]:
    for name in names:
      file_path = os.path.join(path, name)
      with arrow.open_errors(file_path), pa.memory_map(file_path) as file:
        with pa.ipc.open_stream(file) as reader:
          yield from reader

  def rows() -> Iterator[Dict[str, Any]]:
    for batch in batches():
      names = _names_of(path, batch.schema.names)
      yield from arrow.read_rows(batch, {**names, _TERMINAL: _TERMINAL})

  def read() -> python_episodes.Episodes:
    for index, columns in enumerate(rows()):
      yield python_episodes.make_episode(
          columns, index, columns.pop(_TERMINAL), has_last=True
      )

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

  def read() -> python_episodes.Episodes:
    with npz.open_columns(path) as columns:
      begin = 0
      for index, length in enumerate(lengths):
        steps = {}
        for field in names.keys() - _INFOS:
          # Each earlier trajectory has one observation more than actions.
          is_more = field == rlds.OBSERVATION
          first = begin + index * is_more
          rows = slice(first, first + length + is_more)
          steps[field] = columns[names[field]][rows]
        yield python_episodes.make_episode(
            steps, index, is_terminal[index], has_last=True
        )
        begin += length

  return python_episodes.to_dataset(read, len(lengths))


def _names_of(path: str, names: Sequence[str]) -> Dict[str, str]:
  """Returns the columns that there are, by the names of their fields."""
  columns_lib.check_has(
      path,
      (_OBSERVATIONS, _ACTIONS, _TERMINAL),
      names,
      ' Trajectories of imitation have all of these.',
  )
  known = {**_FIELDS, **_INFOS}
  return {field: name for field, name in known.items() if name in names}
