"""Policies to record with: callables, TF-Agents policies and saved ones.

`make_policy` takes whatever a user has and returns a callable policy, the
interface that `record_episodes` documents: it maps an observation to an action,
and may have `reset` and `info_space`.
"""

from collections.abc import Callable
import os
from typing import Any

import gymnasium
import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import files

Policy = Callable[[Any], Any]

_FIRST, _MID = 0, 1


def make_policy(policy: Any, num_envs: int | None = None) -> Policy | None:
  """Makes a callable policy.

  Args:
    policy: None, for random actions; a function or another callable; a policy
      of TF-Agents, in Python or TensorFlow; or the folder in which TF-Agents'
      `PolicySaver` has saved one.
    num_envs: the number of environments, if they are vectorized.

  Raises:
    FileNotFoundError: if there is no saved policy in the folder.
    ValueError: if `policy` is none of these.
  """
  if isinstance(policy, (str, os.PathLike)):
    return SavedPolicy(policy, num_envs)
  if hasattr(policy, 'action') and hasattr(policy, 'get_initial_state'):
    return TfAgentsPolicy(policy, num_envs)
  if policy is not None and not callable(policy):
    raise ValueError(
        'A policy must be a function, a policy of TF-Agents or the folder of a'
        f' saved one, but is a {type(policy).__name__}.'
    )
  return policy


class TfAgentsPolicy:
  """A TF-Agents policy as a function from an observation to an action.

  If the policy is recurrent, its `info_space` is a dict `state` of the leaves
  of its state, and a call returns an action and the state with which the action
  was chosen. `record_episodes` writes the state as the `policy_info` of a step,
  and `RecurrentDqn` can start from it.
  """

  def __init__(self, policy: Any, num_envs: int | None = None):
    """Wraps a policy.

    Args:
      policy: a policy of TF-Agents.
      num_envs: the number of environments, if they are vectorized.
    """
    from tf_agents.policies import py_tf_eager_policy
    from tf_agents.policies import tf_policy

    if isinstance(policy, tf_policy.TFPolicy):
      policy = py_tf_eager_policy.PyTFEagerPolicy(
          policy, use_tf_function=True, batch_time_steps=num_envs is None
      )
    self._policy, self._num_envs = policy, num_envs
    # The state of a policy in TensorFlow has a batch dimension, always.
    is_tf = isinstance(policy, py_tf_eager_policy.PyTFEagerPolicyBase)
    self._state_size = num_envs or (1 if is_tf else None)
    self.info_space = None
    spaces = {
        str(index): gymnasium.spaces.Box(
            -np.inf, np.inf, tuple(spec.shape), _numpy_dtype(spec.dtype)
        )
        for index, spec in enumerate(tf.nest.flatten(policy.policy_state_spec))
    }
    if spaces:
      state = gymnasium.spaces.Dict(spaces)
      self.info_space = gymnasium.spaces.Dict(state=state)
    self._state = policy.get_initial_state(batch_size=self._state_size)
    self._is_first = np.ones(num_envs or 1, bool)

  def reset(self, is_first: np.ndarray | None = None) -> None:
    """Resets the state.

    Args:
      is_first: bool `[E]`: the environments, if they are vectorized, of which
        the next observation begins an episode.
    """
    initial = self._policy.get_initial_state(batch_size=self._state_size)
    if is_first is None:
      self._is_first[:], self._state = True, initial
      return
    self._is_first = is_first

    def reset(first, state):
      mask = tf.reshape(is_first, [-1] + [1] * (len(state.shape) - 1))
      return tf.where(mask, first, state)

    self._state = tf.nest.map_structure(reset, initial, self._state)

  def __call__(self, observation: Any) -> Any:
    from tf_agents.trajectories import time_step as ts

    # Some environments return float64 although their space is float32.
    observation = tf.nest.map_structure(
        lambda leaf, spec: np.asarray(leaf, _numpy_dtype(spec.dtype)),
        observation,
        self._policy.time_step_spec.observation,
    )
    shape = () if self._num_envs is None else (self._num_envs,)
    step_type = np.where(self._is_first, _FIRST, _MID).astype(np.int32)
    time_step = ts.TimeStep(
        np.reshape(step_type, shape),
        np.zeros(shape, np.float32),
        np.ones(shape, np.float32),
        observation,
    )
    state = self._state
    step = self._policy.action(time_step, state)
    self._state = step.state
    self._is_first = np.zeros_like(self._is_first)
    action = tf.nest.map_structure(np.asarray, step.action)
    if self.info_space is None:
      return action
    # A TF policy in a single environment has a state of one row.
    is_row = self._num_envs is None and self._state_size is not None
    leaves = [np.asarray(leaf) for leaf in tf.nest.flatten(state)]
    return action, {
        'state': {
            str(i): leaf[0] if is_row else leaf for i, leaf in enumerate(leaves)
        }
    }


class SavedPolicy(TfAgentsPolicy):
  """A policy that TF-Agents' `PolicySaver` has saved."""

  def __init__(self, directory: files.PathLike, num_envs: int | None = None):
    """Loads a policy.

    Args:
      directory: the folder of the saved policy.
      num_envs: the number of environments, if they are vectorized.

    Raises:
      FileNotFoundError: if there is no saved policy.
    """
    from tf_agents.policies import py_tf_eager_policy

    directory = files.expand(directory)
    if not files.exists(os.path.join(directory, 'saved_model.pb')):
      raise FileNotFoundError(
          f'There is no saved policy in {directory}: no saved_model.pb.'
      )
    super().__init__(
        py_tf_eager_policy.SavedModelPyTFEagerPolicy(
            directory,
            load_specs_from_pbtxt=True,
            batch_time_steps=num_envs is None,
        ),
        num_envs,
    )


def _numpy_dtype(dtype: Any) -> np.dtype:
  """Converts a dtype of TensorFlow or NumPy to a dtype of NumPy."""
  return np.dtype(getattr(dtype, 'as_numpy_dtype', dtype))
