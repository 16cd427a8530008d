"""The rules that an episode's boundaries obey, checked on whole vectors."""

import functools
from typing import Optional, Sequence

import rlds
import tensorflow as tf

from rlds2reverb.episodes import blocks
from rlds2reverb.episodes import steps as steps_lib

VALIDATIONS = ('strict', 'tf_agents')

# The sentences of tf_agents.replay_buffers.rlds_to_reverb (TF-Agents 0.19.0).
TERMINAL_NOT_LAST = 'Terminal step must be the last step of an episode.'
FIRST_AFTER_MID = 'Mid step should not be followed by a first step.'
NO_FIRST_AFTER_LAST = (
    'Last step of an episode must be followed by a first step.'
)
# Ours, for what it lets pass. The first holds under both validations.
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


def check_episode(
    episode: tf.Tensor,
    outline: blocks.Outline,
    lengths: Optional[steps_lib.Lengths] = None,
    *,
    validation: str,
    nan_fields: Sequence[str] = (),
) -> blocks.Verdict:
  """Checks a whole episode by its outline.

  `"strict"` holds every rule of this module. `"tf_agents"` holds the three
  rules of `tf_agents.replay_buffers.rlds_to_reverb`, and that fields have the
  same length; and, where it is asked for, that there is no NaN.

  Args:
    episode: int64 `[]`: the index of the episode.
    outline: the episode's outline and that of the step that follows, `[T + 1]`.
    lengths: of the episode's fields; None where they are the same for certain.
      Where they are not, the outline is not looked at.
    validation: one of `VALIDATIONS`.
    nan_fields: the paths that `blocks.NAN_FIELD` counts; where there are any,
      a NaN is a fault.

  Returns:
    The verdict. Of several faults it describes the first step's, and there the
    first in the order of this module's sentences.
  """
  if validation == 'tf_agents':
    broken = _broken_pairs(outline)
    if nan_fields:
      broken[NAN] = _has_nan(outline)
    is_broken = functools.reduce(tf.logical_or, broken.values())
    valid = ~tf.reduce_any(is_broken)
  else:
    valid = _is_right(outline, bool(nan_fields))
  if lengths is not None:
    valid &= steps_lib.are_equal(lengths)

  def describe():
    rules = _describe_outline(episode, outline, validation, tuple(nan_fields))
    if lengths is None:
      return rules
    return tf.where(
        steps_lib.are_equal(lengths),
        rules,
        _describe_lengths(episode, lengths.paths, lengths.rows),
    )

  return blocks.Verdict(valid, describe)


def _is_right(outline, find_nan):
  """Returns, bool `[]`, whether all rules of `"strict"` are kept.

  In a few operations: most episodes cost no more than these.
  """
  is_first, is_last = outline[rlds.IS_FIRST], outline[rlds.IS_LAST]
  discount = outline[rlds.DISCOUNT]
  length = tf.size(is_first) - 1
  step = tf.range(length + 1)
  is_right = (
      tf.equal(is_first, (step < 1) | (step >= length))
      & tf.equal(is_last, tf.equal(step, length - 1))
      & (is_last | ~outline[rlds.IS_TERMINAL])
      & ~((discount < 0) | (discount > 1))
  )
  if find_nan:
    is_right &= ~(outline[blocks.NAN_FIELD] > 0)
  return (length > 0) & tf.reduce_all(is_right)


# What follows is hardly ever run, so not built anew into each pipeline, which
# would take about as long as to build its checks and its conversion.
_built_once = functools.partial(
    tf.function,
    autograph=False,
    experimental_attributes={'_noinline': True},
)


@_built_once
def _describe_lengths(episode, paths, rows):
  """Returns the string that tells how long each field is."""
  fields = tf.strings.join([paths, tf.strings.as_string(rows)], ': ')
  return tf.strings.join([
      tf.strings.format(
          UNEQUAL_LENGTHS + ' Found at episode {}: ', [episode]
      ),
      tf.strings.reduce_join(fields, separator=', '),
      '.',
  ])


@_built_once
def _describe_outline(episode, outline, validation, nan_fields):
  """Returns the string that tells of the first step that breaks a rule."""
  current = {name: column[:-1] for name, column in outline.items()}
  is_first, is_last = current[rlds.IS_FIRST], current[rlds.IS_LAST]
  discount = current[rlds.DISCOUNT]
  next_is_first = outline[rlds.IS_FIRST][1:]
  length = tf.size(is_first)
  step = tf.range(length)
  broken = _broken_pairs(outline)
  if validation == 'strict':
    broken.update({
        NO_FIRST: ~is_first & (step == 0),
        FIRST_AFTER_FIRST: is_first & ~is_last & next_is_first,
        STEPS_AFTER_LAST: is_last & next_is_first & (step < length - 1),
        DISCOUNT_RANGE: (discount < 0) | (discount > 1),
    })
  if nan_fields:
    broken[NAN] = _has_nan(outline)

  def describe():
    rules = tf.stack(list(broken.values()))  # [rules, T]
    row = tf.argmax(tf.reduce_any(rules, axis=0))
    rule = tf.argmax(tf.gather(rules, row, axis=1))
    flags = (rlds.IS_FIRST, rlds.IS_LAST, rlds.IS_TERMINAL, rlds.DISCOUNT)
    message = tf.strings.join([
        tf.gather(list(broken), rule),
        tf.strings.format(
            ' Found at episode {}, step {}: is_first={}, is_last={},'
            ' is_terminal={}, discount={}',
            [episode, row] + [tf.gather(current[flag], row) for flag in flags],
        ),
    ])
    if nan_fields:
      fields = ['', *(f', NaN in {field}' for field in nan_fields)]
      message += tf.gather(fields, tf.gather(current[blocks.NAN_FIELD], row))
    return message + '.'

  return tf.cond(
      length > 0,
      describe,
      lambda: tf.strings.format(EMPTY + ' Episode {} has none.', [episode]),
  )


def _broken_pairs(outline):
  """Returns, bool `[T]` a rule of TF-Agents, where it is broken."""
  is_first, is_last = outline[rlds.IS_FIRST], outline[rlds.IS_LAST]
  next_is_first = is_first[1:]
  is_first, is_last = is_first[:-1], is_last[:-1]
  return {
      TERMINAL_NOT_LAST: outline[rlds.IS_TERMINAL][:-1] & ~is_last,
      FIRST_AFTER_MID: ~(is_first | is_last) & next_is_first,
      NO_FIRST_AFTER_LAST: is_last & ~next_is_first,
  }


def _has_nan(outline):
  """Returns, bool `[T]`, which steps hold a NaN."""
  return outline[blocks.NAN_FIELD][:-1] > 0
