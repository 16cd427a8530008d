"""Data sets of batches, which begin where their position says."""

from typing import Any, Callable, Optional

import tensorflow as tf

from rlds2reverb.replay import sample_info
from rlds2reverb.replay.local import population as population_lib
from rlds2reverb.replay.local import samplers
from rlds2reverb.replay.local import store as store_lib

# Batches that are small are drawn together, as many as make so many bytes:
# every operation on them costs some microseconds, whatever it does.
_GROUP_BYTES = 1 << 20
_MAX_GROUP = 16


def batches_per_group(store: store_lib.FrameStore, batch_size: int) -> int:
  """Returns how many batches are drawn together."""
  length = store.form.sequence_length
  if length is None:
    return 1  # Episodes of different lengths have no common tensor.
  num_bytes = store.format.frame_bytes * batch_size * length
  return max(1, min(_MAX_GROUP, _GROUP_BYTES // max(num_bytes, 1)))


def sample(
    store: store_lib.FrameStore,
    population: population_lib.Population,
    draw: samplers.DrawFn,
    *,
    batch_size: Optional[int],
    num_groups: Optional[int] = None,
    batches_per_group: int = 1,
    position: Optional[tf.Variable] = None,
    in_advance: bool = True,
    sequence_fn: Optional[Callable[[Any], Any]] = None,
) -> tf.data.Dataset:
  """Returns a data set of batches.

  Args:
    store: the frames.
    population: the items.
    draw: the function that draws them.
    batch_size: the number of items of a batch; None for single items.
    num_groups: after how many groups of batches the data set ends; None for
      never.
    batches_per_group: how many batches are drawn together.
    position: the number of the first batch, an int64 variable, which is kept at
      the number of batches that have come out.
    in_advance: whether batches are drawn before they are asked for.
    sequence_fn: a function of the `Trajectory` `[L, ...]` of each item.

  Returns:
    A data set of pairs of a `Trajectory` `[B, L, ...]` and a
    `reverb.SampleInfo` `[B, L]`; without `B` for single items.
  """

  @tf.autograph.experimental.do_not_convert
  def make_group(group):
    draws = draw(group, batches_per_group, batch_size or 1)
    shape = draws.items.shape
    rows = population.rows(tf.reshape(draws.items, [-1]))  # [K * B, L]
    length = rows.shape[1]
    if shape.is_fully_defined() and length is not None:
      rows = tf.reshape(rows, [*shape, length])
    else:
      rows = tf.reshape(rows, tf.concat([tf.shape(draws.items), [-1]], 0))
      rows.set_shape([*shape, length])
    frames = store.read(rows)
    if sequence_fn is not None:
      frames = _map_sequences(sequence_fn, frames, rows)

    def over_time(values):
      values = tf.broadcast_to(values[..., tf.newaxis], tf.shape(rows))
      return tf.ensure_shape(values, rows.shape)

    info = sample_info.sample_info_class()(
        key=over_time(tf.cast(draws.items, tf.uint64)),
        probability=over_time(draws.probability),
        table_size=over_time(tf.fill(tf.shape(draws.items), population.size())),
        priority=over_time(draws.priority),
        times_sampled=over_time(tf.zeros_like(draws.items, tf.int32)),
    )
    return frames, info

  @tf.autograph.experimental.do_not_convert
  def batches_from(first):
    end = tf.int64.max // _MAX_GROUP if num_groups is None else num_groups
    groups = tf.data.Dataset.range(first // batches_per_group, end)
    groups = groups.map(make_group)
    batches = tf.data.Dataset.zip(
        (
            tf.data.Dataset.range(first, tf.int64.max),
            _take_apart(groups).skip(first % batches_per_group),
        )
    )
    # A trainer waits for what comes after this, and for nothing else.
    return batches.prefetch(batches_per_group) if in_advance else batches

  @tf.autograph.experimental.do_not_convert
  def finish(number, batch):
    if batch_size is None:
      batch = tf.nest.map_structure(lambda leaf: leaf[0], batch)
    if position is not None:
      position.assign(number + 1, read_value=False)
    return batch

  # Where to begin is read when the iterator is made.
  first = tf.data.Dataset.from_tensors(0).map(
      lambda _: tf.constant(0, tf.int64)
      if position is None
      else position.read_value()
  )
  batches = first.flat_map(batches_from).map(finish)
  options = tf.data.Options()
  options.deterministic = True
  # A batch counts as taken when it is asked for, and not before.
  options.experimental_optimization.inject_prefetch = False
  # To optimize a graph, TensorFlow copies the frames into it.
  options.experimental_optimization.apply_default_optimizations = False
  return batches.with_options(options)


def _take_apart(groups: tf.data.Dataset) -> tf.data.Dataset:
  """Returns the batches of groups of them."""
  if any(0 in leaf.shape for leaf in tf.nest.flatten(groups.element_spec)):
    # `unbatch` crashes where tensors have no elements.
    return groups.flat_map(
        lambda *group: tf.data.Dataset.from_tensor_slices(group)
    )
  return groups.unbatch()


def _map_sequences(sequence_fn, frames, rows):
  """Applies a function to the frames of every item."""
  lead = tf.shape(rows)[:2]
  count = tf.reduce_prod(lead, keepdims=True)
  flat = tf.nest.map_structure(
      lambda leaf: tf.reshape(leaf, tf.concat([count, tf.shape(leaf)[2:]], 0)),
      frames,
  )
  flat = tf.nest.map_structure(
      lambda new, old: tf.ensure_shape(new, [None, *old.shape[2:]]),
      flat,
      frames,
  )
  spec = tf.nest.map_structure(
      lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), flat
  )
  function = tf.function(sequence_fn).get_concrete_function(spec)
  # Within a graph these are tensors.
  signature = tf.nest.map_structure(
      lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype),
      function.structured_outputs,
  )
  flat = tf.map_fn(sequence_fn, flat, fn_output_signature=signature)
  return tf.nest.map_structure(
      lambda leaf: tf.ensure_shape(
          tf.reshape(leaf, tf.concat([lead, tf.shape(leaf)[1:]], 0)),
          [*rows.shape[:2], *leaf.shape[1:]],
      ),
      flat,
  )
