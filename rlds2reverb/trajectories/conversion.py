"""RLDS episodes to TF-Agents trajectories, in blocks, in graph mode."""

from typing import Any, NamedTuple, Optional

import rlds
import tensorflow as tf
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from rlds2reverb.episodes import blocks
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.trajectories import boundaries
from rlds2reverb.trajectories import report as report_lib
from rlds2reverb.trajectories import rules as rules_lib
from rlds2reverb.trajectories import specs


class TrajectoryBlock(NamedTuple):
  """Consecutive one-step frames of one episode, with their place.

  Attributes:
    trajectory: a `Trajectory` whose every leaf is `[B, ...]`.
    episode: int64 `[]`: the index of the episode in the data set.
    step: int64 `[]`: the index in its episode of the block's first frame.
    episode_id: what identifies the episode, `[]`: the field asked for; `()`
      where none was.
  """

  trajectory: trajectory.Trajectory
  episode: tf.Tensor
  step: tf.Tensor
  episode_id: Any = ()


def convert_rlds_to_trajectories(
    rlds_data: tf.data.Dataset,
    policy_info_fn: Optional[specs.PolicyInfoFn] = None,
    *,
    rules: Optional[rules_lib.ConversionRules] = None,
    report: Optional[report_lib.ConversionReport] = None,
) -> tf.data.Dataset:
  """Converts RLDS data to a data set of one-step TF-Agents trajectories.

  After `tf_agents.replay_buffers.rlds_to_reverb` (TF-Agents 0.19.0). Each step
  makes one frame; its next step type comes from the overlapping pair of the
  step and the one that follows. Behind the last step of the data set a FIRST
  step of zeros is thought. F, M, L are FIRST, MID, LAST:

      episodes         |  F  M  M  L |  single |  F  M  M  L |
      step_type        |  F  M  M  L |    L    |  F  M  M  L |
      next_step_type   |  M  M  L  F |    L    |  M  M  L  F |
      discount         |  d  d  d  e |    e    |  d  d  d  e |

  where `d` is the step's own discount and `e` is 0 in a terminal episode and
  the step's own in a truncated one.

  Args:
    rlds_data: an RLDS data set: a `tf.data.Dataset` of episodes, dicts whose
      `steps` are a nested `tf.data.Dataset` of steps or steps stacked
      `[T, ...]`. A step is a dict of observation, action and reward, nests of
      any depth, and of discount, is_first, is_last and is_terminal, one number
      (a flag may be bool) each.
    policy_info_fn: called in graph mode with the current and the next step,
      dicts without a batch dimension, across the ends of episodes too; returns
      the frame's `policy_info`. By default `()`.
    rules: how episodes are checked and converted. By default
      `ConversionRules()`, which gin may have configured.
    report: a new `ConversionReport` to fill, for what was skipped and counted.

  Returns:
    A data set of `Trajectory` frames: step_type and next_step_type int32 `[]`,
    discount float32 `[]`; observation, action and reward as in the step.

  Raises:
    ValueError: if `rlds_data` has no RLDS steps, they lack a feature or have
      one of a wrong dtype or shape, or an argument is not valid.
    InvalidArgumentError: while iterating, on an invalid episode, before its
      first frame. The message says what is wrong, in which episode and step.
  """
  return convert_rlds_to_trajectory_blocks(
      rlds_data,
      policy_info_fn,
      rules=rules,
      report=report,
  ).unbatch()


def convert_rlds_to_trajectory_blocks(
    rlds_data: tf.data.Dataset,
    policy_info_fn: Optional[specs.PolicyInfoFn] = None,
    *,
    block_length: Optional[int] = None,
    rules: Optional[rules_lib.ConversionRules] = None,
    report: Optional[report_lib.ConversionReport] = None,
) -> tf.data.Dataset:
  """Converts RLDS data to trajectories, many consecutive frames an element.

  The frames are those of `convert_rlds_to_trajectories`, in the same order, but
  stacked: this is many times faster.

  Args:
    rlds_data: see `convert_rlds_to_trajectories`, as for all arguments but one.
    policy_info_fn: see there.
    block_length: the most frames of a block. By default an episode whose steps
      are stacked, and so in memory whole, is one block; of nested steps about
      2 MiB are.
    rules: see there.
    report: see there.

  Returns:
    A data set of `Trajectory`s whose every leaf is `[B, ...]`, with `B` no more
    than `block_length`. Every block is of one episode.

  Raises:
    ValueError: see there; and if `block_length` is not positive.
    InvalidArgumentError: see there.
  """
  return trajectory_blocks(
      rlds_data,
      policy_info_fn,
      block_length=block_length,
      rules=rules,
      report=report,
  ).map(lambda block: block.trajectory)


@report_lib.frees_report
def trajectory_blocks(
    rlds_data: tf.data.Dataset,
    policy_info_fn: Optional[specs.PolicyInfoFn] = None,
    *,
    block_length: Optional[int] = None,
    episode_id: Optional[str] = None,
    rules: Optional[rules_lib.ConversionRules] = None,
    report: Optional[report_lib.ConversionReport] = None,
) -> tf.data.Dataset:
  """Converts RLDS data to `TrajectoryBlock`s: blocks that know their place.

  Arguments and errors are those of `convert_rlds_to_trajectory_blocks`; and
  `episode_id`, the name of a field of the episodes that identifies them, an
  integer or string.

  Returns:
    A data set of `TrajectoryBlock`s.
  """
  rules = rules or rules_lib.ConversionRules()
  step_spec = steps_lib.steps_spec(rlds_data).step
  policy_info = (
      specs.PolicyInfo(policy_info_fn, step_spec) if policy_info_fn else None
  )
  used = {rlds.OBSERVATION, rlds.ACTION, rlds.REWARD}
  if policy_info:
    used |= policy_info.fields
  if report or rules.nan == 'invalid':
    used.add(rlds.DISCOUNT)  # it may hold NaN, too
  fields = [field for field in step_spec if field in used]
  steps_lib.check_dense({field: step_spec[field] for field in fields})
  nan_fields = [
      path
      for path, _ in steps_lib.float_fields(
          {field: step_spec[field] for field in fields}
      )
  ]
  if report:
    report.attach(nan_fields)

  def inspect(episode, outline, lengths):
    verdict = boundaries.check_episode(
        episode,
        outline,
        lengths,
        validation=rules.validation,
        nan_fields=nan_fields if rules.nan == 'invalid' else (),
    )
    if not (report and rules.invalid_episodes == 'skip'):
      return verdict
    return verdict._replace(
        describe=lambda: report.add_skipped(episode, verdict.describe())
    )

  def convert(block, following=None):
    frames, bootstraps = _to_frames(
        block.steps, block.outline, rules.terminal_discount
    )
    if policy_info:
      frames = frames._replace(
          policy_info=policy_info(block.steps, following)
      )
    if report:
      report.add_block(block, bootstraps)
    return TrajectoryBlock(
        frames, block.episode, block.step, block.episode_id
    )

  settings = dict(
      inspect=inspect,
      join_episodes=rules.validation == 'tf_agents',
      find_nan=rules.nan == 'invalid',
      block_length=block_length,
      episode_id=episode_id,
  )
  if policy_info is None:
    return blocks.episode_blocks(
        rlds_data,
        fields,
        invalid_episodes=rules.invalid_episodes,
        block_fn=convert,
        **settings,
    )

  def check_and_convert(block, following):
    # An invalid episode raises its error here, behind what looks ahead, or it
    # would hold back the end of the episode before it.
    with tf.control_dependencies(
        [tf.debugging.Assert(block.fault == '', [block.fault])]
    ):
      block = tf.nest.map_structure(tf.identity, block)
    return convert(block, following)

  return blocks.with_following_step(
      blocks.episode_blocks(
          rlds_data,
          fields,
          invalid_episodes='mark'
          if rules.invalid_episodes == 'raise'
          else 'skip',
          **settings,
      )
  ).map(check_and_convert)


def _to_frames(steps, outline, terminal_discount):
  """Returns the frames `[B]` of steps `[B]` with an outline `[B + 1]`.

  Also returns, bool `[]`, whether a transition into a terminal step has a
  discount other than 0.
  """
  is_first, is_last = outline[rlds.IS_FIRST], outline[rlds.IS_LAST]
  is_end = is_last & outline[rlds.IS_TERMINAL]
  discount = tf.where(is_end, 0.0, outline[rlds.DISCOUNT])[:-1]
  into_end = is_end[1:] & ~is_last[:-1]
  if terminal_discount == 'transition':
    discount = tf.where(into_end, 0.0, discount)
  step_type = tf.where(
      is_first,
      ts.StepType.FIRST,
      tf.where(is_last, ts.StepType.LAST, ts.StepType.MID),
  )
  # An episode of one step is a LAST step, followed by a LAST step.
  is_single = is_first[:-1] & is_first[1:]
  frames = trajectory.Trajectory(
      step_type=tf.where(is_single, ts.StepType.LAST, step_type[:-1]),
      observation=steps[rlds.OBSERVATION],
      action=steps[rlds.ACTION],
      policy_info=(),
      next_step_type=tf.where(is_single, ts.StepType.LAST, step_type[1:]),
      reward=steps[rlds.REWARD],
      discount=discount,
  )
  return frames, tf.reduce_any(into_end & (discount != 0))
