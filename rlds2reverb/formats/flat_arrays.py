"""Flat arrays: the transitions of all episodes one after the other, as in D4RL.

A row is a transition: an observation, the action taken there, and the reward
and the end that followed. An episode of RLDS has one step more than it has
transitions, for the observation that the last transition leads to.
"""

import contextlib
from typing import Any, Callable, ContextManager, Mapping, Optional

import gin
import h5py
import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.episodes import blocks
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import rlds
from rlds2reverb.formats import columns as columns_lib
from rlds2reverb.formats import flat_layout
from rlds2reverb.formats import hdf5
from rlds2reverb.formats import npz
from rlds2reverb.formats import python_episodes


@gin.configurable(module='rlds2reverb')
def from_flat_arrays(
    arrays: Mapping[str, Any],
    *,
    max_episode_steps: Optional[int] = None,
    column_names: Optional[Mapping[str, Optional[str]]] = None,
) -> tf.data.Dataset:
  """Makes RLDS episodes of flat arrays, such as those of D4RL.

  The drawing shows the arrays of two episodes, the first of which is terminal
  and the second truncated, and the steps that they become:

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

  An episode ends with a row that has a terminal or a timeout. Where a row has
  both, the episode is terminal, because the environment did end there. (D4RL's
  `qlearning_dataset` drops such a transition.) The rows after the last end are
  an episode too, which is truncated.

  Every episode ends with its own last next observation. Where there are no
  `next_observations`, that observation is not in the data:

      observation     | o0  o1  o2  0  | p0  p1 |
      action          | a0  a1  a2  0  | b0  b1 |

  A truncated episode then has its last observation at its last step, whose
  action and reward do not count, so its last transition is lost, as it is in
  `qlearning_dataset`. A terminal episode keeps its last transition, and with it
  its outcome. That transition leads to an observation of zeros, as in the D4RL
  data sets of TFDS. The discount of 0 hides the zeros from whatever bootstraps,
  but not from a model of the dynamics.

  Args:
    arrays: a dict of arrays, or of `h5py.Dataset`s of an open file, of `N` rows
      each. They are read whenever the data set is iterated, so what is written
      into them later is read then. They may be nested in dicts and tuples, or
      have paths as keys (`infos/qpos`), as D4RL's `get_dataset` returns them.
      `observations`, `actions`, `rewards` and `terminals` must be there;
      `timeouts` and `next_observations` may be. Every other column of `N` rows
      becomes a step field of its name, with zeros at a step that is added. The
      columns in `metadata` are left out; so are other columns that do not have
      `N` rows, with a warning.
    max_episode_steps: the number of rows after which an episode ends at the
      latest, for arrays without `timeouts`.
    column_names: the names that columns have in the data, by those that are
      expected: `{'observations': 'obs', 'terminals': 'dones'}`. None says that
      there is no such column: without `rewards` the reward is float32 zeros,
      and without `terminals` all episodes are truncated.

  Returns:
    A data set of episodes, `{'episode_id': int64 [], 'steps': {...}}`, their
    steps stacked `[T + 1, ...]`. Fields have the dtypes of their columns, and
    `discount` is float32. Observations and actions may be nested. Only the
    episodes that are being read are in memory.

  Raises:
    ValueError: if `arrays` is not a dict, if a column is missing or does not
      have as many rows as the terminals, if a column of Python objects has
      anything but strings, or if a flag is neither 0 nor 1.
  """
  if not isinstance(arrays, Mapping):
    raise ValueError(
        'Flat arrays in memory must be a dict of arrays, but have been given as'
        f' a {type(arrays).__name__}.'
    )
  return _episodes(
      lambda: contextlib.nullcontext(arrays), max_episode_steps, column_names
  )


@gin.configurable(module='rlds2reverb')
def load_flat_arrays(
    path: files.PathLike,
    *,
    max_episode_steps: Optional[int] = None,
    column_names: Optional[Mapping[str, Optional[str]]] = None,
) -> tf.data.Dataset:
  """Reads a file of flat arrays, HDF5 as D4RL's or `.npz`, a part at a time.

  Args:
    path: the path of the file, on the local disk. Its arrays have the names
      that `from_flat_arrays` expects. Attributes are left out, and pickles are
      refused.
    max_episode_steps: see `from_flat_arrays`.
    column_names: see `from_flat_arrays`.

  Returns:
    A data set of episodes; see `from_flat_arrays`.

  Raises:
    ValueError: if there is no such file, if it is not a whole one with
      something in it, if a part of it is in another file, or for the reasons
      that `from_flat_arrays` has.
  """
  path = files.expand_local(path, 'A file of flat arrays')
  if path.endswith('.npz'):
    open_source: Callable[[], Any] = lambda: npz.open_columns(path)
  else:
    hdf5.names_in(path)
    open_source = lambda: h5py.File(path, 'r')
  return _episodes(open_source, max_episode_steps, column_names)


def _episodes(
    open_source: Callable[[], ContextManager[Mapping[str, Any]]],
    max_episode_steps: Optional[int],
    column_names: Optional[Mapping[str, Optional[str]]],
) -> tf.data.Dataset:
  """Returns the episodes of the columns that `open_source` opens."""
  names = column_names or {}
  for name in names:
    checks.check_choice('A key of column_names', name, flat_layout.USED)
  lacking = [name for name, given in names.items() if given is None]

  @contextlib.contextmanager
  def open_columns():
    with open_source() as source:
      yield columns_lib.renamed(columns_lib.leaves(source), names)

  with open_columns() as columns:
    layout = flat_layout.find_layout(columns, max_episode_steps, lacking)
  return to_dataset(open_columns, layout)


def to_dataset(
    open_columns: Callable[
        [], ContextManager[Mapping[str, columns_lib.AnyColumn]]
    ],
    layout: flat_layout.FlatLayout,
) -> tf.data.Dataset:
  """Returns the episodes of columns, which are opened to be read."""
  bounds, is_terminal = layout.bounds, layout.is_terminal
  # The rows are divided into runs of one size. The episodes that begin in the
  # same run are read together.
  spec = columns_lib.nest(layout.specs)
  run = bounds[:-1] // max(
      python_episodes.BATCH_BYTES // blocks.step_bytes(spec), 1
  )
  starts = np.append(0, np.flatnonzero(np.diff(run)) + 1)

  def read() -> python_episodes.Episodes:
    with open_columns() as columns:
      for first, end in zip(starts, [*starts[1:], len(run)]):
        rows, terminal = bounds[first : end + 1], is_terminal[first:end]
        # Whether the episode has one step more than it has rows.
        is_added = terminal | layout.has_next
        steps = {
            field: _column(columns, layout, field, rows)
            for field in layout.names
        }
        if not columns_lib.below(rlds.REWARD, steps):
          steps[rlds.REWARD] = np.zeros(rows[-1] - rows[0], np.float32)
        yield python_episodes.PythonEpisode(
            columns_lib.nest(steps),
            np.diff(rows) + is_added,
            terminal,
            np.arange(first, end),
            {},
            is_added,
        )

  return python_episodes.to_dataset(read, len(run))


def _column(
    columns, layout: flat_layout.FlatLayout, field: str, bounds: np.ndarray
) -> columns_lib.AnyColumn:
  """Returns a field of the episodes with the given bounds."""
  name, spec = layout.names[field], layout.specs[field]
  # Where the rewards have the shape (1,), their spec does not.
  part = columns_lib.part(columns[name], bounds[0], bounds[-1], spec.shape)
  if not (layout.has_next and field.split('/')[0] == rlds.OBSERVATION):
    return part
  after = columns[flat_layout.NEXT + name]
  return np.insert(
      columns_lib.read(part, slice(None), spec),
      bounds[1:] - bounds[0],
      columns_lib.read(after, bounds[1:] - 1, spec),
      axis=0,
  )
