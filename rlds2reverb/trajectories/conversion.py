"""Converts RLDS episodes to the trajectories that TF-Agents trains on.

Batches of episodes are validated and converted in graph mode. A batch of valid
episodes, as nearly all are, becomes one block of frames, unless shorter blocks
are requested.
"""

from typing import Any, NamedTuple

import tensorflow as tf
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from rlds2reverb.episodes import batch as batch_lib
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import episode_dataset
from rlds2reverb.episodes import errors
from rlds2reverb.episodes import pipelines
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import rows as rows_lib
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import specs
from rlds2reverb.trajectories import validation


class FrameBlock(NamedTuple):
  """Frames of an `EpisodeBatch`: of all, of one episode, or of a part of it.

  A conversion makes blocks of tensors. Sinks, such as Reverb, take them as
  arrays; `replay.frames` joins blocks to segments of complete episodes.

  Attributes:
    frames: a `Trajectory` of `[B, ...]`: consecutive frames of one episode; or
      several complete episodes, concatenated.
    episode_indices: int64 `[E]`: the index of each episode in the data set.
    row_splits: int64 `[E + 1]`: episode `e` has the frames from `row_splits[e]`
      to `row_splits[e + 1]`.
    step: int64 `[]`: the index of the first frame in its episode, which is 0 if
      there are several episodes.
    fields: a dict of fields of the episodes, every leaf `[E, ...]`: the field
      `options.episode_id`, or all fields with `with_steps`.
    steps: the steps of the frames with all their fields, `[B, ...]`; `()`
      without `with_steps`.
  """

  frames: Any
  episode_indices: Any
  row_splits: Any
  step: Any
  fields: Any = ()
  steps: Any = ()


@options_lib.takes_options
def convert_rlds_to_trajectories(
    rlds_data: tf.data.Dataset,
    policy_info_fn: specs.PolicyInfoFn | None = None,
    *,
    batched: bool = False,
    block_length: int | None = None,
    single_episode_blocks: bool = False,
    options: options_lib.ConversionOptions | None = None,
) -> tf.data.Dataset:
  """Converts RLDS data to TF-Agents trajectories.

  The frames equal those of `tf_agents.replay_buffers.rlds_to_reverb` (TF-Agents
  0.19.0). Each step becomes one frame, whose next step type is the type of the
  step that follows it in the data set. The last step of the data set is
  converted as if a FIRST step of zeros followed it. F, M and L mean FIRST, MID
  and LAST:

      episodes         |  F  M  M  L |  single |  F  M  M  L |
      step_type        |  F  M  M  L |    L    |  F  M  M  L |
      next_step_type   |  M  M  L  F |    L    |  M  M  L  F |
      discount         |  d  d  d  e |    e    |  d  d  d  e |

  where `d` is the discount of the step, and `e` is 0 if the episode is terminal
  and the discount of the step if it is truncated.

  Args:
    rlds_data: an RLDS data set: a `tf.data.Dataset` of episodes, dicts whose
      `steps` are a nested `tf.data.Dataset` of steps or steps stacked
      `[T, ...]`. A step is a dict of observation, action and reward, nests of
      any depth, and of discount, is_first, is_last and is_terminal, one number
      (a flag may be bool) each.
    policy_info_fn: makes the `policy_info` of a frame from its step and the
      step that follows, which may be the first one of the next episode. It is
      called in graph mode; both steps are dicts without a batch dimension. By
      default the `policy_info` is `()`.
    batched: whether an element is a block of many consecutive frames, which is
      many times faster, rather than one frame.
    block_length: the maximum number of frames in a block. Blocks are then of
      one episode each. By default a block is one episode, or several short ones
      of about 2 MiB together.
    single_episode_blocks: whether all frames of a block come from one episode.
    options: how episodes are checked and converted.

  Returns:
    A data set of `Trajectory` frames: step_type and next_step_type are int32
    `[]`, discount is float32 `[]`, and observation, action and reward are taken
    from the step. Batched, each leaf is `[B, ...]`, and the step types mark
    where episodes end.

  Raises:
    TypeError: if `options` are not `ConversionOptions`, or `policy_info_fn` is
      not callable.
    ValueError: if `rlds_data` has no RLDS steps, if the steps lack a feature or
      have one of a wrong dtype or shape, or if an argument is not valid.
    InvalidArgumentError: while iterating, if an episode is invalid, before its
      first frame comes out. The message names the fault, the episode and the
      step.
  """
  blocks = trajectory_blocks(
      rlds_data,
      options_lib.with_policy_info(options, policy_info_fn),
      block_length=block_length,
      single_episode_blocks=single_episode_blocks,
  )
  frames = _frames_of(blocks)
  return frames if batched else frames.unbatch()


@pipelines.cache_pipeline
def _frames_of(blocks: tf.data.Dataset) -> tf.data.Dataset:
  return pipelines.map_elements(blocks, lambda block: block.frames)


def trajectory_blocks(
    rlds_data: tf.data.Dataset,
    options: options_lib.ConversionOptions,
    *,
    block_length: int | None = None,
    single_episode_blocks: bool = False,
    with_steps: bool = False,
) -> tf.data.Dataset:
  """Converts RLDS data to `FrameBlock`s.

  See `convert_rlds_to_trajectories` for the other arguments and the errors.

  Args:
    rlds_data: an RLDS data set.
    options: how it is converted.
    block_length: the maximum number of frames in a block. Blocks are then of
      one episode each.
    single_episode_blocks: whether all frames of a block come from one episode.
    with_steps: whether a block has all fields of its steps and its episodes.

  Returns:
    A data set of `FrameBlock`s.

  Raises:
    ValueError: also if the episodes have no field `options.episode_id`.
  """
  rules, report = options.rules, options.report
  if report:
    rlds_data = episode_dataset.count_removed_steps(
        rlds_data, report.register_counter
    )
  single_episode_blocks |= rules.validation == 'tf_agents'
  if block_length is not None:
    checks.check_positive('block_length', block_length)
    single_episode_blocks = True
  episode_spec = rlds_data.element_spec
  step_spec = steps_lib.get_steps_spec(episode_spec).step
  policy_info = None
  if options.policy_info_fn is not None:
    policy_info = specs.PolicyInfo(options.policy_info_fn, step_spec)
  used = {rlds.OBSERVATION, rlds.ACTION, rlds.REWARD}
  if policy_info:
    used |= policy_info.fields
  if report or rules.nan == 'invalid':
    used.add(rlds.DISCOUNT)  # The discount may hold NaN, too.
  used_spec = {
      field: spec for field, spec in step_spec.items() if field in used
  }
  steps_lib.check_dense(used_spec)
  read_fields, episode_fields = list(used_spec), []
  if options.episode_id is not None:
    _check_episode_id(episode_spec, options.episode_id)
    episode_fields = [options.episode_id]
  if with_steps:
    read_fields = list(step_spec)
    episode_fields = [name for name in episode_spec if name != rlds.STEPS]
  # `_convert` is traced once for each element spec, so it gets batches: an
  # `EpisodeDataset` would lose them, and the faults of their episodes.
  data = rlds_data
  if isinstance(rlds_data, episode_dataset.EpisodeDataset):
    data = episode_dataset.batches_of(rlds_data, with_faults=True)
  settings = _Settings(
      rules,
      used_fields=tuple(used_spec),
      read_fields=tuple(read_fields),
      episode_fields=tuple(episode_fields),
      block_length=block_length,
      single_episode_blocks=single_episode_blocks,
      with_steps=with_steps,
  )
  report_tables = ()
  if report:
    report_tables = report.attach(
        steps_lib.find_float_fields(used_spec),
        episode_dataset.is_last_transition_dropped(rlds_data),
    )
  return _convert((data, report_tables), settings, policy_info=policy_info)


def _check_episode_id(episode: Any, name: str) -> None:
  """Raises a ValueError unless a field can identify the episodes.

  Args:
    episode: the spec of an episode.
    name: the name of the field.
  """
  fields = [field for field in episode if field != rlds.STEPS]
  if name not in fields:
    raise ValueError(
        f'episode_id must be a field of the episodes, but is {name!r}. They'
        f' have {fields}.'
    )
  spec = episode[name]
  if spec.shape.rank != 0 or not (
      spec.dtype.is_integer or spec.dtype == tf.string
  ):
    raise ValueError(
        f'Episode field {name} must be one integer or string, to identify'
        f' episodes, but its spec is {spec}.'
    )


class _Settings(NamedTuple):
  """The settings of the pipeline of a conversion.

  Attributes:
    rules: which episodes are valid. Under `"tf_agents"` an episode is followed
      by the first step of the next one, so it comes out only after the next one
      was read, and episodes without steps are skipped.
    used_fields: the names of the step fields that frames or checks use.
    read_fields: the names of all step fields that are read, including
      `used_fields`.
    episode_fields: the names of the fields of episodes that blocks hold.
    block_length: the maximum number of steps in a block; None for no limit.
    single_episode_blocks: whether the steps of a block are of one episode.
    with_steps: whether blocks hold their steps, with `read_fields`.
  """

  rules: options_lib.ConversionRules
  used_fields: tuple[str, ...]
  read_fields: tuple[str, ...]
  episode_fields: tuple[str, ...]
  block_length: int | None
  single_episode_blocks: bool
  with_steps: bool


class _FrameColumns(NamedTuple):
  """Columns of frames that are computed from the outline of steps, `[N]` each.

  Attributes:
    step_type: int32: the types of the steps.
    next_step_type: int32: the types of the steps that follow.
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


class _ValidBatch(NamedTuple):
  """The episodes of a batch that are converted.

  Attributes:
    batch: an `EpisodeBatch` of them, without a fault. Its steps are a pair:
      their fields, and `_FrameColumns`.
    error: string `[]`: the message of the error to raise after these episodes,
      about the invalid episode that follows; empty if there is none.
  """

  batch: batch_lib.EpisodeBatch
  error: tf.Tensor


@pipelines.cache_pipeline
def _convert(inputs, settings, policy_info=None):
  """Converts episodes to `FrameBlock`s.

  Args:
    inputs: an RLDS data set, or a data set of batches; and the `ReportTables`
      to fill, or `()`.
    settings: the `_Settings`.
    policy_info: a `specs.PolicyInfo`, or None.

  Raises:
    ValueError: if a used field is ragged or sparse.
    InvalidArgumentError: while iterating, if an episode is invalid. The
      episodes before it come out first.
  """
  data, report_tables = inputs
  batches = episode_dataset.batches_of(
      data,
      fields={*validation.FIELDS, *settings.read_fields},
      episode_fields=settings.episode_fields,
      with_faults=True,
  )
  step = steps_lib.unstack_spec(batches.element_spec.steps)
  steps_lib.check_dense(steps_lib.select_fields(step, settings.read_fields))
  converter = _Converter(settings, report_tables, policy_info)
  batches = episode_dataset.number_episodes(batches)
  if settings.rules.validation == 'tf_agents':
    batches = pipelines.pair_with_next(
        batches,
        lambda batch: _has_steps(batch) | errors.is_fault(batch.fault),
        lambda unused_batch, next_batch: validation.first_outline(
            next_batch.steps
        ),
    )
  valid_batches = pipelines.map_elements(batches, converter.validate)
  if policy_info:
    valid_batches = pipelines.pair_with_next(
        valid_batches,
        lambda valid: (valid.error != '') | _has_steps(valid.batch),
        converter.first_step_after,
    )
  blocks = pipelines.flat_map(valid_batches, converter.cut)
  return pipelines.map_elements(blocks, converter.to_block)


class _Converter:
  """The stages of `_convert`."""

  def __init__(self, settings, report_tables, policy_info):
    self._settings = settings
    self._report_tables = report_tables
    self._policy_info = policy_info

  def validate(self, batch, next_outline=None) -> _ValidBatch:
    """Validates a batch; see `validation.validate` for `next_outline`."""
    rules, read_fields = self._settings.rules, self._settings.read_fields
    batch = batch._replace(
        steps=steps_lib.select_fields(
            batch.steps, {*validation.FIELDS, *read_fields}
        )
    )
    result = validation.validate(
        batch,
        rules.validation,
        nan_fields=self._settings.used_fields if rules.nan == 'invalid' else (),
        next_outline=next_outline,
    )
    with_columns = batch._replace(
        steps=(
            steps_lib.select_fields(batch.steps, read_fields),
            _compute_columns(result, rules.terminal_discount),
        ),
        row_splits=result.row_splits,
        fields=steps_lib.select_fields(
            batch.fields, self._settings.episode_fields
        ),
        fault=(),
    )
    return tf.cond(
        tf.reduce_all(result.is_valid),
        lambda: self._keep_all(with_columns),
        lambda: self._drop_invalid(
            with_columns, result, validation.find_episode_fault(batch)
        ),
    )

  def _keep_all(self, batch) -> _ValidBatch:
    error = tf.constant('')
    if self._report_tables and self._settings.rules.invalid_episodes == 'skip':
      removed = self._report_tables.remove_skipped(batch.episode)
      with tf.control_dependencies([removed]):
        error = tf.identity(error)
    return _ValidBatch(batch, error)

  def _drop_invalid(self, batch, result, episode_fault) -> _ValidBatch:
    """Skips invalid episodes; or drops the first one and all after it."""
    is_kept, error = result.is_valid, tf.constant('')
    skips = self._settings.rules.invalid_episodes == 'skip'
    invalid = tf.where(~is_kept)[:, 0]
    if not skips:
      invalid = invalid[:1]
    faults = validation.first_faults(result, invalid, episode_fault)
    episode = tf.gather(batch.episode, invalid)
    if not skips:
      error = validation.describe_faults(faults, episode)[0]
      is_kept = tf.range(tf.size(is_kept, tf.int64)) < invalid[0]
    elif self._report_tables:
      valid = tf.boolean_mask(batch.episode, is_kept)
      recorded = self._report_tables.set_skipped(valid, episode, faults)
      with tf.control_dependencies([recorded]):
        is_kept = tf.identity(is_kept)
    return _ValidBatch(batch_lib.filter_episodes(batch, is_kept), error)

  def first_step_after(self, valid: _ValidBatch, next_batch: _ValidBatch):
    """Returns the step after the episodes of a batch, `[1, ...]`.

    After the last batch, and before an invalid episode, it is a FIRST step
    whose fields are zeros, in the shapes of the data.
    """

    def end_step():
      step = tf.nest.map_structure(
          lambda leaf: tf.zeros_like(leaf[-1:]), self._used_steps(valid.batch)
      )
      if rlds.IS_FIRST in step:
        step[rlds.IS_FIRST] = tf.ones_like(step[rlds.IS_FIRST])
      return step

    return tf.cond(
        _has_steps(next_batch.batch) & (valid.error == ''),
        lambda: rows_lib.copy_rows(self._used_steps(next_batch.batch), 0, 1),
        end_step,
    )

  def cut(self, valid: _ValidBatch, next_step: Any = None) -> tf.data.Dataset:
    """Yields the arguments of `to_block`, for each block of a batch."""
    bounds = self._find_bounds(valid.batch.row_splits)
    # For an error there is one more index, for which `to_block` raises it after
    # the blocks of the valid episodes.
    count = tf.shape(bounds, tf.int64)[0]
    count += tf.cast(valid.error != '', tf.int64)
    rows = ()
    if next_step is not None:
      rows = rows_lib.concat_rows(self._used_steps(valid.batch), next_step)
    return pipelines.pair_each(
        tf.data.Dataset.range(count), (bounds, valid, rows)
    )

  def _find_bounds(self, splits) -> tf.Tensor:
    """Returns `[start row, stop row, first episode, stop episode]` per block.

    They are int64 `[P, 4]`.
    """
    num_rows = splits[-1]
    if not self._settings.single_episode_blocks:
      bounds = [[0, num_rows, 0, tf.size(splits, tf.int64) - 1]]
      return tf.convert_to_tensor(bounds)[: tf.minimum(num_rows, 1)]
    length = tf.maximum(num_rows, 1)
    if self._settings.block_length is not None:
      length = tf.constant(self._settings.block_length, tf.int64)
    count = (splits[1:] - splits[:-1] + length - 1) // length
    episode, start = windows_lib.expand_ranges(splits[:-1], count, length)
    stop = tf.minimum(start + length, tf.gather(splits, episode + 1))
    return tf.stack([start, stop, episode, episode + 1], 1)

  def to_block(self, index, parts) -> FrameBlock:
    """Returns a block, or raises the error."""
    bounds, (batch, error), rows = parts
    is_block = index < tf.shape(bounds, tf.int64)[0]
    with tf.control_dependencies(errors.check_true(is_block, error)):
      start, stop, first, last = tf.unstack(bounds[index])
    splits = batch.row_splits[first : last + 1]
    steps, columns = tf.cond(
        stop - start == batch.row_splits[-1],
        lambda: batch.steps,
        lambda: rows_lib.copy_rows(batch.steps, start, stop),
    )
    info = ()
    if self._policy_info:
      info = self._policy_info(rows_lib.slice_rows(rows, start, stop + 1))
    block = FrameBlock(
        trajectory.Trajectory(
            step_type=columns.step_type,
            observation=steps[rlds.OBSERVATION],
            action=steps[rlds.ACTION],
            policy_info=info,
            next_step_type=columns.next_step_type,
            reward=steps[rlds.REWARD],
            discount=columns.discount,
        ),
        episode_indices=batch.episode[first:last],
        row_splits=tf.clip_by_value(splits - start, 0, stop - start),
        step=start - splits[0],
        fields=rows_lib.slice_rows(batch.fields, first, last),
        steps=steps if self._settings.with_steps else (),
    )
    if self._report_tables:
      self._report_tables.add_block(
          block.episode_indices,
          block.row_splits,
          block.step,
          steps=steps_lib.select_fields(steps, self._settings.used_fields),
          is_last=columns.is_last,
          bootstraps=columns.bootstraps,
      )
    return block

  def _used_steps(self, batch):
    return steps_lib.select_fields(batch.steps[0], self._settings.used_fields)


def _has_steps(batch: batch_lib.EpisodeBatch) -> tf.Tensor:
  """Returns whether a batch has steps, bool `[]`."""
  return tf.reduce_max(batch.row_splits) > 0


def _compute_columns(result, terminal_discount) -> _FrameColumns:
  """Computes the columns of frames from a validated outline."""
  is_first, is_last, is_terminal, discount = (
      result.outline[name] for name in validation.FIELDS
  )
  is_end = is_last & is_terminal
  discount = tf.where(is_end, 0.0, discount)[:-1]
  into_end = is_end[1:] & ~is_last[:-1]
  if terminal_discount == 'transition':
    discount = tf.where(into_end, 0.0, discount)
  first, mid, last = ts.StepType.FIRST, ts.StepType.MID, ts.StepType.LAST
  types = tf.where(is_first, first, tf.where(is_last, last, mid))
  next_types = tf.where(result.is_before_first, first, types[1:])
  # An episode of one step is a LAST step, followed by a LAST step.
  is_single = is_first[:-1] & result.is_before_first
  return _FrameColumns(
      tf.where(is_single, last, types[:-1]),
      tf.where(is_single, last, next_types),
      discount,
      is_last[:-1],
      into_end & (discount != 0),
  )
