"""Random slices of trajectories, and random steps of an episode."""

from typing import Any, NamedTuple

import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import errors
from rlds2reverb.episodes import random as random_lib
from rlds2reverb.episodes import rows as rows_lib
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.windows import transitions

RAGGED = 'ragged'
FILLS = (*rows_lib.FILLS, RAGGED)
WEIGHTINGS = ('trajectory', 'window')


class Slices(NamedTuple):
  """The result of `sample_slices`."""

  rows: Any
  mask: tf.Tensor
  trajectory: tf.Tensor
  start: tf.Tensor


def sample_slices(
    rows: Any,
    shape: tuple[int, int],
    seed: random_lib.Seed,
    *,
    strict: bool = True,
    weighting: str = 'trajectory',
    replacement: bool = True,
    fill: str | float = 'zeros',
    span: tuple[int, int] = (0, 0),
) -> Slices:
  """Draws random sub-trajectories, like TorchRL's `SliceSampler`.

  Trajectories of 5 and of 3 rows, with L=3, have these starts, with these
  probabilities:

      rows            0  1  2  3  4    5  6  7
      starts          0  1  2          0          with span=(1, 0) also -1
      "trajectory"    1/6 each         1/2
      "window"        1/4 each         1/4

  This takes a random crop of each episode, as `RandomCropTensorDict` does:

      data.enumerate().map(
          lambda index, episode: sample_slices(
              transition_rows(episode['steps']), (1, 8), (7, index)).rows)

  Args:
    rows: the `FlatRows` of all trajectories, or the `TransitionRows` of one.
    shape: `(S, L)`: the number of slices, and their length.
    seed: an integer, or two of them, as for `tf.random.stateless_uniform`. The
      same seed gives the same slices.
    strict: whether trajectories shorter than `L` are skipped. Otherwise all
      their rows are drawn.
    weighting: `"trajectory"` draws a trajectory, and then one of its starts,
      both uniformly; `"window"` draws uniformly from all starts.
    replacement: whether a trajectory, or with `"window"` a start, can be drawn
      again.
    fill: the values where a slice has no rows: `"zeros"`; `"repeat"`, the
      nearest row; a number, which every field must be able to hold; or
      `"ragged"` for ragged rows without padding.
    span: how many rows a slice may start before its trajectory, and end after
      it; each less than `L`.

  Returns:
    A named tuple of the slices:

    * rows: a nest of `[S, L, ...]`, or of ragged tensors; of `TransitionRows`,
      the dict of their columns.
    * mask: bool `[S, L]`: True where a row is real.
    * trajectory: int64 `[S]`: the index of the trajectory of each slice.
    * start: int64 `[S]`: the row of the trajectory at which the slice starts;
      negative if it starts before its trajectory.

  Raises:
    ValueError: if a number of `shape` is not positive, `span` is not two
      numbers from 0 to `L - 1`, `seed` is not one or two integers, `rows` have
      another type, or another argument is not one of its choices.
    InvalidArgumentError: if there is no slice to draw, or fewer than `S`
      without replacement.
  """
  num_slices, slice_length = shape
  checks.check_positive('num_slices', num_slices)
  checks.check_positive('slice_length', slice_length)
  checks.check_choice('weighting', weighting, WEIGHTINGS)
  rows_lib.check_fill(fill, FILLS)
  seed = random_lib.to_seed_pair(seed)
  left, right = span
  if not all(
      hasattr(edge, '__index__') and 0 <= edge < slice_length for edge in span
  ):
    raise ValueError(
        f'span must be two numbers from 0 to slice_length - 1 ='
        f' {slice_length - 1}, but is {span}.'
    )
  rows, lengths, _ = transitions.FlatRows.of(rows)
  is_long = lengths >= slice_length
  num_starts = tf.where(
      is_long,
      lengths - slice_length + 1 + left + right,
      tf.cast((not strict) & (lengths > 0), tf.int64),
  )
  seeds = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
  if weighting == 'trajectory':
    candidates = tf.where(num_starts > 0)[:, 0]
    trajectory = tf.gather(
        candidates,
        _draw(tf.size(candidates), num_slices, replacement, seeds[0]),
    )
    counts = tf.gather(num_starts, trajectory)
    fractions = tf.random.stateless_uniform(
        tf.shape(counts), seeds[1], dtype=tf.float64
    )
    start = tf.cast(fractions * tf.cast(counts, tf.float64), tf.int64)
    start = tf.ensure_shape(start, [num_slices])
  else:
    ends = tf.cumsum(num_starts)
    drawn = _draw(tf.reduce_sum(num_starts), num_slices, replacement, seeds[0])
    trajectory = tf.searchsorted(ends, drawn, side='right', out_type=tf.int64)
    start = drawn - tf.gather(ends - num_starts, trajectory)
  start -= tf.where(tf.gather(is_long, trajectory), tf.cast(left, tf.int64), 0)
  first_row = tf.gather(tf.cumsum(lengths, exclusive=True), trajectory)
  sliced, mask = windows_lib.take_windows(
      rows,
      first_row + start,
      slice_length,
      first_row + tf.gather(lengths, trajectory),
      fill='repeat' if fill == RAGGED else fill,
      start=first_row,
  )
  if fill == RAGGED:
    row_lengths = tf.math.count_nonzero(mask, 1)
    sliced = tf.nest.map_structure(
        lambda leaf: tf.RaggedTensor.from_row_lengths(leaf[mask], row_lengths),
        sliced,
    )
  return Slices(sliced, mask, trajectory, start)


def _draw(population, count, replacement, seed):
  """Returns random numbers in `[0, population)`, int64 `[count]`."""
  population = tf.cast(population, tf.int64)
  population = errors.assert_true(
      population,
      population >= (1 if replacement else count),
      'There are not enough slices to draw: choose a shorter slice_length,'
      ' strict=False, or fewer slices without replacement. There are',
      population,
  )
  if replacement:
    return tf.random.stateless_uniform(
        [count], seed, 0, population, dtype=tf.int64
    )
  shuffled = tf.random.experimental.stateless_shuffle(
      tf.range(population), seed
  )
  return tf.ensure_shape(shuffled[:count], [count])


def draw_steps(steps: Any, num_steps: int, seed: random_lib.Seed) -> Any:
  """Draws steps of one episode without replacement, in a random order.

  This is `subsample_length` of Octo and OpenVLA. Call it after the windows of
  each step were made, so that long episodes do not fill a shuffle buffer. The
  result is no longer an episode. `enumerate` gives a seed to each episode:

      data.enumerate().map(
          lambda index, episode: draw_steps(episode['steps'], 100, (7, index)))

  Args:
    steps: the steps of one episode, a nested data set or stacked `[T, ...]`.
    num_steps: the number of steps to draw. A shorter episode keeps all, in
      order.
    seed: an integer, or two of them, as for `tf.random.stateless_uniform`.

  Returns:
    The steps, stacked; no step occurs twice.

  Raises:
    ValueError: if `num_steps` is not positive, or `seed` is not one or two
      integers.
    InvalidArgumentError: if fields differ in length.
  """
  checks.check_positive('num_steps', num_steps)
  seed = random_lib.to_seed_pair(seed)
  steps = transitions.stack_dict(steps)
  length = rows_lib.num_rows(steps)
  order = tf.argsort(tf.random.stateless_uniform([length], seed))
  order = tf.where(
      length > num_steps, tf.cast(order, tf.int64), tf.range(length)
  )
  return rows_lib.take(steps, order[:num_steps])
