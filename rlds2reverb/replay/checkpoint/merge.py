"""Merges checkpoints: copies several into one."""

import hashlib
import itertools
import os
import time
from typing import Dict, List, Mapping, Sequence

import numpy as np

from rlds2reverb.datasets import files
from rlds2reverb.replay import protos
from rlds2reverb.replay.checkpoint import records as records_lib


def merge_reverb_checkpoints(
    directories: Sequence[files.PathLike],
    directory: files.PathLike,
    *,
    overwrite: bool = False,
) -> Dict[str, int]:
  """Merges checkpoints of the same tables into one.

  The merged checkpoint holds the items of the first of `directories`, then
  those of the second, and so on, each in the order that they have there. An
  item that several checkpoints hold under the same key is taken once, from the
  first of them, with the priority that it has there.

  Args:
    directories: the checkpoints, written by this library or by a server.
    directory: where the merged checkpoint goes. The directory must not exist,
      or be empty.
    overwrite: whether to replace the checkpoint that is in `directory`, which
      may be one of `directories`. It stays there until the new one is whole.

  Returns:
    The number of items of each table, by the name of the table. A merged table
    has the largest `max_size` that the table has in any of the checkpoints, or
    the number of its items if that is larger.

  Raises:
    BlockingIOError: if another process is writing to `directory`.
    FileExistsError: if `directory` is not empty.
    FileNotFoundError: if one of `directories` is not a checkpoint.
    CheckpointError: if one of them is damaged: if a file is missing or cut, or
      does not hold what the other files say.
    OSError: if the checkpoint cannot be written. Nothing of it is left then.
    ValueError: if there is no checkpoint to merge, if their tables differ, or
      if they hold different records under the same key. The last happens to two
      shards that were written under one identity and without an `episode_id`;
      and to short episodes that share chunks with others than before.
  """
  if not directories:
    raise ValueError('There must be a checkpoint to merge.')
  sources = [files.expand(path) for path in directories]
  directory = files.expand(directory)
  if overwrite and files.names_in(directory):
    records_lib.read_tables(directory)  # Nothing but a checkpoint is replaced.
  indices = [records_lib.read_index(path) for path in sources]
  names = sorted(indices[0].tables)
  settings = [
      {name: _settings(index.tables[name]) for name in sorted(index.tables)}
      for index in indices
  ]
  for path, others in zip(sources, settings):
    if others != settings[0]:
      raise ValueError(
          'The checkpoints must have the same tables, but those of'
          f' {sources[0]} are\n{settings[0]}\nand those of {path}\n{others}'
      )
  of_tables = [index.item_tables for index in indices]
  first_items = _firsts([index.items for index in indices], of_tables)
  chunks = [index.chunks for index in indices]
  first_chunks = _firsts(chunks, [each * 0 for each in chunks])
  copied = np.concatenate(of_tables)[first_items == np.arange(len(first_items))]
  counts = np.bincount(copied, minlength=len(names)).tolist()
  # A server writes the items of a table in the order of these dates, so the
  # items keep their order in the server's own checkpoints too.
  dates = itertools.count(time.time_ns())
  with records_lib.new_checkpoint(directory, replace=overwrite) as path:
    write = lambda file: records_lib.RecordFile(os.path.join(path, file))
    with write(records_lib.CHUNKS) as copy:
      for batch in _distinct(sources, records_lib.CHUNKS, first_chunks):
        copy.write(batch)
    with write(records_lib.ITEMS) as copy:
      for batch in _distinct(sources, records_lib.ITEMS, first_items):
        copy.write(map(_dated, batch, dates))
    counts = dict(zip(names, counts))
    write_tables(path, [index.tables for index in indices], counts)
  return counts


def write_tables(
    path: str,
    tables: Sequence[Mapping[str, protos.PriorityTableCheckpoint]],
    counts: Mapping[str, int],
) -> None:
  """Writes the tables that several checkpoints make together.

  Args:
    path: the folder of the new checkpoint.
    tables: the tables of each of the checkpoints, by name.
    counts: how many items each table holds then.

  Raises:
    OSError: if they cannot be written.
  """
  file = os.path.join(path, records_lib.TABLES)
  with records_lib.RecordFile(file) as copy:
    for name, count in counts.items():
      merged = _merged_table([each[name] for each in tables], count)
      copy.write([merged.SerializeToString()])


def _firsts(keys: List[np.ndarray], tables: List[np.ndarray]) -> np.ndarray:
  """Returns the first record that has the key and the table of each record.

  Args:
    keys: the keys of the records of each checkpoint, uint64 `[N]` in all.
    tables: the index of the table of each record, `[N]` in all.

  Returns:
    The indices of records, int64 `[N]`.
  """
  both = np.concatenate(keys), np.concatenate(tables)
  order = np.lexsort(both)
  keys, tables = (each[order] for each in both)
  is_new = np.ones(len(order), bool)
  is_new[1:] = (keys[1:] != keys[:-1]) | (tables[1:] != tables[:-1])
  first = np.zeros_like(order)
  first[order] = order[is_new][np.cumsum(is_new) - 1]
  return first


def _distinct(sources, file, first):
  """Yields the records of a file of all sources, each key once.

  Args:
    sources: the checkpoints.
    file: the name of the file.
    first: see `_firsts`.

  Raises:
    ValueError: if two records of the same key differ.
  """
  is_first = first == np.arange(len(first))
  is_shared = np.bincount(first)[first] > 1
  digests: Dict[int, bytes] = {}
  begin = 0
  for source in sources:
    for batch in records_lib.read(source, file):
      end = begin + len(batch)
      for shared in np.flatnonzero(is_shared[begin:end]).tolist():
        digest = _digest(file, batch[shared])
        if digests.setdefault(int(first[begin + shared]), digest) != digest:
          raise ValueError(
              f'{source} and a checkpoint before it hold different records in'
              f' {file} under the same key. Different data was written under'
              ' one identity, or with another chunk_length. Write each under'
              ' an identity of its own, or with an episode_id that no two'
              ' episodes have in common.'
          )
      yield itertools.compress(batch, is_first[begin:end])
      begin = end


def _digest(file: str, record: bytes) -> bytes:
  """Digests what is equal in two records of a key, in any encoding."""
  if file == records_lib.CHUNKS:
    content = protos.ChunkData.FromString(record)
  else:
    # The priority of an item, and when it was inserted, may differ.
    content = protos.PrioritizedItem.FromString(record).flat_trajectory
  content = content.SerializeToString(deterministic=True)
  return hashlib.blake2b(content, digest_size=8).digest()


def _dated(record: bytes, nanoseconds: int) -> bytes:
  """Returns the record of an item with another date of insertion."""
  item = protos.PrioritizedItem.FromString(record)
  item.inserted_at.FromNanoseconds(nanoseconds)
  return item.SerializeToString()


def _merged_table(
    tables: List[protos.PriorityTableCheckpoint], num_items: int
) -> protos.PriorityTableCheckpoint:
  """Returns the record of a table that holds the items of several."""
  table = _settings(tables[0])
  table.max_size = max([num_items, 1, *(each.max_size for each in tables)])
  sampled = sum(each.num_unique_samples for each in tables)
  table.num_unique_samples = min(sampled, num_items)
  table.rate_limiter.insert_count = num_items
  table.rate_limiter.sample_count = sum(
      each.rate_limiter.sample_count for each in tables
  )
  return table


def _settings(
    table: protos.PriorityTableCheckpoint,
) -> protos.PriorityTableCheckpoint:
  """Returns a table without what it has counted, and how much fits in."""
  settings = protos.PriorityTableCheckpoint()
  settings.CopyFrom(table)
  for count in ('max_size', 'num_deleted_episodes', 'num_unique_samples'):
    settings.ClearField(count)
  for count in ('insert_count', 'delete_count', 'sample_count'):
    settings.rate_limiter.ClearField(count)
  return settings
