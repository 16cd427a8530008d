"""The rules that an episode's boundaries obey, checked on whole vectors."""

import functools
from typing import Sequence

import rlds
import tensorflow as tf

from rlds2reverb.episodes import blocks

VALIDATIONS = ('strict', 'tf_agents')

# The sentences of tf_agents.replay_buffers.rlds_to_reverb (TF-Agents 0.19.0).
TERMINAL_NOT_LAST = 'Terminal step must be the last step of an episode.'
FIRST_AFTER_MID = 'Mid step should not be followed by a first step.'
NO_FIRST_AFTER_LAST = (
    'Last step of an episode must be followed by a first step.'
)
# Ours, for what it lets pass.
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
    *,
    validation: str,
    nan_fields: Sequence[str] = (),
) -> blocks.Verdict:
  """Checks a whole episode by its outline.

  `"strict"` holds every rule of this module, and takes an episode's last step
  as followed by a first step. `"tf_agents"` holds the three rules of
  `tf_agents.replay_buffers.rlds_to_reverb` on the steps that follow each other
  inside the episode; its end is for `check_pairs` to check.

  Args:
    episode: int64 `[]`: the index of the episode.
    outline: the episode's outline, `[T]`.
    validation: one of `VALIDATIONS`.
    nan_fields: the paths that `blocks.NAN_FIELD` counts; where there are any,
      a NaN is a fault.

  Returns:
    The verdict. Of several faults it describes the first step's, and there the
    first in the order of this module's sentences.
  """
  is_first, is_last = outline[rlds.IS_FIRST], outline[rlds.IS_LAST]
  discount = outline[rlds.DISCOUNT]
  length = tf.size(is_first)
  has_nan = _has_nan(outline, nan_fields)
  if validation == 'tf_agents':
    # What follows the last step is not known here: take what breaks no rule.
    next_is_first = tf.concat([is_first[1:], is_last[-1:]], 0)
    broken = {**_broken_pairs(outline, next_is_first), **has_nan}
    return _verdict(broken, outline, episode, nan_fields=nan_fields)

  # All rules in a few operations: most episodes cost no more than these.
  step = tf.range(length)
  is_right = (
      tf.equal(is_first, step < 1)
      & tf.equal(is_last, step > length - 2)
      & (is_last | ~outline[rlds.IS_TERMINAL])
      & ~((discount < 0) | (discount > 1))
  )
  if nan_fields:
    is_right &= ~has_nan[NAN]

  return blocks.Verdict(
      (length > 0) & tf.reduce_all(is_right),
      lambda: _describe_episode(episode, outline, tuple(nan_fields)),
  )


# Hardly ever run, so not built anew into each pipeline, which would take about
# as long as to build its checks and its conversion.
@functools.partial(
    tf.function,
    autograph=False,
    experimental_attributes={'_noinline': True},
)
def _describe_episode(episode, outline, nan_fields):
  """Returns the string that says what is wrong under `"strict"`."""
  is_first, is_last = outline[rlds.IS_FIRST], outline[rlds.IS_LAST]
  discount = outline[rlds.DISCOUNT]
  length = tf.size(is_first)
  step = tf.range(length)
  next_is_first = tf.concat([is_first, [True]], 0)[1:]
  broken = {
      **_broken_pairs(outline, next_is_first),
      NO_FIRST: ~is_first & (step == 0),
      FIRST_AFTER_FIRST: is_first & ~is_last & next_is_first,
      STEPS_AFTER_LAST: is_last & next_is_first & (step < length - 1),
      DISCOUNT_RANGE: (discount < 0) | (discount > 1),
      **_has_nan(outline, nan_fields),
  }
  return tf.cond(
      length > 0,
      lambda: _describe(broken, outline, episode, nan_fields=nan_fields),
      lambda: tf.strings.format(EMPTY + ' Episode {} has none.', [episode]),
  )


def check_pairs(block: blocks.Block) -> blocks.Verdict:
  """Checks the three rules of TF-Agents on each step and the one that follows.

  Args:
    block: whose outline has the step that follows its last one.

  Returns:
    The verdict.
  """
  current = {name: column[:-1] for name, column in block.outline.items()}
  return _verdict(
      _broken_pairs(current, block.outline[rlds.IS_FIRST][1:]),
      current,
      block.episode,
      first_step=block.step,
  )


def _broken_pairs(outline, next_is_first):
  """Returns, bool `[T]` a rule of TF-Agents, where it is broken."""
  is_first, is_last = outline[rlds.IS_FIRST], outline[rlds.IS_LAST]
  return {
      TERMINAL_NOT_LAST: outline[rlds.IS_TERMINAL] & ~is_last,
      FIRST_AFTER_MID: ~(is_first | is_last) & next_is_first,
      NO_FIRST_AFTER_LAST: is_last & ~next_is_first,
  }


def _has_nan(outline, nan_fields):
  """Returns, by its rule, where there is NaN, if that is looked for."""
  return {NAN: outline[blocks.NAN_FIELD] > 0} if nan_fields else {}


def _verdict(broken, outline, episode, **kwargs):
  """Returns the verdict on an outline, given where each rule is broken."""
  return blocks.Verdict(
      ~tf.reduce_any(functools.reduce(tf.logical_or, broken.values())),
      lambda: _describe(broken, outline, episode, **kwargs),
  )


def _describe(broken, outline, episode, first_step=0, nan_fields=()):
  """Returns the string that tells of the first step that breaks a rule."""
  columns = tf.stack(list(broken.values()))  # [rules, T]
  row = tf.argmax(tf.reduce_any(columns, axis=0))
  rule = tf.argmax(tf.gather(columns, row, axis=1))
  flags = (rlds.IS_FIRST, rlds.IS_LAST, rlds.IS_TERMINAL, rlds.DISCOUNT)
  message = tf.strings.join([
      tf.gather(list(broken), rule),
      tf.strings.format(
          ' Found at episode {}, step {}: is_first={}, is_last={},'
          ' is_terminal={}, discount={}',
          [episode, row + tf.cast(first_step, tf.int64)]
          + [tf.gather(outline[flag], row) for flag in flags],
      ),
  ])
  if nan_fields:
    fields = ['', *(f', NaN in {field}' for field in nan_fields)]
    message += tf.gather(fields, tf.gather(outline[blocks.NAN_FIELD], row))
  return message + '.'
