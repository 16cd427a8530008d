"""Parses the records of TFDS files, many at once, and says what is wrong.

`tf.io.parse_example` gives the values of a field of the steps of all records,
one after the other.
"""

import math
from typing import Any, List, Sequence, Tuple

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
import tree

from rlds2reverb.episodes import attempts
from rlds2reverb.episodes import faults
from rlds2reverb.episodes import grouping
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.episodes import steps as steps_lib

CANNOT_BE_PARSED = (
    'An episode must be stored as features.json says, but it is damaged or has'
    ' another type.'
)
CANNOT_BE_DECODED = (
    'An episode must be stored as features.json says, but it cannot be decoded.'
)
WRONG_COUNT = 'A field of an episode must have all of its values.'
NO_WHOLE_STEPS = (
    'The values stored for a step field are not a multiple of those of a step.'
)


class Parser:
  """Parses the records of one data set."""

  def __init__(self, features: tfds.features.FeaturesDict):
    self._fields = dict(features.get_serialized_info())
    self._steps = self._fields.pop(rlds.STEPS)
    stored = features.tf_example_spec
    self._spec = {name: stored[name] for name, _ in _leaves(self._fields)}
    self._columns = _leaves({rlds.STEPS: self._steps})
    for name, _ in self._columns:
      self._spec[name] = tf.io.RaggedFeature(
          stored[name].dtype, row_splits_dtype=tf.int64
      )

  def parse(self, records: tf.Tensor) -> grouping.Group:
    """Parses records, string `[E]`. The columns are a tuple of leaves."""
    found = tf.io.parse_example(records, self._spec)
    splits = tf.stack([found[name].row_splits for name, _ in self._columns])
    sizes = np.array([_size(info.shape[1:]) for _, info in self._columns])
    is_whole = tf.reduce_all(splits % sizes[:, np.newaxis] == 0)
    with tf.control_dependencies([tf.debugging.Assert(is_whole, [splits])]):
      splits = splits // sizes[:, np.newaxis]
      columns = tuple(
          tf.reshape(found[name].values, [-1, *info.shape[1:]])
          for name, info in self._columns
      )
    fields = [_cast(found[name], info) for name, info in _leaves(self._fields)]
    return grouping.Group(
        columns, splits, tree.unflatten_as(self._fields, fields)
    )

  def find_fault(self, record: tf.Tensor) -> faults.Fault:
    """Finds out why a record, string `[1]`, cannot be parsed or decoded."""
    fields = _leaves(self._fields)
    names = [name for name, _ in self._columns + fields]
    spec = {
        name: tf.io.RaggedFeature(
            self._spec[name].dtype, row_splits_dtype=tf.int64
        )
        for name in names
    }

    def count(record):
      found = tf.io.parse_example(record, spec)
      return tf.stack([tf.size(found[name].values, tf.int64) for name in names])

    can_be_parsed, counts = attempts.attempt(count, record)
    counts = tf.ensure_shape(
        tf.pad(counts, [[0, len(names) - tf.size(counts)]]), [len(names)]
    )
    counts, num_values = tf.split(counts, [len(self._columns), len(fields)])
    sizes = np.array([_size(info.shape[1:]) for _, info in self._columns])
    needed = np.array([_size(info.shape) for _, info in fields], np.int64)
    is_unequal = tf.reduce_any(counts // sizes != counts[0] // sizes[0])
    # The message names the first field that is wrong. There are no branches
    # here, because building them would take longer than running all of this.
    all_names = tf.constant([_short(name) for name in names])
    named = tf.stack(
        [
            tf.concat([tf.zeros(len(sizes), tf.bool), num_values != needed], 0),
            tf.pad(counts % sizes != 0, [[0, len(fields)]]),
            tf.pad(tf.repeat(is_unequal, len(sizes)), [[0, len(fields)]]),
        ]
    )
    rule = tf.argmax(tf.concat([tf.reduce_any(named, 1), [True]], 0))
    is_named = tf.pad(named, [[0, 1], [0, 0]])[rule] & can_be_parsed
    found = tf.concat(
        [tf.where(rule == 2, counts // sizes, counts), num_values], 0
    )
    texts = tf.strings.join([all_names, tf.strings.as_string(found)], ': ')
    rules = [WRONG_COUNT, NO_WHOLE_STEPS, stacked_steps.UNEQUAL_LENGTHS]
    return faults.Fault(
        tf.where(
            can_be_parsed,
            tf.gather([*rules, CANNOT_BE_DECODED], rule),
            CANNOT_BE_PARSED,
        ),
        field=tf.where(
            tf.math.count_nonzero(is_named) == 1,
            tf.gather(all_names, tf.argmax(tf.cast(is_named, tf.int32))),
            '',
        ),
        values=tf.strings.reduce_join(
            tf.boolean_mask(texts, is_named), separator=', '
        ),
    ).tensors()

  def nest_steps(self, columns: Sequence[tf.Tensor]) -> Any:
    """Returns columns with the dtypes and the nest of the steps."""
    infos = tree.flatten(self._steps)
    return tree.unflatten_as(
        self._steps, [_cast(*pair) for pair in zip(columns, infos)]
    )


def _leaves(infos: Any) -> List[Tuple[str, Any]]:
  """Returns the name of each stored leaf, and its TFDS `TensorInfo`."""
  return [
      (steps_lib.field_path(path), info)
      for path, info in tree.flatten_with_path(infos)
  ]


def _cast(tensor: tf.Tensor, info: Any) -> tf.Tensor:
  # The format stores all integers and bools as int64, and floats as float32.
  return tf.cast(tensor, info.tf_dtype)


def _size(shape) -> int:
  return math.prod(shape)


def _short(name: str) -> str:
  return name.removeprefix(f'{rlds.STEPS}/')
