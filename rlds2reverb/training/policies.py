"""Policies to record episodes with: scripted ones, noisy ones and saved ones.

    policy = policies.make_policy('pendulum', 'Pendulum-v1', randomness=0.5)
    datasets.record_episodes('Pendulum-v1', directory, 200, policy=policy)

`record_episodes` calls a policy with an observation, and `reset` before the
first observation of each episode.
"""

import os
from typing import Any, Optional

import gym
import numpy as np
import tensorflow as tf
from tf_agents.policies import py_tf_eager_policy
from tf_agents.trajectories import time_step as ts

from rlds2reverb.datasets import files
from rlds2reverb.datasets import recording
from rlds2reverb.episodes import checks


class CartPoleController:
  """Balances CartPole with a linear feedback of the state.

  It takes observations with velocities, `[4]`, or without, `[2]`. For the
  latter, the differences of positions serve as velocities.
  """

  # The feedback of cart position, cart velocity, pole angle, pole velocity.
  _GAINS = np.array([0.1, 0.4, 3.0, 1.0])
  _SECONDS_PER_STEP = 0.02

  _last: Optional[np.ndarray] = None

  def reset(self) -> None:
    self._last = None

  def __call__(self, observation: np.ndarray) -> np.int64:
    state = observation
    if len(observation) == 2:
      last = observation if self._last is None else self._last
      velocities = (observation - last) / self._SECONDS_PER_STEP
      state = np.stack([observation, velocities], axis=1).flatten()
      self._last = np.array(observation)
    return np.int64(self._GAINS @ state > 0)


class PendulumController:
  """Swings gym's pendulum up by its energy, and holds it there.

  After Astrom and Furuta, "Swinging up a pendulum by energy control" (2000).
  """

  _GRAVITY = 10.0
  _MAX_TORQUE = 2.0

  def reset(self) -> None:
    """Does nothing: the action depends on the observation alone."""

  def __call__(self, observation: np.ndarray) -> np.ndarray:
    cos, sin, velocity = observation
    angle = np.arctan2(sin, cos)
    if abs(angle) < 0.6 and abs(velocity) < 3.0:
      torque = -10.0 * angle - 3.0 * velocity
    else:
      # The energy of a rod of mass and length 1, 0 if upright and at rest.
      energy = velocity**2 / 6 + self._GRAVITY / 2 * (cos - 1)
      torque = -3.0 * energy * np.sign(velocity if velocity else 1.0)
    return np.array(
        [np.clip(torque, -self._MAX_TORQUE, self._MAX_TORQUE)], np.float32
    )


class NoisyPolicy:
  """Mixes the actions of a policy with random ones, for data of mixed quality.

  At each reset it draws, uniformly from 0 to `randomness`, the probability with
  which an action of the episode is random. Random actions are uniform.
  """

  def __init__(
      self, policy: Any, action_space: gym.Space, randomness: float, seed: int
  ):
    """Wraps a policy.

    Args:
      policy: a policy with `reset`.
      action_space: the space from which random actions are drawn. Its seed is
        set.
      randomness: the highest probability of a random action, in [0, 1].
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
    # Random actions call it, too, because a policy may have a memory.
    result = self._policy(observation)
    if self._generator.random() >= self._probability:
      return result
    action = self._action_space.sample()
    return action if self.info_space is None else (action, result[1])


class SavedPolicy:
  """A policy that TF-Agents' `PolicySaver` has saved, for recording.

  If it is recurrent, its `info_space` is a dict `state` of the leaves of its
  state, and it returns pairs of an action and the state with which the action
  was chosen. `record_episodes` writes the state as the `policy_info` of the
  steps, and `RecurrentDqn` can start from it.
  """

  def __init__(self, directory: files.PathLike):
    """Loads a policy.

    Args:
      directory: the folder of the saved policy.

    Raises:
      FileNotFoundError: if there is no saved policy.
    """
    directory = files.expand(directory)
    if not files.exists(os.path.join(directory, 'saved_model.pb')):
      raise FileNotFoundError(
          f'There is no saved policy in {directory}: no saved_model.pb.'
      )
    self._policy = py_tf_eager_policy.SavedModelPyTFEagerPolicy(
        directory, load_specs_from_pbtxt=True
    )
    box = lambda leaf: gym.spaces.Box(-np.inf, np.inf, leaf.shape, leaf.dtype)
    specs = map(box, tf.nest.flatten(self._policy.policy_state_spec))
    state = {str(index): space for index, space in enumerate(specs)}
    self.info_space = None
    if state:
      self.info_space = gym.spaces.Dict(state=gym.spaces.Dict(state))
    self.reset()

  def reset(self) -> None:
    self._state = self._policy.get_initial_state(batch_size=1)
    self._is_first = True

  def __call__(self, observation: Any) -> Any:
    # Some environments return float64 although their space is float32.
    observation = tf.nest.map_structure(
        lambda leaf, spec: np.asarray(leaf, spec.dtype),
        observation,
        self._policy.time_step_spec.observation,
    )
    time_step = ts.transition(observation, reward=0.0)
    if self._is_first:
      time_step = ts.restart(observation)
    before = enumerate(tf.nest.flatten(self._state))
    step = self._policy.action(time_step, self._state)
    self._is_first, self._state = False, step.state
    if self.info_space is None:
      return step.action
    return step.action, {'state': {str(i): one[0].numpy() for i, one in before}}


_SCRIPTED = {'cart_pole': CartPoleController, 'pendulum': PendulumController}


def make_policy(
    name: str, environment: str, *, randomness: float = 0.0, seed: int = 0
) -> Any:
  """Makes a policy for `record_episodes`.

  Args:
    name: `cart_pole` or `pendulum`, for the scripted ones; or the directory of
      a saved policy.
    environment: the id of the gym environment that it acts in.
    randomness: see `NoisyPolicy`.
    seed: see `NoisyPolicy`.

  Raises:
    FileNotFoundError: if `name` is neither of those.
    ValueError: if `randomness` is not in [0, 1], or there is no such
      environment.
  """
  if name in _SCRIPTED:
    policy = _SCRIPTED[name]()
  else:
    try:
      policy = SavedPolicy(name)
    except FileNotFoundError as e:
      raise FileNotFoundError(
          f'{e} The scripted policies are {sorted(_SCRIPTED)}.'
          f'{checks.did_you_mean(name, _SCRIPTED)}'
      ) from e
  if not randomness:
    return policy
  env = recording.make_gym(environment)
  env.close()
  return NoisyPolicy(policy, env.action_space, randomness, seed)
