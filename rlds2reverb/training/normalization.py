"""Normalisation that is fitted on the data, and undone in the policy.

An agent sees observations with a mean of 0 and a standard deviation of 1, and
acts in [-1, 1]. The policy that is saved works on the environment's own values:

    environment -- observation --> transform --> policy of the agent
         ^                                             |
         +---------- action <------- invert <----------+
"""

from typing import Any, NamedTuple, Optional

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

_METHODS = {rlds.OBSERVATION: 'mean_std', rlds.ACTION: 'bounds'}


class Normalization(NamedTuple):
  """The transforms between the data and the batches of an agent.

  Attributes:
    observation: normalises the leaves of floats of an observation by their mean
      and standard deviation.
    action: normalises the range of an action of floats to [-1, 1].
  """

  observation: applying.Compose
  action: applying.Compose

  def apply(self, rlds_data: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the episodes with normalised steps."""
    return applying.transform_episodes(rlds_data, self)

  def apply_to_frames(
      self, frames: trajectory.Trajectory
  ) -> trajectory.Trajectory:
    """Returns frames, with any leading dimensions, normalised."""
    steps = {rlds.OBSERVATION: frames.observation, rlds.ACTION: frames.action}
    return frames._replace(**applying.Compose(self).transform(steps))


def fit_normalization(
    rlds_data: tf.data.Dataset,
    statistics: Optional[results.Statistics] = None,
) -> Normalization:
  """Fits a normalisation on the observations and actions of a data set.

  Fields that are not floats, such as images of bytes and discrete actions, stay
  as they are.

  Args:
    rlds_data: an RLDS data set.
    statistics: the statistics of the data, if they were computed already.

  Raises:
    ValueError: if `rlds_data` has no episodes.
  """
  step = steps_lib.steps_spec(rlds_data.element_spec).step
  fields = [
      field
      for field in _METHODS
      if any(leaf.dtype.is_floating for leaf in tf.nest.flatten(step[field]))
  ]
  if fields and statistics is None:
    statistics = compute.compute_statistics(rlds_data, fields)
  made = dict.fromkeys(_METHODS, applying.Compose([]))
  for field in fields:
    made[field] = normalization.normalize_by_statistics(
        statistics, field, _METHODS[field]
    )
  return Normalization(**made)


def normalized_specs(
    time_step_spec: ts.TimeStep, action_spec: Any
) -> tuple[ts.TimeStep, Any]:
  """Returns the specs of normalised time steps and actions.

  Args:
    time_step_spec: the spec of the environment. The bounds of observations of
      floats no longer hold, and are left out.
    action_spec: the spec of the environment. Actions of floats get the bounds
      -1 and 1.
  """

  def of_floats(change, specs):
    return tf.nest.map_structure(
        lambda spec: change(spec) if spec.dtype.is_floating else spec, specs
    )

  def bounded(spec):
    ends = np.float32(-1), np.float32(1)
    return tensor_spec.BoundedTensorSpec(
        spec.shape, spec.dtype, *ends, spec.name
    )

  time_step_spec = tensor_spec.from_spec(time_step_spec)
  observation = of_floats(tf.TensorSpec.from_spec, time_step_spec.observation)
  action_spec = of_floats(bounded, tensor_spec.from_spec(action_spec))
  return time_step_spec._replace(observation=observation), action_spec


class DenormalizedPolicy(tf_policy.TFPolicy):
  """Adapts a policy that works on normalised data to the environment.

  It takes raw observations, and gives raw actions within the bounds of the
  environment. `PolicySaver` saves it, constants included.
  """

  def __init__(
      self,
      policy: tf_policy.TFPolicy,
      time_step_spec: ts.TimeStep,
      action_spec: Any,
      normalization: Normalization,  # pylint: disable=redefined-outer-name
  ):
    """Wraps a policy.

    Args:
      policy: the policy of an agent.
      time_step_spec: the spec of the environment's time steps.
      action_spec: the spec of the environment's actions.
      normalization: the normalisation of the agent's data.
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
        'DenormalizedPolicy gives actions, and no distribution of them.'
    )
