"""Excerpts: some steps of a few episodes, with their numbers and images.

The images of an episode are taken while it is read. Its numbers come from the
rows that the statistics are made of. The episodes to show are chosen when all
were read; until then `spread` says which ones to keep.
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
NUM_BARS = 32  # of returns and of lengths
NUM_EXTREMES = 3  # how many of the best, the worst, and the longest
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
    num_transitions: the number of its transitions.
    undiscounted_return: its return.
    is_terminal: whether it is terminal.
    steps: the steps whose numbers are shown, in order.
    rows: the numbers of these steps, `[S, D]`; NaN where a number has no
      meaning.
    images: what `take_frames` has taken: for each image field, the images of
      the steps `spread_steps(num_steps, MAX_FRAMES)`.
    instruction: what the episode is meant to do, if a field says so.
  """

  episode: int
  num_steps: int
  num_transitions: int
  undiscounted_return: float
  is_terminal: bool
  steps: np.ndarray
  rows: np.ndarray
  images: np.ndarray
  instruction: str = ''

  def frames(self) -> List[List[str]]:
    """Returns JPEG images in base64, a list for each image field."""
    return [
        [
            base64.b64encode(jpeg).decode()
            for jpeg in tf.io.parse_tensor(part, tf.string).numpy()
        ]
        for part in self.images
    ]


def image_leaves(step_spec: Dict[str, Any]) -> List[paths.KeyPath]:
  """Returns the keys of the image fields that are shown, three at most."""
  found = [
      keys for keys, spec in tree.flatten_with_path(step_spec) if is_image(spec)
  ]
  return found[:_MAX_IMAGES]


def is_image(spec: Any) -> bool:
  """Returns whether a leaf of a step with this spec is a decoded image."""
  return (
      isinstance(spec, tf.TensorSpec)
      and spec.dtype in (tf.uint8, tf.uint16)
      and spec.shape.rank == 3
      and spec.shape[-1] in _CHANNELS
  )


def spread_steps(length: int, count: int) -> np.ndarray:
  """Returns at most `count` steps of `length`, including the last one."""
  count = min(length, count)
  return np.arange(count) * (length - 1) // max(count - 1, 1)


def spread(numbers: np.ndarray) -> np.ndarray:
  """Returns the indices of some numbers that represent all `numbers` `[N]`.

  The three least and the three greatest are among them. Each part of the range
  that is at least as wide as the range divided by `NUM_BARS`, and has any
  number, has one of them. This stays true if numbers are added, and some of the
  chosen ones are chosen again. Numbers that are not finite are left out.
  """
  order = np.argsort(numbers, kind='stable')
  order = order[np.isfinite(numbers[order])]
  if not order.size:
    return order
  ranked = numbers[order]
  width = (ranked[-1] - ranked[0]) / NUM_BARS or 1.0
  cells = np.floor((ranked - ranked[0]) / width)
  rank = np.arange(order.size)
  # A part that overlaps a cell has the first or the last number of the cell.
  chosen = np.diff(cells, prepend=-1) != 0
  chosen |= np.diff(cells, append=-1) != 0
  chosen |= rank < NUM_EXTREMES
  chosen |= rank >= order.size - NUM_EXTREMES
  return order[chosen]


def take_frames(
    steps: Dict[str, Any], images: Sequence[paths.KeyPath]
) -> tf.Tensor:
  """Takes some images of an episode, in graph mode.

  Args:
    steps: the stacked steps of the episode.
    images: the keys of the image fields.

  Returns:
    Strings `[len(images)]`, for `Excerpt.images`.
  """
  if not images:
    return tf.zeros([0], tf.string)
  length = tf.shape(paths.get(steps, images[0]))[0]
  count = tf.minimum(length, MAX_FRAMES)
  shown = tf.range(count) * (length - 1) // tf.maximum(count - 1, 1)
  return tf.stack(
      [
          tf.io.serialize_tensor(
              tf.map_fn(
                  _to_jpeg,
                  tf.gather(paths.get(steps, keys), shown),
                  fn_output_signature=tf.string,
              )
          )
          for keys in images
      ]
  )


def _to_jpeg(image):
  """Encodes an image, small, as JPEG."""
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
