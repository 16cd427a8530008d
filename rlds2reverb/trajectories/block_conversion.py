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
from rlds2reverb.episodes import blocks as blocks_lib
from rlds2reverb.episodes import data_sets
from rlds2reverb.episodes import episode_batches
from rlds2reverb.episodes import faults
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import pipeline_cache
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.episodes import windows
from rlds2reverb.trajectories import frame_blocks
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
    block_length: the largest number of steps in a block; None for no limit.
    by_episode: whether the steps of a block are of one episode.
    with_steps: whether blocks hold their steps, with `all_fields`.
  """

  rules: rules_lib.ConversionRules
  fields: Tuple[str, ...]
  all_fields: Tuple[str, ...]
  episode_fields: Tuple[str, ...]
  block_length: Optional[int]
  by_episode: bool
  with_steps: bool


class Columns(NamedTuple):
  """What a conversion makes of the flags and discounts of steps, `[N]` each.

  Attributes:
    step_type: int32: the types of the steps.
    next_step_type: int32: those of the steps that follow.
    discount: float32: the discounts of the frames.
    is_last: bool: which steps are marked as the last ones.
    bootstraps: bool: which steps lead into a terminal one, and have a discount
      other than 0.
  """

  step_type: tf.Tensor
  next_step_type: tf.Tensor
  discount: tf.Tensor
  is_last: tf.Tensor
  bootstraps: tf.Tensor


class _Checked(NamedTuple):
  """The episodes of a batch that are converted.

  Attributes:
    batch: an `EpisodeBatch` of them, without a fault. Its steps are a pair:
      their fields, and `Columns`.
    error: string `[]`: the sentence about the invalid episode that comes after
      them; empty if there is none.
  """

  batch: episode_batches.EpisodeBatch
  error: tf.Tensor


@pipeline_cache.cache_pipeline
def convert_blocks(inputs, settings, policy_info=None):
  """Converts episodes to `FrameBlock`s.

  Args:
    inputs: an RLDS data set, or a data set of batches; and the `ReportTables`
      to fill, or `()`.
    settings: the `Settings`.
    policy_info: a `specs.PolicyInfo`, or None.

  Raises:
    ValueError: if a used field is ragged or sparse.
    InvalidArgumentError: while iterating, if an episode is invalid. The
      episodes before it come out first.
  """
  data, report = inputs
  batches = data_sets.batches_of(
      data,
      fields={*validation.FIELDS, *settings.all_fields},
      episode_fields=settings.episode_fields,
      with_faults=True,
  )
  step = steps_lib.without_time(batches.element_spec.steps)
  steps_lib.check_dense(validation.select(step, settings.all_fields))
  converter = _Converter(settings, report, policy_info)
  batches = batching.numbered(batches)
  if settings.rules.validation == 'tf_agents':
    batches = graphs.with_next(
        batches,
        lambda batch: _has_steps(batch) | faults.is_fault(batch.fault),
        lambda unused_held, batch: validation.first_outline(batch.steps),
    )
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
def frames_alone(blocks: tf.data.Dataset) -> tf.data.Dataset:
  """Returns the frames of `FrameBlock`s."""
  return graphs.map_elements(blocks, lambda block: block.frames)


class _Converter:
  """The stages of `convert_blocks`."""

  def __init__(self, settings, report, policy_info):
    self._settings = settings
    self._report = report
    self._policy_info = policy_info

  def check(self, batch, following=None) -> _Checked:
    """Checks the episodes of a batch; see `judge` for `following`."""
    rules, all_fields = self._settings.rules, self._settings.all_fields
    batch = batch._replace(
        steps=validation.select(batch.steps, {*validation.FIELDS, *all_fields})
    )
    verdict = validation.judge(
        batch,
        rules.validation,
        nan_fields=self._settings.fields if rules.nan == 'invalid' else (),
        following=following,
    )
    checked = batch._replace(
        steps=(
            validation.select(batch.steps, all_fields),
            _columns(verdict, rules.terminal_discount),
        ),
        row_splits=verdict.row_splits,
        fields=validation.select(batch.fields, self._settings.episode_fields),
        fault=(),
    )
    return tf.cond(
        tf.reduce_all(verdict.is_valid),
        lambda: _Checked(checked, tf.constant('')),
        lambda: self._without_invalid(
            checked, verdict, validation.fault_of_whole(batch)
        ),
    )

  def _without_invalid(self, batch, verdict, whole) -> _Checked:
    """Leaves the invalid episodes out, or all from the first of them on."""
    kept, error = verdict.is_valid, tf.constant('')
    skips = self._settings.rules.invalid_episodes == 'skip'
    invalid = tf.where(~kept)[:, 0]
    if not skips:
      invalid = invalid[:1]
    found = validation.first_faults(verdict, invalid, whole)
    episode = tf.gather(batch.episode, invalid)
    if not skips:
      error = validation.sentences(found, episode)[0]
      kept = tf.range(tf.size(kept, tf.int64)) < invalid[0]
    elif self._report:
      with tf.control_dependencies([self._report.add_skipped(episode, found)]):
        kept = tf.identity(kept)
    return _Checked(episode_batches.keep_episodes(batch, kept), error)

  def following_step(self, held: _Checked, one: _Checked):
    """Returns the step that follows the episodes of `held`, `[1, ...]`.

    Behind the last one, and before an invalid episode, that is a FIRST step
    whose fields are zeros, in the shapes of the data.
    """

    def end_step():
      step = tf.nest.map_structure(
          lambda leaf: tf.zeros_like(leaf[-1:]), self._used(held.batch)
      )
      if rlds.IS_FIRST in step:
        step[rlds.IS_FIRST] = tf.ones_like(step[rlds.IS_FIRST])
      return step

    return tf.cond(
        _has_steps(one.batch) & (held.error == ''),
        lambda: stacked_steps.own_rows(self._used(one.batch), 0, 1),
        end_step,
    )

  def cut(self, checked: _Checked, following: Any = None) -> tf.data.Dataset:
    """Returns the arguments of `to_block`, for each block of a batch."""
    bounds = self._bounds(checked.batch.row_splits)
    # The error comes after the blocks of the episodes before.
    count = tf.shape(bounds, tf.int64)[0]
    count += tf.cast(checked.error != '', tf.int64)
    rows = ()
    if following is not None:
      rows = blocks_lib.concat(self._used(checked.batch), following)
    return graphs.with_each(
        tf.data.Dataset.range(count), (bounds, checked, rows)
    )

  def _bounds(self, splits) -> tf.Tensor:
    """Returns the rows and the episodes of each block, int64 `[P, 4]`."""
    num_rows = splits[-1]
    if not self._settings.by_episode:
      whole = [[0, num_rows, 0, tf.size(splits, tf.int64) - 1]]
      return tf.convert_to_tensor(whole)[: tf.minimum(num_rows, 1)]
    length = tf.maximum(num_rows, 1)
    if self._settings.block_length is not None:
      length = tf.constant(self._settings.block_length, tf.int64)
    count = (splits[1:] - splits[:-1] + length - 1) // length
    episode, start = windows.ranges(splits[:-1], count, length)
    stop = tf.minimum(start + length, tf.gather(splits, episode + 1))
    return tf.stack([start, stop, episode, episode + 1], 1)

  def to_block(self, index, parts) -> frame_blocks.FrameBlock:
    """Returns a block, or raises the error."""
    bounds, (batch, error), rows = parts
    is_block = index < tf.shape(bounds, tf.int64)[0]
    with tf.control_dependencies([tf.debugging.Assert(is_block, [error])]):
      start, stop, first, last = tf.unstack(bounds[index])
    splits = batch.row_splits[first : last + 1]
    steps, columns = tf.cond(
        stop - start == batch.row_splits[-1],
        lambda: batch.steps,
        lambda: stacked_steps.own_rows(batch.steps, start, stop),
    )
    info = ()
    if self._policy_info:
      info = self._policy_info(stacked_steps.rows_of(rows, start, stop + 1))
    block = frame_blocks.FrameBlock(
        trajectory.Trajectory(
            step_type=columns.step_type,
            observation=steps[rlds.OBSERVATION],
            action=steps[rlds.ACTION],
            policy_info=info,
            next_step_type=columns.next_step_type,
            reward=steps[rlds.REWARD],
            discount=columns.discount,
        ),
        episode_ids=batch.episode[first:last],
        row_splits=tf.clip_by_value(splits - start, 0, stop - start),
        step=start - splits[0],
        fields=stacked_steps.rows_of(batch.fields, first, last),
        steps=steps if self._settings.with_steps else (),
    )
    if self._report:
      used = validation.select(steps, self._settings.fields)
      self._report.add_block(block, used, columns.is_last, columns.bootstraps)
    return block

  def _used(self, batch):
    return validation.select(batch.steps[0], self._settings.fields)


def _has_steps(batch: episode_batches.EpisodeBatch) -> tf.Tensor:
  """Returns whether a batch has steps; that of zeros has none."""
  return tf.reduce_max(batch.row_splits) > 0


def _columns(verdict, terminal_discount) -> Columns:
  """Converts the outline of steps, `[N + 1]`."""
  is_first, is_last, is_terminal, discount = (
      verdict.outline[name] for name in validation.FIELDS
  )
  is_end = is_last & is_terminal
  discount = tf.where(is_end, 0.0, discount)[:-1]
  into_end = is_end[1:] & ~is_last[:-1]
  if terminal_discount == 'transition':
    discount = tf.where(into_end, 0.0, discount)
  first, mid, last = ts.StepType.FIRST, ts.StepType.MID, ts.StepType.LAST
  types = tf.where(is_first, first, tf.where(is_last, last, mid))
  following = tf.where(verdict.before_first, first, types[1:])
  # An episode of one step is a LAST step, followed by a LAST step.
  is_single = is_first[:-1] & verdict.before_first
  return Columns(
      tf.where(is_single, last, types[:-1]),
      tf.where(is_single, last, following),
      discount,
      is_last[:-1],
      into_end & (discount != 0),
  )
