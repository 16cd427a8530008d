"""Data sets of packs: selects episodes, and converts to and from episodes."""

from typing import Any, Callable, Optional

import tensorflow as tf

from rlds2reverb.episodes import blocks
from rlds2reverb.episodes import faults
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import grouping
from rlds2reverb.episodes import packs as packs_lib
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.episodes import steps as steps_lib

# A function from the index of a pack's first episode, and the pack, to a data
# set.
OfPack = Callable[[tf.Tensor, packs_lib.Pack], tf.data.Dataset]


def unpack(packs: tf.data.Dataset) -> tf.data.Dataset:
  """Returns the episodes in packs, one by one.

  Args:
    packs: a data set of `packs.Pack`s.

  Returns:
    A data set of episodes: dicts of `Pack.fields`, and of the stacked `steps`.
  """

  @graphs.no_autograph
  def separate(pack):
    return tf.data.Dataset.zip(
        (
            tf.data.Dataset.range(packs_lib.num_episodes(pack)),
            tf.data.Dataset.from_tensors(pack).repeat(),
        )
    )

  # The episodes are cut out here, and not by a map in the function of
  # `flat_map`, which would be built again for every pack.
  packs = without_faults(packs)
  return packs.flat_map(separate).map(graphs.no_autograph(_episode))


@graphs.no_autograph
def episodes_of(pack: packs_lib.Pack) -> tf.data.Dataset:
  """Returns the episodes of one pack."""
  return tf.data.Dataset.range(packs_lib.num_episodes(pack)).map(
      graphs.no_autograph(lambda index: _episode(index, pack))
  )


def _episode(index: tf.Tensor, pack: packs_lib.Pack):
  """Returns the episode at a position of a pack."""

  def some_rows():
    # The rows are copied, so that an episode does not keep its pack in memory.
    return stacked_steps.own_rows(
        pack.steps, pack.row_splits[index], pack.row_splits[index + 1]
    )

  steps = tf.cond(tf.size(pack.row_splits) == 2, lambda: pack.steps, some_rows)
  fields = tf.nest.map_structure(lambda leaf: leaf[index], pack.fields)
  return {**fields, rlds.STEPS: steps}


def can_be_packed(spec: Any) -> bool:
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


def pack_each(
    packs: tf.data.Dataset, of_pack: OfPack, episode_spec: Any
) -> tf.data.Dataset:
  """Makes episodes of each pack, and packs them again.

  Args:
    packs: the data set of packs.
    of_pack: returns the data set of the new episodes of a pack, at most as many
      as it had.
    episode_spec: their spec, which `can_be_packed`.
  """

  # The functions of a user need AutoGraph, so this one has it, too.
  def batches(index, pack):
    # TensorFlow allocates the largest size of a batch.
    count = tf.maximum(packs_lib.num_episodes(pack), 1)
    return grouping.batches(of_pack(index, pack).map(_separate), count)

  made = numbered(without_faults(packs)).flat_map(batches)
  return grouping.of_batches(made, _row_bytes(episode_spec)).map(_to_pack)


def pack_together(
    episodes: tf.data.Dataset, max_episodes: int
) -> tf.data.Dataset:
  """Returns the packs of episodes that can be packed; see `grouping.group`."""
  return grouping.group(
      episodes.map(_separate), max_episodes, _row_bytes(episodes.element_spec)
  ).map(_to_pack)


@graphs.no_autograph
def _separate(episode):
  """Returns the rows of an episode, and its other fields."""
  fields = dict(episode)
  return fields.pop(rlds.STEPS), fields


@graphs.no_autograph
def _to_pack(group):
  # An episode whose fields differ in length is alone.
  return packs_lib.Pack(
      group.columns, tf.reduce_max(group.splits, 0), group.fields
  )


def _row_bytes(spec) -> int:
  return blocks.step_bytes(steps_lib.without_time(spec[rlds.STEPS]))


def without_faults(packs: tf.data.Dataset) -> tf.data.Dataset:
  """Returns packs without `fault`; raises the faults as errors."""
  if packs.element_spec.fault == ():
    return packs

  @graphs.no_autograph
  def check(index, pack):
    is_fine = ~faults.is_fault(pack.fault)
    message = tf.cond(
        is_fine,
        lambda: tf.constant(''),
        lambda: faults.sentence(pack.fault, index),
    )
    with tf.control_dependencies([tf.debugging.Assert(is_fine, [message])]):
      return pack._replace(fault=())

  return numbered(packs).map(check)


def numbered(packs: tf.data.Dataset) -> tf.data.Dataset:
  """Returns pairs of the index of a pack's first episode and of the pack."""

  def number(index, pack):
    return index + packs_lib.num_episodes(pack), (index, pack)

  return packs.scan(tf.constant(0, tf.int64), graphs.no_autograph(number))


def take(packs: tf.data.Dataset, count: int) -> tf.data.Dataset:
  """Keeps the first `count` episodes, or all if that is negative."""
  count = tf.cast(count, tf.int64)

  def some(index, pack):
    is_among = index + tf.range(packs_lib.num_episodes(pack)) < count
    return packs_lib.keep_episodes(pack, is_among | (count < 0))

  is_among = lambda index, pack: (index < count) | (count < 0)
  among = numbered(packs).take_while(graphs.no_autograph(is_among))
  return not_empty(among.map(graphs.no_autograph(some)))


def skip(packs: tf.data.Dataset, count: int) -> tf.data.Dataset:
  """Leaves out the first `count` episodes, or all if that is negative."""
  count = tf.cast(count, tf.int64)
  return _select(packs, lambda index: (index >= count) & (count >= 0))


def shard(
    packs: tf.data.Dataset, num_shards: int, index: int
) -> tf.data.Dataset:
  """Keeps the episodes of one shard of several."""
  num_shards, index = tf.cast(num_shards, tf.int64), tf.cast(index, tf.int64)
  return _select(packs, lambda place: place % num_shards == index)


def _select(packs, keep):
  """Keeps the episodes for whose index a function returns True."""

  def some(index, pack):
    return packs_lib.keep_episodes(
        pack, keep(index + tf.range(packs_lib.num_episodes(pack)))
    )

  return not_empty(numbered(packs).map(graphs.no_autograph(some)))


def not_empty(packs: tf.data.Dataset) -> tf.data.Dataset:
  """Leaves out packs of no episodes."""
  return packs.filter(
      graphs.no_autograph(lambda pack: packs_lib.num_episodes(pack) > 0)
  )


def concatenate(
    packs: tf.data.Dataset, others: Optional[tf.data.Dataset]
) -> Optional[tf.data.Dataset]:
  """Returns packs and then others; or None if their shapes differ too much."""
  if others is None:
    return None
  if packs.element_spec != others.element_spec:
    packs, others = without_faults(packs), without_faults(others)
  try:
    return packs.concatenate(others)
  except (TypeError, ValueError):
    return None
