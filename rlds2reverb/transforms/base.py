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

import abc
import copy
from typing import Any, Dict, Optional, Tuple, Union

import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import identity
from rlds2reverb.episodes import episode_batches
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.transforms import episode_rows

# A hint for values that are no episodes.
ADVICE = (
    ' To transform single steps, call the method transform; to filter episodes'
    ' by a function, use KeepEpisodes(predicate=...).'
)

# Which of these a class defines says whether it takes batches.
_METHODS = {
    *('transform', 'transform_rows', 'is_step_wise'),
    *('keep', 'keep_each', '__call__'),
}


class _EpisodeOperation(identity.ByValue, abc.ABC):
  """What transforms and filters share.

  Attributes:
    takes_batches: whether many episodes are worked on at once.
    has_filter: whether it may leave episodes out.
    draws: whether the result is random. Each episode draws by its index, which
      `transform_episodes` counts.
  """

  takes_batches = False
  has_filter = False
  draws = False

  def __init_subclass__(cls, **kwargs):
    super().__init_subclass__(**kwargs)
    own = vars(cls).keys()
    # A class may override the method that works on an episode. Then it does not
    # take batches because a class that it is derived from does.
    if 'takes_batches' not in own and own & _METHODS:
      cls.takes_batches = vars(cls).get('is_step_wise', False) or bool(
          own & {'transform_rows', 'keep_each'}
      )

  def __post_init__(self):
    # The caller may go on using an array, and write into it.
    for name, value in list(vars(self).items()):
      if isinstance(value, (np.ndarray, list, dict)):
        object.__setattr__(self, name, copy.deepcopy(value))


class EpisodeTransform(_EpisodeOperation):
  """The base of all transforms, which change the steps of an episode.

  A transform of your own needs one method: `transform`, if a step's result
  depends on that step alone; or `transform_rows`, if it depends on other steps
  of the episode. Declare it as a frozen dataclass with `eq=False`: then two
  transforms with equal attributes are equal, even if these are arrays or lists.

      @dataclasses.dataclass(frozen=True, eq=False)
      class TanhReward(EpisodeTransform):
        is_step_wise = True
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
  uses `rows.fractions`.

  Attributes:
    is_step_wise: whether the result of `transform` for a step depends on
      nothing but that step. Then many episodes are transformed at once, which
      is much faster if they are short. Otherwise, the default, `transform` gets
      one whole episode. To use batches, set it to True in the body of a class,
      without a type. A class that overrides `transform` must set it again.
  """

  is_step_wise = False

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
    episode = stack_episode(episode)
    index = (episode_index,) if self._has_rows else ()
    return {**episode, rlds.STEPS: self.transform(episode[rlds.STEPS], *index)}

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
    """
    batch = episode_batches.of_one(steps)
    return self._with_rows(batch, episode_index).steps

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
      self, batch: episode_batches.EpisodeBatch, episode_index: Any = None
  ) -> episode_batches.EpisodeBatch:
    """Transforms all episodes of a batch.

    Args:
      batch: episodes whose leaves have one length; a single one, unless
        `takes_batches`.
      episode_index: int64 `[]`: the index in the data set of its first episode,
        for a transform that draws.

    Returns:
      The transformed episodes, of the same number.
    """
    if self._has_rows:
      return self._with_rows(batch, episode_index)
    return batch._replace(steps=self.transform(batch.steps))

  def _with_rows(self, batch, episode_index):
    if episode_index is None and self.draws:
      raise ValueError(
          f'{type(self).__name__} draws other numbers for each episode, but'
          ' episode_index is missing. Use transform_episodes, which counts the'
          ' episodes, or rlds_data.enumerate().map(lambda index, episode:'
          ' transform(episode, index)).'
      )
    rows = episode_rows.EpisodeRows.of(
        batch, 0 if episode_index is None else episode_index
    )
    made = self.transform_rows(batch.steps, rows)
    if isinstance(made, tuple):
      steps, keep = made
      kept = tf.where(keep)[:, 0]
      return episode_batches.keep_rows(batch._replace(steps=steps), kept)
    return batch._replace(steps=made)

  @property
  def _has_rows(self) -> bool:
    return type(self).transform_rows is not EpisodeTransform.transform_rows

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


class EpisodeFilter(_EpisodeOperation):
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
    return one_bool(
        self.keep(stack_episode(episode)), f'{type(self).__name__}.keep'
    )

  @abc.abstractmethod
  def keep(self, episode: Dict[str, Any]) -> tf.Tensor:
    """Decides on one episode.

    Args:
      episode: an RLDS episode, with stacked steps.

    Returns:
      bool `[]`: whether the episode is kept.

    Raises:
      ValueError: if a field that the filter uses is missing or does not fit.
    """

  def keep_each(self, batch: episode_batches.EpisodeBatch) -> tf.Tensor:
    """Decides on all episodes of a batch, bool `[E]`, as `keep` does on one.

    It is not needed. A class that overrides `keep` must override this, too, or
    it is not used.
    """
    raise NotImplementedError(f'{type(self).__name__} takes single episodes.')


def stack_episode(episode: Dict[str, Any]) -> Dict[str, Any]:
  """Returns an episode with stacked steps, and with tensors for arrays."""
  steps_lib.check_has_steps('An episode', episode, ADVICE)
  steps = stacked_steps.stack_steps(episode[rlds.STEPS])
  return tf.nest.map_structure(
      lambda leaf: tf.convert_to_tensor(leaf)
      if isinstance(leaf, (np.ndarray, np.generic))
      else leaf,
      {**episode, rlds.STEPS: steps},
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
