"""Minari data sets in Arrow and parquet, which have a folder for each episode.

    data/metadata.json    the spaces of observations and actions, the format
    data/0/part-0.arrow   T + 1 rows, or part-0.parquet: observations, actions,
                          rewards, terminations, truncations, infos

The last row has the last observation and infos; its other values are padding.
The format is that of minari.farama.org, as Minari 0.5.4 writes it.
"""

import glob
import json
import os
from typing import Any, Dict

from absl import logging
import pyarrow as pa
from pyarrow import parquet
import tensorflow as tf

from rlds2reverb.episodes import rlds
from rlds2reverb.formats import arrow
from rlds2reverb.formats import columns as columns_lib
from rlds2reverb.formats import python_episodes

# The names of Minari's columns, the same in every format.
SPACES = {
    'observations': 'observation_space',
    'actions': 'action_space',
}
TERMINATIONS = 'terminations'

_PARQUET = 'parquet'
FORMATS = ('arrow', _PARQUET)
_INFOS = 'infos'


def load(folder: str, metadata: Dict[str, Any]) -> tf.data.Dataset:
  """Reads the episodes below a folder.

  Args:
    folder: the folder of the episodes, on the local disk.
    metadata: the content of its `metadata.json`, of one of the `FORMATS`.

  Returns:
    A data set of episodes; see `minari.load_minari`.
  """
  spaces = {name: json.loads(metadata[space]) for name, space in SPACES.items()}
  ids = sorted(int(name) for name in os.listdir(folder) if name.isdecimal())
  if not ids:
    raise ValueError(f'There is no episode in {folder}.')
  left_out = set()

  def read() -> python_episodes.Episodes:
    for index in ids:
      table = _read_table(
          os.path.join(folder, str(index)), metadata['data_format']
      )
      yield _episode(table, spaces, index, left_out)

  dataset = python_episodes.to_dataset(read, len(ids))
  if left_out:
    logging.warning(
        'Left out: infos without numbers or strings for each step: %s.',
        ', '.join(sorted(left_out)),
    )
  return dataset


def _read_table(folder: str, data_format: str) -> pa.Table:
  """Reads the rows of an episode."""
  paths = sorted(glob.glob(f'{glob.escape(folder)}/*.{data_format}'))
  if not paths:
    raise ValueError(f'There is no file *.{data_format} in {folder}.')
  tables = []
  for path in paths:
    with arrow.open_errors(path):
      if data_format == _PARQUET:
        tables.append(parquet.read_table(path, partitioning=None))
      else:
        with pa.memory_map(path) as file:
          tables.append(pa.ipc.open_file(file).read_all())
  return pa.concat_tables(tables)


def _episode(
    table: pa.Table, spaces: Dict[str, Any], index: int, left_out
) -> python_episodes.PythonEpisode:
  """Returns the columns of an episode; adds other names to `left_out`."""
  columns_lib.check_has(
      f'Episode {index}',
      (*columns_lib.NAMES.values(), TERMINATIONS),
      table.column_names,
  )
  num_steps = len(table)
  columns = {
      name: pa.concat_arrays(table[name].chunks) for name in table.column_names
  }
  steps = {}
  for field, name in columns_lib.NAMES.items():
    rows = num_steps - (field != rlds.OBSERVATION)
    steps[field] = _of_space(spaces.get(name), columns[name], rows, name)
  if _INFOS in columns:
    infos = _of_infos(columns[_INFOS], _INFOS, left_out)
    if infos:
      steps[_INFOS] = infos
  terminations = columns[TERMINATIONS].to_numpy(zero_copy_only=False)
  return python_episodes.make_episode(
      steps, index, terminations[: num_steps - 1]
  )


def _of_space(space, column: pa.Array, num_rows: int, name: str) -> Any:
  """Returns the rows of a column, nested as the space is."""
  space = space or {}
  below = space.get('subspaces')
  if below is None:
    return arrow.to_array(column.slice(0, num_rows), space.get('shape'), name)
  is_tuple = isinstance(below, list)
  parts = {
      key: _of_space(one, column.field(str(key)), num_rows, f'{name}/{key}')
      for key, one in (enumerate(below) if is_tuple else below.items())
  }
  return tuple(parts.values()) if is_tuple else parts


def _of_infos(column: pa.StructArray, name: str, left_out) -> Dict[str, Any]:
  """Returns those infos that have a number or a string in every row."""
  found = {}
  for field in column.type:
    below = f'{name}/{field.name}'
    values = column.field(field.name)
    if pa.types.is_struct(field.type):
      nested = _of_infos(values, below, left_out)
      if nested:
        found[field.name] = nested
      continue
    shape = (field.metadata or {}).get(b'shape')
    if shape is not None:
      shape = [int(size) for size in shape.split(b',') if size]
    try:
      found[field.name] = arrow.to_array(values, shape, below)
    except ValueError:
      left_out.add(below)
  return found
