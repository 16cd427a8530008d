"""The presence of agents in episodes of many agents.

The step field `is_present` is a dict by agent of bools `[S]`. The last step at
which an agent is present has its last observation. As in the last step of any
RLDS episode, its action and reward there have no meaning, and it does not act.
"""

from typing import Any

import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import rows as rows_lib
from rlds2reverb.episodes import steps as steps_lib

PRESENCE = 'is_present'


def flags(
    fields: dict[str, Any], agent: Any, presence: str = PRESENCE
) -> tf.Tensor:
  """Returns whether an agent is present at each step or row, bool `[N]`.

  Args:
    fields: a dict of columns `[N, ...]`.
    agent: a key of the presence. Without a presence all agents are present.
    presence: the name of the field.

  Raises:
    ValueError: if the presence is not a dict with the agent.
  """
  if presence not in fields:
    return tf.fill([rows_lib.num_rows(fields)], True)
  by_agent = fields[presence]
  if not isinstance(by_agent, dict):
    raise ValueError(
        f'{presence} must be a dict of bools by agent, but is {by_agent}.'
    )
  checks.check_known(presence, 'agent', agent, by_agent)
  return steps_lib.to_column(
      f'{presence}/{agent}', tf.convert_to_tensor(by_agent[agent]), tf.bool
  )


def is_acting(is_present: tf.Tensor) -> tf.Tensor:
  """Returns whether an agent acts: it is present, and will be again.

      is_present    F  T  T  F  T  F
      is_acting     F  T  T  F  F  F
      is_active     F  T  T  T  F  F

  Args:
    is_present: bool `[N]`, or `[N, A]`.
  """
  return is_present & is_active(is_present)


def is_active(is_present: tf.Tensor) -> tf.Tensor:
  """Returns whether an agent can get rewards: it has come, and not left.

  Args:
    is_present: bool `[N]`, or `[N, A]`; see `is_acting`.
  """
  counts = tf.cast(is_present, tf.int64)
  later = tf.cumsum(counts, exclusive=True, reverse=True)
  return (tf.cumsum(counts) > 0) & (later > 0)


def count_acting(fields: dict[str, Any], presence: str = PRESENCE) -> tf.Tensor:
  """Returns how many agents act at each step, int64 `[N]`.

  Raises:
    ValueError: if there is no presence.
  """
  if not isinstance(fields.get(presence), dict) or not fields[presence]:
    raise ValueError(
        f'Agent steps are counted by {presence}, a dict of bools by agent, or'
        f' by the column agent_steps. The fields are {sorted(fields)}.'
    )
  return tf.add_n(
      [
          tf.cast(is_acting(flags(fields, agent, presence)), tf.int64)
          for agent in fields[presence]
      ]
  )
