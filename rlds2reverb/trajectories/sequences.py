"""Converts RLDS episodes to sequences: windows of frames, of one length."""

from typing import NamedTuple, Optional

import tensorflow as tf
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

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


class _Held(NamedTuple):
  """Frames of the blocks so far that sequences across episodes still need.

  Attributes:
    frames: a `Trajectory` of the last frames so far, `[C, ...]`.
    seen: int64 `[]`: how many frames there were so far.
  """

  frames: trajectory.Trajectory
  seen: tf.Tensor


class _Cut(NamedTuple):
  """Frames, and where sequences are cut from them.

  Attributes:
    frames: a `Trajectory` `[M, ...]`.
    starts: int64 `[W]`: the index of the first frame of each sequence.
    stops: int64 `[W]`: the index of the frame before which its episode ends.
  """

  frames: trajectory.Trajectory
  starts: tf.Tensor
  stops: tf.Tensor


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
  spec = frames.element_spec.frames
  if max_batch_size is None:
    max_batch_size = blocks.default_block_length(
        tf.nest.map_structure(
            lambda leaf: tf.TensorSpec(
                [windows.length] + leaf.shape[1:], leaf.dtype
            ),
            spec,
        ),
        _BATCH_BYTES,
    )
  checks.check_positive('max_batch_size', max_batch_size)
  batches = _take_sequences(
      _cuts(frames, windows), windows, max_batch_size, with_mask
  )
  return batches if batched else batches.unbatch()


def _take_sequences(cuts, windows, max_batch_size, with_mask):
  """Returns batches of the sequences of a data set of `_Cut`s."""

  def split(cut):
    return graphs.with_each(
        tf.data.Dataset.range(0, tf.size(cut.starts, tf.int64), max_batch_size),
        cut,
    )

  def take(first, cut):
    starts, stops = stacked_steps.rows_of(
        (cut.starts, cut.stops), first, first + max_batch_size
    )
    index = windows_lib.window_index(starts, windows.length)
    stops = stops[:, tf.newaxis]
    is_real = index < stops
    sequences = gathering.take(cut.frames, tf.minimum(index, stops - 1))
    if windows.pads_episodes and windows.fill == 'zeros':
      sequences = tf.cond(
          tf.reduce_all(is_real),
          lambda: sequences,
          lambda: _with_boundaries(sequences, is_real),
      )
    return (sequences, is_real) if with_mask else sequences

  return graphs.map_elements(graphs.flat_map(cuts, split), take)


def _with_boundaries(sequences, is_real) -> trajectory.Trajectory:
  """Puts boundary frames, with which TF-Agents' observers pad, elsewhere."""
  padded = gathering.fill_unless(is_real, sequences)
  return padded._replace(
      step_type=tf.where(is_real, padded.step_type, ts.StepType.LAST),
      next_step_type=tf.where(
          is_real, padded.next_step_type, ts.StepType.FIRST
      ),
  )


def _cuts(frames, windows):
  """Returns a data set of the `_Cut`s of `FrameBlock`s, which are whole."""

  def cut(block):
    splits = block.row_splits
    found = windows.find(splits[1:] - splits[:-1])
    starts = tf.gather(splits, found.episode) + found.start
    return _Cut(block.frames, starts, tf.gather(splits, found.episode + 1))

  if not windows.crosses_episodes:
    return graphs.map_elements(frames, cut)
  spec = frames.element_spec.frames
  held = _Held(spec, tf.TensorSpec([], tf.int64))
  return graphs.scan(
      frames,
      steps_lib.zeros(held),
      lambda held, block: _cut_with_held(windows, held, block),
      held,
  )


def _cut_with_held(windows, held, block):
  """Cuts the sequences across episodes that one more block makes complete.

  Returns:
    The `_Held` frames for the next block, and the `_Cut`.
  """
  num_held = gathering.num_rows(held.frames)
  # A concatenation copies the block, so it is done only if frames are held.
  frames = tf.cond(
      num_held > 0,
      lambda: blocks.concat(held.frames, block.frames),
      lambda: block.frames,
  )
  begin = held.seen - num_held
  seen = begin + gathering.num_rows(frames)
  found = windows.find(seen[tf.newaxis], held.seen)
  # The next sequence may begin after the last frame so far.
  first = tf.minimum(windows.first_start(seen), seen) - begin
  kept = tf.nest.map_structure(lambda leaf: leaf[first:], frames)
  starts = found.start - begin
  stops = tf.fill(tf.shape(starts), seen - begin)
  return _Held(kept, seen), _Cut(frames, starts, stops)
