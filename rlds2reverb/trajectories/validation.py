"""Validation of episodes, and descriptions of their faults.

An episode that breaks a rule would make frames that a learner misinterprets, so
it is refused, or skipped, before any of its frames come out. The rules are
about the *outline* of episodes, their flags and discounts, and about NaN.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from rlds2reverb.episodes import batch as batch_lib
from rlds2reverb.episodes import errors
from rlds2reverb.episodes import pipelines
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import rows as rows_lib
from rlds2reverb.episodes import steps as steps_lib

# The sentences of tf_agents.replay_buffers.rlds_to_reverb (TF-Agents 0.19.0).
TERMINAL_NOT_LAST = 'Terminal step must be the last step of an episode.'
FIRST_AFTER_MID = 'Mid step should not be followed by a first step.'
NO_FIRST_AFTER_LAST = (
    'Last step of an episode must be followed by a first step.'
)
# Rules of strict validation only, apart from UNEQUAL_LENGTHS, which always
# applies.
UNEQUAL_LENGTHS = steps_lib.UNEQUAL_LENGTHS
NO_FIRST = 'An episode must begin with a first step.'
FIRST_AFTER_FIRST = (
    'First step should not be followed by a first step, unless it is the last'
    ' step too.'
)
STEPS_AFTER_LAST = 'Last step of an episode must end it.'
DISCOUNT_RANGE = 'Discount must lie in [0, 1].'
NAN = 'Step must not hold NaN.'
EMPTY = 'An episode must have a step.'
# Advice for an episode whose last step is not marked.
_NO_LAST = (
    'If the data set never sets is_last, StepMapping(is_last=None) marks the'
    ' last step of every episode by its position.'
)

# A dict of columns [N + 1], of the steps of a batch and of the next step: the
# flags are bool, and the discount is float32.
Outline = dict[str, tf.Tensor]
FIELDS = (*rlds.FLAGS, rlds.DISCOUNT)


class ValidationResult(NamedTuple):
  """The result of validating a batch.

  Attributes:
    is_valid: bool `[E]`: which episodes pass all checks.
    row_splits: int64 `[E + 1]`: the row splits of the batch. An episode whose
      fields differ in length counts as one without steps.
    outline: the `Outline` of the steps and of the next step.
    is_before_first: bool `[N]`: whether a first step follows each step.
    broken: bool `[N, R]`: which rules each step breaks.
    rules: string `[R]`: the sentences of the rules.
    nan_field: int32 `[N]`: the first field of each step that holds NaN, if that
      breaks a rule: an index of `nan_paths`; 0 if there is none.
    nan_paths: string `[P + 1]`: an empty string, and the paths of the fields.
  """

  is_valid: tf.Tensor
  row_splits: tf.Tensor
  outline: Outline
  is_before_first: tf.Tensor
  broken: tf.Tensor
  rules: tf.Tensor
  nan_field: tf.Tensor
  nan_paths: tf.Tensor


def validate(
    batch: batch_lib.EpisodeBatch,
    validation: str = 'strict',
    *,
    nan_fields: Sequence[str] = (),
    next_outline: Outline | None = None,
) -> ValidationResult:
  """Checks the episodes of a batch.

  Args:
    batch: the batch, whose steps have `FIELDS` and `nan_fields`. An episode
      whose fields differ in length is invalid, and so is one with a fault.
    validation: `"strict"`, all rules of this module; or `"tf_agents"`, the
      three of TF-Agents, which may depend on the step after an episode.
    nan_fields: the names of the fields that must not hold NaN.
    next_outline: the outline `[1]` of the step after the batch; by default the
      outline of a first step.
  """
  steps = _equal_rows(batch.steps, {*FIELDS, *nan_fields})
  outline = _get_outline(steps, next_outline)
  num_rows = tf.size(outline[rlds.IS_FIRST], tf.int64) - 1
  row_splits = tf.minimum(batch.row_splits, num_rows)
  is_boundary = batch_lib.count_starts(row_splits, num_rows + 1) > 0
  is_first, is_last, is_terminal = (outline[n][:-1] for n in rlds.FLAGS)
  is_before_first = outline[rlds.IS_FIRST][1:]
  is_strict = validation == 'strict'
  if is_strict:
    # A missing first step of the next episode is a fault of that episode alone.
    is_before_first |= is_boundary[1:]
  broken = {
      TERMINAL_NOT_LAST: is_terminal & ~is_last,
      FIRST_AFTER_MID: ~(is_first | is_last) & is_before_first,
      NO_FIRST_AFTER_LAST: is_last & ~is_before_first,
  }
  if is_strict:
    discount = outline[rlds.DISCOUNT][:-1]
    broken |= {
        NO_FIRST: ~is_first & is_boundary[:-1],
        FIRST_AFTER_FIRST: is_first & ~is_last & is_before_first,
        STEPS_AFTER_LAST: is_last & is_before_first & ~is_boundary[1:],
        DISCOUNT_RANGE: (discount < 0) | (discount > 1),
    }
    # An episode that could not be read has no steps here.
    is_readable = row_splits[1:] > row_splits[:-1]
  else:
    is_readable = row_splits[1:] == batch.row_splits[1:]
    is_readable &= ~errors.is_fault(batch.fault)
  float_fields = steps_lib.find_float_fields(
      steps_lib.select_fields(steps, nan_fields)
  )
  nan_field = tf.zeros_like(is_first, tf.int32)
  for index, (_, leaf) in reversed(list(enumerate(float_fields, 1))):
    has_nan = tf.reduce_any(tf.math.is_nan(leaf), tf.range(1, tf.rank(leaf)))
    nan_field = tf.where(has_nan, index, nan_field)
  if float_fields:
    broken[NAN] = nan_field > 0
  broken_matrix = tf.stack(list(broken.values()), 1)

  def find_valid():
    counts = batch_lib.sum_rows(
        tf.math.count_nonzero(broken_matrix, 1), row_splits
    )
    return is_readable & (counts == 0)

  return ValidationResult(
      # Nearly all episodes are valid. Then nothing more has to be computed.
      tf.cond(tf.reduce_any(broken_matrix), find_valid, lambda: is_readable),
      row_splits,
      outline,
      is_before_first,
      broken_matrix,
      tf.constant(list(broken)),
      nan_field,
      tf.constant(['', *(path for path, _ in float_fields)]),
  )


def first_outline(steps: dict[str, Any]) -> Outline:
  """Returns the outline `[1]` of the first step, for the batch before it.

  It is the outline of a first step if there are no steps, or if fields differ
  in length.
  """
  outline = _get_outline(
      _equal_rows(steps_lib.select_fields(steps, FIELDS), FIELDS)
  )
  return {name: column[:1] for name, column in outline.items()}


def _equal_rows(steps, fields) -> dict[str, Any]:
  """Returns fields of steps; without rows if the lengths of steps differ."""
  lengths = steps_lib.get_lengths(steps)
  steps = steps_lib.select_fields(steps, fields)
  if lengths is None:
    return steps
  stop = tf.where(lengths.are_equal(), lengths.lengths[0], 0)
  return rows_lib.slice_rows(steps, tf.zeros_like(stop), stop)


def _get_outline(steps, next_outline=None) -> Outline:
  """Returns the outline `[N + 1]` of steps, and of the next step."""
  outline = {}
  for name in FIELDS:
    end: Any = [name == rlds.IS_FIRST]
    dtype = tf.bool
    if name == rlds.DISCOUNT:
      end, dtype = [0.0], tf.float32
    column = steps_lib.to_column(name, steps[name], dtype)
    if next_outline is not None:
      end = next_outline[name]
    outline[name] = tf.concat([column, end], 0)
  return outline


def find_step_faults(result: ValidationResult) -> errors.Fault:
  """Returns all faults of steps.

  Returns:
    A `Fault` of `[P]`, whose `step` is the row, in the order of the steps and
    for each step in the order of `rules`.
  """
  indices = tf.where(result.broken)
  row, rule = indices[:, 0], tf.gather(result.rules, indices[:, 1])
  values = []
  for name in FIELDS:
    value = tf.cast(tf.gather(result.outline[name], row), tf.float32)
    short, long = (
        tf.strings.as_string(value, precision=digits, shortest=True)
        for digits in (6, 9)
    )
    # 0.9, which is 0.899999976 with 9 digits, is exact with 6.
    is_exact = tf.strings.to_number(short) == value
    text = tf.where(is_exact, short, long)
    values.append(tf.strings.join([f'{name}=', text]))
  path = tf.gather(result.nan_paths, tf.gather(result.nan_field, row))
  empty = tf.fill(tf.shape(rule), '')
  return errors.Fault(
      rule,
      row,
      tf.where(rule == NAN, path, empty),
      tf.strings.join(values, ', ')
      + tf.where(path == '', empty, ', NaN in ' + path),
      place=empty,
      advice=empty,
      file=empty,
  )


def find_episode_fault(batch: batch_lib.EpisodeBatch) -> errors.Fault:
  """Returns the fault of the episodes without steps of a validated batch.

  It is the error of an episode that could not be read, the unequal lengths of
  its fields, or that it has no steps. The first two occur only in batches of
  one episode.
  """
  fault = errors.Fault(EMPTY, values='it has none').tensors()
  lengths = steps_lib.get_lengths(batch.steps)
  if lengths is not None:
    values = tf.strings.join(
        [lengths.names, tf.strings.as_string(lengths.lengths)], ': '
    )
    unequal = errors.Fault(
        UNEQUAL_LENGTHS, values=tf.strings.reduce_join(values, separator=', ')
    )
    fault = errors.choose_fault(lengths.are_equal(), fault, unequal)
  if batch.fault == ():
    return fault
  return errors.choose_fault(batch.fault.rule == '', fault, batch.fault)


# Faults and their sentences are rarely needed, but tracing them would take as
# long as tracing the checks and the conversion. So each is traced once.
describe_faults = pipelines.traced_once(errors.describe_fault)


@pipelines.traced_once
def first_faults(
    result: ValidationResult, invalid: tf.Tensor, episode_fault: errors.Fault
) -> errors.Fault:
  """Returns the first fault of each invalid episode.

  Args:
    result: the result for a batch.
    invalid: int64 `[I]`: the positions of the invalid episodes, ascending.
    episode_fault: the fault of episodes without steps.

  Returns:
    A `Fault` of `[I]`, whose steps are counted from the start of the episode.
  """
  faults = find_step_faults(result)
  starts = tf.gather(result.row_splits, invalid)
  ends = tf.gather(result.row_splits, invalid + 1)
  has_steps = starts < ends
  index = tf.where(
      has_steps, tf.searchsorted(faults.step, starts), tf.size(faults.step)
  )
  faults = tf.nest.map_structure(
      lambda column, value: tf.gather(tf.concat([column, [value]], 0), index),
      faults,
      episode_fault,
  )
  no_last = (faults.rule == FIRST_AFTER_MID) & (faults.step == ends - 1)
  return faults._replace(
      step=tf.where(has_steps, faults.step - starts, faults.step),
      advice=tf.where(no_last, _NO_LAST, faults.advice),
  )
