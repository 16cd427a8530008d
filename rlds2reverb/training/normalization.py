"""Normalization that is fitted to the data, and undone in the policy.

An agent sees observations with a mean of 0 and a standard deviation of 1, and
acts in [-1, 1]. The saved policy takes raw observations and returns raw
actions:

    environment -- observation --> transform --> policy of the agent
         ^                                             |
         +---------- action <------- invert <----------+
"""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tf_agents.policies import tf_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.statistics import compute
from rlds2reverb.statistics import results
from rlds2reverb.transforms import applying
from rlds2reverb.transforms import normalization

_KINDS = {rlds.OBSERVATION: 'mean_std', rlds.ACTION: 'bounds'}


class Normalization(NamedTuple):
  """The transforms between the data and the batches of an agent.

  Attributes:
    observation: normalizes floats of an observation by their mean and standard
      deviation.
    action: normalizes the range of floats of an action to [-1, 1].
  """

  observation: applying.Compose
  action: applying.Compose

  def apply(self, rlds_data: tf.data.Dataset) -> tf.data.Dataset:
    """Normalizes the steps of all episodes."""
    return applying.transform_episodes(rlds_data, self)

  def apply_to_frames(
      self, frames: trajectory.Trajectory
  ) -> trajectory.Trajectory:
    """Normalizes frames with any leading dimensions."""
    steps = {rlds.OBSERVATION: frames.observation, rlds.ACTION: frames.action}
    return frames._replace(**applying.Compose(self).transform(steps))


def fit_normalization(
    rlds_data: tf.data.Dataset,
    statistics: results.Statistics | None = None,
) -> Normalization:
  """Fits a normalization to the observations and actions of a data set.

  Only floats are normalized, not encoded images or discrete actions.

  Args:
    rlds_data: an RLDS data set.
    statistics: the statistics of the data, if they are already computed.

  Raises:
    ValueError: if `rlds_data` has no episodes.
  """
  step = steps_lib.get_steps_spec(rlds_data.element_spec).step
  fields = [
      field
      for field in _KINDS
      if any(leaf.dtype.is_floating for leaf in tf.nest.flatten(step[field]))
  ]
  transforms = dict.fromkeys(_KINDS, applying.Compose([]))
  if not fields:
    return Normalization(**transforms)
  if statistics is None:
    statistics = compute.compute_statistics(rlds_data, fields)
  for field in fields:
    transforms[field] = normalization.normalize_by_statistics(
        statistics, field, _KINDS[field]
    )
  return Normalization(**transforms)


def normalize_specs(
    time_step_spec: ts.TimeStep, action_spec: Any
) -> tuple[ts.TimeStep, Any]:
  """Returns the specs of normalized time steps and actions.

  Args:
    time_step_spec: the spec of the environment. Floats of observations lose
      their bounds, which no longer hold.
    action_spec: the spec of the environment. Floats of actions get the bounds
      -1 and 1.
  """

  def map_floats(fn, specs):
    return tf.nest.map_structure(
        lambda spec: fn(spec) if spec.dtype.is_floating else spec, specs
    )

  def to_unit_range(spec):
    return tensor_spec.BoundedTensorSpec(
        spec.shape, spec.dtype, np.float32(-1), np.float32(1), spec.name
    )

  time_step_spec = tensor_spec.from_spec(time_step_spec)
  observation = map_floats(tf.TensorSpec.from_spec, time_step_spec.observation)
  action_spec = map_floats(to_unit_range, tensor_spec.from_spec(action_spec))
  return time_step_spec._replace(observation=observation), action_spec


class DenormalizedPolicy(tf_policy.TFPolicy):
  """Adapts a policy trained on normalized data to the environment.

  It takes raw observations, and returns raw actions within the bounds of the
  environment. `PolicySaver` saves it together with its constants.
  """

  def __init__(
      self,
      policy: tf_policy.TFPolicy,
      time_step_spec: ts.TimeStep,
      action_spec: Any,
      normalization: Normalization,
  ):
    """Wraps a policy.

    Args:
      policy: the policy of an agent.
      time_step_spec: the time step spec of the environment.
      action_spec: the action spec of the environment.
      normalization: the normalization of the agent's data.
    """
    super().__init__(
        time_step_spec,
        action_spec,
        policy_state_spec=policy.policy_state_spec,
        info_spec=policy.info_spec,
    )
    self._policy = policy
    self._normalization = normalization

  def _get_initial_state(self, batch_size):
    return self._policy.get_initial_state(batch_size)

  def _action(self, time_step, policy_state, seed):
    observation = self._normalization.observation.transform(
        {rlds.OBSERVATION: time_step.observation}
    )
    time_step = time_step._replace(**observation)
    step = self._policy.action(time_step, policy_state, seed)
    action = self._normalization.action.invert({rlds.ACTION: step.action})
    return step._replace(**action)

  def _distribution(self, time_step, policy_state):
    raise NotImplementedError(
        'DenormalizedPolicy has no action distribution. Use its action.'
    )
