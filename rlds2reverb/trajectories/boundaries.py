"""Checks that the steps of an episode mark its beginning and end correctly.

An episode that breaks a rule would make frames that a learner misreads, so it
is refused, or skipped, before any of its frames come out. The checks work on
the whole outline of an episode at once.
"""

import functools
from typing import Callable, Dict, NamedTuple, Optional, Sequence

import tensorflow as tf

from rlds2reverb.episodes import faults as faults_lib
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import judging
from rlds2reverb.episodes import outlines
from rlds2reverb.episodes import packs
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps

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


def check_episode(
    episode: tf.Tensor,
    outline: outlines.Outline,
    lengths: Optional[stacked_steps.Lengths] = None,
    *,
    validation: str,
    nan_fields: Sequence[str] = (),
    stored: Optional[faults_lib.Fault] = None,
    on_fault: Optional[Callable[[faults_lib.Fault], faults_lib.Fault]] = None,
) -> judging.Verdict:
  """Checks a whole episode by its outline.

  `"strict"` checks every rule of this module. `"tf_agents"` checks the three
  rules of `tf_agents.replay_buffers.rlds_to_reverb`, and that all fields have
  the same length. Both also check for NaN, if `nan_fields` is given.

  Args:
    episode: int64 `[]`: the index of the episode.
    outline: the outline of the episode and of the step that follows it,
      `[T + 1]`; `[1]` where the lengths of the fields differ.
    lengths: the lengths of the episode's fields; None if they are known to be
      the same.
    validation: `"strict"` or `"tf_agents"`; see `ConversionRules`.
    nan_fields: the paths of the fields that `outlines.NAN_FIELD` numbers. If
      there are any, an episode that holds a NaN is invalid.
    stored: the fault of the episode as it is stored, if it has one.
    on_fault: a function that is called, in graph mode, with the fault, and
      returns it.

  Returns:
    The verdict. If the episode has several faults, the verdict describes the
    first step that is at fault, and of its faults the one whose sentence comes
    first in this module.
  """
  if validation == 'strict':
    # If lengths differ, there are no steps here, which is never valid.
    length = tf.size(outline[rlds.IS_FIRST], tf.int64) - 1
    valid = are_strictly_valid(outline, tf.stack([0, length]), bool(nan_fields))
  else:
    broken = _broken_rules(outline, validation, bool(nan_fields))
    valid = ~tf.reduce_any(functools.reduce(tf.logical_or, broken.values()))
    if lengths is not None:
      valid &= stacked_steps.are_equal(lengths)

  if stored is not None:
    valid &= stored.rule == ''

  def find():
    fault = _find_in_outline(outline, validation, tuple(nan_fields))
    if lengths is not None:
      fault = _choose(
          stacked_steps.are_equal(lengths),
          fault,
          _find_in_lengths(lengths.paths, lengths.rows),
      )
    if stored is not None:
      fault = _choose(stored.rule == '', fault, stored)
    return fault

  def describe():
    fault = find()
    return _sentence(on_fault(fault) if on_fault else fault, episode)

  return judging.Verdict(valid, describe)


def _choose(condition, fault, other) -> faults_lib.Fault:
  return tf.nest.map_structure(
      lambda one, another: tf.where(condition, one, another), fault, other
  )


class Faults(NamedTuple):
  """All steps of an episode that break a rule, and the rules that they break.

  Attributes:
    steps: int64 `[P]`: the index of the step, in increasing order.
    rules: string `[P]`: the sentence of the rule.
    values: string `[P]`: the flags and the discount of the step.
  """

  steps: tf.Tensor
  rules: tf.Tensor
  values: tf.Tensor


def find_faults(
    outline: outlines.Outline,
    *,
    validation: str,
    nan_fields: Sequence[str] = (),
) -> Faults:
  """Finds everything that `check_episode` would find, one after the other.

  An episode without steps has no faults here, though it is not valid.

  Args:
    outline: see `check_episode`.
    validation: see `check_episode`.
    nan_fields: see `check_episode`.
  """
  broken = _broken_rules(outline, validation, bool(nan_fields))
  # A row for each fault, in the order of the steps.
  places = tf.where(tf.stack(list(broken.values()), axis=1))
  steps, rules = places[:, 0], places[:, 1]
  texts = []
  for flag in (rlds.IS_FIRST, rlds.IS_LAST, rlds.IS_TERMINAL, rlds.DISCOUNT):
    value = tf.gather(outline[flag], steps)
    if value.dtype == tf.bool:
      text = tf.where(value, '1', '0')
    else:
      text = tf.strings.as_string(value, shortest=True)
    texts.append(tf.strings.join([f'{flag}=', text]))
  values = tf.strings.join(texts, ', ')
  if nan_fields:
    fields = tf.constant(['', *(f', NaN in {field}' for field in nan_fields)])
    values += tf.gather(fields, tf.gather(outline[outlines.NAN_FIELD], steps))
  return Faults(steps, tf.gather(list(broken), rules), values)


def are_strictly_valid(
    outline: outlines.Outline, row_splits: tf.Tensor, find_nan: bool
) -> tf.Tensor:
  """Returns, bool `[]`, whether all episodes keep all rules of `"strict"`.

  `_broken_rules` states the same rules one by one. Together they say that the
  first step alone is a first one and the last step alone a last one, which
  takes half as many operations. For valid episodes, which nearly all are, no
  other check is made.

  Args:
    outline: the outline of the steps of several episodes, one after the other,
      and of a FIRST step that follows them, `[N + 1]`.
    row_splits: where the steps of each episode begin and end, int64 `[E + 1]`.
    find_nan: whether an episode that holds NaN is invalid.
  """
  is_first, is_last = outline[rlds.IS_FIRST], outline[rlds.IS_LAST]
  discount = outline[rlds.DISCOUNT]
  # How many episodes begin at each step: at most one if all are valid, because
  # an episode without steps begins where the next one does.
  num_begins = packs.count_begins(row_splits, tf.size(is_first))
  begins = num_begins > 0
  is_valid = (
      tf.equal(is_first, begins)
      & tf.equal(is_last, tf.concat([begins[1:], [False]], 0))
      & (num_begins < 2)
      & (is_last | ~outline[rlds.IS_TERMINAL])
      & ~((discount < 0) | (discount > 1))
  )
  if find_nan:
    is_valid &= ~(outline[outlines.NAN_FIELD] > 0)
  return tf.reduce_all(is_valid)


def _broken_rules(outline, validation, find_nan) -> Dict[str, tf.Tensor]:
  """Returns the steps that break each rule, bool `[T]`, by its sentence."""
  is_first, is_last = outline[rlds.IS_FIRST], outline[rlds.IS_LAST]
  next_is_first = is_first[1:]
  is_first, is_last = is_first[:-1], is_last[:-1]
  broken = {
      TERMINAL_NOT_LAST: outline[rlds.IS_TERMINAL][:-1] & ~is_last,
      FIRST_AFTER_MID: ~(is_first | is_last) & next_is_first,
      NO_FIRST_AFTER_LAST: is_last & ~next_is_first,
  }
  if validation == 'strict':
    discount = outline[rlds.DISCOUNT][:-1]
    length = tf.size(is_first)
    step = tf.range(length)
    broken.update(
        {
            NO_FIRST: ~is_first & (step == 0),
            FIRST_AFTER_FIRST: is_first & ~is_last & next_is_first,
            STEPS_AFTER_LAST: is_last & next_is_first & (step < length - 1),
            DISCOUNT_RANGE: (discount < 0) | (discount > 1),
        }
    )
  if find_nan:
    broken[NAN] = outline[outlines.NAN_FIELD][:-1] > 0
  return broken


# Messages are rarely needed, but building them into a pipeline would take about
# as long as building the checks and the conversion. So each is built only once.
_sentence = graphs.built_once(faults_lib.sentence)


@graphs.built_once
def _find_in_lengths(paths, rows):
  """Returns the `Fault` that lists the length of each field."""
  fields = tf.strings.join([paths, tf.strings.as_string(rows)], ': ')
  return faults_lib.Fault(
      UNEQUAL_LENGTHS, values=tf.strings.reduce_join(fields, separator=', ')
  ).tensors()


@graphs.built_once
def _find_in_outline(outline, validation, nan_fields):
  """Returns the `Fault` of the first step that is at fault."""
  current = {name: column[:-1] for name, column in outline.items()}
  broken = _broken_rules(outline, validation, bool(nan_fields))

  def find():
    rules = tf.stack(list(broken.values()))  # [rules, T]
    row = tf.argmax(tf.reduce_any(rules, axis=0))
    rule = tf.argmax(tf.gather(rules, row, axis=1))
    sentence = tf.gather(list(broken), rule)
    flags = (rlds.IS_FIRST, rlds.IS_LAST, rlds.IS_TERMINAL, rlds.DISCOUNT)
    values = tf.strings.format(
        'is_first={}, is_last={}, is_terminal={}, discount={}',
        [tf.gather(current[flag], row) for flag in flags],
    )
    field = tf.constant('')
    if nan_fields:
      number = tf.gather(current[outlines.NAN_FIELD], row)
      field = tf.gather(['', *nan_fields], number)
      values += tf.where(number > 0, ', NaN in ' + field, '')
    no_last = (sentence == FIRST_AFTER_MID) & (
        row == tf.size(current[rlds.IS_LAST], tf.int64) - 1
    )
    return faults_lib.Fault(
        sentence,
        row,
        tf.where(sentence == NAN, field, ''),
        values,
        advice=tf.where(no_last, _NO_LAST, ''),
    ).tensors()

  return tf.cond(
      tf.size(current[rlds.IS_FIRST]) > 0,
      find,
      lambda: faults_lib.Fault(EMPTY, values='it has none').tensors(),
  )
