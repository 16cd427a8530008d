"""Counts what a task converts, block by block, and sums it up."""

from typing import Any, Dict, Iterable

import numpy as np
import tensorflow as tf

from rlds2reverb.replay import frame_blocks
from rlds2reverb.replay import items as items_lib
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

  def add(self, block: frame_blocks.Block) -> None:
    """Adds frames of one episode or of several."""
    frames = block.frames
    self.steps += len(frames.step_type)
    self.num_bytes += sum(leaf.nbytes for leaf in tf.nest.flatten(frames))
    rewards = tf.nest.flatten(frames.reward)
    reward = rewards[0] if len(rewards) == 1 else None
    if reward is not None and reward.size != len(frames.step_type):
      reward = None
    for begin, end, is_end in items_lib.split_at_ends(frames.step_type):
      self._length += end - begin - is_end
      if reward is not None:
        # The reward of the last step has no meaning.
        self._return += float(
            reward[begin : end - is_end].sum(dtype=np.float64)
        )
      if is_end:
        self.episodes += 1
        self._zero_ends += bool(frames.discount[end - 1] == 0)
        _widen(self._ranges['length'], self._length)
        if reward is not None:
          _widen(self._ranges['return'], self._return)
        self._length = 0
        self._return = 0.0

  def statistics(self, report: report_lib.ConversionReport) -> Dict[str, Any]:
    """Returns the statistics of the episodes so far, as JSON values.

    What the report of their conversion says is part of them. The name
    `zero_discount_ends` counts the episodes that end with a discount of 0.
    `length` is of the numbers of transitions, `return` of the sums of their
    rewards.
    """
    return {
        'zero_discount_ends': self._zero_ends,
        'bootstrapped_terminals': len(report.bootstrapped_terminals),
        'nan': report.nan_counts,
        **self._ranges,
    }


def merge(statistics: Iterable[Dict[str, Any]]) -> Dict[str, Any]:
  """Returns the statistics of several tasks together."""
  merged = {
      'zero_discount_ends': 0,
      'bootstrapped_terminals': 0,
      'nan': {},
      **{name: _no_range() for name in RANGES},
  }
  for each in statistics:
    for name in 'zero_discount_ends', 'bootstrapped_terminals':
      merged[name] += each[name]
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


def _widen(numbers: Dict[str, Any], value: float) -> None:
  numbers['count'] += 1
  numbers['sum'] += value
  for bound, function in ('min', min), ('max', max):
    numbers[bound] = (
        value if numbers[bound] is None else function(numbers[bound], value)
    )
