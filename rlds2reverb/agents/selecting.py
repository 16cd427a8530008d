"""Selects the episode of one agent from an episode of many."""

from typing import Any, Dict

import tensorflow as tf

from rlds2reverb.agents import layout
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import gathering
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import last_steps
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.windows import presence as presence_lib
from rlds2reverb.windows import transitions

ERROR, SKIP = 'error', 'skip'
GAPS = (ERROR, SKIP)
AGENT = 'agent'


def select_agent(
    episode: Dict[str, Any],
    agent: Any,
    *,
    presence: str = layout.PRESENCE,
    gaps: str = ERROR,
    last_reward: str = 'step',
) -> Dict[str, Any]:
  """Returns the RLDS episode of one agent.

  It begins with the first step at which the agent is there, and ends with the
  last one:

      step           0    1    2    3    4
      is_present     F    T    T    T    F
      observation    -    o1   o2   o3   -     its episode: o1 o2 o3
      is_last        F    F    F    F    T                  F  F  T

  An agent that leaves before the episode ends has a truncated episode, unless
  `is_terminal` is by agent and says that it is terminal. Its flags and
  discounts may be by agent or of all.

  Where agents take turns, an agent is away between its turns, and may be away
  when the episode ends. With `gaps="skip"`, events until its next step belong
  to its step before: a game that ends in a terminal step is terminal for both
  players. Here x loses by the last move of y, which it does not see:

      step                          0    1    2    3
      x is_present                  T    F    T    F
      x observation                 o0        o2       its episode: o0 o2
      x reward, "step"              0    0    0   -1                0  -1
      x reward, "transition"                                       -1   0
      x is_terminal                                                 F   T

  Args:
    episode: an RLDS episode of many agents, its steps a nested data set or
      stacked; see the top of `agents`.
    agent: a key of the fields that are by agent.
    presence: the field that says which agents are there.
    gaps: how to treat an agent that is away in between. `"error"` refuses it;
      with `"skip"` its next step is the one at which it is back, as in games in
      which agents take turns, and the rewards that it got while it was away are
      added to that of its step before.
    last_reward: the place of the reward on or after its last step: `"step"`, in
      no transition, so that a conversion counts it and warns; or
      `"transition"`, the one into that step. See `StepMapping`.

  Returns:
    The episode: the fields by agent are the agent's, and others are kept; the
    steps at which it is away, and the presence, are left out. An agent that
    never came has no steps. `agent`, a string, is a field of the episode.

  Raises:
    ValueError: if there is no such agent; a field has some of the agents, but
      not all; the steps lack a flag; rewards to be added are not numbers; or
      the episode has a field `agent`.
    InvalidArgumentError: if the agent is away in between; or fields differ in
      length.
  """
  checks.check_choice('gaps', gaps, GAPS)
  checks.check_choice('last_reward', last_reward, last_steps.PLACES)
  steps_lib.check_has_steps('An episode', episode)
  if AGENT in episode:
    raise ValueError(
        f'The episode has a field {AGENT!r} already. Rename it first.'
    )
  steps = transitions.stack_dict(episode[rlds.STEPS])
  agents, by_agent, fields = layout.layout_of(steps, presence)
  checks.check_known('An episode', 'agent', agent, agents)
  fields |= {field: value[agent] for field, value in by_agent.items()}
  for flag in (rlds.IS_LAST, rlds.IS_TERMINAL):
    if flag not in fields:
      raise ValueError(f'The steps have no {flag}, but {sorted(steps)}.')
  rows = tf.where(presence_lib.flags(steps, agent, presence))[:, 0]
  if gaps == ERROR:
    away = tf.where(rows[1:] - rows[:-1] > 1)[:, 0]
    rows = graphs.asserted(
        rows,
        tf.size(away) == 0,
        f'The agent {agent} is away in the middle of its episode, after the'
        ' steps',
        tf.gather(rows, away),
        'Where gaps are to be skipped, the step at which it is back follows.',
    )
  whole_ends, terminal = (
      steps_lib.one_a_step(flag, fields[flag], tf.bool)
      for flag in (rlds.IS_LAST, rlds.IS_TERMINAL)
  )
  selected = gathering.take(fields, rows)
  reward = selected.get(rlds.REWARD)
  if gaps == SKIP:  # An end at which it is away is also its own.
    terminal = tf.cumsum(tf.cast(terminal, tf.int32), reverse=True) > 0
    if reward is not None:
      reward = _add_rewards(fields[rlds.REWARD], rows)
  place = tf.range(tf.size(rows, tf.int64))
  is_first, is_end = place == 0, place == tf.size(rows, tf.int64) - 1
  # An agent that is there when an unfinished episode stops is unfinished, too.
  has_left = rows < tf.size(whole_ends, tf.int64) - 1
  is_last = is_end & (has_left | tf.gather(whole_ends, rows))
  if reward is not None:
    if last_reward == last_steps.TRANSITION:
      reward = last_steps.move_reward(reward, is_first, is_end)
    selected[rlds.REWARD] = reward
  selected[rlds.IS_FIRST] = is_first
  selected[rlds.IS_LAST] = is_last
  selected[rlds.IS_TERMINAL] = is_last & tf.gather(terminal, rows)
  return {**episode, rlds.STEPS: selected, AGENT: tf.constant(str(agent))}


def _add_rewards(reward, rows) -> Any:
  """Returns, for each of `rows`, the rewards up to the next of them."""
  steps_lib.check_numeric(rlds.REWARD, reward)
  step = tf.range(gathering.num_rows(reward))
  # The agent's own step to which each step belongs; none before the first.
  owner = tf.searchsorted(rows, step, side='right', out_type=tf.int64) - 1
  return tf.nest.map_structure(
      lambda leaf: tf.math.unsorted_segment_sum(
          leaf, owner, tf.size(rows, tf.int64)
      ),
      reward,
  )
