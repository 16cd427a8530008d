"""Parts of a checkpoint, which several writers write and one joins.

A checkpoint's files are compressed streams of records. A part holds its share
of each stream, compressed from a clean start and up to a whole byte, so joining
the parts is copying bytes. What the writers share out must be different data
under one identity: no two parts may hold the same key. To join checkpoints that
may have keys in common, use `merge_reverb_checkpoints`.

A part is a folder with `chunks.tfrecord`, `items.tfrecord`, the keys in
`keys.npz`, and `part.json`, which says how much there is of everything.
"""

from concurrent import futures
import contextlib
import functools
import json
import os
from typing import Any, Callable, Dict, List, Optional, Sequence, Union
import zlib

import numpy as np
import reverb
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.datasets import whole
from rlds2reverb.replay.checkpoint import batches as batches_lib
from rlds2reverb.replay.checkpoint import new_checkpoint
from rlds2reverb.replay.checkpoint import records as records_lib
from rlds2reverb.replay.checkpoint import write as write_lib
from rlds2reverb.replay import frames as frames_lib

_KEYS = 'keys.npz'
_INFO = 'part.json'
_FILES = (records_lib.CHUNKS, records_lib.ITEMS)
_BLOCK_BYTES = 1 << 20
# A zlib stream: this header, the compressed bytes, an empty block that ends
# them, and their checksum. See RFC 1950 and RFC 1951.
_HEADER = b'\x78\x01'
_END = b'\x03\x00'
_CHECKSUM_BYTES = 4
_CHECKSUM_BASE = 65521


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
    with _os_error(self._plain_path):
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
    with _os_error(self._plain_path):
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
    with _os_error(self._plain_path):
      self._writer.close()
    for job in [*self._jobs, self._thread.submit(self._compress)]:
      job.result()
    self._plain_bytes[self._file] = self._plain.tell()
    self._compressed.write(self._compressor.flush(zlib.Z_FULL_FLUSH))
    self._compressed.write(self._compressor.flush())

  def _compress(self):
    """Compresses what has come into the plain file since the last call."""
    while block := self._plain.read(_BLOCK_BYTES):
      self._compressed.write(self._compressor.compress(block))


def write_part(
    source: frames_lib.FrameSource,
    folder: str,
    *,
    identity: Any,
    inserted_at: int,
) -> Dict[str, int]:
  """Writes the items of a `FrameSource` as a part of a checkpoint.

  Args:
    source: the frames, and which items to make of them.
    folder: the folder of the part, which appears when it is whole, and takes
      the place of one that is there.
    identity: see `write_rlds_to_reverb`.
    inserted_at: the date of the first item. It orders the items of the parts.

  Returns:
    The number of items of each table, by its name.

  Raises:
    BlockingIOError: if another process is writing the part.
    OSError: if it cannot be written.
    ValueError: as `write_reverb_checkpoint` does.
  """
  layout = source.layout(identity, inserted_at=inserted_at)
  with whole.new_folder(folder, [_INFO], replace=True) as path:
    plain_bytes = {}
    with batches_lib.BatchWriter(
        path, functools.partial(_PartFile, plain_bytes=plain_bytes)
    ) as writer:
      for batch in layout.batches(source.frames()):
        writer.write(batch)
    keys = writer.keys
    np.savez(os.path.join(path, _KEYS), **keys._asdict())
    info = {
        'items': layout.num_items,
        'bytes': {
            file: os.path.getsize(os.path.join(path, file)) for file in _FILES
        },
        'plain_bytes': plain_bytes,
    }
    with open(os.path.join(path, _INFO), 'w', encoding='utf-8') as f:
      json.dump(info, f)
  return layout.num_items


def join_parts(
    folders: Sequence[str],
    directory: files.PathLike,
    spec: Any,
    reverb_tables: Sequence[
        Union[reverb.Table, write_lib.TableSettings]
    ] = (),
    *,
    on_bytes: Optional[Callable[[int], None]] = None,
) -> Dict[str, int]:
  """Joins parts into a checkpoint, in their order, by copying their bytes.

  Args:
    folders: the parts, which must have the same tables.
    directory: see `write_reverb_checkpoint`.
    spec: the spec of a frame, a `Trajectory`.
    reverb_tables: see `write_reverb_checkpoint`.
    on_bytes: a function that is called with the number of bytes of each copy.

  Returns:
    The number of items of each table, by its name.

  Raises:
    BlockingIOError: if another process is writing to `directory`.
    CheckpointError: if a part is damaged.
    FileExistsError: if `directory` is not empty.
    OSError: if the checkpoint cannot be written. Nothing of it is left then.
    ValueError: if a table is described twice or is too small, or if two items
      have the same key.
  """
  directory = files.expand(directory)
  infos = [_read_info(folder) for folder in folders]
  counts = {
      name: sum(info['items'][name] for info in infos)
      for name in infos[0]['items']
  }
  described = write_lib.describe_tables(list(counts), reverb_tables)
  tables = [
      write_lib.table_checkpoint(table, counts[name], spec)
      for name, table in described.items()
  ]
  _read_keys(folders).check()
  with new_checkpoint.new_checkpoint(directory) as path:
    for file in _FILES:
      _join_file(file, folders, infos, path, on_bytes or (lambda count: None))
    new_checkpoint.write_tables(path, tables)
  return counts


def _join_file(file, folders, infos, path, on_bytes) -> None:
  checksum = zlib.adler32(b'')
  with open(os.path.join(path, file), 'wb') as joined:
    joined.write(_HEADER)
    for folder, info in zip(folders, infos):
      with open(os.path.join(folder, file), 'rb') as part:
        part.seek(len(_HEADER))
        left = info['bytes'][file] - len(_HEADER) - len(_END) - _CHECKSUM_BYTES
        while left:
          block = part.read(min(left, _BLOCK_BYTES))
          if not block:
            raise records_lib.CheckpointError(f'{part.name} is cut.')
          joined.write(block)
          on_bytes(len(block))
          left -= len(block)
        end = part.read()
      if end[: len(_END)] != _END:
        raise records_lib.CheckpointError(f'{part.name} is damaged at its end.')
      checksum = _joined_checksum(
          checksum,
          int.from_bytes(end[len(_END) :], 'big'),
          info['plain_bytes'][file],
      )
    joined.write(_END + checksum.to_bytes(_CHECKSUM_BYTES, 'big'))


def _joined_checksum(first: int, second: int, num_bytes: int) -> int:
  """Returns the Adler-32 checksum of two runs of bytes, one after the other.

  Args:
    first: the checksum of the first.
    second: the checksum of the second.
    num_bytes: the number of bytes of the second.
  """
  low, high = first & 0xFFFF, first >> 16
  other_low, other_high = second & 0xFFFF, second >> 16
  # The low half is 1 plus the sum of the bytes; the high half is the sum of the
  # low halves after each byte.
  high = (high + other_high + num_bytes * (low - 1)) % _CHECKSUM_BASE
  low = (low + other_low - 1) % _CHECKSUM_BASE
  return high << 16 | low


def _read_info(folder: str) -> Dict[str, Any]:
  with files.open_text(os.path.join(folder, _INFO)) as f:
    info = json.load(f)
  for file, size in info['bytes'].items():
    path = os.path.join(folder, file)
    if not os.path.exists(path) or os.path.getsize(path) != size:
      raise records_lib.CheckpointError(
          f'{path} does not have the {size} bytes that were written.'
      )
  return info


def _read_keys(folders: Sequence[str]) -> batches_lib.WrittenKeys:
  keys = []
  for folder in folders:
    with np.load(os.path.join(folder, _KEYS)) as arrays:
      keys.append(batches_lib.WrittenKeys(arrays['chunks'], arrays['items']))
  return batches_lib.WrittenKeys(*map(np.concatenate, zip(*keys)))


@contextlib.contextmanager
def _os_error(path: str):
  try:
    yield
  except tf.errors.OpError as error:
    raise OSError(f'{path} could not be written: {error.message}') from error
