"""The episodes of a task: each is read once, checked, and counted."""

import dataclasses
from typing import Any, Callable, List

import tensorflow as tf

from rlds2reverb.episodes import faults
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.fields import step_mapping
from rlds2reverb.jobs import opened as opened_lib
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import ranges as ranges_lib
from rlds2reverb.jobs import receipts
from rlds2reverb.replay import frames as frames_lib
from rlds2reverb.trajectories import conversion
from rlds2reverb.trajectories import frame_blocks
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import report as report_lib


class TaskEpisodes:
  """The episodes of a task, and which of them are invalid.

  An output reads either `frames` or `blocks`, once.

  Attributes:
    report: the report of the conversion, filled while they are read.
  """

  def __init__(
      self,
      plan: plan_lib.Plan,
      task: plan_lib.Task,
      source: opened_lib.OpenSource,
      on_block: Callable[[frame_blocks.FrameBlock], None],
  ):
    """Creates the episodes; `on_block` is called with the valid ones."""
    self.report = report_lib.ConversionReport()
    self._plan = plan
    self._task = task
    self._source = source
    self._on_block = on_block

  def read(self, *, with_index: bool = False) -> tf.data.Dataset:
    """Returns all episodes, which may have their index as a field."""
    parts = [
        self._source.read(part, with_index=with_index)
        for part in self._task.ranges
    ]
    episodes = parts[0]
    for part in parts[1:]:
      episodes = episodes.concatenate(part)
    return episodes

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
        watch=self._on_block,
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
    self._on_block(block)

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
        policy_info_fn(episodes),
        self.report,
        **others,
    )


def policy_info_fn(episodes: tf.data.Dataset) -> Any:
  """Returns the function that makes policy info, or None if there is none."""
  step_spec = steps_lib.steps_spec(episodes.element_spec).step
  has_info = step_mapping.POLICY_INFO in step_spec
  return step_mapping.step_policy_info if has_info else None
