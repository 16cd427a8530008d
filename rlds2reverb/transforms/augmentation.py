"""Random changes of images, which keep a policy from learning their looks.

They are those of dlimp, to the last bit, as Octo and OpenVLA train with: a crop
that is resized to the size of the image, then brightness, contrast, saturation
and hue. One seed decides all of them, so every image of a window is changed in
the same way.

    def augment(index, frame):
      return augment_images(
          frame, ['observation/image'], random_access.Augmentation.OPENVLA,
          seed=(7, index))

    frames = frames.enumerate().map(augment)

`random_access.Batches` does the same in NumPy, for other frameworks.
"""

from typing import Any, Optional, Sequence

import gin
import tensorflow as tf

from rlds2reverb.arrays import augmentation as augmentation_lib
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import seeds
from rlds2reverb.transforms import values

Augmentation = augmentation_lib.Augmentation
# This registers the class itself, and makes no second one.
gin.configurable(module='rlds2reverb')(Augmentation)


class _Changes(augmentation_lib.Changes):
  """The changes of tensors."""

  xp = tf
  log = staticmethod(tf.math.log)
  clip = staticmethod(tf.clip_by_value)

  def crop(self, images, starts, spans):
    ends = [start + span for start, span in zip(starts, spans)]
    size = tf.shape(images)
    boxes = tf.tile(tf.stack([*starts, *ends])[tf.newaxis], [size[0], 1])
    return tf.image.crop_and_resize(images, boxes, tf.range(size[0]), size[1:3])

  def adjust_contrast(self, images, factor):
    return tf.image.adjust_contrast(images, factor)

  def adjust_colours(self, images, saturation, hue):
    for change, by in (
        (tf.image.adjust_saturation, saturation),
        (tf.image.adjust_hue, hue),
    ):
      if by is not None:
        images = tf.clip_by_value(change(images, by), 0, 1)
    return images


@gin.configurable(module='rlds2reverb')
def augment_images(
    nest: Any,
    fields: Sequence[paths.Path],
    augmentation: Augmentation,
    *,
    seed: seeds.Seed,
) -> Any:
  """Changes the images of one frame at random.

  Args:
    nest: a frame, or another nest; not a batch, whose frames must differ.
    fields: the paths of the images, `[..., height, width, 3]`, of an integer
      dtype, or floats in [0, 1]. Leading dimensions, as of a window, have the
      same changes. Each field has changes of its own. An image that is all
      black, as of a camera that is not there, stays so.
    augmentation: how much they are changed, a `random_access.Augmentation`.
    seed: the seed of the frame, such as `(seed, index)`. The n-th field, from
      0, has this seed plus n, as in Octo.

  Returns:
    `nest` with the images changed, of the same dtypes and shapes.

  Raises:
    ValueError: if there is no such field, if it does not hold images, or if
      `fields` is a single string.
  """
  pair = seeds.to_pair(seed)

  def augment(number, name, leaf):
    values.check_kind(name, leaf, values.COLOURS)
    size = tf.shape(leaf)
    numbers = tf.image.convert_image_dtype(leaf, tf.float32)
    numbers = tf.reshape(numbers, tf.concat([[-1], size[-3:]], 0))
    is_there = tf.reduce_any(numbers != 0, axis=[1, 2, 3], keepdims=True)
    draw = tf.random.stateless_uniform([], pair + number)
    numbers = _Changes().apply(numbers, augmentation, draw)
    numbers = tf.reshape(tf.where(is_there, numbers, 0.0), size)
    numbers = tf.image.convert_image_dtype(numbers, leaf.dtype, saturate=True)
    return tf.ensure_shape(numbers, leaf.shape)

  return values.map_each(augment, nest, fields)


@gin.configurable(module='rlds2reverb')
def drop_images(
    nest: Any,
    fields: Sequence[paths.Path],
    probability: float,
    *,
    seed: seeds.Seed,
    kept: Optional[paths.Path] = None,
) -> Any:
  """Makes images of one frame black at random, but never all of them.

  This is `image_dropout` of Octo, with other draws. An image that is black
  already, such as that of a camera that is not there, counts as dropped.

  Args:
    nest: a frame, or another nest.
    fields: the paths of the images, numbers `[...]`.
    probability: the probability of each image to be dropped, unless it is kept.
    seed: the seed of the frame, such as `(seed, index)`.
    kept: the one of `fields` that is never dropped. By default, one image that
      is not black is drawn each time.

  Returns:
    `nest` with some images black.

  Raises:
    ValueError: if there is no such field, if `kept` is none of them, or if the
      probability is not in [0, 1].
  """
  values.check_probability('probability', probability)
  paths.check_list('fields', fields)
  keys = [paths.find(nest, path) for path in fields]
  draws = tf.random.stateless_uniform([2, len(keys)], seeds.to_pair(seed))
  if kept is None:
    images = [tf.cast(paths.get(nest, path), tf.bool) for path in keys]
    is_there = tf.stack([tf.reduce_any(image) for image in images])
    place = tf.argmax(tf.where(is_there, draws[0], -1.0))
  else:
    kept = paths.find(nest, kept)
    checks.check_choice('kept', kept, keys)
    place = tf.constant(keys.index(kept), tf.int64)
  is_kept = tf.equal(tf.range(len(keys), dtype=tf.int64), place)
  is_kept |= draws[1] >= probability

  def drop(number, unused_name, leaf):
    return tf.where(is_kept[number], leaf, tf.zeros_like(leaf))

  return values.map_each(drop, nest, keys)
