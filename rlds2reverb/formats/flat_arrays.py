"""Flat arrays: the transitions of all episodes in sequence, as in D4RL.

A row is a transition: an observation, an action, the reward, and flags. An
RLDS episode has one step more than transitions, for the final observation.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
from typing import Any

from etils import epy
import gin
import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.datasets import format_registry
from rlds2reverb.episodes import errors
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.formats import columns as columns_lib
from rlds2reverb.formats import flat_layout
from rlds2reverb.formats import hdf5_files
from rlds2reverb.formats import npz
from rlds2reverb.formats import python_episodes

with epy.lazy_imports(error_callback=format_registry.explain_missing_library):
  import h5py


@gin.configurable(module='rlds2reverb')
def from_flat_arrays(
    arrays: Mapping[str, Any],
    *,
    max_episode_steps: int | None = None,
    column_names: Mapping[str, str | None] | None = None,
    episode_column: str | None = None,
    step_column: str | None = None,
) -> tf.data.Dataset:
  """Converts flat arrays, such as D4RL data, to RLDS episodes.

  Two episodes as arrays and as steps; the first is terminal, the second is
  truncated:

      row               0   1   2    3   4
      observations      o0  o1  o2   p0  p1
      next_observations o1  o2  o3   p1  p2
      actions           a0  a1  a2   b0  b1
      terminals         0   0   1    0   0
      timeouts          0   0   0    0   1

      observation     | o0  o1  o2  o3 | p0  p1  p2 |
      action          | a0  a1  a2  0  | b0  b1  0  |
      discount        | 1   1   0   0  | 1   1   1  |
      is_terminal     | 0   0   0   1  | 0   0   0  |

  An episode ends at a row with a terminal or a timeout. A row with both is
  terminal, because the environment ended there. (D4RL's `qlearning_dataset`
  drops such a transition.) The rows after the last end are a truncated episode.
  A truncated episode also ends

  - before a row of `episode_starts`, as Stable-Baselines writes them;
  - where the episode column changes;
  - where the next observation of a row is not the observation of the next row.
    A warning reports the number of such ends without a flag, id or length. A
    timeout in the row after such an end is one row late, and ends no other
    episode.

  The last step of every episode has the last next observation. Without
  `next_observations`, this observation is not in the data:

      observation     | o0  o1  o2  0  | p0  p1 |
      action          | a0  a1  a2  0  | b0  b1 |

  The last row of a truncated episode then becomes its last step, whose action
  and reward are ignored, so its last transition is lost, as in
  `qlearning_dataset`. A terminal episode keeps its last transition, with a next
  observation of zeros, as in the D4RL data sets of TFDS. The discount of 0
  hides the zeros from bootstrapping, but not from a dynamics model.

  Args:
    arrays: a dict of arrays, or of `h5py.Dataset`s of an open file, of `N` rows
      each. They are read in each iteration of the data set, so later changes
      are visible. They may be nested in dicts and tuples, or have paths as keys
      (`infos/qpos`), as in the result of D4RL's `get_dataset`. `observations`,
      `actions`, `rewards` and `terminals` are required, except that
      `episode_starts` or an `episode_column` can replace `terminals`;
      `timeouts`, `episode_starts` and `next_observations` are optional. Every
      other column of `N` rows becomes a step field of the same name, with zeros
      in added steps. Columns in `metadata` are skipped, and so are columns that
      do not have `N` rows, with a warning.
    max_episode_steps: the maximum number of rows of an episode, for arrays
      without `timeouts`.
    column_names: the names of columns in the data, by expected name:
      `{'observations': 'state', 'terminals': 'dones'}`. None means that the
      column does not exist: without `rewards` the reward is float32 zeros, and
      without `terminals` all episodes are truncated. None skips any other
      column. Some names are recognized: `obs`, `next_obs`, `new_obs`;
      `terminateds`, `terminations`, `terminated`; `truncateds`, `truncations`,
      `truncated`.
    episode_column: the column that identifies the episode of a row. It does not
      become a step field. By default a column such as `episode_id` is used, and
      remains a step field; its values may repeat after a flag has ended the
      episode.
    step_column: the column by which the rows of each episode are sorted. By
      default a column such as `step`, `timestep` or `t` is used if episodes are
      interleaved, as from parallel environments.

  Returns:
    A data set of episodes, `{'episode_id': int64 [], 'steps': {...}}`, with
    stacked steps `[T + 1, ...]`. Fields have the dtypes of their columns, and
    `discount` is float32. Observations and actions may be nested. Only the
    episodes that are being read are in memory.

  Raises:
    ValueError: if `arrays` is not a dict; if a column is missing or differs
      from the terminals in the number of rows; if an object column contains
      anything but strings; if a flag is neither 0 nor 1; if there are no rows;
      if nothing determines where episodes end; or if the rows of an episode are
      not contiguous and no step column orders them.
  """
  if not isinstance(arrays, Mapping):
    raise ValueError(
        'Flat arrays in memory must be a dict of arrays, but are a'
        f' {type(arrays).__name__}.'
    )
  options = flat_layout.FlatOptions(
      max_episode_steps, column_names, episode_column, step_column
  )
  return _episodes(lambda: contextlib.nullcontext(arrays), options)


@gin.configurable(module='rlds2reverb')
@python_episodes.naming_path
def load_flat_arrays(
    path: files.PathLike,
    *,
    max_episode_steps: int | None = None,
    column_names: Mapping[str, str | None] | None = None,
    episode_column: str | None = None,
    step_column: str | None = None,
) -> tf.data.Dataset:
  """Reads flat arrays lazily from HDF5, such as D4RL files, or `.npz`.

  Args:
    path: the path of a local file. `from_flat_arrays` describes the names of
      its arrays. Attributes are ignored, and pickles are rejected.
    max_episode_steps: see `from_flat_arrays`.
    column_names: see `from_flat_arrays`.
    episode_column: see `from_flat_arrays`.
    step_column: see `from_flat_arrays`.

  Returns:
    A data set of episodes; see `from_flat_arrays`.

  Raises:
    ValueError: if the file does not exist, is damaged or empty, or has parts in
      other files; see also `from_flat_arrays`.
  """
  path = files.expand_local(path, 'A file of flat arrays')
  if path.endswith('.npz'):
    open_source: Callable[[], Any] = lambda: npz.open_columns(path)
  else:
    hdf5_files.check_file(path)
    open_source = lambda: h5py.File(path, 'r')
  options = flat_layout.FlatOptions(
      max_episode_steps, column_names, episode_column, step_column
  )
  return _episodes(open_source, options, path)


def _episodes(
    open_source: Callable[
        [], contextlib.AbstractContextManager[Mapping[str, Any]]
    ],
    options: flat_layout.FlatOptions,
    file: str = '',
) -> tf.data.Dataset:
  """Returns the episodes of the columns that `open_source` opens."""
  names = options.column_names or {}
  lacking = [name for name, column in names.items() if column is None]

  @contextlib.contextmanager
  def open_columns():
    with open_source() as source:
      yield flat_layout.named_columns(columns_lib.leaves(source), options)

  with open_source() as source:
    columns = columns_lib.leaves(source)
    layout = flat_layout.find_layout(columns, options, lacking)
  return to_dataset(open_columns, layout, file)


def to_dataset(
    open_columns: Callable[
        [],
        contextlib.AbstractContextManager[Mapping[str, columns_lib.AnyColumn]],
    ],
    layout: flat_layout.FlatLayout,
    file: str = '',
    missing: Sequence[tuple[int, errors.Fault]] = (),
) -> tf.data.Dataset:
  """Returns the episodes of columns, which are opened for each iteration.

  Args:
    open_columns: opens the columns.
    layout: the fields and the bounds of the episodes.
    file: the path of the file, for errors.
    missing: the faults of unreadable files, with the first row after each file,
      ascending.
  """
  bounds, is_terminal = layout.bounds, layout.is_terminal
  num_episodes = len(bounds) - 1
  # The rows are divided into runs of equal size. Episodes that begin in the
  # same run are read together.
  spec = columns_lib.nest(layout.specs)
  run_of_episode = bounds[:-1] // max(
      python_episodes.BATCH_BYTES // steps_lib.estimate_step_bytes(spec), 1
  )
  is_new = np.diff(run_of_episode) != 0
  # The faults of episodes that may have rows in unreadable files.
  partial: dict[int, errors.Fault] = {}
  if layout.is_partial is not None:
    is_new |= layout.is_partial[1:] | layout.is_partial[:-1]
    partial = _faults_of_partial(layout, missing)
  following = _find_following_episodes(layout, missing)
  is_inside = (following > 0) & (following < num_episodes)
  is_new[following[is_inside] - 1] = True
  starts = np.append(0, np.flatnonzero(is_new) + 1)

  def read() -> python_episodes.Episodes:
    pending = list(zip(following.tolist(), missing))
    for first, episode in read_runs():
      while pending and pending[0][0] <= first:
        yield pending.pop(0)[1][1]
      yield partial.get(first, episode)
    yield from (fault for _, (_, fault) in pending)

  def read_runs() -> Iterator[tuple[int, python_episodes.PythonEpisode]]:
    with open_columns() as opened:
      columns = opened
      if layout.order is not None:
        columns = {
            name: columns_lib.reordered(opened[name], layout.order)
            for field in layout.names
            for name in layout.columns_of(field)
        }
      for first, end in zip(starts, [*starts[1:], num_episodes]):
        rows, terminal = bounds[first : end + 1], is_terminal[first:end]
        # Whether the episode has one step more than rows.
        is_added = terminal | layout.has_next
        steps = {
            field: _column(columns, layout, field, rows)
            for field in layout.names
        }
        if not columns_lib.below(rlds.REWARD, steps):
          steps[rlds.REWARD] = np.zeros(rows[-1] - rows[0], np.float32)
        yield int(first), python_episodes.PythonEpisode(
            columns_lib.nest(steps),
            np.diff(rows) + is_added,
            terminal,
            np.arange(first, end),
            {},
            is_added,
            place=file,
            file=file,
        )

  return python_episodes.to_dataset(
      read,
      num_episodes + len(missing),
      num_compared=1,
      is_last_dropped=not layout.has_next,
  )


def _find_following_episodes(
    layout: flat_layout.FlatLayout,
    missing: Sequence[tuple[int, errors.Fault]],
) -> np.ndarray:
  """Returns the index of the episode after each missing file."""
  rows = np.array([row for row, _ in missing], np.int64)
  first_rows = layout.bounds[:-1]
  if layout.order is not None:  # Episodes are sorted by their first row.
    first_rows = np.minimum.reduceat(layout.order, first_rows)
  return np.searchsorted(first_rows, rows)


def _faults_of_partial(
    layout: flat_layout.FlatLayout,
    missing: Sequence[tuple[int, errors.Fault]],
) -> dict[int, errors.Fault]:
  """Returns the faults of episodes that may have rows in a missing file."""
  faults = {}
  for episode in np.flatnonzero(layout.is_partial).tolist():
    rows = np.arange(*layout.bounds[episode : episode + 2])
    if layout.order is not None:
      rows = layout.order[rows]
    gaps = [max(rows.min() - gap, gap - rows.max()) for gap, _ in missing]
    fault = missing[int(np.argmin(gaps))][1]
    faults[episode] = errors.Fault(
        f'Rows of the episode may be in an unreadable file. {fault.rule}',
        file=fault.file,
    )
  return faults


def _column(
    columns, layout: flat_layout.FlatLayout, field: str, bounds: np.ndarray
) -> columns_lib.AnyColumn:
  """Returns a field of the episodes with the given bounds."""
  name, spec = layout.names[field], layout.specs[field]
  # The spec of rewards of shape (1,) is a scalar.
  first = bounds[0]
  part = columns_lib.part(columns[name], first, bounds[-1], spec.shape)
  if not (layout.has_next and field.split('/')[0] == rlds.OBSERVATION):
    return part
  following = columns[flat_layout.NEXT + name]
  # The row of each step, and whether the step is the next observation there.
  rows = np.insert(
      np.arange(first, bounds[-1]), bounds[1:] - first, bounds[1:] - 1
  )
  is_after = np.diff(rows, prepend=-1) == 0

  def read(begin: int, end: int) -> np.ndarray:
    is_next, selected = is_after[begin:end], rows[begin:end]
    result = columns_lib.zeros(end - begin, spec)
    observed = selected[~is_next]
    if len(observed):
      place = slice(observed[0] - first, observed[-1] + 1 - first)
      result[~is_next] = columns_lib.read(part, place, spec)
    if is_next.any():
      result[is_next] = columns_lib.read(following, selected[is_next], spec)
    return result

  # NumPy strings of a fixed length become objects.
  dtype = part.dtype if spec.dtype != tf.string else np.dtype(object)
  return columns_lib.LazyColumn(dtype, (len(rows), *spec.shape), read)
