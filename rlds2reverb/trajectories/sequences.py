"""Converts RLDS episodes to sequences: windows of frames, of one length."""

from typing import Optional

import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from rlds2reverb.episodes import blocks
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import gathering
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import stacked_steps
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
    options: Optional[options_lib.ConversionOptions] = None,
    batched: bool = False,
    max_batch_size: Optional[int] = None,
    with_mask: bool = False,
) -> tf.data.Dataset:
  """Converts RLDS data to sequences of TF-Agents trajectories.

  A sequence is a window of consecutive frames of
  `convert_rlds_to_trajectories`; `Windows` draws what each end of an episode
  looks like. A row of padding is a boundary frame of zeros, whose step type is
  LAST and whose next step type is FIRST.

  TF-Agents' `ReverbAddTrajectoryObserver` writes the sequences of `"drop"`, of
  `"pad"` (with `pad_end_of_episodes`) and of `"tile"` (with
  `tile_end_of_episodes`). Its `ReverbTrajectorySequenceObserver` writes those
  of `"cross"`.

  Memory is bounded, however long an episode is.

  Args:
    rlds_data: see `convert_rlds_to_trajectories`.
    windows: which sequences are cut, with any end.
    options: how the data is converted. Their rules must validate strictly.
    batched: whether an element holds many sequences, which is many times
      faster.
    max_batch_size: the largest number of sequences in an element that holds
      many. By default, as many as make about 8 MiB.
    with_mask: whether an element is a pair of a sequence and its mask.

  Returns:
    A data set of `Trajectory`s whose leaves are `[L, ...]`; or, batched,
    `[W, L, ...]`, where `W` is between 1 and `max_batch_size`. With masks, of
    pairs of a `Trajectory` and a mask, bool `[L]` or `[W, L]`, which is False
    where a frame was filled in.

  Raises:
    ValueError: if `windows` are no `Windows`, if `max_batch_size` is not
      positive, if the rules do not validate strictly, and as
      `convert_rlds_to_trajectories` does.
    InvalidArgumentError: while iterating, if an episode is invalid.
  """
  windows_lib.check_windows(windows)
  options = options_lib.complete(options)
  validation = options.rules.validation
  if validation != 'strict':
    raise ValueError(
        'Sequences are cut from whole episodes, so sequences need'
        f' validation="strict", but it is "{validation}".'
    )
  frames = conversion.trajectory_blocks(rlds_data, options)
  if max_batch_size is None:
    frame = steps_lib.without_time(frames.element_spec.frames)
    max_batch_size = blocks.default_block_length(
        frame, _BATCH_BYTES // windows.length
    )
  checks.check_positive('max_batch_size', max_batch_size)

  def split(frames, starts, stops):
    return graphs.with_each(
        tf.data.Dataset.range(0, tf.size(starts, tf.int64), max_batch_size),
        (frames, starts, stops),
    )

  def take(first, found):
    frames, *places = found
    starts, stops = stacked_steps.rows_of(places, first, first + max_batch_size)
    sequences, is_real = _take(windows, frames, starts, stops)
    return (sequences, is_real) if with_mask else sequences

  parts = graphs.flat_map(_find(windows, frames), split)
  batches = graphs.map_elements(parts, take)
  return batches if batched else batches.unbatch()


def _find(windows, blocks_of_frames) -> tf.data.Dataset:
  """Finds the sequences of `FrameBlock`s, which are whole.

  Returns:
    A data set of frames `[M, ...]`; and, int64 `[W]` each, of the frame at
    which each sequence starts, and of the one before which its episode ends.
  """

  def find(block):
    splits = block.row_splits
    episode, start = windows.find(splits[1:] - splits[:-1])
    starts = tf.gather(splits, episode) + start
    return block.frames, starts, tf.gather(splits, episode + 1)

  def find_across(held, block):
    """Holds the frames of the blocks so far that sequences still need."""
    frames, seen = held
    num_held = gathering.num_rows(frames)
    # A concatenation copies the block, so it is done only if frames are held.
    frames = tf.cond(
        num_held > 0,
        lambda: blocks.concat(frames, block.frames),
        lambda: block.frames,
    )
    begin = seen - num_held
    end = begin + gathering.num_rows(frames)
    starts = windows.find(end[tf.newaxis], seen).start - begin
    # The next sequence may begin after the last frame so far.
    first = tf.minimum(windows.first_start(end), end) - begin
    kept = tf.nest.map_structure(lambda leaf: leaf[first:], frames)
    stops = tf.fill(tf.shape(starts), end - begin)
    return (kept, end), (frames, starts, stops)

  if not windows.crosses_episodes:
    return graphs.map_elements(blocks_of_frames, find)
  held = blocks_of_frames.element_spec.frames, tf.TensorSpec([], tf.int64)
  return graphs.scan(blocks_of_frames, steps_lib.zeros(held), find_across, held)


def _take(windows, frames, starts, stops):
  """Returns sequences `[W, L, ...]`, and which of their frames are real."""
  index = windows_lib.window_index(starts, windows.length)
  stops = stops[:, tf.newaxis]
  is_real = index < stops
  sequences = gathering.take(frames, tf.minimum(index, stops - 1))

  def with_boundaries():
    """Pads with boundary frames, as TF-Agents' observers do."""
    padded = gathering.fill_unless(is_real, sequences)
    last, first = ts.StepType.LAST, ts.StepType.FIRST
    return padded._replace(
        step_type=tf.where(is_real, padded.step_type, last),
        next_step_type=tf.where(is_real, padded.next_step_type, first),
    )

  if windows.pads_episodes and windows.fill == 'zeros':
    sequences = tf.cond(
        tf.reduce_all(is_real), lambda: sequences, with_boundaries
    )
  return sequences, is_real
