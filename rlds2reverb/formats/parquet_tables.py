"""Tables of parquet, as Hugging Face `datasets` writes them.

a row a step        observations, actions, ..., and a column that tells the
                    episodes apart
a row an episode    each of these is a list of the episode's steps
"""

from typing import Any, Dict, Iterator, Mapping, Optional

import gin
import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import rlds
from rlds2reverb.formats import arrow
from rlds2reverb.formats import columns as columns_lib
from rlds2reverb.formats import python_episodes

_TERMINALS = 'terminals'
_REQUIRED = (
    columns_lib.NAMES[rlds.ACTION],
    columns_lib.NAMES[rlds.OBSERVATION],
)
_USED = (*columns_lib.NAMES.values(), _TERMINALS)
_ADVICE = (
    ' Say with column_names={"observations": ...} what its columns are called.'
)
# A row may be a whole episode.
_BATCH_SIZE = 16


@gin.configurable(module='rlds2reverb')
def load_parquet(
    path: files.PathLike,
    *,
    episode_column: Optional[str] = None,
    column_names: Optional[Mapping[str, Optional[str]]] = None,
) -> tf.data.Dataset:
  """Reads episodes in parquet files, as Hugging Face `datasets` writes them.

  As with `from_flat_arrays` without next observations, the last observation of
  a truncated episode is its last step, whose action does not count, and a
  terminal one gets a step of zeros. Where a row is an episode, `observations`
  may have one row more than `actions`; then nothing is lost or added.

  Args:
    path: a file or a folder of files, read in the order of their names, on the
      local disk.
    episode_column: the column that has one value in all rows of an episode,
      which are beside each other. By default a row is an episode.
    column_names: the names that columns have in the files, by those that are
      expected: `observations`, `actions`, `rewards` and `terminals`. None says
      that there is no such column: without `rewards` the reward is float32
      zeros, and without `terminals` all episodes are truncated.

  Returns:
    A data set of episodes in the order of the files, with stacked steps, and
    `episode_id`, which counts them. Every other column with a row for each step
    is a step field of its name, and one with a value for each episode is a
    field of the episode. All have their dtypes; images stay encoded, and lists
    of dicts are JSON text. The last of `terminals` says whether an
    episode is terminal.

  Raises:
    ValueError: if there are no such files or columns, or if one is damaged.
    InvalidArgumentError: while iterating, if an episode does not have the
      columns of the first, or as many rows of each.
  """
  path = files.expand_local(path, 'A table of parquet')
  paths = arrow.find_parquet(path)
  if not paths:
    raise ValueError(f'There is no table of parquet at {path}.')
  for name in column_names or {}:
    checks.check_choice('A key of column_names', name, _USED)
  renamed = lambda columns: columns_lib.renamed(columns, column_names or {})
  with arrow.open_parquet(paths[0]) as file:
    names = file.schema_arrow.names
  columns_lib.check_has(path, _REQUIRED, renamed(dict.fromkeys(names)), _ADVICE)
  if episode_column is not None:
    checks.check_known(path, 'column', episode_column, names)

  def rows() -> Iterator[Dict[str, Any]]:
    for one in paths:
      with arrow.open_parquet(one) as file:
        for batch in file.iter_batches(_BATCH_SIZE):
          yield from arrow.read_rows(batch)

  def tables() -> Iterator[Dict[str, Any]]:
    for _, table in arrow.read_episodes(paths, episode_column):
      yield {
          name: arrow.to_array(table[name], None, name)
          for name in table.column_names
          if name != episode_column
      }

  def read() -> python_episodes.Episodes:
    found = rows() if episode_column is None else tables()
    for index, columns in enumerate(map(renamed, found)):
      yield _episode(columns, index)

  count = None
  if episode_column is None:
    count = 0
    for one in paths:
      with arrow.open_parquet(one) as file:
        count += file.metadata.num_rows
  return python_episodes.to_dataset(read, count)


def _episode(
    columns: Dict[str, Any], index: int
) -> python_episodes.PythonEpisode:
  """Returns the episode with the given columns and values of its own."""
  # There may be one flag for the episode, or one for each step.
  terminals = columns.pop(_TERMINALS, False)
  fields = {
      name: value
      for name, value in columns.items()
      if not isinstance(value, np.ndarray)
  }
  missing = [name for name in _REQUIRED if name in fields]
  if missing:
    raise ValueError(
        f'{" and ".join(missing)} must be lists of steps, as each row is an'
        ' episode. If a row is a step, say with episode_column which column'
        ' tells the episodes apart.'
    )
  there = {k: v for k, v in columns_lib.NAMES.items() if v in columns}
  steps = columns_lib.renamed(columns, {**there, **dict.fromkeys(fields)})
  return python_episodes.make_episode(steps, index, terminals, fields)
