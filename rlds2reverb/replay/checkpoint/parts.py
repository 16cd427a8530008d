"""Writes parts of a checkpoint, and joins them by copying their bytes.

A checkpoint's files are compressed streams of records. A part holds its share
of each stream, compressed from a clean start and up to a whole byte, so joining
the parts is copying bytes. Whether all are joined at once, or some first and
the results later, makes no difference to a single bit of the checkpoint:

    parts        a  b  c  d        a  b  c  d
    merge_parts  |  |  |  |        a+b   c+d
    join_parts   a+b+c+d           a+b + c+d

The writers must have different data under one identity: no two parts may hold
the same key. To join checkpoints that may have keys in common, use
`merge_reverb_checkpoints`.

A part is a folder with `chunks.tfrecord` and `items.tfrecord`, the keys of
both, of which a join takes 8 bytes each in memory, and `part.json`, which says
how much there is of everything and is the last file to appear.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from typing import Any, Dict, List, Sequence
import zlib

import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.datasets import whole
from rlds2reverb.replay import frames as frames_lib
from rlds2reverb.replay import layout as layout_lib
from rlds2reverb.replay import reverb
from rlds2reverb.replay.checkpoint import records as records_lib
from rlds2reverb.replay.checkpoint import write as write_lib

PART_INFO = 'part.json'
_FILES = (records_lib.CHUNKS, records_lib.ITEMS)
_KINDS = ('chunks', 'items')
_KEY_DTYPE = np.dtype('<u8')
_BLOCK_BYTES = 1 << 20
# A zlib stream: this header, the compressed bytes, an empty block that ends
# them, and their checksum. See RFC 1950 and RFC 1951.
_HEADER = b'\x78\x01'
_END = b'\x03\x00'
_CHECKSUM_BYTES = 4
_CHECKSUM_BASE = 65521


class _PartFile:
  """A file of records that can be joined with others.

  TensorFlow's own compression cannot pause at a whole byte. So its records go
  into a file as they are, which is compressed when it is whole.
  """

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
    self._path = os.path.join(directory, file)
    self._plain_path = f'{self._path}.plain'
    with records_lib.os_error(self._plain_path):
      self._writer = tf.io.TFRecordWriter(self._plain_path)

  def __enter__(self):
    return self

  def __exit__(self, error_type, *unused_error):
    try:
      if error_type is None:
        with records_lib.os_error(self._plain_path):
          self._writer.close()
        self._compress()
      else:
        with contextlib.suppress(tf.errors.OpError):
          self._writer.close()
    finally:
      os.unlink(self._plain_path)

  def write(self, records):
    with records_lib.os_error(self._plain_path):
      for record in records:
        self._writer.write(record)

  def _compress(self):
    # The fastest level is enough, since large columns are compressed already.
    compressor = zlib.compressobj(level=1)
    with open(self._plain_path, 'rb') as plain, open(self._path, 'wb') as file:
      while block := plain.read(_BLOCK_BYTES):
        file.write(compressor.compress(block))
      self._plain_bytes[self._file] = plain.tell()
      file.write(compressor.flush(zlib.Z_FULL_FLUSH))
      file.write(compressor.flush())


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
  layout = layout_lib.Layout(source, inserted_at)
  with whole.new_folder(folder, [PART_INFO], replace=True) as path:
    plain_bytes: Dict[str, int] = {}
    keys_by_kind = write_lib.write_batches(
        path,
        layout,
        functools.partial(_PartFile, plain_bytes=plain_bytes),
    )
    _write_info(path, layout.num_items, plain_bytes, keys_by_kind)
  return layout.num_items


def merge_parts(folders: Sequence[str], folder: str) -> Dict[str, int]:
  """Joins parts into a larger part, in their order.

  Args:
    folders: the parts, which must have the same tables.
    folder: the folder of the larger part, which appears when it is whole, and
      takes the place of one that is there.

  Returns:
    The number of items of each table, by its name.

  Raises:
    BlockingIOError: if another process is writing the larger part.
    CheckpointError: if a part is damaged.
    OSError: if a part cannot be read, or the larger part not written.
    ValueError: if two items have the same key.
  """
  infos = [_read_info(each) for each in folders]
  counts = _count_items(infos)
  with whole.new_folder(folder, [PART_INFO], replace=True) as path:
    for file in _FILES:
      _join_file(file, folders, infos, path)
    plain_bytes = {
        file: sum(info['plain_bytes'][file] for info in infos)
        for file in _FILES
    }
    _write_info(path, counts, plain_bytes, _join_keys(folders))
  return counts


def join_parts(
    folders: Sequence[str],
    directory: files.PathLike,
    spec: Any,
    reverb_tables: Sequence[reverb.Table] = (),
) -> Dict[str, int]:
  """Joins parts into a checkpoint, in their order, by copying their bytes.

  Args:
    folders: the parts, which must have the same tables.
    directory: see `write_reverb_checkpoint`.
    spec: the spec of a frame, a `Trajectory`.
    reverb_tables: see `write_reverb_checkpoint`.

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
  counts = _count_items(infos)
  described = write_lib.describe_tables(list(counts), reverb_tables)
  tables = [
      write_lib.table_checkpoint(name, table, counts[name], spec)
      for name, table in described.items()
  ]
  _join_keys(folders)
  with write_lib.new_checkpoint(directory) as path:
    for file in _FILES:
      _join_file(file, folders, infos, path)
    write_lib.write_tables(path, tables)
  return counts


def _join_keys(folders: Sequence[str]) -> Dict[str, np.ndarray]:
  """Returns the keys of all parts, by kind, none of which may come twice."""
  joined = {}
  for kind in _KINDS:
    keys = []
    for folder in folders:
      with files.open_binary(os.path.join(folder, f'{kind}.keys')) as f:
        keys.append(np.frombuffer(f.read(), _KEY_DTYPE))
    joined[kind] = np.concatenate(keys)
    write_lib.check_distinct(kind, joined[kind])
  return joined


def _write_info(
    path: str,
    num_items: Dict[str, int],
    plain_bytes: Dict[str, int],
    keys_by_kind: Dict[str, np.ndarray],
) -> None:
  """Writes the keys of a part, and at last how much there is of everything."""
  for kind, keys in keys_by_kind.items():
    write_lib.check_distinct(kind, keys)
    keys.astype(_KEY_DTYPE).tofile(os.path.join(path, f'{kind}.keys'))
  info = {
      'items': num_items,
      'bytes': {
          file: os.path.getsize(os.path.join(path, file)) for file in _FILES
      },
      'plain_bytes': plain_bytes,
  }
  with open(os.path.join(path, PART_INFO), 'w', encoding='utf-8') as f:
    json.dump(info, f)


def _join_file(file, folders, infos, path) -> None:
  checksum = zlib.adler32(b'')
  with open(os.path.join(path, file), 'wb') as joined:
    joined.write(_HEADER)
    for folder, info in zip(folders, infos):
      name = os.path.join(folder, file)
      with files.open_binary(name) as part:
        part.seek(len(_HEADER))
        left = info['bytes'][file] - len(_HEADER) - len(_END) - _CHECKSUM_BYTES
        while left:
          block = part.read(min(left, _BLOCK_BYTES))
          if not block:
            raise records_lib.CheckpointError(f'{name} is cut.')
          joined.write(block)
          left -= len(block)
        end = part.read()
      if end[: len(_END)] != _END:
        raise records_lib.CheckpointError(f'{name} is damaged at its end.')
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
  with files.open_text(os.path.join(folder, PART_INFO)) as f:
    info = json.load(f)
  for file, size in info['bytes'].items():
    path = os.path.join(folder, file)
    if not files.exists(path) or files.size_of(path) != size:
      raise records_lib.CheckpointError(
          f'{path} does not have the {size} bytes that were written.'
      )
  return info


def _count_items(infos: List[Dict[str, Any]]) -> Dict[str, int]:
  return {
      name: sum(info['items'][name] for info in infos)
      for name in infos[0]['items']
  }
