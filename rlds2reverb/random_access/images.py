"""Decodes and resizes images, without TensorFlow."""

import dataclasses
import io
from typing import Any, Dict, Mapping, Sequence, Tuple

import numpy as np
from PIL import Image

from rlds2reverb.episodes import checks
from rlds2reverb.random_access import resizing
from rlds2reverb.random_access import row_layout

_METHODS = ('lanczos3', 'bilinear')


@dataclasses.dataclass(frozen=True)
class ImageFormat:
  """What becomes of encoded images.

  A JPEG becomes what `tf.io.decode_jpeg(..., dct_method='INTEGER_ACCURATE')`
  makes of it, bit for bit, and a PNG what `tf.io.decode_png` does. (By default
  TensorFlow decodes JPEGs with a faster and less exact transform.) An empty
  string, which fills a padded window, becomes a black image.

  Attributes:
    size: the height and width. Images of another size are resized.
    channels: the number of channels, 1 or 3, or 4 of a PNG.
    method: how they are resized: `'lanczos3'`, as Octo and OpenVLA do, or
      `'bilinear'`; both with antialiasing, as `tf.image.resize`, to one of 255
      levels.
  """

  size: Tuple[int, int]
  channels: int = 3
  method: str = 'lanczos3'

  def __post_init__(self):
    for length in self.size:
      checks.check_positive('The height and the width of images', length)
    checks.check_choice('channels', self.channels, _MODES)
    checks.check_choice('method', self.method, _METHODS)


_MODES = {1: 'L', 3: 'RGB', 4: 'RGBA'}


def decode(encoded: bytes, image_format: ImageFormat) -> np.ndarray:
  """Returns an image, uint8 `[height, width, channels]`.

  Raises:
    ValueError: if it is no image.
  """
  if not encoded:
    return np.zeros([*image_format.size, image_format.channels], np.uint8)
  try:
    with Image.open(io.BytesIO(encoded)) as image:
      mode = _MODES[image_format.channels]
      decoded = np.asarray(image if image.mode == mode else image.convert(mode))
  except OSError as e:
    raise ValueError(f'An image cannot be decoded: {e}.') from e
  decoded = decoded.reshape([*decoded.shape[:2], image_format.channels])
  return resizing.resize(decoded, image_format.size, image_format.method)


def decode_all(
    index: Any, cells: np.ndarray, image_format: ImageFormat
) -> np.ndarray:
  """Returns the images of cells, each decoded once.

  Args:
    index: the `Index` that has them.
    cells: their cells, of any shape.
    image_format: what becomes of them.

  Returns:
    uint8 `[..., height, width, channels]`.
  """
  images = np.empty(
      [cells.size, *image_format.size, image_format.channels], np.uint8
  )
  known: Dict[Any, int] = {}
  for place, cell in enumerate(cells.ravel().tolist()):
    before = known.setdefault(cell, place)
    if before == place:
      images[place] = decode(index.string(cell), image_format)
    else:
      images[place] = images[before]
  return images.reshape([*cells.shape, *images.shape[1:]])


def formats_of(
    images: Mapping[str, Any], columns: Sequence[row_layout.Column]
) -> Dict[int, ImageFormat]:
  """Returns what becomes of columns of images, by the numbers of columns.

  Args:
    images: `ImageFormat`s, or heights and widths, by the names of columns.
    columns: all columns.

  Raises:
    ValueError: if there is no such column, or if it has no strings.
  """
  numbers = {
      column.name: number
      for number, column in enumerate(columns)
      if column.is_string
  }
  found = {}
  for name, image_format in images.items():
    checks.check_choice('The path of an image', name, list(numbers))
    if not isinstance(image_format, ImageFormat):
      image_format = ImageFormat(tuple(image_format))
    found[numbers[name]] = image_format
  return found
