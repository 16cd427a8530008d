"""Batches of consecutive rows, as RLlib cuts them for its policies."""

from typing import Any, Callable, NamedTuple, Optional

import tensorflow as tf

from rlds2reverb.episodes import blocks
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import gathering
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.windows import flat_rows
from rlds2reverb.windows import presence
from rlds2reverb.windows import rows as rows_lib
from rlds2reverb.windows import transitions

BATCH_MODES = ('truncate_episodes', 'complete_episodes')
EPISODE = 'episode'
T = 't'
COUNT_STEPS_BY = ('env_steps', 'agent_steps')
# No episode has more rows.
_LONGEST = 2**31 - 1


class ChoppedSequences(NamedTuple):
  """The result of `chop_into_sequences`."""

  rows: Any
  initial_state: Any
  seq_lens: tf.Tensor
  mask: tf.Tensor


def chop_into_sequences(
    rows: Any,
    max_length: Optional[int] = None,
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
  `split_trajectories`.

  Args:
    rows: the `FlatRows` of all episodes, or the `TransitionRows` of one.
    max_length: the most rows of a sequence. By default as many as the longest
      episode has.
    dynamic_max: whether sequences are padded to the longest one, rather than to
      `max_length`.
    time_major: whether rows and mask are `[L, S, ...]`.

  Returns:
    A named tuple of `S` sequences:

    * rows: a nest of `[S, L, ...]`, with zeros on the right; of
      `TransitionRows`, the dict of their columns.
    * initial_state: a nest of `[S, ...]`: the state of each sequence's first
      row; `()` where there are no states.
    * seq_lens: int32 `[S]`: how many rows of each are real.
    * mask: bool `[S, L]`: True where a row is real.

  Raises:
    ValueError: if `max_length` is not positive, or `rows` have another type.
  """
  if max_length is None:
    max_length, dynamic_max = _LONGEST, True
  checks.check_positive('max_length', max_length)
  flat = flat_rows.FlatRows.of(rows)
  windows = windows_lib.Windows(max_length, max_length, 'zero_pad')
  episode, start = windows.find(flat.lengths)
  ends = tf.cumsum(flat.lengths)
  starts = tf.gather(ends - flat.lengths, episode) + start
  ends = tf.gather(ends, episode)
  seq_lens = tf.minimum(ends - starts, max_length)
  width = max_length
  if dynamic_max:
    width = tf.reduce_max(tf.concat([[0], seq_lens], 0))
  chopped, mask = gathering.take_windows(flat.rows, starts, width, ends)
  if time_major:
    chopped, mask = gathering.swap_time((chopped, mask))
  return ChoppedSequences(
      rows=chopped,
      initial_state=gathering.take(flat.states, starts),
      seq_lens=tf.cast(seq_lens, tf.int32),
      mask=mask,
  )


def convert_rlds_to_fragments(
    rlds_data: tf.data.Dataset,
    fragment_length: int,
    batch_mode: str = 'truncate_episodes',
    *,
    fragment_fn: Optional[
        Callable[[transitions.TransitionRows], transitions.TransitionRows]
    ] = None,
    count_steps_by: Optional[str] = None,
    agent_steps: Optional[str] = None,
    drop_remainder: bool = False,
    names: rows_lib.Names = None,
) -> tf.data.Dataset:
  """Batches the transitions of consecutive episodes.

  This is RLlib's `batch_mode` with its `rollout_fragment_length`. Here is `t`
  of four episodes of 3 transitions with `fragment_length=4`; `fragment_fn`
  begins anew at each bar:

      "truncate_episodes"    0 1 2|0      1 2|0 1      2|0 1 2
      "complete_episodes"    0 1 2|0 1 2      0 1 2|0 1 2

  Functions that need a whole episode, such as `n_step_transitions`, are mapped
  over the data set before:

      rows = data.map(lambda episode: n_step_transitions(episode['steps'], 3))
      fragments = convert_rlds_to_fragments(rows, 200)

  Args:
    rlds_data: an RLDS data set, or a data set of the `TransitionRows` of one
      episode each.
    fragment_length: how many transitions a batch has, at least: with
      `"truncate_episodes"` it ends there, with `"complete_episodes"` at the end
      of the episode.
    batch_mode: one of these two.
    fragment_fn: applied to the `TransitionRows` of each episode in a batch,
      `[n, ...]`, with `episode` and `t`; returns such rows. It never sees rows
      of two episodes.
    count_steps_by: what `fragment_length` counts, as in RLlib: `"env_steps"`,
      or `"agent_steps"`: a transition counts as often as agents act in it, and
      is never cut: a batch has at least `fragment_length` agent steps. An agent
      acts where `is_present` says that it is there, except in its last step. By
      default agent steps, if `agent_steps` is given.
    agent_steps: the path of a column that says, as a number, how many agents
      acted in a step, in place of `is_present`.
    drop_remainder: whether the rows after the last full batch are left out.
    names: other names for `episode` and `t`, such as `{'t': 'step'}`.

  Returns:
    A data set of batches, dicts of columns: those of `transition_rows`, and
    `episode` and `t`, int64: the index of the episode, and of the transition in
    it; or what `fragment_fn` makes of them. Every leaf is `[B, ...]`.

  Raises:
    ValueError: if `fragment_length` is not positive, `batch_mode` is not one of
      the two, there is no column that counts agents, there is a column already
      that is added, or the elements are neither episodes nor rows.
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

  def to_rows(index, episode):
    rows = transitions.rows_of_element(episode)
    length = gathering.num_rows(rows)
    made = {EPISODE: tf.fill([length], index), T: tf.range(length)}
    rows = transitions.add_columns(rows, made, names)
    if not by_agents:
      return rows, tf.ones([length], tf.int64)
    if agent_steps is None:
      return rows, _count_agents(episode)
    counts = paths.get(rows.columns, agent_steps)
    return rows, tf.reshape(tf.cast(counts, tf.int64), [length])

  def place(gathered, element):
    """Finds the pieces of an episode, and which of them fill their batches."""
    rows, counts = element
    totals = tf.concat([[0], gathered + tf.cumsum(counts)], 0)
    num_rows = tf.size(counts, tf.int64)
    if batch_mode == 'complete_episodes':
      ends = tf.stack([0, num_rows])
    else:
      ends = _ends_of_pieces(totals, num_rows, fragment_length)
    piece_counts = tf.gather(totals, ends[1:]) - tf.gather(totals, ends[:-1])
    fills = piece_counts >= fragment_length
    gathered = tf.where(fills[-1], tf.zeros_like(gathered), piece_counts[-1])
    return gathered, (rows, ends, fills)

  def to_pieces(rows, ends, fills):
    def piece(index):
      cut = stacked_steps.rows_of(rows, ends[index], ends[index + 1])
      return _apply(fragment_fn, cut).columns, fills[index]

    return tf.data.Dataset.range(tf.size(fills, tf.int64)).map(piece)

  pieces = (
      rlds_data.enumerate()
      .map(to_rows)
      .filter(lambda rows, counts: tf.size(counts) > 0)
      .scan(tf.constant(0, tf.int64), place)
      .flat_map(to_pieces)
  )
  return _gather(pieces, drop_remainder)


def _count_agents(element) -> tf.Tensor:
  """Returns how many agents act in each transition, int64 `[T]`."""
  if isinstance(element, transitions.TransitionRows):
    raise ValueError(
        'TransitionRows do not say who is there after the last of them, so'
        ' agent steps cannot be counted: give RLDS episodes, or a column'
        ' agent_steps.'
    )
  counts = presence.count_acting(transitions.stack_dict(element[rlds.STEPS]))
  return counts[: tf.maximum(tf.size(counts) - 1, 0)]


def _apply(fragment_fn, rows) -> transitions.TransitionRows:
  if fragment_fn is None:
    return rows
  made = graphs.as_user_code(fragment_fn)(rows)
  if not isinstance(made, transitions.TransitionRows):
    raise ValueError(
        'fragment_fn must return TransitionRows, for example'
        ' rows._replace(columns={**rows.columns, ...}), but returns a'
        f' {type(made).__name__}.'
    )
  return made


def _ends_of_pieces(totals, num_rows, length) -> tf.Tensor:
  """Returns 0, and the row before which each piece ends, int64 `[P + 1]`.

  Args:
    totals: int64 `[T + 1]`: 0, and for each row the count of the unfinished
      batch and of the rows so far.
    num_rows: int64 `[]`, `T`.
    length: the count of a full batch.
  """
  # Where a batch ends that begins before each row.
  found = tf.searchsorted(totals[1:], totals + length, out_type=tf.int64)
  end_of = tf.minimum(found + 1, num_rows)
  (ends,) = tf.while_loop(
      lambda ends: ends[-1] < num_rows,
      lambda ends: [tf.concat([ends, end_of[ends[-1] :][:1]], 0)],
      [tf.zeros([1], tf.int64)],
      shape_invariants=[tf.TensorShape([None])],
  )
  return ends


def _gather(pieces, drop_remainder):
  """Concatenates pieces up to each one that fills its batch.

  Args:
    pieces: a data set of pairs: a nest of `[n, ...]`, and whether it is the
      last of its batch.
    drop_remainder: whether an unfinished batch at the end is left out.
  """
  nothing = steps_lib.zeros(pieces.element_spec[0])

  def gather(held, piece):
    (held_rows, is_new), (rows, is_full) = held, piece
    rows = tf.cond(is_new, lambda: rows, lambda: blocks.concat(held_rows, rows))
    return (rows, is_full), (rows, is_full)

  if not drop_remainder:
    pieces = pieces.concatenate(
        tf.data.Dataset.from_tensors((nothing, tf.constant(True)))
    )
  return (
      pieces.scan((nothing, tf.constant(True)), gather)
      .filter(lambda rows, is_full: is_full & (gathering.num_rows(rows) > 0))
      .map(lambda rows, is_full: rows)
  )
