"""Environments for training and for recording episodes.

Importing this module registers with gym:

    PositionOnlyCartPole-v1    CartPole-v1 whose observations are the cart's
                               position and the pole's angle. Both velocities
                               are hidden, so that an agent needs a memory.
"""

from typing import Any, Tuple

import gym
from gym.envs.classic_control import cartpole
import numpy as np
import tensorflow as tf
from tf_agents.environments import gym_wrapper
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from rlds2reverb.datasets import recording
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib

# The indices of the position and the angle in an observation of CartPole.
_POSITIONS = [0, 2]


class PositionOnlyCartPole(gym.ObservationWrapper):
  """CartPole that shows positions and no velocities.

  Observations are float32 `[2]`: the cart's position and the pole's angle in
  radians. Everything else is as in gym's `CartPoleEnv`.
  """

  def __init__(self):
    super().__init__(cartpole.CartPoleEnv())
    full = self.env.observation_space
    ends = full.low[_POSITIONS], full.high[_POSITIONS]
    self.observation_space = gym.spaces.Box(*ends, dtype=np.float32)

  def observation(self, observation: np.ndarray) -> np.ndarray:
    return observation[_POSITIONS]


gym.register(
    id='PositionOnlyCartPole-v1',
    entry_point=PositionOnlyCartPole,
    max_episode_steps=500,
)


def make_environment(environment: str, seed: int = 0) -> gym_wrapper.GymWrapper:
  """Makes a gym environment for TF-Agents, with its seed set.

  Args:
    environment: the id of a gym environment.
    seed: the seed of its initial states.

  Raises:
    ValueError: if there is no such environment.
  """
  env = gym_wrapper.GymWrapper(recording.make_gym(environment))
  env.seed(seed)
  return env


def specs_of(
    environment: str, rlds_data: tf.data.Dataset
) -> Tuple[ts.TimeStep, Any]:
  """Returns the specs of an environment's time steps and of its actions.

  Args:
    environment: the id of a gym environment.
    rlds_data: an RLDS data set, which must have its observations and actions.

  Raises:
    ValueError: if there is no such environment, or the data is of another one.
      The error lists each difference.
  """
  env = make_environment(environment)
  env.close()
  time_step_spec, action_spec = tensor_spec.from_spec(
      (env.time_step_spec(), env.action_spec())
  )
  step = steps_lib.steps_spec(rlds_data.element_spec).step

  def described(observation, action):
    leaves = paths.leaves({rlds.OBSERVATION: observation, rlds.ACTION: action})
    return {k: f'{leaf.dtype.name} {leaf.shape}' for k, leaf in leaves.items()}

  expected = described(time_step_spec.observation, action_spec)
  found = described(step[rlds.OBSERVATION], step[rlds.ACTION])
  differences = [
      f'{path} is {found.get(path, "nothing")} in the data, and'
      f' {expected.get(path, "nothing")} in the environment'
      for path in sorted({*found, *expected})
      if found.get(path) != expected.get(path)
  ]
  if differences:
    raise ValueError(
        f'The data does not fit {environment}: {"; ".join(differences)}. Map'
        ' its fields with a StepMapping, which can cast them, too.'
    )
  return time_step_spec, action_spec
