"""Views: columns of a step's past and future, as RLlib's trajectory views."""

import dataclasses
import re
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Union

import rlds
import tensorflow as tf
import tree

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import gathering
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.windows import transitions

FILLS = ('rllib', 'zeros', 'repeat')

_RANGE = re.compile(r'(-?\d+):(-?\d+)(?::(-?\d+))?')


@dataclasses.dataclass(frozen=True)
class ViewRequirement:
  """What a view shows at each row, after RLlib's class of that name.

  Attributes:
    data_col: the path of the column, for example `observation/camera`: a field
      of `transition_rows`. By default the name of the view.
    shift: which rows, counted from the row itself: an int; a list of ints, in
      any order; or a range, `"first:last"` or `"first:last:stride"`, both ends
      included: `"-3:-1"` is -3, -2, -1.
    space: a nest of anything with a dtype and a shape, such as `tf.TensorSpec`
      or a `gym.spaces.Box`, that the column must agree with.
    used_for_training: whether `apply_views` returns it by default.
    batch_repeat_value: the view has a row for every so many rows.
  """

  data_col: Optional[str] = None
  shift: Union[int, str, Sequence[int]] = 0
  space: Any = None
  used_for_training: bool = True
  batch_repeat_value: int = 1


class Views(NamedTuple):
  """Views of one episode.

  Attributes:
    columns: by the name of the view, a nest of `[R, ...]`, or `[R, n, ...]`
      where its shift has `n > 1` values.
    valid: by the name of the view, bool `[R]` or `[R, n]`: whether the row was
      there, and is no fill.
  """

  columns: Dict[str, Any]
  valid: Dict[str, tf.Tensor]


def apply_views(
    steps: Any,
    views: Dict[str, ViewRequirement],
    *,
    fill: str = 'rllib',
    start: Union[int, tf.Tensor] = 0,
    stop: Optional[Union[int, tf.Tensor]] = None,
    for_training: bool = True,
) -> Views:
  """Makes views of the transitions of one episode, or of a fragment of it.

  Rewards 1, 2, 3, of steps with observations o0 to o3:

      row                              0        1        2
      reward, shift -1                 0        1        2
      reward, shift "-2:-1"            0 0      0 1      1 2
      action, shift 1                  a1       a2       0
      observation, shift 1             o1       o2       o3
      observation, shift [-1, 0]       o0 o0    o0 o1    o1 o2

  A fragment, rows `start` to `stop`, sees the rows before it, and none after it
  but the observation that it ends with.

  Args:
    steps: the steps of one episode, a nested data set or stacked `[T + 1, ...]`
      tensors.
    views: the `ViewRequirement`s, by the names of the views.
    fill: what stands for rows that are not there. `"rllib"`: zeros, but before
      the episode the first observation; `"zeros"`; `"repeat"`, the nearest row.
    start: the first row of the fragment.
    stop: the row that it ends before. By default `T`.
    for_training: whether views with `used_for_training=False` are left out.

  Returns:
    The `Views`, with `ceil((stop - start) / batch_repeat_value)` rows each.

  Raises:
    ValueError: if there is no such column; a shift is empty, or cannot be read;
      a `batch_repeat_value` is not positive; a column does not agree with its
      `space`; or `fill` is not one of the three.
    InvalidArgumentError: if the fragment does not lie in the episode.
  """
  checks.check_choice('fill', fill, FILLS)
  steps = transitions.stack_dict(steps)
  rows = transitions.transition_rows(steps)
  length = gathering.num_rows(rows)
  start = tf.cast(start, tf.int64)
  stop = length if stop is None else tf.cast(stop, tf.int64)
  with tf.control_dependencies([
      tf.debugging.Assert(
          (0 <= start) & (start <= stop) & (stop <= length),
          ['A fragment must lie in its episode, but is', start, stop, length],
      )
  ]):
    stop = tf.identity(stop)
  if rlds.OBSERVATION in steps:
    rows[rlds.OBSERVATION] = steps[rlds.OBSERVATION]

  columns, valid = {}, {}
  for name, view in views.items():
    if for_training and not view.used_for_training:
      continue
    checks.check_positive(
        f'batch_repeat_value of view {name!r}', view.batch_repeat_value
    )
    path = view.data_col or name
    column = paths.get(rows, path)
    _check_space(name, column, view.space)
    shifts = _shifts(name, view.shift)
    is_observation = path.split('/')[0] == rlds.OBSERVATION
    end = stop + 1 if is_observation else stop
    index = (
        tf.range(start, stop, view.batch_repeat_value)[:, tf.newaxis]
        + tf.constant(shifts, tf.int64)
    )
    if len(shifts) == 1:
      index = tf.squeeze(index, 1)
    repeats_first = fill == 'repeat' or (fill == 'rllib' and is_observation)
    columns[name] = gathering.take_filled(
        column,
        index,
        end,
        before='repeat' if repeats_first else 'zeros',
        after='repeat' if fill == 'repeat' else 'zeros',
    )
    valid[name] = gathering.is_inside(index, end)
  return Views(columns, valid)


def _shifts(name: str, shift: Union[int, str, Sequence[int]]) -> List[int]:
  """Returns the shifts that a `ViewRequirement` of this name means."""
  problem = f'The shift of view {name!r} must be an int, a list of ints or a'
  problem += f' range such as "-3:-1" or "0:6:2", but is {shift!r}.'
  if isinstance(shift, str):
    match = _RANGE.fullmatch(shift.strip())
    if not match:
      raise ValueError(problem)
    first, last = int(match[1]), int(match[2])
    stride = 1 if match[3] is None else int(match[3])
    if stride < 1 or last < first:
      raise ValueError(problem + ' It runs backwards, or not at all.')
    return list(range(first, last + 1, stride))
  shifts = list(shift) if isinstance(shift, (list, tuple)) else [shift]
  if not shifts or not all(
      hasattr(value, '__index__') and not isinstance(value, bool)
      for value in shifts
  ):
    raise ValueError(problem)
  return [int(value) for value in shifts]


def _check_space(name: str, column: Any, space: Any) -> None:
  if space is None:
    return
  found = dict(tree.flatten_with_path(column))
  expected = dict(tree.flatten_with_path(space))
  if found.keys() != expected.keys():
    raise ValueError(
        f'The space of view {name!r} has the fields'
        f' {sorted(map(steps_lib.field_path, expected))}, but its column has'
        f' {sorted(map(steps_lib.field_path, found))}.'
    )
  for path, leaf in found.items():
    dtype = tf.as_dtype(expected[path].dtype)
    shape = leaf.shape[1:]
    if dtype != leaf.dtype or not shape.is_compatible_with(
        expected[path].shape
    ):
      raise ValueError(
          f'The space of view {name!r} is {dtype.name} {expected[path].shape}'
          f' at {steps_lib.field_path(path)!r}, but its column is'
          f' {leaf.dtype.name} {shape}.'
      )
