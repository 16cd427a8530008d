"""Base classes of transforms and filters of episodes.

A transform changes the steps of an episode; a filter decides whether to keep an
episode. Both are small immutable objects that gin can configure, and are
applied to a data set with `transform_episodes`:

    normalize = normalize_by_statistics(statistics, 'action')
    episodes = transform_episodes(
        episodes, [KeepEpisodes(min_return=100.0), ScaleReward(0.1), normalize]
    )

A transform also works on single steps, for the deployment of a policy:

    action = normalize.invert({'action': policy(observation)})['action']
"""

import copy
import dataclasses
from typing import Any, NamedTuple, TypeVar

import gin
import numpy as np
import tensorflow as tf
import typing_extensions

from rlds2reverb.datasets import fingerprints
from rlds2reverb.episodes import batch as batch_lib
from rlds2reverb.episodes import errors
from rlds2reverb.episodes import pipelines
from rlds2reverb.episodes import random as random_lib
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import rows as rows_lib
from rlds2reverb.episodes import steps as steps_lib

# A hint for values that are not episodes.
ADVICE = (
    ' To transform single steps, call the method transform; to filter episodes'
    ' by a function, use KeepEpisodes(predicate=...).'
)
_Class = TypeVar('_Class')


@typing_extensions.dataclass_transform(frozen_default=True, eq_default=False)
def configurable(cls: type[_Class]) -> type[_Class]:
  """Makes a class a frozen dataclass that configs can name."""
  frozen = dataclasses.dataclass(frozen=True, eq=False)(cls)
  return gin.configurable(module='rlds2reverb')(frozen)


class EpisodeRows(NamedTuple):
  """The first and the last row of the episode of each row, for many episodes.

      episodes          A  A  A  A   B  B
      row               0  1  2  3   4  5
      first             0  0  0  0   4  4
      last              3  3  3  3   5  5
      episode_index     7  7  7  7   8  8

  All attributes are int64 `[N]`, except for `last_acts`.

  Attributes:
    row: the row itself.
    first: the row of the first step of its episode.
    last: the row of the last step of its episode. The action, reward and
      discount of that step are meaningless.
    episode_index: the index of the episode in the data set.
    last_acts: bool `[N]`, or `[]` for all: whether the action of the last step
      of its episode is meaningful after all; see `StepMapping.last_action`.
  """

  row: tf.Tensor
  first: tf.Tensor
  last: tf.Tensor
  episode_index: tf.Tensor
  last_acts: tf.Tensor = False

  @classmethod
  def from_batch(cls, batch: batch_lib.EpisodeBatch) -> 'EpisodeRows':
    """Returns the rows of a batch; episodes without an index count from 0."""
    row_splits = batch.row_splits
    index = episode = batch_lib.episode_of_rows(row_splits)
    first = tf.gather(row_splits, episode)
    last = tf.gather(row_splits, episode + 1) - 1
    row = tf.range(row_splits[-1])
    acts = batch_lib.has_action_mask(batch.steps, tf.equal(row, last))
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
    """Returns the row of the next step; for the last step, its own row."""
    return tf.minimum(self.row + 1, self.last)

  def last_action(self) -> tf.Tensor:
    """Returns the row of the last meaningful action of the episode.

    In an episode of one step this is its step, with or without an action.
    """
    second_to_last = tf.maximum(self.last - 1, self.first)
    return tf.where(self.last_acts, self.last, second_to_last)

  def have_action(self) -> tf.Tensor:
    """Returns which rows have a meaningful action, bool `[N]`."""
    return (self.row < self.last) | self.last_acts

  def fractions(self, seed: int, draw: int = 0) -> tf.Tensor:
    """Returns a random number in [0, 1) for each row, float64 `[N]`.

    Args:
      seed: an int.
      draw: the index of this draw among the random numbers of a step.
    """
    draws = tf.fill(tf.shape(self.row), tf.constant(draw, tf.int64))
    return random_lib.stateless_uniform(
        seed, self.episode_index, self.step, draws
    )

  def nearest(self, marked: tf.Tensor, *, backward: bool) -> tf.Tensor:
    """Returns the nearest marked row of the episode, including the row itself.

        marked       F  T  F  F  T
        backward    -1  1  1  1  4
        forward      1  1  4  4  4

    Args:
      marked: bool `[N]`.
      backward: whether to search backward instead of forward.

    Returns:
      int64 `[N]`, -1 if there is none.
    """
    marked_rows = tf.where(marked)[:, 0]
    side = 'right' if backward else 'left'
    position = tf.searchsorted(marked_rows, self.row, side, tf.int64)
    # -1 at both ends, for no row.
    padding = tf.constant([-1], tf.int64)
    marked_rows = tf.concat([padding, marked_rows, padding], 0)
    nearest = tf.gather(marked_rows, position + (0 if backward else 1))
    is_in_episode = (nearest >= self.first) & (nearest <= self.last)
    return tf.where(is_in_episode, nearest, -1)


class EpisodeOperation(fingerprints.ByValue):
  """The base of transforms and filters.

  Attributes:
    has_filter: whether it may drop episodes.
    draws: whether the result is random. Each episode draws by its index, which
      `transform_episodes` counts.
    needs_other_episodes: whether it reads other episodes of the data set. If
      so, it has a method `transform_data`, from a data set of stacked episodes
      to another, instead of `transform_rows`.
  """

  has_filter = False
  draws = False
  needs_other_episodes = False

  def __post_init__(self):
    # Copies, because the caller may modify an array.
    for name, value in list(vars(self).items()):
      if isinstance(value, (np.ndarray, list, dict)):
        object.__setattr__(self, name, copy.deepcopy(value))
    self._check()

  def _check(self) -> None:
    """Raises a ValueError if an attribute is not valid."""


class EpisodeTransform(EpisodeOperation):
  """The base of all transforms, which change the steps of an episode.

  A transform of your own needs one method: `transform`, if the result of a step
  depends on that step only; or `transform_rows`, if it depends on other steps
  of the episode. Either gets the steps of many episodes, concatenated. Declare
  the transform as a frozen dataclass with `eq=False`: then two transforms with
  equal attributes are equal, also if these are arrays or lists.

      @dataclasses.dataclass(frozen=True, eq=False)
      class TanhReward(EpisodeTransform):
        scale: float = 1.0

        def transform(self, steps):
          return {**steps, 'reward': tf.tanh(self.scale * steps['reward'])}

      @dataclasses.dataclass(frozen=True, eq=False)
      class AddChange(EpisodeTransform):
        def transform_rows(self, steps, rows):
          change = tf.gather(steps['state'], rows.next()) - steps['state']
          return {**steps, 'change': change}  # 0 at the end of an episode

      episodes = transform_episodes(episodes, [TanhReward(0.5), AddChange()])

  A transform that draws random numbers sets `draws` to True in its body, and
  uses `rows.fractions`. For an operation on one entire episode that does not
  fit this, `transform_episodes` also takes a function from an episode to an
  episode.
  """

  def __init_subclass__(cls, **kwargs):
    super().__init_subclass__(**kwargs)
    if cls.transform is not EpisodeTransform.transform and (
        cls.transform_rows is not EpisodeTransform.transform_rows
    ):
      raise TypeError(
          f'{cls.__name__} has the methods transform and transform_rows, but'
          ' must have only one.'
      )

  @pipelines.as_library_code
  def __call__(
      self, episode: dict[str, Any], episode_index: Any | None = None
  ) -> dict[str, Any]:
    """Transforms one episode, for example in `rlds_data.map(transform)`.

    Args:
      episode: an RLDS episode, with nested or stacked steps.
      episode_index: the index of the episode in the data set, an integer or
        int64 `[]`, for transforms that draw random numbers. `rlds_data
        .enumerate()` gives it.

    Returns:
      The episode with its steps transformed and stacked, `[T, ...]`. Other
      fields of the episode are not changed.

    Raises:
      ValueError: if `episode` is not an episode; if the index is missing; and
        as the method of the class does.
    """
    episode = _stack(episode)
    steps = self._transform_one(episode[rlds.STEPS], episode_index)
    return {**episode, rlds.STEPS: steps}

  @pipelines.as_library_code
  def transform(
      self, steps: dict[str, Any], episode_index: Any | None = None
  ) -> dict[str, Any]:
    """Transforms the fields of steps.

    A class that overrides it has no second argument.

    Args:
      steps: a dict of the fields of a step, with any leading dimensions: those
        of an episode are `[T, ...]`. Fields that the transform does not use may
        be missing. For a class with `transform_rows`, the steps of one entire
        episode.
      episode_index: see `__call__`.

    Returns:
      The transformed dict.

    Raises:
      ValueError: if a field that the transform uses is missing or does not fit.
      InvalidArgumentError: if fields of an episode differ in length.
    """
    steps = steps_lib.check_equal_lengths(steps)
    steps = rows_lib.map_dense(tf.convert_to_tensor, steps)
    return self._transform_one(steps, episode_index)

  def _transform_one(self, steps, episode_index):
    batch = batch_lib.make_batch(steps)
    if episode_index is not None:
      index = tf.reshape(tf.cast(episode_index, tf.int64), [1])
      batch = batch._replace(episode=index)
    return self.transform_batch(batch).steps

  def transform_rows(
      self, steps: dict[str, Any], rows: EpisodeRows
  ) -> dict[str, Any] | tuple[dict[str, Any], tf.Tensor]:
    """Transforms the steps of entire episodes, concatenated.

    Args:
      steps: a dict of stacked steps, `[N, ...]`.
      rows: for each of the `N` rows, the first and the last row of its episode,
        and the index of that episode.

    Returns:
      The transformed dict, with as many rows. To drop steps: the dict, and bool
      `[N]`, which of its rows to keep.

    Raises:
      ValueError: if a field that the transform uses is missing or does not fit.
    """
    raise NotImplementedError(
        f'{type(self).__name__} needs a method transform or transform_rows.'
    )

  def transform_batch(
      self, batch: batch_lib.EpisodeBatch
  ) -> batch_lib.EpisodeBatch:
    """Transforms all episodes of a batch.

    Args:
      batch: episodes whose leaves have equal lengths. A transform that draws
        needs the index of each `episode`.

    Returns:
      The transformed episodes, as many as before.

    Raises:
      ValueError: if the index is missing; and as the method of the class does.
    """
    if type(self).transform is not EpisodeTransform.transform:
      steps = pipelines.as_user_code(self.transform)(batch.steps)
      return batch._replace(steps=steps)
    if self.draws and not tf.is_tensor(batch.episode):
      raise ValueError(
          f'{type(self).__name__} draws random numbers by episode_index, which'
          ' is missing. Use transform_episodes, which counts the episodes, or'
          ' rlds_data.enumerate().map(lambda index, episode:'
          ' transform(episode, index)).'
      )
    rows = EpisodeRows.from_batch(batch)
    steps = pipelines.as_user_code(self.transform_rows)(batch.steps, rows)
    if not isinstance(steps, tuple):
      return batch._replace(steps=steps)
    steps, keep = steps
    return batch_lib.select_rows(
        batch._replace(steps=steps), tf.where(keep)[:, 0]
    )

  def invert(self, steps: dict[str, Any]) -> dict[str, Any]:
    """Inverts the transform, from transformed fields to original fields.

    Use it on the actions of a policy that was trained on transformed data,
    before they are passed to the environment. Transforms without an inverse,
    such as those that clip or drop a field, return `steps` unchanged.

    Args:
      steps: a dict of some fields of a transformed step, for example the
        `action` of a policy, with any leading dimensions.

    Returns:
      The same fields as in the data.
    """
    return steps


class EpisodeFilter(EpisodeOperation):
  """The base of all filters, which decide whether to keep an episode.

  A filter of your own only needs `keep`; see `EpisodeTransform` for its
  declaration.

      @dataclasses.dataclass(frozen=True, eq=False)
      class KeepTask(EpisodeFilter):
        task: str

        def keep(self, episode):
          return episode['steps']['task'][0] == self.task

      episodes = transform_episodes(episodes, [KeepTask('stack')])
  """

  has_filter = True

  @pipelines.as_library_code
  def __call__(self, episode: dict[str, Any]) -> tf.Tensor:
    """Filters one episode, for example in `rlds_data.filter(keep)`.

    Args:
      episode: an RLDS episode, with nested or stacked steps.

    Returns:
      bool `[]`: whether to keep the episode.

    Raises:
      ValueError: if `episode` is not an episode, or `keep` does not return one
        bool; and as `keep` does.
    """
    keep = pipelines.as_user_code(self.keep)(_stack(episode))
    return to_bool(keep, f'{type(self).__name__}.keep')

  def keep(self, episode: dict[str, Any]) -> tf.Tensor:
    """Returns whether to keep one episode.

    Args:
      episode: an RLDS episode, with stacked steps.

    Returns:
      bool `[]`.

    Raises:
      ValueError: if a field that the filter uses is missing or does not fit.
    """
    raise NotImplementedError(f'{type(self).__name__} needs a method keep.')

  def keep_each(self, batch: batch_lib.EpisodeBatch) -> tf.Tensor:
    """Returns which episodes of a batch to keep, bool `[E]`."""
    return tf.map_fn(
        pipelines.as_library_code(
            lambda index: self(batch_lib.get_episode(index, batch))
        ),
        tf.range(batch_lib.num_episodes(batch)),
        fn_output_signature=tf.bool,
    )

  def transform_batch(
      self, batch: batch_lib.EpisodeBatch
  ) -> batch_lib.EpisodeBatch:
    """Drops the episodes of a batch that are not kept."""
    # Faults are kept: an episode that could not be read must raise an error.
    keep = tf.cond(
        errors.is_fault(batch.fault),
        lambda: tf.fill([1], True),
        lambda: self.keep_each(batch),
    )
    return batch_lib.filter_episodes(batch, keep)


def _stack(episode):
  """Returns an episode with stacked steps, as tensors."""
  steps_lib.check_has_steps('An episode', episode, ADVICE)
  steps = steps_lib.stack_steps(episode[rlds.STEPS])
  return rows_lib.map_dense(
      tf.convert_to_tensor, {**episode, rlds.STEPS: steps}
  )


def to_bool(value: Any, name: str) -> tf.Tensor:
  """Converts the result of a function of the user to bool `[]`.

  Args:
    value: the result.
    name: the name of the function, for errors.

  Raises:
    ValueError: if it is not one bool.
  """
  value = tf.convert_to_tensor(value)
  if value.dtype != tf.bool or not value.shape.is_compatible_with([]):
    raise ValueError(
        f'{name} must return one bool, but returned {value.dtype.name}'
        f' {value.shape}.'
    )
  return value
