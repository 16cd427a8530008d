"""Decodes and resizes images, without TensorFlow."""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import io
from typing import Any

import numpy as np
from PIL import Image

from rlds2reverb.arrays import resizing
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import limits
from rlds2reverb.store import rows as store_rows

_MODES = {1: 'L', 3: 'RGB', 4: 'RGBA'}
_DTYPES = ('uint8', 'uint16')


@dataclasses.dataclass(frozen=True)
class ImageFormat:
  """The size, dtype and resizing of decoded images.

  JPEGs are decoded like `tf.io.decode_jpeg` with the argument
  `dct_method='INTEGER_ACCURATE'`, bit for bit, and PNGs like
  `tf.io.decode_png`. (By default TensorFlow decodes JPEGs with a faster and
  less exact transform.) An empty string, which pads a window, becomes a black
  image.

  Attributes:
    size: the height and width. Images of another size are resized.
    channels: the number of channels: 1 or 3, or for a PNG 4.
    method: the interpolation: `'lanczos3'`, as in Octo and OpenVLA, or
      `'bilinear'`; both with antialiasing, like `tf.image.resize`, and rounded.
      A number halfway between two integers may differ by one from TensorFlow's.
    dtype: `'uint8'`; or `'uint16'`, for PNGs of depth, of one channel.
  """

  size: tuple[int, int]
  channels: int = 3
  method: str = 'lanczos3'
  dtype: str = 'uint8'

  def __post_init__(self):
    for length in self.size:
      checks.check_positive('The height and the width of images', length)
    checks.check_choice('channels', self.channels, _MODES)
    checks.check_choice('method', self.method, resizing.METHODS)
    checks.check_choice('dtype', self.dtype, _DTYPES)
    if self.dtype == 'uint16' and self.channels != 1:
      raise ValueError('Images of uint16 must have one channel: channels=1.')

  @property
  def shape(self) -> tuple[int, int, int]:
    """The shape of an image."""
    return *self.size, self.channels


def decode(encoded: bytes, image_format: ImageFormat) -> np.ndarray:
  """Returns an image, `[height, width, channels]`.

  Raises:
    ValueError: if it is not an image.
  """
  if not encoded:
    return np.zeros(image_format.shape, image_format.dtype)
  try:
    with Image.open(io.BytesIO(encoded)) as image:
      width, height = image.size
      limits.check_size(
          f'An image of {width} by {height} pixels', width * height * 4
      )
      decoded = _pixels(image, image_format)
  except (OSError, Image.DecompressionBombError) as e:
    raise ValueError(f'An image cannot be decoded: {e}.') from e
  decoded = decoded.reshape([*decoded.shape[:2], image_format.channels])
  return resizing.resize(decoded, image_format.size, image_format.method)


def _pixels(image: Image.Image, image_format: ImageFormat) -> np.ndarray:
  """Returns the pixels of an image, `[height, width]` or with channels."""
  is_deep = image.mode.startswith('I')
  if image_format.dtype == 'uint16':
    if not is_deep:
      raise ValueError(
          f'An image has pixels of the mode {image.mode}, and not of 16 bits.'
          ' Omit the dtype of its ImageFormat.'
      )
    return np.asarray(image).astype(np.uint16)
  if is_deep:
    # TensorFlow takes the high byte.
    deep = np.asarray(image).astype(np.uint16) >> 8
    return np.repeat(
        deep[..., np.newaxis].astype(np.uint8), image_format.channels, -1
    )
  mode = _MODES[image_format.channels]
  image.draft(mode, None)  # A JPEG stores its brightness directly.
  return np.asarray(image if image.mode == mode else image.convert(mode))


def decode_all(
    index: Any, cells: np.ndarray, image_format: ImageFormat, column: int
) -> np.ndarray:
  """Returns the images of cells; equal cells are decoded only once.

  Args:
    index: the `Index` that has them.
    cells: their cells, of any shape.
    image_format: the format of the result.
    column: the number of their column.

  Returns:
    `[..., height, width, channels]`.
  """
  images = np.empty([cells.size, *image_format.shape], image_format.dtype)
  first: dict[Any, int] = {}
  for number, cell in enumerate(cells.ravel().tolist()):
    same = first.setdefault(cell, number)
    if same != number:
      images[number] = images[same]
      continue
    try:
      images[number] = decode(index.string(cell), image_format)
    except ValueError as e:
      name = index.layout.columns[column].name
      raise ValueError(f'{name}: {e} It is {index.place_of(cell)}.') from e
  return images.reshape([*cells.shape, *image_format.shape])


def formats_by_column(
    images: Mapping[str, Any], columns: Sequence[store_rows.Column]
) -> dict[int, ImageFormat]:
  """Returns the formats of columns of images, by the numbers of the columns.

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
  for name in images:
    checks.check_choice('The path of an encoded image', name, list(numbers))
  return {
      numbers[name]: size
      if isinstance(size, ImageFormat)
      else ImageFormat(tuple(size))
      for name, size in images.items()
  }
