"""Decoding, resizing and converting the images of the frames that are used.

Keep images encoded while episodes are read, cut and shuffled, with
`tfds.decode.SkipDecoding()` for their fields in `load_episodes`. A shuffle
buffer then holds compressed bytes, and images that are never sampled are never
decoded.

    frames = convert_rlds_to_trajectories(episodes).shuffle(100_000).batch(256)
    frames = frames.map(
        lambda frame: decode_images(
            frame, ['observation/image'], size=(84, 84), to_float=True
        ),
        num_parallel_calls=tf.data.AUTOTUNE,
    )
"""

from typing import Any, Mapping, Optional, Sequence, Tuple

import gin
import numpy as np
import tensorflow as tf

from rlds2reverb.arrays import resizing
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.formats import depth_maps
from rlds2reverb.formats import video_frames
from rlds2reverb.transforms import base
from rlds2reverb.transforms import values

BILINEAR, LANCZOS = resizing.METHODS


@gin.configurable(module='rlds2reverb')
def decode_images(
    nest: Any,
    fields: Sequence[paths.Path],
    *,
    size: Tuple[int, int],
    channels: int = 3,
    dtype: tf.DType = tf.uint8,
    method: str = BILINEAR,
    to_float: bool = False,
) -> Any:
  """Decodes, resizes and converts the images in a nest.

  Args:
    nest: a step, a `Trajectory`, or another nest.
    fields: the paths of the images. A field holds either encoded images,
      strings `[...]`, or decoded ones, `[..., height, width, channels]`, with
      any leading dimensions. An encoded image is a PNG, JPEG, BMP or GIF, of
      which the first frame is used. An empty string, which fills a padded
      window, becomes a black image.
    size: the height and width to which other images are resized.
    channels: the number of channels of encoded images. 0 is for depth: the
      first channel, without a dimension of its own; decoded images are then
      `[..., height, width]` or `[..., height, width, 1]`, of `dtype`.
    dtype: the dtype to which images are decoded: uint8 or, for PNG, uint16; or
      float32, where numbers are divided by the greatest one of their dtype.
      Octo and OpenVLA decode depth with `channels=0` and `dtype=tf.float32`.
    method: how they are resized, with antialiasing: `"bilinear"`, as TensorFlow
      does by default; or `"lanczos3"`, as dlimp, Octo and OpenVLA do. The dtype
      stays; integers are rounded.
    to_float: whether the images are converted to float32. Integers are divided
      by the greatest number of their dtype; floats are only cast.

  Returns:
    `nest` with the images decoded, `[..., *size, channels]`; of depth
    `[..., *size]`, and `[..., *size, 1]` where it had a last dimension of 1.

  Raises:
    ValueError: if there is no such field, if it does not hold images, or if
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

  def prepare(unused_number, name, leaf):
    is_wrong = not channels and leaf.dtype != dtype
    if leaf.dtype == tf.string:
      leaf = _flat(decode_all, leaf, 0, shape)
    elif (leaf.shape.rank or 0) < len(axes) or is_wrong:
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
    greatest = leaf.dtype.max if leaf.dtype.is_integer else 1
    return tf.cast(leaf, tf.float32) / greatest

  return values.map_each(prepare, nest, fields)


@base.configurable
class FitImages(base.EpisodeTransform):
  """Gives images one size, and black ones to data sets without such a camera.

  So data sets of a mixture have the same fields. If the sizes are the same
  anyway, `decode_images` on the frames that are used is cheaper.

  Attributes:
    sizes: a mapping from the path of each image to its height and width. The
      images are `[..., height, width, channels]`, of any size. Where there is
      no such field, it becomes zeros, uint8 `[..., height, width, 3]`.
    method: how images are resized; see `decode_images`.
  """

  sizes: Mapping[paths.Path, Tuple[int, int]]
  method: str = BILINEAR

  def transform(self, steps):
    for path, size in self.sizes.items():
      if paths.contains(steps, path):
        steps = decode_images(steps, [path], size=size, method=self.method)
      else:
        flags, shape = values.one_leaf(steps, rlds.IS_FIRST), [*size, 3]
        black = tf.zeros(tf.concat([tf.shape(flags), shape], 0), tf.uint8)
        black = tf.ensure_shape(black, flags.shape.concatenate(shape))
        steps = paths.insert(steps, path, black)
    return steps


def resize_images(
    images: tf.Tensor, size: Tuple[int, int], method: str = BILINEAR
) -> tf.Tensor:
  """Resizes images, with antialiasing, and keeps their dtype.

  Args:
    images: `[..., height, width, channels]`, of any dtype of numbers.
    size: the height and width of the images that come out.
    method: `"bilinear"`; or `"lanczos3"`, which is what dlimp 0.0.1 does, and
      with it Octo and OpenVLA, to the last bit.

  Returns:
    The resized images, `[..., *size, channels]`. Integers are rounded, and cut
    off at the bounds of their dtype.

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
      lambda: _flat(resize, images, 3, shape),
  )
  return tf.ensure_shape(resized, images.shape[:-3].concatenate(shape))


def _flat(fn, leaf, rank, shape) -> tf.Tensor:
  """Applies a function of a list of images to images with any leading axes.

  Args:
    fn: a function from `[N, <rank more axes>]` to `[N, *shape]`.
    leaf: `[..., <rank more axes>]`.
    rank: how many axes an image has; 0 for encoded ones.
    shape: the shape of an image that comes out.

  Returns:
    `[..., *shape]`.
  """
  leading = leaf.shape.rank - rank
  leads, inner = tf.split(tf.shape(leaf), [leading, rank])
  made = fn(tf.reshape(leaf, tf.concat([[-1], inner], 0)))
  made = tf.reshape(made, tf.concat([leads, tf.shape(made)[1:]], 0))
  return tf.ensure_shape(made, leaf.shape[:leading].concatenate(shape))


@gin.configurable(module='rlds2reverb')
def decode_video_frames(
    nest: Any,
    fields: Sequence[paths.Path],
    *,
    size: Tuple[int, int],
    depth_unit: Optional[str] = None,
) -> Any:
  """Decodes and resizes the video frames that are referred to in a nest.

  A video can only be decoded from a key frame on, so consecutive frames take
  much less time than frames from many places. This calls Python, once for all
  frames of a field.

  Args:
    nest: a step, a `Trajectory`, or another nest.
    fields: the paths of the references, strings `[...]` such as
      `/data/file-000.mp4#t=1.5`. An empty string, which fills a padded window,
      becomes a black frame.
    size: the height and width of the frames that come out. Others are resized;
      depth by the nearest pixel, because the mean of two depths often is the
      depth of nothing.
    depth_unit: `"mm"` or `"m"` if the fields are depth maps.

  Returns:
    `nest` with the frames decoded, uint8 `[..., *size, 3]`; of depth
    `[..., *size, 1]`, uint16 millimetres or float32 metres.

  Raises:
    ValueError: if there is no such field, if it is not of strings, if `fields`
      is a single string, or if there is no such unit.
    InvalidArgumentError: while iterating, if a string is no reference, if there
      is no such video or frame, or if the videos of a field differ in size.
  """
  dtype, channels = tf.uint8, 3
  if depth_unit is not None:
    checks.check_choice('depth_unit', depth_unit, depth_maps.UNITS)
    is_whole = depth_unit == depth_maps.MILLIMETRES
    dtype, channels = tf.uint16 if is_whole else tf.float32, 1

  def read(references):
    frames = dict(video_frames.read_references(references.tolist(), depth_unit))
    sizes = {frame.shape for frame in frames.values()} or {(*size, channels)}
    if len(sizes) > 1:
      raise ValueError(
          f'The videos of a field must be of one size, but are {sorted(sizes)}.'
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

  def decode(unused_number, name, leaf):
    values.check_kind(name, leaf, values.REFERENCES)
    return _flat(decode_all, leaf, 0, [*size, channels])

  return values.map_each(decode, nest, fields)
