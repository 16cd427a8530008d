"""The layout of the steps of many agents, as drawn in `agents`."""

from typing import Any, Dict, List, NamedTuple

import tensorflow as tf

from rlds2reverb.episodes import rlds
from rlds2reverb.windows import presence as presence_lib

PRESENCE = presence_lib.PRESENCE


class Layout(NamedTuple):
  """The fields of the steps of many agents.

  Attributes:
    agents: the keys of the presence, or else of the observation, in their
      order.
    by_agent: the fields that are dicts whose keys are the agents, without the
      presence.
    shared: all other fields.
  """

  agents: List[Any]
  by_agent: Dict[str, Dict[Any, Any]]
  shared: Dict[str, Any]


def agents_of(steps: Dict[str, Any], presence: str = PRESENCE) -> List[Any]:
  """Returns the agents of steps, or of the specs of steps.

  Args:
    steps: a dict of fields.
    presence: the field that says which agents are there.

  Returns:
    The keys of the presence, or else of the observation, in their order.

  Raises:
    ValueError: if neither is a dict.
  """
  for field in (presence, rlds.OBSERVATION):
    if isinstance(steps.get(field), dict) and steps[field]:
      return list(steps[field])
  raise ValueError(
      f'There are no agents: neither {presence!r} nor {rlds.OBSERVATION!r} is a'
      f' dict by agent. The fields are {sorted(steps)}.'
  )


def layout_of(steps: Dict[str, Any], presence: str = PRESENCE) -> Layout:
  """Returns the layout of steps; `presence` says which agents are there.

  Raises:
    ValueError: if there are no agents, or a field has some of the agents, but
      not all of them.
  """
  layout = Layout(agents_of(steps, presence), {}, {})
  for field, value in steps.items():
    if field == presence:
      continue
    if not isinstance(value, dict) or not set(value) & set(layout.agents):
      layout.shared[field] = value
      continue
    layout.by_agent[field] = value
    if set(value) != set(layout.agents):
      raise ValueError(
          f'The field {field!r} is by agent, but has {list(value)}, where the'
          f' agents are {layout.agents}. Fill in zeros where one is absent; the'
          ' presence says where.'
      )
  return layout


def specs_of(rows: Any) -> Any:
  """Returns the nest of the dtypes and shapes of rows `[N, ...]`, as text."""
  return tf.nest.map_structure(
      lambda leaf: f'{leaf.dtype.name} {leaf.shape[1:].as_list()}', rows
  )
