"""Writes the files of a new checkpoint, or of a part of one.

They are written into a folder beside their place, and moved there when all are
whole. The folder is removed if anything fails.

Several writers can make parts of a checkpoint, which `joining` joins. A
checkpoint's files are compressed streams of records. A part holds its share of
each stream, compressed from a clean start and up to a whole byte, so joining
the parts is copying bytes. The writers must have different data under one
identity: no two parts may hold the same key. To join checkpoints that may have
keys in common, use `merge_reverb_checkpoints`.

A part is a folder with `chunks.tfrecord` and `items.tfrecord`, the sorted keys
of both, and `part.json`, which says how much there is of everything and is the
last file to appear.
"""

from concurrent import futures
import contextlib
import errno
import functools
import json
import os
import shutil
from typing import Any, Callable, Dict, Iterable, Iterator, List
import zlib

import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import whole
from rlds2reverb.episodes import tf_errors
from rlds2reverb.replay import frames as frames_lib
from rlds2reverb.replay import layout as layout_lib
from rlds2reverb.replay import protos
from rlds2reverb.replay import wire
from rlds2reverb.replay.checkpoint import part_keys
from rlds2reverb.replay.checkpoint import records as records_lib

PART_INFO = 'part.json'
PART_FILES = (records_lib.CHUNKS, records_lib.ITEMS)
_BLOCK_BYTES = 1 << 20
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
    path: str, tables: Iterable[protos.PriorityTableCheckpoint]
) -> None:
  """Writes the tables of the checkpoint in the folder `path`."""
  with RecordFile(path, records_lib.TABLES) as file:
    file.write(table.SerializeToString() for table in tables)


def write_batches(
    path: str,
    batches: Iterable[layout_lib.Batch],
    record_file: Callable[[str, str], Any] = RecordFile,
) -> Dict[str, np.ndarray]:
  """Writes chunks and items into the files of the folder `path`.

  Args:
    path: the folder.
    batches: the chunks and the items.
    record_file: opens a file, given its folder and its name.

  Returns:
    The keys of the records, uint64 `[N]`, by kind; see `part_keys.KINDS`.

  Raises:
    OSError: if a file cannot be written.
  """
  chunk_keys: List[np.ndarray] = [np.zeros(0, np.uint64)]
  item_keys = list(chunk_keys)
  with (
      record_file(path, records_lib.CHUNKS) as chunks,
      record_file(path, records_lib.ITEMS) as items,
  ):
    for batch in batches:
      chunks.write(batch.chunks)
      heads = b''.join(chunk[: wire.KEY_HEAD] for chunk in batch.chunks)
      chunk_keys.append(_keys_of(heads, wire.KEY_HEAD))
      for of_table in batch.items:
        content = of_table['item'].tobytes()
        size = len(content) // len(of_table)
        items.write(
            content[begin : begin + size]
            for begin in range(0, len(content), size)
        )
        item_keys.append(_keys_of(content, size))
  keys = map(np.concatenate, (chunk_keys, item_keys))
  return dict(zip(part_keys.KINDS, keys))


def _keys_of(content: bytes, size: int) -> np.ndarray:
  return wire.keys_of(np.frombuffer(content, np.uint8).reshape(-1, size))


class _PartFile:
  """A file of records that can be joined with others."""

  def __init__(self, directory: str, file: str, plain_bytes: Dict[str, int]):
    """Opens the file.

    Args:
      directory: the folder of the file.
      file: the name of the file.
      plain_bytes: a dict that gets, by that name, the number of bytes of the
        records before they were compressed.
    """
    self._file = file
    self._plain_bytes = plain_bytes
    path = os.path.join(directory, file)
    # TensorFlow's own compression cannot pause at a whole byte. So its records
    # go into a file as they are, and a thread compresses them from there.
    self._plain_path = f'{path}.plain'
    with os_error(self._plain_path):
      self._writer = tf.io.TFRecordWriter(self._plain_path)
    self._plain = open(self._plain_path, 'rb')
    self._compressed = open(path, 'wb')
    # The fastest level is enough, since large columns are compressed already.
    self._compressor = zlib.compressobj(level=1)
    self._thread = futures.ThreadPoolExecutor(1)
    self._jobs: List[futures.Future] = []
    self._waiting_bytes = 0

  def __enter__(self):
    return self

  def __exit__(self, error_type, *unused_error):
    try:
      if error_type is None:
        self._finish()
      else:
        with contextlib.suppress(tf.errors.OpError):
          self._writer.close()
    finally:
      self._thread.shutdown(cancel_futures=True)
      self._plain.close()
      self._compressed.close()
      os.unlink(self._plain_path)

  def write(self, records):
    with os_error(self._plain_path):
      for record in records:
        self._writer.write(record)
        self._waiting_bytes += len(record)
      if self._waiting_bytes >= _BLOCK_BYTES:
        self._waiting_bytes = 0
        self._writer.flush()
        self._jobs.append(self._thread.submit(self._compress))
    while self._jobs and self._jobs[0].done():
      self._jobs.pop(0).result()  # This raises its error.

  def _finish(self):
    with os_error(self._plain_path):
      self._writer.close()
    for job in [*self._jobs, self._thread.submit(self._compress)]:
      job.result()
    self._plain_bytes[self._file] = self._plain.tell()
    self._compressed.write(self._compressor.flush(zlib.Z_FULL_FLUSH))
    self._compressed.write(self._compressor.flush())

  def _compress(self):
    """Compresses the bytes added to the plain file since the last call."""
    while block := self._plain.read(_BLOCK_BYTES):
      self._compressed.write(self._compressor.compress(block))


def write_part(
    source: frames_lib.FrameSource,
    folder: str,
    *,
    inserted_at: int,
) -> Dict[str, int]:
  """Writes the items of a `FrameSource` as a part of a checkpoint.

  Args:
    source: the frames, and which items to make of them.
    folder: the folder of the part, which appears when it is whole, and takes
      the place of one that is there.
    inserted_at: the date of the first item. It orders the items of the parts.

  Returns:
    The number of items of each table, by its name.

  Raises:
    BlockingIOError: if another process is writing the part.
    OSError: if it cannot be written.
    ValueError: as `write_reverb_checkpoint` does, or if two items have the same
      key.
  """
  layout = layout_lib.Layout.of(source, inserted_at)
  with whole.new_folder(folder, [PART_INFO], replace=True) as path:
    plain_bytes: Dict[str, int] = {}
    keys_by_kind = write_batches(
        path,
        layout.batches(source.frames()),
        functools.partial(_PartFile, plain_bytes=plain_bytes),
    )
    for kind, keys in keys_by_kind.items():
      part_keys.write(os.path.join(path, part_keys.file_of(kind)), kind, keys)
    write_part_info(path, layout.num_items, plain_bytes)
  return layout.num_items


def write_part_info(
    path: str, num_items: Dict[str, int], plain_bytes: Dict[str, int]
) -> None:
  """Writes the file that says how much a part holds.

  Args:
    path: the folder of the part, all of whose other files are written.
    num_items: the number of items of each table, by its name.
    plain_bytes: the number of bytes of the records of each file before they
      were compressed, by its name.
  """
  info = {
      'items': num_items,
      'bytes': {
          file: os.path.getsize(os.path.join(path, file)) for file in PART_FILES
      },
      'plain_bytes': plain_bytes,
  }
  with open(os.path.join(path, PART_INFO), 'w', encoding='utf-8') as f:
    json.dump(info, f)
