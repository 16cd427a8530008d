"""The episodes of a task: each is read once, checked, and counted."""

import dataclasses
from typing import Any, Callable, Dict, Iterable, List

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from rlds2reverb.episodes import faults
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.jobs import opened as opened_lib
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import ranges as ranges_lib
from rlds2reverb.jobs import receipts
from rlds2reverb.replay import frames as frames_lib
from rlds2reverb.trajectories import conversion
from rlds2reverb.trajectories import frame_blocks
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import report as report_lib

RANGES = ('length', 'return')


class TaskEpisodes:
  """The episodes of a task, and which of them are invalid.

  An output reads either `frames` or `blocks`, once.

  Attributes:
    measures: the counts of the valid ones, filled while they are read.
    report: the report of the conversion, likewise.
  """

  def __init__(
      self,
      plan: plan_lib.Plan,
      task: plan_lib.Task,
      source: opened_lib.OpenSource,
      on_block: Callable[[], None],
  ):
    """Creates the episodes; `on_block` is called when some were counted."""
    self.measures = Measures()
    self.report = report_lib.ConversionReport()
    self._plan = plan
    self._task = task
    self._source = source
    self._on_block = on_block

  def read(self, *, with_index: bool = False) -> tf.data.Dataset:
    """Returns all episodes, which may have their index as a field."""
    return self._source.read(*self._task.ranges, with_index=with_index)

  def frames(self) -> frames_lib.FrameSource:
    """Returns the frames of the valid episodes, and the items of them."""
    # An episode's position tells its index, unless a filter leaves episodes
    # out.
    is_indexed = len(self._task.ranges) > 1 or self._source.has_filter
    episodes = self.read(with_index=is_indexed)
    frames = frames_lib.make_frame_source(
        episodes,
        self._plan.table_items,
        self._options(
            episodes,
            identity=self._plan.identity(self._task),
            episode_id=opened_lib.EPISODE_INDEX if is_indexed else None,
        ),
    )
    return frames._replace(
        first_episode=self._task.ranges[0].begin,
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
    self._on_block()

  def skipped(self) -> List[receipts.Bad]:
    """Returns the invalid episodes so far, and where they are on disk."""
    found = self.report.skipped_episodes
    if not found:
      return []
    indices = self._task.indices
    if self._source.has_filter:
      indices = [
          int(index)
          for index in self.read(with_index=True).map(
              lambda episode: episode[opened_lib.EPISODE_INDEX]
          )
      ]
    skipped = []
    for one in found:
      index = indices[one.episode]
      message = faults.sentence(one.fault, index).numpy().decode()
      skipped.append(
          receipts.Bad(
              data_set=self._source.name,
              directory=self._source.directory,
              split=self._task.split,
              file=self._source.files(
                  ranges_lib.Range(self._task.split, index, index + 1)
              )[0],
              episode=index,
              message=message,
              rule=one.fault.rule,
              step=None if one.fault.step < 0 else one.fault.step,
              field=one.fault.field,
              values=one.fault.values,
          )
      )
    return skipped

  def _options(self, episodes, **others: Any) -> options_lib.ConversionOptions:
    return options_lib.ConversionOptions(
        self._plan.conversion_rules,
        opened_lib.policy_info_fn(
            steps_lib.steps_spec(episodes.element_spec).step
        ),
        self.report,
        **others,
    )


class Measures:
  """Counts the frames that go by.

  Attributes:
    episodes: how many episodes have ended.
    steps: how many frames there were.
    num_bytes: how many bytes they have.
  """

  def __init__(self):
    self.episodes = self.steps = self.num_bytes = 0
    self._zero_ends = 0
    self._ranges = {name: _range_of(np.zeros(0)) for name in RANGES}
    # What there was in earlier blocks of an episode that goes on.
    self._so_far = dict.fromkeys(RANGES, 0)

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
    numbers = {'length': ends - begins}
    numbers['length'][:num_ended] -= 1
    rewards = tf.nest.flatten(frames.reward)
    if len(rewards) == 1 and rewards[0].size == num_frames:
      reward = rewards[0].reshape(-1).astype(np.float64)
      reward[last_frames] = 0  # The reward of the last step has no meaning.
      numbers['return'] = np.add.reduceat(reward, begins)
    for name, values in numbers.items():
      values[0] += self._so_far[name]
      self._so_far[name] = values[-1] if goes_on else 0
      self._ranges[name] = _joined(
          _range_of(values[:num_ended]), self._ranges[name]
      )

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
  merged = Measures().statistics(report_lib.ConversionReport())
  for each in statistics:
    for name in 'zero_discount_ends', 'bootstrapped_terminals':
      merged[name] += each[name]
    for name in 'last_rewards', 'nan':
      for key, number in each[name].items():
        merged[name][key] = merged[name].get(key, 0) + number
    for name in RANGES:
      merged[name] = _joined(merged[name], each[name])
  return merged


def _range_of(values: np.ndarray) -> Dict[str, Any]:
  """Returns the range of some numbers, as JSON values."""
  return {
      'count': len(values),
      'sum': float(values.sum()),
      'min': min(values.tolist(), default=None),
      'max': max(values.tolist(), default=None),
  }


def _joined(*ranges: Dict[str, Any]) -> Dict[str, Any]:
  known = [each for each in ranges if each['count']]
  return {
      'count': sum(each['count'] for each in ranges),
      'sum': sum(each['sum'] for each in ranges),
      'min': min((each['min'] for each in known), default=None),
      'max': max((each['max'] for each in known), default=None),
  }
