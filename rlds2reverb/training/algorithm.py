"""The base of every algorithm that `train` runs."""

import abc
from typing import Any

import tensorflow as tf
from tf_agents.agents import tf_agent
from tf_agents.trajectories import time_step as ts


class Algorithm(abc.ABC):
  """The hyper-parameters of an algorithm, and how its agent is made.

  An algorithm of your own is a frozen dataclass. `gin.configurable` is needed
  if a config should set its hyper-parameters:

      @gin.configurable
      @dataclasses.dataclass(frozen=True)
      class Td3(Algorithm):
        learning_rate: float = 3e-4

        def make_agent(self, time_step_spec, action_spec, train_step):
          ...
          return td3_agent.Td3Agent(time_step_spec, action_spec, ...)

  Attributes:
    sequence_length: `T`, the number of frames of an item that the agent learns
      from: 2 for a transition.
    end_of_episode: how a shorter episode is treated; see `EndOfEpisode`.
    uses_policy_info: whether the `policy_info` of the data's steps is a part of
      the batches.
  """

  sequence_length: int = 2
  end_of_episode: str = 'drop'
  uses_policy_info: bool = False

  @abc.abstractmethod
  def make_agent(
      self,
      time_step_spec: ts.TimeStep,
      action_spec: Any,
      train_step: tf.Variable,
  ) -> tf_agent.TFAgent:
    """Makes an agent with new networks.

    Args:
      time_step_spec: the spec of the agent's observations. Observations of
        floats are normalised.
      action_spec: the spec of its action. An action of floats is in [-1, 1].
      train_step: int64 `[]`, which counts the agent's train steps.

    Returns:
      The agent, which learns from `Trajectory` batches `[B, T, ...]`.

    Raises:
      ValueError: if the algorithm does not fit the specs.
    """


def only_action(action_spec: Any) -> tf.TensorSpec:
  """Returns the one leaf of an action spec.

  Raises:
    ValueError: if there are several.
  """
  leaves = tf.nest.flatten(action_spec)
  if len(leaves) != 1:
    raise ValueError(
        'The algorithms of TF-Agents take one action, but the environment has'
        f' {len(leaves)}: {action_spec}. Make one vector of them, for example'
        ' with a StepMapping and a wrapper of the environment.'
    )
  return leaves[0]
