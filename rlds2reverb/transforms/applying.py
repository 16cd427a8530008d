"""Applies transforms, filters and functions, one after the other."""

import dataclasses
import functools
from typing import Any, Callable, Dict, Iterator, Sequence, Union

import gin
import tensorflow as tf

from rlds2reverb.episodes import batching
from rlds2reverb.episodes import data_sets
from rlds2reverb.episodes import episode_batches
from rlds2reverb.episodes import faults
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.transforms import base


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True, eq=False)
class Compose(base.EpisodeTransform):
  """Applies transforms and filters one after the other.

  If there is a filter or a transform that draws among them, use it in
  `transform_episodes`, and not in `rlds_data.map`, which cannot leave out an
  episode and does not count them. `transform` and `invert` work on steps, so
  they pass over filters.

  Attributes:
    transforms: transforms and filters, some of which may be `Compose`
      themselves. The inverse goes through them from the last to the first.

  Raises:
    ValueError: if one of them is neither a transform nor a filter; and if one
      that holds a filter, or a transform that draws, is called on an episode.
  """

  transforms: Sequence[Union[base.EpisodeTransform, base.EpisodeFilter]]

  def __post_init__(self):
    object.__setattr__(self, 'transforms', tuple(self.transforms))
    for transform in self.transforms:
      if not isinstance(transform, (base.EpisodeTransform, base.EpisodeFilter)):
        raise ValueError(
            'Compose takes objects of type EpisodeTransform and EpisodeFilter,'
            f' but was given {transform!r}. Pass a function from an episode to'
            ' an episode to transform_episodes instead.'
        )

  def __call__(self, episode, episode_index=None):
    if self.has_filter or self.draws:
      held = 'filter' if self.has_filter else 'transform that draws'
      raise ValueError(
          f'This Compose holds a {held}, and so it cannot be called on a single'
          ' episode, as in rlds_data.map(compose). Use'
          ' transform_episodes(rlds_data, [compose]).'
      )
    return super().__call__(episode)

  @property
  def has_filter(self) -> bool:  # type: ignore[override]
    return any(transform.has_filter for transform in self.transforms)

  @property
  def draws(self) -> bool:  # type: ignore[override]
    return any(transform.draws for transform in self.transforms)

  @property
  def takes_batches(self) -> bool:  # type: ignore[override]
    return all(transform.takes_batches for transform in self.transforms)

  def transform_batch(self, batch, episode_index=None):
    for transform in self.transforms:
      batch = transform.transform_batch(batch, episode_index)
    return batch

  def transform(self, steps):
    for transform in self._without_filters():
      steps = transform.transform(steps)
    return steps

  def invert(self, steps):
    for transform in reversed(self._without_filters()):
      steps = transform.invert(steps)
    return steps

  def _without_filters(self):
    return [
        transform
        for transform in self.transforms
        if isinstance(transform, base.EpisodeTransform)
    ]


@gin.configurable(module='rlds2reverb')
def transform_episodes(
    rlds_data: tf.data.Dataset,
    transforms: Sequence[
        Union[
            base.EpisodeTransform,
            base.EpisodeFilter,
            Callable[[Dict[str, Any]], Dict[str, Any]],
        ]
    ],
) -> tf.data.Dataset:
  """Applies transforms and filters to every episode, in the given order.

  Args:
    rlds_data: an RLDS data set, with nested or stacked steps.
    transforms: transforms, filters, `Compose` of both, and functions from an
      episode to an episode.

  Returns:
    A data set of the episodes that are kept, with stacked steps.

  Raises:
    ValueError: if `rlds_data` has no episodes, if a transform does not fit the
      steps, or if a function returns anything but an episode.
  """
  steps_lib.check_has_steps(
      'An element of rlds_data', rlds_data.element_spec, base.ADVICE
  )
  transformed = data_sets.with_batches_of(
      stacked_steps.stack_episodes(rlds_data),
      rlds_data,
      lambda batches: batches.map(_check_batch),
  )
  for transform in _each(transforms):
    transformed = _apply(transformed, transform)
  return transformed


def _each(transforms) -> Iterator[Any]:
  """Yields the single transforms, filters and functions, in their order."""
  for transform in transforms:
    is_divided = isinstance(transform, Compose) and (
        transform.has_filter or transform.draws
    )
    yield from _each(transform.transforms) if is_divided else [transform]


def _apply(rlds_data, transform):
  """Applies a transform, filter or function to single episodes and batches."""
  if isinstance(transform, type) or not callable(transform):
    raise ValueError(
        'transform_episodes takes transforms, filters and functions, but was'
        f' given {transform!r}.'
    )
  parallel = {'num_parallel_calls': tf.data.AUTOTUNE}
  if isinstance(transform, base.EpisodeFilter):
    made = rlds_data.filter(transform)
  elif getattr(transform, 'draws', False):
    made = rlds_data.enumerate().map(
        lambda index, episode: transform(episode, episode_index=index),
        **parallel,
    )
  else:
    made = rlds_data.map(transform, **parallel)
  spec = made.element_spec
  steps_lib.check_has_steps(f'What {transform} returns', spec, base.ADVICE)
  if isinstance(spec[rlds.STEPS], tf.data.DatasetSpec):
    made = stacked_steps.stack_episodes(made)
  if not getattr(transform, 'takes_batches', False):
    # Functions on single episodes get these; the results are batched again.
    return made
  return data_sets.with_batches_of(
      made, rlds_data, functools.partial(_apply_to_batches, transform)
  )


def _apply_to_batches(transform, batches):
  parallel = {'num_parallel_calls': tf.data.AUTOTUNE}
  if isinstance(transform, base.EpisodeFilter):

    def keep(batch):
      # Faults are kept: episodes that could not be read must raise an error.
      is_kept = transform.keep_each(batch) | faults.is_fault(batch.fault)
      return episode_batches.keep_episodes(batch, is_kept)

    return batching.not_empty(batches.map(keep))
  if not transform.draws:
    return batches.map(transform.transform_batch, **parallel)
  return batching.numbered(batches).map(
      lambda batch: transform.transform_batch(
          batch._replace(episode=()), batch.episode[0]
      ),
      **parallel,
  )


@graphs.no_autograph
def _check_batch(batch):
  steps = stacked_steps.with_equal_lengths(batch.steps)
  return batch._replace(steps=steps)
