"""A `EpisodeBatch` holds the stacked steps of several whole episodes.

Every episode costs an element of a data set, and some operations, however short
it is. If episodes are short, that is most of the work. So several episodes are
handled together as one batch, and a long episode is a batch of its own.
"""

from typing import Any, Dict, NamedTuple, Tuple

import tensorflow as tf

from rlds2reverb.episodes import gathering
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.episodes import steps as steps_lib


class EpisodeBatch(NamedTuple):
  """The steps of `E` whole episodes, one after the other, `N` steps in all.

  If the fields of an episode differ in length, it is in a batch of its own,
  `E=1`, whose leaves keep their lengths. `N` is then the longest of them. So is
  one that has ragged or sparse fields, or data sets, which stay as they are. An
  episode that could not be read is in a batch of its own, too, without steps,
  and with its fault.

  Attributes:
    steps: a dict of the step fields, every leaf `[N, ...]`.
    row_splits: int64 `[E + 1]`: episode `e` has the rows from `row_splits[e]`
      until `row_splits[e + 1]`, or none if the two are equal.
    fields: a dict of the other fields of the episodes, every leaf `[E, ...]`.
    fault: a `faults.Fault`, which says what is wrong with the episode that
      could not be read, and has no rule in other batches; or `()`, if the
      source of the batches can always be read.
    episode: int64 `[E]`: the index of each episode in the data set; or `()`,
      until `batching.numbered` counts them.
  """

  steps: Any
  row_splits: Any
  fields: Any
  fault: Any = ()
  episode: Any = ()


def of_one(steps: Any, fields: Any = ()) -> EpisodeBatch:
  """Returns the batch of one episode.

  Args:
    steps: its stacked steps, which may differ in length.
    fields: a nest of its other fields.
  """
  lengths = stacked_steps.lengths_of(steps)
  if lengths is None:
    num_rows = tf.shape(tf.nest.flatten(steps)[0])[0]
  else:
    num_rows = tf.reduce_max(lengths.rows)
  return EpisodeBatch(
      steps,
      tf.stack([tf.constant(0, tf.int64), tf.cast(num_rows, tf.int64)]),
      steps_lib.map_dense(lambda leaf: tf.expand_dims(leaf, 0), fields),
  )


def of_episode(episode: Dict[str, Any]) -> EpisodeBatch:
  """Returns the batch of one episode with stacked steps; see `separate`."""
  return of_one(*separate(episode))


def separate(episode: Dict[str, Any]) -> Tuple[Any, Dict[str, Any]]:
  """Returns the steps of an episode, and its other fields."""
  fields = dict(episode)
  return fields.pop(rlds.STEPS), fields


def num_episodes(batch: EpisodeBatch) -> tf.Tensor:
  """Returns the number of episodes in a batch, int64 `[]`."""
  return tf.size(batch.row_splits, tf.int64) - 1


def keep_episodes(batch: EpisodeBatch, keep: tf.Tensor) -> EpisodeBatch:
  """Returns a batch of some episodes of a batch.

  Args:
    batch: a batch.
    keep: bool `[E]`: which episodes are kept.
  """

  def kept():
    rows = tf.where(tf.gather(keep, episode_of_rows(batch.row_splits)))[:, 0]
    episodes = tf.where(keep)[:, 0]
    lengths = batch.row_splits[1:] - batch.row_splits[:-1]
    take = lambda nest, index: steps_lib.map_dense(
        lambda leaf: tf.gather(leaf, index), nest
    )
    return EpisodeBatch(
        take(batch.steps, rows),
        tf.concat([[0], tf.cumsum(tf.gather(lengths, episodes))], 0),
        take(batch.fields, episodes),
        batch.fault,
        take(batch.episode, episodes),
    )

  return tf.cond(tf.reduce_all(keep), lambda: batch, kept)


def keep_rows(batch: EpisodeBatch, kept: tf.Tensor) -> EpisodeBatch:
  """Returns a batch of the same episodes with some of their steps.

  Args:
    batch: a batch.
    kept: int64 `[K]`: the rows of the steps that are kept, ascending.
  """
  return batch._replace(
      steps=gathering.take(batch.steps, kept),
      row_splits=tf.searchsorted(kept, batch.row_splits, out_type=tf.int64),
  )


def episode_of_rows(row_splits: tf.Tensor) -> tf.Tensor:
  """Returns the position in its batch of the episode of each row.

  Args:
    row_splits: int64 `[E + 1]`, as in `EpisodeBatch`.

  Returns:
    int64 `[N]`: `[0, 0, 2]` for the row splits `[0, 2, 2, 3]`.
  """
  num_rows = row_splits[-1]
  return tf.cumsum(count_begins(row_splits, num_rows + 1))[:num_rows] - 1


def count_begins(row_splits: tf.Tensor, num_rows: tf.Tensor) -> tf.Tensor:
  """Returns how many episodes begin at each row.

  An episode without steps begins where the next one does. One further episode
  is counted after the last row.

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
  """Adds up a number of the steps of each episode.

  Args:
    column: numbers `[N, ...]`.
    row_splits: int64 `[E + 1]`, as in `EpisodeBatch`.

  Returns:
    The sums, `[E, ...]`, of the same dtype; 0 for an episode without steps.
  """
  return tf.math.unsorted_segment_sum(
      column, episode_of_rows(row_splits), tf.size(row_splits) - 1
  )
