"""Converts batches of episodes to blocks of frames, in graph mode.

This is the one place that leaves out or refuses invalid episodes, and that cuts
episodes into blocks. Batches whose episodes are all valid, which nearly all
are, become one block each, unless shorter blocks are asked for.
"""

from typing import Any, NamedTuple, Optional, Tuple

import tensorflow as tf
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from rlds2reverb.episodes import batching
from rlds2reverb.episodes import data_sets
from rlds2reverb.episodes import episode_batches
from rlds2reverb.episodes import faults as faults_lib
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.episodes import windows
from rlds2reverb.trajectories import frame_blocks
from rlds2reverb.trajectories import pipeline_cache
from rlds2reverb.trajectories import rules as rules_lib
from rlds2reverb.trajectories import validation


class Settings(NamedTuple):
  """Everything besides the data that the pipeline of a conversion depends on.

  Attributes:
    rules: which episodes are valid. Under `"tf_agents"` an episode is followed
      by the first step of the next one, so it comes out only after the next one
      was read, and episodes without steps are left out.
    fields: the names of the step fields that are used.
    all_fields: the names of all that are read, `fields` among them.
    episode_fields: the names of the fields of episodes that blocks hold.
    block_length: the largest number of steps in a block, which then is of one
      episode; None for whole batches.
    by_episode: whether the steps of a block are of one episode.
    nan_paths: the paths of the float leaves of `fields`, if an episode that
      holds NaN there is invalid.
    with_steps: whether blocks hold their steps, with `all_fields`.
  """

  rules: rules_lib.ConversionRules
  fields: Tuple[str, ...]
  all_fields: Tuple[str, ...]
  episode_fields: Tuple[str, ...]
  block_length: Optional[int]
  by_episode: bool
  nan_paths: Tuple[str, ...]
  with_steps: bool


class _Checked(NamedTuple):
  """The episodes of a batch that are converted.

  Attributes:
    batch: an `EpisodeBatch` of them, without a fault.
    outline: the outline of their steps and of the step that follows, `[N + 1]`;
      see `validation`.
    error: string `[]`: the sentence about the invalid episode that comes after
      them; empty if there is none.
  """

  batch: episode_batches.EpisodeBatch
  outline: validation.Outline
  error: tf.Tensor


@pipeline_cache.cache_pipeline
def convert_blocks(data, report, settings, policy_info=None):
  """Converts episodes to `FrameBlock`s.

  Args:
    data: an RLDS data set, or a data set of batches.
    report: the `ReportTables` to fill, or None.
    settings: the `Settings`.
    policy_info: a `specs.PolicyInfo`, or None.

  Raises:
    ValueError: if a used field is ragged or sparse.
    InvalidArgumentError: while iterating, if an episode is invalid. The
      episodes before it come out first.
  """
  batches = data_sets.batches_of(
      data,
      fields=validation.FIELDS.union(settings.all_fields),
      episode_fields=settings.episode_fields,
      with_faults=True,
  )
  step = steps_lib.without_time(batches.element_spec.steps)
  steps_lib.check_dense(validation.select(step, settings.all_fields))
  converter = _Converter(settings, report, policy_info)
  batches = batching.numbered(batches)
  if settings.rules.validation == 'tf_agents':
    batches = graphs.with_next(batches, _has_steps, _first_outline)
  checked = graphs.map_elements(batches, converter.check)
  if policy_info:
    checked = graphs.with_next(
        checked,
        lambda one: (one.error != '') | _has_steps(one.batch),
        converter.following_step,
    )
  blocks = graphs.flat_map(checked, converter.cut)
  return graphs.map_elements(blocks, converter.to_block)


@pipeline_cache.cache_pipeline
def frames_alone(blocks, unused_tables, unused_settings, unused_function=None):
  """Returns the frames of `FrameBlock`s."""
  return graphs.map_elements(blocks, lambda block: block.frames)


class _Converter:
  """The stages of `convert_blocks`."""

  def __init__(self, settings, report, policy_info):
    self._settings = settings
    self._report = report
    self._policy_info = policy_info

  def check(self, batch, end: Optional[validation.Outline] = None) -> _Checked:
    """Checks the episodes of a batch; see `validation.with_end` for `end`."""
    settings = self._settings
    lengths = stacked_steps.lengths_of(
        validation.select(
            batch.steps, validation.FIELDS.union(settings.all_fields)
        )
    )
    outline = validation.outline_of(
        batch.steps, settings.fields if settings.nan_paths else (), lengths
    )
    num_rows = tf.size(outline[rlds.IS_FIRST], tf.int64)
    outline = validation.with_end(outline, end)
    fault = batch.fault
    batch = batch._replace(
        steps=validation.select(batch.steps, settings.all_fields),
        row_splits=tf.minimum(batch.row_splits, num_rows),
        fields=validation.select(batch.fields, settings.episode_fields),
        fault=(),
    )
    is_valid = validation.are_valid(
        outline, batch.row_splits, settings.rules.validation
    )
    is_valid &= ~faults_lib.is_fault(fault)
    if lengths is not None:
      is_valid &= stacked_steps.are_equal(lengths)
    checked = _Checked(batch, outline, tf.constant(''))
    return tf.cond(
        tf.reduce_all(is_valid),
        lambda: checked,
        lambda: self._without_invalid(checked, is_valid, lengths, fault),
    )

  def _without_invalid(self, checked, is_valid, lengths, fault) -> _Checked:
    """Leaves the invalid episodes out, or all from the first of them on."""
    batch, outline, error = checked
    rules = self._settings.rules
    skips = rules.invalid_episodes == 'skip'
    invalid = tf.where(~is_valid)[:, 0]
    if not skips:
      invalid = invalid[:1]
    found = validation.first_faults(
        outline,
        batch.row_splits,
        invalid,
        rules.validation,
        self._settings.nan_paths,
    )
    # An episode with one of these faults is alone in its batch.
    if lengths is not None:
      found = _choose(
          stacked_steps.are_equal(lengths),
          found,
          validation.fault_of_lengths(lengths),
      )
    if fault != ():
      found = _choose(fault.rule == '', found, fault)
    episode = tf.gather(batch.episode, invalid)
    if not skips:
      error = validation.sentences(found, episode)[0]
      is_valid = tf.range(tf.size(is_valid, tf.int64)) < invalid[0]
    elif self._report:
      with tf.control_dependencies([self._report.add_skipped(episode, found)]):
        is_valid = tf.identity(is_valid)
    rows = {name: column[:-1] for name, column in outline.items()}
    batch = episode_batches.keep_episodes(
        batch._replace(steps=(batch.steps, rows)), is_valid
    )
    steps, rows = batch.steps
    following = tf.size(outline[rlds.IS_FIRST], tf.int64) - 1
    if rules.validation == 'tf_agents':  # The first step that was left out.
      following = batch.row_splits[-1]
    outline = {
        name: tf.concat([rows[name], column[following:][:1]], 0)
        for name, column in outline.items()
    }
    return _Checked(batch._replace(steps=steps), outline, error)

  def following_step(self, held: _Checked, one: _Checked):
    """Returns the step that follows the episodes of `held`, `[1, ...]`.

    Behind the last one, and before an invalid episode, that is a FIRST step
    whose fields are zeros, in the shapes of the data.
    """

    def end_step():
      step = tf.nest.map_structure(
          lambda leaf: tf.zeros_like(leaf[-1:]), self._used(held.batch.steps)
      )
      if rlds.IS_FIRST in step:
        step[rlds.IS_FIRST] = tf.ones_like(step[rlds.IS_FIRST])
      return step

    return tf.cond(
        _has_steps(one.batch) & (held.error == ''),
        lambda: stacked_steps.own_rows(self._used(one.batch.steps), 0, 1),
        end_step,
    )

  def cut(self, checked: _Checked, following: Any = ()) -> tf.data.Dataset:
    """Returns the arguments of `to_block`, for each block of a batch."""
    bounds = self._bounds(checked.batch.row_splits)
    # The error comes after the blocks of the episodes before.
    count = tf.shape(bounds, tf.int64)[0]
    count += tf.cast(checked.error != '', tf.int64)
    return graphs.with_each(
        tf.data.Dataset.range(count), (bounds, checked, following)
    )

  def _bounds(self, splits) -> tf.Tensor:
    """Returns the rows and the episodes of each block, int64 `[P, 4]`."""
    block_length, num_rows = self._settings.block_length, splits[-1]
    if (
        block_length is None
        and not self._settings.by_episode
        and self._settings.rules.validation != 'tf_agents'
    ):
      whole = [[0, num_rows, 0, tf.size(splits, tf.int64) - 1]]
      return tf.convert_to_tensor(whole)[: tf.minimum(num_rows, 1)]
    length = tf.maximum(num_rows, 1)
    if block_length is not None:
      length = tf.constant(block_length, tf.int64)
    count = (splits[1:] - splits[:-1] + length - 1) // length
    episode, start = windows.ranges(splits[:-1], count, length)
    stop = tf.minimum(start + length, tf.gather(splits, episode + 1))
    return tf.stack([start, stop, episode, episode + 1], 1)

  def to_block(self, index, parts) -> frame_blocks.FrameBlock:
    """Returns a block, or raises the error."""
    bounds, (batch, outline, error), following = parts
    is_block = index < tf.shape(bounds, tf.int64)[0]
    with tf.control_dependencies([tf.debugging.Assert(is_block, [error])]):
      start, stop, first, last = tf.unstack(bounds[index])
    num_rows = batch.row_splits[-1]
    splits = batch.row_splits[first : last + 1]
    steps = tf.cond(
        stop - start == num_rows,
        lambda: batch.steps,
        lambda: stacked_steps.own_rows(batch.steps, start, stop),
    )
    outline = stacked_steps.rows_of(outline, start, stop + 1)
    used = self._used(steps)
    frames, bootstraps = _to_frames(
        used, outline, self._settings.rules.terminal_discount
    )
    if self._policy_info:
      following = tf.cond(
          stop < num_rows,
          lambda: stacked_steps.own_rows(
              self._used(batch.steps), stop, stop + 1
          ),
          lambda: following,
      )
      frames = frames._replace(policy_info=self._policy_info(used, following))
    block = frame_blocks.FrameBlock(
        frames,
        episode_ids=batch.episode[first:last],
        row_splits=tf.clip_by_value(splits - start, 0, stop - start),
        step=start - splits[0],
        fields=stacked_steps.rows_of(batch.fields, first, last),
        steps=used,
    )
    if self._report:
      self._report.add_block(block, outline[rlds.IS_LAST][:-1], bootstraps)
    return block._replace(steps=steps if self._settings.with_steps else ())

  def _used(self, steps):
    return validation.select(steps, self._settings.fields)


def _choose(condition, fault, other) -> faults_lib.Fault:
  return tf.nest.map_structure(
      lambda one, another: tf.where(condition, one, another), fault, other
  )


def _has_steps(batch: episode_batches.EpisodeBatch) -> tf.Tensor:
  """Returns whether a batch has steps, or a fault; that of zeros has none."""
  has_rows = tf.reduce_max(batch.row_splits) > 0
  return has_rows | faults_lib.is_fault(batch.fault)


def _first_outline(unused_held, batch) -> validation.Outline:
  """Returns the outline `[1]` of the first step of a batch.

  It is that of a FIRST step if there is none, or if fields differ in length.
  """
  used = validation.select(batch.steps, validation.FIELDS)
  outline = validation.outline_of(used, (), stacked_steps.lengths_of(used))
  return {
      name: column[:1] for name, column in validation.with_end(outline).items()
  }


def _to_frames(steps, outline, terminal_discount):
  """Converts steps `[B, ...]` with an outline `[B + 1]` to frames `[B, ...]`.

  Returns:
    The frames; and, bool `[B]`, which of them are transitions into a terminal
    step that have a discount other than 0.
  """
  is_first, is_last = outline[rlds.IS_FIRST], outline[rlds.IS_LAST]
  is_end = is_last & outline[rlds.IS_TERMINAL]
  discount = tf.where(is_end, 0.0, outline[rlds.DISCOUNT])[:-1]
  into_end = is_end[1:] & ~is_last[:-1]
  if terminal_discount == 'transition':
    discount = tf.where(into_end, 0.0, discount)
  step_type = tf.where(
      is_first,
      ts.StepType.FIRST,
      tf.where(is_last, ts.StepType.LAST, ts.StepType.MID),
  )
  # An episode of one step is a LAST step, followed by a LAST step.
  is_single = is_first[:-1] & is_first[1:]
  frames = trajectory.Trajectory(
      step_type=tf.where(is_single, ts.StepType.LAST, step_type[:-1]),
      observation=steps[rlds.OBSERVATION],
      action=steps[rlds.ACTION],
      policy_info=(),
      next_step_type=tf.where(is_single, ts.StepType.LAST, step_type[1:]),
      reward=steps[rlds.REWARD],
      discount=discount,
  )
  return frames, into_end & (discount != 0)
