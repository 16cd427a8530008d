"""Groups consecutive episodes whose nested steps are few.

To read the nested steps of an episode takes some operations, however few the
steps are. So the steps of consecutive short episodes are read together, as one
pack. How many steps an episode has is known without reading them, as the
cardinality of its data set. Where it is not known, the episode stays alone.
"""

from typing import Any, NamedTuple, Optional

import tensorflow as tf

from rlds2reverb.episodes import rlds

# Every data set of a group is joined to the one before, and its steps pass
# through all of the joints.
_MAX_EPISODES = 32

# Nothing here needs AutoGraph, which would take most of a second to find out.
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

  # The state of a scan cannot be a data set, but it can be a variant.
  def group_of(steps, lengths, first, episode_id):
    return Group(
        tf.data.experimental.to_variant(steps), lengths, first, episode_id
    )

  def steps_of(group):
    return tf.data.experimental.from_variant(group.steps, steps_spec)

  @_no_autograph
  def to_group(index, episode):
    steps = episode[rlds.STEPS]
    ids = () if episode_id is None else episode[episode_id][tf.newaxis]
    return group_of(steps, steps.cardinality()[tf.newaxis], index, ids)

  @_no_autograph
  def add(held, one):
    lengths = tf.concat([held.lengths, one.lengths], 0)
    fits = (
        (tf.size(held.lengths) > 0)
        & (tf.reduce_min(lengths) >= 0)
        & (tf.reduce_sum(lengths) <= max_steps)
        & (tf.size(lengths) <= _MAX_EPISODES)
    )
    nothing = held._replace(lengths=held.lengths[:0])

    def join():
      ids = (
          ()
          if episode_id is None
          else tf.concat([held.episode_id, one.episode_id], 0)
      )
      steps = steps_of(held).concatenate(steps_of(one))
      return group_of(steps, lengths, held.first, ids), nothing

    return tf.cond(fits, join, lambda: (one, held))

  @_no_autograph
  def groups(unused_one):
    # What is never read need not have the spec of steps.
    no_steps = tf.data.Dataset.range(0)
    ids = (
        ()
        if episode_id is None
        else tf.zeros([0], rlds_data.element_spec[episode_id].dtype)
    )
    # The length of the end is not known, so that it does not fit to any group,
    # and the last group comes out.
    unknown = tf.fill([1], tf.constant(tf.data.UNKNOWN_CARDINALITY, tf.int64))
    zero = tf.constant(0, tf.int64)
    end = group_of(no_steps, unknown, zero, ids)
    start = group_of(no_steps, unknown[:0], zero, ids)
    return (
        rlds_data.enumerate()
        .map(to_group)
        .concatenate(tf.data.Dataset.from_tensors(end))
        .scan(start, add)
        .filter(_no_autograph(lambda group: tf.size(group.lengths) > 0))
    )

  # All of this is in the function of a `flat_map`, because the graph of a data
  # set cannot hold a variant.
  return (
      tf.data.Dataset.range(1)
      .flat_map(groups)
      .map(_no_autograph(lambda group: group._replace(steps=steps_of(group))))
  )
