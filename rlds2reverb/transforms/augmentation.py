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

from rlds2reverb.episodes import augmentations
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import seeds

Augmentation = augmentations.Augmentation
# This registers the class itself, and makes no second one.
gin.configurable(module='rlds2reverb')(Augmentation)


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
  paths.check_list('fields', fields)
  pair = seeds.to_pair(seed)
  for number, path in enumerate(fields):

    def augment(name, leaf, number=number):
      if leaf.shape.rank is None or leaf.shape.rank < 3 or leaf.shape[-1] != 3:
        raise ValueError(
            f'{name} must be images [..., height, width, 3], but is'
            f' {leaf.dtype.name} {leaf.shape}.'
        )
      return _augment(leaf, augmentation, pair + number)

    nest = paths.map_leaves(augment, nest, path)
  return nest


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
  paths.check_list('fields', fields)
  if not 0 <= probability <= 1:
    raise ValueError(f'probability must be in [0, 1], but is {probability}.')
  keys = [paths.find(nest, path) for path in fields]
  leaves = [tf.convert_to_tensor(paths.get(nest, path)) for path in keys]
  draws = tf.random.stateless_uniform([2, len(leaves)], seeds.to_pair(seed))
  is_there = tf.stack(
      [tf.reduce_any(tf.cast(leaf, tf.bool)) for leaf in leaves]
  )
  if kept is None:
    place = tf.argmax(tf.where(is_there, draws[0], -1.0))
  elif paths.find(nest, kept) in keys:
    place = tf.constant(keys.index(paths.find(nest, kept)), tf.int64)
  else:
    raise ValueError(
        f'kept must be one of fields, {list(fields)}, but is'
        f' {paths.name_of(kept)}.'
    )
  is_kept = tf.equal(tf.range(len(leaves), dtype=tf.int64), place)
  is_kept |= draws[1] >= probability
  for path, leaf, is_kept_one in zip(keys, leaves, tf.unstack(is_kept)):
    dropped = tf.where(is_kept_one, leaf, tf.zeros_like(leaf))

    def replace(unused_name, unused_leaf, dropped=dropped):
      return dropped

    nest = paths.map_leaves(replace, nest, path)
  return nest


def _augment(images, augmentation, seed):
  """Changes images `[..., height, width, 3]`, all by one seed."""
  dtype, shape = images.dtype, images.shape
  size = tf.shape(images)
  numbers = tf.image.convert_image_dtype(images, tf.float32)
  numbers = tf.reshape(numbers, tf.concat([[-1], size[-3:]], 0))
  is_there = tf.reduce_any(numbers != 0, axis=[1, 2, 3], keepdims=True)
  changes = {
      _crop: augmentation.crop_scale
      and (augmentation.crop_scale, augmentation.crop_ratio),
      tf.image.stateless_random_brightness: augmentation.brightness
      and (augmentation.brightness,),
      tf.image.stateless_random_contrast: augmentation.contrast,
      tf.image.stateless_random_saturation: augmentation.saturation,
      tf.image.stateless_random_hue: augmentation.hue and (augmentation.hue,),
  }
  for change, bounds in changes.items():
    if bounds:
      numbers = tf.clip_by_value(change(numbers, *bounds, seed), 0, 1)
  numbers = tf.reshape(tf.where(is_there, numbers, 0.0), size)
  return tf.ensure_shape(
      tf.image.convert_image_dtype(numbers, dtype, saturate=True), shape
  )


def _crop(images, scale, ratio, seed):
  """Crops images `[N, height, width, 3]` alike, and resizes the crops."""
  log_ratio = tf.math.log(ratio[0]), tf.math.log(ratio[1])

  def draw(low, high):
    return tf.random.stateless_uniform((1,), seed, low, high)

  area = draw(*scale)
  ratio = tf.exp(draw(*log_ratio))
  height = tf.clip_by_value(tf.sqrt(area / ratio), 0, 1)
  width = tf.clip_by_value(tf.sqrt(area * ratio), 0, 1)
  top, left = draw(0, 1 - height), draw(0, 1 - width)
  box = tf.stack([top, left, top + height, left + width], axis=1)
  size = tf.shape(images)
  return tf.image.crop_and_resize(
      images,
      tf.tile(box, [size[0], 1]),
      tf.range(size[0]),
      size[1:3],
  )
