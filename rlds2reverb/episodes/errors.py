"""Errors: checks in graphs, faults of episodes, and readable messages.

TensorFlow's messages contain names of graph nodes and escaped strings.
`message_of` extracts the part that a user needs.
"""

import contextlib
import re
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

# The names of nodes and operations of TensorFlow's own graph.
_NODES = re.compile(
    r'\{\{function_node [^}]*\}\} ?'
    r'| ?\[\[\{\{node [^}]*\}\}.*?\]\]'
    r'| ?\[Op:[^]]*\].*'
)
# How `tf.debugging.Assert` prints one string, escaped as in C.
_ASSERTION = re.compile(r'assertion failed: \[((?:(?!\] \[).)*)\]')
_ESCAPED = re.compile(r'\\([0-7]{3}|x[0-9a-f]{2}|.)')
_CONTROLS = {'n': '\n', 'r': '\r', 't': '\t'}


def message_of(error: tf.errors.OpError, path: str = '') -> str:
  """Returns the message of a TensorFlow error in one line, without nodes.

  Args:
    error: the error.
    path: a file path that the caller's message has already. It is removed
      from the start of the message.
  """
  line, *_ = _NODES.sub('', error.message).strip().splitlines() or ['']
  line = line.removeprefix(f'{path}; ')
  assertion = _ASSERTION.fullmatch(line)
  if not assertion:
    return line
  # The bytes of UTF-8 are escaped one by one.
  text = _ESCAPED.sub(_unescape, assertion[1])
  with contextlib.suppress(UnicodeError):
    text = text.encode('latin-1').decode()
  return ' '.join(text.split())


def _unescape(match: re.Match) -> str:
  code = match[1]
  if len(code) == 3:
    return chr(int(code[1:], 16) if code[0] == 'x' else int(code, 8))
  return _CONTROLS.get(code, code)


def restore(error: tf.errors.OpError) -> tuple[type[tf.errors.OpError], str]:
  """Returns the original class of an error, and its message without nodes.

  A Python function in a graph that raises a DataLossError or NotFoundError
  surfaces as an UnknownError, whose message begins with the class name.
  """
  message = message_of(error)
  if isinstance(error, tf.errors.UnknownError):
    name, _, details = message.partition(': ')
    for error_class in (tf.errors.DataLossError, tf.errors.NotFoundError):
      if name == error_class.__name__:
        return error_class, details
  return type(error), message


def check_true(
    condition: Any, *message: Any, summarize: int | None = None
) -> list[tf.Operation]:
  """Raises an `InvalidArgumentError` if a condition is False.

  In eager mode the text of the error is the message alone, whereas
  `tf.debugging.Assert` would prepend the tensor of the condition.

  Args:
    condition: bool `[]`.
    *message: strings and tensors, joined by spaces.
    summarize: the maximum number of values to print of each tensor; by default
      NumPy's summary of it.

  Returns:
    The operations that results must depend on in a graph. Empty in eager mode.

  Raises:
    InvalidArgumentError: if the condition is False. A graph raises it when it
      runs.
  """
  if not tf.is_symbolic_tensor(condition) and tf.executing_eagerly():
    if condition:
      return []
    text = ' '.join(_text_of(part, summarize) for part in message)
    raise tf.errors.InvalidArgumentError(None, None, text)
  return [tf.debugging.Assert(condition, list(message), summarize)]


def _text_of(part: Any, summarize: int | None) -> str:
  if isinstance(part, str):
    return part
  value = np.asarray(part)
  if value.dtype.kind in 'SO' and not value.ndim:
    return tf.compat.as_text(value.item(), 'utf-8')
  if summarize is not None and value.ndim == 1:
    value = value[:summarize]
  return np.array2string(value).replace('\n', '')


def assert_true(nest: Any, condition: Any, *message: Any) -> Any:
  """Returns a nest of tensors after checking a condition; see `check_true`."""
  with tf.control_dependencies(check_true(condition, *message)):
    return tf.nest.map_structure(tf.identity, nest)


class Fault(NamedTuple):
  """A fault of an episode. In graph mode, every attribute is a tensor `[]`.

  Attributes:
    rule: the rule that the episode breaks, a sentence; empty if it is valid.
    step: int64: the index of the faulty step; -1 if no single step is faulty.
    field: the path of the faulty field; empty if no single field is faulty.
    values: the offending values, such as `is_first=0, is_last=1`.
    place: where the episode is stored, such as `record 7 of FILE`; empty if
      unknown.
    advice: how to fix it, a sentence; or empty.
    file: the path of the file that holds the episode; empty if unknown.
  """

  rule: Any
  step: Any = -1
  field: Any = ''
  values: Any = ''
  place: Any = ''
  advice: Any = ''
  file: Any = ''

  def tensors(self) -> 'Fault':
    """Returns the fault as tensors."""
    return Fault(
        *(
            tf.convert_to_tensor(value, tf.int64 if name == 'step' else None)
            for name, value in self._asdict().items()
        )
    )


NO_FAULT = Fault('')


def is_fault(fault: Any) -> tf.Tensor:
  """Returns whether `EpisodeBatch.fault` holds a fault, bool `[]`."""
  return tf.constant(False) if fault == () else fault.rule != ''


def choose_fault(condition: tf.Tensor, fault: Fault, other: Fault) -> Fault:
  """Returns `fault` where the condition, bool `[]`, is True, else `other`."""
  return tf.nest.map_structure(
      lambda value, other_value: tf.where(condition, value, other_value),
      fault,
      other,
  )


def describe_fault(fault: Fault, episode: Any) -> tf.Tensor:
  """Returns the sentence about a fault for errors and reports, string `[]`.

  Args:
    fault: the fault.
    episode: an integer `[]`: the index of the episode.

  Returns:
    For example, `An episode must begin with a first step. Found at episode 3,
    step 0: is_first=0, is_last=0.`
  """
  fault = fault.tensors()
  text = tf.strings.as_string

  def unless_empty(separator, part):
    return tf.where(part == '', '', separator + part)

  return tf.strings.join(
      [
          fault.rule,
          ' Found at episode ',
          text(tf.cast(episode, tf.int64)),
          tf.where(fault.step < 0, '', ', step ' + text(fault.step)),
          unless_empty(', ', fault.place),
          unless_empty(': ', fault.values),
          '.',
          unless_empty(' ', fault.advice),
      ]
  )
