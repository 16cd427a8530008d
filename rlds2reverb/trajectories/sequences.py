"""Converts RLDS episodes to sequences: windows of frames, of one length."""

from typing import Any, NamedTuple, Optional

import tensorflow as tf
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from rlds2reverb.episodes import blocks
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import gathering
from rlds2reverb.episodes import graphs
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
  """Frames, and the starts of the sequences to be taken from them.

  Attributes:
    frames: a `Trajectory` `[M, ...]`, with the frames that are filled in after
      the ends of episodes.
    is_real: bool `[M]`: which frames were not filled in.
    starts: int64 `[W]`: the index of the first frame of each sequence, in
      ascending order.
  """

  frames: trajectory.Trajectory
  is_real: tf.Tensor
  starts: tf.Tensor


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
    starts = cut.starts[first : first + max_batch_size]
    sequences = gathering.take_windows(
        cut.frames, starts, windows.length, windows.stride
    )
    if not with_mask:
      return sequences
    index = windows_lib.window_index(starts, windows.length)
    return sequences, tf.gather(cut.is_real, index)

  return graphs.map_elements(graphs.flat_map(cuts, split), take)


def _cuts(frames, windows):
  """Returns a data set of the `_Cut`s of `FrameBlock`s, which are whole."""
  if not windows.crosses_episodes:
    return graphs.map_elements(frames, lambda block: _cut_whole(windows, block))
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
  is_real = tf.ones([seen - begin], tf.bool)
  return _Held(kept, seen), _Cut(frames, is_real, found.start - begin)


def _cut_whole(windows, block) -> _Cut:
  """Finds the sequences of whole episodes, and fills frames in."""
  splits = block.row_splits
  lengths = splits[1:] - splits[:-1]
  found = windows.find(lengths)
  frames, begins = block.frames, splits[:-1]
  is_real = tf.ones([splits[-1]], tf.bool)
  if windows.pads_episodes:
    num_filled = windows.padding(lengths)
    frames, is_real, begins = tf.cond(
        tf.reduce_any(num_filled > 0),
        lambda: _fill(frames, splits, num_filled, windows.fill),
        lambda: (frames, is_real, begins),
    )
  return _Cut(frames, is_real, tf.gather(begins, found.episode) + found.start)


def _fill(frames, splits, num_filled, fill):
  """Fills frames in after the ends of episodes.

  Args:
    frames: a `Trajectory` `[N, ...]`.
    splits: int64 `[E + 1]`: where the frames of each episode begin and end.
    num_filled: int64 `[E]`: how many frames are filled in after each episode.
    fill: `"repeat"` repeats the last frame of the episode; `"zeros"` fills
      boundary frames in.

  Returns:
    The frames, `[M, ...]`; bool `[M]`, which of them were not filled in; and
    int64 `[E]`, where each episode begins now.
  """
  begins, ends = splits[:-1], splits[1:]
  episode, index = windows_lib.ranges(begins, ends - begins + num_filled, 1)
  stop = tf.gather(ends, episode)
  is_real = index < stop
  if fill == 'repeat':
    index = tf.minimum(index, stop - 1)
  else:
    index = tf.where(is_real, index, splits[-1])
    frames = blocks.concat(frames, _boundary(frames))
  begins += tf.cumsum(num_filled, exclusive=True)
  return gathering.take(frames, index), is_real, begins


def _boundary(frames: Any) -> trajectory.Trajectory:
  """Returns the boundary frame `[1, ...]`, as TF-Agents' observers pad with."""
  zeros = tf.nest.map_structure(lambda leaf: tf.zeros_like(leaf[:1]), frames)
  return zeros._replace(
      step_type=tf.fill([1], ts.StepType.LAST),
      next_step_type=tf.fill([1], ts.StepType.FIRST),
  )
