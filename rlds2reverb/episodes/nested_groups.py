"""Groups consecutive episodes whose nested steps are few.

To read the nested steps of an episode takes some operations, however few the
steps are. So the steps of consecutive short episodes are read together, as one
pack. How many steps an episode has is known without reading them, as the
cardinality of its data set. Where it is not known, the episode stays alone.
"""

from typing import Any, NamedTuple, Optional

import tensorflow as tf

from rlds2reverb.episodes import rlds

# More gain little. In a group with a bad episode all are read one by one.
_MAX_EPISODES = 32

# AutoGraph would take most of a second to find that nothing here needs it.
_no_autograph = tf.autograph.experimental.do_not_convert


class Group(NamedTuple):
  """`E` consecutive episodes: several short ones, or one of any length.

  Attributes:
    steps: the data set of the steps of all of them, one after the other.
    lengths: int64 `[E]`: the number of steps of each, which is negative where
      it is not known.
    first: int64 `[]`: the index in the data set of the first of them.
    episode_id: `[E]`: the field that identifies each episode, or `()`.
  """

  steps: Any
  lengths: tf.Tensor
  first: tf.Tensor
  episode_id: Any


def group_episodes(
    rlds_data: tf.data.Dataset, max_steps: int, episode_id: Optional[str] = None
) -> tf.data.Dataset:
  """Groups consecutive episodes that have few steps together.

  Args:
    rlds_data: an RLDS data set with nested steps.
    max_steps: the largest number of steps of a group of several episodes.
    episode_id: the name of the field of an episode that identifies it.

  Returns:
    A data set of `Group`s.
  """
  steps_spec = rlds_data.element_spec[rlds.STEPS].element_spec

  # The state of a scan cannot be data sets, but it can be a list of variants.
  def empty():
    return tf.raw_ops.EmptyTensorList(
        element_shape=tf.constant([], tf.int32),
        max_num_elements=_MAX_EPISODES,
        element_dtype=tf.variant,
    )

  def append(steps, variant):
    return tf.raw_ops.TensorListPushBack(input_handle=steps, tensor=variant)

  def item(steps, index):
    return tf.raw_ops.TensorListGetItem(
        input_handle=steps,
        index=index,
        element_shape=tf.constant([], tf.int32),
        element_dtype=tf.variant,
    )

  def none_of(group):
    return group._replace(
        steps=empty(),
        lengths=group.lengths[:0],
        episode_id=tf.nest.map_structure(
            lambda leaf: leaf[:0], group.episode_id
        ),
    )

  def one_group(steps, length, index, ids):
    return Group(
        tf.data.experimental.to_variant(steps), length[tf.newaxis], index, ids
    )

  @_no_autograph
  def to_group(index, episode):
    steps = episode[rlds.STEPS]
    ids = () if episode_id is None else episode[episode_id][tf.newaxis]
    return one_group(steps, steps.cardinality(), index, ids)

  @_no_autograph
  def end(index):
    # Its length is not known, so that it does not fit to any group, and the
    # last group comes out.
    length = tf.constant(tf.data.UNKNOWN_CARDINALITY, tf.int64)
    ids = ()
    if episode_id is not None:
      ids = tf.zeros([1], rlds_data.element_spec[episode_id].dtype)
    # What is never read need not have the spec of steps.
    return one_group(tf.data.Dataset.range(0), length, index, ids)

  @_no_autograph
  def add(held, one):
    lengths = tf.concat([held.lengths, one.lengths], 0)
    fits = (
        (tf.size(held.lengths) > 0)
        & (tf.reduce_min(lengths) >= 0)
        & (tf.reduce_sum(lengths) <= max_steps)
        & (tf.size(lengths) <= _MAX_EPISODES)
    )

    def join():
      joined = held._replace(
          steps=append(held.steps, one.steps),
          lengths=lengths,
          episode_id=tf.nest.map_structure(
              lambda *ids: tf.concat(ids, 0), held.episode_id, one.episode_id
          ),
      )
      return joined, none_of(held)

    def part():
      return one._replace(steps=append(empty(), one.steps)), held

    return tf.cond(fits, join, part)

  @_no_autograph
  def with_steps(group):
    def steps_of(index):
      return tf.data.experimental.from_variant(
          item(group.steps, index), steps_spec
      )

    joined = tf.data.Dataset.range(
        tf.size(group.lengths, tf.int64), output_type=tf.int32
    ).flat_map(_no_autograph(steps_of))
    # The steps of a long episode need not pass through a joint.
    chosen = tf.cond(
        tf.size(group.lengths) == 1,
        lambda: item(group.steps, 0),
        lambda: tf.data.experimental.to_variant(joined),
    )
    return group._replace(
        steps=tf.data.experimental.from_variant(chosen, steps_spec)
    )

  # All of this stays outside of the function of a `flat_map`: TensorFlow does
  # not optimise what is in there, and a nested step would take ten times as
  # long. The graph of a data set cannot hold the variant of a data set, but it
  # can hold an empty list of them.
  zero = tf.constant(0, tf.int64)
  return (
      rlds_data.enumerate()
      .map(to_group)
      .concatenate(tf.data.Dataset.range(1).map(end))
      .scan(none_of(end(zero)), add)
      .filter(_no_autograph(lambda group: tf.size(group.lengths) > 0))
      .map(with_steps)
  )
