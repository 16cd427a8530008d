"""Environments for training, and environments and policies for recording.

Importing this module registers an environment with Gymnasium, for recording,
and with Gym, for TF-Agents:

    PositionOnlyCartPole-v1    CartPole-v1 whose observations are the position
                               of the cart and the angle of the pole. Without
                               the velocities, an agent needs a memory.

Episodes are recorded with scripted, noisy and saved policies:

    policy = training.make_policy('pendulum', 'Pendulum-v1', randomness=0.5)
    datasets.record_episodes('Pendulum-v1', directory, 200, policy=policy)

`record_episodes` calls a policy with an observation, and `reset` before the
first observation of each episode.
"""

from typing import Any

import gym
import gymnasium
import numpy as np
import tensorflow as tf
from tf_agents.environments import gym_wrapper
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from rlds2reverb.datasets import environments
from rlds2reverb.datasets import policies
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib

# The indices of position and angle in an observation of CartPole.
_POSITIONS = [0, 2]


def _hide_velocities(library: Any, env: Any) -> Any:
  """Wraps CartPole to observe the position and the angle, float32 `[2]`.

  Args:
    library: gym or gymnasium, which have the same wrapper.
    env: CartPole of that library.
  """

  class PositionOnlyCartPole(library.ObservationWrapper):

    def __init__(self, env):
      super().__init__(env)
      bounds = env.observation_space.low, env.observation_space.high
      low, high = (bound[_POSITIONS] for bound in bounds)
      self.observation_space = library.spaces.Box(low, high, dtype=np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
      return observation[_POSITIONS]

  return PositionOnlyCartPole(env)


for _library in gym, gymnasium:
  _library.register(
      id='PositionOnlyCartPole-v1',
      entry_point=lambda _library=_library, **kwargs: _hide_velocities(
          _library, _library.make('CartPole-v1', **kwargs).unwrapped
      ),
      max_episode_steps=500,
  )


def make_environment(environment: str, seed: int = 0) -> gym_wrapper.GymWrapper:
  """Makes a seeded Gym environment for TF-Agents.

  Args:
    environment: the id of a Gym environment.
    seed: the seed of the initial states.

  Raises:
    ValueError: if there is no such environment.
  """
  try:
    env = gym.make(environment)
  except gym.error.Error as e:
    raise ValueError(f'There is no Gym environment {environment!r}: {e}') from e
  env = gym_wrapper.GymWrapper(env)
  env.seed(seed)
  return env


def get_specs(
    environment: str, rlds_data: tf.data.Dataset
) -> tuple[ts.TimeStep, Any]:
  """Returns the time step and action specs of an environment.

  Args:
    environment: the id of a Gym environment.
    rlds_data: an RLDS data set with the same observations and actions.

  Raises:
    ValueError: if there is no such environment, or the observations or actions
      of the data differ from its specs. The error lists each difference.
  """
  env = make_environment(environment)
  env.close()
  time_step_spec, action_spec = tensor_spec.from_spec(
      (env.time_step_spec(), env.action_spec())
  )
  step = steps_lib.get_steps_spec(rlds_data.element_spec).step

  def describe(observation, action):
    leaves = paths.leaves({rlds.OBSERVATION: observation, rlds.ACTION: action})
    return {k: f'{leaf.dtype.name} {leaf.shape}' for k, leaf in leaves.items()}

  expected = describe(time_step_spec.observation, action_spec)
  actual = describe(step[rlds.OBSERVATION], step[rlds.ACTION])
  differences = [
      f'{path} is {actual.get(path, "missing")} in the data, and'
      f' {expected.get(path, "missing")} in the environment'
      for path in sorted({*actual, *expected})
      if actual.get(path) != expected.get(path)
  ]
  if differences:
    raise ValueError(
        f'The data does not fit {environment}: {"; ".join(differences)}. Map'
        ' its fields with a StepMapping, which can also cast them.'
    )
  return time_step_spec, action_spec


class CartPoleController:
  """Balances CartPole with a linear feedback of the state.

  Observations are `[4]` with velocities, or `[2]` without. In that case the
  velocities are estimated from the previous observation.
  """

  # The gains of cart position, cart velocity, pole angle, pole velocity.
  _GAINS = np.array([0.1, 0.4, 3.0, 1.0])
  _SECONDS_PER_STEP = 0.02

  _previous: np.ndarray | None = None

  def reset(self) -> None:
    self._previous = None

  def __call__(self, observation: np.ndarray) -> np.int64:
    state = observation
    if len(observation) == 2:
      previous = observation if self._previous is None else self._previous
      velocities = (observation - previous) / self._SECONDS_PER_STEP
      state = np.stack([observation, velocities], axis=1).flatten()
      self._previous = np.array(observation)
    return np.int64(self._GAINS @ state > 0)


class PendulumController:
  """Swings up Gym's pendulum by energy control, and balances it.

  It follows Astrom and Furuta, "Swinging up a pendulum by energy control"
  (2000).
  """

  _GRAVITY = 10.0
  _MAX_TORQUE = 2.0

  def reset(self) -> None:
    """Does nothing: the policy is stateless."""

  def __call__(self, observation: np.ndarray) -> np.ndarray:
    cos, sin, velocity = observation
    angle = np.arctan2(sin, cos)
    if abs(angle) < 0.6 and abs(velocity) < 3.0:
      torque = -10.0 * angle - 3.0 * velocity
    else:
      # The energy of a rod of mass and length 1, which is 0 upright at rest.
      energy = velocity**2 / 6 + self._GRAVITY / 2 * (cos - 1)
      torque = -3.0 * energy * np.sign(velocity if velocity else 1.0)
    return np.array(
        [np.clip(torque, -self._MAX_TORQUE, self._MAX_TORQUE)], np.float32
    )


class NoisyPolicy:
  """Replaces actions of a policy by random ones, for data of mixed quality.

  At each reset, the probability of a random action in the episode is drawn
  uniformly from 0 to `randomness`. Random actions are uniform.
  """

  def __init__(
      self,
      policy: Any,
      action_space: gymnasium.Space,
      randomness: float,
      seed: int,
  ):
    """Wraps a policy.

    Args:
      policy: a policy with `reset`.
      action_space: the space of random actions, which is seeded.
      randomness: the maximum probability of a random action, in [0, 1].
      seed: the seed of all draws.

    Raises:
      ValueError: if `randomness` is not in [0, 1].
    """
    if not 0.0 <= randomness <= 1.0:
      raise ValueError(f'randomness must be in [0, 1], but is {randomness}.')
    self._policy, self._action_space = policy, action_space
    self._randomness, self._probability = randomness, 0.0
    self._generator = np.random.default_rng(seed)
    self.info_space = getattr(policy, 'info_space', None)
    action_space.seed(seed)

  def reset(self) -> None:
    self._policy.reset()
    self._probability = self._generator.uniform(0.0, self._randomness)

  def __call__(self, observation: Any) -> Any:
    # The policy is called for random actions as well, as it may be stateful.
    result = self._policy(observation)
    if self._generator.random() >= self._probability:
      return result
    action = self._action_space.sample()
    return action if self.info_space is None else (action, result[1])


_SCRIPTED = {'cart_pole': CartPoleController, 'pendulum': PendulumController}


def make_policy(
    name: str, environment: str, *, randomness: float = 0.0, seed: int = 0
) -> Any:
  """Makes a policy for `record_episodes`.

  Args:
    name: `cart_pole` or `pendulum` for a scripted policy, or the directory of a
      saved policy.
    environment: the id of the Gymnasium environment.
    randomness: see `NoisyPolicy`.
    seed: see `NoisyPolicy`.

  Raises:
    FileNotFoundError: if `name` is neither.
    ValueError: if `randomness` is not in [0, 1], or there is no such
      environment.
  """
  if name in _SCRIPTED:
    policy = _SCRIPTED[name]()
  else:
    try:
      policy = policies.SavedPolicy(name)
    except FileNotFoundError as e:
      raise FileNotFoundError(
          f'{e} The scripted policies are {sorted(_SCRIPTED)}.'
          f'{checks.did_you_mean(name, _SCRIPTED)}'
      ) from e
  if not randomness:
    return policy
  env = environments.make_environment(environment, seed)
  env.close()
  return NoisyPolicy(policy, env.action_space, randomness, seed)
