"""Views: columns of a step's past and future, as RLlib's trajectory views."""

from collections.abc import Sequence
import dataclasses
import re
from typing import Any, NamedTuple

import tensorflow as tf
import tree

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import errors
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import rows as rows_lib
from rlds2reverb.windows import presence
from rlds2reverb.windows import transitions

FILLS = ('rllib', *rows_lib.FILLS)
MASK = 'mask'

_RANGE = re.compile(r'(-?\d+):(-?\d+)(?::(-?\d+))?')


@dataclasses.dataclass(frozen=True)
class ViewRequirement:
  """A column of each row's past or future, after RLlib's class.

  Attributes:
    data_col: the path of the column of the rows, for example
      `observation/camera`. By default the name of the view.
    shift: the offsets of the rows: an int; a list of ints, in any order; or a
      range, `"first:last"` or `"first:last:stride"`, both ends included:
      `"-3:-1"` is -3, -2, -1.
    space: a nest of objects with a dtype and a shape, such as `tf.TensorSpec`
      or a `gym.spaces.Box`, that the column must match.
    used_for_training: whether `apply_views` returns it by default.
    batch_repeat_value: the view has one row for each group of this many rows.
    agent: in rows of many agents, whose columns are dicts by agent, the agent
      of the column: `reward` is then `reward/<agent>`. Where `is_present` is
      False for it, the view is zero and its mask False.
  """

  data_col: str | None = None
  shift: int | str | Sequence[int] = 0
  space: Any = None
  used_for_training: bool = True
  batch_repeat_value: int = 1
  agent: str | None = None


class Views(NamedTuple):
  """The result of `compute_views`."""

  columns: dict[str, Any]
  mask: dict[str, tf.Tensor]


def apply_views(
    episode: Any,
    views: dict[str, ViewRequirement],
    *,
    fill: str | float = 'rllib',
    for_training: bool = True,
    names: transitions.Names = None,
) -> transitions.TransitionRows:
  """Adds views of the past and the future to the rows of one episode.

  Rewards 1, 2, 3, of steps with observations o0 to o3:

      row                              0        1        2
      reward, shift -1                 0        1        2
      reward, shift "-2:-1"            0 0      0 1      1 2
      action, shift 1                  a1       a2       0
      observation, shift 1             o1       o2       o3
      observation, shift [-1, 0]       o0 o0    o0 o1    o1 o2

  A view shows the current columns: after `n_step_transitions`, for example, the
  n-step reward.

  Args:
    episode: the `TransitionRows` of one episode, or its steps, a nested data
      set or stacked `[T + 1, ...]` tensors.
    views: the `ViewRequirement`s, by the names of the new columns. Their
      `batch_repeat_value` must be 1; for others, use `compute_views`.
    fill: the values of rows outside of the episode. The default is RLlib's:
      `"rllib"`, zeros, but before the episode the first observation. Others are
      `"zeros"`; `"repeat"`, the nearest row; or a number, which every column of
      a view must be able to hold.
    for_training: whether views with `used_for_training=False` are skipped.
    names: other names for the masks, as `{'frames_mask': 'is_real'}`.

  Returns:
    The rows, with two more columns for each view: `name`, a nest of `[T, ...]`,
    or `[T, n, ...]` if its shift has `n > 1` values; and `name_mask`, bool
    `[T]` or `[T, n]`, False where a value was filled in.

  Raises:
    ValueError: if a column does not exist; a shift is empty or malformed; a
      `batch_repeat_value` is not 1; a column does not match its `space`; `fill`
      is invalid; `episode` is neither steps nor rows; or a column to be added
      exists.
    InvalidArgumentError: if fields or columns differ in length.
  """
  rows = transitions.as_rows(episode)
  for name, view in views.items():
    if view.batch_repeat_value != 1:
      checks.check_positive(_repeat_name(name), view.batch_repeat_value)
      raise ValueError(
          f'{_repeat_name(name)} is {view.batch_repeat_value}: such a view has'
          ' fewer rows than the episode. Use compute_views.'
      )
  computed = compute_views(rows, views, fill=fill, for_training=for_training)
  columns = {}
  for name, column in computed.columns.items():
    columns[name] = column
    columns[f'{name}_{MASK}'] = computed.mask[name]
  return rows._replace(
      columns=transitions.add_columns(rows.columns, columns, names)
  )


def compute_views(
    episode: Any,
    views: dict[str, ViewRequirement],
    *,
    fill: str | float = 'rllib',
    start: int | tf.Tensor = 0,
    stop: int | tf.Tensor | None = None,
    for_training: bool = True,
) -> Views:
  """Computes the views of one episode, or of a fragment of it.

  These are the views that `apply_views` adds to rows. Here they may have fewer
  rows than the episode: the rows of a fragment, `start` to `stop`, or one row
  for every `batch_repeat_value`. A fragment sees the rows before it, and none
  after it but the observation that it ends with.

  Args:
    episode: see `apply_views`.
    views: the `ViewRequirement`s, by the names of the views.
    fill: see `apply_views`.
    start: the first row of the fragment.
    stop: the row after its last one. By default `T`.
    for_training: whether views with `used_for_training=False` are skipped.

  Returns:
    A named tuple of two dicts by the names of the views, which have
    `R = ceil((stop - start) / batch_repeat_value)` rows each:

    * columns: a nest of `[R, ...]`, or `[R, n, ...]` if its shift has `n > 1`
      values.
    * mask: bool `[R]` or `[R, n]`: True where the row exists, False where it
      was filled in.

  Raises:
    ValueError: see `apply_views`; and if a `batch_repeat_value` is not
      positive.
    InvalidArgumentError: if the fragment does not lie in the episode; and see
      `apply_views`.
  """
  rows_lib.check_fill(fill, FILLS)
  rows = transitions.as_rows(episode).columns
  length = rows_lib.num_rows(rows)
  start = tf.cast(start, tf.int64)
  stop = length if stop is None else tf.cast(stop, tf.int64)
  stop = errors.assert_true(
      stop,
      (start >= 0) & (start <= stop) & (stop <= length),
      'A fragment must lie in its episode, but is',
      *(start, stop, length),
  )
  columns, mask = {}, {}
  for name, view in views.items():
    if for_training and not view.used_for_training:
      continue
    checks.check_positive(_repeat_name(name), view.batch_repeat_value)
    path = view.data_col or name
    if view.agent is not None:
      field, slash, subpath = path.partition('/')
      path = f'{field}/{view.agent}{slash}{subpath}'
    column = paths.get(rows, path)
    _check_space(name, column, view.space)
    shifts = _parse_shifts(name, view.shift)
    is_observation = path.split('/')[0] == rlds.OBSERVATION
    end = stop
    if is_observation:
      column, end = _with_final(rows, path, column), stop + 1
    index = tf.range(start, stop, view.batch_repeat_value)[
        :, tf.newaxis
    ] + tf.constant(shifts, tf.int64)
    if len(shifts) == 1:
      index = tf.squeeze(index, 1)
    fill_value = 'zeros' if fill == 'rllib' else fill
    repeats_first = fill == 'rllib' and is_observation
    columns[name] = rows_lib.take_filled(
        column,
        index,
        end,
        before='repeat' if repeats_first else fill_value,
        after=fill_value,
    )
    mask[name] = rows_lib.is_in_range(index, end)
    if view.agent is not None and presence.PRESENCE in rows:
      # Rows do not contain the presence in the final step, so it is taken from
      # the last row.
      is_present = rows_lib.take_filled(
          presence.flags(rows, view.agent),
          index,
          length,
          before='repeat',
          after='repeat',
      )
      mask[name] &= is_present
      columns[name] = rows_lib.fill_unless(is_present, columns[name])
  return Views(columns, mask)


def _with_final(rows, path, column) -> Any:
  """Appends the observation after the last row to an observation `[T, ...]`."""
  final = paths.get(
      rows, transitions.NEXT_OBSERVATION + path[len(rlds.OBSERVATION) :]
  )
  return tf.nest.map_structure(
      lambda leaf, following: tf.concat([leaf, following[-1:]], 0),
      column,
      final,
  )


def _repeat_name(name) -> str:
  return f'batch_repeat_value of view {name!r}'


def _parse_shifts(name: str, shift: int | str | Sequence[int]) -> list[int]:
  """Returns the shifts of a `ViewRequirement`."""
  problem = (
      f'The shift of view {name!r} must be an int, a list of ints or a range'
      f' such as "-3:-1" or "0:6:2", but is {shift!r}.'
  )
  if isinstance(shift, str):
    match = _RANGE.fullmatch(shift.strip())
    if not match:
      raise ValueError(problem)
    first, last = int(match[1]), int(match[2])
    stride = 1 if match[3] is None else int(match[3])
    if stride < 1 or last < first:
      raise ValueError(f'{problem} The range is empty.')
    return list(range(first, last + 1, stride))
  shifts: list[Any] = [shift]
  if isinstance(shift, (list, tuple)):
    shifts = list(shift)
  if not shifts or not all(
      hasattr(value, '__index__') and not isinstance(value, bool)
      for value in shifts
  ):
    raise ValueError(problem)
  return [int(value) for value in shifts]


def _check_space(name: str, column: Any, space: Any) -> None:
  if space is None:
    return
  leaves = dict(tree.flatten_with_path(column))
  expected = dict(tree.flatten_with_path(space))
  if leaves.keys() != expected.keys():
    raise ValueError(
        f'The space of view {name!r} has the fields'
        f' {sorted(map(paths.name_of, expected))}, but its column has'
        f' {sorted(map(paths.name_of, leaves))}.'
    )
  for path, leaf in leaves.items():
    dtype = tf.as_dtype(expected[path].dtype)
    shape = leaf.shape[1:]
    if dtype != leaf.dtype or not shape.is_compatible_with(
        expected[path].shape
    ):
      raise ValueError(
          f'The space of view {name!r} is {dtype.name} {expected[path].shape}'
          f' at {paths.name_of(path)!r}, but its column is'
          f' {leaf.dtype.name} {shape}.'
      )
