"""Counts what a task converts, block by block, and sums it up."""

from typing import Any, Dict, Iterable

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from rlds2reverb.trajectories import frame_blocks
from rlds2reverb.trajectories import report as report_lib

RANGES = ('length', 'return')


class Measures:
  """Counts the frames that go by.

  Attributes:
    episodes: how many episodes have ended.
    steps: how many frames there were.
    num_bytes: how many bytes they have.
  """

  def __init__(self):
    self.episodes = 0
    self.steps = 0
    self.num_bytes = 0
    self._zero_ends = 0
    self._ranges = {name: _no_range() for name in RANGES}
    self._length = 0
    self._return = 0.0

  def add(self, block: frame_blocks.FrameBlock) -> None:
    """Adds frames of one episode or of several."""
    frames = block.frames
    num_frames = len(frames.step_type)
    self.steps += num_frames
    self.num_bytes += sum(leaf.nbytes for leaf in tf.nest.flatten(frames))
    begins, ends = block.row_splits[:-1], block.row_splits[1:]
    # Only one episode of a block may go on after it.
    goes_on = frames.step_type[-1] != ts.StepType.LAST
    last_frames = ends[: len(ends) - goes_on] - 1
    num_ended = len(last_frames)
    self.episodes += num_ended
    self._zero_ends += int((frames.discount[last_frames] == 0).sum())
    lengths = ends - begins
    lengths[:num_ended] -= 1
    self._length = self._widen('length', self._length, lengths, num_ended)
    rewards = tf.nest.flatten(frames.reward)
    if len(rewards) == 1 and rewards[0].size == num_frames:
      reward = rewards[0].reshape(-1).astype(np.float64)
      reward[last_frames] = 0  # The reward of the last step has no meaning.
      returns = np.add.reduceat(reward, begins)
      self._return = self._widen('return', self._return, returns, num_ended)

  def _widen(self, name, so_far, values, num_ended):
    """Adds one number of each episode to the statistics.

    Args:
      name: the name of the numbers.
      so_far: the number of the first episode in the blocks before.
      values: the numbers in this block, one for each episode.
      num_ended: how many of the episodes have ended.

    Returns:
      The number so far of the episode that goes on.
    """
    values[0] += so_far
    ended = values[:num_ended]
    if num_ended:
      numbers = self._ranges[name]
      numbers['count'] += num_ended
      numbers['sum'] += ended.sum().item()
      for bound, function in ('min', min), ('max', max):
        value = function(ended.tolist())
        if numbers[bound] is not None:
          value = function(value, numbers[bound])
        numbers[bound] = value
    return values[num_ended].item() if num_ended < len(values) else 0

  def statistics(self, report: report_lib.ConversionReport) -> Dict[str, Any]:
    """Returns the statistics of the episodes so far, as JSON values.

    They include the report of the conversion. The name `zero_discount_ends`
    counts the episodes that end with a discount of 0, and `last_rewards` those
    whose last step has a reward, and how much. `length` is of the numbers of
    transitions, `return` of the sums of their rewards.
    """
    last_rewards = report.last_rewards
    return {
        'zero_discount_ends': self._zero_ends,
        'bootstrapped_terminals': len(report.bootstrapped_terminals),
        'last_rewards': {
            'episodes': len(last_rewards),
            'sum': sum(last_rewards.values()),
        },
        'nan': report.nan_counts,
        **self._ranges,
    }


def merge(statistics: Iterable[Dict[str, Any]]) -> Dict[str, Any]:
  """Returns the statistics of several tasks together."""
  merged: Dict[str, Any] = {
      'zero_discount_ends': 0,
      'bootstrapped_terminals': 0,
      'last_rewards': {'episodes': 0, 'sum': 0},
      'nan': {},
      **{name: _no_range() for name in RANGES},
  }
  for each in statistics:
    for name in 'zero_discount_ends', 'bootstrapped_terminals':
      merged[name] += each[name]
    for name, number in each['last_rewards'].items():
      merged['last_rewards'][name] += number
    for field, count in each['nan'].items():
      merged['nan'][field] = merged['nan'].get(field, 0) + count
    for name in RANGES:
      into, other = merged[name], each[name]
      into['count'] += other['count']
      into['sum'] += other['sum']
      for bound, function in ('min', min), ('max', max):
        known = [x for x in (into[bound], other[bound]) if x is not None]
        into[bound] = function(known) if known else None
  return merged


def _no_range() -> Dict[str, Any]:
  return {'count': 0, 'sum': 0.0, 'min': None, 'max': None}
