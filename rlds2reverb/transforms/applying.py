"""Applies a sequence of transforms, filters and functions to episodes."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import functools
from typing import Any

import gin
import tensorflow as tf

from rlds2reverb.episodes import episode_dataset
from rlds2reverb.episodes import pipelines
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.transforms import base

_Function = Callable[[dict[str, Any]], dict[str, Any]]
Operation = base.EpisodeTransform | base.EpisodeFilter | _Function


@base.configurable
class Compose(base.EpisodeTransform):
  """Applies transforms and filters one after the other.

  If it includes a filter, use it in `transform_episodes`, not in
  `rlds_data.map`, which cannot drop an episode. `transform` and `invert` work
  on steps, so they skip filters.

  Attributes:
    transforms: transforms and filters, which may include `Compose`. The inverse
      applies their inverses in reverse order.

  Raises:
    ValueError: if one is neither a transform nor a filter; or if a `Compose`
      with a filter is called on an episode.
  """

  transforms: Sequence[base.EpisodeTransform | base.EpisodeFilter]

  def __post_init__(self):
    transforms = tuple(self.transforms)
    for transform in transforms:
      if not isinstance(transform, base.EpisodeOperation):
        raise ValueError(
            'Compose takes objects of type EpisodeTransform and EpisodeFilter,'
            f' but was given {transform!r}. Pass a function from an episode to'
            ' an episode to transform_episodes instead.'
        )
    object.__setattr__(self, 'transforms', transforms)
    for name in 'has_filter', 'draws':
      value = any(getattr(transform, name) for transform in transforms)
      object.__setattr__(self, name, value)

  @pipelines.as_library_code
  def __call__(self, episode, episode_index=None):
    if self.has_filter:
      raise ValueError(
          'This Compose includes a filter, so it cannot be called on a single'
          ' episode, as in rlds_data.map(compose). Use'
          ' transform_episodes(rlds_data, [compose]).'
      )
    return super().__call__(episode, episode_index)

  def transform_batch(self, batch):
    for transform in self.transforms:
      batch = transform.transform_batch(batch)
    return batch

  @pipelines.as_library_code
  def transform(self, steps):
    for transform in self._without_filters():
      steps = pipelines.as_user_code(transform.transform)(steps)
    return steps

  @pipelines.as_library_code
  def invert(self, steps):
    for transform in reversed(self._without_filters()):
      steps = pipelines.as_user_code(transform.invert)(steps)
    return steps

  def _without_filters(self):
    return [t for t in self.transforms if isinstance(t, base.EpisodeTransform)]


@gin.configurable(module='rlds2reverb')
def transform_episodes(
    rlds_data: tf.data.Dataset,
    transforms: Sequence[Operation],
) -> tf.data.Dataset:
  """Applies transforms and filters to every episode, in the given order.

  Args:
    rlds_data: an RLDS data set, with nested or stacked steps.
    transforms: transforms, filters, `Compose` of both, and functions from an
      episode to an episode.

  Returns:
    A data set of the episodes that are kept, with stacked steps.

  Raises:
    ValueError: if `rlds_data` has no episodes, a transform does not fit the
      steps, or a function does not return an episode.
    InvalidArgumentError: while iterating, if the fields of an episode differ in
      length, or a method `transform` drops steps.
  """
  return _transform(rlds_data, transforms, None)


def _transform(rlds_data, transforms, counter) -> tf.data.Dataset:
  steps_lib.check_has_steps(
      'An element of rlds_data', rlds_data.element_spec, base.ADVICE
  )
  num_episodes = rlds_data.cardinality()
  if counter:
    rlds_data = episode_dataset.count_removed_steps(rlds_data, counter)
  batches = pipelines.map_elements(
      episode_dataset.batches_of(rlds_data, with_faults=True),
      lambda batch: batch._replace(
          steps=steps_lib.check_equal_lengths(batch.steps)
      ),
  )
  for transform in _flatten(transforms, always=bool(counter)):
    batches = _apply(batches, transform, counter)
    if getattr(transform, 'has_filter', False):
      num_episodes = None
  episodes = episode_dataset.EpisodeDataset(batches, num_episodes)
  if not counter:
    with_counter = functools.partial(_transform, rlds_data, transforms)
    episodes.rlds2reverb_with_counter = with_counter
  return episodes


def _flatten(transforms, always) -> Iterator[Any]:
  """Yields single operations, with `Compose` that draw or filter divided."""
  for transform in transforms:
    if isinstance(transform, Compose) and (
        always or transform.has_filter or transform.draws
    ):
      yield from _flatten(transform.transforms, always)
    else:
      yield transform


def _apply(batches, transform, counter):
  """Applies one transform, filter or function to the episodes of batches."""
  if isinstance(transform, type) or not callable(transform):
    raise ValueError(
        'transform_episodes takes transforms, filters and functions, but was'
        f' given {transform!r}.'
    )
  parallel = {'num_parallel_calls': tf.data.AUTOTUNE}

  def call_function(_, episodes):
    episodes = episodes.map(transform, **parallel)
    spec = episodes.element_spec
    steps_lib.check_has_steps(f'The result of {transform}', spec, base.ADVICE)
    if isinstance(spec[rlds.STEPS], tf.data.DatasetSpec):
      return steps_lib.stack_episodes(episodes)
    return episodes

  @pipelines.as_library_code
  def transform_batch(batch):
    transformed = transform.transform_batch(batch)
    if add_removed is not None:
      recorded = add_removed(*_count_removed(batch, transformed))
      with tf.control_dependencies([recorded]):
        row_splits = tf.identity(transformed.row_splits)
      transformed = transformed._replace(row_splits=row_splits)
    transformed = transformed._replace(episode=())
    if transform.has_filter:
      return transformed
    # Only transform_rows can drop steps, as it returns which ones.
    rows = tf.range(transformed.row_splits[-1])
    checked = steps_lib.check_equal_lengths(
        {rlds.STEPS: rows, type(transform).__name__: transformed.steps}
    )
    with tf.control_dependencies([checked[rlds.STEPS]]):
      row_splits = tf.identity(transformed.row_splits)
    return transformed._replace(row_splits=row_splits)

  if not isinstance(transform, base.EpisodeOperation):
    return episode_dataset.map_episodes(batches, call_function)
  if transform.needs_other_episodes:
    episodes = episode_dataset.EpisodeDataset(batches)
    return episode_dataset.batches_of(transform.transform_data(episodes))
  add_removed = counter and counter(type(transform).__name__)
  if transform.draws or add_removed:
    batches = episode_dataset.number_episodes(batches)
  batches = batches.map(transform_batch, **parallel)
  return (
      episode_dataset.drop_empty(batches) if transform.has_filter else batches
  )


def _count_removed(batch, transformed) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns the episodes, and how many steps each one lost, int64 `[K]`.

  Args:
    batch: a batch whose episodes have their indices.
    transformed: the batch after an operation.
  """
  lengths = batch.row_splits[1:] - batch.row_splits[:-1]
  new_lengths = transformed.row_splits[1:] - transformed.row_splits[:-1]
  position = transformed.episode - tf.reduce_sum(batch.episode[:1])
  new_lengths = tf.scatter_nd(
      position[:, tf.newaxis], new_lengths, tf.shape(lengths, tf.int64)
  )
  return batch.episode, lengths - new_lengths
