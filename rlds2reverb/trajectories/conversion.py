"""Converts RLDS episodes to the trajectories that TF-Agents trains on.

The conversion runs in graph mode, on whole blocks of steps at a time.
"""

from typing import Optional

import tensorflow as tf

from rlds2reverb.episodes import blocks
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import data_sets
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.trajectories import block_conversion
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import specs


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
      come from one episode. By default a block is a whole episode, or several
      short ones of about 2 MiB together.
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
  frame_blocks = trajectory_blocks(
      rlds_data,
      options_lib.with_policy_info(options, policy_info_fn),
      block_length=block_length,
      one_episode_blocks=one_episode_blocks,
  )
  frames = block_conversion.frames_alone(frame_blocks)
  return frames if batched else frames.unbatch()


def trajectory_blocks(
    rlds_data: tf.data.Dataset,
    options: options_lib.ConversionOptions,
    *,
    block_length: Optional[int] = None,
    one_episode_blocks: bool = False,
    with_episodes: bool = False,
) -> tf.data.Dataset:
  """Converts RLDS data to `FrameBlock`s: blocks with their places.

  The other arguments and the errors are those of
  `convert_rlds_to_trajectories`.

  Args:
    rlds_data: an RLDS data set.
    options: how it is converted.
    block_length: the largest number of frames in a block, which then is of one
      episode.
    one_episode_blocks: whether all frames of a block come from one episode.
    with_episodes: whether a block has all fields of its steps and its episodes.

  Returns:
    A data set of `FrameBlock`s.

  Raises:
    ValueError: also if the episodes have no field `options.episode_id`.
  """
  rules, report = options.rules, options.report
  by_episode = one_episode_blocks or rules.validation == 'tf_agents'
  if block_length is not None:
    checks.check_positive('block_length', block_length)
    by_episode = True
  step_spec = steps_lib.steps_spec(rlds_data.element_spec).step
  episode_fields = ()
  if options.episode_id is not None:
    episode_fields = (options.episode_id,)
    blocks.check_episode_id(rlds_data.element_spec, options.episode_id)
  if with_episodes:
    episode_fields = tuple(
        name for name in rlds_data.element_spec if name != rlds.STEPS
    )
  policy_info = None
  if options.policy_info_fn is not None:
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
  data = rlds_data
  if isinstance(rlds_data, data_sets.Episodes):
    data = data_sets.batches_of(rlds_data, with_faults=True)
  all_fields = tuple(used_spec)
  if with_episodes:
    all_fields += tuple(name for name in step_spec if name not in used_spec)
  settings = block_conversion.Settings(
      rules,
      fields=tuple(used_spec),
      all_fields=all_fields,
      episode_fields=episode_fields,
      block_length=block_length,
      by_episode=by_episode,
      with_steps=with_episodes,
  )
  tables = report.attach(steps_lib.float_fields(used_spec)) if report else ()
  return block_conversion.convert_blocks(
      (data, tables), settings, policy_info=policy_info
  )
