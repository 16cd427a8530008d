"""Converts RLDS episodes to sequences: windows of frames of one length."""

import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import pipelines
from rlds2reverb.episodes import rows as rows_lib
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.trajectories import conversion
from rlds2reverb.trajectories import options as options_lib

_BATCH_BYTES = 8 << 20


@options_lib.takes_options
def convert_rlds_to_sequences(
    rlds_data: tf.data.Dataset,
    windows: windows_lib.Windows,
    *,
    options: options_lib.ConversionOptions | None = None,
    batched: bool = False,
    max_batch_size: int | None = None,
    with_mask: bool = False,
) -> tf.data.Dataset:
  """Converts RLDS data to sequences of TF-Agents trajectories.

  A sequence is a window of consecutive frames of
  `convert_rlds_to_trajectories`; `Windows` illustrates the ends of episodes. A
  row of padding is a boundary frame of zeros, whose step type is LAST and whose
  next step type is FIRST.

  TF-Agents' `ReverbAddTrajectoryObserver` writes the sequences of `"drop"`, of
  `"pad"` (with `pad_end_of_episodes`) and of `"tile"` (with
  `tile_end_of_episodes`). Its `ReverbTrajectorySequenceObserver` writes those
  of `"cross"`.

  Memory is bounded, whatever the length of episodes.

  Args:
    rlds_data: see `convert_rlds_to_trajectories`.
    windows: the sequences to cut, with any end.
    options: how the data is converted. They need `validation="strict"`.
    batched: whether an element holds many sequences, which is many times
      faster.
    max_batch_size: the maximum number of sequences in a batched element. By
      default, as many as make about 8 MiB.
    with_mask: whether an element is a pair of a sequence and its mask.

  Returns:
    A data set of `Trajectory`s whose leaves are `[L, ...]`; or, batched,
    `[W, L, ...]`, where `W` is between 1 and `max_batch_size`. With masks, of
    pairs of a `Trajectory` and a mask, bool `[L]` or `[W, L]`, which is False
    where a frame was filled in.

  Raises:
    ValueError: if `windows` are not `Windows`, if `max_batch_size` is not
      positive, if the validation is not `"strict"`, and as
      `convert_rlds_to_trajectories` does.
    InvalidArgumentError: while iterating, if an episode is invalid.
  """
  windows_lib.check_windows(windows)
  options = options_lib.complete(options)
  validation = options.rules.validation
  if validation != 'strict':
    raise ValueError(
        'Sequences are cut from complete episodes, so they need'
        f' validation="strict", but it is "{validation}".'
    )
  blocks = conversion.trajectory_blocks(rlds_data, options)
  if max_batch_size is None:
    frame = steps_lib.unstack_spec(blocks.element_spec.frames)
    max_batch_size = steps_lib.default_block_length(
        frame, _BATCH_BYTES // windows.length
    )
  checks.check_positive('max_batch_size', max_batch_size)

  def split(frames, starts, stops):
    return pipelines.pair_each(
        tf.data.Dataset.range(0, tf.size(starts, tf.int64), max_batch_size),
        (frames, starts, stops),
    )

  def take(first, sequences):
    frames, *bounds = sequences
    starts, stops = rows_lib.slice_rows(bounds, first, first + max_batch_size)
    batch, mask = _take_sequences(windows, frames, starts, stops)
    return (batch, mask) if with_mask else batch

  parts = pipelines.flat_map(_find_sequences(windows, blocks), split)
  batches = pipelines.map_elements(parts, take)
  return batches if batched else batches.unbatch()


def _find_sequences(windows, blocks) -> tf.data.Dataset:
  """Finds the sequences of `FrameBlock`s of complete episodes.

  Returns:
    A data set of frames `[M, ...]`; the start frame of each sequence, int64
    `[W]`; and the end of its episode, int64 `[W]`.
  """

  def find(block):
    splits = block.row_splits
    episode, start = windows.find(splits[1:] - splits[:-1])
    starts = tf.gather(splits, episode) + start
    return block.frames, starts, tf.gather(splits, episode + 1)

  def find_across(state, block):
    """Carries over the frames that later sequences need."""
    carried, num_seen = state
    num_carried = rows_lib.num_rows(carried)
    # A concatenation copies the block, so it is avoided if possible.
    frames = tf.cond(
        num_carried > 0,
        lambda: rows_lib.concat_rows(carried, block.frames),
        lambda: block.frames,
    )
    begin = num_seen - num_carried
    end = begin + rows_lib.num_rows(frames)
    starts = windows.find(end[tf.newaxis], num_seen).start - begin
    # The next sequence may start after the last frame so far.
    first = tf.minimum(windows.first_start(end), end) - begin
    carried = tf.nest.map_structure(lambda leaf: leaf[first:], frames)
    stops = tf.fill(tf.shape(starts), end - begin)
    return (carried, end), (frames, starts, stops)

  if not windows.crosses_episodes:
    return pipelines.map_elements(blocks, find)
  state = blocks.element_spec.frames, tf.TensorSpec([], tf.int64)
  return pipelines.scan(blocks, steps_lib.zeros(state), find_across, state)


def _take_sequences(windows, frames, starts, stops):
  """Returns sequences `[W, L, ...]`, and the mask of their real frames."""
  index = windows_lib.window_index(starts, windows.length)
  stops = stops[:, tf.newaxis]
  is_real = index < stops
  sequences = rows_lib.take(frames, tf.minimum(index, stops - 1))

  def pad():
    """Pads with boundary frames, as TF-Agents' observers do."""
    padded = rows_lib.fill_unless(is_real, sequences)
    last, first = ts.StepType.LAST, ts.StepType.FIRST
    return padded._replace(
        step_type=tf.where(is_real, padded.step_type, last),
        next_step_type=tf.where(is_real, padded.next_step_type, first),
    )

  if windows.pads_episodes and windows.fill == 'zeros':
    sequences = tf.cond(tf.reduce_all(is_real), lambda: sequences, pad)
  return sequences, is_real
