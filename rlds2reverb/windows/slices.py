"""Random slices of trajectories, crops of episodes, and padded trajectories.

Here many trajectories are one nest of rows `[N, ...]`, one after the other, as
TorchRL stores them. `join_transitions` makes such rows; the lengths of the
trajectories, their ids, or flags at their ends tell where each one ends.
"""

from typing import Any, Dict, NamedTuple, Optional, Tuple, Union

import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import gathering
from rlds2reverb.episodes import seeds as seeds_lib
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.windows import flat_rows
from rlds2reverb.windows import transitions

RAGGED = 'ragged'
FILLS = (*gathering.FILLS, RAGGED)
WEIGHTINGS = ('trajectory', 'window')


class Slices(NamedTuple):
  """Sub-trajectories.

  Attributes:
    rows: a nest of `[S, L, ...]`, or of ragged tensors; of `TransitionRows`,
      the dict of their columns.
    mask: bool `[S, L]`: True where a row is real.
    trajectory: int64 `[S]`: which trajectory each is of.
    start: int64 `[S]`: which of its rows the slice starts at. It is negative
      where the slice starts before its trajectory.
  """

  rows: Any
  mask: tf.Tensor
  trajectory: tf.Tensor
  start: tf.Tensor


def join_transitions(
    rlds_data: tf.data.Dataset,
) -> Tuple[Dict[str, Any], tf.Tensor]:
  """Reads the transitions of all episodes into one nest, in memory.

  Args:
    rlds_data: an RLDS data set, or a data set of the `TransitionRows` of one
      episode each.

  Returns:
    The columns of the rows, every leaf `[N, ...]`, and the lengths of the
    episodes, int64 `[E]`. Episodes without transitions have a length of 0.

  Raises:
    ValueError: if the elements are neither episodes nor rows.
    InvalidArgumentError: if fields or columns differ in length.
  """
  # Rows and lengths must be those of one pass: a data set may be shuffled anew
  # at the next. The first reads all of it into the cache.
  per_episode = rlds_data.map(
      lambda episode: transitions.rows_of_element(episode).columns
  ).cache()
  joined = per_episode.rebatch(tf.int64.max)
  # A data set without rows gives no batch.
  nothing = tf.data.Dataset.from_tensors(steps_lib.zeros(joined.element_spec))
  rows = joined.concatenate(nothing).take(1).get_single_element()
  with tf.control_dependencies(tf.nest.flatten(rows)):
    lengths = per_episode.map(gathering.num_rows).batch(tf.int64.max)
    no_lengths = tf.data.Dataset.from_tensors(tf.zeros([0], tf.int64))
    return rows, lengths.concatenate(no_lengths).take(1).get_single_element()


def sample_slices(
    rows: Any,
    num_slices: int,
    slice_length: int,
    seed: seeds_lib.Seed,
    *,
    lengths: Optional[Any] = None,
    episode_ids: Optional[Any] = None,
    is_last: Optional[Any] = None,
    strict: bool = True,
    weighting: str = 'trajectory',
    replacement: bool = True,
    fill: Union[str, float] = 'zeros',
    span: Tuple[int, int] = (0, 0),
    time_major: bool = False,
) -> Slices:
  """Draws random sub-trajectories.

  After TorchRL's `SliceSampler`. Trajectories of 5 and of 3 rows, L=3:

      rows            0  1  2  3  4    5  6  7
      starts          0  1  2          0          with span=(1, 0) also -1
      "trajectory"    1/6 each         1/2
      "window"        1/4 each         1/4

  Just one of `lengths`, `episode_ids` and `is_last` says where trajectories
  end.

  Args:
    rows: the rows of all trajectories, a nest of `[N, ...]`, tensors, arrays or
      lists; or the `TransitionRows` of one episode, which need none of the
      three. Tensors cost least: arrays are copied at each call, and are a part
      of the graph of a function that is mapped over a data set.
    num_slices: `S`, how many are drawn.
    slice_length: `L`.
    seed: an integer, or two of them, as for `tf.random.stateless_uniform`. The
      same seed gives the same slices.
    lengths: integers `[E]` whose sum is `N`.
    episode_ids: `[N]`, whatever tells a trajectory from the next; or `[N, k]`.
    is_last: bool `[N]`: whether a trajectory ends with the row.
    strict: whether trajectories shorter than `L` are left out. Else they are
      drawn whole.
    weighting: `"trajectory"` draws a trajectory, each as likely, then one of
      its starts, each as likely; `"window"` draws one of all starts.
    replacement: whether what was drawn can be drawn again: a trajectory, or
      with `"window"` a start.
    fill: what stands where a slice has no rows: `"zeros"`; `"repeat"`, the
      nearest row; a number, which every field must be able to hold; or
      `"ragged"`, nothing: then the rows are ragged.
    span: how many rows a slice may start before its trajectory, and end after
      it; each less than `L`.
    time_major: whether rows and mask are `[L, S, ...]`.

  Returns:
    The `Slices`.

  Raises:
    ValueError: if `num_slices` or `slice_length` is not positive, `span` is not
      two numbers from 0 to `L - 1`, `seed` is not one or two integers, not just
      one argument says where trajectories end, `lengths` are not integers, the
      rows are not of one number in all fields, ragged rows are to be time-
      major, or another argument is not one of its choices.
    InvalidArgumentError: if there is nothing to draw, less than `num_slices`
      without replacement, a length is negative, or the lengths do not add up to
      the rows.
  """
  checks.check_positive('num_slices', num_slices)
  checks.check_positive('slice_length', slice_length)
  checks.check_choice('weighting', weighting, WEIGHTINGS)
  if isinstance(fill, str):
    checks.check_choice('fill', fill, FILLS)
  else:
    gathering.check_fill(fill)
  if time_major and fill == RAGGED:
    raise ValueError('Ragged rows cannot be time-major: choose another fill.')
  seed = seeds_lib.to_pair(seed)
  left, right = span
  if not all(
      hasattr(edge, '__index__') and 0 <= edge < slice_length for edge in span
  ):
    raise ValueError(
        f'span must be two numbers from 0 to slice_length - 1 ='
        f' {slice_length - 1}, but is {span}.'
    )
  rows, _, lengths = flat_rows.flat_rows(
      rows, lengths=lengths, episode_ids=episode_ids, is_last=is_last
  )
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
    start = _uniform(tf.gather(num_starts, trajectory), seeds[1])
  else:
    ends = tf.cumsum(num_starts)
    drawn = _draw(tf.reduce_sum(num_starts), num_slices, replacement, seeds[0])
    trajectory = tf.searchsorted(ends, drawn, side='right', out_type=tf.int64)
    start = drawn - tf.gather(ends - num_starts, trajectory)
  start -= tf.where(tf.gather(is_long, trajectory), tf.cast(left, tf.int64), 0)
  slices = _cut(rows, lengths, trajectory, start, slice_length, fill)
  if time_major:
    swapped = gathering.swap_time((slices.rows, slices.mask))
    return slices._replace(rows=swapped[0], mask=swapped[1])
  return slices


def pad_trajectories(
    rows: Any,
    max_length: Optional[int] = None,
    *,
    lengths: Optional[Any] = None,
    episode_ids: Optional[Any] = None,
    is_last: Optional[Any] = None,
    time_major: bool = False,
) -> Tuple[Any, tf.Tensor]:
  """Lays trajectories side by side, with zeros on the right.

  As TorchRL's `split_trajectories`. Trajectories of 3 and of 2 rows:

      a b c        mask    T T T
      d e 0                T T F

  Just one of `lengths`, `episode_ids` and `is_last` says where trajectories
  end.

  Args:
    rows: the rows of all trajectories, a nest of `[N, ...]`, tensors, arrays or
      lists; or the `TransitionRows` of one episode, which need none of the
      three.
    max_length: the length of the rows returned. By default that of the longest.
    lengths: integers `[E]` whose sum is `N`.
    episode_ids: `[N]`, whatever tells a trajectory from the next; or `[N, k]`.
    is_last: bool `[N]`: whether a trajectory ends with the row.
    time_major: whether rows and mask are `[max_length, E, ...]`.

  Returns:
    A nest of `[E, max_length, ...]`, and a mask, bool `[E, max_length]`. Of
    `TransitionRows` the nest is the dict of their columns.

  Raises:
    ValueError: if `max_length` is not positive, not just one argument says
      where trajectories end, `lengths` are not integers, or the rows are not of
      one number in all fields.
    InvalidArgumentError: if a trajectory is longer than `max_length`, a length
      is negative, or the lengths do not add up to the rows.
  """
  if max_length is not None:
    checks.check_positive('max_length', max_length)
  rows, _, lengths = flat_rows.flat_rows(
      rows, lengths=lengths, episode_ids=episode_ids, is_last=is_last
  )
  if max_length is None:
    max_length = tf.reduce_max(tf.concat([[0], lengths], 0))
  else:
    tf.debugging.assert_less_equal(
        lengths,
        tf.constant(max_length, tf.int64),
        'A trajectory is longer than max_length. Choose a larger max_length.',
    )
  starts = tf.cumsum(lengths, exclusive=True)
  index = windows_lib.window_index(starts, max_length)
  mask = index < (starts + lengths)[:, tf.newaxis]
  index = tf.where(mask, index, -1)
  padded = gathering.take_filled(rows, index, gathering.num_rows(rows)), mask
  return gathering.swap_time(padded) if time_major else padded


def draw_steps(steps: Any, num_steps: int, seed: seeds_lib.Seed) -> Any:
  """Returns some steps of one episode, or all, in a random order.

  As `subsample_length` of Octo and OpenVLA, after the windows of each step were
  made: so long episodes do not fill a shuffle buffer. What comes out is no
  episode any more. In a data set, enumerate for a seed for each episode:

      data.enumerate().map(
          lambda index, episode: draw_steps(episode['steps'], 100, (7, index)))

  Args:
    steps: the steps of one episode, a nested data set or stacked `[T, ...]`.
    num_steps: how many are drawn of an episode that has more. Another one stays
      as it is.
    seed: an integer, or two of them, as for `tf.random.stateless_uniform`.

  Returns:
    The steps, stacked; no step comes twice.

  Raises:
    ValueError: if `num_steps` is not positive, or `seed` is not one or two
      integers.
    InvalidArgumentError: if fields differ in length.
  """
  checks.check_positive('num_steps', num_steps)
  seed = seeds_lib.to_pair(seed)
  steps = transitions.stack_dict(steps)
  length = gathering.num_rows(steps)
  order = tf.argsort(tf.random.stateless_uniform([length], seed))
  order = tf.where(
      length > num_steps, tf.cast(order, tf.int64), tf.range(length)
  )
  return gathering.take(steps, order[:num_steps])


def random_crop(
    episode: Any, crop_length: int, seed: seeds_lib.Seed
) -> transitions.TransitionRows:
  """Returns consecutive transitions of one episode, from a random start.

  As TorchRL's `RandomCropTensorDict`: every start from 0 to `T - crop_length`
  is as likely. In a data set, enumerate for a seed for each episode:

      data.enumerate().map(
          lambda index, episode: random_crop(episode['steps'], 8, (7, index)))

  Args:
    episode: the `TransitionRows` of one episode, or its steps, a nested data
      set or stacked `[T + 1, ...]` tensors.
    crop_length: how many transitions.
    seed: an integer, or two of them, as for `tf.random.stateless_uniform`.

  Returns:
    The `TransitionRows`, every leaf `[crop_length, ...]`.

  Raises:
    ValueError: if `crop_length` is not positive, `seed` is not one or two
      integers, or `episode` is neither rows nor steps.
    InvalidArgumentError: if the episode has fewer transitions, or fields or
      columns differ in length.
  """
  checks.check_positive('crop_length', crop_length)
  seed = seeds_lib.to_pair(seed)
  rows = transitions.as_rows(episode)
  length = gathering.num_rows(rows)
  with tf.control_dependencies(
      [
          tf.debugging.assert_greater_equal(
              length,
              tf.constant(crop_length, tf.int64),
              'An episode has fewer transitions than'
              f' crop_length={crop_length}.',
          )
      ]
  ):
    start = _uniform(length[tf.newaxis] - crop_length + 1, seed)
  crop = gathering.take(rows, windows_lib.window_index(start, crop_length))
  return tf.nest.map_structure(lambda leaf: tf.squeeze(leaf, 0), crop)


def _cut(rows, lengths, trajectory, start, length, fill) -> Slices:
  """Returns the slices of `length` rows that start at `start` [S]."""
  offset = tf.gather(tf.cumsum(lengths, exclusive=True), trajectory)
  own_length = tf.gather(lengths, trajectory)[:, tf.newaxis]
  index = windows_lib.window_index(start, length)
  mask = gathering.is_inside(index, own_length)
  index = tf.clip_by_value(index, 0, tf.maximum(own_length - 1, 0))
  index += offset[:, tf.newaxis]
  if fill == 'repeat':
    sliced = gathering.take(rows, index)
    return Slices(sliced, mask, trajectory, start)
  real = gathering.take(rows, index[mask])
  counts = tf.reduce_sum(tf.cast(mask, tf.int64), axis=1)
  if fill == RAGGED:
    sliced = tf.nest.map_structure(
        lambda leaf: tf.RaggedTensor.from_row_lengths(leaf, counts), real
    )
  else:
    # Only the rows that were drawn are filled: they are few beside all.
    place = tf.cumsum(tf.cast(tf.reshape(mask, [-1]), tf.int64)) - 1
    place = tf.where(mask, tf.reshape(place, tf.shape(mask)), -1)
    sliced = gathering.take_filled(
        real, place, gathering.num_rows(real), before=fill, after=fill
    )
  return Slices(sliced, mask, trajectory, start)


def _draw(population, count, replacement, seed):
  """Returns, int64 `[count]`, numbers in `[0, population)`."""
  population = tf.cast(population, tf.int64)
  needed = tf.constant(1 if replacement else count, tf.int64)
  with tf.control_dependencies(
      [
          tf.debugging.assert_greater_equal(
              population,
              needed,
              'There are not enough slices to draw: choose a shorter'
              ' slice_length, strict=False, or fewer slices without'
              ' replacement.',
          )
      ]
  ):
    population = tf.identity(population)
  if replacement:
    return tf.random.stateless_uniform(
        [count], seed, 0, population, dtype=tf.int64
    )
  shuffled = tf.random.experimental.stateless_shuffle(
      tf.range(population), seed
  )
  return tf.ensure_shape(shuffled[:count], [count])


def _uniform(populations, seed):
  """Returns, int64, a number in `[0, population)` for each of a vector."""
  fraction = tf.random.stateless_uniform(
      tf.shape(populations), seed, dtype=tf.float64
  )
  number = tf.cast(fraction * tf.cast(populations, tf.float64), tf.int64)
  return tf.ensure_shape(number, populations.shape)
