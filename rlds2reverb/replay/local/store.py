"""Frames in memory, or in a file that is mapped into memory.

Rows are written one after the other to files, and then mapped. The files are on
disk, or are nothing but memory (`memfd_create`), so that frames on disk and in
memory are read by the very same operations.
"""

import contextlib
import json
import math
import mmap
import os
from typing import Any, BinaryIO, Iterator, List, NamedTuple, Optional, Sequence

import numpy as np
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import trajectory

from rlds2reverb.replay.local import rows as rows_lib

# The names of the files of a prepared folder.
MARKER = 'prepared_frames.json'
_SPEC = 'spec.pbtxt'
_INDEX = 'index.npz'
_STRINGS = 'strings.bin'
# Changes when the files do.
_VERSION = 1
# Python 3.13 knows it. Memory that is only read needs none set aside for
# writing, of which there may be less than a file is large.
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


class Form(NamedTuple):
  """What items are made of.

  Attributes:
    sequence_length: the number of frames of an item; None for whole runs.
    stride_length: the number of frames from the start of one item to the start
      of the next.
    crosses_episodes: whether items go on into the next episode.
  """

  sequence_length: Optional[int]
  stride_length: int
  crosses_episodes: bool


class FrameStore(NamedTuple):
  """Frames, each stored once, and which runs of them are items.

  Attributes:
    format: how a frame is stored.
    form: what items are made of.
    rows: the rows of each group of columns, uint8 `[N, row_bytes]`.
    strings: all strings, one after the other, uint8 `[M]`.
    runs: the runs of items.
    priorities: the priority of every item, float64 `[W]`; None if all are 1.
  """

  format: rows_lib.RowFormat
  form: Form
  rows: List[tf.Tensor]
  strings: tf.Tensor
  runs: Runs
  priorities: Optional[np.ndarray]

  @property
  def num_frames(self) -> int:
    """The number of frames, without padding."""
    return int(self.runs.num_rows.sum())

  @property
  def num_items(self) -> int:
    """The number of items."""
    return int(self.runs.num_items.sum())

  def read(self, rows: tf.Tensor) -> Any:
    """Returns frames.

    Args:
      rows: the numbers of the rows, int64 `[...]`.

    Returns:
      A `Trajectory` of tensors `[..., ...]`.
    """
    return self.format.decode(
        [tf.gather(group, rows) for group in self.rows], self.strings
    )


class StoreWriter:
  """Writes the files of a store: to a folder, or to memory."""

  def __init__(self, spec: Any, folder: Optional[str]):
    """Creates the writer.

    Args:
      spec: the spec of one frame, a `Trajectory`.
      folder: an empty folder for the files, or None for memory.
    """
    self.format = rows_lib.RowFormat(spec)
    self._folder = folder
    self._rows = [
        self._new_file(_rows_name(group))
        for group in range(len(self.format.row_bytes))
    ]
    self._strings = self._new_file(_STRINGS)
    self._num_rows = 0
    self._num_string_bytes = 0

  def append(self, frames: Any) -> None:
    """Appends frames, a `Trajectory` of arrays `[B, ...]`."""
    encoded = self.format.encode(frames, self._append_strings)
    for file, rows in zip(self._rows, encoded):
      file.write(rows)
    self._num_rows += len(encoded[0])

  def finish(
      self,
      form: Form,
      runs: Runs,
      priorities: Optional[np.ndarray],
      fingerprint: Optional[str] = None,
  ) -> FrameStore:
    """Returns the store of what was written.

    Args:
      form: what items are made of.
      runs: the runs of items.
      priorities: the priorities of all items, or None.
      fingerprint: what tells these frames from others, if that is known.
    """
    files = [*self._rows, self._strings]
    for file in files:
      file.flush()
    if self._folder is not None:
      tensor_spec.to_pbtxt_file(
          os.path.join(self._folder, _SPEC), self.format.spec
      )
      arrays = runs._asdict()
      if priorities is not None:
        arrays['priorities'] = priorities
      np.savez(os.path.join(self._folder, _INDEX), **arrays)
      with open(os.path.join(self._folder, MARKER), 'w') as f:
        json.dump(
            {
                'version': _VERSION,
                'fingerprint': fingerprint,
                'form': form._asdict(),
                'num_rows': self._num_rows,
                'num_string_bytes': self._num_string_bytes,
            },
            f,
        )
    store = _map_files(
        [_path_of(file) for file in files],
        self.format,
        form,
        self._num_rows,
        self._num_string_bytes,
        runs,
        priorities,
    )
    self.close()
    return store

  def close(self) -> None:
    """Closes the files. What was mapped stays."""
    for file in [*self._rows, self._strings]:
      file.close()

  def _new_file(self, name: str) -> BinaryIO:
    if self._folder is None:
      return open(os.memfd_create(name), 'w+b')
    return open(os.path.join(self._folder, name), 'xb')

  def _append_strings(self, strings: Sequence[bytes]) -> np.ndarray:
    lengths = np.array(list(map(len, strings)), np.int64)
    begins = self._num_string_bytes + np.cumsum(lengths) - lengths
    self._strings.write(b''.join(strings))
    self._num_string_bytes += int(lengths.sum())
    return begins


def read_marker(folder: str) -> Optional[dict]:
  """Returns what a prepared folder says of itself; None if it is none.

  Raises:
    OSError: if the file that says it is damaged.
  """
  path = os.path.join(folder, MARKER)
  try:
    with _reading(path), open(path, encoding='utf-8') as f:
      marker = json.load(f)
      version = marker['version']
  except FileNotFoundError:
    return None
  return marker if version == _VERSION else None


def open_store(folder: str) -> FrameStore:
  """Maps the files of a prepared folder.

  Args:
    folder: a folder on the local disk.

  Raises:
    FileNotFoundError: if there is no such folder, or it was prepared by another
      version.
    OSError: if a file is cut.
  """
  marker = read_marker(folder)
  if marker is None:
    raise FileNotFoundError(
        f'{folder} holds no prepared frames: it has no {MARKER} of version'
        f' {_VERSION}.'
    )
  path = os.path.join(folder, _SPEC)
  with _reading(path):
    spec = tensor_spec.from_pbtxt_file(path)
    format_ = rows_lib.RowFormat(trajectory.Trajectory(*spec))
  path = os.path.join(folder, _INDEX)
  with _reading(path), np.load(path) as index:
    runs = Runs(*[index[name] for name in Runs._fields])
    priorities = index.get('priorities')
  names = [_rows_name(group) for group in range(len(format_.row_bytes))]
  return _map_files(
      [os.path.join(folder, name) for name in [*names, _STRINGS]],
      format_,
      Form(**marker['form']),
      marker['num_rows'],
      marker['num_string_bytes'],
      runs,
      priorities,
  )


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
  """Turns what goes wrong where a file is not whole into an OSError."""
  try:
    yield
  except OSError:
    raise
  except Exception as e:  # Each format has errors of its own.
    raise _damage(path, str(e) or type(e).__name__) from e


def _damage(path: str, problem: str) -> OSError:
  return OSError(
      f'{path} is damaged: {problem}. Remove its folder, and prepare it again.'
  )


def _rows_name(group: int) -> str:
  return f'rows-{group}.bin'


def _path_of(file: BinaryIO) -> str:
  return f'/proc/self/fd/{file.fileno()}'


def _map_files(
    paths, format_, form, num_rows, num_string_bytes, runs, priorities
) -> FrameStore:
  *rows, strings = [
      map_file(path, shape)
      for path, shape in zip(
          paths,
          [[num_rows, size] for size in format_.row_bytes]
          + [[num_string_bytes]],
      )
  ]
  return FrameStore(format_, form, rows, strings, runs, priorities)


def map_file(path: str, shape: List[int]) -> tf.Tensor:
  """Returns a file as a tensor, whose bytes are read as they are used.

  Args:
    path: the file.
    shape: the shape of the tensor, uint8.

  Raises:
    OSError: if the file has another size.
  """
  size = os.path.getsize(path)
  expected = math.prod(shape)
  if size != expected:
    raise _damage(path, f'it has {size} bytes instead of {expected}')
  if not size:
    return tf.zeros(shape, tf.uint8)
  with open(path, 'rb') as f:
    mapped = mmap.mmap(
        f.fileno(),
        size,
        mmap.MAP_PRIVATE | _MAP_NORESERVE,
        mmap.PROT_READ | mmap.PROT_WRITE,
    )
  return as_tensor(np.frombuffer(mapped, np.uint8).reshape(shape))


def as_tensor(array: np.ndarray) -> tf.Tensor:
  """Returns a tensor that has the memory of an array.

  `tf.raw_ops.ImmutableConst` does not serve: TensorFlow copies what it takes
  for a constant, up to 10 MB, and remembers it under the path.

  Args:
    array: an array of pages of its own, which can be written.
  """
  return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
