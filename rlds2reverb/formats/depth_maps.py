"""Depth maps of LeRobot 0.6: 12-bit videos, and TIFF images.

A video quantizes depths from `depth_min` to `depth_max` to codes from 0 to
4095, either linearly or in the logarithm of the depth plus a `shift`. Decoding
matches LeRobot's `dequantize_depth`.
"""

import io
import math
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

MILLIMETERS = 'mm'
METERS = 'm'
UNITS = (MILLIMETERS, METERS)
# The only pixel format of depth videos in LeRobot.
PIXEL_FORMAT = 'gray12le'

_NUM_CODES = 4096


class Codes(NamedTuple):
  """The quantization of depths in a video, in meters."""

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
    if unit == METERS:
      return depths
    return np.rint(depths * np.float32(1000)).clip(0, 65535).astype(np.uint16)


def is_depth(feature: dict[str, Any]) -> bool:
  """Returns whether a LeRobot feature is a depth map."""
  info = feature.get('info') or {}
  return bool(
      info.get('is_depth_map')
      or info.get('video.is_depth_map')
      or (feature.get('video_info') or {}).get('video.is_depth_map')
  )


def codes_of(feature: dict[str, Any]) -> Codes:
  """Returns the quantization of a feature's videos, with LeRobot's defaults.

  Raises:
    ValueError: if the minimum depth has no logarithm.
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
        'video.depth_min + video.shift must be positive for a logarithmic'
        f' scale, but is {codes.depth_min} + {codes.shift}.'
    )
  return codes


def is_tiff(encoded: bytes) -> bool:
  """Returns whether an image is a TIFF file, which TensorFlow cannot decode."""
  return encoded[:4] in (b'II*\0', b'MM\0*')


def decode_tiff(encoded: bytes, stored_unit: str | None, unit: str) -> Any:
  """Decodes an image with one channel of uint16 or float32.

  Args:
    encoded: the bytes of a TIFF file.
    stored_unit: the unit of the file, or None if it is unknown.
    unit: the unit of the result.

  Returns:
    An array `[height, width, 1]`: unchanged if the units are equal or the
    stored unit is unknown, float32 otherwise.

  Raises:
    ValueError: if the file is not such a TIFF file or is damaged.
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
  return depths * factor if unit == MILLIMETERS else depths / factor
