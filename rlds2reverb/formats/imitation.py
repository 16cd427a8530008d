"""Trajectories of the library imitation, in HuggingFace folders or npz files.

    a folder   an Arrow table with a row for each trajectory
    a file     concatenated arrays of all trajectories, and `indices`, at which
               all but the first trajectory begin; written before version 1.0

    obs        [T + 1, ...]
    acts       [T, ...]
    rews       [T]; optional
    infos      [T]; in a folder, dicts that jsonpickle has serialized to text
    terminal   whether the trajectory ends in a terminal state

imitation.readthedocs.io documents the format, as of version 1.0.1.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import os

from etils import epy
import gin
import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.datasets import format_registry
from rlds2reverb.datasets import json_files
from rlds2reverb.episodes import rlds
from rlds2reverb.formats import arrow
from rlds2reverb.formats import columns as columns_lib
from rlds2reverb.formats import npz
from rlds2reverb.formats import python_episodes

with epy.lazy_imports(error_callback=format_registry.explain_missing_library):
  import pyarrow as pa

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
@python_episodes.naming_path
def load_imitation(path: files.PathLike) -> tf.data.Dataset:
  """Reads the trajectories that imitation's `serialize.save` wrote.

  Args:
    path: the local folder of a HuggingFace data set, or a local `.npz` file.

  Returns:
    A data set of episodes, `{'episode_id': int64 [], 'steps': {...}}`, in the
    order of the trajectories, with stacked steps `[T + 1, ...]`. `episode_id`
    counts from 0. Fields have the dtypes of their columns. Missing rewards are
    float32 zeros. The `infos` of a folder are a step field of jsonpickle
    strings; the `infos` of a file are pickles and are skipped.

  Raises:
    ValueError: if the trajectories do not exist, or if the files are damaged.
    InvalidArgumentError: while iterating, if a trajectory is damaged or its
      fields differ from the first trajectory; or once instead of the remaining
      trajectories of a damaged file. Other files can still be read.
  """
  path = files.expand_local(path, 'A data set of imitation')
  state = os.path.join(path, _STATE_FILE)
  if os.path.isfile(state):
    tables = [
        json_files.get_json_value(
            {'': shard}, '', dict, f"'_data_files' of {state}"
        )
        for shard in json_files.get_json_value(
            json_files.read_json_object(state), '_data_files', list, state
        )
    ]
    tables = [
        json_files.get_json_value(
            table, 'filename', str, f"'_data_files' of {state}"
        )
        for table in tables
    ]
    if not tables:
      raise ValueError(f"'_data_files' of {state} is empty.")
    return _load_tables([os.path.join(path, table) for table in tables])
  if not os.path.isfile(path):
    raise ValueError(
        f'{path} is neither the folder of a HuggingFace data set, with a'
        f' {_STATE_FILE}, nor an npz file.'
    )
  return _load_npz(path)


def _load_tables(paths: list[str]) -> tf.data.Dataset:
  """Reads the Arrow tables of a HuggingFace data set."""

  def batches(
      open_file: Callable[[str], pa.NativeFile],
  ) -> Iterator[tuple[str, pa.RecordBatch | ValueError]]:
    for path in paths:
      try:
        with arrow.open_errors(path), open_file(path) as file:
          with pa.ipc.open_stream(file) as reader:
            for batch in reader:
              # Arrow crashes the process if offsets are out of range.
              batch.validate(full=True)
              yield path, batch
      except ValueError as e:
        yield path, e  # The number of remaining trajectories is unknown.

  def read_one(path, batch, row, index) -> python_episodes.PythonEpisode:
    names = _names_of(path, batch.schema.names)
    values = arrow.read_row(batch, row)
    steps = {field: values[name] for field, name in names.items()}
    return python_episodes.make_episode(
        steps, index, values[_TERMINAL], has_last=True
    )

  def read() -> python_episodes.Episodes:
    index = 0
    # Pages of a mapped file would remain in the memory of the process.
    for path, batch in batches(pa.OSFile):
      if isinstance(batch, ValueError):
        yield python_episodes.to_fault(batch, file=path)
        index += 1
        continue
      for row in range(len(batch)):
        yield python_episodes.attempt(
            read_one, path, batch, row, index, file=path
        )
        index += 1

  return python_episodes.to_dataset(
      read,
      sum(
          1 if isinstance(batch, ValueError) else len(batch)
          for _, batch in batches(pa.memory_map)
      ),
  )


def _load_npz(path: str) -> tf.data.Dataset:
  """Reads the arrays of an npz file."""
  with npz.open_columns(path) as columns:
    names = _names_of(path, [*columns])
    if _INDICES not in columns:
      raise ValueError(
          f'{path} has {_OBSERVATIONS} and {_ACTIONS}, but no {_INDICES} at'
          ' which trajectories of imitation begin. Read flat arrays with the'
          ' format npz.'
      )
    is_terminal = columns[_TERMINAL][:].astype(bool)
    starts = columns[_INDICES][:]
    lengths = np.diff([0, *starts, len(columns[_ACTIONS])])
  if len(lengths) != len(is_terminal) or (lengths < 0).any():
    raise ValueError(
        f'{path} has {len(is_terminal)} trajectories according to {_TERMINAL},'
        f' but {_INDICES} are {starts.tolist()[:10]}.'
    )
  names.pop(_INFOS, None)

  ends = np.cumsum(lengths)

  def read_one(columns, index: int) -> python_episodes.PythonEpisode:
    begin, end = ends[index] - lengths[index], ends[index]
    # Each previous trajectory has one observation more than actions.
    observed = slice(begin + index, end + index + 1)
    steps = {
        field: columns[name][
            observed if name == _OBSERVATIONS else slice(begin, end)
        ]
        for field, name in names.items()
    }
    return python_episodes.make_episode(
        steps, index, is_terminal[index], has_last=True
    )

  def read() -> python_episodes.Episodes:
    with npz.open_columns(path) as columns:
      for index in range(len(lengths)):
        yield python_episodes.attempt(read_one, columns, index, file=path)

  return python_episodes.to_dataset(read, len(lengths))


def _names_of(path: str, names: Sequence[str]) -> dict[str, str]:
  """Returns the available columns, by step field."""
  required = _OBSERVATIONS, _ACTIONS, _TERMINAL
  advice = ' Trajectories of imitation have all of these.'
  columns_lib.check_has(path, required, names, advice)
  return {field: name for field, name in _FIELDS.items() if name in names}
