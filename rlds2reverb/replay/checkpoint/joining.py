"""Joins parts of a checkpoint by copying their compressed bytes.

The files of a checkpoint are compressed streams of records. Compressed data is
a header, blocks of bits, the last of which is marked, and a checksum of the
content (RFC 1950 and 1951). The last block of what a `RecordFile` writes is
empty.
"""

from concurrent import futures
import os
from typing import BinaryIO, Iterator, Sequence, Tuple
import zlib

from rlds2reverb.datasets import files
from rlds2reverb.replay.checkpoint import merge
from rlds2reverb.replay.checkpoint import records as records_lib

_HEADER = b'\x78\x01'
_LAST_BLOCK = b'\x03\x00'
_CHECKSUM_BYTES = 4
# An empty block, in front of which are up to 7 bits, and after it, has so many.
_END_BYTES = 3
# They inflate to 64 MB at most.
_BLOCK_BYTES = 1 << 16


def join_checkpoints(directories: Sequence[str], directory: str) -> None:
  """Joins checkpoints of the same tables, and of other keys each, into one.

  This takes a small part of the time of merging, as no record is parsed, and
  nothing is compressed.

  Args:
    directories: the checkpoints, as this library writes them. The items keep
      their dates.
    directory: where the joined one goes; see `merge_reverb_checkpoints`, which
      has the errors, too.
  """
  tables = list(map(records_lib.read_tables, directories))
  counts = {
      name: sum(records_lib.num_items(each[name]) for each in tables)
      for name in tables[0]
  }
  with records_lib.new_checkpoint(directory) as path:

    def join(file):
      parts = [os.path.join(part, file) for part in directories]
      join_files(parts, os.path.join(path, file))

    with futures.ThreadPoolExecutor() as executor:
      list(executor.map(join, (records_lib.CHUNKS, records_lib.ITEMS)))
    merge.write_tables(path, tables, counts)


def join_files(parts: Sequence[str], path: str) -> None:
  """Writes a file with the records of the first part, of the second, ...

  Args:
    parts: files that `RecordFile` wrote.
    path: the file.

  Raises:
    CheckpointError: if a part is missing or damaged.
    OSError: if `path` cannot be written.
  """
  checksum = zlib.adler32(b'')
  with open(path, 'wb') as joined:
    joined.write(_HEADER)
    for part in parts:
      for block, content in _blocks_of(part):
        joined.write(block)
        checksum = zlib.adler32(content, checksum)
    joined.write(_LAST_BLOCK + checksum.to_bytes(_CHECKSUM_BYTES, 'big'))


def _blocks_of(path: str) -> Iterator[Tuple[bytes, bytes]]:
  """Yields the compressed bytes of a file, and what each of them inflates to.

  Other blocks may follow them. The file is compared with its checksum.
  """
  inflate = zlib.decompressobj(-zlib.MAX_WBITS).decompress
  checksum = zlib.adler32(b'')
  try:
    num_bytes = files.size_of(path) - len(_HEADER) - _CHECKSUM_BYTES
    with files.open_binary(path) as file:
      file.seek(len(_HEADER))
      for block in _open_ended(file, num_bytes):
        content = inflate(block)
        checksum = zlib.adler32(content, checksum)
        yield block, content
      if file.read() != checksum.to_bytes(_CHECKSUM_BYTES, 'big'):
        raise zlib.error('its checksum is wrong')
  except (FileNotFoundError, zlib.error) as error:
    directory, file = os.path.split(path)
    raise records_lib.damaged(
        directory, f'{file} cannot be read: {error}'
    ) from error


def _open_ended(file: BinaryIO, num_bytes: int) -> Iterator[bytes]:
  """Yields compressed bytes, the last of which is not marked as the last.

  Compressed data is a series of bits. It ends with an empty block of 10 bits, 1
  1 0 0 0 0 0 0 0 0, the first of which is the mark, and zeros up to a whole
  byte. So the mark is the second to last bit that is set. An empty block of
  another kind comes after it: 3 zeros, zeros up to a whole byte, and 4 bytes.
  """
  num_bytes -= _END_BYTES
  for begin in range(0, num_bytes, _BLOCK_BYTES):
    yield file.read(min(_BLOCK_BYTES, num_bytes - begin))
  bits = int.from_bytes(file.read(_END_BYTES), 'little')
  mark = max(bits.bit_length() - 2, 0)
  yield (bits ^ 1 << mark).to_bytes(-(-(mark + 13) // 8), 'little')
  yield b'\0\0\xff\xff'
