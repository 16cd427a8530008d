"""Merges, joins and splits checkpoints.

`merge_reverb_checkpoints` parses every record and drops duplicates.
`join_checkpoints` appends the compressed parts of a job to each other.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from concurrent import futures
import contextlib
import hashlib
import itertools
import os
import time
from typing import BinaryIO
import zlib

import numpy as np

from rlds2reverb.datasets import files
from rlds2reverb.replay import protos
from rlds2reverb.replay.checkpoint import records as records_lib

_ZLIB_HEADER = b'\x78\x01'
# An empty block that is marked as the last, at a full byte.
_LAST_BLOCK = b'\x03\x00'
_CHECKSUM_BYTES = 4
# The last 10 bits of compressed data are in at most so many bytes.
_TAIL_BYTES = 3
_READ_BYTES = 1 << 16  # They expand to 64 MB at most.


def merge_reverb_checkpoints(
    directories: Sequence[files.PathLike],
    directory: files.PathLike,
    *,
    overwrite: bool = False,
) -> dict[str, int]:
  """Merges checkpoints of the same tables into one.

  The merged checkpoint holds the items of the first of `directories`, then
  the items of the second, and so on, each in their order. If several
  checkpoints hold an item with the same key, the first of them is kept, with
  its priority.

  Args:
    directories: the checkpoints, written by this library or by a server.
    directory: where the merged checkpoint goes. The directory must not exist,
      or be empty.
    overwrite: whether to replace the checkpoint in `directory`, which may be
      one of `directories`. It is replaced atomically when the new one is
      complete.

  Returns:
    The number of items of each table, by the name of the table. The `max_size`
    of a merged table is the largest `max_size` of the table in any of the
    checkpoints, or the number of its items if that is larger.

  Raises:
    BlockingIOError: if another process is writing to `directory`.
    FileExistsError: if `directory` is not empty.
    FileNotFoundError: if one of `directories` is not a checkpoint.
    CheckpointError: if a checkpoint is damaged: if a file is missing or
      truncated, or its content does not match the other files.
    OSError: if the checkpoint cannot be written. Nothing of it remains then.
    ValueError: if there is no checkpoint to merge, if their tables differ, or
      if they hold different records under the same key. This happens with two
      shards that were written under one identity and without an `episode_id`;
      and with short episodes that share chunks with other episodes than before.
  """
  if not directories:
    raise ValueError('There must be a checkpoint to merge.')
  sources = [files.expand(path) for path in directories]
  directory = files.expand(directory)
  if overwrite and files.names_in(directory):
    records_lib.read_tables(directory)  # Only a checkpoint is replaced.
  indices = [records_lib.read_index(path) for path in sources]
  names = sorted(indices[0].tables)
  settings = [
      {
          name: _table_settings(index.tables[name])
          for name in sorted(index.tables)
      }
      for index in indices
  ]
  for source, source_settings in zip(sources, settings):
    if source_settings != settings[0]:
      raise ValueError(
          f'The checkpoints must have the same tables, but {sources[0]} has\n'
          f'{settings[0]}\nand {source} has\n{source_settings}'
      )
  item_tables = [index.item_tables for index in indices]
  first_items = _find_first([index.items for index in indices], item_tables)
  chunks = [index.chunks for index in indices]
  first_chunks = _find_first(chunks, [keys * 0 for keys in chunks])
  is_first = first_items == np.arange(len(first_items))
  num_items = np.bincount(
      np.concatenate(item_tables)[is_first], minlength=len(names)
  )
  counts = dict(zip(names, num_items.tolist()))
  # A server writes the items of a table in the order of these dates, so the
  # items keep their order in the server's own checkpoints.
  dates = itertools.count(time.time_ns())
  with records_lib.new_checkpoint(directory, replace=overwrite) as path:
    with _open_file(path, records_lib.CHUNKS) as file:
      for batch in _read_first(sources, records_lib.CHUNKS, first_chunks):
        file.write(batch)
    with _open_file(path, records_lib.ITEMS) as file:
      for batch in _read_first(sources, records_lib.ITEMS, first_items):
        file.write(map(_set_date, batch, dates))
    _write_merged_tables(path, [index.tables for index in indices], counts)
  return counts


def join_checkpoints(directories: Sequence[str], directory: str) -> None:
  """Joins checkpoints of the same tables and of different keys into one.

  Compressed data is appended without parsing records or compressing them again:
  compressing takes 2 to 5 times as long, `merge_reverb_checkpoints` 4 to 20.

  Args:
    directories: the checkpoints, written by this library. The items keep their
      dates.
    directory: where the joined checkpoint goes.

  Raises:
    CheckpointError: if a part is missing or damaged.
    FileExistsError: if `directory` is not empty.
    OSError: if the checkpoint cannot be written.
  """
  tables = list(map(records_lib.read_tables, directories))
  counts = {
      name: sum(records_lib.num_items(part[name]) for part in tables)
      for name in tables[0]
  }
  with records_lib.new_checkpoint(directory) as path:

    def join(file):
      parts = [os.path.join(part, file) for part in directories]
      join_files(parts, os.path.join(path, file))

    with futures.ThreadPoolExecutor() as executor:
      list(executor.map(join, (records_lib.CHUNKS, records_lib.ITEMS)))
    _write_merged_tables(path, tables, counts)


def join_files(parts: Sequence[str], path: str) -> None:
  """Writes a record file with the records of several, in their order.

  A file is a zlib stream (RFC 1950 and 1951): a header, blocks of bits, the
  last of which is marked, and a checksum of the content.

  Args:
    parts: files that `records.RecordFile` wrote.
    path: the new file.

  Raises:
    CheckpointError: if a part is missing or damaged.
    OSError: if `path` cannot be written.
  """
  checksum = zlib.adler32(b'')
  with open(path, 'wb') as file:
    file.write(_ZLIB_HEADER)
    for part in parts:
      try:
        for compressed, content in _read_blocks(part):
          file.write(compressed)
          checksum = zlib.adler32(content, checksum)
      except (FileNotFoundError, zlib.error) as error:
        directory, name = os.path.split(part)
        raise records_lib.damage_error(
            directory, f'{name} cannot be read: {error}'
        ) from error
    file.write(_LAST_BLOCK + checksum.to_bytes(_CHECKSUM_BYTES, 'big'))


def _read_blocks(path: str) -> Iterator[tuple[bytes, bytes]]:
  """Yields compressed bytes of a file that other blocks may follow.

  Yields:
    The compressed bytes, and their content.

  Raises:
    FileNotFoundError: if there is no such file.
    zlib.error: if the file is damaged.
  """
  decompress = zlib.decompressobj(-zlib.MAX_WBITS).decompress
  checksum = zlib.adler32(b'')
  with files.open_binary(path) as file:
    for compressed in _unmark_last_block(file, files.size_of(path)):
      content = decompress(compressed)
      checksum = zlib.adler32(content, checksum)
      yield compressed, content
    if file.read() != checksum.to_bytes(_CHECKSUM_BYTES, 'big'):
      raise zlib.error('its checksum is wrong')


def _unmark_last_block(file: BinaryIO, num_bytes: int) -> Iterator[bytes]:
  """Yields the blocks of a file, without the mark of the last one.

  The last block of a `RecordFile` is empty, since it is flushed before it is
  closed. It has 10 bits: the mark 1, then 1 0 0 0 0 0 0 0 0. Zeros fill up the
  last byte, so the mark is the second to last bit that is set. An empty block
  without compression follows, which ends at a full byte: 3 zeros, zeros up to a
  full byte, and 4 bytes.
  """
  file.seek(len(_ZLIB_HEADER))
  num_bytes -= len(_ZLIB_HEADER) + _TAIL_BYTES + _CHECKSUM_BYTES
  for begin in range(0, num_bytes, _READ_BYTES):
    yield file.read(min(_READ_BYTES, num_bytes - begin))
  tail = int.from_bytes(file.read(_TAIL_BYTES), 'little')
  mark = max(tail.bit_length() - 2, 0)
  yield (tail ^ 1 << mark).to_bytes(-(-(mark + 13) // 8), 'little')
  yield b'\0\0\xff\xff'


def split_reverb_checkpoint(
    directory: files.PathLike, directories: Sequence[files.PathLike]
) -> list[dict[str, int]]:
  """Splits a checkpoint into several, with equal shares of every table.

  The first checkpoint gets the first items of every table, the second the next
  items, and so on. A chunk that items of two checkpoints refer to is copied
  into both. `merge_reverb_checkpoints` is the inverse.

      split_reverb_checkpoint('all', ['server_0', 'server_1'])
      # [{'my_table': 500}, {'my_table': 500}]

  Args:
    directory: the checkpoint, written by this library or by a server.
    directories: where the new checkpoints go. Each directory must not exist, or
      be empty.

  Returns:
    For each new checkpoint the number of items of each table, by the name of
    the table. The `max_size` of a table is divided among them.

  Raises:
    BlockingIOError: if another process is writing to one of `directories`.
    CheckpointError: if the checkpoint is damaged.
    FileExistsError: if one of `directories` is not empty.
    FileNotFoundError: if `directory` is not a checkpoint.
    OSError: if a checkpoint cannot be written. Nothing of it remains then.
    ValueError: if `directories` is empty, or contains a directory twice.
  """
  source = files.expand(directory)
  targets = [files.expand(path) for path in directories]
  if not targets or len(set(targets)) < len(targets):
    raise ValueError(
        f'directories must be one or more different paths, but are {targets}.'
    )
  index = records_lib.read_index(source)
  names = sorted(index.tables)
  part_of_item = np.zeros(len(index.items), np.int64)
  for table in range(len(names)):
    items = np.flatnonzero(index.item_tables == table)
    ranks = np.arange(len(items))
    part_of_item[items] = ranks * len(targets) // max(len(items), 1)
  with contextlib.ExitStack() as stack:
    paths = [
        stack.enter_context(records_lib.new_checkpoint(target))
        for target in targets
    ]
    chunk_keys = _copy_items(source, paths, part_of_item)
    _copy_chunks(source, paths, index.chunks, chunk_keys)
    counts = []
    for part, path in enumerate(paths):
      num_items = np.bincount(
          index.item_tables[part_of_item == part], minlength=len(names)
      )
      counts.append(dict(zip(names, num_items.tolist())))
      with _open_file(path, records_lib.TABLES) as file:
        for name, count in counts[-1].items():
          table = _split_table(index.tables[name], count, len(targets))
          file.write([table.SerializeToString()])
  return counts


def _open_file(path: str, name: str) -> records_lib.RecordFile:
  return records_lib.RecordFile(os.path.join(path, name))


def _copy_items(source, paths, part_of_item) -> list[np.ndarray]:
  """Copies every item into its part.

  Args:
    source: the checkpoint.
    paths: the folders of the parts.
    part_of_item: the part of each item, int64 `[N]`.

  Returns:
    The sorted keys of the chunks that the items of each part refer to.
  """
  chunk_keys: list[set[int]] = [set() for _ in paths]
  parts = iter(part_of_item.tolist())
  with contextlib.ExitStack() as stack:
    part_files = [
        stack.enter_context(_open_file(path, records_lib.ITEMS))
        for path in paths
    ]
    for batch in records_lib.read_records(source, records_lib.ITEMS):
      for record, part in zip(batch, parts):
        part_files[part].write([record])
        item = protos.PrioritizedItem.FromString(record)
        chunk_keys[part].update(
            chunk_slice.chunk_key
            for column in item.flat_trajectory.columns
            for chunk_slice in column.chunk_slices
        )
  return [np.array(sorted(keys), np.uint64) for keys in chunk_keys]


def _copy_chunks(source, paths, keys, keys_of_parts) -> None:
  """Copies every chunk into the parts whose items refer to it."""
  is_needed = [np.isin(keys, part_keys) for part_keys in keys_of_parts]
  begin = 0
  with contextlib.ExitStack() as stack:
    part_files = [
        stack.enter_context(_open_file(path, records_lib.CHUNKS))
        for path in paths
    ]
    for batch in records_lib.read_records(source, records_lib.CHUNKS):
      end = begin + len(batch)
      for file, mask in zip(part_files, is_needed):
        file.write(itertools.compress(batch, mask[begin:end]))
      begin = end


def _split_table(
    table: protos.PriorityTableCheckpoint, num_items: int, num_parts: int
) -> protos.PriorityTableCheckpoint:
  """Returns the record of a table that holds a part of the items."""
  part = _table_settings(table)
  part.max_size = max(-(-table.max_size // num_parts), num_items, 1)
  part.num_unique_samples = min(table.num_unique_samples, num_items)
  part.rate_limiter.insert_count = num_items
  total = max(records_lib.num_items(table), 1)
  num_samples = table.rate_limiter.sample_count
  part.rate_limiter.sample_count = num_samples * num_items // total
  return part


def _write_merged_tables(
    path: str,
    tables: Sequence[Mapping[str, protos.PriorityTableCheckpoint]],
    counts: Mapping[str, int],
) -> None:
  """Writes the tables of a merged checkpoint.

  Args:
    path: the folder of the new checkpoint.
    tables: the tables of each of the old checkpoints, by name.
    counts: the number of items of each new table.

  Raises:
    OSError: if they cannot be written.
  """
  with _open_file(path, records_lib.TABLES) as file:
    for name, count in counts.items():
      parts = [checkpoint[name] for checkpoint in tables]
      merged = _table_settings(parts[0])
      merged.max_size = max([count, 1, *(part.max_size for part in parts)])
      num_unique_samples = sum(part.num_unique_samples for part in parts)
      merged.num_unique_samples = min(num_unique_samples, count)
      merged.rate_limiter.insert_count = count
      merged.rate_limiter.sample_count = sum(
          part.rate_limiter.sample_count for part in parts
      )
      file.write([merged.SerializeToString()])


def _table_settings(
    table: protos.PriorityTableCheckpoint,
) -> protos.PriorityTableCheckpoint:
  """Returns a copy of a table without its counts and its `max_size`."""
  settings = protos.PriorityTableCheckpoint()
  settings.CopyFrom(table)
  for field in ('max_size', 'num_deleted_episodes', 'num_unique_samples'):
    settings.ClearField(field)
  for field in ('insert_count', 'delete_count', 'sample_count'):
    settings.rate_limiter.ClearField(field)
  return settings


def _find_first(keys: list[np.ndarray], tables: list[np.ndarray]) -> np.ndarray:
  """Returns, for each record, the first record of the same key and table.

  Args:
    keys: the keys of the records of each checkpoint, uint64 `[N]` in all.
    tables: the index of the table of each record, `[N]` in all.

  Returns:
    The indices of records, int64 `[N]`.
  """
  sort_keys = np.concatenate(keys), np.concatenate(tables)
  order = np.lexsort(sort_keys)
  is_new = np.ones(len(order), bool)
  is_new[1:] = np.any([np.diff(key[order]) != 0 for key in sort_keys], axis=0)
  first = np.zeros_like(order)
  first[order] = order[is_new][np.cumsum(is_new) - 1]
  return first


def _read_first(sources, file, first):
  """Yields the first record of each key, of a file of all sources.

  Args:
    sources: the checkpoints.
    file: the name of the file.
    first: see `_find_first`.

  Raises:
    ValueError: if two records of the same key differ.
  """
  is_first = first == np.arange(len(first))
  is_shared = np.bincount(first)[first] > 1
  digests: dict[int, bytes] = {}
  begin = 0
  for source in sources:
    for batch in records_lib.read_records(source, file):
      end = begin + len(batch)
      for index in np.flatnonzero(is_shared[begin:end]).tolist():
        digest = _digest(file, batch[index])
        if digests.setdefault(int(first[begin + index]), digest) != digest:
          raise ValueError(
              f'{source} and a checkpoint before it hold different records in'
              f' {file} under the same key. Different data was written under'
              ' one identity, or with another chunk_length. Write each data set'
              ' under its own identity, or with an episode_id that no two'
              ' episodes have in common.'
          )
      yield itertools.compress(batch, is_first[begin:end])
      begin = end


def _digest(file: str, record: bytes) -> bytes:
  """Returns a digest of the content that two records of a key must share."""
  if file == records_lib.CHUNKS:
    content = protos.ChunkData.FromString(record)
  else:
    # The priority of an item and its date may differ.
    content = protos.PrioritizedItem.FromString(record).flat_trajectory
  content = content.SerializeToString(deterministic=True)
  return hashlib.blake2b(content, digest_size=8).digest()


def _set_date(record: bytes, nanoseconds: int) -> bytes:
  """Returns the record of an item with another date of insertion."""
  item = protos.PrioritizedItem.FromString(record)
  item.inserted_at.FromNanoseconds(nanoseconds)
  return item.SerializeToString()
