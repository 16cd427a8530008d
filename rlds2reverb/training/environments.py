"""Environments for training and for recording episodes.

Importing this module registers with gym:

    PositionOnlyCartPole-v1    CartPole-v1 whose observations are the cart's
                               position and the pole's angle. Both velocities
                               are hidden, so that an agent needs a memory.
"""

import gym
from gym.envs.classic_control import cartpole
import numpy as np
from tf_agents.environments import gym_wrapper

from rlds2reverb.datasets import recording

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
    self.observation_space = gym.spaces.Box(
        full.low[_POSITIONS], full.high[_POSITIONS], dtype=np.float32
    )

  def observation(self, observation: np.ndarray) -> np.ndarray:
    return observation[_POSITIONS]


gym.register(
    id='PositionOnlyCartPole-v1',
    entry_point=PositionOnlyCartPole,
    max_episode_steps=500,
)


def make_environment(environment: str, seed: int) -> gym_wrapper.GymWrapper:
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
