"""The transition rows of episodes, from which all windows are made."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import errors
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import pipelines
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import rows as rows_lib
from rlds2reverb.episodes import steps as steps_lib

NEXT_OBSERVATION = 'next_observation'

# Other names for the columns that a function adds, by their default names.
Names = Mapping[str, str] | None

_SCALARS = (bool, int, float, complex, str, bytes, np.generic)


class TransitionRows(NamedTuple):
  """The transitions of one episode, or consecutive ones of it, as columns.

  The functions of this folder take an episode's steps or its transition rows.
  Functions that add columns return rows again, so they can be chained; the last
  function of a chain cuts the rows, for example into chunks. The type
  distinguishes rows from steps, and `tf.data.Dataset.map` preserves it. To add
  a column by hand, write
  `rows._replace(columns={**rows.columns, 'name': ...})`.

  Attributes:
    columns: a dict of nests, every leaf `[T, ...]`; see `transition_rows`.
  """

  columns: dict[str, Any]


class NStepRows(TransitionRows):
  """Transition rows that span several steps; see `n_step_transitions`.

  Functions that need the reward or the next observation of a single step refuse
  rows of this type.
  """

  __slots__ = ()


def transition_rows(steps: Any) -> TransitionRows:
  """Returns the `T` transitions of one episode of `T + 1` steps.

      steps              o0 a0 r0   o1 a1 r1   o2 a2 r2   o3 (last, terminal)
      observation        o0         o1         o2
      next_observation   o1         o2         o3
      is_first           T          F          F
      is_last            F          F          T
      is_terminal        F          F          T
      discount           d0         d1         0

  `is_last` and `is_terminal` of a row are the flags of the step that it leads
  to, like a learner's *done*. Its discount is 0 where that step is terminal, as
  in TF-Agents. Every other field comes from the step at which the row starts.

  Args:
    steps: the steps of one episode, a nested data set or stacked `[T + 1, ...]`
      tensors. `observation`, `discount` and the flags are optional.

  Returns:
    The `TransitionRows`: the steps' fields and `next_observation`, every leaf
    `[T, ...]`. The flags are bool `[T]`, the discount is float32 `[T]`. An
    episode of one step has no rows.

  Raises:
    ValueError: if the steps are not a dict of dense tensors, if the discount or
      a flag is not one number a step, or if both `observation` and
      `next_observation` exist.
    InvalidArgumentError: if stacked fields differ in length.
  """
  steps = stack_dict(steps)
  length = rows_lib.num_rows(steps)
  num_dropped = tf.minimum(length, 1)
  current = (tf.zeros_like(length), length - num_dropped)
  following = (num_dropped, length)
  columns = rows_lib.copy_rows(steps, *current)
  if rlds.OBSERVATION in steps:
    if NEXT_OBSERVATION in steps:
      _refuse_next_observation()
    columns[NEXT_OBSERVATION] = rows_lib.copy_rows(
        steps[rlds.OBSERVATION], *following
    )
  for flag in rlds.FLAGS:
    if flag in steps:
      column = steps_lib.to_column(flag, steps[flag], tf.bool)
      bounds = current if flag == rlds.IS_FIRST else following
      columns[flag] = rows_lib.copy_rows(column, *bounds)
  if rlds.DISCOUNT in steps:
    discount = steps_lib.to_column(
        rlds.DISCOUNT, columns[rlds.DISCOUNT], tf.float32
    )
    if rlds.IS_TERMINAL in steps:
      discount = tf.where(columns[rlds.IS_TERMINAL], 0.0, discount)
    columns[rlds.DISCOUNT] = discount
  return TransitionRows(columns)


def as_rows(episode: Any) -> TransitionRows:
  """Returns the transition rows of an episode, given as steps or as rows.

  Args:
    episode: `TransitionRows`, which are returned; or the steps of one episode,
      a nested data set or stacked `[T + 1, ...]` tensors.

  Returns:
    The rows, whose `columns` are a new dict of tensors.

  Raises:
    ValueError: if `episode` is of another type, or a dict with the field
      `next_observation`, which steps do not have; and see `transition_rows`.
    InvalidArgumentError: if fields or columns differ in length.
  """
  if isinstance(episode, TransitionRows):
    steps_lib.check_dense(episode.columns)
    columns = tf.nest.map_structure(tf.convert_to_tensor, dict(episode.columns))
    return episode._replace(columns=steps_lib.check_equal_lengths(columns))
  check_steps(episode)
  return transition_rows(episode)


def as_one_step_rows(episode: Any) -> TransitionRows:
  """Does the same as `as_rows`, but refuses n-step rows.

  Raises:
    ValueError: if `episode` is `NStepRows`; and see `as_rows`.
  """
  if isinstance(episode, NStepRows):
    raise ValueError(
        'The rows are n-step transitions already, but this function needs'
        ' transitions of single steps. Call it before n_step_transitions.'
    )
  return as_rows(episode)


def rows_of_element(element: Any) -> TransitionRows:
  """Returns the rows of an element of a data set: an RLDS episode, or rows."""
  if isinstance(element, TransitionRows):
    return as_rows(element)
  steps_lib.check_has_steps(
      'A data set element that is not TransitionRows', element
  )
  return as_rows(element[rlds.STEPS])


def check_steps(steps: Any) -> None:
  """Checks by its type that a value may be the steps of one episode.

  Raises:
    ValueError: if it is not a data set or a dict of fields; if it is an episode
      instead of its steps; or if it has `next_observation`, as a dict of rows
      does.
  """
  if isinstance(steps, tf.data.Dataset):
    fields = steps.element_spec
  elif isinstance(steps, dict):
    fields = steps
  else:
    raise ValueError(
        'An episode must be given as its TransitionRows, or as its steps: a'
        ' dict of fields, or a data set of steps. It is a'
        f' {type(steps).__name__}.'
    )
  if not isinstance(fields, dict):
    return
  # The columns of `rows._asdict()` are one level down.
  columns = fields.get('columns')
  if NEXT_OBSERVATION in fields or (
      isinstance(columns, dict) and NEXT_OBSERVATION in columns
  ):
    _refuse_next_observation()
  if isinstance(fields.get(rlds.STEPS), (dict, tf.data.Dataset)):
    raise ValueError(
        'This is an episode, but its steps are needed: episode["steps"].'
    )


def _refuse_next_observation():
  raise ValueError(
      f'There is a field {NEXT_OBSERVATION!r} already, which steps must not'
      ' have. Pass transition rows as TransitionRows, not as their columns. If'
      ' these are steps, rename the field:'
      f' RenameFields({{{NEXT_OBSERVATION!r}: ...}}).'
  )


def stack_dict(steps: Any) -> dict[str, Any]:
  """Returns nested or stacked steps as a new dict of tensors `[T, ...]`.

  Raises:
    ValueError: if a step is not a dict, or a field is ragged or sparse.
    InvalidArgumentError: if stacked fields differ in length.
  """
  steps = steps_lib.stack_steps(steps)
  if not isinstance(steps, dict):
    raise ValueError(
        'The steps of an episode must be a dict of fields, but are a'
        f' {type(steps).__name__}.'
    )
  steps_lib.check_dense(steps)
  return tf.nest.map_structure(tf.convert_to_tensor, dict(steps))


def add_columns(
    columns: dict[str, Any], new_columns: dict[str, Any], names: Names = None
) -> dict[str, Any]:
  """Returns columns with new ones, none of which may exist already.

  Args:
    columns: a dict of columns.
    new_columns: the new columns, by their default names.
    names: other names for some of the new columns.

  Returns:
    A new dict.

  Raises:
    ValueError: if a column of such a name exists, or `names` has a key that is
      not in `new_columns`.
  """
  names = dict(names or {})
  for name in names:
    checks.check_choice('A key of names', name, list(new_columns))
  columns = dict(columns)
  for name, column in new_columns.items():
    new_name = names.get(name, name)
    if new_name in columns:
      raise ValueError(
          f'There is a field {new_name!r} already. Choose another name for the'
          f' new column, with names={{{name!r}: ...}}, or rename the field:'
          f' RenameFields({{{new_name!r}: ...}}).'
      )
    columns[new_name] = column
  return columns


class FlatRows(NamedTuple):
  """Rows of several trajectories, concatenated, and their lengths.

      rows           a  b  c  d  e
      lengths        3        2

  `FlatRows.of` makes them. `TransitionRows` are the rows of one episode only.

  Attributes:
    rows: a nest of `[N, ...]`.
    lengths: int64 `[E]`: the number of rows of each trajectory.
    states: a nest of `[N, ...]`: the recurrent state before each row, or `()`.
  """

  rows: Any
  lengths: tf.Tensor
  states: Any = ()

  @classmethod
  def of(
      cls,
      rows: Any,
      *,
      lengths: Any | None = None,
      episode_ids: Any | None = None,
      is_last: Any | None = None,
      states: Any = (),
  ) -> 'FlatRows':
    """Makes `FlatRows` of rows, given where the trajectories end.

    Exactly one argument defines where they end; none for a data set and for
    `TransitionRows`, which define it themselves:

        rows           a  b  c  d  e
        lengths        3        2
        episode_ids    7  7  7  9  9
        is_last        F  F  T  F  F     rows after the last T are one, too

    Args:
      rows: a nest of `[N, ...]`, tensors, arrays or lists; or `TransitionRows`.
        Tensors are fastest: arrays are copied at each call, and become
        constants in the graph of a function that is mapped over a data set. It
        may also be an RLDS data set, or a data set of the rows of one episode
        each, whose transitions are all read into memory. Episodes without
        transitions have a length of 0.
      lengths: integers `[E]` whose sum is `N`.
      episode_ids: `[N]`, values that differ from one trajectory to the next; or
        `[N, k]`, where a change in any of the `k` starts a trajectory.
      is_last: bool `[N]`: whether a trajectory ends with the row.
      states: a nest of `[N, ...]`, like `rows`.

    Returns:
      The `FlatRows`, of `TransitionRows` with the dict of their columns.
      `FlatRows` are returned unchanged.

    Raises:
      ValueError: if not exactly one of the three arguments is given where it is
        needed, or it has another dtype or rank; if rows, ids, flags and states
        differ in number; or if the elements of a data set are neither episodes
        nor rows.
      InvalidArgumentError: if numbers of rows that are known only at run time
        differ; or if lengths are negative or do not add up to the rows.
    """
    if isinstance(rows, cls):
      return rows
    marks = {'lengths': lengths, 'episode_ids': episode_ids, 'is_last': is_last}
    marks = {name: mark for name, mark in marks.items() if mark is not None}
    default_marks = {}
    if isinstance(rows, tf.data.Dataset):
      rows, default_marks['lengths'] = _concat_episodes(rows)
    elif isinstance(rows, TransitionRows):
      rows = as_rows(rows).columns
      default_marks['lengths'] = rows_lib.num_rows(rows)[tf.newaxis]
    marks = marks or default_marks
    if len(marks) != 1:
      raise ValueError(
          'Exactly one of lengths, episode_ids and is_last must define where'
          f' the trajectories end, but given are: {", ".join(marks) or "none"}.'
          ' The TransitionRows of one episode need none.'
      )
    ((name, mark),) = marks.items()
    if name == 'lengths':
      nests = _to_tensors(rows=rows, states=states)
      count = rows_lib.num_rows(nests['rows'])
      return cls(**nests, lengths=_check_lengths(mark, count))
    mark = tf.convert_to_tensor(mark)
    if name == 'episode_ids' and mark.shape.rank not in (1, 2):
      raise ValueError(
          'episode_ids must have one or two dimensions, but have the shape'
          f' {mark.shape}.'
      )
    if name == 'is_last' and (mark.dtype != tf.bool or mark.shape.rank != 1):
      raise ValueError(
          'is_last must be one bool a row, but is'
          f' {mark.dtype.name} {mark.shape}.'
      )
    nests = _to_tensors(**{'rows': rows, name: mark, 'states': states})
    mark = nests.pop(name)
    starts_next = mark[:-1]
    if name == 'episode_ids':
      ids = mark[:, tf.newaxis] if mark.shape.rank == 1 else mark
      starts_next = tf.reduce_any(ids[1:] != ids[:-1], axis=1)
    count = rows_lib.num_rows(mark)
    is_start = tf.concat([tf.range(count)[:1] == 0, starts_next], 0)
    starts = tf.where(is_start)[:, 0]
    ends = tf.concat([starts, count[tf.newaxis]], 0)[1:]
    return cls(**nests, lengths=ends - starts)


@pipelines.do_not_convert
def _concat_episodes(rlds_data: tf.data.Dataset) -> tuple[Any, tf.Tensor]:
  """Reads the transitions of all episodes, and the length of each."""
  # Rows and lengths must come from one pass, because a data set may be shuffled
  # differently in the next. The first pass reads all of it into the cache.
  rows_of_episodes = rlds_data.map(
      lambda episode: rows_of_element(episode).columns
  ).cache()
  all_rows = rows_of_episodes.rebatch(tf.int64.max)
  # A data set without rows has no batch; then the empty batch is taken.
  empty = tf.data.Dataset.from_tensors(steps_lib.zeros(all_rows.element_spec))
  rows = all_rows.concatenate(empty).take(1).get_single_element()
  with tf.control_dependencies(tf.nest.flatten(rows)):
    lengths = rows_of_episodes.map(rows_lib.num_rows).batch(tf.int64.max)
    no_lengths = tf.data.Dataset.from_tensors(tf.zeros([0], tf.int64))
    lengths = lengths.concatenate(no_lengths).take(1).get_single_element()
    return rows, lengths


def _check_lengths(lengths, count) -> tf.Tensor:
  tensor = tf.convert_to_tensor(lengths, dtype_hint=tf.int64)
  if not tensor.dtype.is_integer or tensor.shape.rank != 1:
    raise ValueError(
        f'lengths must be integers, one a trajectory, but are {lengths}.'
    )
  tensor = tf.cast(tensor, tf.int64)
  return errors.assert_true(
      tensor,
      (tf.reduce_sum(tensor) == count) & tf.reduce_all(tensor >= 0),
      'The lengths of the trajectories must not be negative, and must add up'
      ' to the rows, but the rows are',
      count,
      'and the lengths',
      tensor,
  )


def _to_tensors(**nests: Any) -> dict[str, Any]:
  """Converts arguments of rows to tensors, and checks their lengths.

  Args:
    **nests: by the names of the arguments, nests of `[N, ...]`, whose leaves
      are tensors, arrays, or lists of numbers or strings. Other lists are part
      of the nest, and so is every tuple.

  Returns:
    The nests, every leaf a tensor.

  Raises:
    ValueError: if a leaf is a scalar, or its length differs from the others.
    InvalidArgumentError: if that becomes known only at run time.
  """

  def convert(node):
    if _is_array_like(node):
      return tf.convert_to_tensor(list(node))
    # `tree` descends into nodes for which this returns None.
    return None if tree.is_nested(node) else tf.convert_to_tensor(node)

  nests = tree.traverse(convert, nests)
  leaves = {
      paths.name_of(keys): leaf for keys, leaf in tree.flatten_with_path(nests)
  }
  for name, leaf in leaves.items():
    if leaf.shape.rank == 0:
      raise ValueError(
          f'{name} is one value, {leaf}, but needs a first dimension: the rows.'
      )
  problem = 'All fields must have the same number of rows'
  lengths = {name: leaf.shape[0] for name, leaf in leaves.items()}
  if len(set(lengths.values()) - {None}) > 1:
    counts = ', '.join(f'{name} has {count}' for name, count in lengths.items())
    raise ValueError(f'{problem}, but {counts}.')
  if len(leaves) < 2 or None not in lengths.values():
    return nests
  counts = {name: tf.shape(leaf, tf.int64)[0] for name, leaf in leaves.items()}
  first, *remaining = counts.values()
  message = [part for pair in counts.items() for part in pair]
  are_equal = tf.reduce_all([count == first for count in remaining])
  return errors.assert_true(nests, are_equal, f'{problem}, but has', *message)


def _is_array_like(node: Any) -> bool:
  """Returns whether `node` is a (nested) list of numbers or strings."""
  return (
      isinstance(node, (list, range))
      and len(node) > 0
      and all(isinstance(e, _SCALARS) or _is_array_like(e) for e in node)
  )
