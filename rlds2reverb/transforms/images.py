"""Decodes, resizes and augments the images of the frames that are used.

Keep images encoded while episodes are read, sliced and shuffled, with
`tfds.decode.SkipDecoding()` for their fields in `load_episodes`. A shuffle
buffer then has compressed bytes, and images that are never sampled are never
decoded.

    frames = convert_rlds_to_trajectories(episodes).shuffle(100_000).batch(256)
    frames = frames.map(
        lambda frame: decode_images(
            frame, ['observation/image'], size=(84, 84), to_float=True
        ),
        num_parallel_calls=tf.data.AUTOTUNE,
    )

`augment_images` changes images at random, exactly like dlimp, with which Octo
and OpenVLA train: a crop that is resized to the size of the image, then
brightness, contrast, saturation and hue. One seed determines all of them, so
every image of a window is changed in the same way.

    def augment(index, frame):
      return augment_images(
          frame, ['observation/image'], random_access.Augmentation.OPENVLA,
          seed=(7, index))

    frames = frames.enumerate().map(augment)

`random_access.Batches` does the same in NumPy, for other frameworks.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from rlds2reverb.arrays import augmentation as augmentation_lib
from rlds2reverb.arrays import resizing
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import pipelines
from rlds2reverb.episodes import random as random_lib
from rlds2reverb.episodes import rlds
from rlds2reverb.formats import depth_maps
from rlds2reverb.formats import video_frames
from rlds2reverb.transforms import base
from rlds2reverb.transforms import values

BILINEAR, LANCZOS = resizing.METHODS

Augmentation = augmentation_lib.Augmentation
# This registers the class itself, not a subclass.
gin.configurable(module='rlds2reverb')(Augmentation)


@gin.configurable(module='rlds2reverb')
@pipelines.do_not_convert
def decode_images(
    nest: Any,
    fields: Sequence[paths.Path],
    *,
    size: tuple[int, int],
    channels: int = 3,
    dtype: tf.DType = tf.uint8,
    method: str = BILINEAR,
    to_float: bool = False,
) -> Any:
  """Decodes, resizes and converts the images of a nest.

  Args:
    nest: a step, a `Trajectory`, or another nest.
    fields: the paths of the images. A field has either encoded images, strings
      `[...]`, or decoded ones, `[..., height, width, channels]`, with any
      leading dimensions. An encoded image is a PNG, JPEG, BMP or GIF, of which
      the first frame is used. An empty string, the padding of a window, becomes
      a black image.
    size: the height and width to resize to.
    channels: the number of channels of encoded images. 0 is for depth: the
      first channel, without a channel dimension; decoded images are then
      `[..., height, width]` or `[..., height, width, 1]`, of `dtype`.
    dtype: the dtype to decode to: uint8 or, for PNG, uint16; or float32, with
      integers divided by the maximum of their dtype. Octo and OpenVLA decode
      depth with `channels=0` and `dtype=tf.float32`.
    method: how to resize, with antialiasing: `"bilinear"`, TensorFlow's
      default; or `"lanczos3"`, as in dlimp, Octo and OpenVLA. The dtype does
      not change; integers are rounded.
    to_float: whether to convert the images to float32. Integers are divided by
      the maximum of their dtype; floats are only cast.

  Returns:
    `nest` with the images decoded, `[..., *size, channels]`; for depth
    `[..., *size]`, and `[..., *size, 1]` if it had a last dimension of 1.

  Raises:
    ValueError: if there is no such field, a field does not have images, or
      `fields` is a single string.
    InvalidArgumentError: while iterating, if a string is not an image.
  """
  dtype = tf.as_dtype(dtype)
  axes = ('height', 'width', 'channels')[: 3 if channels else 2]
  shape = [*size, channels][: len(axes)]

  def decode(string):
    image = tf.io.decode_image(string, channels, dtype, expand_animations=False)
    image = tf.ensure_shape(image, [None, None, channels or None])
    if not channels:
      image = image[..., :1]
    return tf.reshape(resize_images(image, size, method), shape)

  def decode_all(strings):
    return tf.map_fn(
        lambda string: tf.cond(
            string == '', lambda: tf.zeros(shape, dtype), lambda: decode(string)
        ),
        strings,
        fn_output_signature=tf.TensorSpec(shape, dtype),
    )

  def prepare(unused_index, name, leaf):
    has_wrong_dtype = not channels and leaf.dtype != dtype
    if leaf.dtype == tf.string:
      leaf = _map_flat(decode_all, leaf, 0, shape)
    elif (leaf.shape.rank or 0) < len(axes) or has_wrong_dtype:
      raise ValueError(
          f'{name} must be encoded images or'
          f' {"" if channels else dtype.name + " "}[..., {", ".join(axes)}],'
          f' but is {leaf.dtype.name} {leaf.shape}.'
      )
    elif channels or leaf.shape[-1] == 1:
      leaf = resize_images(leaf, size, method)
    else:
      leaf = resize_images(leaf[..., tf.newaxis], size, method)[..., 0]
    if not to_float:
      return leaf
    maximum = leaf.dtype.max if leaf.dtype.is_integer else 1
    return tf.cast(leaf, tf.float32) / maximum

  return values.map_field_leaves(prepare, nest, fields)


@base.configurable
class FitImages(base.EpisodeTransform):
  """Resizes images to one size, and adds black images for missing cameras.

  All data sets of a mixture then have the same fields. If their sizes are equal
  anyway, `decode_images` on the frames that are used is cheaper.

  Attributes:
    sizes: a mapping from the path of each image to its height and width. The
      images are `[..., height, width, channels]`, of any size. A missing field
      becomes zeros, uint8 `[..., height, width, 3]`.
    method: how to resize images; see `decode_images`.
  """

  sizes: Mapping[paths.Path, tuple[int, int]]
  method: str = BILINEAR

  def transform(self, steps):
    for path, size in self.sizes.items():
      if paths.contains(steps, path):
        steps = decode_images(steps, [path], size=size, method=self.method)
      else:
        is_first, shape = values.one_leaf(steps, rlds.IS_FIRST), [*size, 3]
        black = tf.zeros(tf.concat([tf.shape(is_first), shape], 0), tf.uint8)
        black = tf.ensure_shape(black, is_first.shape.concatenate(shape))
        steps = paths.insert(steps, path, black)
    return steps


def resize_images(
    images: tf.Tensor, size: tuple[int, int], method: str = BILINEAR
) -> tf.Tensor:
  """Resizes images with antialiasing, in their own dtype.

  Args:
    images: `[..., height, width, channels]`, numbers.
    size: the new height and width.
    method: `"bilinear"`; or `"lanczos3"`, with exactly the results of dlimp
      0.0.1, which Octo and OpenVLA use.

  Returns:
    The resized images, `[..., *size, channels]`. Integers are rounded, and
    clipped to the range of their dtype.

  Raises:
    ValueError: if there is no such method.
  """
  checks.check_choice('method', method, resizing.METHODS)
  if images.shape[-3:-1] == list(size):
    return images

  def resize(images):
    resized = tf.image.resize(images, size, method, antialias=True)
    if images.dtype.is_integer:
      resized = tf.round(resized)
    return tf.saturate_cast(resized, images.dtype)

  shape = [*size, images.shape[-1]]
  resized = tf.cond(
      tf.reduce_all(tf.shape(images)[-3:-1] == size),
      lambda: images,
      lambda: _map_flat(resize, images, 3, shape),
  )
  return tf.ensure_shape(resized, images.shape[:-3].concatenate(shape))


def _map_flat(fn, leaf, rank, shape) -> tf.Tensor:
  """Applies a function of a batch of images to images with any leading axes.

  Args:
    fn: a function from `[N, <rank more axes>]` to `[N, *shape]`.
    leaf: `[..., <rank more axes>]`.
    rank: the number of axes of an image; 0 for encoded images.
    shape: the shape of a resulting image.

  Returns:
    `[..., *shape]`.
  """
  num_leading = leaf.shape.rank - rank
  leading, inner = tf.split(tf.shape(leaf), [num_leading, rank])
  flat = fn(tf.reshape(leaf, tf.concat([[-1], inner], 0)))
  images = tf.reshape(flat, tf.concat([leading, tf.shape(flat)[1:]], 0))
  return tf.ensure_shape(images, leaf.shape[:num_leading].concatenate(shape))


@gin.configurable(module='rlds2reverb')
def decode_video_frames(
    nest: Any,
    fields: Sequence[paths.Path],
    *,
    size: tuple[int, int],
    depth_unit: str | None = None,
) -> Any:
  """Decodes and resizes the video frames that a nest refers to.

  A video can only be decoded from a key frame on, so consecutive frames take
  much less time than scattered frames. This calls Python, once for all frames
  of a field.

  Args:
    nest: a step, a `Trajectory`, or another nest.
    fields: the paths of the references, strings `[...]` such as
      `/data/file-000.mp4#t=1.5`. An empty string, the padding of a window,
      becomes a black frame.
    size: the height and width to resize to. Depth is resized to the nearest
      pixel, because the mean of two depths is usually the depth of no object.
    depth_unit: `"mm"` or `"m"` if the fields are depth maps.

  Returns:
    `nest` with the frames decoded, uint8 `[..., *size, 3]`; for depth
    `[..., *size, 1]`, uint16 in millimeters or float32 in meters.

  Raises:
    ValueError: if there is no such field, a field does not have strings,
      `fields` is a single string, or there is no such unit.
    InvalidArgumentError: while iterating, if a string is not a reference, there
      is no such video or frame, or the videos of a field differ in size.
  """
  dtype, channels = tf.uint8, 3
  if depth_unit is not None:
    checks.check_choice('depth_unit', depth_unit, depth_maps.UNITS)
    is_uint16 = depth_unit == depth_maps.MILLIMETERS
    dtype, channels = tf.uint16 if is_uint16 else tf.float32, 1

  def read(references):
    frames = dict(video_frames.read_references(references.tolist(), depth_unit))
    sizes = {frame.shape for frame in frames.values()} or {(*size, channels)}
    if len(sizes) > 1:
      raise ValueError(
          'All videos of a field must have the same size, but the sizes are'
          f' {sorted(sizes)}.'
      )
    decoded = np.zeros((len(references), *sizes.pop()), dtype.as_numpy_dtype)
    for index, frame in frames.items():
      decoded[index] = frame
    return decoded

  def decode_all(references):
    frames = tf.numpy_function(read, [references], dtype, stateful=False)
    frames = tf.ensure_shape(frames, [None, None, None, channels])
    if depth_unit is None:
      return resize_images(frames, size)
    return tf.image.resize(frames, size, method='nearest')

  def decode(unused_index, name, leaf):
    values.check_kind(name, leaf, values.VIDEO_REFERENCES)
    return _map_flat(decode_all, leaf, 0, [*size, channels])

  return values.map_field_leaves(decode, nest, fields)


class _TensorChanges(augmentation_lib.ImageChanges):
  """Changes images that are tensors."""

  xp = tf
  log = staticmethod(tf.math.log)
  clip = staticmethod(tf.clip_by_value)

  def crop(self, images, starts, sizes):
    ends = [start + size for start, size in zip(starts, sizes)]
    shape = tf.shape(images)
    boxes = tf.tile(tf.stack([*starts, *ends])[tf.newaxis], [shape[0], 1])
    return tf.image.crop_and_resize(
        images, boxes, tf.range(shape[0]), shape[1:3]
    )

  def adjust_contrast(self, images, factor):
    return tf.image.adjust_contrast(images, factor)

  def adjust_colors(self, images, saturation, hue):
    if saturation is not None:
      images = tf.image.adjust_saturation(images, saturation)
      images = tf.clip_by_value(images, 0, 1)
    if hue is not None:
      images = tf.clip_by_value(tf.image.adjust_hue(images, hue), 0, 1)
    return images


@gin.configurable(module='rlds2reverb')
def augment_images(
    nest: Any,
    fields: Sequence[paths.Path],
    augmentation: Augmentation,
    *,
    seed: random_lib.Seed,
) -> Any:
  """Changes the images of one frame at random.

  Args:
    nest: a frame, or another nest; not a batch, whose frames must differ.
    fields: the paths of the images, `[..., height, width, 3]`, of an integer
      dtype, or floats in [0, 1]. All images of leading dimensions, such as a
      window, are changed in the same way. Each field has its own changes. Black
      images, of missing cameras, stay black.
    augmentation: the ranges of the changes, a `random_access.Augmentation`.
    seed: the seed of the frame, such as `(seed, index)`. The n-th field, from
      0, has this seed plus n, as in Octo.

  Returns:
    `nest` with the images changed, of the same dtypes and shapes.

  Raises:
    ValueError: if there is no such field, a field does not have images, or
      `fields` is a single string.
  """
  pair = random_lib.to_seed_pair(seed)

  def augment(index, name, leaf):
    values.check_kind(name, leaf, values.COLOR_IMAGES)
    shape = tf.shape(leaf)
    images = tf.image.convert_image_dtype(leaf, tf.float32)
    images = tf.reshape(images, tf.concat([[-1], shape[-3:]], 0))
    is_visible = tf.reduce_any(images != 0, axis=[1, 2, 3], keepdims=True)
    draw = tf.random.stateless_uniform([], pair + index)
    images = _TensorChanges().apply(images, augmentation, draw)
    images = tf.reshape(tf.where(is_visible, images, 0.0), shape)
    images = tf.image.convert_image_dtype(images, leaf.dtype, saturate=True)
    return tf.ensure_shape(images, leaf.shape)

  return values.map_field_leaves(augment, nest, fields)


@gin.configurable(module='rlds2reverb')
def drop_images(
    nest: Any,
    fields: Sequence[paths.Path],
    probability: float,
    *,
    seed: random_lib.Seed,
    keep: paths.Path | None = None,
) -> Any:
  """Makes images of one frame black at random, but never all of them.

  This is `image_dropout` of Octo, with other draws. A black image, of a missing
  camera, counts as dropped.

  Args:
    nest: a frame, or another nest.
    fields: the paths of the images, numbers `[...]`.
    probability: the probability of dropping each image.
    seed: the seed of the frame, such as `(seed, index)`.
    keep: the one of `fields` that is never dropped. By default, one of the
      images that are not black is drawn each time.

  Returns:
    `nest` with some images black.

  Raises:
    ValueError: if there is no such field, `keep` is not one of `fields`, or the
      probability is not in [0, 1].
  """
  values.check_probability('probability', probability)
  paths.check_list('fields', fields)
  keys = [paths.find(nest, path) for path in fields]
  draws = tf.random.stateless_uniform(
      [2, len(keys)], random_lib.to_seed_pair(seed)
  )
  if keep is None:
    images = [tf.cast(paths.get(nest, path), tf.bool) for path in keys]
    is_visible = tf.stack([tf.reduce_any(image) for image in images])
    kept_index = tf.argmax(tf.where(is_visible, draws[0], -1.0))
  else:
    keep = paths.find(nest, keep)
    checks.check_choice('keep', keep, keys)
    kept_index = tf.constant(keys.index(keep), tf.int64)
  is_kept = tf.equal(tf.range(len(keys), dtype=tf.int64), kept_index)
  is_kept |= draws[1] >= probability

  def drop(index, unused_name, leaf):
    return tf.where(is_kept[index], leaf, tf.zeros_like(leaf))

  return values.map_field_leaves(drop, nest, keys)
