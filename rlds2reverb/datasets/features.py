"""TFDS features: which ones store a spec, and decoding stored values by them.

`features_from_spec` chooses the features that `save_episodes` writes. The other
functions decode the steps of an episode, or of many, all together.

TFDS writes some features of steps that it cannot read:

- A step field `Sequence(np.float32, length=2)` is a sequence in the sequence of
  steps. TFDS stores it as ragged: `ragged_flat_values` and row lengths. When it
  reads, it expects a ragged field only if a length is open. So the field is
  read here as a sequence of open length, and converted to a dense one.
- A dict without fields is dropped, and added afterwards.

The images of an episode must all have one size, which is checked by their
headers before they are decoded.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import math
from typing import Any

from absl import logging
import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from rlds2reverb.episodes import errors
from rlds2reverb.episodes import limits
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import pipelines
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib

# The bytes at the start of an image that include its size, except of a JPEG.
_HEADER_BYTES = 26

# Features of steps with at least so many bytes are compressed.
_COMPRESSED_BYTES = 1024
_IMAGE_CHANNELS = (1, 3, 4)


def features_from_spec(episode_spec: dict[str, Any]) -> dict[str, Any]:
  """Returns the TFDS features that store episodes as `save_episodes` does.

  Args:
    episode_spec: the spec of an episode with stacked steps.

  Raises:
    ValueError: if a field cannot be written; see `save_episodes`.
  """
  steps = steps_lib.unstack_spec(episode_spec[rlds.STEPS])
  return {
      **{
          key: _feature_from_spec(spec, (key,))
          for key, spec in episode_spec.items()
          if key != rlds.STEPS
      },
      rlds.STEPS: tfds.features.Dataset(
          _feature_from_spec(steps, (rlds.STEPS,))
      ),
  }


def _feature_from_spec(spec: Any, keys: Sequence[Any]) -> Any:
  """Returns the TFDS feature that stores values of `spec`."""
  path = paths.name_of(keys)
  if isinstance(spec, dict):
    if not all(isinstance(key, str) for key in spec):
      raise ValueError(f'{path} has keys that are not strings: {list(spec)}.')
    return {
        key: _feature_from_spec(value, (*keys, key))
        for key, value in spec.items()
    }
  is_dense = isinstance(spec, tf.TensorSpec) and spec.shape.rank is not None
  shape = tuple(spec.shape.as_list()) if is_dense else (None,)
  is_fixed = None not in shape and 0 not in shape
  if (
      not is_dense
      or spec.dtype == tf.bfloat16
      or (spec.dtype == tf.string and not is_fixed)
  ):
    raise ValueError(
        f'{path} cannot be written in the TFDS format, which has dense tensors'
        ' in dicts, no bfloat16, and strings of a known shape only. Its spec is'
        f' {spec}. Rename, cast or exclude it.'
    )
  dtype = np.dtype(spec.dtype.as_numpy_dtype)
  if (
      dtype in (np.uint8, np.uint16)
      and len(shape) == 3
      and shape[-1] in _IMAGE_CHANNELS
      and 0 not in shape
  ):
    return tfds.features.Image(shape=shape, dtype=dtype, encoding_format='png')
  encoding = 'none'
  # Without encoding, TensorFlow would divide by the size of a step.
  if not is_fixed or np.prod(shape) * dtype.itemsize >= _COMPRESSED_BYTES:
    encoding = 'zlib' if spec.dtype != tf.string else encoding
  elif dtype == np.float64 or dtype.kind == 'c':
    encoding = 'bytes'
  return tfds.features.Tensor(shape=shape, dtype=dtype, encoding=encoding)


def feature_leaves(feature: Any, path: str = '') -> Iterator[tuple[str, Any]]:
  """Yields the paths and the leaves of TFDS features, of steps too."""
  if isinstance(feature, (dict, tfds.features.FeaturesDict)):
    for name, part in feature.items():
      yield from feature_leaves(part, f'{path}/{name}' if path else name)
  elif isinstance(feature, tfds.features.Dataset):
    yield from feature_leaves(feature.feature, path)
  else:
    yield path, feature


def make_record_decoder(
    features: tfds.features.FeaturesDict, decoders: dict[str, Any] | None
) -> Callable[[tf.Tensor], dict[str, Any]]:
  """Returns a function that parses and decodes the record of an episode.

  Args:
    features: the features of a data set.
    decoders: see `load_episodes`.

  Returns:
    A function from a record, string `[]`, to an episode with stacked steps.
  """
  stored = to_readable(features)
  decode_episode = make_episode_decoder(features, decoders)
  decoders = {
      **_drop_empty(decoders or {}),
      rlds.STEPS: tfds.decode.SkipDecoding(),
  }

  def decode_record(record):
    episode = stored.deserialize_example(record, decoders=decoders)
    episode = decode_episode(episode)
    if stored is features:
      return episode
    steps = episode.pop(rlds.STEPS)
    fields = {key: part for key, part in features.items() if key != rlds.STEPS}
    fields = tfds.features.FeaturesDict(fields)
    return {**_restore(fields, episode), rlds.STEPS: steps}

  return decode_record


def make_episode_decoder(
    features: tfds.features.FeaturesDict, decoders: dict[str, Any] | None
) -> Callable[[dict[str, Any]], dict[str, Any]]:
  """Returns a function that decodes the steps of an episode, all together.

  Args:
    features: the features of a data set.
    decoders: see `load_episodes`.

  Returns:
    A function from an episode that TFDS has read with `SkipDecoding` for its
    steps to one with stacked steps. It refuses steps that are stored with
    fields of unequal length, as TFDS does.
  """
  decode_steps = make_steps_decoder(features, decoders)
  return lambda episode: {
      **episode,
      rlds.STEPS: steps_lib.check_equal_lengths(
          decode_steps(episode[rlds.STEPS])
      ),
  }


def make_steps_decoder(
    features: tfds.features.FeaturesDict, decoders: Mapping[str, Any] | None
) -> Callable[[Any], Any]:
  """Returns a function that decodes stored steps, stacked.

  Args:
    features: the features of a data set.
    decoders: see `load_episodes`.
  """
  step = features[rlds.STEPS].feature
  readable_step = to_readable(features)[rlds.STEPS].feature
  # TFDS stores steps like a sequence, which can be decoded in one call.
  sequence = tfds.features.FeaturesDict(
      {rlds.STEPS: tfds.features.Sequence(readable_step)}
  )
  step_decoders = _with_one_size(
      readable_step,
      _drop_empty((decoders or {}).get(rlds.STEPS)),
      (rlds.STEPS,),
  )
  step_decoders = step_decoders and {rlds.STEPS: step_decoders}
  if readable_step is step:
    return lambda stored: _decode(
        sequence, {rlds.STEPS: stored}, step_decoders
    )[rlds.STEPS]

  def decode(stored):
    stored = {rlds.STEPS: _drop_empty(stored)}
    decoded = _decode(sequence, stored, step_decoders)
    return _restore(step, decoded[rlds.STEPS])

  return decode


def make_field_decoder(
    features: tfds.features.FeaturesDict, decoders: Mapping[str, Any]
) -> Callable[[Any], dict[str, Any]]:
  """Returns a function that decodes the fields of episodes, `[E, ...]`.

  Args:
    features: the features of a data set. Its steps are not decoded.
    decoders: see `load_episodes`.
  """
  names = [name for name in features if name != rlds.STEPS]
  if not names:
    return lambda stored: stored
  fields = tfds.features.FeaturesDict({name: features[name] for name in names})
  sequence = tfds.features.FeaturesDict(
      {
          name: tfds.features.Sequence(part)
          for name, part in _drop_empty_features(fields).items()
      }
  )
  decoders = _drop_empty(
      {name: decoders[name] for name in names if name in decoders}
  )

  def decode(stored):
    decoded = _decode(sequence, _drop_empty(stored), decoders or None)
    return _restore(fields, decoded)

  return decode


def _decode(features: tfds.features.FeaturesDict, stored: Any, decoders: Any):
  """Decodes stored values with TFDS.

  Args:
    features: the features.
    stored: the values, as on disk.
    decoders: the TFDS decoders, nested as the features are, or None.
  """
  with _silence_tfds_deprecations():
    stored = _check_images(features, stored, decoders, ())
    return features.decode_example(stored, decoders=decoders)


@contextlib.contextmanager
def _silence_tfds_deprecations() -> Iterator[None]:
  """Hides warnings of TFDS 4.9 about functions that it calls itself."""

  def is_useful(record) -> bool:
    text = record.getMessage()
    return 'dtype' not in text or 'deprecated' not in text

  with contextlib.ExitStack() as stack:
    for logger in logging.get_absl_logger(), tf.get_logger():
      logger.addFilter(is_useful)
      stack.callback(logger.removeFilter, is_useful)
    yield


# Features that TFDS cannot read.


def to_readable(
    features: tfds.features.FeaturesDict,
) -> tfds.features.FeaturesDict:
  """Returns the features of a data set as TFDS can read them.

  Args:
    features: the features of an RLDS data set.

  Returns:
    `features`, if TFDS can read them. Otherwise the same features without empty
    dicts, and with open lengths instead of the fixed lengths of all sequences
    in steps. `_restore` restores the original nest of the values.
  """
  steps = features[rlds.STEPS]
  if type(steps) is not tfds.features.Dataset:
    return features
  if not _has_fixed(steps.feature) and not _has_empty(features):
    return features
  opened = tfds.features.Dataset(_with_open_lengths(steps.feature))
  fields = {key: part for key, part in features.items() if key != rlds.STEPS}
  return tfds.features.FeaturesDict(
      {**_drop_empty_features(fields), rlds.STEPS: opened}
  )


def _restore(feature: Any, read: Any, lengths: Sequence[Any] = ()) -> Any:
  """Returns decoded values in the structure of the original features.

  Args:
    feature: the original feature of a step, or of an episode without steps.
    read: stacked steps `[T, ...]`, or fields of an episode, that were read by
      `to_readable` features.
    lengths: the lengths of the sequences that the feature is in.

  Returns:
    The values, with empty dicts where the feature has them. A field all of
    whose sequences have a fixed length is a tensor `[T, length, ...]`.

  Raises:
    InvalidArgumentError: when it runs, if a sequence has another length.
  """
  if isinstance(feature, tfds.features.Sequence):
    length = feature._length
    return _restore(feature.feature, read, [*lengths, length])
  if isinstance(feature, tfds.features.FeaturesDict):
    read = {} if read is None else read
    return {
        key: _restore(part, read.get(key), lengths)
        for key, part in feature.items()
        if key in read or _is_empty(part)
    }
  if None in lengths or not isinstance(read, tf.RaggedTensor):
    return read
  # The sequences of each level must all have the length of the feature.
  is_right = [
      tf.reduce_all(row_lengths == length)
      for row_lengths, length in zip(read.nested_row_lengths(), lengths)
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


def _drop_empty(nest: Any) -> Any:
  """Returns a nest of dicts without those that have no leaves."""
  if not isinstance(nest, dict):
    return nest
  parts = {key: _drop_empty(part) for key, part in nest.items()}
  is_empty = lambda part: isinstance(part, dict) and not part
  return {key: part for key, part in parts.items() if not is_empty(part)}


def _has_fixed(feature: Any) -> bool:
  """Returns whether TFDS cannot read a field of a step."""
  if isinstance(feature, tfds.features.FeaturesDict):
    return any(map(_has_fixed, feature.values()))
  if isinstance(feature, tfds.features.Dataset):
    return False
  if not isinstance(feature, tfds.features.Sequence):
    return False
  stored = tf.nest.flatten(feature.get_serialized_info())
  # In the sequence of steps, the feature is in one more sequence. TFDS expects
  # a ragged field if another dimension is open, too.
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


def _drop_empty_features(features: Any) -> Any:
  """Returns features without dicts that have no leaves."""
  if not isinstance(features, (dict, tfds.features.FeaturesDict)):
    return features
  return {
      key: _drop_empty_features(part)
      for key, part in features.items()
      if not _is_empty(part)
  }


def _with_open_lengths(feature: Any) -> Any:
  """Returns a feature of a step with open lengths; see `to_readable`."""
  if isinstance(feature, tfds.features.FeaturesDict):
    return {
        key: _with_open_lengths(part)
        for key, part in feature.items()
        if not _is_empty(part)
    }
  if isinstance(feature, tfds.features.Sequence):
    return tfds.features.Sequence(_with_open_lengths(feature.feature))
  return feature


# Images.


class _OneSize(tfds.decode.Decoder):
  """Decodes the images of an episode, which must all be of one size."""

  def __init__(self, name: str):
    super().__init__()
    self._name = name

  def decode_example(self, serialized_example):
    return self.feature.decode_example(serialized_example)

  def decode_batch_example(self, serialized_example):
    encoded = serialized_example
    message = (
        f'The images {self._name} must all have one size in an episode to be'
        ' decoded while it is read. Leave them encoded, with'
        ' tfds.decode.SkipDecoding() for this field in the decoders of'
        ' load_episodes, and use decode_images, which resizes them. Step, its'
        ' size, and the size of step 0:'
    )

    def decode_all():
      # The first image is decoded once more, to get its size.
      size = tf.shape(self.decode_example(encoded[0]))

      @pipelines.as_library_code
      def decode(step):
        image = self.decode_example(encoded[step])
        step_size = tf.shape(image)
        is_same = tf.reduce_all(step_size == size)
        return errors.assert_true(
            image, is_same, message, step, step_size, size
        )

      return tf.map_fn(
          decode,
          tf.range(tf.size(encoded)),
          fn_output_signature=tf.TensorSpec(self.feature.shape, self.dtype),
      )

    shape = self.feature.shape
    images = tf.cond(
        tf.size(encoded) > 0,
        decode_all,
        lambda: tf.zeros([0, *(dim or 0 for dim in shape)], self.dtype),
    )
    return tf.ensure_shape(images, [None, *shape])


def _with_one_size(feature: Any, decoders: Any, keys: paths.KeyPath) -> Any:
  """Adds decoders for images, whose errors name images of other sizes.

  Args:
    feature: the TFDS feature of a step, or of a part of it.
    decoders: the decoders that the user gave for its parts, or None.
    keys: the path of the feature.

  Returns:
    The given decoders, and decoders for images whose size is open, nested as
    the features are; or None without any.
  """
  if isinstance(feature, tfds.features.Image):
    is_open = None in feature.shape and decoders is None
    return _OneSize(paths.name_of(keys)) if is_open else decoders
  if not isinstance(feature, tfds.features.FeaturesDict) or not isinstance(
      decoders, (Mapping, type(None))
  ):
    return decoders
  parts = {
      key: _with_one_size(part, (decoders or {}).get(key), (*keys, key))
      for key, part in feature.items()
  }
  return {key: part for key, part in parts.items() if part is not None} or None


def _check_images(
    feature: Any, stored: Any, decoders: Any, keys: paths.KeyPath
) -> Any:
  """Returns stored values, whose images are checked before they are decoded."""
  if isinstance(decoders, tfds.decode.SkipDecoding):
    return stored
  if isinstance(feature, tfds.features.Image):
    return _check_sizes(stored, feature, paths.name_of(keys))
  if isinstance(stored, Mapping) and isinstance(
      feature, tfds.features.FeaturesDict
  ):
    is_nested = isinstance(decoders, Mapping)
    return {
        key: _check_images(
            feature[key],
            part,
            decoders.get(key) if is_nested else None,
            (*keys, key),
        )
        for key, part in stored.items()
    }
  if isinstance(feature, (tfds.features.Sequence, tfds.features.Dataset)):
    return _check_images(feature.feature, stored, decoders, keys)
  return stored


def _check_sizes(stored: Any, feature: tfds.features.Image, name: str) -> Any:
  """Returns encoded images whose sizes, by their headers, are in bounds.

  An image may be as large as the limit of a value or as its feature says, and
  all images of a call may expand as far as a file of images.
  """
  if isinstance(stored, tf.RaggedTensor):
    values = _check_sizes(stored.flat_values, feature, name)
    return stored.with_flat_values(values)
  encoded = tf.reshape(stored, [-1])
  limit, pixel_bytes = _max_pixels(feature)
  sizes = _find_sizes(encoded)
  pixels = tf.reduce_prod(sizes, -1)
  total = tf.reduce_sum(pixels) * pixel_bytes
  stored_bytes = tf.reduce_sum(tf.cast(tf.strings.length(encoded), tf.int64))
  most = tf.maximum(
      tf.constant(limits.max_expanded_bytes(0), tf.int64),
      limits.IMAGE_EXPANSION * stored_bytes,
  )
  height, width = tf.unstack(tf.strings.as_string(tf.reduce_max(sizes, 0)))
  message = tf.strings.join(
      [
          f'The images {name} must have at most {limit} pixels, by the shape'
          f' {feature.shape} of their feature and the limit of a value, and'
          ' must not expand too far. If they are right, correct the shape in'
          f' features.json, or raise the limit: {limits.VARIABLE}. They are up'
          ' to ',
          height,
          ' by ',
          width,
          ' pixels, and expand to ',
          tf.strings.as_string(total),
          ' bytes.',
      ]
  )
  # An Assert would be stateful, and the iterators of a pipeline with a stateful
  # operation cannot be saved.
  fits = tf.reduce_all(pixels <= limit) & (total <= most)
  zero = tf.strings.to_number(tf.where(fits, '0', message), tf.int32)
  return tf.where(zero == 0, stored, '')


def _max_pixels(feature: tfds.features.Image) -> tuple[int, int]:
  """Returns how many pixels an image may have, and the bytes of a pixel."""
  *size, channels = feature.shape
  # Floats are stored as four channels of bytes.
  pixel_bytes = (channels or 4) * tf.as_dtype(feature.dtype).size
  limit = limits.max_value_bytes() // pixel_bytes
  if None not in size:
    limit = min(limit, math.prod(size))
  return limit, pixel_bytes


def find_too_large(
    encoded: Sequence[bytes], feature: tfds.features.Image
) -> list[int] | None:
  """Returns the height and width of the first image that is too large."""
  limit, _ = _max_pixels(feature)
  for image in encoded:
    try:
      [size] = _find_sizes(tf.constant([image], tf.string)).numpy().tolist()
    except tf.errors.InvalidArgumentError:
      continue  # A truncated JPEG.
    if math.prod(size) > limit:
      return size
  return None


def _find_sizes(encoded: tf.Tensor) -> tf.Tensor:
  """Returns heights and widths, int64 `[N, 2]`, by the headers of images.

  They are 0 if it is no image of a format that TensorFlow decodes.
  """
  head = tf.io.decode_raw(
      tf.strings.substr(encoded, 0, _HEADER_BYTES),
      tf.uint8,
      fixed_length=_HEADER_BYTES,
  )
  head = tf.cast(head, tf.int64)

  def number(*offsets: int) -> tf.Tensor:
    return tf.add_n([head[:, b] * 256**i for i, b in enumerate(offsets)])

  def begins(magic: bytes) -> tf.Tensor:
    expected = tf.constant(list(magic), tf.int64)
    return tf.reduce_all(head[:, : len(magic)] == expected, -1, keepdims=True)

  def stack(*sizes: tf.Tensor) -> tf.Tensor:
    return tf.stack(sizes, -1)

  # A height of a BMP is negative if its first row is the top one.
  signed = number(22, 23, 24, 25)
  signed = tf.minimum(signed, (1 << 32) - signed)
  is_jpeg = begins(b'\xff\xd8\xff')
  sizes = tf.zeros([tf.size(encoded), 2], tf.int64)
  for magic, format_sizes in (
      (b'\x89PNG', stack(number(23, 22, 21, 20), number(19, 18, 17, 16))),
      (b'GIF', stack(number(8, 9), number(6, 7))),
      (b'BM', stack(signed, number(18, 19, 20, 21))),
  ):
    sizes = tf.where(begins(magic), format_sizes, sizes)
  places = tf.where(is_jpeg[:, 0])
  return tf.tensor_scatter_nd_update(
      sizes,
      places,
      tf.map_fn(
          pipelines.as_library_code(
              lambda place: tf.cast(
                  tf.image.extract_jpeg_shape(encoded[place[0]])[:2], tf.int64
              )
          ),
          places,
          fn_output_signature=tf.TensorSpec([2], tf.int64),
      ),
  )
