"""Episodes that are odd on purpose, for the tests of descriptions."""

from typing import Any, Dict, List

import numpy as np

from tests import golden

# The indices of the episodes in `EPISODES`.
(
    GOOD,
    TWO_FIRST,
    TWO_LAST,
    TWO_TERMINAL,
    BOOTSTRAPS,
    ZERO_REWARDS,
    DUMMY_ZERO,
    DUMMY_REPEATED,
    WITH_NAN,
    OUTSIDE,
    DUPLICATE,
    EMPTY,
    SINGLE,
    LAST_REWARD,
) = range(14)


def make(base: int, length: int = 6) -> golden.Episode:
  """Returns an episode of which nothing is odd; it is truncated."""
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


def _odd() -> List[golden.Episode]:
  episodes = [make(index) for index in range(14)]
  episodes[TWO_FIRST]['is_first'][2] = True
  episodes[TWO_LAST]['is_last'][1] = True
  episodes[TWO_TERMINAL]['is_terminal'][3:5] = True
  episodes[BOOTSTRAPS]['is_terminal'][5] = True
  episodes[ZERO_REWARDS]['reward'][:5] = 0
  for leaf in episodes[DUMMY_ZERO]['observation'].values():
    leaf[-1] = 0
  for leaf in episodes[DUMMY_REPEATED]['observation'].values():
    leaf[-1] = leaf[-2]
  episodes[WITH_NAN]['observation']['position'][4, 1] = np.nan
  episodes[WITH_NAN]['observation']['position'][2, 0] = np.inf
  # The action of the last step has no meaning.
  episodes[WITH_NAN]['action'][5] = np.nan
  episodes[OUTSIDE]['action'][1, 0] = 1.5
  episodes[OUTSIDE]['action'][3, 1] = -7
  episodes[OUTSIDE]['action'][5, 1] = 100
  episodes[DUPLICATE] = make(GOOD)
  episodes[EMPTY] = make(0, 0)
  episodes[SINGLE] = make(SINGLE, 1)
  episodes[LAST_REWARD]['reward'] = np.array([0, 0, 0, 0, 0, 2.5])
  return episodes


EPISODES = _odd()


def clean(count: int, seed: int = 100) -> List[Dict[str, Any]]:
  """Returns `count` episodes of 2 to 39 steps, of which nothing is odd."""
  rng = np.random.default_rng(seed)
  return [make(seed + i, int(rng.integers(2, 40))) for i in range(count)]


def with_images() -> List[golden.Episode]:
  """Returns six clean episodes and one with NaN, with images of 4x5 pixels."""
  episodes = clean(6) + [make(6)]
  episodes[6]['observation']['position'][4, 1] = np.nan
  episodes[6]['observation']['position'][2, 0] = np.inf
  for episode in episodes:
    image = np.zeros([golden.length_of(episode), 4, 5, 3], np.uint8)
    image[:, 1, 2, 0] = 200
    episode['observation']['image'] = image
  return episodes
