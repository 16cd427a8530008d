"""Applies transforms, filters and functions, one after the other."""

from typing import Any, Callable, Dict, Iterator, Sequence, Union

import gin
import tensorflow as tf

from rlds2reverb.episodes import batching
from rlds2reverb.episodes import data_sets
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.transforms import base

_Function = Callable[[Dict[str, Any]], Dict[str, Any]]
Operation = Union[base.EpisodeTransform, base.EpisodeFilter, _Function]


@base.configurable
class Compose(base.EpisodeTransform):
  """Applies transforms and filters one after the other.

  If there is a filter among them, use it in `transform_episodes`, and not in
  `rlds_data.map`, which cannot leave out an episode. `transform` and `invert`
  work on steps, so they pass over filters.

  Attributes:
    transforms: transforms and filters, some of which may be `Compose`
      themselves. The inverse goes through them from the last to the first.

  Raises:
    ValueError: if one of them is neither a transform nor a filter; and if one
      that holds a filter is called on an episode.
  """

  transforms: Sequence[Union[base.EpisodeTransform, base.EpisodeFilter]]

  def __post_init__(self):
    parts = tuple(self.transforms)
    for part in parts:
      if not isinstance(part, base.EpisodeOperation):
        raise ValueError(
            'Compose takes objects of type EpisodeTransform and EpisodeFilter,'
            f' but was given {part!r}. Pass a function from an episode to'
            ' an episode to transform_episodes instead.'
        )
    object.__setattr__(self, 'transforms', parts)
    for name in 'has_filter', 'draws':
      has_one = any(getattr(part, name) for part in parts)
      object.__setattr__(self, name, has_one)

  def __call__(self, episode, episode_index=None):
    if self.has_filter:
      raise ValueError(
          'This Compose holds a filter, and so it cannot be called on a single'
          ' episode, as in rlds_data.map(compose). Use'
          ' transform_episodes(rlds_data, [compose]).'
      )
    return super().__call__(episode, episode_index)

  def transform_batch(self, batch):
    for part in self.transforms:
      batch = part.transform_batch(batch)
    return batch

  def transform(self, steps):
    for part in self._transforms():
      steps = graphs.as_user_code(part.transform)(steps)
    return steps

  def invert(self, steps):
    for part in reversed(self._transforms()):
      steps = graphs.as_user_code(part.invert)(steps)
    return steps

  def _transforms(self):
    kind = base.EpisodeTransform
    return [one for one in self.transforms if isinstance(one, kind)]


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
    ValueError: if `rlds_data` has no episodes, if a transform does not fit the
      steps, or if a function returns anything but an episode.
    InvalidArgumentError: while iterating, if the fields of an episode differ in
      length, or a method `transform` does not keep all steps.
  """
  steps_lib.check_has_steps(
      'An element of rlds_data', rlds_data.element_spec, base.ADVICE
  )
  count = rlds_data.cardinality()
  batches = graphs.map_elements(
      data_sets.batches_of(rlds_data, with_faults=True),
      lambda batch: batch._replace(
          steps=stacked_steps.with_equal_lengths(batch.steps)
      ),
  )
  for transform in _each(transforms):
    batches = _apply(batches, transform)
    if getattr(transform, 'has_filter', False):
      count = None
  return data_sets.Episodes(batches, count)


def _each(transforms) -> Iterator[Any]:
  """Yields the single transforms, filters and functions, in their order."""
  for one in transforms:
    is_divided = isinstance(one, Compose) and (one.has_filter or one.draws)
    yield from _each(one.transforms) if is_divided else [one]


def _apply(batches, transform):
  """Applies a transform, filter or function to the episodes of batches."""
  if isinstance(transform, type) or not callable(transform):
    raise ValueError(
        'transform_episodes takes transforms, filters and functions, but was'
        f' given {transform!r}.'
    )
  parallel = {'num_parallel_calls': tf.data.AUTOTUNE}

  def call(_, episodes):
    made = episodes.map(transform, **parallel)
    spec = made.element_spec
    steps_lib.check_has_steps(f'What {transform} returns', spec, base.ADVICE)
    if isinstance(spec[rlds.STEPS], tf.data.DatasetSpec):
      return stacked_steps.stack_episodes(made)
    return made

  def change(batch):
    made = transform.transform_batch(batch)._replace(episode=())
    if transform.has_filter:
      return made
    # A transform of single steps that leaves some out knows no episodes.
    rows = tf.range(made.row_splits[-1])
    found = {rlds.STEPS: rows, type(transform).__name__: made.steps}
    checked = stacked_steps.with_equal_lengths(found)[rlds.STEPS]
    with tf.control_dependencies([checked]):
      return made._replace(row_splits=tf.identity(made.row_splits))

  if not isinstance(transform, base.EpisodeOperation):
    return batching.map_episodes(batches, call)
  if transform.draws:
    batches = batching.numbered(batches)
  changed = batches.map(change, **parallel)
  return batching.not_empty(changed) if transform.has_filter else changed
