"""Faults of episodes, as values, and the sentences about them."""

from typing import Any, NamedTuple

import tensorflow as tf


class Fault(NamedTuple):
  """A fault of an episode. In graph mode, all are tensors `[]`.

  Attributes:
    rule: the sentence of the rule that the episode breaks; empty if it is
      valid.
    step: int64: the index of the step at fault; -1 if it is not one step.
    field: the path of the field at fault; empty if it is not one field.
    values: what was found, such as `is_first=0, is_last=1`.
    place: where the episode is stored, such as `record 7 of FILE`; empty if
      that is not known.
    advice: what to do about it, a sentence; or empty.
  """

  rule: Any
  step: Any = -1
  field: Any = ''
  values: Any = ''
  place: Any = ''
  advice: Any = ''

  def tensors(self) -> 'Fault':
    """Returns the fault as tensors."""
    return Fault(
        *(
            tf.convert_to_tensor(value, tf.int64 if name == 'step' else None)
            for name, value in self._asdict().items()
        )
    )


def is_fault(fault: Any) -> tf.Tensor:
  """Returns whether a batch's fault is one, bool `[]`; see `EpisodeBatch`."""
  return tf.constant(False) if fault == () else fault.rule != ''


def choose(condition: tf.Tensor, fault: Fault, other: Fault) -> Fault:
  """Returns a fault if a condition holds, bool `[]`, and otherwise another."""
  return tf.nest.map_structure(
      lambda one, another: tf.where(condition, one, another), fault, other
  )


def sentence(fault: Fault, episode: Any) -> tf.Tensor:
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

  def unless_empty(before, part):
    return tf.where(part == '', '', before + part)

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
