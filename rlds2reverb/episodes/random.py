"""Counter-based random numbers: SplitMix64, in NumPy and in graphs.

A number is a function of the seed and of its position alone, so results do not
depend on the process, the order or the batch in which they are computed.
TensorFlow is imported only for tensors.
"""

import numbers
from typing import Any, Union

from etils import epy
import numpy as np

with epy.lazy_imports():
  import tensorflow as tf

# SplitMix64: the increment, which is 2**64 divided by the golden ratio; and the
# shifts and factors of the mixer. See Steele, Lea and Flood, "Fast Splittable
# Pseudorandom Number Generators", 2014.
GOLDEN = 0x9E3779B97F4A7C15
_MIXER = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))

Seed = Union[int, tuple[Any, Any], 'tf.Tensor']


def spawn_seeds(seed: int, count: int, *key: int) -> np.ndarray:
  """Returns independent seeds of streams, uint64 `[count]`.

  Args:
    seed: the seed of the user, an integer from 0 up.
    count: the number of seeds.
    *key: integers from 0 up. Different keys give different seeds.
  """
  sequence = np.random.SeedSequence(seed, spawn_key=key)
  return sequence.generate_state(count, np.uint64)


def mix_bits(states: np.ndarray) -> np.ndarray:
  """Returns the outputs of SplitMix64 for its states, computed in place.

  The function is a bijection: different states give different outputs.

  Args:
    states: uint64, of any shape but a scalar.
  """
  for shift, factor in _MIXER:
    states ^= states >> np.uint64(shift)
    states *= np.uint64(factor)
  states ^= states >> np.uint64(31)
  return states


def integers_below(fractions: np.ndarray, limits: Any) -> np.ndarray:
  """Maps fractions in [0, 1) to integers in `[0, limits)`, int64."""
  # A product may be rounded up to the limit itself.
  return np.minimum((fractions * limits).astype(np.int64), limits - 1)


def scale_weights(weights: Any, largest: Any = None) -> np.ndarray:
  """Multiplies weights by a power of two so that their sums stay in range.

  The sum of weights such as 1e308 is infinite, and sums of weights such as
  1e-310 lose digits. A power of two changes no digit of a weight.

  Args:
    weights: finite numbers from 0 up.
    largest: the number that becomes less than 1; by default the largest weight.

  Returns:
    float64, of the shape of `weights`.
  """
  weights = np.asarray(weights, np.float64)
  largest = weights.max(initial=0.0) if largest is None else largest
  return np.ldexp(weights, -np.frexp(largest)[1])


def search_weights(cumulative: np.ndarray, fractions: np.ndarray) -> np.ndarray:
  """Returns the indices of the weights that fractions of the sum fall on.

  Args:
    cumulative: the cumulative sums of the weights, `[N]`.
    fractions: fractions of the total, in [0, 1).

  Returns:
    int64 indices; a weight of 0 is never drawn.
  """
  # A product may be rounded up to the total, which is past the last weight.
  total = cumulative[-1]
  return cumulative.searchsorted(
      np.minimum(fractions * total, np.nextafter(total, 0)), 'right'
  )


def to_seed_pair(seed: Seed) -> 'tf.Tensor':
  """Returns a seed for `tf.random.stateless_*`.

  The same numbers give the same seed, whatever their dtype.

  Args:
    seed: an integer `n`, which means the pair `(n, 0)`; or two integers, for
      example a seed and the index of an episode. Each may be a tensor, and so
      may the pair.

  Returns:
    int64 `[2]`.

  Raises:
    ValueError: if `seed` is neither.
  """
  is_pair = isinstance(seed, (tuple, list))
  values: Any = seed if is_pair else [seed]
  if isinstance(seed, numbers.Integral) and not isinstance(seed, bool):
    values, is_pair = (seed, 0), True
  try:
    parts = [tf.convert_to_tensor(value) for value in values]
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


def stateless_uniform(seed: int, *counters: 'tf.Tensor') -> 'tf.Tensor':
  """Returns a random number for each row, as a function of its counters.

  Each counter is a position in a stream of SplitMix64, whose output is the
  state from which the stream of the next counter begins.

  Args:
    seed: an int.
    *counters: int64 `[N]` each, such as the episode and the step of each row.
      Other counters, or more of them, give other numbers.

  Returns:
    float64 `[N]`, in [0, 1).
  """
  bits = mix_tensor_bits(tf.constant((seed + 1) * GOLDEN % 2**64, tf.uint64))
  for counter in counters:
    increments = tf.cast(counter, tf.uint64) + tf.constant(1, tf.uint64)
    bits = mix_tensor_bits(bits + increments * tf.constant(GOLDEN, tf.uint64))
  # A float64 has 53 bits of precision.
  bits = tf.bitwise.right_shift(bits, tf.constant(11, tf.uint64))
  return tf.cast(tf.cast(bits, tf.int64), tf.float64) * 2.0**-53


def mix_tensor_bits(states: 'tf.Tensor') -> 'tf.Tensor':
  """Mixes uint64 tensors as `mix_bits` does, without its last shift.

  Only the high bits, which the last shift does not change, are used.
  """
  for shift, factor in _MIXER:
    states = tf.bitwise.bitwise_xor(
        states, tf.bitwise.right_shift(states, tf.constant(shift, tf.uint64))
    )
    states *= tf.constant(factor, tf.uint64)
  return states
