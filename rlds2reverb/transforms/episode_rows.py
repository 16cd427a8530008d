"""The begin and the end of the episode of each row, for many episodes."""

from typing import NamedTuple

import tensorflow as tf

from rlds2reverb.episodes import episode_batches
from rlds2reverb.episodes import last_steps
from rlds2reverb.episodes import seeds


class EpisodeRows(NamedTuple):
  """The begin and the end of the episode of each row, for many episodes.

      episodes          A  A  A  A   B  B
      row               0  1  2  3   4  5
      first             0  0  0  0   4  4
      last              3  3  3  3   5  5
      episode_index     7  7  7  7   8  8

  All are int64 `[N]`, except for `last_acts`.

  Attributes:
    row: the row itself.
    first: the row of the first step of its episode.
    last: the row of the last step of its episode. The action, reward and
      discount of that step have no meaning.
    episode_index: the index of the episode in the data set.
    last_acts: bool `[N]`, or `[]` for all: whether the action of the last step
      of its episode counts nevertheless, as `StepMapping.last_action` says.
  """

  row: tf.Tensor
  first: tf.Tensor
  last: tf.Tensor
  episode_index: tf.Tensor
  last_acts: tf.Tensor = False

  @classmethod
  def of(cls, batch: episode_batches.EpisodeBatch) -> 'EpisodeRows':
    """Returns the rows of a batch; episodes without an index count from 0."""
    row_splits = batch.row_splits
    index = episode = episode_batches.episode_of_rows(row_splits)
    first = tf.gather(row_splits, episode)
    last = tf.gather(row_splits, episode + 1) - 1
    row = tf.range(row_splits[-1])
    acts = last_steps.have_action(batch.steps, tf.equal(row, last))
    if tf.is_tensor(batch.episode):
      index = tf.gather(batch.episode, episode)
    return cls(row, first, last, index, tf.gather(acts, last))

  @property
  def step(self) -> tf.Tensor:
    """The index of the step in its episode."""
    return self.row - self.first

  def is_last(self) -> tf.Tensor:
    """Returns which rows are the last of their episode, bool `[N]`."""
    return tf.equal(self.row, self.last)

  def next(self) -> tf.Tensor:
    """Returns the row of the next step; the last step is followed by itself."""
    return tf.minimum(self.row + 1, self.last)

  def last_action(self) -> tf.Tensor:
    """Returns the row of the last action that has a meaning.

    An episode of one step has that step, whether or not it has such an action.
    """
    before = tf.maximum(self.last - 1, self.first)
    return tf.where(self.last_acts, self.last, before)

  def have_action(self) -> tf.Tensor:
    """Returns which rows have an action that has a meaning, bool `[N]`."""
    return (self.row < self.last) | self.last_acts

  def fractions(self, seed: int, draw: int = 0) -> tf.Tensor:
    """Returns a random number in [0, 1) for each row, float64 `[N]`.

    Args:
      seed: an int.
      draw: the index of this draw among the random numbers of a step.
    """
    draws = tf.fill(tf.shape(self.row), tf.constant(draw, tf.int64))
    return seeds.fractions(seed, self.episode_index, self.step, draws)

  def nearest(self, marked: tf.Tensor, *, backward: bool) -> tf.Tensor:
    """Finds the nearest marked row of the episode, the row itself included.

        marked       F  T  F  F  T
        backward    -1  1  1  1  4
        forward      1  1  4  4  4

    Args:
      marked: bool `[N]`.
      backward: whether to look at rows before, rather than after.

    Returns:
      int64 `[N]`, -1 where there is none.
    """
    found = tf.where(marked)[:, 0]
    side = 'right' if backward else 'left'
    place = tf.searchsorted(found, self.row, side, tf.int64)
    # The -1 at both ends stands for no row.
    nowhere = tf.constant([-1], tf.int64)
    found = tf.concat([nowhere, found, nowhere], 0)
    nearest = tf.gather(found, place + (0 if backward else 1))
    is_own = (nearest >= self.first) & (nearest <= self.last)
    return tf.where(is_own, nearest, -1)
