"""Data sets of batches: makes them of episodes, and episodes of them."""

from typing import Any, Callable

import tensorflow as tf

from rlds2reverb.episodes import blocks
from rlds2reverb.episodes import episode_batches
from rlds2reverb.episodes import faults
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import grouping
from rlds2reverb.episodes import pipeline_cache
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.episodes import steps as steps_lib

# At most as many episodes are in memory before they are batched; and fewer if
# so many steps each are more than a batch.
_MAX_TOGETHER = 8
_MANY_STEPS = 64


@pipeline_cache.cache_pipeline
def unbatch(batches: tf.data.Dataset) -> tf.data.Dataset:
  """Returns the episodes in batches, one by one, with stacked `steps`."""

  def separate(batch):
    return graphs.with_each(
        tf.data.Dataset.range(episode_batches.num_episodes(batch)), batch
    )

  batches = without_faults(batches)
  return graphs.map_elements(graphs.flat_map(batches, separate), episode_at)


def episode_spec(batch: episode_batches.EpisodeBatch) -> Any:
  """Returns the spec of the episodes that `unbatch` gives of such batches."""

  def spec(*shape):
    return lambda leaf: tf.TensorSpec(
        tf.TensorShape(shape).concatenate(leaf.shape[1:]), leaf.dtype
    )

  fields = steps_lib.map_dense(spec(), batch.fields)
  steps = steps_lib.map_dense(spec(None), batch.steps)
  return {**fields, rlds.STEPS: steps}


def _episodes_of(batch: episode_batches.EpisodeBatch) -> tf.data.Dataset:
  return tf.data.Dataset.range(episode_batches.num_episodes(batch)).map(
      lambda index: episode_at(index, batch)
  )


def episode_at(index: tf.Tensor, batch: episode_batches.EpisodeBatch) -> Any:
  """Returns the episode at a position of a batch."""

  def some_rows():
    # The rows are copied, so that an episode does not keep its batch in memory.
    return stacked_steps.own_rows(
        batch.steps, batch.row_splits[index], batch.row_splits[index + 1]
    )

  steps = tf.cond(
      tf.size(batch.row_splits) == 2, lambda: batch.steps, some_rows
  )
  fields = steps_lib.map_dense(lambda leaf: leaf[index], batch.fields)
  return {**fields, rlds.STEPS: steps}


def batch_together(
    data: tf.data.Dataset, to_episode: Callable[..., Any]
) -> tf.data.Dataset:
  """Returns batches of episodes; short ones of known shape share a batch.

  Args:
    data: a data set.
    to_episode: makes an episode with stacked steps of an element.
  """

  def separate(*one):
    separated = episode_batches.separate(to_episode(*one))
    stacked_steps.lengths_of(separated[0])  # or they are known to differ
    return separated

  separated = graphs.map_elements(data, separate, tf.data.AUTOTUNE)
  row_bytes = _row_bytes(separated.element_spec)
  count = row_bytes and grouping.GROUP_BYTES // (_MANY_STEPS * row_bytes)
  if count < 2:
    return graphs.map_elements(separated, episode_batches.of_one)
  return _join(_put_together(separated, min(count, _MAX_TOGETHER)), row_bytes)


def map_episodes(
    batches: tf.data.Dataset,
    function: Callable[[tf.Tensor, tf.data.Dataset], tf.data.Dataset],
) -> tf.data.Dataset:
  """Changes the episodes of each batch, and batches them again.

  So an episode that cannot be read raises an error after all those before it
  were changed.

  Args:
    batches: the data set of batches.
    function: takes the index of the first episode of a batch, and the data set
      of its episodes; returns the data set of the new episodes, which are
      stacked, and at most as many. It may need AutoGraph.
  """

  row_bytes = 0

  def changed(batch):
    nonlocal row_bytes
    first = tf.reduce_sum(batch.episode[:1])
    made = function(first, _episodes_of(batch))
    made = made.map(episode_batches.separate)
    row_bytes = _row_bytes(made.element_spec)
    if not row_bytes:
      return made.map(episode_batches.of_one)
    # TensorFlow allocates the largest size of a batch.
    count = tf.maximum(episode_batches.num_episodes(batch), 1)
    return _put_together(made, count)

  made = numbered(without_faults(batches)).flat_map(changed)
  return _join(made, row_bytes) if row_bytes else made


def _row_bytes(separated: Any) -> int:
  """Returns the bytes of a step; 0 if episodes cannot share a batch."""
  steps, fields = separated
  leaves = tf.nest.flatten(steps)
  if not leaves or not all(
      isinstance(leaf, tf.TensorSpec) and leaf.shape.rank for leaf in leaves
  ):
    return 0
  step = steps_lib.without_time(steps)
  if not all(map(steps_lib.has_one_shape, tf.nest.flatten((step, fields)))):
    return 0
  return blocks.step_bytes(step)


def _put_together(separated: tf.data.Dataset, count: Any) -> tf.data.Dataset:
  return separated.ragged_batch(count, row_splits_dtype=tf.int64)


def _join(together: tf.data.Dataset, row_bytes: int) -> tf.data.Dataset:
  """Returns batches, by bytes; an episode of unequal fields is alone."""

  def parts(whole):
    bounds = grouping.bounds(whole.splits, row_bytes)
    return graphs.with_each(tf.data.Dataset.from_tensor_slices(bounds), whole)

  def to_batch(bounds, whole):
    part = grouping.part(bounds, whole)
    splits = tf.reduce_max(part.splits, 0)
    return episode_batches.EpisodeBatch(part.columns, splits, part.fields)

  groups = graphs.map_elements(together, grouping.of_ragged)
  return graphs.map_elements(graphs.flat_map(groups, parts), to_batch)


def without_faults(batches: tf.data.Dataset) -> tf.data.Dataset:
  """Returns batches without `fault`; raises the faults as errors."""
  if batches.element_spec.fault == ():
    return batches

  def check(batch):
    is_fine = ~faults.is_fault(batch.fault)
    message = tf.cond(
        is_fine,
        lambda: tf.constant(''),
        lambda: faults.sentence(batch.fault, batch.episode[0]),
    )
    with tf.control_dependencies([tf.debugging.Assert(is_fine, [message])]):
      return batch._replace(fault=(), episode=())

  return graphs.map_elements(numbered(batches), check)


def numbered(batches: tf.data.Dataset) -> tf.data.Dataset:
  """Returns batches with the index of every `episode`."""

  def number(index, batch):
    end = index + episode_batches.num_episodes(batch)
    return end, batch._replace(episode=tf.range(index, end))

  return graphs.scan(batches, tf.constant(0, tf.int64), number)


def not_empty(batches: tf.data.Dataset) -> tf.data.Dataset:
  """Leaves out batches of no episodes."""
  return batches.filter(lambda batch: episode_batches.num_episodes(batch) > 0)
