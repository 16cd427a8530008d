"""The forms of TorchRL's episode data (TED), and how one becomes another.

One episode of the steps 0, 1, 2, 3 and one of the steps 4, 5 have four
transitions. What is known at every step, such as the observation, and what is
known of every transition, such as the action, the reward and `done`:

                     known at a step          known of a transition
    "transitions"    0 1 2 4   next: 1 2 3 5  0 1 2 4
    "flat"           0 1 2 3 4 5              0 1 2 4
    "nested"         [0 1 2 3] [4 5]          [0 1 2] [4]
"""

from typing import Any, Dict, NamedTuple, Tuple

import tensorflow as tf
import tree

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import gathering
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib

TRANSITIONS = 'transitions'
FLAT = 'flat'
NESTED = 'nested'
FORMS = (TRANSITIONS, FLAT, NESTED)

NEXT = 'next'
DONE = 'done'
TERMINATED = 'terminated'
TRUNCATED = 'truncated'
END_KEYS = (DONE, TERMINATED, TRUNCATED)


class Columns(NamedTuple):
  """Episodes in the flat form.

  Attributes:
    steps: a dict of what is known at every step, every leaf `[S, ...]`.
    transitions: a dict of what is known of every transition, `[S - E, ...]`
      for `E` episodes that all have a step; `END_KEYS` among them.
  """

  steps: Dict[str, Any]
  transitions: Dict[str, Any]


def to_form(
    form: str, columns: Columns, num_steps: tf.Tensor
) -> Dict[str, Any]:
  """Returns the nest of `columns` in a form.

  Args:
    form: one of `FORMS`.
    columns: the `Columns`.
    num_steps: int64 `[E]`: how many steps each episode has.
  """
  if form == FLAT:
    return {**columns.steps, **columns.transitions}
  if form == NESTED:
    return {
        **_ragged(columns.steps, num_steps),
        **_ragged(columns.transitions, tf.maximum(num_steps - 1, 0)),
    }
  step = tf.ragged.range(num_steps)
  is_first = step.values == 0
  is_last = step.values == tf.repeat(num_steps - 1, num_steps)
  transitions = dict(columns.transitions)
  following = {key: transitions[key] for key in END_KEYS}
  if rlds.REWARD in transitions:
    following[rlds.REWARD] = transitions.pop(rlds.REWARD)
  never = tf.zeros_like(transitions[DONE])
  return {
      **gathering.take(columns.steps, tf.where(~is_last)[:, 0]),
      **transitions,
      **{key: never for key in END_KEYS},
      NEXT: {
          **gathering.take(columns.steps, tf.where(~is_first)[:, 0]),
          **following,
      },
  }


def form_of(data: Dict[str, Any]) -> str:
  """Returns the form of a nest, by its types and names."""
  if NEXT in data:
    return TRANSITIONS
  is_ragged = any(
      isinstance(leaf, tf.RaggedTensor)
      for leaf in tf.nest.flatten(data, expand_composites=False)
  )
  return NESTED if is_ragged else FLAT


def check_form(data: Any, form: str) -> None:
  """Raises a ValueError if `data` cannot be of a form."""
  checks.check_choice('form', form, FORMS)
  if not isinstance(data, dict):
    raise ValueError(
        f'TED must be a dict of fields, but is a {type(data).__name__}.'
    )
  below = data
  if form == TRANSITIONS:
    if not isinstance(data.get(NEXT), dict):
      raise ValueError(
          f'TED must have what follows each transition in {NEXT!r}, but has'
          f' {sorted(data)}. If the observations are kept once, with one more'
          ' for each episode, its form is "flat", or "nested" if it is ragged.'
      )
    below = data[NEXT]
  elif form != form_of(data):
    raise ValueError(
        f'This is TED of the form {form_of(data)!r}, but form is {form!r}.'
    )
  if DONE not in below and TERMINATED not in below:
    raise ValueError(
        f'TED must say where episodes end, in {DONE!r} or in {TERMINATED!r} and'
        f' {TRUNCATED!r}'
        + f', below {NEXT!r}' * (form == TRANSITIONS)
        + f', but has {sorted(below)}.'
    )


def from_transitions(
    data: Dict[str, Any], num_steps: tf.Tensor, lone_steps: Dict[str, Any]
) -> Columns:
  """Returns the flat columns of a nest of the form "transitions".

  Args:
    data: the nest.
    num_steps: int64 `[E]`: how many steps each episode has.
    lone_steps: the steps of the episodes that have just one, which have no
      transition; a dict as `data` without `next`, every leaf `[L, ...]`. It may
      be empty if there are none.

  Raises:
    InvalidArgumentError: if a step is not what the transition before it leads
      to.
  """
  following = data[NEXT]
  root = {
      key: value for key, value in data.items() if key not in (NEXT, *END_KEYS)
  }
  at_steps = [key for key in root if key in following and key != rlds.REWARD]
  num_transitions = tf.maximum(num_steps - 1, 0)
  rows = tf.ragged.range(num_transitions).values
  is_first = rows == 0
  starts = tf.where(is_first)[:, 0]
  goes_on = tf.where(~is_first)[:, 0]
  made = {}
  for key in at_steps:
    both = tf.nest.map_structure(lambda *pair: pair, root[key], following[key])
    made[key] = tree.map_structure_with_path_up_to(
        root[key],
        lambda path, pair, key=key: _join_steps(
            steps_lib.field_path((key, *path)),
            pair[0],
            pair[1],
            starts,
            goes_on,
        ),
        both,
    )
  # `made` has the first steps of all episodes, then what each transition leads
  # to, then the lone steps. They are put in the order of the episodes.
  step = tf.ragged.range(num_steps).values
  is_lone = tf.repeat(num_steps == 1, num_steps)
  num_longer = tf.size(starts, tf.int64)
  place = tf.where(
      step > 0,
      num_longer + _rank(step > 0),
      tf.where(
          is_lone,
          num_longer + tf.size(rows, tf.int64) + _rank(is_lone),
          _rank((step == 0) & ~is_lone),
      ),
  )
  if lone_steps:
    made = tf.nest.map_structure(
        lambda leaf, lone: tf.concat([leaf, lone], 0),
        made,
        {key: lone_steps[key] for key in made},
    )
  rest = {key: root[key] for key in root if key not in made}
  rest.update({key: following[key] for key in following if key not in made})
  return Columns(gathering.take(made, place), rest)


def _rank(mask) -> tf.Tensor:
  """Returns, where `mask` is True, how many were True before."""
  return tf.cumsum(tf.cast(mask, tf.int64)) - 1


def _join_steps(name, root, following, starts, goes_on) -> tf.Tensor:
  """Returns the first steps and then what follows, after a check."""
  here = tf.gather(root, goes_on)
  before = tf.gather(following, goes_on - 1)
  same = here == before
  if root.dtype.is_floating:
    same |= tf.math.is_nan(here) & tf.math.is_nan(before)
  wrong = tf.where(tf.reduce_any(tf.reshape(~same, [tf.size(goes_on), -1]), 1))[
      :, 0
  ]
  with tf.control_dependencies(
      [
          tf.debugging.Assert(
              tf.size(wrong) == 0,
              [
                  f'The {name} of a transition must be what the transition'
                  ' before it leads to, or one of the two would be lost. They'
                  ' differ in the rows',
                  tf.gather(goes_on, wrong),
              ],
          )
      ]
  ):
    return tf.concat([tf.gather(root, starts), following], 0)


def _ragged(columns, lengths) -> Dict[str, Any]:
  return tf.nest.map_structure(
      lambda leaf: tf.RaggedTensor.from_row_lengths(leaf, lengths), columns
  )


def from_nested(data: Dict[str, Any]) -> Tuple[Dict[str, Any], tf.Tensor]:
  """Returns a nest of the form "flat", and int64 `[E]`: the transitions."""
  flat = tf.nest.map_structure(
      lambda leaf: leaf.values, data, expand_composites=False
  )
  key = DONE if DONE in data else TERMINATED
  return flat, tf.cast(data[key].row_lengths(), tf.int64)
