"""Converts RLDS episodes to sequences: windows of frames, of one length."""

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
  """Frames of the blocks so far that later sequences may still need.

  Attributes:
    frames: a `Trajectory` of the last frames so far, `[C, ...]`.
    start: int64 `[]`: the index in `frames` at which the next sequence starts.
      It may lie beyond them.
  """

  frames: trajectory.Trajectory
  start: tf.Tensor


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

  A sequence is `L = sequence_length` consecutive frames of
  `convert_rlds_to_trajectories`, and the next sequence starts
  `S = stride_length` frames later. `end_of_episode` says what becomes of the
  frames at the end of an episode that do not fill a sequence. Here are the
  sequences of an episode of 6 frames and of one of 2 frames, with L=3 and S=2.
  `P` is a boundary frame of zeros, whose step type is LAST and whose next step
  type is FIRST. A lower-case frame repeats the last one:

      frames           0 1 2 3 4 5              | 6 7
      "drop"           0 1 2   2 3 4            |
      "pad"            0 1 2   2 3 4            | 6 7 P
      "tile"           0 1 2   2 3 4   4 5 P    | 6 7 P
      "zero_pad"       0 1 2   2 3 4   4 5 P    | 6 7 P
      "repeat_last"    0 1 2   2 3 4   4 5 e    | 6 7 g     (e is 5, g is 7)
      "overlap"        0 1 2   2 3 4   3 4 5    | 6 7 P
      "cross"          0 1 2   2 3 4   4 5 6

  If the episode had 5 frames, the sequence 2 3 4 would end with it. `"tile"`
  would still start a sequence at frame 4, which is 4 P P, because it starts one
  at every S-th frame. `"zero_pad"`, `"repeat_last"` and `"overlap"` would not,
  because no frame is left over.

  TF-Agents' `ReverbAddTrajectoryObserver` writes the sequences of `"drop"`, of
  `"pad"` (with `pad_end_of_episodes`) and of `"tile"` (with
  `tile_end_of_episodes`). Its `ReverbTrajectorySequenceObserver` writes those
  of `"cross"`.

  Args:
    rlds_data: see `convert_rlds_to_trajectories`.
    sequence_length: the number of frames in a sequence.
    stride_length: the number of frames from the start of a sequence to the
      start of the next one. If it is larger than `sequence_length`, frames are
      left out between sequences.
    policy_info_fn: see `convert_rlds_to_trajectories`.
    end_of_episode: an `EndOfEpisode`, or its string; any of them.
    with_mask: whether an element is a pair of a sequence and its mask.
    rules: see `convert_rlds_to_trajectories`. The validation must be
      `"strict"`.
    report: see `convert_rlds_to_trajectories`.

  Returns:
    A data set of `Trajectory`s whose leaves are `[L, ...]`; or of pairs of a
    `Trajectory` and a mask, bool `[L]`, which is False where a frame was filled
    in.

  Raises:
    ValueError: if a length is not a positive integer, if `rules` does not
      validate strictly, and as `convert_rlds_to_trajectories` does.
    InvalidArgumentError: while iterating, if an episode is invalid.
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
  """Converts RLDS data to sequences, stacked in batches.

  The sequences are those of `convert_rlds_to_sequences`, in the same order. But
  each element of the data set holds many sequences, which makes this many times
  faster. Memory is bounded, however long an episode is.

  Args:
    rlds_data: see `convert_rlds_to_trajectories`.
    sequence_length: see `convert_rlds_to_sequences`.
    stride_length: see `convert_rlds_to_sequences`.
    policy_info_fn: see `convert_rlds_to_trajectories`.
    max_batch_size: the largest number of sequences in an element. By default,
      as many as make about 8 MiB.
    end_of_episode: see `convert_rlds_to_sequences`.
    with_mask: whether an element is a pair of sequences and their mask.
    rules: see `convert_rlds_to_sequences`.
    report: see `convert_rlds_to_trajectories`.

  Returns:
    A data set of `Trajectory`s whose leaves are `[W, L, ...]`, where `W` is
    between 1 and `max_batch_size`; or of pairs of a `Trajectory` and a mask,
    bool `[W, L]`.

  Raises:
    ValueError: if `max_batch_size` is not positive, and as
      `convert_rlds_to_sequences` does.
    InvalidArgumentError: as `convert_rlds_to_sequences` does.
  """
  checks.check_positive('sequence_length', sequence_length)
  checks.check_positive('stride_length', stride_length)
  end_of_episode = ends_lib.check_end('end_of_episode', end_of_episode, _End)
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
    return sequences, tf.gather(cut.is_real, index)

  @tf.autograph.experimental.do_not_convert
  def split(cut):
    # The gathers are mapped over the flattened data set. A map in here would be
    # created again for each cut, which takes longer than the gathers.
    return tf.data.Dataset.zip(
        (
            tf.data.Dataset.range(
                0, tf.size(cut.starts, tf.int64), max_batch_size
            ),
            tf.data.Dataset.from_tensors(cut).repeat(),
        )
    )

  make_cut = functools.partial(
      _make_cut,
      length=sequence_length,
      stride=stride_length,
      end_of_episode=end_of_episode,
  )

  @tf.autograph.experimental.do_not_convert
  def split_whole(block):
    start = tf.constant(0, tf.int64)
    cut, _ = make_cut(
        block.trajectory, block.row_splits, start, start, tf.constant(True)
    )
    return split(cut)

  @tf.autograph.experimental.do_not_convert
  def advance(held, block):
    return _advance(held, block, make_cut, sequence_length, end_of_episode)

  if end_of_episode != _End.CROSS and steps_lib.steps_spec(rlds_data).stacked:
    # Every block holds whole episodes, so nothing needs to be held.
    return frames.flat_map(split_whole).map(gather)
  nothing = _Held(steps_lib.zeros(spec), tf.constant(0, tf.int64))
  return frames.scan(nothing, advance).flat_map(split).map(gather)


def _advance(held, block, make_cut, length, end_of_episode):
  """Cuts the sequences that become complete with one more block.

  Args:
    held: the `_Held` frames before the block.
    block: a `TrajectoryBlock`.
    make_cut: `_make_cut` with its last three arguments given.
    length: the number of frames in a sequence.
    end_of_episode: an `EndOfEpisode`.

  Returns:
    What is `_Held` for the next block, and the `_Cut`.
  """
  num_held, start = gathering.num_rows(held.frames), held.start
  if end_of_episode != _End.CROSS:
    goes_on = block.step > 0
    num_held = tf.where(goes_on, num_held, 0)
    start = tf.where(goes_on, start, 0)
  # A concatenation copies the block, so it is done only if frames are held.
  frames = tf.cond(
      num_held > 0,
      lambda: blocks.concat(held.frames, block.trajectory),
      lambda: block.trajectory,
  )
  is_end = block.trajectory.step_type[-1] == ts.StepType.LAST
  # Frames are held for the first episode only.
  splits = tf.concat([[0], block.row_splits[1:] + num_held], 0)
  cut, next_start = make_cut(
      frames, splits, start, block.step - num_held, is_end
  )

  # The next sequence needs the frames from its start on, and an overlap may
  # need the last `length - 1` frames.
  num_real = splits[-1]
  first = tf.maximum(tf.minimum(next_start, num_real - length + 1), 0)
  if end_of_episode != _End.CROSS:
    first = tf.where(is_end, num_real, first)
  kept = tf.nest.map_structure(lambda leaf: leaf[first:], frames)
  return _Held(kept, next_start - first), cut


def _make_cut(
    frames, row_splits, start, num_seen, is_end, length, stride, end_of_episode
):
  """Finds where the sequences of some frames start, and fills frames in.

  Args:
    frames: a `Trajectory` `[N, ...]`: frames of one episode, or of several
      whole ones.
    row_splits: int64 `[E + 1]`: where the frames of each episode begin and end.
    start: int64 `[]`: the index at which the first sequence starts; 0 if there
      are several episodes.
    num_seen: int64 `[]`: the number of frames of the episode before these.
    is_end: bool `[]`: whether the last episode ends with these frames.
    length: the number of frames in a sequence.
    stride: the number of frames between the starts of two sequences.
    end_of_episode: an `EndOfEpisode`.

  Returns:
    The `_Cut`; and, int64 `[]`, the index at which the next sequence starts, if
    the last episode continues.
  """
  if end_of_episode == _End.CROSS:
    row_splits = tf.gather(row_splits, [0, -1 + tf.size(row_splits)])
  begins, ends = row_splits[:-1], row_splits[1:]
  num_real = ends - begins  # All of this is [E], one number for each episode.
  num_whole = tf.maximum((num_real - length - start) // stride + 1, 0)
  next_start = start + num_whole * stride

  # The sequences after the last whole one: they are filled up, or moved back.
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
    num_ending = tf.zeros_like(num_real)
  num_ending = tf.where(is_end, num_ending, 0)
  num_sequences = num_whole + num_ending

  is_real = tf.ones([row_splits[-1]], tf.bool)
  if end_of_episode not in (_End.DROP, _End.CROSS):
    last_start = start + (num_sequences - 1) * stride
    if end_of_episode == _End.OVERLAP:
      last_start = tf.maximum(num_real - length, 0)
    num_filled = tf.where(
        num_ending > 0, tf.maximum(last_start + length - num_real, 0), 0
    )
    frames, is_real, begins = tf.cond(
        tf.reduce_any(num_filled > 0),
        lambda: _fill(frames, begins, ends, num_filled, end_of_episode),
        lambda: (frames, is_real, begins),
    )
  starts = tf.ragged.range(
      begins + start, begins + start + num_sequences * stride, stride
  )
  if end_of_episode == _End.OVERLAP:
    latest = begins + tf.maximum(num_real - length, 0)
    starts = tf.minimum(starts.values, tf.gather(latest, starts.value_rowids()))
  else:
    starts = starts.values
  return _Cut(frames, is_real, starts), next_start[-1]


def _fill(frames, begins, ends, num_filled, end_of_episode):
  """Fills frames in after the ends of episodes.

  Args:
    frames: a `Trajectory` `[N, ...]`.
    begins: int64 `[E]`: where the frames of each episode begin.
    ends: int64 `[E]`: where they end.
    num_filled: int64 `[E]`: how many frames are filled in after each episode.
    end_of_episode: an `EndOfEpisode`: `REPEAT_LAST` repeats the last frame of
      the episode; the others fill boundary frames in.

  Returns:
    The frames, `[M, ...]`; bool `[M]`, which of them were not filled in; and
    int64 `[E]`, where each episode begins now.
  """
  rows = tf.ragged.range(begins, ends + num_filled)
  index, stop = rows.values, tf.gather(ends, rows.value_rowids())
  is_real = index < stop
  if end_of_episode == _End.REPEAT_LAST:
    index = tf.minimum(index, stop - 1)
  else:
    index = tf.where(is_real, index, ends[-1])
    frames = blocks.concat(frames, _boundary(frames))
  return gathering.take(frames, index), is_real, rows.row_splits[:-1]


def _boundary(frames: Any) -> trajectory.Trajectory:
  """Returns the boundary frame `[1, ...]`, as TF-Agents' observers pad with."""
  zeros = tf.nest.map_structure(lambda leaf: tf.zeros_like(leaf[:1]), frames)
  return zeros._replace(
      step_type=tf.fill([1], ts.StepType.LAST),
      next_step_type=tf.fill([1], ts.StepType.FIRST),
  )
