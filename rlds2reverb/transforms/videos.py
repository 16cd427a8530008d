"""Decodes frames of videos late, only those that are used.

`formats.load(path, decode_videos=False)` gives a reference for each frame, a
short string, which takes no memory while episodes are cut and shuffled.
"""

from typing import Any, Optional, Sequence, Tuple

import gin
import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import paths
from rlds2reverb.formats import depth_maps
from rlds2reverb.formats import video_frames
from rlds2reverb.transforms import images
from rlds2reverb.transforms import values


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
    channels = 1
    dtype = tf.uint16 if depth_unit == depth_maps.MILLIMETRES else tf.float32

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

  def decode(unused_number, name, leaf):
    if leaf.dtype != tf.string:
      raise ValueError(
          f'{name} must be references to the frames of videos, strings, but is'
          f' {leaf.dtype.name} {leaf.shape}.'
      )
    frames = tf.numpy_function(
        read, [tf.reshape(leaf, [-1])], dtype, stateful=False
    )
    frames = tf.ensure_shape(frames, [None, None, None, channels])
    if depth_unit is None:
      frames = images.resize_images(frames, size)
    else:
      frames = tf.image.resize(frames, size, method='nearest')
    shape = [*size, channels]
    frames = tf.reshape(frames, tf.concat([tf.shape(leaf), shape], 0))
    return tf.ensure_shape(frames, leaf.shape.concatenate(shape))

  return values.map_each(decode, nest, fields)
