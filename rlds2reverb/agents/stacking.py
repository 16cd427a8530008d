"""Stacks the fields of many agents: `[S, A, ...]`."""

from typing import Any, Dict, Optional, Sequence

import tensorflow as tf

from rlds2reverb.agents import layout
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import gathering
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.windows import presence as presence_lib
from rlds2reverb.windows import rows as rows_lib
from rlds2reverb.windows import transitions
from rlds2reverb.windows import unrolling

AGENT_MASK = 'agent_mask'
NEXT_AGENT_MASK = 'next_agent_mask'
AGENT_IS_TERMINAL = 'agent_is_terminal'
TEAM_REWARDS = ('sum', 'mean')


def stack_agents(
    steps: Any,
    agents: Optional[Sequence[Any]] = None,
    *,
    presence: str = layout.PRESENCE,
    team_reward: Optional[str] = None,
    names: rows_lib.Names = None,
) -> Dict[str, Any]:
  """Returns steps in which the fields by agent have a dimension of agents.

      observation    {'a': [S, ...], 'b': [S, ...]}    becomes [S, 2, ...]
      agent_mask                                       bool [S, 2]

  Rows of an agent that is away are zeros, and its mask is False.

  Args:
    steps: the steps of one episode of many agents, a nested data set or
      stacked; see the top of `agents`.
    agents: the agents to stack, in this order; by default all.
    presence: the field that says which agents are there; it becomes the mask.
    team_reward: makes one reward `[S]` of the agents' rewards, each from its
      first step to the one before its last: their `"sum"` or their `"mean"`. By
      default the reward stays `[S, A]`.
    names: other names for `agent_mask` and `agent_is_terminal`.

  Returns:
    The steps, stacked, with the mask. The fields of all agents are kept. An
    `is_terminal` by agent becomes `agent_is_terminal`, `[S, A]`; the new
    `is_terminal` is True at the last step if all agents there are terminal. All
    agents must share the other flags and discounts.

  Raises:
    ValueError: if there are no agents, or not those that are named; if the
      fields of two differ in structure, dtype or shape; if a flag or discount
      is by agent; or there is a field already that is added.
    InvalidArgumentError: if fields differ in length.
  """
  if team_reward is not None:
    checks.check_choice('team_reward', team_reward, TEAM_REWARDS)
  steps = transitions.stack_dict(steps)
  known, by_agent, stacked = layout.layout_of(steps, presence)
  agents = known if agents is None else list(agents)
  for agent in agents:
    checks.check_known('An episode', 'agent', agent, known)
  if not agents:
    raise ValueError('agents must name an agent, but is empty.')
  mask = tf.stack(
      [presence_lib.flags(steps, agent, presence) for agent in agents], 1
  )
  for field, value in by_agent.items():
    if field in (rlds.IS_FIRST, rlds.IS_LAST, rlds.DISCOUNT):
      raise ValueError(
          f'{field} is by agent, but stacked agents have one of all. Make it'
          ' one first, or use select_agent.'
      )
    rows = [value[agent] for agent in agents]
    specs = sorted({repr(layout.specs_of(row)) for row in rows})
    if len(specs) > 1:
      raise ValueError(
          f'The agents differ in {field}, which is {" or ".join(specs)}. Stack'
          ' those that agree, or use select_agent.'
      )
    side_by_side = tf.nest.map_structure(
        lambda *leaves: tf.stack(leaves, 1), *rows
    )
    stacked[field] = gathering.fill_unless(mask, side_by_side)
  made = {AGENT_MASK: mask}
  if rlds.IS_TERMINAL in by_agent:
    made[AGENT_IS_TERMINAL] = stacked[rlds.IS_TERMINAL]
    terminal = tf.cast(stacked[rlds.IS_TERMINAL], tf.bool) | ~mask
    last = paths.get(steps, rlds.IS_LAST)
    last = steps_lib.one_a_step(rlds.IS_LAST, last, tf.bool)
    stacked[rlds.IS_TERMINAL] = (
        last & tf.reduce_all(terminal, 1) & tf.reduce_any(mask, 1)
    )
  if team_reward is not None:
    stacked[rlds.REWARD] = _team_reward(
        [paths.get(steps, (rlds.REWARD, agent)) for agent in agents],
        presence_lib.is_in(mask),
        team_reward,
    )
  return rows_lib.add_columns(stacked, made, names)


def _team_reward(rewards: Any, is_in: tf.Tensor, how: str) -> tf.Tensor:
  """Returns one reward `[S]` of those of the agents, a list of `[S]`."""
  columns = []
  for reward in rewards:
    if not tf.is_tensor(reward) or not reward.dtype.is_floating:
      raise ValueError(
          'A team reward needs a reward of one float for each agent, but one is'
          f' {reward}.'
      )
    columns.append(steps_lib.one_a_step(rlds.REWARD, reward, reward.dtype))
  reward = gathering.fill_unless(is_in, tf.stack(columns, 1))
  total = tf.reduce_sum(reward, 1)
  if how == 'sum':
    return total
  count = tf.maximum(tf.math.count_nonzero(is_in, 1), 1)
  return total / tf.cast(count, total.dtype)


def unroll_agents(
    steps: Any,
    windows: windows_lib.Windows,
    *,
    agents: Optional[Sequence[Any]] = None,
    presence: str = layout.PRESENCE,
    team_reward: Optional[str] = 'sum',
    state: Optional[str] = None,
    time_major: bool = False,
) -> unrolling.Chunks:
  """Cuts an episode of many agents into chunks with a dimension of agents.

  These are the sequences on which DI-engine's QMIX and COMA learn. A time-major
  batch of `B` chunks, with a team reward, has

      observation, next_observation    [T, B, A, ...]
      action                           [T, B, A]
      reward, discount, is_terminal    [T, B]
      agent_mask, next_agent_mask      [T, B, A]

  An agent's mask is True at every step at which it is there, except for the
  last one, at which it does not act. This is COMA's weight. Its next mask is
  True where it sees the next observation.

  Args:
    steps: see `stack_agents`.
    windows: which chunks are cut; see `windows.unroll`.
    agents: see `stack_agents`.
    presence: see `stack_agents`.
    team_reward: see `stack_agents`; by default the sum, as these learners take
      one reward. A reward that all agents share is kept.
    state: the path of the field with the recurrent states.
    time_major: whether columns and mask are `[L, C, ...]`.

  Returns:
    The `Chunks`; every leaf of a field by agent is `[C, L, A, ...]`, and an
    initial state by agent `[C, A, ...]`. In chunks, rows that were filled in
    have `mask` False, whatever their `agent_mask` is.

  Raises:
    ValueError, InvalidArgumentError: as `stack_agents` and `windows.unroll` do;
      and if there is a field `next_agent_mask`.
  """
  stacked = transitions.stack_dict(steps)
  is_shared = rlds.REWARD not in layout.layout_of(stacked, presence).by_agent
  stacked = stack_agents(
      stacked,
      agents,
      presence=presence,
      team_reward=None if is_shared else team_reward,
  )
  is_there = stacked[AGENT_MASK]
  stacked[AGENT_MASK] = presence_lib.acts(is_there)
  rows = transitions.transition_rows(stacked)
  made = {NEXT_AGENT_MASK: is_there[1:]}
  rows = transitions.add_columns(rows, made)
  return unrolling.unroll(rows, windows, state=state, time_major=time_major)
