"""Writes parts of a checkpoint, and joins them by copying their bytes.

A checkpoint's files are compressed streams of records. A part holds its share
of each stream, compressed from a clean start and up to a whole byte, so joining
the parts is copying bytes.

The writers must have different data under one identity: no two parts may hold
the same key. To join checkpoints that may have keys in common, use
`merge_reverb_checkpoints`.

A part is a folder with `chunks.tfrecord` and `items.tfrecord`, the keys of
both, of which a join takes 8 bytes each in memory, and `part.json`, which says
how much there is of everything and is the last file to appear.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Sequence
import zlib

import numpy as np

from rlds2reverb.datasets import files
from rlds2reverb.datasets import whole
from rlds2reverb.replay import frames as frames_lib
from rlds2reverb.replay import layout as layout_lib
from rlds2reverb.replay.checkpoint import records as records_lib
from rlds2reverb.replay.checkpoint import write as write_lib

PART_INFO = 'part.json'
_KEY_DTYPE = np.dtype('<u8')
_BLOCK_BYTES = 1 << 20
# A zlib stream: this header, the compressed bytes, an empty block that ends
# them, and their checksum. See RFC 1950 and RFC 1951.
_HEADER = b'\x78\x01'
_END = b'\x03\x00'
_CHECKSUM_BYTES = 4
_CHECKSUM_BASE = 65521


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
    # TensorFlow's own compression cannot pause at a whole byte.
    keys_of = write_lib.write_batches(layout, path, compression='')
    info: Dict[str, Any] = {
        'items': layout.num_items,
        'bytes': {},
        'plain_bytes': {},
    }
    for file, keys in keys_of.items():
      keys.astype(_KEY_DTYPE).tofile(_keys_file(path, file))
      name = os.path.join(path, file)
      info['plain_bytes'][file] = os.path.getsize(name)
      _compress(name)
      info['bytes'][file] = os.path.getsize(name)
    with open(os.path.join(path, PART_INFO), 'w', encoding='utf-8') as f:
      json.dump(info, f)
  return layout.num_items


def _keys_file(folder, file) -> str:
  return os.path.join(folder, file.replace('.tfrecord', '.keys'))


def _compress(name) -> None:
  """Compresses a file in its place, up to a whole byte."""
  # The fastest level is enough, since large columns are compressed already.
  compressor = zlib.compressobj(level=1)
  plain_name = f'{name}.plain'
  os.rename(name, plain_name)
  with open(plain_name, 'rb') as plain, open(name, 'wb') as file:
    while block := plain.read(_BLOCK_BYTES):
      file.write(compressor.compress(block))
    file.write(compressor.flush(zlib.Z_FULL_FLUSH))
    file.write(compressor.flush())
  os.unlink(plain_name)


def join_parts(
    folders: Sequence[str], directory: files.PathLike, spec: Any
) -> Dict[str, int]:
  """Joins parts into a checkpoint, in their order, by copying their bytes.

  Args:
    folders: the parts, which must have the same tables.
    directory: see `write_reverb_checkpoint`.
    spec: the spec of a frame, a `Trajectory`.

  Returns:
    The number of items of each table, by its name.

  Raises:
    BlockingIOError: if another process is writing to `directory`.
    CheckpointError: if a part is damaged.
    FileExistsError: if `directory` is not empty.
    OSError: if the checkpoint cannot be written. Nothing of it is left then.
    ValueError: if two items have the same key.
  """
  directory = files.expand(directory)
  infos = list(map(_read_info, folders))
  counts = {
      name: sum(info['items'][name] for info in infos)
      for name in infos[0]['items']
  }
  for file in records_lib.FILES:
    keys = []
    for folder in folders:
      with files.open_binary(_keys_file(folder, file)) as f:
        keys.append(np.frombuffer(f.read(), _KEY_DTYPE))
    write_lib.check_distinct(file, np.concatenate(keys))
  with records_lib.new_checkpoint(directory) as path:
    write_lib.write_tables(path, dict.fromkeys(counts), counts, spec)
    for file in records_lib.FILES:
      _join_file(file, folders, infos, path)
  return counts


def _join_file(file, folders, infos, path) -> None:
  checksum = zlib.adler32(b'')
  with open(os.path.join(path, file), 'wb') as joined:
    joined.write(_HEADER)
    for folder, info in zip(folders, infos):
      name = os.path.join(folder, file)
      left = info['bytes'][file] - len(_HEADER) - len(_END) - _CHECKSUM_BYTES
      with files.open_binary(name) as part:
        part.seek(len(_HEADER))
        while block := part.read(min(left, _BLOCK_BYTES)):
          joined.write(block)
          left -= len(block)
        end = part.read(len(_END))
        of_part = int.from_bytes(part.read(), 'big')
      if left or end != _END:
        raise records_lib.CheckpointError(f'{name} is damaged at its end.')
      plain_bytes = info['plain_bytes'][file]
      checksum = _joined_checksum(checksum, of_part, plain_bytes)
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
