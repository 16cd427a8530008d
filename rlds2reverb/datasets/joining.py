"""Joins small batches of records to larger ones, bounded by their bytes.

`batch` reads a fixed number of records, however large they are. Where records
differ much in size, and large ones stand side by side, it would hold all of
them in memory. So a few are read at a time, and joined here while they fit.
"""

from typing import Dict, NamedTuple

import tensorflow as tf

# Nothing here needs AutoGraph, which would take most of a second to find out.
_no_autograph = tf.autograph.experimental.do_not_convert


class _Held(NamedTuple):
  """The batches that are held back until no more of them fit together.

  Attributes:
    lists: a dict of variants: a list of the batches' strings for each name.
    num_batches: int32 `[]`.
    num_records: int64 `[]`.
    num_bytes: int64 `[]`.
  """

  lists: Dict[str, tf.Tensor]
  num_batches: tf.Tensor
  num_records: tf.Tensor
  num_bytes: tf.Tensor


def join_batches(
    batches: tf.data.Dataset, name: str, max_bytes: int, max_records: int
) -> tf.data.Dataset:
  """Joins consecutive batches while they fit together.

  A batch with more than `max_bytes` comes out at once, together with what is
  held before it. So does what is held where a batch is empty.

  Args:
    batches: a data set of pairs: a mark, int64 `[]`, which is -1 but for empty
      batches; and a batch, a dict of strings `[R]`.
    name: the name in the dict of the strings whose bytes are counted.
    max_bytes: how many bytes the other joined batches may have.
    max_records: how many records they may have.

  Returns:
    A data set of such pairs: a joined batch has the mark of the empty batch at
    its end. None is empty, unless it has a mark that is not -1.
  """
  mark_spec, spec = batches.element_spec
  none = {key: tf.constant([], tf.string) for key in spec}
  end = tf.data.Dataset.from_tensors((tf.constant(-1, mark_spec.dtype), none))

  @_no_autograph
  def add(held, marked):
    mark, batch = marked
    num_records = tf.size(batch[name], tf.int64)
    lengths = tf.strings.length(batch[name])
    num_bytes = tf.reduce_sum(tf.cast(lengths, tf.int64))
    is_last = (num_records == 0) | (num_bytes > max_bytes)
    fits = (held.num_records + num_records <= max_records) & (
        held.num_bytes + num_bytes <= max_bytes
    )
    # Conditions would take much longer than these numbers.
    last = tf.cast(is_last, tf.int32)
    stay = tf.cast(fits & ~is_last, tf.int32)
    counts = stay * held.num_batches, 1 - last
    out = {}
    lists = {}
    for key in batch:
      # The lists refer to the strings, which are not copied.
      longer = _push(held.lists[key], batch[key])
      out[key] = _resize(longer, held.num_batches + last)
      kept = _push(_resize(held.lists[key], counts[0]), batch[key])
      lists[key] = _resize(kept, sum(counts))
    comes_out = tf.where(
        is_last, (held.num_records + num_records > 0) | (mark >= 0), ~fits
    )
    stay, new = tf.cast(stay, tf.int64), tf.cast(1 - last, tf.int64)
    held = _Held(
        lists,
        sum(counts),
        stay * held.num_records + new * num_records,
        stay * held.num_bytes + new * num_bytes,
    )
    return held, (mark, out, comes_out)

  def _nothing():
    zero = tf.constant(0, tf.int64)
    return _Held({key: _empty() for key in spec}, tf.constant(0), zero, zero)

  return (
      batches.concatenate(end)
      .scan(_nothing(), add)
      .filter(_no_autograph(lambda mark, lists, comes_out: comes_out))
      .map(
          _no_autograph(
              lambda mark, lists, comes_out: (
                  mark, {key: _concat(lists[key]) for key in lists}
              )
          )
      )
  )


def _empty() -> tf.Tensor:
  return tf.raw_ops.EmptyTensorList(
      element_shape=[-1], max_num_elements=-1, element_dtype=tf.string
  )


def _push(strings: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
  return tf.raw_ops.TensorListPushBack(input_handle=strings, tensor=batch)


def _resize(strings: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
  return tf.raw_ops.TensorListResize(input_handle=strings, size=size)


def _concat(strings: tf.Tensor) -> tf.Tensor:
  """Returns the strings of a list of at least one batch, `[R]`."""

  def one():
    # Batches with large records are often alone, and need not be copied.
    return tf.raw_ops.TensorListGetItem(
        input_handle=strings,
        index=0,
        element_shape=[-1],
        element_dtype=tf.string,
    )

  def several():
    return tf.raw_ops.TensorListConcatV2(
        input_handle=strings,
        element_shape=[-1],
        leading_dims=tf.constant([], tf.int64),
        element_dtype=tf.string,
    ).tensor

  length = tf.raw_ops.TensorListLength(input_handle=strings)
  return tf.ensure_shape(tf.cond(length == 1, one, several), [None])
