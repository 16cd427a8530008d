"""Seeds of random functions."""

import numbers
from typing import Any, Tuple, Union

import tensorflow as tf

from rlds2reverb.episodes import draws

# The increment of `SplitMix64`.
GOLDEN = draws.GOLDEN

Seed = Union[int, Tuple[Any, Any], tf.Tensor]


def to_pair(seed: Seed) -> tf.Tensor:
  """Returns a seed for TensorFlow's stateless random functions.

  The same numbers give the same seed, whatever their dtype.

  Args:
    seed: an integer `n`, which means the pair `(n, 0)`; or two integers, one of
      which may be the index of an episode, so that each episode has another
      seed. Each may be a tensor, and so may the pair.

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


def fractions(seed: int, *counters: tf.Tensor) -> tf.Tensor:
  """Returns a random number for each row, by the seed and counters alone.

  So a row draws the same number in any batch or order. Each counter is a
  place in a stream of `SplitMix64`; the number there is the state from which
  the stream of the next counter begins.

  Args:
    seed: an int.
    *counters: int64 `[N]` each, such as the episode and the step of each row.
      Other counters, or more of them, give other numbers.

  Returns:
    float64 `[N]`, in [0, 1).
  """
  mixed = mix_bits(tf.constant((seed + 1) * GOLDEN % 2**64, tf.uint64))
  for counter in counters:
    steps = tf.cast(counter, tf.uint64) + tf.constant(1, tf.uint64)
    mixed = mix_bits(mixed + steps * tf.constant(GOLDEN, tf.uint64))
  # A float64 has this many bits of precision.
  bits = tf.bitwise.right_shift(mixed, tf.constant(11, tf.uint64))
  return tf.cast(tf.cast(bits, tf.int64), tf.float64) * 2.0**-53


def mix_bits(numbers: tf.Tensor) -> tf.Tensor:
  """Mixes numbers as `SplitMix64` does, to uint64 whose high bits look random.

  Args:
    numbers: uint64, of any shape.
  """
  for shift, factor in draws.MIXER:
    numbers = tf.bitwise.bitwise_xor(
        numbers, tf.bitwise.right_shift(numbers, tf.constant(shift, tf.uint64))
    )
    numbers *= tf.constant(factor, tf.uint64)
  return numbers
