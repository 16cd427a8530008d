"""TorchRL's episode data format (TED): RLDS episodes become TED, and come back.

    RLDS steps       o0 a0 r0   o1 a1 r1   o2 a2 r2   o3  -  -
    TED, root        o0 a0      o1 a1      o2 a2
    TED, next        o1 r0      o2 r1      o3 r2
    next, done       F          F          T          if the last step is_last

A transition is *terminated* if the step that it leads to is terminal,
*truncated* if that is last but not terminal, and *done* if either. An episode
that was cut short has neither, and keeps its unfinished tail.
"""

from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple, Union

import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import gathering
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.formats import ted_forms

TRANSITION_FIELDS = (rlds.ACTION, rlds.REWARD)
# What TorchRL's `InitTracker` calls the first step of an episode.
IS_INIT = 'is_init'

_ENDS = (rlds.IS_LAST, rlds.IS_TERMINAL)
_RESERVED = (*ted_forms.END_KEYS, ted_forms.NEXT, IS_INIT)


class Ted(NamedTuple):
  """`E` episodes in TorchRL's format, and what that has no place for.

  Attributes:
    data: the nest that TorchRL knows; see `ted_forms` for its forms.
    num_steps: int64 `[E]`: how many RLDS steps each episode has.
    last_step: the last step of each episode that has one, as it was recorded;
      every leaf `[L, ...]`. Its action and reward are in no transition.
    metadata: a dict of the other fields of the episodes, every leaf `[E, ...]`.
  """

  data: Dict[str, Any]
  num_steps: tf.Tensor
  last_step: Dict[str, Any]
  metadata: Dict[str, Any]


def to_ted(
    episode: Dict[str, Any],
    form: str = ted_forms.TRANSITIONS,
    *,
    transition_fields: Sequence[str] = TRANSITION_FIELDS,
) -> Ted:
  """Returns one RLDS episode in TorchRL's format.

  Args:
    episode: a dict with `steps`, a nested data set or stacked `[S, ...]`
      tensors, with `is_last` and `is_terminal`. Its other fields are metadata.
    form: `"transitions"`, a root of what is known before each transition, and
      below `next` what is known after it; `"flat"`, as TorchRL's `TED2Flat`,
      every observation once; or `"nested"`, as `TED2Nested`, ragged.
    transition_fields: the step fields that are known of a transition, and not
      at a step: they have no row for the last step.

  Returns:
    The `Ted` of one episode. A leaf is `[S - 1, ...]`, or `[S, ...]` in the
    flat form where it is known at every step; in the nested form these are
    `[1, (S - 1), ...]` and `[1, (S), ...]`. The flags are bool, `is_first` is
    named `is_init`, and all dtypes are kept.

  Raises:
    ValueError: if the episode has no steps or flags, if a field has a name that
      TED uses, or if `form` is none of the three.
    InvalidArgumentError: if a step that is last or terminal is not the end of
      the episode, or stacked fields differ in length.
  """
  checks.check_choice('form', form, ted_forms.FORMS)
  if not isinstance(episode, dict) or rlds.STEPS not in episode:
    raise ValueError(
        f'An RLDS episode must be a dict with {rlds.STEPS!r}, but is'
        f' {sorted(episode) if isinstance(episode, dict) else type(episode)}.'
    )
  steps = _check_steps(steps_lib.stack_steps(episode[rlds.STEPS]))
  num_steps = gathering.num_rows(steps)
  last_step = steps_lib.own_rows(
      steps, num_steps - tf.minimum(num_steps, 1), num_steps
  )
  columns = _to_columns(steps, num_steps, transition_fields)
  metadata = {key: value for key, value in episode.items() if key != rlds.STEPS}
  for name, leaf in paths.leaves(metadata).items():
    if isinstance(leaf, tf.data.Dataset):
      raise ValueError(f'The episode field {name} is a data set, not a tensor.')
  num_steps = num_steps[tf.newaxis]
  return Ted(
      data=ted_forms.to_form(form, columns, num_steps),
      num_steps=num_steps,
      last_step=last_step,
      metadata=steps_lib.own_rows(
          tf.nest.map_structure(lambda leaf: tf.expand_dims(leaf, 0), metadata),
          0,
          1,
      ),
  )


def from_ted(
    ted: Union[Ted, Dict[str, Any]],
    form: Optional[str] = None,
    *,
    transition_fields: Sequence[str] = TRANSITION_FIELDS,
) -> Dict[str, Any]:
  """Returns the RLDS episode that `to_ted` was given.

  Args:
    ted: the `Ted` of one episode; or a nest of TorchRL's alone, of tensors or
      arrays: then its last step has zeros for what is known of transitions.
    form: the form of a nest alone, by default `"transitions"`.
    transition_fields: as for `to_ted`. In the form `"transitions"` they are
      those that are not both in the root and below `next`.

  Returns:
    The episode, its steps stacked `[S, ...]`.

  Raises:
    ValueError: if the nest lacks `next`, or whatever says where it ends.
    InvalidArgumentError: if there is more than one episode, or a step is not
      what the transition before it leads to.
  """
  whole = _to_flat(ted, form, transition_fields, one_episode=True)
  count, done, terminated = _one_episode(whole)
  first = tf.minimum(count, 1)
  steps = dict(whole.columns.steps)
  begins = {key: tf.zeros([first], tf.bool) for key in _ENDS}
  if whole.last_step is not None:
    # Of an episode of one step alone, no transition has its flags.
    begins = {
        key: steps_lib.one_a_step(key, whole.last_step[key], tf.bool)
        & (count == 1)
        for key in _ENDS
    }
  for key, column in whole.columns.transitions.items():
    if key in ted_forms.END_KEYS:
      continue
    last = (
        _zero_rows(column, first)
        if whole.last_step is None
        else whole.last_step[key]
    )
    steps[key] = tf.nest.map_structure(
        lambda leaf, end: tf.concat([leaf, end], 0), column, last
    )
  steps[rlds.IS_LAST] = tf.concat([begins[rlds.IS_LAST], done], 0)
  steps[rlds.IS_TERMINAL] = tf.concat([begins[rlds.IS_TERMINAL], terminated], 0)
  is_init = steps.pop(IS_INIT, None)
  steps[rlds.IS_FIRST] = (
      tf.range(count) == 0
      if is_init is None
      else steps_lib.one_a_step(IS_INIT, is_init, tf.bool)
  )
  metadata = gathering.take(whole.metadata, tf.constant(0))
  return {**metadata, rlds.STEPS: steps_lib.with_equal_lengths(steps)}


def join_ted(
    rlds_data: tf.data.Dataset,
    form: str = ted_forms.FLAT,
    *,
    transition_fields: Sequence[str] = TRANSITION_FIELDS,
) -> Ted:
  """Returns all episodes of an RLDS data set in one `Ted`, in memory.

  Args:
    rlds_data: an RLDS data set; see `to_ted` for its episodes.
    form: as for `to_ted`.
    transition_fields: as for `to_ted`.

  Returns:
    The `Ted` of `E` episodes, one after the other.

  Raises:
    ValueError, InvalidArgumentError: as `to_ted` does.
  """
  checks.check_choice('form', form, ted_forms.FORMS)

  def convert(episode):
    ted = to_ted(episode, ted_forms.FLAT, transition_fields=transition_fields)
    return _split_columns(ted.data, transition_fields), ted._replace(data={})

  per_episode = rlds_data.map(convert).cache()

  def join(part):
    if not tf.nest.flatten(part(*per_episode.element_spec)):
      return {}  # A data set must have a field.
    joined = per_episode.map(part).rebatch(tf.int64.max)
    nothing = tf.data.Dataset.from_tensors(steps_lib.zeros(joined.element_spec))
    return joined.concatenate(nothing).take(1).get_single_element()

  # The first reads all of it into the cache.
  num_steps = join(lambda columns, ted: ted.num_steps)
  with tf.control_dependencies([num_steps]):
    columns = ted_forms.Columns(
        join(lambda columns, ted: columns.steps),
        join(lambda columns, ted: columns.transitions),
    )
    last_step = join(lambda columns, ted: ted.last_step)
    metadata = join(lambda columns, ted: ted.metadata)
  return Ted(
      ted_forms.to_form(form, columns, num_steps),
      num_steps,
      last_step,
      metadata,
  )


def split_ted(
    ted: Union[Ted, Dict[str, Any]],
    form: Optional[str] = None,
    *,
    transition_fields: Sequence[str] = TRANSITION_FIELDS,
) -> tf.data.Dataset:
  """Returns the RLDS data set of the episodes that `join_ted` has joined.

  Args:
    ted: the `Ted`; or a nest of TorchRL's alone, in which an episode ends with
      each transition that is done, and with the last one.
    form: the form of a nest alone, by default `"transitions"`.
    transition_fields: as for `from_ted`.

  Returns:
    A data set of episodes with stacked steps.

  Raises:
    ValueError, InvalidArgumentError: as `from_ted` does.
  """
  whole = _to_flat(ted, form, transition_fields, one_episode=False)
  num_steps = whole.num_steps
  num_transitions = tf.maximum(num_steps - 1, 0)
  step_ends = tf.cumsum(num_steps)
  transition_ends = tf.cumsum(num_transitions)
  last_ends = tf.cumsum(tf.minimum(num_steps, 1))
  keys = tuple(
      key for key in whole.columns.transitions if key not in ted_forms.END_KEYS
  )

  def episode(index):
    def cut(nest, ends, counts):
      return steps_lib.own_rows(nest, ends[index] - counts[index], ends[index])

    data = ted_forms.to_form(
        ted_forms.FLAT,
        ted_forms.Columns(
            cut(whole.columns.steps, step_ends, num_steps),
            cut(whole.columns.transitions, transition_ends, num_transitions),
        ),
        num_steps,
    )
    if whole.last_step is None:
      return from_ted(data, ted_forms.FLAT, transition_fields=keys)
    return from_ted(
        Ted(
            data,
            num_steps[index][tf.newaxis],
            cut(whole.last_step, last_ends, tf.minimum(num_steps, 1)),
            gathering.take(whole.metadata, index[tf.newaxis]),
        ),
        transition_fields=keys,
    )

  return tf.data.Dataset.range(tf.size(num_steps, tf.int64)).map(episode)


class _Whole(NamedTuple):
  """A `Ted` in the flat form; `last_step` is None of a nest alone."""

  columns: ted_forms.Columns
  num_steps: tf.Tensor
  last_step: Optional[Dict[str, Any]]
  metadata: Dict[str, Any]


def _one_episode(whole: _Whole) -> Tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
  """Returns the number of steps of the only episode, and its ends.

  Returns:
    int64 `[]`; and which transitions are done and terminated, bool `[T]`.

  Raises:
    InvalidArgumentError: if there is not just one episode.
  """
  done, terminated = _ends(whole.columns.transitions)
  with tf.control_dependencies(
      [
          tf.debugging.assert_equal(
              tf.size(whole.num_steps),
              1,
              'There must be one episode. split_ted takes several.',
          ),
          tf.debugging.Assert(
              ~tf.reduce_any(done[:-1]),
              [
                  'There must be one episode, but one ends in the middle, in'
                  ' the rows',
                  tf.where(done)[:, 0],
                  'split_ted takes several.',
              ],
          ),
      ]
  ):
    return tf.identity(whole.num_steps)[0], done, terminated


def _zero_rows(column, count) -> Any:
  """Returns rows of zeros like those of a nest."""
  return tf.nest.map_structure(
      lambda leaf: tf.zeros(
          tf.concat([count[tf.newaxis], tf.shape(leaf, tf.int64)[1:]], 0),
          leaf.dtype,
      ),
      column,
  )


def _to_flat(ted, form, transition_fields, one_episode) -> _Whole:
  """Returns TED of any form in the flat one."""
  is_alone = not isinstance(ted, Ted)
  data = ted if is_alone else ted.data
  if form is None:
    form = ted_forms.TRANSITIONS if is_alone else ted_forms.form_of(data)
  ted_forms.check_form(data, form)
  num_transitions = None
  if form == ted_forms.NESTED:
    data, num_transitions = ted_forms.from_nested(data)
  data = tf.nest.map_structure(tf.convert_to_tensor, dict(data))
  if not is_alone:
    num_steps = ted.num_steps
  else:
    ends = data[ted_forms.NEXT] if form == ted_forms.TRANSITIONS else data
    done, _ = _ends(ends)
    num_rows = tf.size(done, tf.int64)
    if num_transitions is None:
      num_transitions = num_rows[tf.newaxis] if one_episode else _lengths(done)
    num_steps = num_transitions + 1
    if form == ted_forms.TRANSITIONS and one_episode:
      num_steps = tf.where(num_transitions > 0, num_steps, 0)
  if form != ted_forms.TRANSITIONS:
    columns = _split_columns(data, transition_fields)
    if is_alone and one_episode and columns.steps:
      num_steps = gathering.num_rows(columns.steps)[tf.newaxis]
  else:
    lone = {}
    if not is_alone:
      lone_rows = tf.where(tf.boolean_mask(num_steps, num_steps > 0) == 1)[:, 0]
      lone = gathering.take(_named(ted.last_step), lone_rows)
    columns = ted_forms.from_transitions(data, num_steps, lone)
  if is_alone:
    return _Whole(columns, num_steps, None, {})
  return _Whole(columns, num_steps, ted.last_step, ted.metadata)


def _named(steps: Dict[str, Any]) -> Dict[str, Any]:
  """Returns RLDS steps under the names of TED, without the ends."""
  fields = {key: value for key, value in steps.items() if key not in _ENDS}
  if rlds.IS_FIRST in fields:
    fields[IS_INIT] = steps_lib.one_a_step(
        rlds.IS_FIRST, fields.pop(rlds.IS_FIRST), tf.bool
    )
  return fields


def _to_columns(steps, num_steps, transition_fields) -> ted_forms.Columns:
  """Returns the flat columns of the stacked steps of one episode."""
  is_last, is_terminal = (
      steps_lib.one_a_step(key, steps[key], tf.bool) for key in _ENDS
  )
  step = tf.range(num_steps)
  with tf.control_dependencies(
      [
          tf.debugging.Assert(
              ~tf.reduce_any(is_terminal & ~is_last),
              [
                  'Terminal step must be the last step of an episode. At step',
                  tf.where(is_terminal)[:, 0],
              ],
          ),
          tf.debugging.Assert(
              ~tf.reduce_any(is_last & (step < num_steps - 1)),
              [
                  'Last step of an episode must end it. At step',
                  tf.where(is_last)[:, 0],
              ],
          ),
      ]
  ):
    is_last, is_terminal = tf.identity(is_last), tf.identity(is_terminal)
  first = tf.minimum(num_steps, 1)
  fields = _named(steps)
  transitions = {
      key: steps_lib.own_rows(fields.pop(key), 0 * num_steps, num_steps - first)
      for key in transition_fields
      if key in fields
  }
  done, terminated = (
      steps_lib.own_rows(flag, first, num_steps)
      for flag in (is_last, is_terminal)
  )
  transitions[ted_forms.DONE] = done
  transitions[ted_forms.TERMINATED] = terminated
  transitions[ted_forms.TRUNCATED] = done & ~terminated
  return ted_forms.Columns(fields, transitions)


def _check_steps(steps) -> Dict[str, Any]:
  if not isinstance(steps, dict):
    raise ValueError(
        'The steps of an episode must be a dict of fields, but are a'
        f' {type(steps).__name__}.'
    )
  steps_lib.check_dense(steps)
  for key in _ENDS:
    paths.find(steps, (key,))
  taken = sorted(set(_RESERVED) & set(steps))
  if taken:
    raise ValueError(
        f'TED has fields {taken} of its own. Rename those of the steps first:'
        f' RenameFields({{{taken[0]!r}: ...}}).'
    )
  return tf.nest.map_structure(tf.convert_to_tensor, dict(steps))


def _split_columns(data, transition_fields) -> ted_forms.Columns:
  of_transitions = {*transition_fields, *ted_forms.END_KEYS}
  return ted_forms.Columns(
      {key: data[key] for key in data if key not in of_transitions},
      {key: data[key] for key in data if key in of_transitions},
  )


def _ends(transitions):
  """Returns which transitions are done and which are terminated, bool `[T]`."""
  flags = {
      key: steps_lib.one_a_step(key, transitions[key], tf.bool)
      for key in ted_forms.END_KEYS
      if key in transitions
  }
  done, terminated, truncated = map(flags.get, ted_forms.END_KEYS)
  if terminated is None:
    terminated = done if truncated is None else done & ~truncated
  for other in terminated, truncated:
    if done is None:
      done = other
    elif other is not None:
      done |= other
  return done, terminated


def _lengths(done) -> tf.Tensor:
  """Returns how many transitions each episode has; the last may not end."""
  num_rows = tf.size(done, tf.int64)
  ends = tf.where(done | (tf.range(num_rows) == num_rows - 1))[:, 0] + 1
  return ends - tf.concat([[0], ends[:-1]], 0)
