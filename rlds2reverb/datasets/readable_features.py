"""Step features that TFDS writes but cannot read.

A step field `Sequence(np.float32, length=2)` is a sequence in the sequence of
steps. TFDS stores it as ragged: `ragged_flat_values` and row lengths. When it
reads, it expects a ragged field only where a length is open. So the field is
read here as a sequence of open length, and made dense afterwards. Nor does TFDS
decode a dict without fields: it is left out, and added afterwards.
"""

from typing import Any, Dict, Sequence

import tensorflow as tf
import tensorflow_datasets as tfds

from rlds2reverb.episodes import errors
from rlds2reverb.episodes import rlds


def readable(
    features: tfds.features.FeaturesDict,
) -> tfds.features.FeaturesDict:
  """Returns the features of a data set as TFDS can read them.

  Args:
    features: the features of an RLDS data set.

  Returns:
    `features`, if TFDS can read them. Otherwise the same features without empty
    dicts, and with open lengths in place of the fixed lengths of all sequences
    in steps. `restore` makes the original nest of what is read.
  """
  steps = features[rlds.STEPS]
  if type(steps) is not tfds.features.Dataset:
    return features
  if not _has_fixed(steps.feature) and not _has_empty(features):
    return features
  opened = tfds.features.Dataset(_with_open_lengths(steps.feature))
  fields = {key: part for key, part in features.items() if key != rlds.STEPS}
  return tfds.features.FeaturesDict(
      {**readable_fields(fields), rlds.STEPS: opened}
  )


def readable_fields(features: Any) -> Dict[str, Any]:
  """Returns the features of the fields of an episode, without empty dicts."""
  return _without_empty(features)


def restore(feature: Any, read: Any, lengths: Sequence[Any] = ()) -> Any:
  """Returns decoded values in the form that the original features have.

  Args:
    feature: the original feature of a step, or of an episode without steps.
    read: stacked steps `[T, ...]`, or fields of an episode, that were read as
      `readable` features.
    lengths: the lengths of the sequences that the feature is in.

  Returns:
    The values, with empty dicts where the feature has them. A field all of
    whose sequences have a fixed length is a tensor `[T, length, ...]`.

  Raises:
    InvalidArgumentError: when it runs, if a sequence has another length.
  """
  if isinstance(feature, tfds.features.Sequence):
    return restore(feature.feature, read, [*lengths, _length_of(feature)])
  if isinstance(feature, tfds.features.FeaturesDict):
    read = {} if read is None else read
    return {
        key: restore(part, read.get(key), lengths)
        for key, part in feature.items()
        if key in read or _is_empty(part)
    }
  if None in lengths or not isinstance(read, tf.RaggedTensor):
    return read
  # Of the sequences of each level, all must have the length of the feature.
  is_right = [
      tf.reduce_all(found == length)
      for found, length in zip(read.nested_row_lengths(), lengths)
  ]
  values = errors.assert_true(
      read.flat_values,
      tf.reduce_all(is_right),
      f'A sequence of a step does not have the length {list(lengths)} of'
      ' features.json.',
  )
  shape = [-1, *lengths, *values.shape[1:]]
  if None in shape:
    shape = tf.concat([[-1, *lengths], tf.shape(values)[1:]], 0)
  dense = tf.reshape(values, shape)
  return tf.ensure_shape(dense, [None, *lengths, *values.shape[1:]])


def without_empty(nest: Any) -> Any:
  """Returns a nest of dicts without those that have no leaves."""
  if not isinstance(nest, dict):
    return nest
  parts = {key: without_empty(part) for key, part in nest.items()}
  is_empty = lambda part: isinstance(part, dict) and not part
  return {key: part for key, part in parts.items() if not is_empty(part)}


def _length_of(sequence: tfds.features.Sequence) -> Any:
  return sequence._length  # pylint: disable=protected-access


def _has_fixed(feature: Any) -> bool:
  """Returns whether TFDS cannot read a field of a step."""
  if isinstance(feature, tfds.features.FeaturesDict):
    return any(map(_has_fixed, feature.values()))
  if isinstance(feature, tfds.features.Dataset):
    return False
  if not isinstance(feature, tfds.features.Sequence):
    return False
  stored = tf.nest.flatten(feature.get_serialized_info())
  # In the sequence of steps, it is in one sequence more. Then TFDS looks for a
  # ragged field if another dimension is open, too.
  return any(
      None not in info.shape or _has_fixed(feature.feature) for info in stored
  )


def _is_empty(feature: Any) -> bool:
  """Returns whether a feature is a dict without leaves."""
  return isinstance(feature, tfds.features.FeaturesDict) and all(
      map(_is_empty, feature.values())
  )


def _has_empty(feature: Any) -> bool:
  """Returns whether there is an empty dict in a feature."""
  if isinstance(feature, tfds.features.Dataset):
    return _has_empty(feature.feature)
  return isinstance(feature, tfds.features.FeaturesDict) and (
      _is_empty(feature) or any(map(_has_empty, feature.values()))
  )


def _without_empty(features: Any) -> Any:
  """Returns features without dicts that have no leaves."""
  if not isinstance(features, (dict, tfds.features.FeaturesDict)):
    return features
  return {
      key: _without_empty(part)
      for key, part in features.items()
      if not _is_empty(part)
  }


def _with_open_lengths(feature: Any) -> Any:
  """Returns a feature of a step as it can be read; see `readable`."""
  if isinstance(feature, tfds.features.FeaturesDict):
    return {
        key: _with_open_lengths(part)
        for key, part in feature.items()
        if not _is_empty(part)
    }
  if isinstance(feature, tfds.features.Sequence):
    return tfds.features.Sequence(_with_open_lengths(feature.feature))
  return feature
