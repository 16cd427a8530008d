"""Pairs blocks, and episodes, with the step that follows them."""

import tensorflow as tf

from rlds2reverb.episodes import outlines
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib

# AutoGraph would take most of a second to find that nothing here needs it.
_no_autograph = tf.autograph.experimental.do_not_convert


def with_following_step(dataset: tf.data.Dataset) -> tf.data.Dataset:
  """Pairs every block with the step that follows it.

  The step that follows the last block of an episode is the first step of the
  next episode.

  Args:
    dataset: a data set of `blocks.Block`s. Only those of invalid episodes may
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

  @_no_autograph
  def pair(held, block):
    has_steps = tf.size(block.outline[rlds.IS_FIRST]) > 1
    following = tf.cond(
        has_steps & (block.fault == ''),
        lambda: steps_lib.own_rows(block.steps, 0, 1),
        lambda: end_step(held),
    )
    return block, (held, following)

  # `scan` gives out the block before, so `end` comes out first.
  return (
      dataset.concatenate(tf.data.Dataset.from_tensors(end))
      .scan(end, pair)
      .skip(1)
  )


def followed(episodes: tf.data.Dataset) -> tf.data.Dataset:
  """Pairs every episode with the outline of the first step of the next one.

  Args:
    episodes: a data set of named tuples with `steps`, `outline`, `lengths`,
      `episode` and `episode_id`, as in `blocks`. Episodes without steps are
      left out.

  Returns:
    A data set of pairs: the element; and the outline `[1]` of the first step of
    the next episode. It is `outlines.end_outline()` if there is no next
    episode, or if the fields of the next episode differ in length.
  """
  spec = episodes.element_spec
  is_nested = isinstance(spec.steps, tf.data.DatasetSpec)

  @_no_autograph
  def has_steps(seen):
    rows = tf.size(seen.outline[rlds.IS_FIRST])
    if spec.lengths != ():
      rows = tf.reduce_max(seen.lengths)
    return rows > 0

  # The state of a scan cannot be a data set, but it can be a variant.
  @_no_autograph
  def to_state(seen):
    if not is_nested:
      return seen
    return seen._replace(steps=tf.data.experimental.to_variant(seen.steps))

  @_no_autograph
  def pair(held, seen):
    end = outlines.end_outline()
    following = {
        name: tf.concat([seen.outline[name], end[name]], 0)[:1] for name in end
    }
    return seen, (held, following)

  @_no_autograph
  def from_state(seen, following):
    if is_nested:
      pieces = tf.data.experimental.from_variant(
          seen.steps, spec.steps.element_spec
      )
      seen = seen._replace(steps=pieces)
    return seen, following

  @_no_autograph
  def pairs(unused_one):
    nothing = spec._replace(
        outline={
            name: tf.zeros([0], column.dtype)
            for name, column in spec.outline.items()
        },
        lengths=steps_lib.zeros(spec.lengths),
        steps=tf.data.Dataset.from_tensors(
            steps_lib.zeros(spec.steps.element_spec)
        )
        if is_nested
        else steps_lib.zeros(spec.steps),
        episode=tf.constant(0, tf.int64),
        episode_id=steps_lib.zeros(spec.episode_id),
    )
    end = tf.data.Dataset.from_tensors(nothing)
    # `scan` gives out the episode before, so `nothing` comes out first.
    return (
        episodes.filter(has_steps)
        .concatenate(end)
        .map(to_state)
        .scan(to_state(nothing), pair)
        .skip(1)
    )

  # All of this is in the function of a `flat_map`, because the graph of a data
  # set cannot hold a variant.
  return tf.data.Dataset.range(1).flat_map(pairs).map(from_state)
