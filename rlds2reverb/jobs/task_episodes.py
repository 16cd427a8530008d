"""The episodes of a task: each is read once, checked, and counted."""

import dataclasses
import time
from typing import Any, Callable, Dict, List

import tensorflow as tf

from rlds2reverb.episodes import faults
from rlds2reverb.jobs import counts as counts_lib
from rlds2reverb.jobs import opened as opened_lib
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import ranges as ranges_lib
from rlds2reverb.replay import frames as frames_lib
from rlds2reverb.trajectories import conversion
from rlds2reverb.trajectories import frame_blocks
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import report as report_lib

_SECONDS_PER_LOOK = 0.5


class TaskEpisodes:
  """The episodes of a task, and which of them are invalid.

  An output reads either `frames` or `blocks`, once.
  """

  def __init__(
      self,
      plan: plan_lib.Plan,
      task: plan_lib.Task,
      source: opened_lib.OpenSource,
      look: Callable[[Dict[str, Any], int], None],
  ):
    """Creates the episodes.

    Args:
      plan: the plan.
      task: the task.
      source: its source, opened.
      look: is called twice a second with the counts of the valid ones so far,
        and the number of the invalid ones.
    """
    self._plan = plan
    self._task = task
    self._source = source
    self._look = look
    self._last_look = time.monotonic()
    self._counter = counts_lib.FrameCounter()
    self._report = report_lib.ConversionReport()

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
    self._counter.add(block)
    if time.monotonic() - self._last_look >= _SECONDS_PER_LOOK:
      self.look()

  def look(self) -> None:
    self._last_look = time.monotonic()
    self._look(self._counter.counts, len(self._report.skipped_faults))

  def counts(self) -> Dict[str, Any]:
    """Returns the counts of the valid episodes so far; see `no_counts`."""
    last_rewards = self._report.last_rewards
    found = {
        'bootstrapped_terminals': len(self._report.bootstrapped_terminals),
        'last_rewards': {
            'episodes': len(last_rewards),
            'sum': sum(last_rewards.values()),
        },
        'nan': self._report.nan_counts,
    }
    return counts_lib.merge(self._counter.counts, {'statistics': found})

  def skipped(self) -> List[Dict[str, Any]]:
    """Returns the invalid episodes so far: lines of a quarantine file.

    Each has the name and the `directory` of its `data_set`, the `split`, the
    `file` and the index of the `episode` in the split; the `rule` that it
    breaks, and the `message` with the `values` that were found; and the `step`
    and the `field` at fault, None or empty if it is not one.
    """
    source, split = self._source, self._task.split
    found = self._report.skipped_faults
    indices = self._task.indices
    if found and source.has_filter:
      field = opened_lib.EPISODE_INDEX
      of_all = self.read(with_index=True).map(lambda episode: episode[field])
      indices = list(map(int, of_all))
    at = [(indices[position], fault) for position, fault in found.items()]
    return [
        {
            'data_set': source.name,
            'directory': source.directory,
            'split': split,
            'file': source.files(ranges_lib.Range(split, i, i + 1))[0],
            'episode': i,
            'step': None if fault.step < 0 else fault.step,
            'rule': fault.rule,
            'values': fault.values,
            'message': faults.sentence(fault, i).numpy().decode(),
            'field': fault.field,
        }
        for i, fault in at
    ]

  def _options(self, episodes, **others: Any) -> options_lib.ConversionOptions:
    return options_lib.ConversionOptions(
        self._plan.conversion_rules,
        opened_lib.policy_info_fn(episodes.element_spec),
        self._report,
        **others,
    )
