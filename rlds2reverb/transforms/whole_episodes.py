"""Transforms for which a step depends on the other steps of its episode.

They work on the steps of any number of whole episodes, one after the other, and
tell the episodes apart by `EpisodeRows`. Many short episodes are therefore
transformed at a time.
"""

import abc
from typing import Any, Dict, NamedTuple, Optional

import tensorflow as tf

from rlds2reverb.episodes import last_steps
from rlds2reverb.episodes import packs
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import seeds
from rlds2reverb.transforms import base


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

  def next(self) -> tf.Tensor:
    """Returns the row of the next step; the last step is followed by itself."""
    return tf.minimum(self.row + 1, self.last)

  def last_action(self) -> tf.Tensor:
    """Returns the row of the last action that has a meaning.

    An episode of one step has that step, whether or not it has such an action.
    """
    return tf.where(
        self.last_acts, self.last, tf.maximum(self.last - 1, self.first)
    )

  def have_action(self) -> tf.Tensor:
    """Returns which rows have an action that has a meaning, bool `[N]`."""
    return (self.row < self.last) | self.last_acts

  def fractions(self, seed: int, draw: int = 0) -> tf.Tensor:
    """Returns a random number in [0, 1) for each row, float64 `[N]`.

    Args:
      seed: an int.
      draw: the index of this draw among the random numbers of a step.
    """
    return seeds.fractions(
        seed,
        self.episode_index,
        self.row - self.first,
        tf.fill(tf.shape(self.row), tf.constant(draw, tf.int64)),
    )


class PackTransform(base.EpisodeTransform):
  """The base of transforms that are written for all episodes of a pack.

  A transform needs only `transform_pack`. One that draws random numbers sets
  `draws` to True in its body.
  """

  def __call__(
      self, episode: Dict[str, Any], episode_index: Optional[Any] = None
  ) -> Dict[str, Any]:
    """Transforms one episode, for example in `rlds_data.map(transform)`.

    Args:
      episode: an RLDS episode, with nested or stacked steps.
      episode_index: the index of the episode in the data set, an integer or
        int64 `[]`, from which a transform that draws makes the random numbers
        of the episode. `rlds_data.enumerate()` gives it.

    Returns:
      The episode with its steps transformed and stacked, `[T, ...]`.

    Raises:
      ValueError: if `episode` is no episode, if the index is missing, or as
        `transform_pack` does.
    """
    episode = base.stack_episode(episode)
    steps = self.transform(episode[rlds.STEPS], episode_index)
    return {**episode, rlds.STEPS: steps}

  def transform(
      self, steps: Dict[str, Any], episode_index: Optional[Any] = None
  ) -> Dict[str, Any]:
    """Transforms the stacked steps of one whole episode, `[T, ...]`.

    Args:
      steps: a dict of stacked steps.
      episode_index: see `__call__`.

    Returns:
      The transformed dict.

    Raises:
      ValueError: as `__call__` does.
    """
    return self.transform_pack(packs.of_one(steps), episode_index).steps

  @abc.abstractmethod
  def transform_pack(
      self, pack: packs.Pack, episode_index: Any = None
  ) -> packs.Pack:
    """Transforms all episodes of a pack; see `EpisodeTransform`."""

  def _rows(self, pack: packs.Pack, episode_index=None) -> EpisodeRows:
    """Returns the episodes of the rows of a pack."""
    if episode_index is None:
      if self.draws:
        raise ValueError(
            f'{type(self).__name__} draws other numbers for each episode, but'
            ' episode_index is missing. Use transform_episodes, which counts'
            ' the episodes, or rlds_data.enumerate().map(lambda index, episode:'
            ' transform(episode, index)).'
        )
      episode_index = 0
    row_splits = pack.row_splits
    episode = packs.episode_of_rows(row_splits)
    last = tf.gather(row_splits, episode + 1) - 1
    row = tf.range(row_splits[-1])
    have_action = last_steps.have_action(pack.steps, tf.equal(row, last))
    return EpisodeRows(
        row,
        tf.gather(row_splits, episode),
        last,
        episode + tf.cast(episode_index, tf.int64),
        tf.gather(have_action, last),
    )


class WholeEpisodeTransform(PackTransform):
  """The base of transforms that look at the other steps of an episode.

  A transform of your own needs only `transform_rows`. It gets the steps of many
  episodes, one after the other, and `rows`, which says for each row where its
  episode begins and ends:

      @dataclasses.dataclass(frozen=True, eq=False)
      class AddChange(WholeEpisodeTransform):
        def transform_rows(self, steps, rows):
          change = tf.gather(steps['state'], rows.next()) - steps['state']
          return {**steps, 'change': change}  # 0 at the end of an episode

  A transform that draws random numbers sets `draws` to True in its body, and
  uses `rows.fractions`.
  """

  def transform_pack(self, pack, episode_index=None):
    rows = self._rows(pack, episode_index)
    return pack._replace(steps=self.transform_rows(pack.steps, rows))

  @abc.abstractmethod
  def transform_rows(
      self, steps: Dict[str, Any], rows: EpisodeRows
  ) -> Dict[str, Any]:
    """Transforms the steps of whole episodes, one after the other.

    Args:
      steps: a dict of stacked steps, `[N, ...]`.
      rows: for each of the `N` rows, the row of the first and of the last step
        of its episode, and the index of that episode.

    Returns:
      The transformed dict, with as many rows.

    Raises:
      ValueError: if a field that the transform uses is missing or does not fit.
    """


def nearest_marked(
    marked: tf.Tensor, rows: EpisodeRows, *, backward: bool
) -> tf.Tensor:
  """Finds the nearest marked row of the same episode, the row itself included.

      marked       F  T  F  F  T
      backward    -1  1  1  1  4
      forward      1  1  4  4  4

  Args:
    marked: bool `[N]`.
    rows: the episode of each row.
    backward: whether to look at rows before, rather than after.

  Returns:
    int64 `[N]`, -1 where there is none.
  """
  found = tf.where(marked)[:, 0]
  side = 'right' if backward else 'left'
  place = tf.searchsorted(found, rows.row, side, tf.int64)
  # The -1 at both ends stands for no row.
  nowhere = tf.constant([-1], tf.int64)
  nearest = tf.gather(
      tf.concat([nowhere, found, nowhere], 0), place + (0 if backward else 1)
  )
  is_own = (nearest >= rows.first) & (nearest <= rows.last)
  return tf.where(is_own, nearest, -1)
