"""Converts RLDS episodes to the trajectories that TF-Agents trains on.

The conversion runs in graph mode, on whole blocks of steps at a time.
"""

import dataclasses
import functools
from typing import Any, NamedTuple, Optional, Tuple

import tensorflow as tf
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from rlds2reverb.episodes import block_cutting
from rlds2reverb.episodes import blocks
from rlds2reverb.episodes import data_sets
from rlds2reverb.episodes import following as following_lib
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import judging
from rlds2reverb.episodes import outlines
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.trajectories import boundaries
from rlds2reverb.trajectories import kept_pipelines
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import rules as rules_lib
from rlds2reverb.trajectories import specs


class TrajectoryBlock(NamedTuple):
  """Frames of one episode or of several whole ones, with their places.

  Attributes:
    trajectory: a `Trajectory` whose every leaf is `[B, ...]`.
    episode: int64 `[E]`: the index in the data set of each episode.
    step: int64 `[]`: the index in its episode of the block's first frame; 0 if
      there are several episodes.
    row_splits: int64 `[E + 1]`: the frames of episode `e` are those from
      `row_splits[e]` to `row_splits[e + 1]`.
    fields: a dict of fields of the episodes, every leaf `[E, ...]`: the one
      that identifies them, if one was asked for, or all.
    steps: the steps of the frames with all their fields, `[B, ...]`, if they
      were asked for.
  """

  trajectory: trajectory.Trajectory
  episode: tf.Tensor
  step: tf.Tensor
  row_splits: tf.Tensor
  fields: Any = ()
  steps: Any = ()


@options_lib.takes_options
def convert_rlds_to_trajectories(
    rlds_data: tf.data.Dataset,
    policy_info_fn: Optional[specs.PolicyInfoFn] = None,
    *,
    batched: bool = False,
    block_length: Optional[int] = None,
    one_episode_blocks: bool = False,
    options: Optional[options_lib.ConversionOptions] = None,
) -> tf.data.Dataset:
  """Converts RLDS data to TF-Agents trajectories.

  The frames are those of `tf_agents.replay_buffers.rlds_to_reverb` (TF-Agents
  0.19.0). Each step becomes one frame, whose next step type is the type of the
  step that follows it in the data set. The last step of the data set is
  converted as if a FIRST step of zeros followed it. F, M and L stand for FIRST,
  MID and LAST:

      episodes         |  F  M  M  L |  single |  F  M  M  L |
      step_type        |  F  M  M  L |    L    |  F  M  M  L |
      next_step_type   |  M  M  L  F |    L    |  M  M  L  F |
      discount         |  d  d  d  e |    e    |  d  d  d  e |

  where `d` is the discount of the step, and `e` is 0 if the episode is terminal
  and the discount of the step if it is truncated.

  Args:
    rlds_data: an RLDS data set: a `tf.data.Dataset` of episodes, dicts whose
      `steps` are a nested `tf.data.Dataset` of steps or steps stacked
      `[T, ...]`. A step is a dict of observation, action and reward, nests of
      any depth, and of discount, is_first, is_last and is_terminal, one number
      (a flag may be bool) each.
    policy_info_fn: makes the `policy_info` of a frame from its step and the
      step that follows, which may be the first one of the next episode. It is
      called in graph mode; both steps are dicts without a batch dimension. By
      default the `policy_info` is `()`.
    batched: whether an element is a block of many consecutive frames, which is
      many times faster, rather than one frame.
    block_length: the largest number of frames in a block, all of which then
      come from one episode. By default a block holds about 2 MiB: one episode
      or several whole ones; a part of one where nested steps are longer.
    one_episode_blocks: whether all frames of a block come from one episode.
    options: how episodes are checked and converted.

  Returns:
    A data set of `Trajectory` frames: step_type and next_step_type are int32
    `[]`, discount is float32 `[]`, and observation, action and reward are those
    of the step. Batched, each leaf is `[B, ...]`, and the step types tell where
    episodes end.

  Raises:
    TypeError: if `options` are no `ConversionOptions`, or `policy_info_fn` is
      not callable.
    ValueError: if `rlds_data` has no RLDS steps, if the steps lack a feature or
      have one of a wrong dtype or shape, or if an argument is not valid.
    InvalidArgumentError: while iterating, if an episode is invalid, before its
      first frame comes out. The message says what is wrong, and in which
      episode and step.
  """
  frames = trajectory_blocks(
      rlds_data,
      options_lib.with_policy_info(options, policy_info_fn),
      block_length=block_length,
      one_episode_blocks=one_episode_blocks or block_length is not None,
  ).map(lambda block: block.trajectory)
  return frames if batched else frames.unbatch()


def trajectory_blocks(
    rlds_data: tf.data.Dataset,
    options: options_lib.ConversionOptions,
    *,
    block_length: Optional[int] = None,
    one_episode_blocks: bool = False,
    with_episodes: bool = False,
) -> tf.data.Dataset:
  """Converts RLDS data to `TrajectoryBlock`s: blocks with their places.

  The other arguments and the errors are those of
  `convert_rlds_to_trajectories`.

  Args:
    rlds_data: an RLDS data set.
    options: how it is converted.
    block_length: the largest number of frames in a block.
    one_episode_blocks: whether all frames of a block come from one episode.
    with_episodes: whether a block has all fields of its steps and its episodes.

  Returns:
    A data set of `TrajectoryBlock`s.

  Raises:
    ValueError: also if the episodes have no field `options.episode_id`.
  """
  rules, report = options.rules, options.report
  step_spec = steps_lib.steps_spec(rlds_data).step
  episode_fields = ()
  if options.episode_id is not None:
    episode_fields = (options.episode_id,)
    blocks.check_episode_id(rlds_data.element_spec, options.episode_id)
  if with_episodes:
    episode_fields = tuple(
        name for name in rlds_data.element_spec if name != rlds.STEPS
    )
  policy_info = None
  if options.policy_info_fn:
    policy_info = specs.PolicyInfo(options.policy_info_fn, step_spec)
  used = {rlds.OBSERVATION, rlds.ACTION, rlds.REWARD}
  if policy_info:
    used |= policy_info.fields
  if report or rules.nan == 'invalid':
    used.add(rlds.DISCOUNT)  # The discount may hold NaN, too.
  used_spec = {
      field: spec for field, spec in step_spec.items() if field in used
  }
  steps_lib.check_dense(used_spec)
  nan_fields = [path for path, _ in steps_lib.float_fields(used_spec)]
  data = rlds_data
  if isinstance(rlds_data, data_sets.Episodes):
    data = data_sets.packs_of(rlds_data, with_faults=True)
  settings = _Settings(
      tuple(used_spec),
      tuple(step_spec) if with_episodes else (),
      tuple(nan_fields),
      block_length,
      one_episode_blocks,
      episode_fields,
      rules,
  )
  tables = report.attach(nan_fields) if report else None
  return _convert(data, tables, settings, policy_info)


class _Settings(NamedTuple):
  """Everything besides the data that the pipeline of a conversion depends on.

  Attributes:
    fields: the names of the step fields that are used.
    all_fields: the names of all, if blocks have their steps.
    nan_fields: the paths of their float leaves.
    block_length: see `trajectory_blocks`.
    one_episode_blocks: see `trajectory_blocks`.
    episode_fields: the names of the fields of episodes that blocks have.
    rules: the rules of the conversion.
  """

  fields: Tuple[str, ...]
  all_fields: Tuple[str, ...]
  nan_fields: Tuple[str, ...]
  block_length: Optional[int]
  one_episode_blocks: bool
  episode_fields: Tuple[str, ...]
  rules: rules_lib.ConversionRules


@kept_pipelines.kept
def _convert(data, report, settings, policy_info=None):
  """Returns the data set of `trajectory_blocks`.

  Args:
    data: an RLDS data set, or a data set of packs.
    report: the `ReportTables` to fill, or None.
    settings: the `_Settings`.
    policy_info: a `specs.PolicyInfo`, or None.
  """
  rules = settings.rules
  find_nan = rules.nan == 'invalid'

  def inspect(episode, outline, lengths, stored=None):
    on_fault = None
    if report and rules.invalid_episodes == 'skip':
      on_fault = functools.partial(report.add_skipped, episode)
    return boundaries.check_episode(
        episode,
        outline,
        lengths,
        validation=rules.validation,
        nan_fields=settings.nan_fields if find_nan else (),
        stored=stored,
        on_fault=on_fault,
    )

  def convert(block, following=None):
    used = block._replace(steps=outlines.select(block.steps, settings.fields))
    frames, bootstraps = _to_frames(
        used.steps, used.outline, rules.terminal_discount
    )
    if policy_info:
      frames = frames._replace(policy_info=policy_info(used.steps, following))
    if report:
      report.add_block(used, bootstraps)
    return TrajectoryBlock(
        frames,
        block.episode,
        block.step,
        block.row_splits,
        block.fields,
        block.steps if settings.all_fields else (),
    )

  joins = rules.validation == 'tf_agents'
  judge = judging.Judge(
      inspect,
      rules.invalid_episodes,
      None
      if joins
      else functools.partial(boundaries.are_strictly_valid, find_nan=find_nan),
      find_nan,
  )
  to_blocks = functools.partial(
      block_cutting.episode_blocks,
      data,
      settings.fields,
      cut=blocks.Cut(settings.one_episode_blocks, settings.block_length, joins),
      more_fields=settings.all_fields,
      episode_fields=settings.episode_fields,
  )
  if policy_info is None:
    return to_blocks(judge=judge, block_fn=convert)

  if rules.invalid_episodes == 'raise':
    judge = dataclasses.replace(judge, invalid_episodes='mark')
  return following_lib.with_following_step(to_blocks(judge=judge)).map(
      lambda block, following: convert(_without_fault(block), following)
  )


def _without_fault(block):
  """Returns a block, or raises the error of its invalid episode.

  The error is raised after each block was paired with the step that follows.
  Before that, it would also stop the last block of the episode before.
  """
  return graphs.asserted(block, block.fault == '', block.fault)


def _to_frames(steps, outline, terminal_discount):
  """Converts steps `[B, ...]` with an outline `[B + 1]` to frames `[B, ...]`.

  Returns:
    The frames; and, bool `[B]`, which of them are transitions into a terminal
    step that have a discount other than 0.
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
  return frames, into_end & (discount != 0)
