"""Episodes of single agents and policies, from multi-agent episodes."""

from collections.abc import Callable
import functools
from typing import Any, NamedTuple

import tensorflow as tf

from rlds2reverb.episodes import batch as batch_lib
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import errors
from rlds2reverb.episodes import pipelines
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import rows as rows_lib
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.windows import presence as presence_lib
from rlds2reverb.windows import transitions

PRESENCE = presence_lib.PRESENCE
AGENT = 'agent'
ERROR, SKIP = 'error', 'skip'
GAPS = (ERROR, SKIP)


class AgentFields(NamedTuple):
  """The fields of multi-agent steps.

  Attributes:
    agents: the agents, in the order of the presence or the observation.
    per_agent: the per-agent fields, without the presence.
    shared: all other fields.
  """

  agents: list[Any]
  per_agent: dict[str, dict[Any, Any]]
  shared: dict[str, Any]


def get_agents(steps: dict[str, Any], presence: str = PRESENCE) -> list[Any]:
  """Returns the agents of steps, or of the specs of steps.

  Args:
    steps: a dict of fields.
    presence: the name of the presence field.

  Returns:
    The keys of the presence, or of the observation if there is no presence.

  Raises:
    ValueError: if neither is a dict.
  """
  for field in (presence, rlds.OBSERVATION):
    if isinstance(steps.get(field), dict) and steps[field]:
      return list(steps[field])
  raise ValueError(
      f'The steps have no agents: {presence!r} or {rlds.OBSERVATION!r} must be'
      f' a dict by agent. The fields are {sorted(steps)}.'
  )


def find_fields(steps: dict[str, Any], presence: str = PRESENCE) -> AgentFields:
  """Returns the per-agent and shared fields of steps.

  Raises:
    ValueError: if the steps have no agents, or a per-agent field lacks one.
  """
  fields = AgentFields(get_agents(steps, presence), {}, {})
  for field, value in steps.items():
    if field == presence:
      continue
    if not isinstance(value, dict) or not set(value) & set(fields.agents):
      fields.shared[field] = value
      continue
    fields.per_agent[field] = value
    if set(value) != set(fields.agents):
      raise ValueError(
          f'The per-agent field {field!r} must have the agents {fields.agents},'
          f' but has {list(value)}. Use zeros where an agent is absent, and'
          f' mark these steps in {presence!r}.'
      )
  return fields


def describe_specs(rows: Any) -> str:
  """Returns the dtypes and shapes of rows `[N, ...]`, as text."""
  specs = tf.nest.map_structure(
      lambda leaf: f'{leaf.dtype.name} {leaf.shape[1:].as_list()}', rows
  )
  return repr(specs)


def select_agent(
    episode: dict[str, Any],
    agent: Any,
    *,
    presence: str = PRESENCE,
    gaps: str = ERROR,
    last_reward: str = batch_lib.STEP,
) -> dict[str, Any]:
  """Returns the RLDS episode of one agent.

  It has the steps from the first to the last step at which the agent is
  present:

      step           0    1    2    3    4
      is_present     F    T    T    T    F
      observation    -    o1   o2   o3   -     its episode: o1 o2 o3
      is_last        F    F    F    F    T                  F  F  T

  The episode of an agent that leaves early is truncated, unless `is_terminal`
  is per agent and marks the step as terminal. Flags and discounts may be shared
  or per agent.

  Where agents take turns, an agent is absent between its turns, and may be
  absent at the end of the episode. With `gaps="skip"`, what happens before the
  agent's next step belongs to its current step: a game that ends in a terminal
  step is terminal for both players. Here x loses by the last move of y:

      step                          0    1    2    3
      x is_present                  T    F    T    F
      x observation                 o0        o2       its episode: o0 o2
      x reward, "step"              0    0    0   -1                0  -1
      x reward, "transition"                                       -1   0
      x is_terminal                                                 F   T

  Args:
    episode: a multi-agent RLDS episode with nested or stacked steps; see
      `rlds2reverb.agents`.
    agent: a key of the per-agent fields.
    presence: the name of the presence field.
    gaps: how to treat an agent that is absent between two of its steps:
      `"error"` refuses the episode; `"skip"` skips these steps, and adds their
      rewards to the agent's step before, as for agents that take turns.
    last_reward: where the reward on or after the last step of the agent
      belongs: `"step"`, which is part of no transition, so that a conversion
      counts it and warns; or `"transition"`, the transition into the last step.
      See `StepMapping`.

  Returns:
    The episode, with the agent's values of per-agent fields and without the
    presence. It has no steps if the agent is never present. Its field `agent`
    is the name of the agent, a string.

  Raises:
    ValueError: if there is no such agent, a per-agent field lacks an agent, the
      steps lack a flag, rewards to add are not numbers, or the episode has a
      field `agent`.
    InvalidArgumentError: if the agent is absent between two of its steps, or
      fields differ in length.
  """
  checks.check_choice('gaps', gaps, GAPS)
  checks.check_choice('last_reward', last_reward, batch_lib.REWARD_LOCATIONS)
  steps_lib.check_has_steps('An episode', episode)
  if AGENT in episode:
    raise ValueError(
        f'The episode must not have a field {AGENT!r}. Rename it first.'
    )
  steps = transitions.stack_dict(episode[rlds.STEPS])
  fields = find_fields(steps, presence)
  checks.check_known('An episode', 'agent', agent, fields.agents)
  fields = {
      **fields.shared,
      **{field: value[agent] for field, value in fields.per_agent.items()},
  }
  for flag in (rlds.IS_LAST, rlds.IS_TERMINAL):
    if flag not in fields:
      raise ValueError(
          f'The steps must have the field {flag}, but have {sorted(steps)}.'
      )
  rows = tf.where(presence_lib.flags(steps, agent, presence))[:, 0]
  if gaps == ERROR:
    gap = tf.where(rows[1:] - rows[:-1] > 1)[:, 0]
    rows = errors.assert_true(
        rows,
        tf.size(gap) == 0,
        f'The agent {agent} is absent in the middle of its episode, after the'
        ' steps',
        tf.gather(rows, gap),
        'Use gaps="skip" if agents take turns.',
    )
  episode_last, episode_terminal = (
      steps_lib.to_column(flag, fields[flag], tf.bool)
      for flag in (rlds.IS_LAST, rlds.IS_TERMINAL)
  )
  selected = rows_lib.take(fields, rows)
  reward = selected.get(rlds.REWARD)
  if gaps == SKIP:  # Any later terminal step ends the agent's last step, too.
    episode_terminal = (
        tf.cumsum(tf.cast(episode_terminal, tf.int32), reverse=True) > 0
    )
    if reward is not None:
      reward = _sum_rewards_between(fields[rlds.REWARD], rows)
  num_rows = tf.size(rows, tf.int64)
  step = tf.range(num_rows)
  is_first, is_final = step == 0, step == num_rows - 1
  # If the episode is cut off while the agent is present, it has no last step.
  has_left = rows < tf.size(episode_last, tf.int64) - 1
  is_last = is_final & (has_left | tf.gather(episode_last, rows))
  if reward is not None:
    if last_reward == batch_lib.TRANSITION:
      reward = batch_lib.move_reward(reward, is_first, is_final)
    selected[rlds.REWARD] = reward
  selected[rlds.IS_FIRST] = is_first
  selected[rlds.IS_LAST] = is_last
  selected[rlds.IS_TERMINAL] = is_last & tf.gather(episode_terminal, rows)
  return {**episode, rlds.STEPS: selected, AGENT: tf.constant(str(agent))}


def _sum_rewards_between(reward, rows) -> Any:
  """Returns for each of `rows` the sum of rewards before the next of `rows`."""
  steps_lib.check_numeric(rlds.REWARD, reward)
  step = tf.range(rows_lib.num_rows(reward))
  # -1 for the steps before the agent's first, whose rewards are dropped.
  segment = tf.searchsorted(rows, step, side='right', out_type=tf.int64) - 1
  return tf.nest.map_structure(
      lambda leaf: tf.math.unsorted_segment_sum(
          leaf, segment, tf.size(rows, tf.int64)
      ),
      reward,
  )


@pipelines.do_not_convert
def split_by_policy(
    rlds_data: tf.data.Dataset,
    policy_mapping_fn: Callable[[Any], str],
    *,
    presence: str = PRESENCE,
    gaps: str = ERROR,
    last_reward: str = batch_lib.STEP,
) -> dict[str, tf.data.Dataset]:
  """Splits a multi-agent data set into the episodes of each policy.

  Each data set can be written to a table:

      for policy, data in split_by_policy(episodes, policy_mapping_fn).items():
        options = rlds2reverb.ConversionOptions(
            identity={'data': 'soccer', 'policy': policy})
        rlds2reverb.write_rlds_to_reverb(
            data, 'localhost:8000', rlds2reverb.TableItems(policy),
            options=options)

  One episode results in several episodes, one for each agent, so an
  `episode_id` no longer identifies an episode: do not pass it in the options.

  Args:
    rlds_data: an RLDS data set of multi-agent episodes.
    policy_mapping_fn: a function from an agent to the name of its policy, as in
      RLlib. It is called once per agent, when the pipeline is built.
    presence: the name of the presence field.
    gaps: see `select_agent`.
    last_reward: see `select_agent`.

  Returns:
    A dict from the names of the policies to RLDS data sets of the episodes of
    `select_agent`, in the order of the data and of the agents. Agents that are
    never present have no episode. Each data set reads all of the data.

  Raises:
    ValueError: if there are no agents, `policy_mapping_fn` does not return a
      string, or the agents of a policy differ in structure, dtype or shape.
    InvalidArgumentError: while iterating, as `select_agent` does.
  """
  steps_lib.check_has_steps('An element of rlds_data', rlds_data.element_spec)
  steps = rlds_data.element_spec[rlds.STEPS]
  if isinstance(steps, tf.data.DatasetSpec):
    steps = steps.element_spec
  agents_by_policy: dict[str, list[Any]] = {}
  for agent in get_agents(steps, presence):
    policy = policy_mapping_fn(agent)
    if not isinstance(policy, str):
      raise ValueError(
          'policy_mapping_fn must return the name of a policy, but returned'
          f' {policy!r} for the agent {agent!r}.'
      )
    agents_by_policy.setdefault(policy, []).append(agent)

  def select(policy, agents, episode):
    episodes = [
        select_agent(
            episode,
            agent,
            presence=presence,
            gaps=gaps,
            last_reward=last_reward,
        )
        for agent in agents
    ]
    specs = {describe_specs(selected[rlds.STEPS]) for selected in episodes}
    if len(specs) > 1:
      raise ValueError(
          f'The agents {agents} of the policy {policy!r} must have steps of the'
          f' same structure, but have {" or ".join(sorted(specs))}.'
      )
    datasets = map(tf.data.Dataset.from_tensors, episodes)
    return functools.reduce(tf.data.Dataset.concatenate, datasets)

  return {
      policy: steps_lib.stack_episodes(rlds_data)
      .flat_map(functools.partial(select, policy, agents))
      .filter(lambda episode: rows_lib.num_rows(episode[rlds.STEPS]) > 0)
      for policy, agents in agents_by_policy.items()
  }
