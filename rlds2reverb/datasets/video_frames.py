"""Frames of video files, by their times, through PyAV.

PyAV (`pip install rlds2reverb[video]`) is imported when the first is read.
"""

import math
import os
from typing import Any, Iterator, Optional, Sequence, Tuple

import numpy as np

_TIME = '#t='


class VideoColumn:
  """The frames of a video at given times, as a column that is read late.

  Attributes:
    dtype: uint8.
    shape: `[N, height, width, 3]`, from the head of the file.
  """

  dtype = np.dtype(np.uint8)

  def __init__(self, path: str, times: np.ndarray, fps: float):
    """Args are those of `read_frames`."""
    self._path = path
    self._times = times
    self._fps = fps
    with _open(path) as container:
      stream = _stream(container)
      self.shape = (len(times), stream.height, stream.width, 3)

  def __len__(self) -> int:
    return len(self._times)

  def __getitem__(self, rows: slice) -> np.ndarray:
    return read_frames(self._path, self._times[rows], self._fps)


def read_frames(
    path: str, times: Sequence[float], fps: Optional[float] = None
) -> np.ndarray:
  """Decodes the frames that are nearest to given times.

  Args:
    path: the path of a video file, on the local disk.
    times: seconds from the beginning of the video, `[N]`, in any order.
    fps: frames a second; by default what the file says. A frame must be within
      half a frame of its time.

  Returns:
    uint8 `[N, height, width, 3]`, RGB, just as PyAV decodes them.

  Raises:
    ImportError: if there is no PyAV.
    ValueError: if it is not a video file, or if there is no frame at a time.
  """
  times = np.asarray(times, np.float64)
  order = np.argsort(times, kind='stable')
  with _open(path) as container:
    stream = _stream(container)
    stream.thread_type = 'AUTO'
    if fps is None:
      fps = float(stream.average_rate)
    frames = np.empty((len(times), stream.height, stream.width, 3), np.uint8)
    if not len(times):
      return frames
    begin = max(times[order[0]] - 0.5 / fps, 0.0)
    container.seek(math.floor(begin / stream.time_base), stream=stream)
    nearest = _Nearest(container.decode(stream))
    for index in order:
      frame = nearest.find(times[index])
      if frame is None or abs(frame.time - times[index]) > 0.5 / fps:
        raise ValueError(
            f'{path} has no frame within half a frame of {times[index]:.4f} s,'
            f' at {fps:g} frames a second.'
            + (f' The nearest is at {frame.time:.4f} s.' if frame else '')
        )
      frames[index] = frame.to_ndarray(format='rgb24')
  return frames


def to_references(path: str, times: Sequence[float]) -> np.ndarray:
  """Returns a string for each frame, such as `/data/a.mp4#t=1.5`."""
  return np.array(
      [f'{path}{_TIME}{time:.6f}'.encode() for time in times], object
  )


def read_references(references: Sequence[bytes]) -> Iterator[Tuple[int, Any]]:
  """Yields the index and the frame of each reference that is not empty.

  Args:
    references: what `to_references` returns, of any files.

  Raises:
    ValueError: if a reference is not one, or as `read_frames` does.
  """
  by_path = {}
  for index, reference in enumerate(references):
    if reference:
      path, _, time = reference.decode().rpartition(_TIME)
      if not path:
        raise ValueError(
            f'{reference.decode()!r} is not a reference to the frame of a'
            f' video, such as /data/a.mp4{_TIME}1.5.'
        )
      by_path.setdefault(path, []).append((index, float(time)))
  for path, wanted in by_path.items():
    indices, times = zip(*wanted)
    yield from zip(indices, read_frames(path, times))


class _Nearest:
  """Finds the frames nearest to times that do not decrease."""

  def __init__(self, frames: Iterator[Any]):
    self._frames = frames
    self._before = None
    self._after = next(frames, None)

  def find(self, time: float) -> Optional[Any]:
    """Returns the frame nearest to a time, or None if there is no frame."""
    while self._after is not None and self._after.time < time:
      self._before, self._after = self._after, next(self._frames, None)
    near = [one for one in (self._before, self._after) if one is not None]
    return min(near, key=lambda frame: abs(frame.time - time), default=None)


def _open(path: str):
  av = _import_av()
  if not os.path.isfile(path):
    raise ValueError(f'There is no video file {path}.')
  try:
    # FFmpeg would open URLs, too, which a data set of others may name.
    return av.open(path, options={'protocol_whitelist': 'file'})
  except av.FFmpegError as e:
    raise ValueError(f'{path} is not a whole video file: {e}') from e


def _stream(container) -> Any:
  if not container.streams.video:
    raise ValueError(f'{container.name} is a file without video.')
  return container.streams.video[0]


def _import_av() -> Any:
  try:
    # pylint: disable-next=g-import-not-at-top
    import av
  except ImportError as e:
    raise ImportError(
        'Video files are read through PyAV, which is not installed. Install it'
        ' with `pip install rlds2reverb[video]`.'
    ) from e
  return av
