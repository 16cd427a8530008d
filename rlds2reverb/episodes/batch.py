"""`EpisodeBatch`: the stacked steps of several complete episodes.

Every element of a data set has a fixed cost, which dominates if episodes are
short. So several short episodes are processed together as one batch, and a long
episode is a batch alone.

The last step of an episode is the one at its end, even if its `is_last` is
False, because some data never sets that flag. In RLDS it has the last
observation, and its action, reward and discount have no meaning:

    step            0    1    2    3 (last)
    observation     o0   o1   o2   o3
    action          a0   a1   a2   -
    reward          r0   r1   r2   -

A `StepMapping` supports data sets that differ in two ways. If the last step has
the reward of the last transition, `move_reward` moves it. If the last action
has a meaning, the steps have a field `has_action`, one bool a step. Code that
drops the last action calls `has_action_mask`.
"""

from typing import Any, NamedTuple

import tensorflow as tf
import tree

from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import rows as rows_lib
from rlds2reverb.episodes import steps as steps_lib

# The maximum size of a batch of several episodes: as many bytes as a block.
BATCH_BYTES = 2 << 20

HAS_ACTION = 'has_action'

# Where data stores the reward of the last transition.
STEP, TRANSITION = REWARD_LOCATIONS = ('step', 'transition')


class EpisodeBatch(NamedTuple):
  """The steps of `E` complete episodes, concatenated, `N` steps in all.

  The input of transforms and of the conversion to frames, in a graph.

  A batch has one episode, `E=1`, if the episode is long; if its fields differ
  in length (its leaves keep their lengths, and `N` is the maximum); if it has
  ragged or sparse fields or data sets (they stay unchanged); or if it could not
  be read (it has no steps, and `fault` is set).

  Attributes:
    steps: a dict of the step fields, every leaf `[N, ...]`.
    row_splits: int64 `[E + 1]`: episode `e` has the rows from `row_splits[e]`
      to `row_splits[e + 1]`. Between `from_ragged` and `slice_episodes`,
      `[leaves, E + 1]`, because fields may still differ in length.
    fields: a dict of the other fields of the episodes, every leaf `[E, ...]`.
    fault: the `errors.Fault` of an episode that could not be read, whose rule
      is empty in other batches; or `()`, if the source can always be read.
    episode: int64 `[E]`: the index of each episode in the data set; or `()`,
      before `episode_dataset.number_episodes`.
  """

  steps: Any
  row_splits: Any
  fields: Any
  fault: Any = ()
  episode: Any = ()


def make_batch(steps: Any, fields: Any = ()) -> EpisodeBatch:
  """Returns the batch of one episode.

  Args:
    steps: its stacked steps, which may differ in length.
    fields: a nest of its other fields.
  """
  lengths = steps_lib.get_lengths(steps)
  if lengths is None:
    num_rows = tf.shape(tf.nest.flatten(steps)[0])[0]
  else:
    num_rows = tf.reduce_max(lengths.lengths)
  return EpisodeBatch(
      steps,
      tf.stack([tf.constant(0, tf.int64), tf.cast(num_rows, tf.int64)]),
      rows_lib.map_dense(lambda leaf: tf.expand_dims(leaf, 0), fields),
  )


def split_steps(episode: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
  """Returns the steps of an episode, and its other fields."""
  fields = dict(episode)
  return fields.pop(rlds.STEPS), fields


def num_episodes(batch: EpisodeBatch) -> tf.Tensor:
  """Returns the number of episodes in a batch, int64 `[]`."""
  return tf.size(batch.row_splits, tf.int64) - 1


def get_episode(index: tf.Tensor, batch: EpisodeBatch) -> dict[str, Any]:
  """Returns the episode at a position of a batch."""

  def copy_steps():
    # A copy, so that an episode does not keep its batch in memory.
    return rows_lib.copy_rows(
        batch.steps, batch.row_splits[index], batch.row_splits[index + 1]
    )

  steps = tf.cond(
      tf.size(batch.row_splits) == 2, lambda: batch.steps, copy_steps
  )
  fields = rows_lib.map_dense(lambda leaf: leaf[index], batch.fields)
  return {**fields, rlds.STEPS: steps}


def filter_episodes(batch: EpisodeBatch, keep: tf.Tensor) -> EpisodeBatch:
  """Returns the episodes of a batch for which `keep`, bool `[E]`, is True."""

  def gather():
    rows = tf.where(tf.gather(keep, episode_of_rows(batch.row_splits)))[:, 0]
    episodes = tf.where(keep)[:, 0]
    lengths = batch.row_splits[1:] - batch.row_splits[:-1]
    take = lambda nest, index: rows_lib.map_dense(
        lambda leaf: tf.gather(leaf, index), nest
    )
    return EpisodeBatch(
        take(batch.steps, rows),
        tf.concat([[0], tf.cumsum(tf.gather(lengths, episodes))], 0),
        take(batch.fields, episodes),
        batch.fault,
        take(batch.episode, episodes),
    )

  return tf.cond(tf.reduce_all(keep), lambda: batch, gather)


def select_rows(batch: EpisodeBatch, rows: tf.Tensor) -> EpisodeBatch:
  """Returns a batch of the same episodes with some of their steps.

  Args:
    batch: a batch.
    rows: int64 `[K]`: the rows of the selected steps, ascending.
  """
  return batch._replace(
      steps=rows_lib.take(batch.steps, rows),
      row_splits=tf.searchsorted(rows, batch.row_splits, out_type=tf.int64),
  )


def from_ragged(rows: Any, fields: Any) -> EpisodeBatch:
  """Returns the batch of episodes that `ragged_batch` has batched.

  Args:
    rows: a nest of leaves `[E, (T), ...]`, ragged ones or, if all episodes have
      the same static length, tensors.
    fields: a nest of the other fields of the episodes, `[E, ...]`.

  Returns:
    The batch, with row splits for each leaf.
  """
  leaves = [
      leaf
      if isinstance(leaf, tf.RaggedTensor)
      else tf.RaggedTensor.from_tensor(leaf, row_splits_dtype=tf.int64)
      for leaf in tf.nest.flatten(rows)
  ]
  return EpisodeBatch(
      tf.nest.pack_sequence_as(rows, [leaf.values for leaf in leaves]),
      tf.stack([leaf.row_splits for leaf in leaves]),
      fields,
  )


def divide(
    row_splits: tf.Tensor, row_bytes: int, is_alone: tf.Tensor | None = None
) -> tf.Tensor:
  """Divides episodes into batches of limited size.

  An episode of unequal fields is a batch alone; see `divide_by_bytes`.

  Args:
    row_splits: int64 `[leaves, E + 1]`: the row splits of each leaf.
    row_bytes: the bytes of a row.
    is_alone: bool `[E]`: whether an episode must be a batch alone.

  Returns:
    int64 `[P, 2]`: the first episode of each batch, and the one after its last.
  """
  lengths = row_splits[:, 1:] - row_splits[:, :-1]
  max_length = tf.reduce_max(lengths, axis=0)
  is_unequal = max_length != tf.reduce_min(lengths, axis=0)
  if is_alone is not None:
    is_unequal |= is_alone
  return divide_by_bytes(max_length * row_bytes, BATCH_BYTES, is_unequal)


def divide_by_bytes(
    num_bytes: tf.Tensor, max_bytes: int, is_alone: tf.Tensor | None = None
) -> tf.Tensor:
  """Divides a sequence of episodes into parts of limited size.

  Episodes that begin within the same `max_bytes` are in one part, which can
  have nearly twice as many bytes. A larger episode is a part alone.

  Args:
    num_bytes: int64 `[E]`: the bytes of each episode.
    max_bytes: the intended maximum size of a part.
    is_alone: bool `[E]`: whether an episode must be a part alone.

  Returns:
    int64 `[P, 2]`: the start and the stop of each part. For the bytes
    `[2, 1, 3]` and a maximum of 3 bytes, `[[0, 2], [2, 3]]`.
  """
  alone = num_bytes > max_bytes
  if is_alone is not None:
    alone |= is_alone
  alone = tf.cast(alone, tf.int64)
  part = tf.cumsum(num_bytes, exclusive=True) // max_bytes
  part += tf.cumsum(alone) + tf.cumsum(alone, exclusive=True)
  is_first = tf.concat(
      [tf.ones_like(part[:1], tf.bool), part[1:] != part[:-1]], 0
  )
  starts = tf.where(is_first)[:, 0]
  stops = tf.concat([starts, tf.shape(part, tf.int64)], 0)[1:]
  return tf.stack([starts, stops], axis=1)


def slice_episodes(bounds: tf.Tensor, batch: EpisodeBatch) -> EpisodeBatch:
  """Returns the episodes from `bounds[0]` to `bounds[1]`, without a copy.

  Args:
    bounds: int64 `[2]`.
    batch: a batch with row splits for each leaf, which the result has, too.
  """
  row_splits = batch.row_splits[:, bounds[0] : bounds[1] + 1]
  # `column[start:stop]` would add the same operations for every column.
  stride = tf.ones([1], tf.int64)
  leaves = [
      tf.strided_slice(column, start, stop, stride)
      for column, start, stop in zip(
          tf.nest.flatten(batch.steps),
          tf.unstack(row_splits[:, :1]),
          tf.unstack(row_splits[:, -1:]),
      )
  ]
  return EpisodeBatch(
      tf.nest.pack_sequence_as(batch.steps, leaves),
      row_splits - row_splits[:, :1],
      rows_lib.slice_rows(batch.fields, bounds[0], bounds[1]),
  )


def episode_of_rows(row_splits: tf.Tensor) -> tf.Tensor:
  """Returns the position in its batch of the episode of each row.

  Args:
    row_splits: int64 `[E + 1]`, as in `EpisodeBatch`.

  Returns:
    int64 `[N]`: `[0, 0, 2]` for the row splits `[0, 2, 2, 3]`.
  """
  num_rows = row_splits[-1]
  return tf.cumsum(count_starts(row_splits, num_rows + 1))[:num_rows] - 1


def count_starts(row_splits: tf.Tensor, num_rows: tf.Tensor) -> tf.Tensor:
  """Returns how many episodes start at each row.

  An episode without steps starts where the next one does. One more episode is
  counted after the last row.

  Args:
    row_splits: int64 `[E + 1]`, as in `EpisodeBatch`.
    num_rows: an integer `[]`, `R`, larger than the number of rows of the batch.

  Returns:
    int64 `[R]`: `[1, 0, 2, 1]` for the row splits `[0, 2, 2, 3]`.
  """
  return tf.math.unsorted_segment_sum(
      tf.ones_like(row_splits), row_splits, num_rows
  )


def sum_rows(column: tf.Tensor, row_splits: tf.Tensor) -> tf.Tensor:
  """Sums a column over the steps of each episode.

  Args:
    column: numbers `[N, ...]`.
    row_splits: int64 `[E + 1]`, as in `EpisodeBatch`.

  Returns:
    The sums, `[E, ...]`, of the same dtype; 0 for an episode without steps.
  """
  return tf.math.unsorted_segment_sum(
      column, episode_of_rows(row_splits), tf.size(row_splits) - 1
  )


def last_row_mask(row_splits: tf.Tensor) -> tf.Tensor:
  """Returns which rows are the last steps of their episodes, bool `[N]`.

  Args:
    row_splits: int64 `[E + 1]`, as in `EpisodeBatch`.
  """
  return count_starts(row_splits, row_splits[-1] + 1)[1:] > 0


def last_step_mask(num_steps: tf.Tensor) -> tf.Tensor:
  """Returns which step of one episode is its last one, bool `[T]`."""
  return tf.equal(tf.range(num_steps), num_steps - 1)


def has_action_mask(steps: dict[str, Any], last: tf.Tensor) -> tf.Tensor:
  """Returns whether the action of each step has a meaning, bool `[N]`.

  Args:
    steps: a dict of stacked steps `[N, ...]`.
    last: bool `[N]`: whether each step is the last one of its episode.

  Raises:
    ValueError: if there is a field `has_action` that is not one bool a step.
  """
  if HAS_ACTION in steps:
    return steps_lib.to_column(HAS_ACTION, steps[HAS_ACTION], tf.bool)
  return ~last


def move_reward(reward: Any, first: tf.Tensor, last: tf.Tensor) -> Any:
  """Adds the reward of each last step to the reward of the step before.

      reward     0  0  0  1 |  2  3 |  7
      moved      0  0  1  0 |  5  0 |  7

  An episode of one step has no transition, so its reward stays.

  Args:
    reward: a nest of numbers or bools `[N, ...]`.
    first: bool `[N]`: which steps are the first ones of their episodes.
    last: bool `[N]`: which steps are the last ones.

  Returns:
    The nest, of the same dtypes. Bools are combined by a logical or.
  """
  is_moved = last & ~first

  def move(leaf):
    leaf = tf.convert_to_tensor(leaf)
    mask = rows_lib.expand_to_rank(is_moved, leaf)
    zeros = tf.zeros_like(leaf)
    moved = tf.where(mask, leaf, zeros)
    moved = tf.concat([moved[1:], zeros[:1]], 0)
    remaining = tf.where(mask, zeros, leaf)
    return remaining | moved if leaf.dtype == tf.bool else remaining + moved

  return tf.nest.map_structure(move, reward)


class Outcome(NamedTuple):
  """The outcomes of episodes.

  Attributes:
    undiscounted_return: float64 `[E]`: the sum of the rewards of all
      transitions. The reward of the last step is excluded.
    length: int64 `[E]`: the number of transitions, one less than of steps.
    is_terminal: bool `[E]`: whether a step of the episode is terminal.
  """

  undiscounted_return: tf.Tensor
  length: tf.Tensor
  is_terminal: tf.Tensor


def compute_outcomes(batch: EpisodeBatch) -> Outcome:
  """Returns the outcome of every episode of a batch.

  Raises:
    ValueError: if the reward is not one number for each step.
  """
  is_transition = ~last_row_mask(batch.row_splits)

  def sum_transitions(column):
    return sum_rows(tf.where(is_transition, column, 0), batch.row_splits)

  is_terminal = tf.cast(
      steps_lib.to_column(
          rlds.IS_TERMINAL, batch.steps[rlds.IS_TERMINAL], tf.bool
      ),
      tf.int64,
  )
  return Outcome(
      sum_transitions(_scalar_reward(batch.steps)),
      sum_transitions(tf.ones_like(is_terminal)),
      sum_rows(is_terminal, batch.row_splits) > 0,
  )


def _scalar_reward(steps) -> tf.Tensor:
  rewards = tree.flatten(steps[rlds.REWARD])
  if len(rewards) != 1 or not (
      rewards[0].shape.is_compatible_with([None])
      or rewards[0].shape.is_compatible_with([None, 1])
  ):
    raise ValueError(
        'The return of an episode needs a reward of one number a step, but the'
        f' reward is {steps[rlds.REWARD]}.'
    )
  steps_lib.check_numeric(rlds.REWARD, steps[rlds.REWARD])
  return tf.cast(tf.reshape(rewards[0], [-1]), tf.float64)
