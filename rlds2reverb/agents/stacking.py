"""Multi-agent steps with a dimension of agents, `[S, A, ...]`."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rlds2reverb.agents import episodes
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import rows as rows_lib
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.windows import presence as presence_lib
from rlds2reverb.windows import transitions
from rlds2reverb.windows import unrolling

AGENT_MASK = 'agent_mask'
NEXT_AGENT_MASK = 'next_agent_mask'
AGENT_IS_TERMINAL = 'agent_is_terminal'
TEAM_REWARDS = ('sum', 'mean')


def stack_agents(
    steps: Any,
    agents: Sequence[Any] | None = None,
    *,
    presence: str = episodes.PRESENCE,
    team_reward: str | None = None,
    names: transitions.Names = None,
) -> dict[str, Any]:
  """Stacks the per-agent fields of steps along a dimension of agents.

      observation    {'a': [S, ...], 'b': [S, ...]}    becomes [S, 2, ...]
      agent_mask                                       bool [S, 2]

  Rows of an absent agent are zeros, with a mask of False.

  Args:
    steps: the steps of one multi-agent episode, nested or stacked; see
      `rlds2reverb.agents`.
    agents: the agents to stack, in this order; by default all.
    presence: the name of the presence field, which becomes the mask.
    team_reward: `"sum"` or `"mean"` for one reward `[S]`, over the agents that
      act: from their first step to the step before their last. By default the
      reward is `[S, A]`.
    names: other names for `agent_mask` and `agent_is_terminal`.

  Returns:
    The stacked steps, with shared fields and the mask. A per-agent
    `is_terminal` becomes `agent_is_terminal`, `[S, A]`; the new `is_terminal`
    is True at the last step if all present agents are terminal. Other flags and
    discounts must be shared.

  Raises:
    ValueError: if there are no agents or none of a given name, a per-agent
      field differs in structure, dtype or shape between agents, a flag or
      discount is per agent, or a field that is added exists.
    InvalidArgumentError: if fields differ in length.
  """
  if team_reward is not None:
    checks.check_choice('team_reward', team_reward, TEAM_REWARDS)
  steps = transitions.stack_dict(steps)
  all_agents, per_agent, stacked = episodes.find_fields(steps, presence)
  agents = all_agents if agents is None else list(agents)
  for agent in agents:
    checks.check_known('An episode', 'agent', agent, all_agents)
  if not agents:
    raise ValueError('agents must have at least one agent, but is empty.')
  mask = tf.stack(
      [presence_lib.flags(steps, agent, presence) for agent in agents], 1
  )
  for field, value in per_agent.items():
    if field in (rlds.IS_FIRST, rlds.IS_LAST, rlds.DISCOUNT):
      raise ValueError(
          f'{field} must be shared by the agents that are stacked, but is per'
          ' agent. Replace it by one field, or use select_agent.'
      )
    rows = [value[agent] for agent in agents]
    specs = sorted({episodes.describe_specs(row) for row in rows})
    if len(specs) > 1:
      raise ValueError(
          f'The agents must have the same {field}, but it is'
          f' {" or ".join(specs)}. Stack only agents that agree, or use'
          ' select_agent.'
      )
    stacked[field] = rows_lib.fill_unless(
        mask,
        tf.nest.map_structure(lambda *leaves: tf.stack(leaves, 1), *rows),
    )
  columns = {AGENT_MASK: mask}
  if rlds.IS_TERMINAL in per_agent:
    columns[AGENT_IS_TERMINAL] = stacked[rlds.IS_TERMINAL]
    terminal = tf.cast(stacked[rlds.IS_TERMINAL], tf.bool) | ~mask
    is_last = steps_lib.to_column(
        rlds.IS_LAST, paths.get(steps, rlds.IS_LAST), tf.bool
    )
    stacked[rlds.IS_TERMINAL] = (
        is_last & tf.reduce_all(terminal, 1) & tf.reduce_any(mask, 1)
    )
  if team_reward is not None:
    stacked[rlds.REWARD] = _compute_team_reward(
        [paths.get(steps, (rlds.REWARD, agent)) for agent in agents],
        presence_lib.is_active(mask),
        team_reward,
    )
  return transitions.add_columns(stacked, columns, names)


def _compute_team_reward(
    rewards: Sequence[Any], is_acting: tf.Tensor, reduction: str
) -> tf.Tensor:
  """Reduces the rewards of the agents, each `[S]`, to one reward `[S]`."""
  columns = []
  for reward in rewards:
    if not tf.is_tensor(reward) or not reward.dtype.is_floating:
      raise ValueError(
          'A team reward needs a reward of one float per agent, but one agent'
          f' has {reward}.'
      )
    columns.append(steps_lib.to_column(rlds.REWARD, reward, reward.dtype))
  reward = rows_lib.fill_unless(is_acting, tf.stack(columns, 1))
  total = tf.reduce_sum(reward, 1)
  if reduction == 'sum':
    return total
  count = tf.maximum(tf.math.count_nonzero(is_acting, 1), 1)
  return total / tf.cast(count, total.dtype)


def unroll_agents(
    steps: Any,
    windows: windows_lib.Windows,
    *,
    agents: Sequence[Any] | None = None,
    presence: str = episodes.PRESENCE,
    team_reward: str | None = 'sum',
    state: str | None = None,
    time_major: bool = False,
) -> unrolling.Chunks:
  """Cuts a multi-agent episode into chunks with a dimension of agents.

  DI-engine's QMIX and COMA learn from such sequences. A time-major batch of `B`
  chunks, with a team reward, has

      observation, next_observation    [T, B, A, ...]
      action                           [T, B, A]
      reward, discount, is_terminal    [T, B]
      agent_mask, next_agent_mask      [T, B, A]

  `agent_mask` is True at the steps at which an agent is present, except for its
  last step, at which it does not act: the weights of COMA. `next_agent_mask` is
  True where the agent sees the next observation.

  Args:
    steps: see `stack_agents`.
    windows: the chunks to cut; see `windows.unroll`.
    agents: see `stack_agents`.
    presence: see `stack_agents`.
    team_reward: see `stack_agents`; by default the sum, as these learners take
      one reward. A shared reward is not changed.
    state: the path of the field with the recurrent states.
    time_major: whether columns and mask are `[L, C, ...]`.

  Returns:
    The `Chunks`. Leaves of per-agent fields are `[C, L, A, ...]`, and a
    per-agent initial state `[C, A, ...]`. Padding has a `mask` of False, with
    any `agent_mask`.

  Raises:
    ValueError, InvalidArgumentError: as `stack_agents` and `windows.unroll` do;
      and if there is a field `next_agent_mask`.
  """
  steps = transitions.stack_dict(steps)
  is_per_agent = rlds.REWARD in episodes.find_fields(steps, presence).per_agent
  stacked = stack_agents(
      steps,
      agents,
      presence=presence,
      team_reward=team_reward if is_per_agent else None,
  )
  is_present = stacked[AGENT_MASK]
  stacked[AGENT_MASK] = presence_lib.is_acting(is_present)
  rows = transitions.transition_rows(stacked)
  columns = {NEXT_AGENT_MASK: is_present[1:]}
  rows = rows._replace(columns=transitions.add_columns(rows.columns, columns))
  return unrolling.unroll(rows, windows, state=state, time_major=time_major)
