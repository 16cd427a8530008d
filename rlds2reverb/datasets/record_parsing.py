"""Parses the records of TFDS files, many at once, and finds their faults.

`tf.io.parse_example` returns the values of a field for the steps of all
records, one after the other.
"""

import math
from typing import Any, Iterator, List, Sequence, Tuple

from google.protobuf import message
import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
import tree

from rlds2reverb.datasets import image_decoders
from rlds2reverb.datasets import record_places
from rlds2reverb.episodes import batch as batch_lib
from rlds2reverb.episodes import errors
from rlds2reverb.episodes import limits
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib

# Pipelines know the operation that looks at bad records by this name.
FIND_FAULT = 'rlds2reverb_find_fault'

CANNOT_BE_PARSED = (
    'An episode must be stored as features.json says, but it is damaged or has'
    ' another type.'
)
CANNOT_BE_DECODED = (
    'An episode must be stored as features.json says, but it cannot be decoded.'
)
TOO_LARGE = (
    'An image must have at most as many pixels as its feature in features.json,'
    f' and as the limit of a value allows. {limits.VARIABLE} raises it.'
)
WRONG_COUNT = 'A field of an episode must have all of its values.'
NO_WHOLE_STEPS = (
    'The values stored for a step field are not a multiple of those of a step.'
)
# The fields of the format that hold the values of each type.
_KINDS = {
    tf.string: 'bytes_list',
    tf.float32: 'float_list',
    tf.int64: 'int64_list',
}


class Parser:
  """Parses the records of one data set."""

  def __init__(self, features: tfds.features.FeaturesDict):
    self._fields = dict(features.get_serialized_info())
    self._steps = self._fields.pop(rlds.STEPS)
    stored = features.tf_example_spec
    self._spec = {name: stored[name] for name, _ in _leaves(self._fields)}
    self._columns = _leaves({rlds.STEPS: self._steps})
    self._images = dict(_images(features, ''))
    for name, _ in self._columns:
      self._spec[name] = tf.io.RaggedFeature(
          stored[name].dtype, row_splits_dtype=tf.int64
      )

  def parse(
      self, records: tf.Tensor
  ) -> Tuple[batch_lib.EpisodeBatch, tf.Tensor]:
    """Parses records.

    Args:
      records: string `[E]`.

    Returns:
      Their batch, whose steps are a tuple of leaves with row splits for each;
      and, bool `[]`, whether every episode has whole steps.
    """
    found = tf.io.parse_example(records, self._spec)
    splits = tf.stack([found[name].row_splits for name, _ in self._columns])
    sizes = np.array([_size(info.shape[1:]) for _, info in self._columns])
    is_whole = tf.reduce_all(splits % sizes[:, np.newaxis] == 0)
    columns = tuple(
        tf.reshape(found[name].values, [-1, *info.shape[1:]])
        for name, info in self._columns
    )
    fields = [_cast(found[name], info) for name, info in _leaves(self._fields)]
    fields = tree.unflatten_as(self._fields, fields)
    parsed = batch_lib.EpisodeBatch(
        columns, splits // sizes[:, np.newaxis], fields
    )
    return parsed, is_whole

  def find_fault(
      self,
      record: tf.Tensor,
      index: tf.Tensor,
      order: tf.Tensor,
  ) -> errors.Fault:
    """Finds out why a record cannot be parsed or decoded.

    Args:
      record: string `[1]`.
      index: int64 `[]`, its index.
      order: string `[]`: the `record_places.Order` of the records, as JSON;
        empty if it is not known.
    """

    def look(record, index, order):
      place = order and record_places.describe(order, index)
      return *self._look_at(record), place

    # Bad records are rare, and building a graph that looks at them takes longer
    # than reading a small data set.
    found = tf.numpy_function(
        look,
        [record, index, order],
        [tf.string] * 4,
        stateful=False,
        name=FIND_FAULT,
    )
    rule, field, values, place = [tf.ensure_shape(text, []) for text in found]
    return errors.Fault(rule, field=field, values=values, place=place).tensors()

  def _look_at(self, record: np.ndarray) -> Tuple[str, str, str]:
    """Returns the rule that a record breaks, the field, and the found value."""
    try:
      features = tf.train.Example.FromString(record[0]).features.feature
    except message.DecodeError:
      return CANNOT_BE_PARSED, '', ''
    fields = _leaves(self._fields)
    counts = {}
    for name, _ in self._columns + fields:
      kind = name in features and features[name].WhichOneof('kind')
      if kind and kind != _KINDS[self._spec[name].dtype]:
        return CANNOT_BE_PARSED, '', ''
      counts[name] = len(getattr(features[name], kind).value) if kind else 0
    sizes = {name: _size(info.shape[1:]) for name, info in self._columns}
    wrong = {
        name: counts[name]
        for name, info in fields
        if counts[name] != _size(info.shape)
    }
    parts = {name: counts[name] for name in sizes if counts[name] % sizes[name]}
    lengths = {name: counts[name] // size for name, size in sizes.items()}
    if wrong:
      rule, found = WRONG_COUNT, wrong
    elif parts:
      rule, found = NO_WHOLE_STEPS, parts
    elif len(set(lengths.values())) > 1:
      rule, found = steps_lib.UNEQUAL_LENGTHS, lengths
    else:
      for name, feature in self._images.items():
        size = image_decoders.find_too_large(
            features[name].bytes_list.value, feature
        )
        if size:
          found = f'{_short(name)} of {size[0]} by {size[1]} pixels'
          return TOO_LARGE, _short(name), found
      return CANNOT_BE_DECODED, '', ''
    texts = [f'{_short(name)}: {count}' for name, count in found.items()]
    field = _short(*found) if len(found) == 1 else ''
    return rule, field, ', '.join(texts)

  def nest_steps(self, columns: Sequence[tf.Tensor]) -> Any:
    """Returns columns with the dtypes and the nest of the steps."""
    infos = tree.flatten(self._steps)
    return tree.unflatten_as(
        self._steps, [_cast(*pair) for pair in zip(columns, infos)]
    )


def _leaves(infos: Any) -> List[Tuple[str, Any]]:
  """Returns the name of each stored leaf, and its TFDS `TensorInfo`."""
  return [
      (paths.name_of(path), info)
      for path, info in tree.flatten_with_path(infos)
  ]


def _images(feature: Any, name: str) -> Iterator[Tuple[str, Any]]:
  """Yields the name and the feature of each image."""
  if isinstance(feature, tfds.features.Image):
    yield name, feature
  elif isinstance(feature, tfds.features.FeaturesDict):
    for key, part in feature.items():
      yield from _images(part, f'{name}/{key}' if name else key)
  elif type(feature) is tfds.features.Dataset:
    yield from _images(feature.feature, name)


def _cast(tensor: tf.Tensor, info: Any) -> tf.Tensor:
  # The format stores all integers and bools as int64, and floats as float32.
  return tf.cast(tensor, info.tf_dtype)


def _size(shape) -> int:
  return math.prod(shape)


def _short(name: str) -> str:
  return name.removeprefix(f'{rlds.STEPS}/')
