"""Depth maps as LeRobot 0.6 stores them: 12-bit videos, and TIFF images.

A video has codes from 0 to 4095. They stand for depths from `depth_min` to
`depth_max`, evenly spaced, or evenly in the logarithm of the depth plus a
`shift`. A code becomes the number nearest to LeRobot's `dequantize_depth`.
"""

import io
import math
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

MILLIMETRES = 'mm'
METRES = 'm'
UNITS = (MILLIMETRES, METRES)
# The one pixel format in which LeRobot writes codes.
PIXEL_FORMAT = 'gray12le'

_NUM_CODES = 4096


class Codes(NamedTuple):
  """The depths that the codes of a video stand for, in metres."""

  depth_min: float = 0.01
  depth_max: float = 10.0
  shift: float = 3.5
  use_log: bool = True

  def depths(self, unit: str) -> np.ndarray:
    """Returns the depth of each code: uint16 in `mm`, or float32 in `m`."""
    begin, end = self.depth_min, self.depth_max
    if self.use_log:
      begin, end = math.log(begin + self.shift), math.log(end + self.shift)
    depths = np.arange(_NUM_CODES, dtype=np.float32)
    depths *= np.float32((end - begin) / (_NUM_CODES - 1))
    depths += np.float32(begin)
    if self.use_log:
      depths = np.exp(depths) - np.float32(self.shift)
    depths = depths.clip(np.float32(self.depth_min), np.float32(self.depth_max))
    if unit == METRES:
      return depths
    return np.rint(depths * np.float32(1000)).clip(0, 65535).astype(np.uint16)


def is_depth(feature: dict[str, Any]) -> bool:
  """Returns whether a feature of LeRobot's is a depth map."""
  info = feature.get('info') or {}
  return bool(
      info.get('is_depth_map')
      or info.get('video.is_depth_map')
      or (feature.get('video_info') or {}).get('video.is_depth_map')
  )


def codes_of(feature: dict[str, Any]) -> Codes:
  """Returns the codes of a feature's videos, by default those of LeRobot.

  Raises:
    ValueError: if the least depth has no logarithm.
  """
  info = feature.get('info') or {}
  codes = Codes()._replace(
      **{
          name: info[f'video.{name}']
          for name in Codes._fields
          if info.get(f'video.{name}') is not None
      }
  )
  if codes.use_log and codes.depth_min + codes.shift <= 0:
    raise ValueError(
        'The sum of video.depth_min and video.shift must be positive, as its'
        f' logarithm is taken, but they are {codes.depth_min} and'
        f' {codes.shift}.'
    )
  return codes


def is_tiff(encoded: bytes) -> bool:
  """Returns whether an image is a TIFF file, which TensorFlow cannot decode."""
  return encoded[:4] in (b'II*\0', b'MM\0*')


def decode_tiff(encoded: bytes, stored_unit: str | None, unit: str) -> Any:
  """Decodes an image of one channel, of uint16 or float32.

  Args:
    encoded: the bytes of a TIFF file.
    stored_unit: the unit of its numbers, or None if that is not known.
    unit: the unit to return them in.

  Returns:
    `[height, width, 1]`; as it was stored if the units are the same or one is
    not known, and float32 otherwise.

  Raises:
    ValueError: if the file is of another kind, or not whole.
  """
  try:
    with Image.open(io.BytesIO(encoded), formats=['TIFF']) as image:
      depths = np.asarray(image)
    depths = depths.astype(depths.dtype.newbyteorder('='))
    if depths.dtype not in (np.uint16, np.float32) or depths.ndim != 2:
      raise ValueError(f'it is {depths.dtype} {list(depths.shape)}.')
  except (OSError, SyntaxError, ValueError) as e:
    raise ValueError(
        'A depth map must be a TIFF of uint16 or float32, as LeRobot writes'
        f' it: {e}'
    ) from e
  depths = depths[..., np.newaxis]
  if stored_unit in (None, unit):
    return depths
  factor = np.float32(1000)
  depths = depths.astype(np.float32)
  return depths * factor if unit == MILLIMETRES else depths / factor
