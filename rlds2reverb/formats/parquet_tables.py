"""Parquet tables, as Hugging Face `datasets` writes them.

A row is either a step, as in flat arrays, where an episode column or flags
delimit episodes; or an episode, where observations, actions and so on are lists
of the steps.
"""

from collections.abc import Mapping
import contextlib
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import errors
from rlds2reverb.episodes import rlds
from rlds2reverb.formats import arrow
from rlds2reverb.formats import columns as columns_lib
from rlds2reverb.formats import flat_arrays
from rlds2reverb.formats import flat_layout
from rlds2reverb.formats import python_episodes

_OBSERVATIONS = columns_lib.NAMES[rlds.OBSERVATION]
_ACTIONS = columns_lib.NAMES[rlds.ACTION]
_REQUIRED = (_ACTIONS, _OBSERVATIONS)
_ADVICE = (
    ' Specify the names of the columns with column_names={"observations": ...}.'
)
# The batch size if a row is an episode.
_BATCH_SIZE = 16


@gin.configurable(module='rlds2reverb')
@python_episodes.naming_path
def load_parquet(
    path: files.PathLike,
    *,
    episode_column: str | None = None,
    step_column: str | None = None,
    max_episode_steps: int | None = None,
    column_names: Mapping[str, str | None] | None = None,
) -> tf.data.Dataset:
  """Reads episodes in parquet files, as Hugging Face `datasets` writes them.

  A row is a step or an episode. Rows are steps if `episode_column` is set, or
  if rewards or actions are not lists and there are `timeouts`,
  `episode_starts`, `next_observations` or an episode column. They are converted
  as by `from_flat_arrays`.

  If a row is an episode, `observations` may have one row more than `actions`,
  or there may be `next_observations`. Without either, the last observation of a
  truncated episode becomes its last step, whose action is ignored, and a step
  of zeros is appended to a terminal episode.

  Args:
    path: a local file or folder of files, which are sorted by name.
    episode_column: the column that identifies the episode of a row. By default
      a row is an episode, unless its columns indicate a step.
    step_column: see `from_flat_arrays`; only if rows are steps.
    max_episode_steps: see `from_flat_arrays`; only if rows are steps.
    column_names: the names of columns in the files, by expected name:
      `observations`, `actions`, `rewards`, `terminals`, `timeouts`,
      `episode_starts` and `next_observations`; see `from_flat_arrays`. None
      means that the column does not exist: without `rewards` the reward is
      float32 zeros, and without `terminals` all episodes are truncated. None
      skips any other column.

  Returns:
    A data set of episodes in the order of the files, with stacked steps.
    `episode_id` counts from 0. Every other column with a row for each step is a
    step field of the same name, and every column with a value for each episode
    is an episode field. Dtypes are kept; images stay encoded, and lists of
    dicts are JSON text. If a row is an episode, the last of `terminals` is the
    terminal flag of the episode.

  Raises:
    ValueError: if there are no such files, columns or rows, if all files are
      damaged, or if the rows of an episode are not contiguous and no step
      column orders them.
    InvalidArgumentError: while iterating, if the columns of an episode differ
      from the first episode, or have different numbers of rows; or instead of a
      damaged file. If rows are steps, also for an episode that may have rows in
      the damaged file. Files are assumed to contain complete episodes if no
      episode continues in the next file. The other episodes can still be read.
  """
  path = files.expand_local(path, 'A parquet table')
  paths = arrow.find_parquet(path)
  if not paths:
    raise ValueError(f'There is no parquet file at {path}.')
  options = flat_layout.FlatOptions(
      max_episode_steps, column_names, episode_column, step_column
  )
  footers, damaged = arrow.read_footers(paths)
  types = next(iter(footers.values())).types
  for column in filter(None, (episode_column, step_column)):
    checks.check_known(path, 'column', column, types)
  named = flat_layout.named_columns(types, options)
  missing = [name for name in _REQUIRED if name not in named]
  if missing:
    raise ValueError(
        f'{path} has no {" and no ".join(missing)}, but {sorted(types)}.'
        f'{_ADVICE}'
    )
  if _are_steps(named, options):
    return _load_steps(paths, footers, damaged, options)
  return _load_episodes(paths, footers, options)


def _are_steps(
    types: Mapping[str, Any], options: flat_layout.FlatOptions
) -> bool:
  """Returns whether rows are steps rather than episodes."""
  single = [
      name
      for name in columns_lib.NAMES.values()
      if name in types and not arrow.is_list(types[name])
  ]
  if options.episode_column is not None:
    return True
  if not single:
    return False
  if not flat_layout.has_truncations(types, options):
    raise ValueError(
        f'{" and ".join(single)} must be lists of steps, as each row is an'
        ' episode. If a row is a step, specify the column of episode ids with'
        ' episode_column, or the column of timeouts, episode_starts or'
        ' next_observations with column_names.'
    )
  return True


def _load_steps(
    paths: list[str],
    footers: dict[str, arrow.Footer],
    damaged: dict[str, arrow.FileError],
    options: flat_layout.FlatOptions,
) -> tf.data.Dataset:
  """Reads files whose rows are steps.

  Args:
    paths: the files.
    footers: the footers of readable files, by path.
    damaged: the errors of the other files, by path. Files whose flags or ids
      cannot be read are moved from `footers` to `damaged`.
    options: the options of the reader.
  """
  unused = [
      name
      for name, column in (options.column_names or {}).items()
      if column is None
  ]

  # `arrow.open_columns` removes the unused columns.
  names = {
      name: column
      for name, column in (options.column_names or {}).items()
      if column is not None or name in flat_layout.USED
  }
  options = options._replace(column_names=names)

  @contextlib.contextmanager
  def open_columns():
    with arrow.open_columns(footers, unused) as columns:
      yield flat_layout.named_columns(columns, options)

  # The flags and ids of all rows determine where episodes end. If they cannot
  # be read in a file, the file is skipped and becomes a fault.
  while True:
    try:
      missing, places = _find_places(paths, footers, damaged)
      with arrow.open_columns(footers, unused) as columns:
        layout = flat_layout.find_layout(
            columns, options, flat_layout.OPTIONAL, places
        )
      return flat_arrays.to_dataset(open_columns, layout, missing=missing)
    except arrow.FileError as e:
      damaged[e.path] = e
      del footers[e.path]
      if not footers:
        raise damaged[paths[0]] from None


def _find_places(
    paths: list[str],
    footers: Mapping[str, arrow.Footer],
    damaged: Mapping[str, arrow.FileError],
) -> tuple[list[tuple[int, errors.Fault]], flat_layout.Files]:
  """Returns the positions of files in the rows of the readable files.

  Returns:
    The row after each damaged file, with its fault; and the first row of each
    readable file.
  """
  missing, starts, num_rows = [], [], 0
  for path in paths:
    if path in damaged:
      error = damaged[path]
      missing.append((num_rows, python_episodes.to_fault(error, file=path)))
    else:
      starts.append(num_rows)
      num_rows += footers[path].num_rows
  gaps = [row for row, _ in missing]
  return missing, flat_layout.Files(starts, gaps)


def _load_episodes(
    paths: list[str],
    footers: Mapping[str, arrow.Footer],
    options: flat_layout.FlatOptions,
) -> tf.data.Dataset:
  """Reads files whose rows are episodes."""

  def read_row(batch, row: int, index: int) -> python_episodes.PythonEpisode:
    columns = arrow.read_row(batch, row)
    return _episode(flat_layout.named_columns(columns, options), index)

  def read() -> python_episodes.Episodes:
    index = 0
    for table, count in zip(paths, counts):
      end = index + count
      try:
        with arrow.open_parquet(table) as file:
          for group in range(file.num_row_groups):
            group_end = index + file.metadata.row_group(group).num_rows
            try:
              with arrow.open_errors(table):
                for batch in file.iter_batches(_BATCH_SIZE, row_groups=[group]):
                  for row in range(len(batch)):
                    yield python_episodes.attempt(
                        read_row, batch, row, index, file=table
                    )
                    index += 1
            except ValueError as e:
              # The remaining rows of the row group cannot be read.
              fault = python_episodes.to_fault(e, file=table)
              yield from [fault] * (group_end - index)
              index = group_end
      except ValueError as e:
        yield from [python_episodes.to_fault(e, file=table)] * (end - index)
        index = end

  # A damaged file counts as one episode.
  counts = [footers[path].num_rows if path in footers else 1 for path in paths]
  if not sum(counts):
    raise ValueError(f'There are no rows in {", ".join(paths[:3])}.')
  return python_episodes.to_dataset(read, sum(counts))


def _episode(
    columns: dict[str, Any], index: int
) -> python_episodes.PythonEpisode:
  """Returns the episode of a row."""
  columns, terminals = flat_layout.with_last_observations(columns, index)
  fields = {
      name: value
      for name, value in columns.items()
      if not isinstance(value, np.ndarray)
  }
  present = {k: v for k, v in columns_lib.NAMES.items() if v in columns}
  steps = columns_lib.renamed(columns, {**present, **dict.fromkeys(fields)})
  return python_episodes.make_episode(steps, index, terminals, fields)
