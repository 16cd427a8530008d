"""Frames in memory, or in a file that is mapped into memory.

Rows are written one after the other to files, and then mapped. A file is on
disk or purely in memory (`memfd_create`), so frames on disk and in memory are
read in the same way. `prepared.py` has the files on disk.
"""

import dataclasses
import hashlib
from typing import (
    Any,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.store import files
from rlds2reverb.store import layout as layout_lib
from rlds2reverb.store import references
from rlds2reverb.store import writer as writer_lib


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
    spec: the spec of a frame, a `Trajectory`.
    format: how a frame is stored.
    windows: what items are made of.
    rows: the rows of each group of columns, uint8 `[N, row_bytes]`.
    strings: all strings, one after the other, uint8 `[M]`.
    runs: the runs of items.
    priorities: the priority of every item, float64 `[W]`; None if all are 1.
    fingerprint: a value that differs for any other content.
  """

  spec: Any
  format: layout_lib.RowLayout
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
    """Returns the leaves of runs of frames; see `RowLayout.read`."""
    return [
        references.own_strings(self.strings, leaf)
        if leaf.dtype == references.CELL
        else leaf
        for leaf in self.format.read(self.rows, starts, length)
    ]


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
    self.format = layout_of(spec)
    self._spec = spec
    self._writer = writer_lib.RowWriter(self.format, folder)

  def append(self, frames: Any) -> None:
    """Appends frames, a `Trajectory` of arrays `[B, ...]`."""
    self._writer.append(tf.nest.flatten(frames))

  def finish(
      self, windows: ItemWindows, runs: Runs, priorities: Optional[np.ndarray]
  ) -> Tuple[FrameStore, List[np.ndarray]]:
    """Returns the store of all frames, and the checksums of its files.

    Args:
      windows: what items are made of.
      runs: the runs of items.
      priorities: the priorities of all items, or None.
    """
    new_files = self._writer.files
    checksums = [file.finish() for file in new_files]
    store = map_store(
        [file.path for file in new_files],
        self._spec,
        windows,
        (self._writer.num_rows, new_files[-1].size),
        runs,
        priorities,
        checksums,
    )
    self.close()
    return store, checksums

  def close(self) -> None:
    """Closes the files. What was mapped stays."""
    self._writer.close()


def layout_of(spec: Any) -> layout_lib.RowLayout:
  """Returns the layout of frames.

  Args:
    spec: the spec of one, a `Trajectory`.

  Raises:
    ValueError: if the shape of a field is not fixed.
  """
  return layout_lib.RowLayout.of_spec(
      spec,
      'Pad it, or resize images (decode_images). Encoded images may stay as'
      ' they are.',
  )


def map_store(
    paths: Sequence[str],
    spec: Any,
    windows: ItemWindows,
    sizes: Tuple[int, int],
    runs: Runs,
    priorities: Optional[np.ndarray],
    checksums: Sequence[np.ndarray],
) -> FrameStore:
  """Maps files into memory, whose bytes are read as they are used.

  Args:
    paths: the files, in the order of `RowLayout.file_names`.
    spec: the spec of a frame.
    windows: what items are made of.
    sizes: the number of rows, and that of the bytes of strings.
    runs: the runs of items.
    priorities: the priorities of all items, or None.
    checksums: the checksums of the files.
  """
  format_ = layout_of(spec)
  num_rows, num_string_bytes = sizes
  shapes = [[num_rows, size] for size in format_.row_bytes]
  *rows, strings = [
      files.map_file(path, shape)
      for path, shape in zip(paths, [*shapes, [num_string_bytes]])
  ]
  columns = [(column.dtype, column.shape) for column in format_.columns]
  digest = hashlib.sha256(repr((columns, windows, sizes)).encode())
  for array in (*runs, priorities, *checksums):
    digest.update(b'' if array is None else np.ascontiguousarray(array))
  return FrameStore(
      spec,
      format_,
      windows,
      rows,
      strings,
      runs,
      priorities,
      digest.hexdigest()[:16],
  )
