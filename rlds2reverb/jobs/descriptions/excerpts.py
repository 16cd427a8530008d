"""Excerpts: some steps of a few episodes, with their numbers and images.

The episodes are a uniform sample, drawn while the data set is read: of those
that come later, fewer and fewer are taken out of the graph.
"""

import base64
import dataclasses
from typing import Any, Dict, List, Sequence

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.episodes import paths

MAX_STEPS = 200
MAX_FRAMES = 8
_MAX_IMAGES = 3
_MAX_SIDE = 128  # pixels
_CHANNELS = (1, 3, 4)
_JPEG_QUALITY = 85


@dataclasses.dataclass(frozen=True)
class Excerpt:
  """The excerpt of one episode.

  Attributes:
    episode: the index of the episode in the data set.
    num_steps: the number of all its steps.
    undiscounted_return: its return.
    is_terminal: whether it is terminal.
    steps: the steps whose numbers are shown.
    rows: the numbers of these steps, `[S, D]`; NaN where a number has no
      meaning.
    frame_steps: the ones of `steps` whose images are shown.
    frames: for each image field, by its path, JPEG images in base64.
  """

  episode: int
  num_steps: int
  undiscounted_return: float
  is_terminal: bool
  steps: np.ndarray
  rows: np.ndarray
  frame_steps: np.ndarray
  frames: Dict[str, List[str]]


def image_leaves(
    step_spec: Dict[str, Any], encoded_images: Sequence[paths.Keys]
) -> List[paths.Keys]:
  """Returns the keys of the image fields that are shown, three at most."""
  found = [
      keys
      for keys, spec in tree.flatten_with_path(step_spec)
      if keys in encoded_images or is_image(spec)
  ]
  return found[:_MAX_IMAGES]


def draw_slot(position: tf.Tensor, count: int, seed: int) -> tf.Tensor:
  """Returns the place of an episode in a sample of `count`.

  It is Vitter's Algorithm R (1985), which needs no memory of earlier episodes.

  Args:
    position: int64 `[]`: how many episodes were read before.
    count: the size of the sample.
    seed: the seed of the sample.

  Returns:
    int64 `[]`: the place, which another episode may take later; it is not less
    than `count` if the episode is not in the sample.
  """
  draw = tf.random.stateless_uniform(
      [], [tf.cast(seed, tf.int64), position], dtype=tf.float64
  )
  drawn = tf.cast(draw * tf.cast(position + 1, tf.float64), tf.int64)
  return tf.where(position < count, position, drawn)


def take(
    steps: Dict[str, Any],
    rows: tf.Tensor,
    images: Sequence[paths.Keys],
    is_taken: tf.Tensor,
) -> tf.Tensor:
  """Takes an excerpt of an episode, in graph mode.

  Args:
    steps: the stacked steps of the episode.
    rows: its numbers, float64 `[T, D]`.
    images: the keys of the image fields.
    is_taken: bool `[]`: whether it is taken at all.

  Returns:
    Strings `[3 + len(images)]`, for `parse`; empty ones if it is not taken.
  """

  def parts():
    length = tf.shape(rows, tf.int64)[0]
    chosen = _spread(length, MAX_STEPS)
    frame_steps = tf.gather(
        chosen,
        _spread(tf.size(chosen, tf.int64), MAX_FRAMES if images else 0),
    )
    return tf.stack(
        [
            tf.io.serialize_tensor(chosen),
            tf.io.serialize_tensor(tf.gather(rows, chosen)),
            tf.io.serialize_tensor(frame_steps),
            *(
                tf.io.serialize_tensor(
                    tf.map_fn(
                        _to_jpeg,
                        tf.gather(paths.get(steps, keys), frame_steps),
                        fn_output_signature=tf.string,
                    )
                )
                for keys in images
            ),
        ]
    )

  return tf.cond(is_taken, parts, lambda: tf.fill([3 + len(images)], ''))


def parse(
    parts: Sequence[bytes], images: Sequence[paths.Keys], **known: Any
) -> Excerpt:
  """Returns the excerpt that `take` has taken.

  Args:
    parts: what `take` has returned.
    images: the keys of the image fields.
    **known: the attributes of the excerpt that are not in `parts`.
  """
  steps, rows, frame_steps = [
      tf.io.parse_tensor(part, dtype).numpy()
      for part, dtype in zip(parts, (tf.int64, tf.float64, tf.int64))
  ]
  frames = {
      paths.name_of(keys): [
          base64.b64encode(jpeg).decode()
          for jpeg in tf.io.parse_tensor(part, tf.string).numpy()
      ]
      for keys, part in zip(images, parts[3:])
  }
  return Excerpt(
      steps=steps, rows=rows, frame_steps=frame_steps, frames=frames, **known
  )


def is_image(spec: Any) -> bool:
  """Returns whether a leaf of a step with this spec is a decoded image."""
  return (
      isinstance(spec, tf.TensorSpec)
      and spec.dtype in (tf.uint8, tf.uint16)
      and spec.shape.rank == 3
      and spec.shape[-1] in _CHANNELS
  )


def _spread(length, count):
  """Returns at most `count` indices below `length`, the last one among them."""
  count = tf.minimum(length, count)
  share = tf.linspace(tf.constant(0.0, tf.float64), 1.0, tf.maximum(count, 1))
  index = tf.round(share * tf.cast(length - 1, tf.float64))
  return tf.cast(index, tf.int64)[:count]


def _to_jpeg(image):
  """Encodes a decoded or encoded image, small, as JPEG."""
  if image.dtype == tf.string:
    image = tf.io.decode_image(image, expand_animations=False)
  if image.dtype == tf.uint16:
    greatest = tf.maximum(tf.reduce_max(image), 1)
    image = tf.cast(image, tf.float32) / tf.cast(greatest, tf.float32) * 255
  image = tf.cast(image, tf.float32)
  size = tf.shape(image)
  scale = _MAX_SIDE / tf.maximum(size[0], size[1])
  small = tf.cast(tf.cast(size[:2], tf.float64) * scale, tf.int32)
  image = tf.cond(
      scale < 1,
      lambda: tf.image.resize(image, tf.maximum(small, 1), 'area'),
      lambda: image,
  )
  image = tf.cast(tf.clip_by_value(tf.round(image), 0, 255), tf.uint8)
  # JPEG has no alpha channel.
  image = tf.cond(
      tf.equal(size[2], 1),
      lambda: tf.repeat(image, 3, axis=2),
      lambda: image[..., :3],
  )
  return tf.io.encode_jpeg(
      tf.ensure_shape(image, [None, None, 3]), quality=_JPEG_QUALITY
  )
