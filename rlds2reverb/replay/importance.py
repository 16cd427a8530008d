"""Sampling by priorities: their importance weights, and those of sequences."""

from typing import Any, Dict, Optional, Tuple, Union

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import checks

_NORMALIZATIONS = ('batch', 'table', 'none')
_IMPOSSIBLE = 'The probability of a sample must be above 0. Found:'
_NO_PRIORITY = (
    'An item of priority 0 was sampled. Reverb does so only where all'
    ' priorities of a table are 0, and then uniformly. Give some of its items a'
    ' priority above 0. Found:'
)


def importance_weights(
    sample_info: Any,
    beta: Union[float, tf.Tensor],
    *,
    normalization: str = 'batch',
    min_priority: Optional[Union[float, tf.Tensor]] = None,
    priority_exponent: Optional[float] = None,
) -> Union[np.ndarray, tf.Tensor]:
  """Returns the weights that correct a loss for prioritized sampling.

  After "Prioritized Experience Replay" (Schaul et al., 2016). `P` is the
  probability of an item and `N` the size of its table. All normalizations
  differ by a factor alone. For priorities 1, 4, 9, 16, `priority_exponent` 0.5
  and `beta` 1, the probabilities are .1, .2, .3, .4, and:

      "batch"  (P / smallest P of the batch) ** -beta
                                      1, .5, .333, .25  if all are in the batch
      "table"  (priority / min_priority) ** (-priority_exponent * beta)
                                      1, .5, .333, .25  whatever is in the batch
      "none"   (N * P) ** -beta       2.5, 1.25, .833, .625

  Most agents use `"batch"`, whose largest weight is 1, because a sample does
  not tell the smallest priority of its table. The scale of the loss then varies
  from batch to batch. With `"table"`, which TorchRL uses, it does not.

  Args:
    sample_info: Reverb's `SampleInfo`, of `[B]`, `[B, T]` or any other shape.
    beta: how much of the bias is corrected, from 0 (nothing: all weights are
      equal) to 1 (all of it). It may be a scalar tensor that grows over time.
    normalization: which of the above.
    min_priority: the smallest priority in the table; for `"table"` alone.
    priority_exponent: the exponent of the table's sampler; for `"table"` alone.

  Returns:
    The weights, float32, of the shape of `sample_info.probability`: an array if
    `sample_info` has arrays of NumPy.

  Raises:
    ValueError: if an argument is not valid.
    InvalidArgumentError: while it runs, if a probability is not above 0; or if
      an item has priority 0. Such an item is sampled only if all priorities of
      the table are 0, where Reverb samples uniformly.
  """
  checks.check_choice('normalization', normalization, _NORMALIZATIONS)
  is_table = normalization == 'table'
  if {min_priority is not None, priority_exponent is not None} != {is_table}:
    raise ValueError(
        'normalization="table" needs min_priority and priority_exponent, and'
        f' the others need neither, but normalization={normalization!r} has'
        f' min_priority={min_priority} and'
        f' priority_exponent={priority_exponent}.'
    )
  # In eager mode, one operation of TensorFlow takes longer than all in NumPy.
  is_eager = tf.executing_eagerly()
  cast, least = (np.asarray, np.min) if is_eager else (tf.cast, tf.reduce_min)
  probability = cast(sample_info.probability, np.float64)
  priority = cast(sample_info.priority, np.float64)
  exponent = cast(beta, np.float64)
  checked = _check_above_0(probability, _IMPOSSIBLE)
  checked += _check_above_0(priority, _NO_PRIORITY)
  with tf.control_dependencies(checked):
    if is_table:
      ratio = priority / cast(min_priority, np.float64)
      exponent = priority_exponent * exponent
    elif normalization == 'batch':
      ratio = probability / least(probability)
    else:
      ratio = cast(sample_info.table_size, np.float64) * probability
    weights = cast(ratio**-exponent, np.float32)
  if is_eager and not isinstance(sample_info.probability, np.ndarray):
    return tf.constant(weights)
  return weights


def _check_above_0(values, message):
  """Returns what raises an error in a graph; in eager mode it is raised now."""
  if not isinstance(values, np.ndarray):
    return [tf.debugging.Assert(tf.reduce_all(values > 0), [message, values])]
  if not (values > 0).all():
    found = values[~(values > 0)][:16].tolist()
    raise tf.errors.InvalidArgumentError(None, None, f'{message} {found}')
  return []


def sequence_priority(
    step_priorities: Any,
    *,
    mask: Optional[Any] = None,
    max_weight: float = 0.9,
) -> tf.Tensor:
  """Returns `max_weight * max + (1 - max_weight) * mean` of the steps.

  This is the priority of R2D2 ("Recurrent Experience Replay in Distributed
  Reinforcement Learning", Kapturowski et al., 2019), where that of a step is
  the absolute TD error. Steps 1, 2, 3 and 6 have 0.9 * 6 + 0.1 * 3 = 5.7. Use
  it in a train step that updates priorities, or for the first priorities:

      rlds2reverb.TableItems(
          'sequences', rlds2reverb.Windows(80, 40),
          priority=lambda item: replay.sequence_priority(tf.abs(item.reward)))

  Args:
    step_priorities: numbers from 0 up, `[..., T]`.
    mask: bool `[..., T]`, True where a step counts. Burn-in and padding do not.
      By default all steps do.
    max_weight: the weight of the largest, from 0 to 1.

  Returns:
    The priorities, float64 `[...]`. A sequence none of whose steps counts has
    priority 0.

  Raises:
    ValueError: if `max_weight` is not valid.
  """
  if not 0 <= max_weight <= 1:
    raise ValueError(f'max_weight must be from 0 to 1, but is {max_weight}.')
  steps = tf.convert_to_tensor(step_priorities, dtype_hint=tf.float64)
  steps = tf.cast(steps, tf.float64)
  if mask is None:
    mask = tf.ones_like(steps, tf.bool)
  # A product would keep the NaN of masked steps.
  steps = tf.where(mask, steps, tf.zeros_like(steps))
  count = tf.reduce_sum(tf.cast(mask, tf.float64), axis=-1)
  mean = tf.math.divide_no_nan(tf.reduce_sum(steps, axis=-1), count)
  return max_weight * tf.reduce_max(steps, axis=-1) + (1 - max_weight) * mean


class SampledReplayBuffer:
  """The base class of replay buffers, with a Reverb server and without."""

  def get_next(
      self,
      sample_batch_size: Optional[int] = None,
      num_steps: Optional[int] = None,
      time_stacked: bool = True,
  ) -> Tuple[Any, Any]:
    """Returns the next item, or batch of items.

    Each call goes on where the last one of the same arguments stopped. Many
    batches are taken faster from `as_dataset`.

    Args:
      sample_batch_size: the number of items `B` in a batch; None for an item.
      num_steps: the number of frames of an item, if the replay buffer does not
        know it.
      time_stacked: whether the frames of an item are stacked, `[B, L, ...]`;
        otherwise they are a tuple of `L` frames, `[B, ...]`.

    Returns:
      A pair of frames and their `SampleInfo`.
    """
    frames, info = self._next_batch(sample_batch_size, num_steps)
    if time_stacked:
      return frames, info
    axis = 0 if sample_batch_size is None else 1
    leaves = [tf.unstack(leaf, axis=axis) for leaf in tf.nest.flatten(frames)]
    steps = [tf.nest.pack_sequence_as(frames, step) for step in zip(*leaves)]
    return tuple(steps), info

  def importance_weights(
      self,
      sample_info: Any,
      beta: Union[float, tf.Tensor],
      *,
      normalization: str = 'batch',
  ) -> tf.Tensor:
    """Returns the weights that correct a loss for prioritized sampling.

    Args:
      sample_info: the `SampleInfo` of a batch.
      beta: how much of the bias is corrected: 0 nothing, 1 all.
      normalization: `"batch"`, `"none"` or, without a server, `"table"`; see
        `replay.importance_weights`.

    Returns:
      The weights, float32, of the shape of `sample_info.probability`.

    Raises:
      ValueError: if items are not sampled by priorities, or an argument is not
        valid.
    """
    others = self._importance_arguments(sample_info, normalization)
    return importance_weights(
        sample_info, beta, normalization=normalization, **others
    )

  def _importance_arguments(
      self, sample_info: Any, normalization: str
  ) -> Dict[str, Any]:
    """Returns what a normalization needs, or raises a ValueError."""
    raise NotImplementedError

  def _next_batch(
      self, sample_batch_size: Optional[int], num_steps: Optional[int]
  ) -> Tuple[Any, Any]:
    """Returns the next pair of frames and their `SampleInfo`."""
    raise NotImplementedError

  # TF-Agents' own `get_next` calls this, and says that it is deprecated.
  def _get_next(self, sample_batch_size, num_steps, time_stacked):
    return self.get_next(sample_batch_size, num_steps, time_stacked)
