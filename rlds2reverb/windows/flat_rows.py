"""Rows of many trajectories, one after the other, with their lengths."""

from typing import Any, NamedTuple, Optional, Tuple

import tensorflow as tf

from rlds2reverb.episodes import gathering
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.windows import rows as rows_lib
from rlds2reverb.windows import transitions


class FlatRows(NamedTuple):
  """Rows of several trajectories, one after the other.

      rows           a  b  c  d  e
      lengths        3        2

  `FlatRows.of` makes them.

  Attributes:
    rows: a nest of `[N, ...]`.
    lengths: int64 `[E]`: how many rows each trajectory has.
    states: a nest of `[N, ...]`: the recurrent state before each row, if there
      are any.
  """

  rows: Any
  lengths: tf.Tensor
  states: Any = ()

  @classmethod
  def of(
      cls,
      rows: Any,
      *,
      lengths: Optional[Any] = None,
      episode_ids: Optional[Any] = None,
      is_last: Optional[Any] = None,
      states: Any = (),
  ) -> 'FlatRows':
    """Makes `FlatRows` of rows, given where the trajectories end.

    Exactly one argument says where they end; none for a data set and for
    `TransitionRows`, whose ends are known:

        rows           a  b  c  d  e
        lengths        3        2
        episode_ids    7  7  7  9  9
        is_last        F  F  T  F  F     what follows the last T is one, too

    Args:
      rows: a nest of `[N, ...]`, tensors, arrays or lists; or `TransitionRows`.
        Tensors are fastest: arrays are copied at each call, and become a part
        of the graph of a function that is mapped over a data set. It may also
        be an RLDS data set, or a data set of the rows of one episode each, all
        of whose transitions are read into memory. Episodes without any have a
        length of 0.
      lengths: integers `[E]` whose sum is `N`.
      episode_ids: `[N]`, values that differ from one trajectory to the next; or
        `[N, k]`, where a change in any of the `k` begins a trajectory.
      is_last: bool `[N]`: whether a trajectory ends with the row.
      states: a nest of `[N, ...]`, too.

    Returns:
      The `FlatRows`; `TransitionRows` give those of their columns. `FlatRows`
      are returned as they are.

    Raises:
      ValueError: if one of the three is needed, but none or several are given,
        or it has another dtype or rank; if rows, ids, flags and states differ
        in number; or if the elements of a data set are neither episodes nor
        rows.
      InvalidArgumentError: if they differ, and that is only known later; or if
        lengths are negative or do not add up to the rows.
    """
    if isinstance(rows, cls):
      return rows
    marks = {'lengths': lengths, 'episode_ids': episode_ids, 'is_last': is_last}
    marks = {name: mark for name, mark in marks.items() if mark is not None}
    known = {}
    if isinstance(rows, tf.data.Dataset):
      rows, known['lengths'] = _join(rows)
    elif isinstance(rows, transitions.TransitionRows):
      rows = transitions.as_rows(rows).columns
      known['lengths'] = gathering.num_rows(rows)[tf.newaxis]
    marks = marks or known
    if len(marks) != 1:
      raise ValueError(
          'Just one of lengths, episode_ids and is_last must say where the'
          f' trajectories end, but given are: {", ".join(marks) or "none"}. The'
          ' TransitionRows of one episode need none of them.'
      )
    ((name, mark),) = marks.items()
    if name == 'lengths':
      given = rows_lib.to_tensors(rows=rows, states=states)
      count = gathering.num_rows(given['rows'])
      return cls(**given, lengths=_checked_lengths(mark, count))
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
    given = rows_lib.to_tensors(**{'rows': rows, name: mark, 'states': states})
    mark = given.pop(name)
    begins_next = mark[:-1]
    if name == 'episode_ids':
      ids = mark[:, tf.newaxis] if mark.shape.rank == 1 else mark
      begins_next = tf.reduce_any(ids[1:] != ids[:-1], axis=1)
    count = gathering.num_rows(mark)
    begins = tf.concat([tf.range(count)[:1] == 0, begins_next], 0)
    starts = tf.where(begins)[:, 0]
    ends = tf.concat([starts, count[tf.newaxis]], 0)[1:]
    return cls(**given, lengths=ends - starts)


def _join(rlds_data: tf.data.Dataset) -> Tuple[Any, tf.Tensor]:
  """Reads the transitions of all episodes, and how many each one has."""
  # Rows and lengths must come from one pass, because a data set may be shuffled
  # anew in the next. The first pass reads all of it into the cache.
  per_episode = rlds_data.map(
      lambda episode: transitions.rows_of_element(episode).columns
  ).cache()
  joined = per_episode.rebatch(tf.int64.max)
  # A data set without rows gives no batch.
  nothing = tf.data.Dataset.from_tensors(steps_lib.zeros(joined.element_spec))
  rows = joined.concatenate(nothing).take(1).get_single_element()
  with tf.control_dependencies(tf.nest.flatten(rows)):
    lengths = per_episode.map(gathering.num_rows).batch(tf.int64.max)
    no_lengths = tf.data.Dataset.from_tensors(tf.zeros([0], tf.int64))
    lengths = lengths.concatenate(no_lengths).take(1).get_single_element()
    return rows, lengths


def _checked_lengths(lengths, count) -> tf.Tensor:
  given = tf.convert_to_tensor(lengths, dtype_hint=tf.int64)
  if not given.dtype.is_integer or given.shape.rank != 1:
    raise ValueError(
        f'lengths must be integers, one a trajectory, but are {lengths}.'
    )
  lengths = tf.cast(given, tf.int64)
  total = tf.reduce_sum(lengths)
  return graphs.asserted(
      lengths,
      (total == count) & tf.reduce_all(lengths >= 0),
      'The lengths of the trajectories must not be negative, and must add up'
      ' to the rows, but the rows are',
      count,
      'and the lengths',
      lengths,
  )
