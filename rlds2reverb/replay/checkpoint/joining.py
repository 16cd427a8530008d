"""Joins parts of a checkpoint, by copying their bytes.

Parts are joined into a larger part, or into the checkpoint. Whether all are
joined at once, or some first and the results later, makes no difference to a
single bit of the checkpoint:

    parts        a  b  c  d        a  b  c  d
    merge_parts  |  |  |  |        a+b   c+d
    join_parts   a+b+c+d           a+b + c+d

Every byte of a part is read once, in its order, and the memory that a join
takes does not grow with the parts.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, Optional, Sequence, Union
import zlib

from rlds2reverb.datasets import files
from rlds2reverb.datasets import whole
from rlds2reverb.replay import reverb
from rlds2reverb.replay.checkpoint import new_checkpoint
from rlds2reverb.replay.checkpoint import part_keys
from rlds2reverb.replay.checkpoint import records as records_lib
from rlds2reverb.replay.checkpoint import write as write_lib

_BLOCK_BYTES = 1 << 20
# A zlib stream: this header, the compressed bytes, an empty block that ends
# them, and their checksum. See RFC 1950 and RFC 1951.
_HEADER = b'\x78\x01'
_END = b'\x03\x00'
_CHECKSUM_BYTES = 4
_CHECKSUM_BASE = 65521


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
  with whole.new_folder(
      folder, [new_checkpoint.PART_INFO], replace=True
  ) as path:
    _merge_keys(folders, path)
    for file in new_checkpoint.PART_FILES:
      _join_file(file, folders, infos, path)
    plain_bytes = {
        file: sum(info['plain_bytes'][file] for info in infos)
        for file in new_checkpoint.PART_FILES
    }
    new_checkpoint.write_part_info(path, counts, plain_bytes)
  return counts


def join_parts(
    folders: Sequence[str],
    directory: files.PathLike,
    spec: Any,
    reverb_tables: Sequence[Union[reverb.Table, write_lib.TableSettings]] = (),
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
      write_lib.table_checkpoint(table, counts[name], spec)
      for name, table in described.items()
  ]
  _merge_keys(folders)
  with new_checkpoint.new_checkpoint(directory) as path:
    for file in new_checkpoint.PART_FILES:
      _join_file(file, folders, infos, path)
    new_checkpoint.write_tables(path, tables)
  return counts


def _merge_keys(folders: Sequence[str], target: Optional[str] = None) -> None:
  """Merges the keys of parts into a folder, or only checks them."""
  for kind in part_keys.KINDS:
    name = part_keys.file_of(kind)
    part_keys.merge(
        [os.path.join(folder, name) for folder in folders],
        kind,
        target and os.path.join(target, name),
    )


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
  with files.open_text(os.path.join(folder, new_checkpoint.PART_INFO)) as f:
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
