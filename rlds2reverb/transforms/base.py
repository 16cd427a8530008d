"""The base classes of transforms and filters of episodes.

A transform changes the steps of an episode; a filter decides whether an episode
is kept. Both are small immutable objects that gin can configure, and both are
applied to a data set with `transform_episodes`:

    normalize = normalize_by_statistics(statistics, 'action')
    episodes = transform_episodes(
        episodes, [KeepEpisodes(min_return=100.0), ScaleReward(0.1), normalize]
    )

A transform also works on single steps, which a policy needs when it is
deployed:

    action = normalize.invert({'action': policy(observation)})['action']
"""

import copy
import dataclasses
from typing import Any, Dict, Optional, Tuple, Type, TypeVar, Union

import gin
import numpy as np
import tensorflow as tf
import typing_extensions

from rlds2reverb.datasets import identity
from rlds2reverb.episodes import batching
from rlds2reverb.episodes import episode_batches
from rlds2reverb.episodes import faults
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.transforms import episode_rows

# A hint for values that are no episodes.
ADVICE = (
    ' To transform single steps, call the method transform; to filter episodes'
    ' by a function, use KeepEpisodes(predicate=...).'
)
_Class = TypeVar('_Class')


@typing_extensions.dataclass_transform(frozen_default=True, eq_default=False)
def configurable(cls: Type[_Class]) -> Type[_Class]:
  """Makes a class a frozen dataclass that configs can name."""
  made = dataclasses.dataclass(frozen=True, eq=False)(cls)
  return gin.configurable(module='rlds2reverb')(made)


class EpisodeOperation(identity.ByValue):
  """What transforms and filters share.

  Attributes:
    has_filter: whether it may leave episodes out.
    draws: whether the result is random. Each episode draws by its index, which
      `transform_episodes` counts.
  """

  has_filter = False
  draws = False

  def __post_init__(self):
    # The caller may go on using an array, and write into it.
    for name, value in list(vars(self).items()):
      if isinstance(value, (np.ndarray, list, dict)):
        object.__setattr__(self, name, copy.deepcopy(value))
    self._check()

  def _check(self) -> None:
    """Raises a ValueError if an attribute is not valid."""


class EpisodeTransform(EpisodeOperation):
  """The base of all transforms, which change the steps of an episode.

  A transform of your own needs one method: `transform`, if a step's result
  depends on that step alone; or `transform_rows`, if it depends on other steps
  of the episode. Either gets the steps of many episodes at once. Declare it as
  a frozen dataclass with `eq=False`: then two transforms with equal attributes
  are equal, even if these are arrays or lists.

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
  uses `rows.fractions`. What works on one whole episode, in another way, is a
  function from an episode to an episode, which `transform_episodes` takes, too.
  """

  def __init_subclass__(cls, **kwargs):
    super().__init_subclass__(**kwargs)
    if cls.transform is not EpisodeTransform.transform and (
        cls.transform_rows is not EpisodeTransform.transform_rows
    ):
      raise TypeError(
          f'{cls.__name__} has the methods transform and transform_rows, but'
          ' must have one of them.'
      )

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
      The episode with its steps transformed and stacked, `[T, ...]`. The other
      fields of the episode stay as they are.

    Raises:
      ValueError: if `episode` is no episode; if the index is missing; and as
        the method of the class does.
    """
    episode = _stacked(episode)
    steps = self._transform_one(episode[rlds.STEPS], episode_index)
    return {**episode, rlds.STEPS: steps}

  def transform(
      self, steps: Dict[str, Any], episode_index: Optional[Any] = None
  ) -> Dict[str, Any]:
    """Transforms the fields of steps.

    A class that overrides it leaves out the second argument.

    Args:
      steps: a dict of the fields of a step, with any leading dimensions: those
        of an episode are `[T, ...]`. Fields that the transform does not use may
        be missing. For a class that has `transform_rows`, they are those of one
        whole episode.
      episode_index: see `__call__`.

    Returns:
      The transformed dict.

    Raises:
      ValueError: if a field that the transform uses is missing or does not fit.
      InvalidArgumentError: if fields of an episode differ in length.
    """
    steps = stacked_steps.with_equal_lengths(steps)
    steps = steps_lib.map_dense(tf.convert_to_tensor, steps)
    return self._transform_one(steps, episode_index)

  def _transform_one(self, steps, episode_index):
    batch = episode_batches.of_one(steps)
    if episode_index is not None:
      index = tf.reshape(tf.cast(episode_index, tf.int64), [1])
      batch = batch._replace(episode=index)
    return self.transform_batch(batch).steps

  def transform_rows(
      self, steps: Dict[str, Any], rows: episode_rows.EpisodeRows
  ) -> Union[Dict[str, Any], Tuple[Dict[str, Any], tf.Tensor]]:
    """Transforms the steps of whole episodes, one after the other.

    Args:
      steps: a dict of stacked steps, `[N, ...]`.
      rows: for each of the `N` rows, the row of the first and of the last step
        of its episode, and the index of that episode.

    Returns:
      The transformed dict, with as many rows. To leave steps out: the dict, and
      bool `[N]`, which of its rows are kept.

    Raises:
      ValueError: if a field that the transform uses is missing or does not fit.
    """
    raise NotImplementedError(
        f'{type(self).__name__} needs a method transform or transform_rows.'
    )

  def transform_batch(
      self, batch: episode_batches.EpisodeBatch
  ) -> episode_batches.EpisodeBatch:
    """Transforms all episodes of a batch.

    Args:
      batch: episodes whose leaves have one length. A transform that draws needs
        the index of each `episode`.

    Returns:
      The transformed episodes, of the same number.

    Raises:
      ValueError: if the index is missing; and as the method of the class does.
    """
    if type(self).transform is not EpisodeTransform.transform:
      made = graphs.as_user_code(self.transform)(batch.steps)
      return batch._replace(steps=made)
    if self.draws and not tf.is_tensor(batch.episode):
      raise ValueError(
          f'{type(self).__name__} draws other numbers for each episode, but'
          ' episode_index is missing. Use transform_episodes, which counts the'
          ' episodes, or rlds_data.enumerate().map(lambda index, episode:'
          ' transform(episode, index)).'
      )
    rows = episode_rows.EpisodeRows.of(batch)
    made = graphs.as_user_code(self.transform_rows)(batch.steps, rows)
    if not isinstance(made, tuple):
      return batch._replace(steps=made)
    steps, keep = made
    return episode_batches.keep_rows(
        batch._replace(steps=steps), tf.where(keep)[:, 0]
    )

  def invert(self, steps: Dict[str, Any]) -> Dict[str, Any]:
    """Turns transformed fields back into those of the data.

    Use it on the actions of a policy that was trained on transformed data,
    before the environment gets them. Transforms that cannot be undone, such as
    those that clip a field or leave it out, return `steps` as they are.

    Args:
      steps: a dict of some fields of a transformed step, for example the
        `action` of a policy, with any leading dimensions.

    Returns:
      The same fields as they are in the data.
    """
    return steps


class EpisodeFilter(EpisodeOperation):
  """The base of all filters, which decide whether an episode is kept.

  A filter of your own needs only `keep`; see `EpisodeTransform` about its
  declaration.

      @dataclasses.dataclass(frozen=True, eq=False)
      class KeepTask(EpisodeFilter):
        task: str

        def keep(self, episode):
          return episode['steps']['task'][0] == self.task

      episodes = transform_episodes(episodes, [KeepTask('stack')])
  """

  has_filter = True

  def __call__(self, episode: Dict[str, Any]) -> tf.Tensor:
    """Decides on one episode, for example in `rlds_data.filter(keep)`.

    Args:
      episode: an RLDS episode, with nested or stacked steps.

    Returns:
      bool `[]`: whether the episode is kept.

    Raises:
      ValueError: if `episode` is no episode, or if `keep` returns something
        else than one bool; and as `keep` does.
    """
    kept = graphs.as_user_code(self.keep)(_stacked(episode))
    return one_bool(kept, f'{type(self).__name__}.keep')

  def keep(self, episode: Dict[str, Any]) -> tf.Tensor:
    """Decides on one episode.

    Args:
      episode: an RLDS episode, with stacked steps.

    Returns:
      bool `[]`: whether the episode is kept.

    Raises:
      ValueError: if a field that the filter uses is missing or does not fit.
    """
    raise NotImplementedError(f'{type(self).__name__} needs a method keep.')

  def keep_each(self, batch: episode_batches.EpisodeBatch) -> tf.Tensor:
    """Decides on all episodes of a batch, bool `[E]`, as `keep` does on one."""
    return tf.map_fn(
        lambda index: self(batching.episode_at(index, batch)),
        tf.range(episode_batches.num_episodes(batch)),
        fn_output_signature=tf.bool,
    )

  def transform_batch(
      self, batch: episode_batches.EpisodeBatch
  ) -> episode_batches.EpisodeBatch:
    """Returns the batch without the episodes that are not kept."""
    # Faults are kept: episodes that could not be read must raise an error.
    is_kept = tf.cond(
        faults.is_fault(batch.fault),
        lambda: tf.fill([1], True),
        lambda: self.keep_each(batch),
    )
    return episode_batches.keep_episodes(batch, is_kept)


def _stacked(episode):
  """Returns an episode with stacked steps, and with tensors for arrays."""
  steps_lib.check_has_steps('An episode', episode, ADVICE)
  steps = stacked_steps.stack_steps(episode[rlds.STEPS])
  return steps_lib.map_dense(
      tf.convert_to_tensor, {**episode, rlds.STEPS: steps}
  )


def one_bool(value: Any, name: str) -> tf.Tensor:
  """Returns `value` as a tensor, bool `[]`.

  Args:
    value: what the function `name` returned.
    name: the name of the function, for the message of an error.

  Raises:
    ValueError: if it is anything but one bool.
  """
  value = tf.convert_to_tensor(value)
  if value.dtype != tf.bool or not value.shape.is_compatible_with([]):
    raise ValueError(
        f'{name} must return one bool, but returned {value.dtype.name}'
        f' {value.shape}.'
    )
  return value
