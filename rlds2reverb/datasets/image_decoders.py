"""Decodes steps by their TFDS features; images must all be of one size."""

import contextlib
from typing import Any, Iterator, Mapping

from absl import logging
import tensorflow as tf
import tensorflow_datasets as tfds

from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import paths


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
        return graphs.asserted(
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
    return features.decode_example(stored, decoders=decoders)


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
