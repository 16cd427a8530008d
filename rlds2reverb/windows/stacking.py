"""Frame stacking and action chunking: the last observations, the next actions.

They change the fields of steps and leave the rows as they are, so that what
comes after, the conversion to trajectories for example, does not notice. Of
stacked steps the next observation is stacked, too.
"""

from typing import Any, Dict, Union

import rlds
import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import gathering
from rlds2reverb.episodes import paths
from rlds2reverb.windows import rows as rows_lib
from rlds2reverb.windows import transitions

OBSERVATION_MASK = 'observation_mask'
ACTION_MASK = 'action_mask'


def stack_observations(
    steps: Any,
    num_frames: int,
    fill: Union[str, float] = 'repeat',
    *,
    mask_name: str = OBSERVATION_MASK,
) -> Dict[str, Any]:
  """Gives each step of one episode its last observations, the oldest first.

  As `CatFrames` of TorchRL, and the observation window of Octo. N=3:

      step          0           1           2           3
      "repeat"      o0 o0 o0    o0 o0 o1    o0 o1 o2    o1 o2 o3
      "zeros"        0  0 o0     0 o0 o1    o0 o1 o2    o1 o2 o3

  Args:
    steps: the steps of one episode, a nested data set or stacked `[T + 1, ...]`
      tensors.
    num_frames: `N`.
    fill: what stands before the first: `"repeat"` (TorchRL's "same"), the first
      observation; `"zeros"`; or a number, which a field of integers must be
      able to hold.
    mask_name: another name for `observation_mask`.

  Returns:
    The steps, stacked, with every leaf of `observation` `[T + 1, N, ...]`, and
    with `observation_mask`, bool `[T + 1, N]`, True where a frame is real.

  Raises:
    ValueError: if `num_frames` is not positive, there is no observation, one of
      its fields cannot hold `fill`, or there is a field `observation_mask`.
  """
  checks.check_positive('num_frames', num_frames)
  gathering.check_fill(fill)
  steps = transitions.stack_dict(steps)
  observation = paths.get(steps, rlds.OBSERVATION)
  length = gathering.num_rows(observation)
  index = gathering.window_index(tf.range(length) - num_frames + 1, num_frames)
  frames = gathering.take_filled(
      {rlds.OBSERVATION: observation},
      index,
      length,
      before=fill,
      after='repeat',
  )
  steps.update(frames)
  rows_lib.add_column(steps, mask_name, gathering.is_inside(index, length))
  return steps


def chunk_actions(
    steps: Any,
    num_actions: int,
    fill: Union[str, float] = 'zeros',
    *,
    mask_name: str = ACTION_MASK,
) -> Dict[str, Any]:
  """Gives each step of one episode its next actions, its own first.

  As the action chunks of Octo and ACT. K=3, of three transitions; the action of
  an episode's last step has no meaning, and is in no chunk:

      step          0           1           2           3
      "zeros"       a0 a1 a2    a1 a2  0    a2  0  0     0  0  0
      "repeat"      a0 a1 a2    a1 a2 a2    a2 a2 a2    a2 a2 a2

  Args:
    steps: the steps of one episode, a nested data set or stacked `[T + 1, ...]`
      tensors.
    num_actions: `K`.
    fill: what stands behind the last: `"zeros"`; `"repeat"`, the last action,
      as Octo has it for absolute actions; or a number, which a field of
      integers must be able to hold.
    mask_name: another name for `action_mask`.

  Returns:
    The steps, stacked, with every leaf of `action` `[T + 1, K, ...]`, and with
    `action_mask`, bool `[T + 1, K]`, True where an action is real.

  Raises:
    ValueError: if `num_actions` is not positive, there is no action, one of its
      fields cannot hold `fill`, or there is a field `action_mask`.
  """
  checks.check_positive('num_actions', num_actions)
  gathering.check_fill(fill)
  steps = transitions.stack_dict(steps)
  action = paths.get(steps, rlds.ACTION)
  length = gathering.num_rows(action)
  index = gathering.window_index(tf.range(length), num_actions)
  stop = tf.maximum(length - 1, 0)
  chunks = gathering.take_filled(
      {rlds.ACTION: action}, index, stop, before='repeat', after=fill
  )
  steps.update(chunks)
  rows_lib.add_column(steps, mask_name, gathering.is_inside(index, stop))
  return steps
