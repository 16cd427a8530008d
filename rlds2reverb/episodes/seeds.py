"""Seeds of random functions."""

import numbers
from typing import Any, Tuple, Union

import tensorflow as tf

Seed = Union[int, Tuple[Any, Any], tf.Tensor]


def to_pair(seed: Seed) -> tf.Tensor:
  """Returns a seed as TensorFlow's stateless random functions take it.

  The same numbers give the same seed, whatever their dtype.

  Args:
    seed: an integer `n`, which means the pair `(n, 0)`; or two integers, of
      which one may be the index of an episode, so that each episode has a seed
      of its own. Each may be a tensor, and so may the pair.

  Returns:
    int64 `[2]`.

  Raises:
    ValueError: if `seed` is neither.
  """
  is_pair = isinstance(seed, (tuple, list))
  given: Any = seed if is_pair else [seed]
  if isinstance(seed, numbers.Integral) and not isinstance(seed, bool):
    given, is_pair = (seed, 0), True
  try:
    parts = [tf.convert_to_tensor(part) for part in given]
  except (TypeError, ValueError):
    parts = []
  if parts and all(part.dtype.is_integer for part in parts):
    parts = [tf.cast(part, tf.int64) for part in parts]
    pair = tf.stack(parts) if is_pair else parts[0]
    if pair.shape.rank == 0:
      pair = tf.stack([pair, tf.zeros_like(pair)])
    if pair.shape.is_compatible_with([2]):
      return pair
  raise ValueError(
      'seed must be an integer or two integers, for example 7 or'
      f' (7, episode_index), but is {seed}.'
  )
