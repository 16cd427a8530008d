"""The base classes of transforms and filters of episodes.

A transform changes the steps of an episode; a filter decides whether an episode
is kept. Both are small immutable objects that gin can configure, and both are
applied to a data set with `transform_episodes`:

    normalize = normalize_by_mean_std(statistics, 'action')
    episodes = transform_episodes(
        episodes, [KeepEpisodes(min_return=100.0), ScaleReward(0.1), normalize]
    )

A transform also works on single steps, which a policy needs when it is
deployed:

    action = normalize.invert({'action': policy(observation)})['action']
"""

import abc
import dataclasses
import functools
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Union

import gin
import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import identity
from rlds2reverb.episodes import data_sets
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import packs as packs_lib
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib

# One number for the whole field, or an array that fits its last dimensions.
Numbers = Union[float, Sequence[float], np.ndarray]


class EpisodeTransform(identity.ByValue, abc.ABC):
  """The base of all transforms, which change the steps of an episode.

  A transform of your own needs only `transform`. Declare it as a frozen
  dataclass with `eq=False`: then two transforms are equal where their
  attributes are, also where these are arrays or lists.

      @dataclasses.dataclass(frozen=True, eq=False)
      class TanhReward(EpisodeTransform):
        scale: float = 1.0

        def transform(self, steps):
          return {**steps, 'reward': tf.tanh(self.scale * steps['reward'])}

      episodes = transform_episodes(episodes, [TanhReward(0.5)])

  Attributes:
    is_step_wise: whether the result for a step depends on nothing but that
      step. Then many episodes are transformed at once, which is much faster if
      they are short. The default, False, is right for all transforms; set it to
      True in the body of a class, without a type. A class that overrides
      `transform` must set it again. A transform that also depends on the other
      steps of an episode is a `whole_episodes.WholeEpisodeTransform`.
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

    Only a `WholeEpisodeTransform` can be so: each episode draws by its index,
    which `transform_episodes` counts.
    """
    return False

  @property
  def takes_packs(self) -> bool:
    """Whether `transform_each` can transform all episodes of a pack at once."""
    return False

  def transform_each(
      self, pack: packs_lib.Pack, episode_index: Any = None
  ) -> Dict[str, Any]:
    """Transforms all episodes of a pack, as `transform` does one.

    Args:
      pack: a pack, whose leaves have one length.
      episode_index: int64 `[]`: the index in the data set of its first episode,
        for a transform that draws.

    Returns:
      The transformed steps, with as many rows.
    """
    raise NotImplementedError(f'{type(self).__name__} takes single episodes.')

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
    """Whether `keep_each` can decide on all episodes of a pack at once."""
    return False

  def keep_each(self, pack: packs_lib.Pack) -> tf.Tensor:
    """Decides on all episodes of a pack, as `keep` does on one.

    A class that overrides `keep` must override this again to have it used.

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


@gin.configurable(module='rlds2reverb')
def transform_episodes(
    rlds_data: tf.data.Dataset,
    transforms: Sequence[
        Union[
            EpisodeTransform,
            EpisodeFilter,
            Callable[[Dict[str, Any]], Dict[str, Any]],
        ]
    ],
) -> tf.data.Dataset:
  """Applies transforms and filters to every episode, in the given order.

  Args:
    rlds_data: an RLDS data set, with nested or stacked steps.
    transforms: what is applied: transforms, filters, `Compose` of both, and
      functions from an episode to an episode.

  Returns:
    A data set of the episodes that are kept, with stacked steps.

  Raises:
    ValueError: if `rlds_data` has no episodes, if a transform does not fit the
      steps, or if a function returns something else than an episode.
  """
  check_episode('an element of rlds_data', rlds_data.element_spec)
  # The packs are made later, and of the same transforms.
  transforms = tuple(transforms)
  return data_sets.with_packs_of(
      _apply(steps_lib.stack_episodes(rlds_data), transforms),
      rlds_data,
      lambda packs: _apply_to_packs(packs.map(_check_pack), transforms),
  )


def _apply(rlds_data, transforms):
  for transform in transforms:
    if isinstance(transform, type) or not callable(transform):
      raise ValueError(
          'transform_episodes takes transforms, filters and functions, but was'
          f' given {transform!r}.'
      )
    if isinstance(transform, EpisodeFilter):
      rlds_data = rlds_data.filter(transform)
    elif isinstance(transform, Compose) and (
        transform.has_filter or transform.draws
    ):
      rlds_data = _apply(rlds_data, transform.transforms)
    else:
      if isinstance(transform, EpisodeTransform) and transform.draws:
        rlds_data = rlds_data.enumerate().map(
            lambda index, episode, transform=transform: transform(
                episode, episode_index=index
            ),
            num_parallel_calls=tf.data.AUTOTUNE,
        )
      else:
        rlds_data = rlds_data.map(
            transform, num_parallel_calls=tf.data.AUTOTUNE
        )
      spec = rlds_data.element_spec
      check_episode(f'what {transform} returns', spec)
      if isinstance(spec[rlds.STEPS], tf.data.DatasetSpec):
        rlds_data = steps_lib.stack_episodes(rlds_data)
  return rlds_data


def _apply_to_packs(packs, transforms):
  """Does for packs what `_apply` does; returns None if it cannot be done."""
  for transform in transforms:
    if packs is None:
      return None
    if isinstance(transform, Compose) and _is_own(
        transform, 'has_filter', 'transform', '__call__'
    ):
      packs = _apply_to_packs(packs, transform.transforms)
    elif isinstance(transform, EpisodeFilter) and _takes_packs(transform):
      packs = packs.map(functools.partial(_filter_pack, transform)).filter(
          lambda pack: tf.size(pack.row_splits) > 1
      )
    elif isinstance(transform, EpisodeTransform) and _is_step_wise(transform):
      packs = packs.map(
          functools.partial(_transform_pack, transform),
          num_parallel_calls=tf.data.AUTOTUNE,
      )
    elif isinstance(transform, EpisodeTransform) and _transforms_packs(
        transform
    ):
      if transform.draws:
        packs = packs.scan(tf.constant(0, tf.int64), _number_pack)
      packs = packs.map(
          functools.partial(_transform_each, transform),
          num_parallel_calls=tf.data.AUTOTUNE,
      )
    else:
      return None
  return packs


def _is_own(transform, attribute, *methods) -> bool:
  """Returns whether an attribute is about the methods that an object has.

  A class derived from one that works on packs may override the method that
  works on an episode. Then nothing says that it works on packs, too.

  Args:
    transform: a transform or filter.
    attribute: the name of what the class says about packs.
    methods: the names of the methods that work on an episode.
  """
  for cls in type(transform).__mro__:
    if attribute in vars(cls):
      return True
    if any(method in vars(cls) for method in methods):
      return False
  return False


def _is_step_wise(transform) -> bool:
  return transform.is_step_wise and _is_own(
      transform, 'is_step_wise', 'transform', '__call__'
  )


def _transforms_packs(transform) -> bool:
  return transform.takes_packs and _is_own(
      transform, 'transform_each', 'transform', '__call__'
  )


def _takes_packs(episode_filter) -> bool:
  return episode_filter.takes_packs and _is_own(
      episode_filter, 'keep_each', 'keep', '__call__'
  )


@graphs.no_autograph
def _check_pack(pack):
  return pack._replace(steps=steps_lib.with_equal_lengths(pack.steps))


def _transform_pack(transform, pack):
  return pack._replace(steps=transform.transform(pack.steps))


def _number_pack(count, pack):
  num_episodes = tf.size(pack.row_splits, tf.int64) - 1
  return count + num_episodes, (pack, count)


def _transform_each(transform, pack, index=None):
  return pack._replace(steps=transform.transform_each(pack, index))


def _filter_pack(transform, pack):
  # What could not be read is not lost without a word.
  keep = transform.keep_each(pack) | packs_lib.has_fault(pack)
  return packs_lib.keep_episodes(pack, keep)


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True, eq=False)
class Compose(EpisodeTransform):
  """Applies transforms and filters one after the other.

  One that holds a filter, or a transform that draws, can be used in
  `transform_episodes`, but not in `rlds_data.map`, which cannot leave out an
  episode and does not count them. `transform` and `invert` work on steps, and
  so they pass over the filters.

  Attributes:
    transforms: transforms and filters, some of which may be `Compose`
      themselves. The inverse goes through them from the last to the first.

  Raises:
    ValueError: if one of them is neither a transform nor a filter; and if one
      that holds a filter, or a transform that draws, is called on an episode.
  """

  transforms: Sequence[Union[EpisodeTransform, EpisodeFilter]]

  def __post_init__(self):
    object.__setattr__(self, 'transforms', tuple(self.transforms))
    for transform in self.transforms:
      if not isinstance(transform, (EpisodeTransform, EpisodeFilter)):
        raise ValueError(
            'Compose takes objects of type EpisodeTransform and EpisodeFilter,'
            f' but was given {transform!r}. Pass a function from an episode to'
            ' an episode to transform_episodes instead.'
        )

  def __call__(self, episode):
    if self.has_filter or self.draws:
      held = 'filter' if self.has_filter else 'transform that draws'
      raise ValueError(
          f'This Compose holds a {held}, and so it cannot be called on a single'
          ' episode, as in rlds_data.map(compose). Use'
          ' transform_episodes(rlds_data, [compose]).'
      )
    return super().__call__(episode)

  @property
  def has_filter(self) -> bool:
    """Whether a filter is among the transforms, or in a `Compose` of them."""
    return any(
        transform.has_filter
        if isinstance(transform, Compose)
        else isinstance(transform, EpisodeFilter)
        for transform in self.transforms
    )

  @property
  def draws(self) -> bool:
    """Whether one of the transforms draws."""
    return any(
        getattr(transform, 'draws', False) for transform in self.transforms
    )

  def transform(self, steps):
    for transform in self.transforms:
      if isinstance(transform, EpisodeTransform):
        steps = transform.transform(steps)
    return steps

  def invert(self, steps):
    for transform in reversed(self.transforms):
      if isinstance(transform, EpisodeTransform):
        steps = transform.invert(steps)
    return steps


def stack_episode(episode: Dict[str, Any]) -> Dict[str, Any]:
  """Returns an episode with stacked steps, and with tensors for arrays."""
  check_episode('an episode', episode)
  steps = steps_lib.stack_steps(episode[rlds.STEPS])
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


def check_episode(name: str, episode: Any) -> None:
  """Checks that something is an RLDS episode, or the spec of one.

  Args:
    name: what is checked, for the message of an error.
    episode: a nest of tensors or of their specs.

  Raises:
    ValueError: if it is something else than a dict with steps.
  """
  if not isinstance(episode, Mapping) or rlds.STEPS not in episode:
    found = episode
    if isinstance(episode, Mapping):
      found = list(episode)
    elif hasattr(episode, '_fields'):
      found = f'a {type(episode).__name__} of {list(episode._fields)}'
    raise ValueError(
        f'{name[0].upper()}{name[1:]} must be a dict with {rlds.STEPS}, but is'
        f' {found}. To transform single steps, call the method transform; to'
        ' filter episodes by a function, use KeepEpisodes(predicate=...).'
    )


def one_bool(value: Any, name: str) -> tf.Tensor:
  """Returns `value` as a tensor, bool `[]`.

  Args:
    value: what the function `name` returned.
    name: the name of the function, for the message of an error.

  Raises:
    ValueError: if it is something else than one bool.
  """
  value = tf.convert_to_tensor(value)
  if value.dtype != tf.bool or not value.shape.is_compatible_with([]):
    raise ValueError(
        f'{name} must return one bool, but returned {value.dtype.name}'
        f' {value.shape}.'
    )
  return value


def clip(
    leaf: tf.Tensor, low: Optional[Numbers], high: Optional[Numbers], name: str
) -> tf.Tensor:
  """Clips a leaf to `[low, high]`, in its own dtype.

  Args:
    leaf: numbers, with any leading dimensions.
    low: the least number that comes out, if there is one.
    high: the greatest number that comes out, if there is one.
    name: the path of the leaf, for the message of an error.

  Returns:
    The clipped leaf.

  Raises:
    ValueError: as `constant` does.
  """
  if low is not None:
    leaf = tf.maximum(leaf, constant(low, leaf, name))
  if high is not None:
    leaf = tf.minimum(leaf, constant(high, leaf, name))
  return leaf


def constant(numbers: Numbers, leaf: tf.Tensor, name: str) -> tf.Tensor:
  """Returns `numbers` as a tensor of the dtype of `leaf`.

  Args:
    numbers: one number, or an array that fits the last dimensions of `leaf`.
    leaf: the leaf that is going to be combined with them.
    name: the path of the leaf, for the message of an error.

  Raises:
    ValueError: if the leaf is of strings, if its dtype cannot hold the numbers,
      or if they do not fit its last dimensions.
  """
  array = np.asarray(numbers)
  if leaf.dtype == tf.string:
    raise ValueError(f'{name} must be numbers, but is {leaf.dtype.name}.')
  with np.errstate(over='ignore', invalid='ignore'):
    held = array.astype(leaf.dtype.as_numpy_dtype)
  # A float may be rounded, but it must not become infinite.
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
        f'{name} has the shape {leaf.shape}, which numbers of the shape'
        f' {array.shape} do not fit.'
    )
  return tf.constant(held)
