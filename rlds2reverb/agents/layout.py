"""The layout of the steps of many agents, as drawn in `agents`."""

from typing import Any, Dict, List, Sequence

from rlds2reverb.episodes import rlds
from rlds2reverb.windows import presence as presence_lib

PRESENCE = presence_lib.PRESENCE


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


def is_by_agent(field: str, value: Any, agents: Sequence[Any]) -> bool:
  """Returns whether a field is a dict whose keys are the agents.

  Raises:
    ValueError: if some of its keys are agents, but not all of them.
  """
  if not isinstance(value, dict) or not set(value) & set(agents):
    return False
  missing = [agent for agent in agents if agent not in value]
  others = [key for key in value if key not in agents]
  if missing or others:
    raise ValueError(
        f'The field {field!r} is by agent, but'
        + f' lacks {missing}' * bool(missing)
        + ' and' * bool(missing and others)
        + f' has {others} beside the agents' * bool(others)
        + '. Fill in zeros where an agent is absent; the presence says where.'
    )
  return True
