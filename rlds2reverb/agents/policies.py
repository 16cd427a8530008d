"""Splits a data set by policy, into the episodes of its agents."""

import functools
from typing import Any, Callable, Dict, List

import tensorflow as tf

from rlds2reverb.agents import layout
from rlds2reverb.agents import selecting
from rlds2reverb.episodes import gathering
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.episodes import steps as steps_lib


def split_by_policy(
    rlds_data: tf.data.Dataset,
    policy_of: Callable[[Any], str],
    *,
    presence: str = layout.PRESENCE,
    gaps: str = selecting.ERROR,
    last_reward: str = 'step',
) -> Dict[str, tf.data.Dataset]:
  """Returns the episodes of the agents of each policy, as RLlib maps them.

  Each data set can go into a table of its own:

      for policy, data in split_by_policy(episodes, policy_of).items():
        options = rlds2reverb.ConversionOptions(
            identity={'data': 'soccer', 'policy': policy})
        rlds2reverb.write_rlds_to_reverb(
            data, 'localhost:8000', rlds2reverb.TableItems(policy),
            options=options)

  Episodes of several agents come from one episode, so an `episode_id` does not
  identify an episode any more: leave it out of the options.

  Args:
    rlds_data: an RLDS data set of episodes of many agents.
    policy_of: returns the name of the policy of an agent. It is called once for
      each agent, when the pipeline is built.
    presence: the field that says which agents are there.
    gaps: see `select_agent`.
    last_reward: see `select_agent`.

  Returns:
    By the names of the policies, RLDS data sets of the episodes of
    `select_agent`, in the order of the data and of the agents. Agents that
    never came in an episode have none there. Each data set reads all of the
    data.

  Raises:
    ValueError: if there are no agents; `policy_of` does not return a string; or
      the agents of a policy differ in structure, dtype or shape.
    InvalidArgumentError: while iterating, as `select_agent` does.
  """
  spec = rlds_data.element_spec
  steps_lib.check_has_steps('An element of rlds_data', spec)
  steps = spec[rlds.STEPS]
  if isinstance(steps, tf.data.DatasetSpec):
    steps = steps.element_spec
  agents_by_policy: Dict[str, List[Any]] = {}
  for agent in layout.agents_of(steps, presence):
    policy = policy_of(agent)
    if not isinstance(policy, str):
      raise ValueError(
          f'policy_of must return the name of a policy, but returns {policy!r}'
          f' for the agent {agent!r}.'
      )
    agents_by_policy.setdefault(policy, []).append(agent)

  def episodes_of(policy: str, agents: List[Any]) -> tf.data.Dataset:
    def select(episode):
      parts = [
          selecting.select_agent(
              episode,
              agent,
              presence=presence,
              gaps=gaps,
              last_reward=last_reward,
          )
          for agent in agents
      ]
      specs = {repr(layout.specs_of(part[rlds.STEPS])) for part in parts}
      if len(specs) > 1:
        raise ValueError(
            f'The policy {policy!r} is for agents that differ, {agents}, whose'
            f' steps are {" or ".join(sorted(specs))}.'
        )
      each = map(tf.data.Dataset.from_tensors, parts)
      return functools.reduce(tf.data.Dataset.concatenate, each)

    return (
        stacked_steps.stack_episodes(rlds_data)
        .flat_map(select)
        .filter(lambda episode: gathering.num_rows(episode[rlds.STEPS]) > 0)
    )

  return {one: episodes_of(one, them) for one, them in agents_by_policy.items()}
