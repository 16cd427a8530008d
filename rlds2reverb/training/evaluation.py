"""The return of a policy, over whole episodes of an environment."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf
from tf_agents.environments import batched_py_environment
from tf_agents.policies import tf_policy
from tf_agents.utils import common

from rlds2reverb.episodes import checks
from rlds2reverb.training import environments


class Returns(NamedTuple):
  """The undiscounted returns of some episodes.

  Attributes:
    returns: float64 `[N]`, one for each episode.
  """

  returns: np.ndarray

  @property
  def mean(self) -> float:
    return float(np.mean(self.returns))

  @property
  def standard_error(self) -> float:
    """The standard error of the mean; NaN for a single episode."""
    if len(self.returns) < 2:
      return float('nan')
    return float(np.std(self.returns, ddof=1) / np.sqrt(len(self.returns)))

  def __str__(self) -> str:
    return (
        f'{self.mean:.1f} +- {self.standard_error:.1f}'
        f' ({len(self.returns)} episodes)'
    )


class Evaluator:
  """Plays episodes, all at once, so that the policy is called on batches.

  Each environment plays one episode. If environments started again until there
  are enough episodes, short episodes would count more often than long ones.

  Attributes:
    policy: the policy.
  """

  def __init__(
      self,
      policy: tf_policy.TFPolicy,
      environment: str,
      num_episodes: int = 20,
      *,
      seed: int = 0,
  ):
    """Makes the environments.

    Args:
      policy: the policy, with the specs of the environment.
      environment: the id of a gym environment.
      num_episodes: how many episodes are played.
      seed: the seed of the first environment; that of the next is one higher.

    Raises:
      ValueError: if `num_episodes` is not positive, or there is no such
        environment.
    """
    checks.check_positive('num_episodes', num_episodes)
    self.policy = policy
    self._action = common.function(policy.action)
    self._seed = seed
    numbers = range(num_episodes)
    made = [environments.make_environment(environment) for _ in numbers]
    self._environments = batched_py_environment.BatchedPyEnvironment(
        made, multithreading=False
    )

  def run(self) -> Returns:
    """Plays the episodes, which start in the same states each time."""
    for i, env in enumerate(self._environments.envs):
      env.seed(self._seed + i)
    step = self._environments.reset()
    state = self.policy.get_initial_state(self._environments.batch_size)
    returns = np.zeros(self._environments.batch_size)
    is_over = step.is_last()
    while not is_over.all():
      step = tf.nest.map_structure(tf.convert_to_tensor, step)
      action, state, _ = self._action(step, state)
      # An environment that is over starts again, which does not count.
      step = self._environments.step(
          tf.nest.map_structure(lambda leaf: leaf.numpy(), action)
      )
      returns += np.where(is_over, 0, step.reward)
      is_over |= step.is_last()
    return Returns(returns)
