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
from typing import Any, Dict

import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import identity
from rlds2reverb.episodes import packs as packs_lib
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.episodes import steps as steps_lib

# A hint for values that are no episodes.
ADVICE = (
    ' To transform single steps, call the method transform; to filter episodes'
    ' by a function, use KeepEpisodes(predicate=...).'
)


class EpisodeTransform(identity.ByValue, abc.ABC):
  """The base of all transforms, which change the steps of an episode.

  A transform of your own needs only `transform`. Declare it as a frozen
  dataclass with `eq=False`: then two transforms with equal attributes are
  equal, even if these are arrays or lists.

      @dataclasses.dataclass(frozen=True, eq=False)
      class TanhReward(EpisodeTransform):
        scale: float = 1.0

        def transform(self, steps):
          return {**steps, 'reward': tf.tanh(self.scale * steps['reward'])}

      episodes = transform_episodes(episodes, [TanhReward(0.5)])

  Attributes:
    is_step_wise: whether the result for a step depends on nothing but that
      step. Then many episodes are transformed at once, which is much faster if
      they are short. The default, False, is right for every transform; to use
      packs, set it to True in the body of a class, without a type. A class that
      overrides `transform` must set it again. A transform that also depends on
      the other steps of an episode is a `whole_episodes.WholeEpisodeTransform`.
  """

  is_step_wise = False

  def __post_init__(self):
    # The caller may go on using an array, and write into it.
    for name, value in list(vars(self).items()):
      object.__setattr__(self, name, _copy_arrays(value))

  def __call__(self, episode: Dict[str, Any]) -> Dict[str, Any]:
    """Transforms one episode, for example in `rlds_data.map(transform)`.

    Args:
      episode: an RLDS episode, with nested or stacked steps.

    Returns:
      The episode with its steps transformed and stacked, `[T, ...]`. The other
      fields of the episode stay as they are.

    Raises:
      ValueError: if `episode` is no episode; and as `transform` does.
    """
    episode = stack_episode(episode)
    return {**episode, rlds.STEPS: self.transform(episode[rlds.STEPS])}

  @property
  def draws(self) -> bool:
    """Whether the result is random.

    Only a `WholeEpisodeTransform` can draw: each episode draws by its index,
    which `transform_episodes` counts.
    """
    return False

  @property
  def takes_packs(self) -> bool:
    """Whether `transform_pack` can be used, if the class has it."""
    return True

  def transform_pack(
      self, pack: packs_lib.Pack, episode_index: Any = None
  ) -> packs_lib.Pack:
    """Transforms all episodes of a pack, as `transform` does one.

    Args:
      pack: a pack, whose leaves have one length.
      episode_index: int64 `[]`: the index in the data set of its first episode,
        for a transform that draws.

    Returns:
      The pack of the transformed episodes, of the same number.
    """
    del episode_index
    return pack._replace(steps=self.transform(pack.steps))

  @abc.abstractmethod
  def transform(self, steps: Dict[str, Any]) -> Dict[str, Any]:
    """Transforms the fields of steps.

    Args:
      steps: a dict of the fields of a step, with any leading dimensions: those
        of an episode are `[T, ...]`. Fields that the transform does not use may
        be missing.

    Returns:
      The transformed dict.

    Raises:
      ValueError: if a field that the transform uses is missing or does not fit.
    """

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


class EpisodeFilter(identity.ByValue, abc.ABC):
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

  @property
  def takes_packs(self) -> bool:
    """Whether `keep_each` can be used, if the class has it."""
    return True

  def keep_each(self, pack: packs_lib.Pack) -> tf.Tensor:
    """Decides on all episodes of a pack, as `keep` does on one.

    A class that overrides `keep` must override this, too, or it is not used.

    Returns:
      bool `[E]`: which episodes are kept.
    """
    raise NotImplementedError(f'{type(self).__name__} takes single episodes.')

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


def _copy_arrays(value):
  """Returns `value` with copies of the arrays, lists and dicts in it."""
  if isinstance(value, np.ndarray):
    return value.copy()
  if isinstance(value, list):
    return [_copy_arrays(item) for item in value]
  if isinstance(value, dict):
    return {key: _copy_arrays(item) for key, item in value.items()}
  return value


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


def works_on_packs(transform: Any) -> bool:
  """Returns whether a transform or filter can work on all episodes of a pack.

  A class derived from one that works on packs may override the method that
  works on an episode. Then it is not known to work on packs, too.
  """
  for cls in type(transform).__mro__:
    if cls in (EpisodeTransform, EpisodeFilter):
      break
    members = vars(cls)
    if 'transform_pack' in members or 'keep_each' in members:
      return transform.takes_packs
    if 'is_step_wise' in members:
      return transform.is_step_wise
    if any(name in members for name in ('transform', 'keep', '__call__')):
      break
  return False
