"""Transforms: functions from an episode to an episode, with stacked steps.

Each is a small immutable object that `gin` can configure. It is called on an
episode, in `rlds_data.map(transform)` or by `transform_episodes`. Its
`transform` and `invert` work on a dict of some of the fields of a step, with
any leading dimensions, which is what a policy needs where it is deployed:

    normalize = normalize_by_mean_std(statistics, 'action')
    episodes = transform_episodes(episodes, [ScaleReward(0.1), normalize])
    ...  # training
    action = normalize.invert({'action': policy(observation)})['action']
"""

import abc
import dataclasses
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Union

import gin
import numpy as np
import rlds
import tensorflow as tf

from rlds2reverb.datasets import identity
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.transforms import filters

# One number for all of a field, or an array that fits its last dimensions.
Numbers = Union[float, Sequence[float], np.ndarray]

# What a step is not complete without, whatever is selected.
_ALWAYS_SELECTED = (
    rlds.REWARD,
    rlds.DISCOUNT,
    rlds.IS_FIRST,
    rlds.IS_LAST,
    rlds.IS_TERMINAL,
)


class StepsTransform(identity.ByValue, abc.ABC):
  """From an episode, with nested or stacked steps, to one with stacked steps.

  The other fields of the episode stay.
  """

  def __call__(self, episode: Dict[str, Any]) -> Dict[str, Any]:
    steps = steps_lib.stack_steps(episode[rlds.STEPS])
    return {**episode, rlds.STEPS: self.transform(steps)}

  @abc.abstractmethod
  def transform(self, steps: Dict[str, Any]) -> Dict[str, Any]:
    """Transforms the fields of a step, with any leading dimensions.

    Args:
      steps: a dict of the fields of a step. Those that the transform does not
        use may be missing.

    Returns:
      The transformed dict.

    Raises:
      ValueError: if a field that it uses is missing or does not fit.
    """

  def invert(self, steps: Dict[str, Any]) -> Dict[str, Any]:
    """Undoes the transform where an environment would notice it.

    What drops or clips has nothing to undo.

    Args:
      steps: a dict of some fields of a transformed step, for example the
        `action` of a policy, with any leading dimensions.

    Returns:
      Those fields, as they are in the data.
    """
    return steps


def transform_episodes(
    rlds_data: tf.data.Dataset,
    transforms: Sequence[
        Union[Callable[[Dict[str, Any]], Dict[str, Any]], filters.KeepEpisodes]
    ],
) -> tf.data.Dataset:
  """Applies transforms and filters to every episode, in their order.

  Args:
    rlds_data: an RLDS data set, with nested or stacked steps.
    transforms: what is applied: functions from an episode to an episode, and
      `KeepEpisodes`.

  Returns:
    A data set of the episodes, with stacked steps.

  Raises:
    ValueError: if a transform does not fit the steps.
  """
  rlds_data = steps_lib.stack_episodes(rlds_data)
  for transform in transforms:
    if isinstance(transform, filters.KeepEpisodes):
      rlds_data = rlds_data.filter(transform)
    else:
      rlds_data = rlds_data.map(
          transform, num_parallel_calls=tf.data.AUTOTUNE
      )
  return rlds_data


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True, eq=False)
class Compose(StepsTransform):
  """Transforms one after the other; the inverse goes from last to first.

  Attributes:
    transforms: the transforms.
  """

  transforms: Sequence[StepsTransform]

  def transform(self, steps):
    for transform in self.transforms:
      steps = transform.transform(steps)
    return steps

  def invert(self, steps):
    for transform in reversed(self.transforms):
      steps = transform.invert(steps)
    return steps


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True, eq=False)
class SelectFields(StepsTransform):
  """Leaves only some fields in the steps.

  Reward, discount and the flags stay as they are unless one is named.

  Attributes:
    fields: the paths of the fields.
  """

  fields: Sequence[paths.Path]

  def transform(self, steps):
    selected = {}
    found = [paths.find(steps, path) for path in self.fields]
    named = {keys[0] for keys in found}
    for field in _ALWAYS_SELECTED:
      if field in steps and field not in named:
        selected[field] = steps[field]
    for keys in found:
      selected = paths.insert(selected, keys, paths.get(steps, keys))
    return selected


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True, eq=False)
class ExcludeFields(StepsTransform):
  """Leaves fields out of the steps.

  Attributes:
    fields: the paths of the fields.
  """

  fields: Sequence[paths.Path]

  def transform(self, steps):
    for path in self.fields:
      steps = paths.remove(steps, paths.find(steps, path))
    return steps


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True, eq=False)
class RenameFields(StepsTransform):
  """Moves fields to other paths.

  Attributes:
    fields: from the path of a field to its new path, where nothing must be yet.
      All are taken out before the first is put back, so that two fields can
      change places. The keys of a new path are what `/` parts, or a tuple.
  """

  fields: Mapping[paths.Path, paths.Path]

  def transform(self, steps):
    return _move(steps, self.fields)

  def invert(self, steps):
    moved = {new: old for old, new in self.fields.items()}
    return _move(
        steps,
        {
            new: old
            for new, old in moved.items()
            if paths.contains(steps, new)
        },
    )


def _move(steps, moves):
  found = [(paths.find(steps, old), new) for old, new in moves.items()]
  taken = [(paths.get(steps, keys), new) for keys, new in found]
  for keys, _ in found:
    steps = paths.remove(steps, keys)
  for value, new in taken:
    steps = paths.insert(steps, paths.split(new), value)
  return steps


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True, eq=False)
class ScaleReward(StepsTransform):
  """`clip(scale * reward + shift, minimum, maximum)`, with its dtype.

  The reward of an episode's last step, which has no meaning, is changed too. It
  is an InvalidArgumentError, while the episodes are gone through, if an integer
  reward of any other step becomes one that its dtype cannot hold.

  Attributes:
    scale: a factor, not 0.
    shift: what is added then.
    minimum: the least reward that comes out, if there is one.
    maximum: the greatest.
  """

  scale: float = 1.0
  shift: float = 0.0
  minimum: Optional[float] = None
  maximum: Optional[float] = None

  def transform(self, steps):
    def scale(name, reward):
      factor = constant(self.scale, reward, name)
      shift = constant(self.shift, reward, name)
      if reward.dtype.is_integer and reward.dtype.size < 8:
        # Where there is room, to be clipped before it is checked.
        wide = [tf.cast(one, tf.int64) for one in (reward, factor, shift)]
        scaled = clip(
            wide[0] * wide[1] + wide[2], self.minimum, self.maximum, name
        )
        return _narrow(scaled, reward.dtype, name, steps.get(rlds.IS_LAST))
      return clip(reward * factor + shift, self.minimum, self.maximum, name)

    return paths.map_leaves(scale, steps, rlds.REWARD)

  def invert(self, steps):
    if rlds.REWARD not in steps:
      return steps

    def unscale(name, reward):
      unshifted = reward - constant(self.shift, reward, name)
      unscaled = unshifted / constant(self.scale, reward, name)
      return tf.cast(unscaled, reward.dtype)

    return paths.map_leaves(unscale, steps, rlds.REWARD)


def _narrow(leaf, dtype, name, is_last):
  """Casts integers to a narrower dtype that must hold them, but the last."""
  used = leaf
  if is_last is not None:
    is_last = tf.cast(is_last, tf.bool)
    is_more = is_last.shape.rank > leaf.shape.rank  # of shape (1,) in a step
    used = tf.boolean_mask(leaf, ~(is_last[..., 0] if is_more else is_last))
  outside = tf.boolean_mask(used, (used < dtype.min) | (used > dtype.max))
  message = (
      f'A scaled {name} must fit {dtype.name}, which holds {dtype.min} to'
      f' {dtype.max}. Clip it, or cast the field to a wider dtype first. It is:'
  )
  check = tf.debugging.Assert(tf.size(outside) == 0, [message, outside])
  with tf.control_dependencies([check]):
    return tf.cast(leaf, dtype)


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True, eq=False)
class ClipField(StepsTransform):
  """Clips the numbers of a field; NaN stays NaN.

  Attributes:
    field: the path of a leaf, or of several, such as `action`. Strings and
      bools below it stay as they are.
    low: the least value that comes out, if there is one.
    high: the greatest.
  """

  field: paths.Path = rlds.ACTION
  low: Optional[Numbers] = None
  high: Optional[Numbers] = None

  def transform(self, steps):
    return paths.map_leaves(
        lambda name, leaf: clip(leaf, self.low, self.high, name)
        if leaf.dtype.is_floating or leaf.dtype.is_integer
        else leaf,
        steps,
        self.field,
    )


def clip(
    leaf: tf.Tensor, low: Optional[Numbers], high: Optional[Numbers], name: str
) -> tf.Tensor:
  """Clips a leaf; `name` is that of its path, for the message of an error.

  Raises:
    ValueError: as `constant` does.
  """
  if low is not None:
    leaf = tf.maximum(leaf, constant(low, leaf, name))
  if high is not None:
    leaf = tf.minimum(leaf, constant(high, leaf, name))
  return leaf


def constant(numbers: Numbers, leaf: tf.Tensor, name: str) -> tf.Tensor:
  """Returns `numbers` in the dtype of `leaf`.

  Raises:
    ValueError: if the dtype cannot hold them, or they do not fit the last
      dimensions of `leaf`; or if it has strings.
  """
  array = np.asarray(numbers)
  if leaf.dtype == tf.string:
    raise ValueError(f'{name} must be numbers, but is {leaf.dtype.name}.')
  with np.errstate(over='ignore', invalid='ignore'):
    held = array.astype(leaf.dtype.as_numpy_dtype)
  # A float is rounded, but must not become infinite.
  wrong = (
      np.isfinite(array) & ~np.isfinite(held)
      if leaf.dtype.is_floating
      else array != held
  )
  if wrong.any():
    raise ValueError(
        f'{name} is {leaf.dtype.name}, which cannot hold {numbers}. Cast the'
        ' field to '
        + ('a wider dtype first.' if leaf.dtype.is_floating else 'float first.')
    )
  last = leaf.shape[leaf.shape.rank - array.ndim :]
  if array.ndim > leaf.shape.rank or not all(
      size == 1 or dim is None or size == dim
      for size, dim in zip(array.shape, last)
  ):
    raise ValueError(
        f'{name} is {leaf.shape}, which numbers of the shape {array.shape} do'
        ' not fit.'
    )
  return tf.constant(held)
