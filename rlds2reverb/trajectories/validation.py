"""Says which episodes are valid, and what is wrong with the others.

An episode that breaks a rule would make frames that a learner misreads, so it
is refused, or skipped, before any of its frames come out. The rules are about
the *outline* of episodes: their flags, discounts, and where they hold NaN.
"""

import functools
from typing import Any, Dict, Iterable, NamedTuple, Optional, Sequence, Tuple

import tensorflow as tf

from rlds2reverb.episodes import episode_batches
from rlds2reverb.episodes import faults as faults_lib
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.episodes import steps as steps_lib

# The sentences of tf_agents.replay_buffers.rlds_to_reverb (TF-Agents 0.19.0).
TERMINAL_NOT_LAST = 'Terminal step must be the last step of an episode.'
FIRST_AFTER_MID = 'Mid step should not be followed by a first step.'
NO_FIRST_AFTER_LAST = (
    'Last step of an episode must be followed by a first step.'
)
# Our own sentences, for faults that TF-Agents accepts. Unequal lengths are
# refused under both validations.
UNEQUAL_LENGTHS = stacked_steps.UNEQUAL_LENGTHS
NO_FIRST = 'An episode must begin with a first step.'
FIRST_AFTER_FIRST = (
    'First step should not be followed by a first step, unless it is the last'
    ' step too.'
)
STEPS_AFTER_LAST = 'Last step of an episode must end it.'
DISCOUNT_RANGE = 'Discount must lie in [0, 1].'
NAN = 'Step must not hold NaN.'
EMPTY = 'An episode must have a step.'
# Advice for an episode whose last step is not marked as one.
_NO_LAST = (
    'If the data set never sets is_last, StepMapping(is_last=None) marks the'
    ' last step of every episode by its position.'
)

# A dict of columns [N]: the flags are bool, and the discount is float32. Where
# NaN is looked for, there is also NAN_FIELD, int32. It is 0 for a step without
# NaN. Otherwise it is 1 + the index of the step's first field that holds one,
# in the order of `steps_lib.float_fields`.
Outline = Dict[str, tf.Tensor]
NAN_FIELD = 'nan_field'
_FLAGS = (rlds.IS_FIRST, rlds.IS_LAST, rlds.IS_TERMINAL)
FIELDS = frozenset([*_FLAGS, rlds.DISCOUNT])


def select(steps: Dict[str, Any], fields: Iterable[str]) -> Dict[str, Any]:
  """Returns the named fields of steps."""
  return {field: steps[field] for field in fields}


def outline_of(
    steps: Any,
    nan_fields: Sequence[str] = (),
    lengths: Optional[stacked_steps.Lengths] = None,
) -> Outline:
  """Returns the outline `[N]` of steps stacked `[N, ...]`.

  Args:
    steps: a dict of the outline's fields and `nan_fields`, and perhaps others.
    nan_fields: the names of the fields in which `NAN_FIELD` finds NaN. If there
      are none, the outline has no such column.
    lengths: the `Lengths` of the steps, if they may differ. If they do differ,
      the outline is `[0]`.
  """
  if lengths is not None:
    shortest = tf.reduce_min(lengths.rows, keepdims=True)
    end = tf.where(shortest == tf.reduce_max(lengths.rows), shortest, 0)
    steps = tf.nest.map_structure(
        lambda leaf: tf.strided_slice(leaf, [0], end, [1]),
        select(steps, FIELDS.union(nan_fields)),
    )
  outline = {
      flag: steps_lib.one_a_step(flag, steps[flag], tf.bool) for flag in _FLAGS
  }
  outline[rlds.DISCOUNT] = steps_lib.one_a_step(
      rlds.DISCOUNT, steps[rlds.DISCOUNT], tf.float32
  )
  if nan_fields:
    leaves = steps_lib.float_fields(select(steps, nan_fields))
    nan_field = tf.zeros_like(outline[rlds.DISCOUNT], tf.int32)
    for index, (_, leaf) in reversed(list(enumerate(leaves))):
      has_nan = tf.reduce_any(
          tf.math.is_nan(tf.reshape(leaf, [tf.shape(leaf)[0], -1])), axis=1
      )
      nan_field = tf.where(has_nan, index + 1, nan_field)
    outline[NAN_FIELD] = nan_field
  return outline


def with_end(outline: Outline, end: Optional[Outline] = None) -> Outline:
  """Returns the outline `[N + 1]` of steps, and of a step that follows them.

  Args:
    outline: `[N]`.
    end: flags and discount of the step that follows, `[1]`; by default those of
      a FIRST step, which is assumed to follow an episode.
  """
  first: Dict[str, Any] = {n: [n == rlds.IS_FIRST] for n in _FLAGS}
  first.update({rlds.DISCOUNT: [0.0], NAN_FIELD: [0]}, **(end or {}))
  return {
      name: tf.concat([column, first[name]], 0)
      for name, column in outline.items()
  }


def are_valid(
    outline: Outline, row_splits: tf.Tensor, validation: str
) -> tf.Tensor:
  """Returns which episodes keep all rules, bool `[E]`.

  Args:
    outline: the outline of the steps of several episodes, one after the other,
      and of the step that follows them, `[N + 1]`. If it has a `NAN_FIELD`, an
      episode that holds NaN is invalid.
    row_splits: where the steps of each episode begin and end, int64 `[E + 1]`.
    validation: `"strict"`, all rules of this module; or `"tf_agents"`, the
      three of TF-Agents, which may look at the step after an episode.
  """
  broken = list(_broken_rules(outline, row_splits, validation).values())
  if NAN_FIELD in outline:
    broken.append(outline[NAN_FIELD][:-1] > 0)
  is_broken = functools.reduce(tf.logical_or, broken)
  has_steps = row_splits[1:] > row_splits[:-1]
  if validation == 'tf_agents':
    has_steps = tf.ones_like(has_steps)
  # Nearly all episodes are valid, so that nothing more has to be found.
  return tf.cond(
      tf.reduce_any(is_broken),
      lambda: has_steps
      & (
          episode_batches.sum_rows(tf.cast(is_broken, tf.int64), row_splits)
          == 0
      ),
      lambda: has_steps,
  )


def _broken_rules(outline, row_splits, validation) -> Dict[str, tf.Tensor]:
  """Returns the steps that break each rule, bool `[N]`, by its sentence."""
  is_first, is_last, is_terminal = (outline[name][:-1] for name in _FLAGS)
  next_is_first = outline[rlds.IS_FIRST][1:]
  edges = episode_batches.count_begins(row_splits, tf.size(is_first) + 1) > 0
  if validation == 'strict':
    next_is_first |= edges[1:]  # Whatever the next episode begins with.
  broken = {
      TERMINAL_NOT_LAST: is_terminal & ~is_last,
      FIRST_AFTER_MID: ~(is_first | is_last) & next_is_first,
      NO_FIRST_AFTER_LAST: is_last & ~next_is_first,
  }
  if validation == 'strict':
    discount = outline[rlds.DISCOUNT][:-1]
    broken.update(
        {
            NO_FIRST: ~is_first & edges[:-1],
            FIRST_AFTER_FIRST: is_first & ~is_last & next_is_first,
            STEPS_AFTER_LAST: is_last & next_is_first & ~edges[1:],
            DISCOUNT_RANGE: (discount < 0) | (discount > 1),
        }
    )
  return broken


class Faults(NamedTuple):
  """Steps that break a rule, and the rules that they break.

  Attributes:
    steps: int64 `[P]`: the row of the step in the outline, in increasing order.
    rules: string `[P]`: the sentence of the rule.
    fields: string `[P]`: the path of the field at fault; empty if there is no
      such field.
    values: string `[P]`: the flags and the discount of the step.
  """

  steps: tf.Tensor
  rules: tf.Tensor
  fields: tf.Tensor
  values: tf.Tensor


def find_faults(
    outline: Outline,
    row_splits: Optional[tf.Tensor] = None,
    *,
    validation: str,
    nan_paths: Sequence[str] = (),
) -> Faults:
  """Finds all steps that break a rule.

  Args:
    outline: see `are_valid`.
    row_splits: see `are_valid`; by default all steps are one episode.
    validation: see `are_valid`.
    nan_paths: the paths of the fields that `NAN_FIELD` numbers.

  Returns:
    The faults in the order of the steps, and those of one step in the order of
    the sentences in this module.
  """
  if row_splits is None:
    row_splits = tf.stack([0, tf.size(outline[rlds.IS_FIRST], tf.int64) - 1])
  broken = _broken_rules(outline, row_splits, validation)
  if nan_paths:
    broken[NAN] = outline[NAN_FIELD][:-1] > 0
  places = tf.where(tf.stack(list(broken.values()), axis=1))
  steps, rules = places[:, 0], tf.gather(list(broken), places[:, 1])
  texts = []
  for name in (*_FLAGS, rlds.DISCOUNT):
    value = tf.cast(tf.gather(outline[name], steps), tf.float32)
    short, whole = (
        tf.strings.as_string(value, precision=digits, shortest=True)
        for digits in (6, 9)
    )
    # 0.9 has 9 digits in binary, 0.899999976, and is told by one.
    is_whole = tf.strings.to_number(short) == value
    text = tf.where(is_whole, short, whole)
    texts.append(tf.strings.join([f'{name}=', text]))
  values = tf.strings.join(texts, ', ')
  fields = tf.zeros_like(values)
  if nan_paths:
    number = tf.gather(outline[NAN_FIELD], steps)
    held = tf.gather(['', *(f', NaN in {path}' for path in nan_paths)], number)
    values += held
    fields = tf.where(rules == NAN, tf.gather(['', *nan_paths], number), fields)
  return Faults(steps, rules, fields, values)


# Faults and their sentences are rarely needed, but building them into a
# pipeline would take about as long as building the checks and the conversion.
# So each is built once.
sentences = graphs.built_once(faults_lib.sentence)


@graphs.built_once
def first_faults(
    outline: Outline,
    row_splits: tf.Tensor,
    invalid: tf.Tensor,
    validation: str,
    nan_paths: Tuple[str, ...],
) -> faults_lib.Fault:
  """Returns the first fault of each invalid episode.

  Args:
    outline: see `are_valid`.
    row_splits: see `are_valid`.
    invalid: int64 `[I]`: the positions of episodes that are not valid, in
      increasing order.
    validation: see `are_valid`.
    nan_paths: see `find_faults`.

  Returns:
    A `Fault` of `[I]`, whose steps are counted from the start of the episode.
  """
  found = find_faults(
      outline, row_splits, validation=validation, nan_paths=nan_paths
  )
  # An episode without steps has no step at fault. The last fault stands for it.
  end = row_splits[-1:]
  found = [
      tf.concat([column, other], 0)
      for column, other in zip(found, (end, [EMPTY], [''], ['it has none']))
  ]
  begins = tf.gather(row_splits, invalid)
  ends = tf.gather(row_splits, invalid + 1)
  first = tf.searchsorted(found[0], begins)
  first = tf.where(begins < ends, first, tf.size(found[0]) - 1)
  step, rule, field, values = (tf.gather(column, first) for column in found)
  no_last = (rule == FIRST_AFTER_MID) & (step == ends - 1)
  nothing = tf.fill(tf.shape(rule), '')
  return faults_lib.Fault(
      rule,
      tf.where(begins < ends, step - begins, -1),
      field,
      values,
      nothing,
      tf.where(no_last, _NO_LAST, nothing),
  )


def fault_of_lengths(lengths: stacked_steps.Lengths) -> faults_lib.Fault:
  """Returns the fault of an episode whose fields differ in length, `[1]`."""
  found = tf.strings.join(
      [lengths.paths, tf.strings.as_string(lengths.rows)], ': '
  )
  return faults_lib.Fault(
      UNEQUAL_LENGTHS, values=tf.strings.reduce_join(found, separator=', ')
  )
