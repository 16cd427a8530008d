"""The base class of replay buffers."""

from typing import Any

import tensorflow as tf

from rlds2reverb.replay import priorities


class SampledReplayBuffer:
  """The base class of local replay buffers and of buffers on a server."""

  def get_next(
      self,
      sample_batch_size: int | None = None,
      num_steps: int | None = None,
      time_stacked: bool = True,
  ) -> tuple[Any, Any]:
    """Returns the next item, or batch of items.

    Each call continues after the previous call with the same arguments. A loop
    over `as_dataset` is faster.

    Args:
      sample_batch_size: the number of items `B` in a batch; None for an item.
      num_steps: the number of frames of an item, if it is not a setting of the
        replay buffer.
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
      beta: float | tf.Tensor,
      *,
      normalization: str = 'batch',
  ) -> tf.Tensor:
    """Returns the weights that correct a loss for prioritized sampling.

    Args:
      sample_info: the `SampleInfo` of a batch.
      beta: the amount of correction, from 0 (none) to 1 (full).
      normalization: `"batch"`, `"none"` or, without a server, `"table"`; see
        `replay.importance_weights`.

    Returns:
      The weights, float32, of the shape of `sample_info.probability`.

    Raises:
      ValueError: if items are not sampled by priorities, or an argument is not
        valid.
    """
    arguments = self._importance_arguments(sample_info, normalization)
    return priorities.importance_weights(
        sample_info, beta, normalization=normalization, **arguments
    )

  def _importance_arguments(
      self, sample_info: Any, normalization: str
  ) -> dict[str, Any]:
    """Returns the other arguments of `importance_weights`.

    Raises:
      ValueError: if the replay buffer does not have them.
    """
    raise NotImplementedError

  def _next_batch(
      self, sample_batch_size: int | None, num_steps: int | None
  ) -> tuple[Any, Any]:
    """Returns the next pair of frames and their `SampleInfo`."""
    raise NotImplementedError

  # TF-Agents' `get_next`, which logs that it is deprecated, calls this.
  def _get_next(self, sample_batch_size, num_steps, time_stacked):
    return self.get_next(sample_batch_size, num_steps, time_stacked)
