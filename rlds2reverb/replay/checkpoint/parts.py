"""Parts of a checkpoint, made by several writers and joined by one.

A checkpoint's files are compressed streams of records. A part holds its share
of each stream, compressed from a clean start and up to a whole byte, so joining
the parts is copying bytes, which `joining` does. The writers must have
different data under one identity: no two parts may hold the same key. To join
checkpoints that may have keys in common, use `merge_reverb_checkpoints`.

A part is a folder with `chunks.tfrecord` and `items.tfrecord`, the sorted keys
of both, and `part.json`, which says how much there is of everything and is the
last file to appear.
"""

from concurrent import futures
import contextlib
import functools
import json
import os
from typing import Dict, List
import zlib

import tensorflow as tf

from rlds2reverb.datasets import whole
from rlds2reverb.replay import frames as frames_lib
from rlds2reverb.replay import layout as layout_lib
from rlds2reverb.replay.checkpoint import new_checkpoint
from rlds2reverb.replay.checkpoint import part_keys
from rlds2reverb.replay.checkpoint import records as records_lib

INFO = 'part.json'
FILES = (records_lib.CHUNKS, records_lib.ITEMS)
_BLOCK_BYTES = 1 << 20


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
    with new_checkpoint.os_error(self._plain_path):
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
    with new_checkpoint.os_error(self._plain_path):
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
    with new_checkpoint.os_error(self._plain_path):
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
  with whole.new_folder(folder, [INFO], replace=True) as path:
    plain_bytes = {}
    with new_checkpoint.BatchWriter(
        path, functools.partial(_PartFile, plain_bytes=plain_bytes)
    ) as writer:
      for batch in layout.batches(source.frames()):
        writer.write(batch)
    for kind, keys in writer.keys.items():
      part_keys.write(os.path.join(path, part_keys.file_of(kind)), kind, keys)
    write_info(path, layout.num_items, plain_bytes)
  return layout.num_items


def write_info(
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
          file: os.path.getsize(os.path.join(path, file)) for file in FILES
      },
      'plain_bytes': plain_bytes,
  }
  with open(os.path.join(path, INFO), 'w', encoding='utf-8') as f:
    json.dump(info, f)
