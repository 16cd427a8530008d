"""Episodes with oddities, for the tests of descriptions."""

import numpy as np

from tests import golden

# The indices of the episodes in `EPISODES`.
(
    GOOD,
    INVALID,
    BOOTSTRAPS,
    ZERO_REWARDS,
    DUMMY,
    WITH_NAN,
    OUTSIDE,
    DUPLICATE,
    EMPTY,
    SINGLE,
    LAST_REWARD,
) = range(11)


def make(base: int, length: int = 6) -> golden.Episode:
  """Returns a truncated episode without oddities."""
  step = np.arange(length)
  rng = np.random.default_rng(base)
  return {
      'observation': {
          'position': rng.normal(size=[length, 3]).astype(np.float32),
          'fixed': np.full([length, 2], 0.5) * [1, 3],
      },
      'action': rng.uniform(-1, 1, [length, 2]).astype(np.float32),
      'reward': np.where(step < length - 1, 1 + rng.uniform(size=length), 0),
      'discount': np.ones(length, np.float32),
      'is_first': step == 0,
      'is_last': step == length - 1,
      'is_terminal': np.zeros(length, bool),
  }


def _odd() -> list[golden.Episode]:
  episodes = [make(index) for index in range(11)]
  # Without a change of one number, these two would duplicate the first episode.
  for index in INVALID, BOOTSTRAPS:
    episodes[index] = make(GOOD)
  episodes[INVALID]['action'][2] /= 2
  episodes[BOOTSTRAPS]['observation']['position'][2] /= 2
  episodes[INVALID]['is_first'][2] = True
  episodes[BOOTSTRAPS]['is_terminal'][5] = True
  episodes[ZERO_REWARDS]['reward'][:5] = 0
  # One field of the last observation is unchanged, and the other one is zero.
  episodes[DUMMY]['observation']['position'][-1] = 0
  episodes[WITH_NAN]['observation']['position'][4, 1] = np.nan
  episodes[WITH_NAN]['observation']['position'][2, 0] = np.inf
  # The action of the last step has no meaning.
  episodes[WITH_NAN]['action'][5] = np.nan
  episodes[OUTSIDE]['action'][1, 0] = 1.5
  episodes[OUTSIDE]['action'][3, 1] = -7
  episodes[OUTSIDE]['action'][5, 1] = 100
  episodes[DUPLICATE] = make(GOOD)
  episodes[DUPLICATE]['discount'][2] /= 2
  episodes[EMPTY] = make(0, 0)
  episodes[SINGLE] = make(SINGLE, 1)
  episodes[LAST_REWARD]['reward'] = np.array([0, 0, 0, 0, 0, 2.5])
  return episodes


EPISODES = _odd()


def clean(count: int) -> list[golden.Episode]:
  """Returns `count` episodes of 2 to 39 steps without oddities."""
  rng = np.random.default_rng(100)
  return [make(100 + i, int(rng.integers(2, 40))) for i in range(count)]
