"""Pairs blocks, and episodes, with the step that follows them."""

import tensorflow as tf

from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import outlines
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.episodes import steps as steps_lib


def with_following_step(dataset: tf.data.Dataset) -> tf.data.Dataset:
  """Pairs every block with the step that follows it.

  The step that follows the last block of an episode is the first step of the
  next episode.

  Args:
    dataset: a data set of `blocks.Block`s. Only blocks of invalid episodes may
      have no steps.

  Returns:
    A data set of pairs: the block; and the step that follows it, `[1, ...]`.
    The last block, and any block before an invalid episode, is paired with a
    FIRST step whose fields are zeros, in the shapes of the data.
  """
  end = steps_lib.zeros(dataset.element_spec)

  def end_step(held):
    step = tf.nest.map_structure(
        lambda leaf: tf.zeros_like(leaf[-1:]), held.steps
    )
    if rlds.IS_FIRST in step:
      step[rlds.IS_FIRST] = tf.ones_like(step[rlds.IS_FIRST])
    return step

  @graphs.no_autograph
  def pair(held, block):
    has_steps = tf.size(block.outline[rlds.IS_FIRST]) > 1
    following = tf.cond(
        has_steps & (block.fault == ''),
        lambda: stacked_steps.own_rows(block.steps, 0, 1),
        lambda: end_step(held),
    )
    return block, (held, following)

  # `scan` returns the block before, so `end` comes out first.
  return (
      dataset.concatenate(tf.data.Dataset.from_tensors(end))
      .scan(end, pair)
      .skip(1)
  )


def followed(episodes: tf.data.Dataset) -> tf.data.Dataset:
  """Pairs every episode with the outline of the first step of the next one.

  Args:
    episodes: a data set of `judging.Seen`, of one episode each. Those without
      steps are left out.

  Returns:
    A data set of pairs: the episode; and the outline `[1]` of the first step of
    the next one. It is `outlines.end_outline()` if there is no next episode, or
    if the fields of the next episode differ in length.
  """
  spec = episodes.element_spec

  @graphs.no_autograph
  def has_steps(seen):
    rows = tf.size(seen.outline[rlds.IS_FIRST])
    if spec.lengths != ():
      rows = tf.reduce_max(seen.lengths)
    return rows > 0

  @graphs.no_autograph
  def pair(held, seen):
    end = outlines.end_outline()
    following = {
        name: tf.concat([seen.outline[name], end[name]], 0)[:1] for name in end
    }
    return seen, (held, following)

  nothing = spec._replace(rest=())
  nothing = steps_lib.zeros(nothing)
  if spec.rest != ():
    # The graph of a data set cannot hold the variant of a data set, but it can
    # hold an empty list of them.
    nothing = nothing._replace(
        rest=tf.reshape(
            tf.raw_ops.EmptyTensorList(
                element_shape=tf.constant([], tf.int32),
                max_num_elements=1,
                element_dtype=tf.variant,
            ),
            [1],
        )
    )
  # `scan` returns the episode before, so `nothing` comes out first.
  end = tf.data.Dataset.from_tensors(nothing)
  return episodes.filter(has_steps).concatenate(end).scan(nothing, pair).skip(1)
