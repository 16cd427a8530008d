"""Data sets of batches: selects episodes, and converts to and from episodes."""

from typing import Any, Callable, Optional

import tensorflow as tf

from rlds2reverb.episodes import blocks
from rlds2reverb.episodes import episode_batches
from rlds2reverb.episodes import faults
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import grouping
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.episodes import steps as steps_lib

# A function from the index of a batch's first episode, and the batch, to a data
# set.
OfBatch = Callable[[tf.Tensor, episode_batches.EpisodeBatch], tf.data.Dataset]


def unbatch(batches: tf.data.Dataset) -> tf.data.Dataset:
  """Returns the episodes in batches, one by one.

  Args:
    batches: a data set of `EpisodeBatch`s.

  Returns:
    A data set of episodes: dicts of `EpisodeBatch.fields`, and of the stacked
    `steps`.
  """

  def separate(batch):
    return graphs.with_each(
        tf.data.Dataset.range(episode_batches.num_episodes(batch)), batch
    )

  batches = without_faults(batches)
  return graphs.map_elements(graphs.flat_map(batches, separate), episode_at)


@graphs.no_autograph
def episodes_of(batch: episode_batches.EpisodeBatch) -> tf.data.Dataset:
  """Returns the episodes of one batch."""
  return tf.data.Dataset.range(episode_batches.num_episodes(batch)).map(
      graphs.no_autograph(lambda index: episode_at(index, batch))
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
  fields = tf.nest.map_structure(lambda leaf: leaf[index], batch.fields)
  return {**fields, rlds.STEPS: steps}


def can_be_batched(spec: Any) -> bool:
  """Returns whether elements are episodes of stacked steps of known shapes."""
  if not isinstance(spec, dict) or not isinstance(spec.get(rlds.STEPS), dict):
    return False
  leaves = tf.nest.flatten(spec[rlds.STEPS])
  if not leaves or not all(
      isinstance(leaf, tf.TensorSpec) and leaf.shape.rank for leaf in leaves
  ):
    return False
  others = {**spec, rlds.STEPS: steps_lib.without_time(spec[rlds.STEPS])}
  return all(map(steps_lib.has_one_shape, tf.nest.flatten(others)))


def batch_each(
    batches: tf.data.Dataset, of_batch: OfBatch, episode_spec: Any
) -> tf.data.Dataset:
  """Makes episodes of each batch, and batches them again.

  Args:
    batches: the data set of batches.
    of_batch: returns the data set of the new episodes of a batch, at most as
      many as it had.
    episode_spec: their spec, which `can_be_batched`.
  """

  # The functions of a user need AutoGraph, so this one has it, too.
  def made_of(batch):
    # TensorFlow allocates the largest size of a batch.
    count = tf.maximum(episode_batches.num_episodes(batch), 1)
    return grouping.batches(
        of_batch(tf.reduce_sum(batch.episode[:1]), batch).map(_separate), count
    )

  made = numbered(without_faults(batches)).flat_map(made_of)
  return graphs.map_elements(
      grouping.of_batches(made, _row_bytes(episode_spec)), _to_batch
  )


def batch_together(
    episodes: tf.data.Dataset, max_episodes: int
) -> tf.data.Dataset:
  """Returns the batches of episodes, by `grouping.group`."""
  grouped = grouping.group(
      graphs.map_elements(episodes, _separate),
      max_episodes,
      _row_bytes(episodes.element_spec),
  )
  return graphs.map_elements(grouped, _to_batch)


@graphs.no_autograph
def _separate(episode):
  """Returns the rows of an episode, and its other fields."""
  fields = dict(episode)
  return fields.pop(rlds.STEPS), fields


@graphs.no_autograph
def _to_batch(group):
  # An episode whose fields differ in length is alone.
  return episode_batches.EpisodeBatch(
      group.columns, tf.reduce_max(group.splits, 0), group.fields
  )


def _row_bytes(spec) -> int:
  return blocks.step_bytes(steps_lib.without_time(spec[rlds.STEPS]))


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


def take(batches: tf.data.Dataset, count: int) -> tf.data.Dataset:
  """Keeps the first `count` episodes, or all if that is negative."""
  count = tf.cast(count, tf.int64)
  is_among = lambda batch: (batch.episode < count) | (count < 0)
  # The first episode tells; a batch may have none.
  among = numbered(batches).take_while(
      graphs.no_autograph(lambda batch: tf.reduce_all(is_among(batch)[:1]))
  )
  return _select(among, is_among)


def skip(batches: tf.data.Dataset, count: int) -> tf.data.Dataset:
  """Leaves out the first `count` episodes, or all if that is negative."""
  count = tf.cast(count, tf.int64)
  return _select(
      numbered(batches), lambda batch: (batch.episode >= count) & (count >= 0)
  )


def shard(
    batches: tf.data.Dataset, num_shards: int, index: int
) -> tf.data.Dataset:
  """Keeps the episodes of one shard of several."""
  num_shards, index = tf.cast(num_shards, tf.int64), tf.cast(index, tf.int64)
  return _select(
      numbered(batches), lambda batch: batch.episode % num_shards == index
  )


def _select(batches, keep):
  """Keeps the episodes of numbered batches for which a function says so."""

  def some(batch):
    batch = episode_batches.keep_episodes(batch, keep(batch))
    return batch._replace(episode=())

  return not_empty(graphs.map_elements(batches, some))


def not_empty(batches: tf.data.Dataset) -> tf.data.Dataset:
  """Leaves out batches of no episodes."""
  return batches.filter(
      graphs.no_autograph(lambda batch: episode_batches.num_episodes(batch) > 0)
  )


def concatenate(
    batches: tf.data.Dataset, others: Optional[tf.data.Dataset]
) -> Optional[tf.data.Dataset]:
  """Returns batches and then others; or None if shapes differ too much."""
  if others is None:
    return None
  if batches.element_spec != others.element_spec:
    batches, others = without_faults(batches), without_faults(others)
  try:
    return batches.concatenate(others)
  except (TypeError, ValueError):
    return None
