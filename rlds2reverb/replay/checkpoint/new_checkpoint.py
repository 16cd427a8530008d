"""Writes the files of a new checkpoint.

A checkpoint is written into a folder beside its place, and moved there when it
is whole. The folder is removed if anything fails.
"""

import contextlib
import errno
import os
import shutil
from typing import Any, Callable, Dict, Iterable, Iterator, List, Sequence

import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import whole
from rlds2reverb.episodes import tf_errors
from rlds2reverb.replay import layout as layout_lib
from rlds2reverb.replay import messages
from rlds2reverb.replay import wire
from rlds2reverb.replay.checkpoint import part_keys
from rlds2reverb.replay.checkpoint import records as records_lib

_CHECKED_BYTES = 16 << 20
_LEFT_FREE_BYTES = 2 * _CHECKED_BYTES
_IGNORED = contextlib.suppress(tf.errors.OpError)


class RecordFile:
  """A file of records that is being written."""

  def __init__(self, directory: str, file: str):
    """Opens the file.

    Args:
      directory: the folder of the file.
      file: the name of the file.

    Raises:
      OSError: if the file cannot be opened.
    """
    self._path = os.path.join(directory, file)
    self._unchecked = 0
    # The fastest level is enough, since large columns are compressed already.
    options = tf.io.TFRecordOptions(
        records_lib.COMPRESSION, compression_level=1
    )
    with os_error(self._path):
      self._writer = tf.io.TFRecordWriter(self._path, options)

  def __enter__(self):
    return self

  def __exit__(self, error_type, *unused_error):
    with os_error(self._path) if error_type is None else _IGNORED:
      self._writer.close()

  def write(self, records: Iterable[bytes]) -> None:
    """Appends records.

    Raises:
      OSError: if the file cannot be written.
    """
    with os_error(self._path):
      for record in records:
        self._writer.write(record)
        self._unchecked += len(record)
    if self._unchecked >= _CHECKED_BYTES:
      self._unchecked = 0
      _check_space(self._path)


@contextlib.contextmanager
def os_error(path: str) -> Iterator[None]:
  """Raises an error of TensorFlow's as an OSError that names the file."""
  try:
    yield
  except tf.errors.OpError as error:
    raise OSError(
        f'{path} could not be written, so nothing of its folder is left:'
        f' {tf_errors.message_of(error)}'
    ) from error


def _check_space(path: str) -> None:
  """Raises an OSError if a disk, which others use too, is nearly full."""
  free = shutil.disk_usage(os.path.dirname(path)).free
  if free < _LEFT_FREE_BYTES:
    raise OSError(
        errno.ENOSPC,
        f'{path} could not be written, so nothing of its folder is left:'
        f' only {free >> 20} MB are free there.',
    )


@contextlib.contextmanager
def new_checkpoint(directory: str, *, replace: bool = False) -> Iterator[str]:
  """Yields a folder to write a checkpoint into, and moves it to `directory`.

  The folder is moved when the body of the `with` statement has ended without an
  error.

  Args:
    directory: where the checkpoint goes.
    replace: whether what is there is replaced.

  Raises:
    BlockingIOError: if another process is writing to `directory`.
    FileExistsError: if `directory` is not empty, and not to be replaced.
    OSError: if the checkpoint cannot be written.
  """
  with whole.new_folder(directory, [records_lib.DONE], replace=replace) as path:
    yield path
    with open(os.path.join(path, records_lib.DONE), 'wb'):
      pass


def write_tables(
    path: str, tables: Iterable[messages.PriorityTableCheckpoint]
) -> None:
  """Writes the tables of the checkpoint in the folder `path`."""
  with RecordFile(path, records_lib.TABLES) as file:
    file.write(table.SerializeToString() for table in tables)


class BatchWriter:
  """Writes batches of chunks and items into the files of a folder."""

  def __init__(
      self,
      path: str,
      record_file: Callable[[str, str], Any] = RecordFile,
  ):
    """Opens the files.

    Args:
      path: the folder.
      record_file: opens a file, given its folder and its name.
    """
    self._chunk_keys: List[np.ndarray] = []
    self._item_keys: List[np.ndarray] = []
    self._files = contextlib.ExitStack()
    self._chunks, self._items = (
        self._files.enter_context(record_file(path, file))
        for file in (records_lib.CHUNKS, records_lib.ITEMS)
    )

  def __enter__(self):
    return self

  def __exit__(self, *error):
    return self._files.__exit__(*error)

  def write(self, batch: layout_lib.Batch) -> None:
    self._chunks.write(batch.chunks)
    heads = b''.join(chunk[: wire.KEY_HEAD] for chunk in batch.chunks)
    heads = np.frombuffer(heads, np.uint8).reshape(-1, wire.KEY_HEAD)
    self._chunk_keys.append(wire.keys_of(heads))
    for items in batch.items:
      content = items['item'].tobytes()
      size = len(content) // len(items)
      self._items.write(
          content[begin : begin + size]
          for begin in range(0, len(content), size)
      )
      heads = np.frombuffer(content, np.uint8).reshape(-1, size)
      self._item_keys.append(wire.keys_of(heads))

  @property
  def keys(self) -> Dict[str, np.ndarray]:
    """The keys of the records so far, uint64 `[N]`, by kind of record.

    See `part_keys.KINDS`.
    """
    return dict(
        zip(part_keys.KINDS, map(_join, (self._chunk_keys, self._item_keys)))
    )


def _join(keys: Sequence[np.ndarray]) -> np.ndarray:
  return np.concatenate(keys) if keys else np.zeros(0, np.uint64)
