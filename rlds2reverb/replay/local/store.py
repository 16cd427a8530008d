"""Frames in memory, or in a file that is mapped into memory.

Rows are written one after the other to files, and then mapped. A file is on
disk or purely in memory (`memfd_create`), so frames on disk and in memory are
read in the same way. `prepared.py` has the files on disk.
"""

import dataclasses
import hashlib
import math
import mmap
import os
from typing import (
    Any,
    BinaryIO,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)
import zlib

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay.local import rows as rows_lib

# A file has a checksum for each block of this many bytes.
BLOCK_BYTES = 1 << 20
# Python 3.13 has this flag of mmap. Without it, Linux would reserve as much
# memory as the file is large, though the file is only read.
_MAP_NORESERVE = getattr(mmap, 'MAP_NORESERVE', 0x4000)


class Runs(NamedTuple):
  """Runs of items that start at equal distances, arrays `[R]`.

  The items of an episode are a run. Where items cross episodes, all of them are
  one.

  Attributes:
    first_row: the row at which the first item of each run starts.
    num_rows: the number of rows of a run, without padding.
    num_items: the number of items of a run.
    undiscounted_return: the sum of the rewards of all transitions of a run,
      float64; NaN where a frame has not one reward.
  """

  first_row: np.ndarray
  num_rows: np.ndarray
  num_items: np.ndarray
  undiscounted_return: np.ndarray


class ItemWindows(NamedTuple):
  """How items are cut out of frames.

  Attributes:
    sequence_length: the number of frames of an item; None for whole runs.
    stride_length: the number of frames from the start of one item to the start
      of the next.
    crosses_episodes: whether items go on into the next episode.
    overlaps: whether the last item of a run ends with it, wherever it starts.
  """

  sequence_length: Optional[int]
  stride_length: int
  crosses_episodes: bool
  overlaps: bool = False

  @classmethod
  def of(cls, windows: Optional[windows_lib.Windows]) -> 'ItemWindows':
    """Returns how the items of `TableItems` are cut."""
    if windows is None:
      return cls(None, 1, False)
    return cls(
        windows.length,
        windows.stride,
        windows.crosses_episodes,
        windows.end == windows_lib.EndOfEpisode.OVERLAP,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class FrameStore:
  """Frames, each stored once, and which runs of them are items.

  Attributes:
    format: how a frame is stored.
    windows: what items are made of.
    rows: the rows of each group of columns, uint8 `[N, row_bytes]`.
    strings: all strings, one after the other, uint8 `[M]`.
    runs: the runs of items.
    priorities: the priority of every item, float64 `[W]`; None if all are 1.
    fingerprint: a value that differs for any other content.
  """

  format: rows_lib.RowFormat
  windows: ItemWindows
  rows: List[np.ndarray]
  strings: np.ndarray
  runs: Runs
  priorities: Optional[np.ndarray]
  fingerprint: str

  @property
  def num_frames(self) -> int:
    """The number of frames, without padding."""
    return int(self.runs.num_rows.sum())

  @property
  def num_items(self) -> int:
    """The number of items."""
    return int(self.runs.num_items.sum())

  def top_episodes(self, count: int) -> 'FrameStore':
    """Returns the episodes with the highest undiscounted returns.

    The frames are not copied. Of episodes with equal returns the first ones are
    kept; those without an item are left out.

    Args:
      count: how many episodes.

    Raises:
      ValueError: if `count` is not positive, or if episodes have no returns.
    """
    checks.check_positive('count', count)
    returns, counts = self.runs.undiscounted_return, self.runs.num_items
    with_items = np.flatnonzero(counts)
    if self.windows.crosses_episodes or np.isnan(returns[with_items]).any():
      raise ValueError(
          'top_episodes chooses episodes by their returns, but these have none:'
          ' their items cross episodes, or their reward is not one number, or'
          ' is NaN.'
      )
    order = with_items[np.argsort(-returns[with_items], kind='stable')]
    best = np.isin(np.arange(len(counts)), order[:count])
    priorities = self.priorities
    if priorities is not None:
      priorities = priorities[np.repeat(best, counts)]
    return dataclasses.replace(
        self,
        runs=Runs(*[values[best] for values in self.runs]),
        priorities=priorities,
        fingerprint=f'{self.fingerprint} top {count}',
    )

  def read(self, starts: np.ndarray, length: int) -> List[np.ndarray]:
    """Returns the leaves of runs of frames; see `RowFormat.read`."""
    return self.format.read(self.rows, self.strings, starts, length)


class ChecksummedFile:
  """A new file, and the checksums of its blocks.

  Attributes:
    path: where it can be read.
    size: the number of bytes so far.
  """

  def __init__(self, name: str, folder: Optional[str]):
    """Creates the file in a folder, or in memory if `folder` is None."""
    self._file: BinaryIO
    if folder is None:
      self._file = open(os.memfd_create(name), 'w+b')
      self.path = f'/proc/self/fd/{self._file.fileno()}'
    else:
      self.path = os.path.join(folder, name)
      self._file = open(self.path, 'xb')
    self.size = 0
    self._checksums = [0]

  def write(self, data: Any) -> None:
    """Appends bytes, or an array of them."""
    data = memoryview(data).cast('B') if len(data) else b''
    self._file.write(data)
    begin = 0
    while begin < len(data):
      room = BLOCK_BYTES - self.size % BLOCK_BYTES
      part = data[begin : begin + room]
      self._checksums[-1] = zlib.crc32(part, self._checksums[-1])
      self.size += len(part)
      begin += len(part)
      if len(part) == room:
        self._checksums.append(0)

  def finish(self) -> np.ndarray:
    """Writes the rest, and returns the checksums, uint32 `[B]`."""
    self._file.flush()
    count = -(-self.size // BLOCK_BYTES)
    return np.array(self._checksums[:count], np.uint32)

  def close(self) -> None:
    """Closes the file. What was mapped stays."""
    self._file.close()


class StoreWriter:
  """Writes the rows and the strings of a store: to a folder, or to memory.

  Attributes:
    format: how a frame is stored.
  """

  def __init__(self, spec: Any, folder: Optional[str] = None):
    """Creates the writer.

    Args:
      spec: the spec of one frame, a `Trajectory`.
      folder: an empty folder for the files, or None for memory.
    """
    self.format = rows_lib.RowFormat(spec)
    self._files = [
        ChecksummedFile(name, folder) for name in file_names(self.format)
    ]
    self._num_rows = 0

  def append(self, frames: Any) -> None:
    """Appends frames, a `Trajectory` of arrays `[B, ...]`."""
    encoded = self.format.encode(frames, self._append_strings)
    for file, rows in zip(self._files, encoded):
      file.write(rows)
    self._num_rows += len(encoded[0])

  def finish(
      self, windows: ItemWindows, runs: Runs, priorities: Optional[np.ndarray]
  ) -> Tuple[FrameStore, List[np.ndarray]]:
    """Returns the store of all frames, and the checksums of its files.

    Args:
      windows: what items are made of.
      runs: the runs of items.
      priorities: the priorities of all items, or None.
    """
    checksums = [file.finish() for file in self._files]
    store = map_store(
        [file.path for file in self._files],
        self.format,
        windows,
        (self._num_rows, self._files[-1].size),
        runs,
        priorities,
        checksums,
    )
    self.close()
    return store, checksums

  def close(self) -> None:
    """Closes the files. What was mapped stays."""
    for file in self._files:
      file.close()

  def _append_strings(self, strings: Sequence[bytes]) -> np.ndarray:
    file = self._files[-1]
    lengths = np.array(list(map(len, strings)), np.int64)
    begins = file.size + np.cumsum(lengths) - lengths
    file.write(b''.join(strings))
    return begins


def file_names(format_: rows_lib.RowFormat) -> List[str]:
  """Returns the names of the files of rows, and last of that of strings."""
  return [
      *[f'rows-{group}.bin' for group in range(len(format_.row_bytes))],
      'strings.bin',
  ]


def map_store(
    paths: Sequence[str],
    format_: rows_lib.RowFormat,
    windows: ItemWindows,
    sizes: Tuple[int, int],
    runs: Runs,
    priorities: Optional[np.ndarray],
    checksums: Sequence[np.ndarray],
) -> FrameStore:
  """Maps files into memory, whose bytes are read as they are used.

  Args:
    paths: the files, in the order of `file_names`.
    format_: how a frame is stored.
    windows: what items are made of.
    sizes: the number of rows, and that of the bytes of strings.
    runs: the runs of items.
    priorities: the priorities of all items, or None.
    checksums: the checksums of the files.
  """
  num_rows, num_string_bytes = sizes
  shapes = [[num_rows, size] for size in format_.row_bytes]
  *rows, strings = [
      map_file(path, shape)
      for path, shape in zip(paths, [*shapes, [num_string_bytes]])
  ]
  columns = [
      (leaf.dtype.name, leaf.shape.as_list())
      for leaf in tf.nest.flatten(format_.spec)
  ]
  digest = hashlib.sha256(repr((columns, windows, sizes)).encode())
  for array in (*runs, priorities, *checksums):
    digest.update(b'' if array is None else np.ascontiguousarray(array))
  return FrameStore(
      format_, windows, rows, strings, runs, priorities, digest.hexdigest()[:16]
  )


def map_file(path: str, shape: Sequence[int]) -> np.ndarray:
  """Returns a file as an array, uint8, whose bytes are read as they are used.

  Args:
    path: the file.
    shape: the shape of the array, of as many bytes as the file has.
  """
  size = math.prod(shape)
  if not size:
    return np.zeros(shape, np.uint8)
  with open(path, 'rb') as f:
    mapped = mmap.mmap(
        f.fileno(),
        size,
        mmap.MAP_PRIVATE | _MAP_NORESERVE,
        mmap.PROT_READ | mmap.PROT_WRITE,
    )
  return np.frombuffer(mapped, np.uint8).reshape(shape)
