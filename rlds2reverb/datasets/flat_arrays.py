"""Flat arrays: the transitions of all episodes one after the other, as in D4RL.

A row is a transition: an observation, the action taken there, and the reward
and the end that followed. RLDS has a step more in an episode than transitions,
for the observation that they lead to.
"""

import contextlib
from typing import (
    Any,
    Callable,
    ContextManager,
    Dict,
    Iterator,
    Mapping,
    NamedTuple,
    Optional,
    Union,
)

from absl import logging
import gin
import h5py
import numpy as np
import rlds
import tensorflow as tf

from rlds2reverb.datasets import columns as columns_lib
from rlds2reverb.datasets import files
from rlds2reverb.datasets import minari
from rlds2reverb.episodes import blocks
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import packs
from rlds2reverb.episodes import steps as steps_lib

_OBSERVATIONS = 'observations'
_REWARDS = 'rewards'
_TERMINALS = 'terminals'
_TIMEOUTS = 'timeouts'
_NEXT = 'next_'
_FIELDS = {
    rlds.OBSERVATION: _OBSERVATIONS,
    rlds.ACTION: 'actions',
    rlds.REWARD: _REWARDS,
}
_USED = (*_FIELDS.values(), _TERMINALS, _TIMEOUTS, _NEXT + _OBSERVATIONS)
_METADATA = 'metadata'
_PACK_BYTES = 4 << 20


class _Layout(NamedTuple):
  """Which columns there are, and where their episodes are.

  Attributes:
    names: the step's fields; every leaf the name of its column.
    spec: the specs of one step.
    has_next: whether there are `next_observations`.
    bounds: int64 `[E + 1]`: the rows where the episodes begin, and the end.
    is_terminal: bool `[E]`: whether they end in a terminal state.
  """

  names: Dict[str, Any]
  spec: Dict[str, Any]
  has_next: bool
  bounds: np.ndarray
  is_terminal: np.ndarray


@gin.configurable
def from_flat_arrays(
    arrays: Union[files.PathLike, Mapping[str, Any]],
    *,
    max_episode_steps: Optional[int] = None,
) -> tf.data.Dataset:
  """Makes RLDS episodes of flat arrays: of D4RL, of an HDF5 file, or of Minari.

  Of two episodes, the first of which is terminal, the second truncated:

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

  An episode ends with a row that has a terminal or a timeout. Where one has
  both, the episode is terminal: the environment did end there, at whatever
  step. (D4RL's `qlearning_dataset` drops such a transition.) Rows behind the
  last end are an episode too, which is truncated.

  Every episode ends with its own last next observation. Without
  `next_observations` that is not in the data:

      observation     | o0  o1  o2  0  | p0  p1 |
      action          | a0  a1  a2  0  | b0  b1 |

  A truncated episode has its last observation at the last step, whose action
  and reward no longer count, so that its last transition is lost, as in
  `qlearning_dataset`. A terminal episode keeps its last transition, and with it
  its outcome; it leads to an observation of zeros, as in TFDS's D4RL sets,
  which the discount of 0 hides from whoever bootstraps, but not from a model of
  the dynamics.

  Args:
    arrays: one of

      - a dict of arrays, or `h5py.Dataset`s of an open file, of `N` rows each;
        nested, in dicts and tuples, or with paths as keys (`infos/qpos`), as
        D4RL's `get_dataset` returns it;
      - the path of an HDF5 file with the same names, on the local disk;
      - the path of a Minari data set in HDF5: its directory, or its
        `main_data.hdf5`, which has a group an episode; see Minari's
        documentation. Images in JPEG stay encoded, for `decode_images`.

      Of flat arrays `observations`, `actions`, `rewards` and `terminals` must
      be there, `timeouts` and `next_observations` may be. Every other column of
      `N` rows becomes a step field of its name, with zeros at a step that is
      added. What is in `metadata`, and attributes, are left out; so are other
      columns that do not have `N` rows, with a warning.
    max_episode_steps: after how many rows an episode ends at the latest, for
      flat arrays without `timeouts`.

  Returns:
    A data set of episodes, `{'episode_id': int64 [], 'steps': {...}}`, their
    steps stacked `[T + 1, ...]`. Fields have the dtypes of their columns, and
    `discount` is float32. Observations and actions may be nested. Only the
    episodes that are being read are in memory.

  Raises:
    ValueError: if there is no such file or column, if the file is not a whole
      HDF5 file with something in it, if a column does not have as many rows as
      the terminals, if one of Python objects has others than strings, or if a
      flag is neither 0 nor 1.
    InvalidArgumentError: while iterating, if an episode of Minari does not have
      the columns of the first, or as many rows as they need.
  """
  if isinstance(arrays, Mapping):
    open_source = lambda: contextlib.nullcontext(arrays)
  else:
    path = minari.find_file(arrays)
    if minari.is_minari(path):
      if max_episode_steps is not None:
        raise ValueError(
            'max_episode_steps is for flat arrays, but the episodes of Minari'
            f' are apart already in {path}.'
        )
      return minari.read_episodes(path)
    open_source = lambda: h5py.File(path, 'r')
  with open_source() as source:
    layout = _layout(columns_lib.leaves(source), max_episode_steps)
  return packs.to_episodes(
      lambda: _packs(open_source, layout), layout.spec, len(layout.is_terminal)
  )


def _layout(
    columns: Dict[str, columns_lib.Column], max_episode_steps: Optional[int]
) -> _Layout:
  """Finds the columns of the fields, and the episodes by their flags."""
  names = {
      field: columns_lib.below(name, columns)
      for field, name in _FIELDS.items()
  }
  missing = [_FIELDS[field] for field, found in names.items() if not found]
  missing += [name for name in [_TERMINALS] if name not in columns]
  if missing:
    raise ValueError(
        f'There is no column {", ".join(missing)}.'
        f'{checks.did_you_mean(missing[0], columns)} The columns are'
        f' {sorted(columns)}. Pass a dict that has them under the expected'
        ' names: its values can be datasets of an open HDF5 file.'
    )
  terminals = _flag(columns, _TERMINALS)
  num_rows = len(terminals)
  names.update(_other_fields(columns, num_rows))
  spec = tf.nest.map_structure(
      lambda name: _row_spec(columns, name, num_rows), names
  )
  spec[rlds.REWARD] = tf.nest.map_structure(_squeezed, spec[rlds.REWARD])
  has_next = bool(columns_lib.below(_NEXT + _OBSERVATIONS, columns))
  if has_next:
    tf.nest.map_structure(
        lambda name, one: _check_next(columns, name, one, num_rows),
        names[rlds.OBSERVATION],
        spec[rlds.OBSERVATION],
    )
  is_end = terminals.copy()
  if _TIMEOUTS in columns:
    is_end |= _flag(columns, _TIMEOUTS, num_rows)
  is_end[-1:] = True
  bounds = np.concatenate([[0], np.flatnonzero(is_end) + 1])
  if max_episode_steps is not None:
    bounds = _cut(bounds, max_episode_steps)
  return _Layout(names, spec, has_next, bounds, terminals[bounds[1:] - 1])


def _other_fields(columns, num_rows) -> Dict[str, Any]:
  """Returns the names of all other columns of a row a step, nested."""
  kept, left_out = [], []
  for name, column in columns.items():
    top = name.split('/')[0]
    if top in _USED or top == _METADATA:
      continue
    if top in steps_lib.get_rlds_step_features():
      raise ValueError(
          f'The column {name} has the name of a field of RLDS, which is made of'
          f' others: {", ".join(_USED)}. Rename it, or leave it out.'
      )
    fits = columns_lib.is_readable(column) and len(column) == num_rows
    if fits:
      columns_lib.check_objects(name, column)
    (kept if fits else left_out).append(name)
  if left_out:
    logging.warning(
        'Left out: columns that do not have %d rows of numbers or strings: %s.',
        num_rows,
        ', '.join(f'{name} {columns[name].shape}' for name in left_out),
    )
  tops = {name.split('/')[0] for name in kept}
  return {top: columns_lib.below(top, kept) for top in tops}


def _row_spec(columns, name, num_rows=None) -> tf.TensorSpec:
  column = columns[name]
  if not columns_lib.is_readable(column):
    raise ValueError(
        f'The column {name} must have a row of numbers or strings a step, but'
        f' is {column.dtype} {column.shape}.'
    )
  columns_lib.check_objects(name, column)
  if num_rows is not None and len(column) != num_rows:
    raise ValueError(
        f'The column {name} has {len(column)} rows, but {_TERMINALS} has'
        f' {num_rows}. A row must be a transition in both.'
    )
  return columns_lib.row_spec(column)


def _squeezed(spec) -> tf.TensorSpec:
  return tf.TensorSpec([] if spec.shape == [1] else spec.shape, spec.dtype)


def _check_next(columns, name, spec, num_rows) -> None:
  """Checks that there is a next observation like the observation `name`."""
  if _NEXT + name not in columns:
    raise ValueError(
        f'There is a column {name}, but no {_NEXT + name}. There must be one of'
        ' each observation, or none at all.'
    )
  found = _row_spec(columns, _NEXT + name, num_rows)
  if found != spec:
    raise ValueError(
        f'The rows of {_NEXT + name} are {found.dtype.name} {found.shape}, but'
        f' those of {name} are {spec.dtype.name} {spec.shape}.'
    )


def _flag(columns, name, num_rows=None) -> np.ndarray:
  """Returns a flag, bool `[N]`."""
  spec = _squeezed(_row_spec(columns, name, num_rows))
  if spec.shape.rank or spec.dtype == tf.string:
    raise ValueError(
        f'The column {name} must be one bool or number a row, but its rows are'
        f' {spec.dtype.name} {spec.shape}.'
    )
  values = np.reshape(columns[name][:], [-1])
  wrong = np.flatnonzero((values != 0) & (values != 1))
  if wrong.size:
    raise ValueError(
        f'The column {name} must be 0 or 1, but is {values[wrong[0]]} in row'
        f' {wrong[0]}.'
    )
  return values.astype(bool)


def _cut(bounds, max_length) -> np.ndarray:
  """Cuts episodes after each `max_length` rows."""
  checks.check_positive('max_episode_steps', max_length)
  starts = [
      np.arange(start, end, max_length)
      for start, end in zip(bounds[:-1], bounds[1:])
  ]
  return np.concatenate([*starts, bounds[-1:]])


def _packs(
    open_source: Callable[[], ContextManager[Mapping[str, Any]]],
    layout: _Layout,
) -> Iterator[packs.Pack]:
  """Reads the episodes, a pack at a time."""
  # Episodes that begin in the same run of so many rows are read together.
  num_rows = max(_PACK_BYTES // blocks.step_bytes(layout.spec), 1)
  run = layout.bounds[:-1] // num_rows
  starts = np.flatnonzero(np.diff(run, prepend=-1))
  with open_source() as source:
    columns = columns_lib.leaves(source)
    for first, end in zip(starts, [*starts[1:], len(run)]):
      yield _pack(columns, layout, first, end)


def _pack(columns, layout: _Layout, first: int, end: int) -> packs.Pack:
  """Reads the episodes from `first` until `end`."""
  bounds = layout.bounds[first : end + 1]
  is_terminal = layout.is_terminal[first:end]
  is_added = is_terminal | layout.has_next  # whether there is a step more
  rows = np.diff(bounds)
  lengths = rows + is_added
  stops = np.cumsum(lengths)
  # Where each row goes: behind the steps that were added before it.
  added_before = np.cumsum(is_added) - is_added
  place = np.arange(bounds[-1] - bounds[0]) + np.repeat(added_before, rows)

  def read(name, spec):
    steps = columns_lib.zeros(stops[-1], spec)
    # The specs have rewards of shape (1,) squeezed.
    steps[place] = columns_lib.read(
        columns[name], slice(bounds[0], bounds[-1]), spec
    ).reshape(-1, *spec.shape)
    return steps

  def read_observation(name, spec):
    steps = read(name, spec)
    if layout.has_next:
      steps[stops - 1] = columns_lib.read(
          columns[_NEXT + name], bounds[1:] - 1, spec
      )
    return steps

  steps = {
      field: tf.nest.map_structure(
          read_observation if field == rlds.OBSERVATION else read,
          names,
          layout.spec[field],
      )
      for field, names in layout.names.items()
  }
  return packs.Pack(steps, lengths, is_terminal, np.arange(first, end))
