"""Example episodes of several agents."""

from collections.abc import Sequence

import numpy as np

from tests import golden


def make_steps(
    presence: dict[str, Sequence[int]], *, terminal: bool = True
) -> golden.Episode:
  """Returns the steps of agents with these flags of presence.

  At step `t`, agent `i` has the observation `10 i + t`, the action
  `10 i + t + 1` and the reward `10**i (t + 1)`. If it is absent, they are 99.
  """
  length = len(next(iter(presence.values())))
  step = np.arange(length)

  def by_agent(value):
    return {
        agent: np.where(np.array(flags, bool), value(index), 99).astype(
            value(index).dtype
        )
        for index, (agent, flags) in enumerate(presence.items())
    }

  return {
      'observation': by_agent(lambda i: (10 * i + step).astype(np.float32)),
      'action': by_agent(lambda i: 10 * i + step + 1),
      'reward': by_agent(lambda i: (10.0**i * (step + 1)).astype(np.float32)),
      'is_present': {
          agent: np.array(flags, bool) for agent, flags in presence.items()
      },
      'world': 100 + step,
      'discount': np.ones(length, np.float32),
      'is_first': step == 0,
      'is_last': step == length - 1,
      'is_terminal': (step == length - 1) & terminal,
  }


# Agent `a` leaves before the end, and agent `b` joins after the start.
COME_AND_GO = make_steps({'a': [1, 1, 1, 0, 0], 'b': [0, 1, 1, 1, 1]})
# Agent `b` is absent in the middle.
TURNS = make_steps({'a': [1, 1, 1, 0, 0], 'b': [0, 1, 0, 1, 1]}, terminal=False)
