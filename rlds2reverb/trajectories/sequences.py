"""RLDS episodes to sequences: windows of a fixed length on their frames."""

import functools
from typing import Any, NamedTuple, Optional, Union

import tensorflow as tf
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from rlds2reverb.episodes import blocks
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import ends as ends_lib
from rlds2reverb.episodes import gathering
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.trajectories import conversion
from rlds2reverb.trajectories import report as report_lib
from rlds2reverb.trajectories import rules as rules_lib
from rlds2reverb.trajectories import specs

_BATCH_BYTES = 8 << 20

_End = ends_lib.EndOfEpisode


class _Held(NamedTuple):
  """The frames that the next sequences may still need.

  Attributes:
    frames: a `Trajectory` of the last frames seen, `[C, ...]`.
    start: int64 `[]`: where the next sequence starts, as an index to `frames`;
      it may lie beyond them.
  """

  frames: trajectory.Trajectory
  start: tf.Tensor


class _Cut(NamedTuple):
  """Frames, and where sequences start in them.

  Attributes:
    frames: a `Trajectory` `[M, ...]`, with one more frame where there is one to
      pad with. Beyond them the last one is repeated.
    num_real: int64 `[]`: `M`.
    starts: int64 `[W]`.
  """

  frames: trajectory.Trajectory
  num_real: tf.Tensor
  starts: tf.Tensor


def convert_rlds_to_sequences(
    rlds_data: tf.data.Dataset,
    sequence_length: int,
    stride_length: int = 1,
    *,
    policy_info_fn: Optional[specs.PolicyInfoFn] = None,
    end_of_episode: Union[str, ends_lib.EndOfEpisode] = 'drop',
    with_mask: bool = False,
    rules: Optional[rules_lib.ConversionRules] = None,
    report: Optional[report_lib.ConversionReport] = None,
) -> tf.data.Dataset:
  """Converts RLDS data to sequences of TF-Agents trajectories.

  A sequence is `L = sequence_length` frames of `convert_rlds_to_trajectories`;
  the next one starts `S = stride_length` frames later. What happens where an
  episode ends, for episodes of 5 and of 2 frames, L=3 and S=2; `P` is a frame
  of zeros that is a boundary (LAST, then FIRST), a `.` is masked:

      frames           0 1 2 3 4        | a b
      "drop"           0 1 2   2 3 4    |
      "pad"            0 1 2   2 3 4    | a b P
      "tile"           0 1 2   2 3 4    | a b P
                       4 P P            |
      with 6 frames    0 1 2 3 4 5      |
      "repeat_last"    0 1 2   2 3 4    | a b b
                       4 5 5            |
      "overlap"        0 1 2   2 3 4    | a b P
                       3 4 5            |
      "cross"          0 1 2   2 3 4   4 a b

  `"drop"`, `"pad"` and `"tile"` are what TF-Agents'
  `ReverbAddTrajectoryObserver` writes with `pad_end_of_episodes` and
  `tile_end_of_episodes`: `"pad"` makes one sequence of an episode shorter than
  L and leaves others as they are, `"tile"` starts a sequence at every S-th
  frame. `"cross"` is what its `ReverbTrajectorySequenceObserver` writes.
  `"repeat_last"` and `"overlap"` leave no frame out, unless S is larger than L:
  where the last sequence does not end with the episode, one more is made, whose
  missing frames repeat the last, or which starts earlier, so that it ends with
  the episode.

  Args:
    rlds_data: see `convert_rlds_to_trajectories`. Episodes are validated
      strictly.
    sequence_length: how many frames a sequence has.
    stride_length: how many frames the next sequence starts later.
    policy_info_fn: see `convert_rlds_to_trajectories`.
    end_of_episode: one of the six above.
    with_mask: whether an element is a pair of the sequence and its mask.
    rules: see there.
    report: see there.

  Returns:
    A data set of `Trajectory`s whose every leaf is `[L, ...]`; or of pairs of
    these and a mask, bool `[L]`, which is False where a frame was filled in.

  Raises:
    ValueError: as `convert_rlds_to_trajectories` does; and if
      `sequence_length` or `stride_length` is not a positive integer, or
      `end_of_episode` not one of the six.
    InvalidArgumentError: while iterating, on an invalid episode.
  """
  return convert_rlds_to_sequence_batches(
      rlds_data,
      sequence_length,
      stride_length,
      policy_info_fn=policy_info_fn,
      end_of_episode=end_of_episode,
      with_mask=with_mask,
      rules=rules,
      report=report,
  ).unbatch()


@report_lib.frees_report
def convert_rlds_to_sequence_batches(
    rlds_data: tf.data.Dataset,
    sequence_length: int,
    stride_length: int = 1,
    *,
    policy_info_fn: Optional[specs.PolicyInfoFn] = None,
    max_batch_size: Optional[int] = None,
    end_of_episode: Union[str, ends_lib.EndOfEpisode] = 'drop',
    with_mask: bool = False,
    rules: Optional[rules_lib.ConversionRules] = None,
    report: Optional[report_lib.ConversionReport] = None,
) -> tf.data.Dataset:
  """Converts RLDS data to sequences, many an element.

  The sequences are those of `convert_rlds_to_sequences`, in the same order, but
  stacked: this is many times faster. Memory is bounded, whatever the length of
  an episode.

  Args:
    rlds_data: see `convert_rlds_to_sequences`, as for all arguments but one.
    sequence_length: see there.
    stride_length: see there.
    policy_info_fn: see there.
    max_batch_size: the most sequences of an element. By default what makes
      about 8 MiB.
    end_of_episode: see there.
    with_mask: see there.
    rules: see there.
    report: see there.

  Returns:
    A data set of `Trajectory`s whose every leaf is `[W, L, ...]`, with `W` from
    1 to `max_batch_size`; or of pairs of these and a mask, bool `[W, L]`.

  Raises:
    ValueError: see there; and if `max_batch_size` is not positive.
    InvalidArgumentError: see there.
  """
  checks.check_positive('sequence_length', sequence_length)
  checks.check_positive('stride_length', stride_length)
  end_of_episode = ends_lib.check_end(
      'end_of_episode', end_of_episode, _End
  )
  rules = rules or rules_lib.ConversionRules()
  if rules.validation != 'strict':
    raise ValueError(
        'Sequences are cut from whole episodes, so sequences need'
        f' validation="strict", but it is "{rules.validation}".'
    )
  frames = conversion.trajectory_blocks(
      rlds_data,
      policy_info_fn,
      rules=rules,
      report=report,
  )
  spec = frames.element_spec.trajectory
  if max_batch_size is None:
    max_batch_size = blocks.default_block_length(
        tf.nest.map_structure(
            lambda leaf: tf.TensorSpec(
                [sequence_length] + leaf.shape[1:], leaf.dtype
            ),
            spec,
        ),
        _BATCH_BYTES,
    )
  checks.check_positive('max_batch_size', max_batch_size)

  @tf.autograph.experimental.do_not_convert
  def gather(first, cut):
    starts = cut.starts[first : first + max_batch_size]
    sequences = gathering.take_windows(
        cut.frames, starts, sequence_length, stride_length
    )
    if not with_mask:
      return sequences
    index = gathering.window_index(starts, sequence_length)
    return sequences, index < cut.num_real

  @tf.autograph.experimental.do_not_convert
  def split(cut):
    # A map in here would be made anew for each cut, which takes longer than the
    # gathers.
    return tf.data.Dataset.zip((
        tf.data.Dataset.range(
            0, tf.size(cut.starts, tf.int64), max_batch_size
        ),
        tf.data.Dataset.from_tensors(cut).repeat(),
    ))

  make_cut = functools.partial(
      _make_cut,
      length=sequence_length,
      stride=stride_length,
      end_of_episode=end_of_episode,
  )

  @tf.autograph.experimental.do_not_convert
  def split_whole(block):
    start = tf.constant(0, tf.int64)
    cut, _ = make_cut(block.trajectory, start, start, tf.constant(True))
    return split(cut)

  @tf.autograph.experimental.do_not_convert
  def advance(held, block):
    return _advance(
        held, block, make_cut, sequence_length, end_of_episode
    )

  if end_of_episode != _End.CROSS and steps_lib.steps_spec(rlds_data).stacked:
    # Every block is a whole episode.
    return frames.flat_map(split_whole).map(gather)
  nothing = _Held(steps_lib.zeros(spec), tf.constant(0, tf.int64))
  return frames.scan(nothing, advance).flat_map(split).map(gather)


def _advance(held, block, make_cut, length, end_of_episode):
  """Returns what is held after a block of frames, and the `_Cut` that it ends.

  Args:
    held: the `_Held` frames before the block.
    block: a `TrajectoryBlock`.
    make_cut: `_make_cut`, with its last three arguments.
    length: how many frames a sequence has.
    end_of_episode: an `EndOfEpisode`.
  """
  num_held, start = gathering.num_rows(held.frames), held.start
  if end_of_episode != _End.CROSS:
    goes_on = block.step > 0
    num_held = tf.where(goes_on, num_held, 0)
    start = tf.where(goes_on, start, 0)
  # Where nothing is held, nothing is copied.
  frames = tf.cond(
      num_held > 0,
      lambda: blocks.concat(held.frames, block.trajectory),
      lambda: block.trajectory,
  )
  is_end = block.trajectory.step_type[-1] == ts.StepType.LAST
  cut, next_start = make_cut(frames, start, block.step - num_held, is_end)

  # As many as an overlap may need, and those from the next start on.
  first = tf.maximum(tf.minimum(next_start, cut.num_real - length + 1), 0)
  if end_of_episode != _End.CROSS:
    first = tf.where(is_end, cut.num_real, first)
  kept = tf.nest.map_structure(lambda leaf: leaf[first:], frames)
  return _Held(kept, next_start - first), cut


def _make_cut(frames, start, num_seen, is_end, length, stride, end_of_episode):
  """Returns the `_Cut` of some frames of an episode, and where to go on.

  Args:
    frames: a `Trajectory` `[M, ...]`.
    start: int64 `[]`: where the first sequence starts.
    num_seen: int64 `[]`: how many frames the episode has before these.
    is_end: bool `[]`: whether the episode ends with them.
    length: how many frames a sequence has.
    stride: how many frames lie between the starts of two.
    end_of_episode: an `EndOfEpisode`.

  Returns:
    The `_Cut`, and int64 `[]`: where the next sequence starts, if the episode
    goes on.
  """
  num_real = gathering.num_rows(frames)
  num_whole = tf.maximum((num_real - length - start) // stride + 1, 0)
  next_start = start + num_whole * stride

  # The sequences that reach beyond the end of the episode.
  if end_of_episode == _End.TILE:
    num_ending = tf.maximum((num_real - next_start + stride - 1) // stride, 0)
  elif end_of_episode == _End.PAD:
    num_ending = tf.cast(num_seen + num_real < length, tf.int64)
  elif end_of_episode in (_End.ZERO_PAD, _End.REPEAT_LAST, _End.OVERLAP):
    is_covered = (num_seen + next_start > 0) & (
        next_start - stride + length >= num_real
    )
    num_ending = tf.cast(~is_covered & (next_start < num_real), tf.int64)
  else:
    num_ending = tf.constant(0, tf.int64)
  num_ending = tf.where(is_end, num_ending, 0)
  starts = start + stride * tf.range(num_whole + num_ending)
  if end_of_episode == _End.OVERLAP:
    starts = tf.minimum(starts, tf.maximum(num_real - length, 0))
  if end_of_episode in (_End.PAD, _End.TILE, _End.ZERO_PAD, _End.OVERLAP):
    frames = tf.cond(
        num_ending > 0,
        lambda: blocks.concat(frames, _boundary(frames)),
        lambda: frames,
    )
  return _Cut(frames, num_real, starts), next_start


def _boundary(frames: Any) -> trajectory.Trajectory:
  """Returns the frame `[1, ...]` that TF-Agents' observers pad with."""
  zeros = tf.nest.map_structure(lambda leaf: tf.zeros_like(leaf[:1]), frames)
  return zeros._replace(
      step_type=tf.fill([1], ts.StepType.LAST),
      next_step_type=tf.fill([1], ts.StepType.FIRST),
  )
