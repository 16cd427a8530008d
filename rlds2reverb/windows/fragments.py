"""Fragments of episodes: batches, sequences and horizons, after RLlib."""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import pipelines
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import rows as rows_lib
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.windows import presence
from rlds2reverb.windows import transitions

BATCH_MODES = ('truncate_episodes', 'complete_episodes')
EPISODE = 'episode'
T = 't'
COUNT_STEPS_BY = ('env_steps', 'agent_steps')


class ChoppedSequences(NamedTuple):
  """The result of `chop_into_sequences`."""

  rows: Any
  initial_state: Any
  seq_lens: tf.Tensor
  mask: tf.Tensor


def chop_into_sequences(
    rows: Any,
    max_length: int | None = None,
    *,
    dynamic_max: bool = False,
    time_major: bool = False,
) -> ChoppedSequences:
  """Cuts rows of many episodes into sequences of one episode each.

  This is RLlib's function of that name. With `max_length=3`:

      episode_ids    1  1  5  5  5  5  5
      rows           1  2  3  4  5  6  7
      sequences      1  2  0    3  4  5    6  7  0
      seq_lens       2          3          2

  Without a `max_length`, each episode is one sequence, as in TorchRL's
  `split_trajectories`. Episodes without rows are sequences of length 0, so that
  the result lines up with data by episode. With a `max_length` they have no
  sequence.

  Args:
    rows: the `FlatRows` of all episodes, or the `TransitionRows` of one.
    max_length: the maximum number of rows of a sequence. By default the length
      of the longest episode.
    dynamic_max: whether sequences are padded to the longest one, rather than to
      `max_length`.
    time_major: whether rows and mask are `[L, S, ...]`.

  Returns:
    A named tuple of `S` sequences:

    * rows: a nest of `[S, L, ...]`, with zeros on the right; of
      `TransitionRows`, the dict of their columns.
    * initial_state: a nest of `[S, ...]`: the state of each sequence's first
      row, zeros for a sequence of length 0; `()` if there are no states.
    * seq_lens: int32 `[S]`: the number of real rows of each sequence.
    * mask: bool `[S, L]`: True where a row is real.

  Raises:
    ValueError: if `max_length` is not positive, or `rows` have another type.
  """
  flat = transitions.FlatRows.of(rows)
  ends = tf.cumsum(flat.lengths)
  starts, seq_lens = ends - flat.lengths, flat.lengths
  if max_length is not None:
    checks.check_positive('max_length', max_length)
    windows = windows_lib.Windows(max_length, max_length, 'zero_pad')
    episode, start = windows.find(flat.lengths)
    starts = tf.gather(starts, episode) + start
    ends = tf.gather(ends, episode)
    seq_lens = tf.minimum(ends - starts, max_length)
  width = max_length
  if max_length is None or dynamic_max:
    width = tf.reduce_max(tf.concat([[0], seq_lens], 0))
  chopped, mask = windows_lib.take_windows(flat.rows, starts, width, ends)
  if time_major:
    chopped, mask = rows_lib.swap_time((chopped, mask))

  def take_states(leaf):
    # The start of an empty sequence may be past the last row. Its state is 0.
    zero = tf.zeros(tf.concat([[1], tf.shape(leaf)[1:]], 0), leaf.dtype)
    num_rows = rows_lib.num_rows(leaf)
    index = tf.where(seq_lens > 0, starts, num_rows)
    return tf.gather(tf.concat([leaf, zero], 0), index)

  return ChoppedSequences(
      rows=chopped,
      initial_state=tf.nest.map_structure(take_states, flat.states),
      seq_lens=tf.cast(seq_lens, tf.int32),
      mask=mask,
  )


def convert_rlds_to_fragments(
    rlds_data: tf.data.Dataset,
    fragment_length: int,
    batch_mode: str = 'truncate_episodes',
    *,
    fragment_fn: (
        Callable[[transitions.TransitionRows], transitions.TransitionRows]
        | None
    ) = None,
    count_steps_by: str | None = None,
    agent_steps: str | None = None,
    drop_remainder: bool = False,
    names: transitions.Names = None,
) -> tf.data.Dataset:
  """Batches the transitions of consecutive episodes.

  This is RLlib's `batch_mode` with its `rollout_fragment_length`. Here is `t`
  of four episodes of 3 transitions with `fragment_length=4`; `fragment_fn` is
  called for the rows between two bars:

      "truncate_episodes"    0 1 2|0      1 2|0 1      2|0 1 2
      "complete_episodes"    0 1 2|0 1 2      0 1 2|0 1 2

  Functions that need a complete episode, such as `n_step_transitions`, are
  mapped over the data set before:

      rows = data.map(lambda episode: n_step_transitions(episode['steps'], 3))
      fragments = convert_rlds_to_fragments(rows, 200)

  Args:
    rlds_data: an RLDS data set, or a data set of the `TransitionRows` of one
      episode each.
    fragment_length: the number of transitions of a batch. With
      `"complete_episodes"` the batch continues to the end of the episode.
    batch_mode: `"truncate_episodes"` or `"complete_episodes"`.
    fragment_fn: applied to the `TransitionRows` of each episode in a batch,
      `[n, ...]`, with `episode` and `t`; returns such rows. It never sees rows
      of two episodes.
    count_steps_by: what `fragment_length` counts, as in RLlib: `"env_steps"`,
      or `"agent_steps"`: a transition counts as often as agents act in it, and
      is never cut: a batch has at least `fragment_length` agent steps. An agent
      acts where it `is_present`, except in its last step. By default agent
      steps, if `agent_steps` is given.
    agent_steps: the path of a column of the number of agents that acted in a
      step, used instead of `is_present`.
    drop_remainder: whether the rows after the last full batch are dropped.
    names: other names for `episode` and `t`, such as `{'t': 'step'}`.

  Returns:
    A data set of batches, dicts of columns: the columns of `transition_rows`,
    and `episode` and `t`, int64: the index of the episode, and of the
    transition in it; or the columns that `fragment_fn` returns. Every leaf is
    `[B, ...]`.

  Raises:
    ValueError: if `fragment_length` is not positive, `batch_mode` is not one of
      the two, there is no column that counts agents, a column to be added
      exists, or the elements are neither episodes nor rows.
    InvalidArgumentError: if fields or columns differ in length.
  """
  checks.check_positive('fragment_length', fragment_length)
  checks.check_choice('batch_mode', batch_mode, BATCH_MODES)
  if count_steps_by is None:
    count_steps_by = COUNT_STEPS_BY[agent_steps is not None]
  checks.check_choice('count_steps_by', count_steps_by, COUNT_STEPS_BY)
  by_agents = count_steps_by == 'agent_steps'
  if agent_steps is not None and not by_agents:
    raise ValueError(
        f'agent_steps is {agent_steps!r}, but count_steps_by is'
        f' {count_steps_by!r}, which does not count them.'
    )

  @pipelines.as_library_code
  def to_rows(index, episode):
    """Returns the rows of an episode, and by how much each of them counts."""
    rows = transitions.rows_of_element(episode)
    length = rows_lib.num_rows(rows)
    columns = {EPISODE: tf.fill([length], index), T: tf.range(length)}
    rows = rows._replace(
        columns=transitions.add_columns(rows.columns, columns, names)
    )
    if not by_agents:
      return rows, tf.ones([length], tf.int64)
    if agent_steps is None:
      return rows, _count_agents(episode)
    counts = paths.get(rows.columns, agent_steps)
    return rows, tf.reshape(tf.cast(counts, tf.int64), [length])

  @pipelines.as_library_code
  def find_pieces(carried_count, element):
    """Finds the pieces of an episode, and whether each fills its batch."""
    rows, counts = element
    totals = tf.concat([[0], carried_count + tf.cumsum(counts)], 0)
    num_rows = tf.size(counts, tf.int64)
    if batch_mode == 'complete_episodes':
      ends = tf.stack([0, num_rows])
    else:
      ends = _find_ends(totals, num_rows, fragment_length)
    piece_counts = tf.gather(totals, ends[1:]) - tf.gather(totals, ends[:-1])
    is_full = piece_counts >= fragment_length
    carried_count = tf.where(
        is_full[-1], tf.zeros_like(carried_count), piece_counts[-1]
    )
    return carried_count, (rows, ends, is_full)

  @pipelines.as_library_code
  def to_pieces(rows, ends, is_full):
    @pipelines.as_library_code
    def piece(index):
      piece_rows = rows_lib.slice_rows(rows, ends[index], ends[index + 1])
      return _apply(fragment_fn, piece_rows).columns, is_full[index]

    return tf.data.Dataset.range(tf.size(is_full, tf.int64)).map(piece)

  pieces = (
      rlds_data.enumerate()
      .map(to_rows)
      .filter(
          pipelines.as_library_code(lambda rows, counts: tf.size(counts) > 0)
      )
      .scan(tf.constant(0, tf.int64), find_pieces)
      .flat_map(to_pieces)
  )
  return _concat_pieces(pieces, drop_remainder)


def _count_agents(element) -> tf.Tensor:
  """Returns how many agents act in each transition, int64 `[T]`."""
  if isinstance(element, transitions.TransitionRows):
    raise ValueError(
        'TransitionRows do not contain the presence of agents in the last step,'
        ' so agent steps cannot be counted: pass RLDS episodes, or a column'
        ' agent_steps.'
    )
  counts = presence.count_acting(transitions.stack_dict(element[rlds.STEPS]))
  return counts[: tf.maximum(tf.size(counts) - 1, 0)]


def _apply(fragment_fn, rows) -> transitions.TransitionRows:
  if fragment_fn is None:
    return rows
  result = pipelines.as_user_code(fragment_fn)(rows)
  if not isinstance(result, transitions.TransitionRows):
    raise ValueError(
        'fragment_fn must return TransitionRows, for example'
        ' rows._replace(columns={**rows.columns, ...}), but returns a'
        f' {type(result).__name__}.'
    )
  return result


def _find_ends(totals, num_rows, length) -> tf.Tensor:
  """Returns 0, and the row before which each piece ends, int64 `[P + 1]`.

  Args:
    totals: int64 `[T + 1]`: the count of the unfinished batch before each row,
      and after the last one, if the batch were never finished.
    num_rows: int64 `[]`, `T`.
    length: the count of a full batch.
  """
  # Where a batch ends that starts before each row.
  full_at = tf.searchsorted(totals[1:], totals + length, out_type=tf.int64)
  end_of = tf.minimum(full_at + 1, num_rows)
  (ends,) = tf.while_loop(
      lambda ends: ends[-1] < num_rows,
      lambda ends: [tf.concat([ends, end_of[ends[-1] :][:1]], 0)],
      [tf.zeros([1], tf.int64)],
      shape_invariants=[tf.TensorShape([None])],
  )
  return ends


@pipelines.do_not_convert
def _concat_pieces(pieces, drop_remainder):
  """Concatenates pieces up to each one that fills its batch.

  Args:
    pieces: a data set of pairs: a nest of `[n, ...]`, and whether it is the
      last of its batch.
    drop_remainder: whether an unfinished batch at the end is dropped.
  """
  empty = steps_lib.zeros(pieces.element_spec[0])

  def append(state, piece):
    (batch, was_full), (rows, is_full) = state, piece
    batch = tf.cond(
        was_full, lambda: rows, lambda: rows_lib.concat_rows(batch, rows)
    )
    return (batch, is_full), (batch, is_full)

  if not drop_remainder:
    pieces = pieces.concatenate(
        tf.data.Dataset.from_tensors((empty, tf.constant(True)))
    )
  return (
      pieces.scan((empty, tf.constant(True)), append)
      .filter(lambda rows, is_full: is_full & (rows_lib.num_rows(rows) > 0))
      .map(lambda rows, is_full: rows)
  )


@pipelines.do_not_convert
def apply_horizon(
    rlds_data: tf.data.Dataset,
    horizon: int | None,
    *,
    soft: bool = False,
    no_done_at_end: bool = False,
) -> tf.data.Dataset:
  """Cuts every episode after `horizon` transitions, as RLlib did.

  A soft horizon keeps the remaining transitions as pseudo-episodes, which share
  the observation where they meet. An episode of 5 transitions that terminates,
  horizon=2:

      steps        0  1  2  3  4  5    terminal at 5
      hard         0  1  2
      soft         0  1  2
                         2  3  4
                               4  5    terminal at 5

  Args:
    rlds_data: an RLDS data set.
    horizon: the maximum number of transitions, `H`. None cuts nothing.
    soft: whether the transitions after the horizon are kept.
    no_done_at_end: whether learners bootstrap at the end of every episode.
      `is_terminal` is then False everywhere, and the discount is 1 on a
      terminal step and on the step before it, from which the transition leads
      there. `is_last` is unchanged.

  Returns:
    An RLDS data set, the steps stacked, at most `H + 1` an episode, with all
    other fields of the episode. An episode that was cut is truncated: its last
    step `is_last` and not `is_terminal`. Each pseudo-episode has `is_first` on
    its first step. Dtypes are unchanged.

  Raises:
    ValueError: if `horizon` is not positive, or a flag is missing or not one
      number or bool a step.
    InvalidArgumentError: while iterating, if stacked fields differ in length.
  """
  if horizon is not None:
    checks.check_positive('horizon', horizon)

  def get_steps(episode):
    steps = transitions.stack_dict(episode[rlds.STEPS])
    for flag in rlds.FLAGS:
      column = paths.get(steps, flag)
      steps_lib.to_column(flag, column, tf.bool)  # Raises if it is no flag.
    return _without_terminal(steps) if no_done_at_end else steps

  def part(steps, index):
    """Returns at most `horizon + 1` steps, with the flags of an episode."""
    length = rows_lib.num_rows(steps)
    start = index * horizon
    stop = tf.minimum(start + horizon + 1, length)
    row = tf.range(start, stop)
    is_cut = (row == stop - 1) & (stop < length)
    steps = rows_lib.copy_rows(steps, start, stop)
    if soft:
      steps = _set(steps, rlds.IS_FIRST, row == start, 1)
    steps = _set(steps, rlds.IS_LAST, is_cut, 1)
    return _set(
        steps, rlds.IS_TERMINAL, tf.fill(tf.shape(row), stop < length), 0
    )

  def cut(episode):
    steps = get_steps(episode)
    if horizon is not None:
      steps = part(steps, tf.constant(0, tf.int64))
    return {**episode, rlds.STEPS: steps}

  def split(episode):
    steps = get_steps(episode)
    length = rows_lib.num_rows(steps)
    # An episode of one step has no transitions, and stays an episode.
    count = tf.maximum((length - 1 + horizon - 1) // horizon, 1)
    count = tf.where(length > 0, count, 0)
    return tf.data.Dataset.range(count).map(
        lambda index: {**episode, rlds.STEPS: part(steps, index)}
    )

  if soft and horizon is not None:
    return rlds_data.flat_map(split)
  return rlds_data.map(cut)


def _without_terminal(steps) -> dict[str, Any]:
  """Returns steps of which none is terminal, so that learners bootstrap."""
  is_terminal = steps_lib.to_column(
      rlds.IS_TERMINAL, steps[rlds.IS_TERMINAL], tf.bool
  )
  steps = _set(steps, rlds.IS_TERMINAL, is_terminal, 0)
  if rlds.DISCOUNT not in steps:
    return steps
  leads_to_terminal = tf.concat([is_terminal[1:], is_terminal[:1] & False], 0)
  return _set(steps, rlds.DISCOUNT, is_terminal | leads_to_terminal, 1)


def _set(steps, field, rows, value) -> dict[str, Any]:
  """Sets a field of one number a step in some rows, bool `[T]`."""
  column = steps[field]
  rows = tf.reshape(rows, tf.shape(column))
  value = tf.cast(value, column.dtype)
  return {**steps, field: tf.where(rows, value, column)}
