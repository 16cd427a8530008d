"""The episodes of a task: each is read once, checked, and counted."""

import dataclasses
from typing import Any, Callable, Dict, List

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from rlds2reverb.episodes import faults
from rlds2reverb.jobs import opened as opened_lib
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import ranges as ranges_lib
from rlds2reverb.replay import frames as frames_lib
from rlds2reverb.trajectories import conversion
from rlds2reverb.trajectories import frame_blocks
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import report as report_lib

_RANGE = {'count', 'sum', 'min', 'max'}  # The names of a range's values.


def no_counts() -> Dict[str, Any]:
  """Returns the counts of no episodes, as JSON values: the form of all counts.

  The name `zero_discount_ends` counts the episodes that end with a discount of
  0, and `last_rewards` those whose last step has a reward, and how much.
  `length` is of the numbers of transitions, `return` of the sums of their
  rewards.
  """
  return {
      'episodes': 0,
      'steps': 0,
      'num_bytes': 0,
      'statistics': {
          'zero_discount_ends': 0,
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


class Measures:
  """Counts the frames that go by.

  Attributes:
    counts: what there was so far, in the form of `no_counts`.
  """

  def __init__(self):
    self.counts = no_counts()
    # What there was in earlier blocks of an episode that goes on.
    self._so_far: Dict[str, Any] = {'length': 0, 'return': 0}

  def add(self, block: frame_blocks.FrameBlock) -> None:
    """Adds frames of one episode or of several."""
    frames = block.frames
    num_frames = len(frames.step_type)
    begins, ends = block.row_splits[:-1], block.row_splits[1:]
    # Only one episode of a block may go on after it.
    goes_on = frames.step_type[-1] != ts.StepType.LAST
    last_frames = ends[: len(ends) - goes_on] - 1
    num_ended = len(last_frames)
    numbers = {'length': ends - begins}
    numbers['length'][:num_ended] -= 1
    rewards = tf.nest.flatten(frames.reward)
    if len(rewards) == 1 and rewards[0].size == num_frames:
      reward = rewards[0].reshape(-1).astype(np.float64)
      reward[last_frames] = 0  # The reward of the last step has no meaning.
      numbers['return'] = np.add.reduceat(reward, begins)
    statistics: Dict[str, Any] = {
        'zero_discount_ends': int((frames.discount[last_frames] == 0).sum())
    }
    for name, values in numbers.items():
      values[0] += self._so_far[name]
      self._so_far[name] = values[-1] if goes_on else 0
      statistics[name] = _range_of(values[:num_ended])
    new = {
        'episodes': num_ended,
        'steps': num_frames,
        'num_bytes': sum(leaf.nbytes for leaf in tf.nest.flatten(frames)),
        'statistics': statistics,
    }
    self.counts = merge(self.counts, new)


def _range_of(values: np.ndarray) -> Dict[str, Any]:
  """Returns the range of some numbers, as JSON values."""
  return {
      'count': len(values),
      'sum': float(values.sum()),
      'min': min(values.tolist(), default=None),
      'max': max(values.tolist(), default=None),
  }


@dataclasses.dataclass
class TaskEpisodes:
  """The episodes of a task, and which of them are invalid.

  An output reads either `frames` or `blocks`, once.

  Attributes:
    plan: the plan.
    task: the task.
    source: its source, opened.
    on_block: is called when some were counted.
    measures: the counts of the valid ones, filled while they are read.
    report: the report of the conversion, likewise.
  """

  plan: plan_lib.Plan
  task: plan_lib.Task
  source: opened_lib.OpenSource
  on_block: Callable[[], None]
  measures: Measures = dataclasses.field(default_factory=Measures)
  report: report_lib.ConversionReport = dataclasses.field(
      default_factory=report_lib.ConversionReport
  )

  def read(self, *, with_index: bool = False) -> tf.data.Dataset:
    """Returns all episodes, which may have their index as a field."""
    return self.source.read(*self.task.ranges, with_index=with_index)

  def frames(self) -> frames_lib.FrameSource:
    """Returns the frames of the valid episodes, and the items of them."""
    # An episode's position tells its index, unless a filter leaves episodes
    # out.
    is_indexed = len(self.task.ranges) > 1 or self.source.has_filter
    episodes = self.read(with_index=is_indexed)
    frames = frames_lib.make_frame_source(
        episodes,
        self.plan.table_items,
        self._options(
            episodes,
            identity=self.plan.identity(self.task),
            episode_id=opened_lib.EPISODE_INDEX if is_indexed else None,
        ),
    )
    return frames._replace(
        first_episode=self.task.ranges[0].begin,
        # The job warns once, about all its tasks together.
        options=dataclasses.replace(frames.options, report=None),
        watch=self.watch,
    )

  def blocks(self) -> tf.data.Dataset:
    """Returns the valid episodes: `FrameBlock`s with all their fields.

    The caller passes each block that it has used to `watch`.
    """
    episodes = self.read()
    return conversion.trajectory_blocks(
        episodes, self._options(episodes), with_episodes=True
    )

  def watch(self, block: frame_blocks.FrameBlock) -> None:
    """Counts a block of NumPy arrays that was used."""
    self.measures.add(block)
    self.on_block()

  def counts(self) -> Dict[str, Any]:
    """Returns the counts of the valid episodes so far; see `no_counts`."""
    last_rewards = self.report.last_rewards
    found = {
        'bootstrapped_terminals': len(self.report.bootstrapped_terminals),
        'last_rewards': {
            'episodes': len(last_rewards),
            'sum': sum(last_rewards.values()),
        },
        'nan': self.report.nan_counts,
    }
    return merge(self.measures.counts, {'statistics': found})

  def skipped(self) -> List[Dict[str, Any]]:
    """Returns the invalid episodes so far: lines of a quarantine file.

    Each has the name and the `directory` of its `data_set`, the `split`, the
    `file` and the index of the `episode` in the split; the `rule` that it
    breaks, and the `message` with the `values` that were found; and the `step`
    and the `field` at fault, None or empty if it is not one.
    """
    task, source = self.task, self.source
    found = self.report.skipped_episodes
    indices = task.indices
    if found and source.has_filter:
      field = opened_lib.EPISODE_INDEX
      of_all = self.read(with_index=True).map(lambda episode: episode[field])
      indices = list(map(int, of_all))
    skipped = []
    for one in found:
      index, fault = indices[one.episode], one.fault
      place = ranges_lib.Range(task.split, index, index + 1)
      skipped.append(
          {
              'data_set': source.name,
              'directory': source.directory,
              'split': task.split,
              'file': source.files(place)[0],
              'episode': index,
              'step': None if fault.step < 0 else fault.step,
              'rule': fault.rule,
              'values': fault.values,
              'message': faults.sentence(fault, index).numpy().decode(),
              'field': fault.field,
          }
      )
    return skipped

  def _options(self, episodes, **others: Any) -> options_lib.ConversionOptions:
    return options_lib.ConversionOptions(
        self.plan.conversion_rules,
        opened_lib.policy_info_fn(episodes.element_spec),
        self.report,
        **others,
    )
