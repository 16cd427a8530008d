"""Reads frames of video files by time, with PyAV.

Requires the extra `video`: `pip install '.[video]'` in a clone.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import math
import os
from typing import Any, TypeAlias

from etils import epy
import numpy as np

from rlds2reverb.datasets import files
from rlds2reverb.datasets import format_registry
from rlds2reverb.episodes import limits
from rlds2reverb.formats import columns
from rlds2reverb.formats import depth_maps

with epy.lazy_imports(error_callback=format_registry.explain_missing_library):
  import av

# The methods to find a frame; see `lerobot.load_lerobot`.
METHODS = EXACT_TIME, NEAREST_TIME, INDEX = (
    'exact_time',
    'nearest_time',
    'index',
)
_TIME = '#t='
_DEPTH = '&depth='
_METHODS_HINT = (
    ' If the timestamps differ from the video, as in data of GR00T, pass'
    " frames_by='index' or 'nearest_time'."
)
_Depths: TypeAlias = np.ndarray | None


def column(
    path: str,
    times: np.ndarray,
    fps: float,
    depths: _Depths = None,
    frames_by: str = EXACT_TIME,
) -> columns.LazyColumn:
  """Returns frames as a column, which are decoded lazily.

  Args:
    path: see `read_frames`.
    times: see `read_frames`.
    fps: see `read_frames`.
    depths: see `read_frames`.
    frames_by: see `read_frames`.
  """
  with _open(path, depths) as (_, _, buffer):
    return columns.LazyColumn(
        buffer.dtype,
        (len(times), *buffer.shape[1:]),
        lambda begin, end: read_frames(
            path, times[begin:end], fps, depths, frames_by
        ),
    )


def read_frames(
    path: str,
    times: Sequence[float],
    fps: float | None = None,
    depths: _Depths = None,
    frames_by: str = EXACT_TIME,
) -> np.ndarray:
  """Decodes the frames that are nearest to the given times.

  Args:
    path: the path of a local video file.
    times: seconds since the start of the video, `[N]`, in any order.
    fps: the frame rate; by default the frame rate of the file. A frame must be
      within half a frame of its time.
    depths: the depth of each code, if the frames are depth maps; see
      `depth_maps.Codes.depths`.
    frames_by: one of `METHODS`. With `"index"`, frame `n` of the video has the
      time `n / fps`, regardless of its timestamp.

  Returns:
    uint8 RGB `[N, height, width, 3]`, equal to PyAV. Depth maps are
    `[N, height, width, 1]`, uint16 millimeters or float32 meters.

  Raises:
    ImportError: if PyAV is not installed.
    ValueError: if the file is not a video, if its pixel format does not match,
      if the frames exceed the size limit, or if there is no frame at a time.
  """
  times = np.asarray(times, np.float64)
  order = np.argsort(times, kind='stable')
  with _open(path, depths, len(times)) as (container, stream, frames):
    if not len(times):
      return frames
    fps = fps or float(stream.average_rate)
    decoded = (
        (frame.time, frame) for frame in _decode(path, container, stream)
    )
    tolerance = math.inf if frames_by == NEAREST_TIME else 0.5 / fps
    if frames_by == INDEX:
      decoded = ((n / fps, frame) for n, (_, frame) in enumerate(decoded))
    elif frames_by == EXACT_TIME:
      begin = max(times[order[0]] - 0.5 / fps, 0.0)
      container.seek(math.floor(begin / stream.time_base), stream=stream)
    previous, following = None, next(decoded, None)
    for index in order:
      distance = lambda timed, time=times[index]: abs(timed[0] - time)
      while following is not None and following[0] < times[index]:
        previous, following = following, next(decoded, None)
      timed = min(
          filter(None, (previous, following)), key=distance, default=None
      )
      if timed is None or distance(timed) > tolerance:
        raise ValueError(
            f'{path} has no frame within half a frame of {times[index]:.4f} s,'
            f' at {fps:g} frames per second.'
            + (f' The nearest is at {timed[0]:.4f} s.' if timed else '')
            + _METHODS_HINT * (frames_by == EXACT_TIME)
        )
      frame = timed[1]
      if depths is None:
        frames[index] = frame.to_ndarray(format='rgb24')
      else:
        codes = frame.to_ndarray(format=depth_maps.PIXEL_FORMAT)
        frames[index] = depths[codes][..., np.newaxis]
  return frames


def _decode(path: str, container: Any, stream: Any) -> Iterator[Any]:
  """Yields the frames of a video."""
  try:
    yield from container.decode(stream)
  except av.FFmpegError as e:
    raise ValueError(f'{path} is damaged: {e}') from e


def to_references(
    path: str,
    times: Sequence[float],
    codes: depth_maps.Codes | None = None,
) -> np.ndarray:
  """Returns a reference to each frame, such as `/data/a.mp4#t=1.5`.

  The reference of a depth map includes the quantization:
  `/data/a.mp4#t=1.5&depth=0.01,10.0,3.5,1.0`.
  """
  end = '' if codes is None else _DEPTH + ','.join(map(repr, map(float, codes)))
  return np.array(
      [f'{path}{_TIME}{time:.6f}{end}'.encode() for time in times], object
  )


def read_references(
    references: Sequence[bytes], depth_unit: str | None = None
) -> Iterator[tuple[int, Any]]:
  """Yields the index and the frame of each reference that is not empty.

  Args:
    references: references to frames of any files; see `to_references`.
    depth_unit: the unit of depth maps; None if the frames are images.

  Raises:
    ValueError: if a reference is invalid, or if `depth_unit` does not match the
      kind of the frame; see also `read_frames`.
  """
  by_video = {}
  for index, reference in enumerate(references):
    if not reference:
      continue
    text = reference.decode()
    path, _, time = text.rpartition(_TIME)
    time, _, codes = time.partition(_DEPTH)
    if not path:
      raise ValueError(
          f'{text!r} is not a reference to a video frame, such as'
          f' /data/a.mp4{_TIME}1.5.'
      )
    if bool(codes) != (depth_unit is not None):
      kind = 'depth' if codes else 'images'
      raise ValueError(
          f'{text!r} is a frame of {kind}, but depth_unit is {depth_unit!r}.'
          ' It must be mm or m for depth, and None for images.'
      )
    by_video.setdefault((path, codes), []).append((index, float(time)))
  for (path, codes), wanted in by_video.items():
    indices, times = zip(*wanted)
    depths = None
    if codes and depth_unit is not None:
      low, high, shift, use_log = map(float, codes.split(','))
      depth_codes = depth_maps.Codes(low, high, shift, bool(use_log))
      depths = depth_codes.depths(depth_unit)
    yield from zip(indices, read_frames(path, times, depths=depths))


@contextlib.contextmanager
def _open(path: str, depths: _Depths, count: int = 0) -> Iterator[Any]:
  """Yields an open video file, its stream, and an array for `count` frames."""
  if not os.path.isfile(path):
    raise ValueError(f'There is no video file {path}.')
  try:
    # FFmpeg would also open URLs from an untrusted data set.
    file = av.open(path, options={'protocol_whitelist': 'file'})
  except av.FFmpegError as e:
    files.check_not_pointer(path)
    raise ValueError(f'{path} is not a complete video file: {e}') from e
  with file as container:
    if not container.streams.video:
      raise ValueError(f'{path} has no video stream.')
    stream = container.streams.video[0]
    stream.thread_type = 'AUTO'
    pixels = stream.format
    is_gray = len(pixels.components) < 3 and pixels.components[0].bits > 8
    if is_gray if depths is None else pixels.name != depth_maps.PIXEL_FORMAT:
      raise ValueError(
          f'{path} has {len(pixels.components)} channels of'
          f' {pixels.components[0].bits} bits ({pixels.name}). Depth maps must'
          f' have the format {depth_maps.PIXEL_FORMAT}, and {{"info":'
          ' {"is_depth_map": true}} in meta/info.json; images must not.'
      )
    channels, dtype = (3, np.uint8) if depths is None else (1, depths.dtype)
    size = count, stream.height, stream.width, channels
    frame_bytes = math.prod(size[1:]) * np.dtype(dtype).itemsize
    limits.check_size(
        f'A frame of {stream.width} by {stream.height} pixels of {path}',
        frame_bytes,
    )
    limits.check_expanded(
        f'{count} frames of {path}',
        count * frame_bytes,
        os.path.getsize(path),
        limits.IMAGE_EXPANSION,
    )
    yield container, stream, np.empty(size, dtype)
