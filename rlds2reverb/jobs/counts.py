"""Counts of the episodes that a job converts, as JSON values.

`last_rewards` are the episodes whose last step has a reward, and how much.
`length` is of the numbers of transitions, `return` of the sums of their
rewards.
"""

from typing import Any, Dict

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from rlds2reverb.trajectories import frame_blocks

_RANGE = {'count', 'sum', 'min', 'max'}  # The names of a range's values.


def no_counts() -> Dict[str, Any]:
  """Returns the counts of no episodes: the form of all counts."""
  return {
      'episodes': 0,
      'steps': 0,
      'num_bytes': 0,
      'statistics': {
          'bootstrapped_terminals': 0,
          'last_rewards': {'episodes': 0, 'sum': 0},
          'nan': {},
          'length': _range_of(np.zeros(0)),
          'return': _range_of(np.zeros(0)),
      },
  }


def merge(one: Any, other: Any) -> Any:
  """Returns two counts together, also of some of the names that there are."""
  if not isinstance(one, dict):
    return one + other
  if one.keys() == _RANGE:
    known = [each for each in (one, other) if each['count']]
    return {
        'count': one['count'] + other['count'],
        'sum': one['sum'] + other['sum'],
        'min': min((each['min'] for each in known), default=None),
        'max': max((each['max'] for each in known), default=None),
    }
  both = {key: merge(one[key], other[key]) for key in one if key in other}
  return {**one, **other, **both}


class FrameCounter:
  """Counts the frames that go by.

  Attributes:
    counts: what there was so far.
  """

  def __init__(self):
    self.counts = no_counts()
    # What there was in earlier blocks of an episode that goes on.
    self._so_far: Dict[str, Any] = {'length': 0, 'return': 0}

  def add(self, block: frame_blocks.FrameBlock) -> None:
    """Adds frames of one episode or of several."""
    frames = block.frames
    begins, ends = block.row_splits[:-1], block.row_splits[1:]
    # Only one episode of a block may go on after it.
    goes_on = frames.step_type[-1] != ts.StepType.LAST
    last_frames = ends[: len(ends) - goes_on] - 1
    num_ended = len(last_frames)
    numbers = {'length': ends - begins}
    numbers['length'][:num_ended] -= 1
    rewards = tf.nest.flatten(frames.reward)
    if len(rewards) == 1 and rewards[0].size == len(frames.step_type):
      reward = rewards[0].reshape(-1).astype(np.float64)
      reward[last_frames] = 0  # The reward of the last step has no meaning.
      numbers['return'] = np.add.reduceat(reward, begins)
    statistics = {}
    for name, values in numbers.items():
      values[0] += self._so_far[name]
      self._so_far[name] = values[-1] if goes_on else 0
      statistics[name] = _range_of(values[:num_ended])
    new = {
        'episodes': num_ended,
        'steps': len(frames.step_type),
        'num_bytes': sum(leaf.nbytes for leaf in tf.nest.flatten(frames)),
        'statistics': statistics,
    }
    self.counts = merge(self.counts, new)


def _range_of(values: np.ndarray) -> Dict[str, Any]:
  """Returns the range of some numbers, as JSON values."""
  known = values.tolist()
  return {
      'count': len(values),
      'sum': float(values.sum()),
      'min': min(known, default=None),
      'max': max(known, default=None),
  }
