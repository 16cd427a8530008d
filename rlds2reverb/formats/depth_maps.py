"""Depth maps as LeRobot 0.6 stores them: 12-bit videos, and TIFF images.

A video has codes from 0 to 4095. They stand for depths from `depth_min` to
`depth_max`, evenly spaced, or evenly in the logarithm of the depth plus a
`shift`. A code becomes the number nearest to LeRobot's `dequantize_depth`.
"""

import math
import struct
from typing import Any, Dict, NamedTuple, Optional

import numpy as np

MILLIMETRES = 'mm'
METRES = 'm'
UNITS = (MILLIMETRES, METRES)
# The one pixel format in which LeRobot writes codes.
PIXEL_FORMAT = 'gray12le'

_NUM_CODES = 4096
# TIFF's tags, and the types of their values by size.
_WIDTH, _HEIGHT, _BITS, _COMPRESSION = 256, 257, 258, 259
_OFFSETS, _BYTE_COUNTS, _SAMPLE_FORMAT = 273, 279, 339
_VALUES = {3: 'H', 4: 'I'}
_DTYPES = {(16, 1): np.uint16, (32, 3): np.float32}


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


def is_depth(feature: Dict[str, Any]) -> bool:
  """Returns whether a feature of LeRobot's is a depth map."""
  info = feature.get('info') or {}
  return bool(
      info.get('is_depth_map')
      or info.get('video.is_depth_map')
      or (feature.get('video_info') or {}).get('video.is_depth_map')
  )


def codes_of(feature: Dict[str, Any]) -> Codes:
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


def decode_tiff(encoded: bytes, stored_unit: Optional[str], unit: str) -> Any:
  """Decodes an image of one channel, of uint16 or float32, not compressed.

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
    depths = _read_tiff(encoded)
  except (struct.error, KeyError, ValueError) as e:
    raise ValueError(
        f'A depth map must be a TIFF of uint16 or float32 without compression,'
        f' as LeRobot writes it: {e}'
    ) from e
  if stored_unit in (None, unit):
    return depths
  factor = np.float32(1000)
  depths = depths.astype(np.float32)
  return depths * factor if unit == MILLIMETRES else depths / factor


def _read_tiff(encoded: bytes) -> np.ndarray:
  order = '<' if encoded[:2] == b'II' else '>'

  def unpack(form, offset):
    return struct.unpack_from(order + form, encoded, offset)

  (begin,) = unpack('I', 4)
  (count,) = unpack('H', begin)
  tags = {}
  for entry in range(begin + 2, begin + 2 + 12 * count, 12):
    tag, kind, length = unpack('HHI', entry)
    if kind in _VALUES:
      form = f'{length}{_VALUES[kind]}'
      is_here = struct.calcsize(form) <= 4
      tags[tag] = unpack(
          form, entry + 8 if is_here else unpack('I', entry + 8)[0]
      )
  if tags.get(_COMPRESSION, (1,)) != (1,):
    raise ValueError(f'its compression is {tags[_COMPRESSION]}.')
  kind = (*tags[_BITS], *tags.get(_SAMPLE_FORMAT, (1,)))
  if kind not in _DTYPES:
    raise ValueError(f'its bits and sample format are {kind}.')
  data = b''.join(
      encoded[offset : offset + size]
      for offset, size in zip(tags[_OFFSETS], tags[_BYTE_COUNTS])
  )
  dtype = np.dtype(_DTYPES[kind])
  rows = np.frombuffer(data, dtype.newbyteorder(order)).astype(dtype)
  return rows.reshape(*tags[_HEIGHT], *tags[_WIDTH], 1)
