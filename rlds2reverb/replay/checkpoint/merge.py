"""Merges Reverb checkpoints into one."""

import hashlib
import itertools
import time
from typing import Dict, Sequence

import numpy as np

from rlds2reverb.datasets import files
from rlds2reverb.replay import encoding
from rlds2reverb.replay import messages
from rlds2reverb.replay.checkpoint import new_checkpoint
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
      shards that were written under one identity and without an `episode_id`.
  """
  if not directories:
    raise ValueError('There must be a checkpoint to merge.')
  directory = files.expand(directory)
  folders = [files.expand(path) for path in directories]
  indices = [records_lib.read_index(path) for path in folders]
  tables = [index.tables for index in indices]
  if overwrite and files.names_in(directory):
    records_lib.read_tables(directory)  # Nothing but a checkpoint is replaced.
  for path, others in zip(folders[1:], tables[1:]):
    _check_same_tables(folders[0], tables[0], path, others)
  names = list(tables[0])
  with new_checkpoint.new_checkpoint(directory, replace=overwrite) as path:
    chunks = np.concatenate([index.chunks for index in indices])
    items = np.concatenate([index.items for index in indices])
    # Every checkpoint has the tables in an order of its own.
    of_tables = np.concatenate(
        [
            np.array([names.index(name) for name in index.tables])[
                index.item_tables
            ]
            for index in indices
        ]
    )
    _copy_records(
        folders,
        records_lib.CHUNKS,
        path,
        chunks,
        np.zeros_like(chunks),
        _content_of_chunk,
    )
    copied = _copy_records(
        folders, records_lib.ITEMS, path, items, of_tables, _content_of_item
    )
    counts = np.bincount(of_tables[copied], minlength=len(names)).tolist()
    counts = dict(zip(names, counts))
    for name, table in tables[0].items():
      _add_up(table, [others[name] for others in tables], counts[name])
    new_checkpoint.write_tables(path, tables[0].values())
  return counts


def _add_up(table, tables, num_items) -> None:
  """Makes the counts of `table` those of the merged table.

  Args:
    table: the `PriorityTableCheckpoint` of the merged table.
    tables: those of the same table in all the checkpoints.
    num_items: the number of items of the merged table.
  """
  samples = sum(other.rate_limiter.sample_count for other in tables)
  unique_samples = sum(other.num_unique_samples for other in tables)
  table.max_size = max(num_items, *(other.max_size for other in tables))
  table.rate_limiter.insert_count = num_items
  table.rate_limiter.delete_count = 0
  table.rate_limiter.sample_count = samples
  table.num_unique_samples = unique_samples
  table.num_deleted_episodes = 0


def _copy_records(directories, file, path, keys, tables, content):
  """Copies the records of several checkpoints, each key once.

  Args:
    directories: the checkpoints.
    file: which of their files to copy.
    path: the folder of the merged checkpoint.
    keys: the keys of all records, in their order, uint64 `[N]`.
    tables: the tables of the records, int64 `[N]`. Two records are the same if
      they have the same key in the same table.
    content: a function of a record that returns the part of it that must be
      equal for two records of the same key.

  Returns:
    Which records were copied, bool `[N]`.
  """
  # The place of the first record that has the key and the table of each record.
  first = np.zeros(len(keys), np.int64)
  for table in np.unique(tables):
    (chosen,) = np.nonzero(tables == table)
    _, firsts, inverse = np.unique(
        keys[chosen], return_index=True, return_inverse=True
    )
    first[chosen] = chosen[firsts[inverse]]
  is_first = first == np.arange(len(first))
  is_shared = np.bincount(first, minlength=len(first))[first] > 1
  digests = np.zeros(len(first) if is_shared.any() else 0, np.uint64)
  inserted_at = time.time_ns() + np.cumsum(is_first)
  begin = 0
  with new_checkpoint.RecordFile(path, file) as copy:
    for directory in directories:
      for batch in records_lib.read(directory, file):
        chosen = slice(begin, begin + len(batch))
        for place in begin + np.flatnonzero(is_shared[chosen]):
          digest = _digest(content(batch[place - begin]))
          if is_first[place]:
            digests[place] = digest
          elif digests[first[place]] != digest:
            raise ValueError(
                f'{directory} and a checkpoint before it hold different records'
                f' in {file} under the same key. Different data was written'
                ' under one identity, or with another chunk_length. Write each'
                ' under an identity of its own, or with an episode_id that no'
                ' two episodes have in common.'
            )
        begin = chosen.stop
        kept = list(itertools.compress(batch, is_first[chosen]))
        if file == records_lib.ITEMS:
          # A server writes the items of a table in the order of these dates, so
          # the items keep their order in the server's own checkpoints too.
          dates = inserted_at[chosen][is_first[chosen]]
          kept = encoding.redate_items(kept, dates)
        copy.write(kept)
  return is_first


def _digest(content: bytes) -> int:
  digest = hashlib.blake2b(content, digest_size=8).digest()
  return int.from_bytes(digest, 'little')


def _content_of_chunk(record: bytes) -> bytes:
  # A server writes the same numbers in fewer bytes.
  chunk = messages.ChunkData.FromString(record)
  return chunk.SerializeToString(deterministic=True)


def _content_of_item(record: bytes) -> bytes:
  # The priority of an item, and when it was inserted, may differ.
  item = messages.PrioritizedItem.FromString(record)
  return item.flat_trajectory.SerializeToString(deterministic=True)


def _check_same_tables(path, tables, other_path, others) -> None:
  """Raises a ValueError if the tables of two checkpoints differ."""

  def settings(table):
    settings = messages.PriorityTableCheckpoint()
    settings.CopyFrom(table)
    for count in ('max_size', 'num_deleted_episodes', 'num_unique_samples'):
      settings.ClearField(count)
    for count in ('insert_count', 'delete_count', 'sample_count'):
      settings.rate_limiter.ClearField(count)
    return settings

  if tables.keys() != others.keys():
    raise ValueError(
        f'The checkpoints must have the same tables, but {path} has'
        f' {sorted(tables)}, and {other_path} has {sorted(others)}.'
    )
  for name, table in tables.items():
    if settings(table) != settings(others[name]):
      raise ValueError(
          f'Table {name!r} differs between the checkpoints {path} and'
          f' {other_path}:\n{settings(table)}\n{settings(others[name])}'
      )
