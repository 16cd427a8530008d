"""Applies transforms, filters and functions to the episodes of a data set."""

import functools
from typing import Any, Callable, Dict, Sequence, Union

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
from rlds2reverb.transforms import composing


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


def _each(transforms):
  """Returns the single transforms, filters and functions, in their order."""
  for transform in transforms:
    is_divided = isinstance(transform, composing.Compose) and (
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
  if isinstance(transform, base.EpisodeFilter):
    made = rlds_data.filter(transform)
    on_batches = functools.partial(_filter_batches, transform)
  else:
    made = _map(rlds_data, transform)
    on_batches = functools.partial(_transform_batches, transform)
  if getattr(transform, 'takes_batches', False):
    return data_sets.with_batches_of(made, rlds_data, on_batches)
  # Functions on single episodes get these, and the results are batched again.
  return made


def _map(rlds_data, transform):
  made = rlds_data
  if getattr(transform, 'draws', False):
    made = made.enumerate().map(
        lambda index, episode: transform(episode, episode_index=index),
        num_parallel_calls=tf.data.AUTOTUNE,
    )
  else:
    made = made.map(transform, num_parallel_calls=tf.data.AUTOTUNE)
  spec = made.element_spec
  steps_lib.check_has_steps(f'What {transform} returns', spec, base.ADVICE)
  if isinstance(spec[rlds.STEPS], tf.data.DatasetSpec):
    return stacked_steps.stack_episodes(made)
  return made


def _transform_batches(transform, batches):
  if not getattr(transform, 'draws', False):
    return batches.map(
        transform.transform_batch, num_parallel_calls=tf.data.AUTOTUNE
    )
  return batching.numbered(batches).map(
      lambda index, batch: transform.transform_batch(batch, index),
      num_parallel_calls=tf.data.AUTOTUNE,
  )


def _filter_batches(transform, batches):
  def keep(batch):
    # Faults are kept: episodes that could not be read must raise an error.
    is_kept = transform.keep_each(batch) | faults.is_fault(batch.fault)
    return episode_batches.keep_episodes(batch, is_kept)

  return batching.not_empty(batches.map(keep))


@graphs.no_autograph
def _check_batch(batch):
  steps = stacked_steps.with_equal_lengths(batch.steps)
  return batch._replace(steps=steps)
