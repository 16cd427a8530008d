"""Decodes steps by their TFDS features; images must all be of one size."""

import contextlib
import math
from typing import Any, Iterator, List, Mapping, Optional, Sequence, Tuple

from absl import logging
import tensorflow as tf
import tensorflow_datasets as tfds

from rlds2reverb.episodes import errors
from rlds2reverb.episodes import limits
from rlds2reverb.episodes import paths

# How many bytes of an image tell its size, in all formats but JPEG.
_HEADER_BYTES = 26


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
        ' size, and that of step 0:'
    )

    def decode_all():
      # The first image is decoded once more, to get its size.
      size = tf.shape(self.decode_example(encoded[0]))

      def decode(step):
        image = self.decode_example(encoded[step])
        found = tf.shape(image)
        return errors.assert_true(
            image, tf.reduce_all(found == size), message, step, found, size
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


def decoders_of_one_size(
    feature: Any, decoders: Any, keys: paths.KeyPath
) -> Any:
  """Returns TFDS decoders whose errors name images that are not of one size.

  Args:
    feature: the TFDS feature of a step, or of a part of it.
    decoders: the decoders that the user gave for its parts, or None.
    keys: the path of the feature.

  Returns:
    The given decoders, and others for images whose size is open, nested as the
    features are; or None without any.
  """
  if isinstance(feature, tfds.features.Image):
    is_open = None in feature.shape and decoders is None
    return _OneSize(paths.name_of(keys)) if is_open else decoders
  if not isinstance(feature, tfds.features.FeaturesDict) or not isinstance(
      decoders, (Mapping, type(None))
  ):
    return decoders
  found = {
      key: decoders_of_one_size(part, (decoders or {}).get(key), (*keys, key))
      for key, part in feature.items()
  }
  return {key: part for key, part in found.items() if part is not None} or None


def decode(features: tfds.features.FeaturesDict, stored: Any, decoders: Any):
  """Decodes stored values with TFDS.

  Args:
    features: the features.
    stored: the values, as they are on disk.
    decoders: the TFDS decoders, nested as the features are, or None.
  """
  with _without_own_deprecations():
    stored = _check_images(features, stored, decoders, ())
    return features.decode_example(stored, decoders=decoders)


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
  all that are decoded at once may expand as far as a file of images.
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


def _max_pixels(feature: tfds.features.Image) -> Tuple[int, int]:
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
) -> Optional[List[int]]:
  """Returns the height and width of the first image that is too large."""
  limit, _ = _max_pixels(feature)
  for image in encoded:
    try:
      [size] = _find_sizes(tf.constant([image], tf.string)).numpy().tolist()
    except tf.errors.InvalidArgumentError:
      continue  # No whole JPEG.
    if math.prod(size) > limit:
      return size
  return None


def _find_sizes(encoded: tf.Tensor) -> tf.Tensor:
  """Returns heights and widths, int64 `[N, 2]`, by the headers of images.

  They are 0 where there is no image of a format that TensorFlow decodes.
  """
  head = tf.io.decode_raw(
      tf.strings.substr(encoded, 0, _HEADER_BYTES),
      tf.uint8,
      fixed_length=_HEADER_BYTES,
  )
  head = tf.cast(head, tf.int64)

  def number(*places: int) -> tf.Tensor:
    return tf.add_n([head[:, at] * 256**i for i, at in enumerate(places)])

  def begins(magic: bytes) -> tf.Tensor:
    wanted = tf.constant(list(magic), tf.int64)
    return tf.reduce_all(head[:, : len(magic)] == wanted, -1, keepdims=True)

  def stack(*sizes: tf.Tensor) -> tf.Tensor:
    return tf.stack(sizes, -1)

  # A height of a BMP is negative if its first row is the top one.
  signed = number(22, 23, 24, 25)
  signed = tf.minimum(signed, (1 << 32) - signed)
  is_jpeg = begins(b'\xff\xd8\xff')
  sizes = tf.zeros([tf.size(encoded), 2], tf.int64)
  for magic, found in (
      (b'\x89PNG', stack(number(23, 22, 21, 20), number(19, 18, 17, 16))),
      (b'GIF', stack(number(8, 9), number(6, 7))),
      (b'BM', stack(signed, number(18, 19, 20, 21))),
  ):
    sizes = tf.where(begins(magic), found, sizes)
  places = tf.where(is_jpeg[:, 0])
  return tf.tensor_scatter_nd_update(
      sizes,
      places,
      tf.map_fn(
          lambda place: tf.cast(
              tf.image.extract_jpeg_shape(encoded[place[0]])[:2], tf.int64
          ),
          places,
          fn_output_signature=tf.TensorSpec([2], tf.int64),
      ),
  )


@contextlib.contextmanager
def _without_own_deprecations() -> Iterator[None]:
  """Hides warnings of TFDS 4.9 about its own deprecated functions."""

  def is_of_use(record) -> bool:
    message = record.getMessage()
    return 'dtype' not in message or 'deprecated' not in message

  with contextlib.ExitStack() as stack:
    for logger in logging.get_absl_logger(), tf.get_logger():
      logger.addFilter(is_of_use)
      stack.callback(logger.removeFilter, is_of_use)
    yield
