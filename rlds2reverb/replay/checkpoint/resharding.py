"""Copies checkpoints into others: merges several, or splits one.

merged     a  b            split    c
into       a+b             into     c[:2]  c[2:]
"""

import contextlib
import hashlib
import itertools
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.replay import encoding
from rlds2reverb.replay import messages
from rlds2reverb.replay.checkpoint import new_checkpoint
from rlds2reverb.replay.checkpoint import parsing
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
  if overwrite and files.names_in(directory):
    records_lib.read_tables(directory)  # Nothing but a checkpoint is replaced.
  [counts] = _copy(
      [files.expand(path) for path in directories],
      [directory],
      replace=overwrite,
  )
  return counts


def split_reverb_checkpoint(
    directory: files.PathLike, directories: Sequence[files.PathLike]
) -> List[Dict[str, int]]:
  """Splits a checkpoint into several, each with as many items of every table.

  The first has the first items of every table, the second those that follow,
  and so on. Chunks that items of two of them refer to are in both.

  Args:
    directory: the checkpoint, written by this library or by a server.
    directories: where the new checkpoints go. A directory must not exist, or be
      empty.

  Returns:
    The number of items of each table, by its name, in each of the checkpoints.
    The `max_size` of a table is shared out too.

  Raises:
    BlockingIOError: if another process is writing to one of `directories`.
    CheckpointError: if the checkpoint is damaged.
    FileExistsError: if one of `directories` is not empty.
    FileNotFoundError: if `directory` is not a whole checkpoint.
    OSError: if a checkpoint cannot be written.
    ValueError: if there are no `directories`.
  """
  if not directories:
    raise ValueError('There must be a directory for a part of the checkpoint.')
  return _copy(
      [files.expand(directory)], [files.expand(each) for each in directories]
  )


class _Records(NamedTuple):
  """The records to copy from one file of every source, in their order.

  Attributes:
    first: the index of the first record that has the key and the table of each
      record, int64 `[N]`. That record alone is copied.
    content: a function of a record that returns the part of it that must be
      equal for two records of the same key.
  """

  first: np.ndarray
  content: Any

  @property
  def is_first(self) -> np.ndarray:
    return self.first == np.arange(len(self.first))


def _copy(
    sources: Sequence[str], targets: Sequence[str], *, replace: bool = False
) -> List[Dict[str, int]]:
  """Copies the items of checkpoints into others, as many into each.

  Args:
    sources: the checkpoints to copy from, in the order of their items.
    targets: the new checkpoints; the first gets the first items.
    replace: whether what is in the targets is replaced.

  Returns:
    The number of items of each table, by its name, in each of the targets.
  """
  indices = [records_lib.read_index(path) for path in sources]
  names = list(indices[0].tables)
  for path, index in zip(sources[1:], indices[1:]):
    _check_same_tables(sources[0], indices[0].tables, path, index.tables)
  # Each checkpoint may have the tables in another order.
  of_tables = np.concatenate(
      [
          np.array([names.index(name) for name in index.tables])[
              index.item_tables
          ]
          for index in indices
      ]
  )
  items = _Records(
      _firsts(np.concatenate([index.items for index in indices]), of_tables),
      _content_of_item,
  )
  chunk_keys = np.concatenate([index.chunks for index in indices])
  chunks = _Records(
      _firsts(chunk_keys, np.zeros_like(chunk_keys)), _content_of_chunk
  )
  target_of, counts = _shares(items.is_first, of_tables, len(names), targets)
  with contextlib.ExitStack() as stack:
    paths = [
        stack.enter_context(
            new_checkpoint.new_checkpoint(target, replace=replace)
        )
        for target in targets
    ]
    needed = _copy_items(sources, paths, items, target_of)
    _copy_chunks(sources, paths, chunks, chunk_keys, needed)
    for path, count in zip(paths, counts):
      new_checkpoint.write_tables(
          path,
          [
              _table_of(
                  [index.tables[name] for index in indices],
                  int(count[number]),
                  int(counts[:, number].sum()),
                  len(targets),
              )
              for number, name in enumerate(names)
          ],
      )
  return [dict(zip(names, count.tolist())) for count in counts]


def _firsts(keys: np.ndarray, tables: np.ndarray) -> np.ndarray:
  """Returns `_Records.first`, given the keys and tables of records."""
  first = np.zeros(len(keys), np.int64)
  for table in np.unique(tables):
    (chosen,) = np.nonzero(tables == table)
    _, firsts, inverse = np.unique(
        keys[chosen], return_index=True, return_inverse=True
    )
    first[chosen] = chosen[firsts[inverse]]
  return first


def _shares(is_copied, of_tables, num_tables, targets):
  """Returns the target of each item, and the counts `[targets, tables]`."""
  target_of = np.zeros(len(is_copied), np.int64)
  counts = np.zeros([len(targets), num_tables], np.int64)
  for table in range(num_tables):
    (chosen,) = np.nonzero(is_copied & (of_tables == table))
    shares = np.arange(len(chosen)) * len(targets) // max(len(chosen), 1)
    target_of[chosen] = shares
    counts[:, table] = np.bincount(shares, minlength=len(targets))
  return target_of, counts


def _copy_items(sources, paths, items, target_of) -> List[Optional[np.ndarray]]:
  """Copies items; returns the keys of the chunks that each target needs.

  The result is None for a single target, which needs all chunks.
  """
  needed: List[List[np.ndarray]] = [[np.zeros(0, np.uint64)] for _ in paths]
  # A server writes the items of a table in the order of these dates, so the
  # items keep their order in the server's own checkpoints too.
  dates = time.time_ns() + np.cumsum(items.is_first)
  with contextlib.ExitStack() as stack:
    copies = _open(stack, paths, records_lib.ITEMS)
    for place, batch in _distinct(sources, records_lib.ITEMS, items):
      for target in np.unique(target_of[place]):
        is_in = target_of[place] == target
        records = list(itertools.compress(batch, is_in))
        copies[target].write(
            encoding.redate_items(records, dates[place[is_in]])
        )
        if len(paths) > 1:
          keys = parsing.parse_items(tf.constant(records)).chunks
          needed[target].append(np.unique(keys.numpy()))
  if len(paths) == 1:
    return [None]
  return [np.unique(np.concatenate(keys)) for keys in needed]


def _copy_chunks(sources, paths, chunks, keys, needed) -> None:
  """Copies each chunk into the targets that need it."""
  with contextlib.ExitStack() as stack:
    copies = _open(stack, paths, records_lib.CHUNKS)
    for place, batch in _distinct(sources, records_lib.CHUNKS, chunks):
      for copy, needed_here in zip(copies, needed):
        copy.write(
            batch
            if needed_here is None
            else itertools.compress(batch, np.isin(keys[place], needed_here))
        )


def _open(stack, paths, file) -> List[new_checkpoint.RecordFile]:
  return [
      stack.enter_context(new_checkpoint.RecordFile(path, file))
      for path in paths
  ]


def _distinct(sources, file, records: _Records):
  """Yields the records of all sources that are copied, with their indices.

  Raises:
    ValueError: if two records of the same key differ.
  """
  first, is_first = records.first, records.is_first
  is_shared = np.bincount(first, minlength=len(first))[first] > 1
  digests = np.zeros(len(first) if is_shared.any() else 0, np.uint64)
  begin = 0
  for source in sources:
    for batch in records_lib.read(source, file):
      place = begin + np.arange(len(batch))
      for shared in place[is_shared[place]]:
        digest = _digest(records.content(batch[shared - begin]))
        if is_first[shared]:
          digests[shared] = digest
        elif digests[first[shared]] != digest:
          raise ValueError(
              f'{source} and a checkpoint before it hold different records in'
              f' {file} under the same key. Different data was written under'
              ' one identity, or with another chunk_length. Write each under'
              ' an identity of its own, or with an episode_id that no two'
              ' episodes have in common.'
          )
      begin += len(batch)
      chosen = is_first[place]
      yield place[chosen], list(itertools.compress(batch, chosen))


def _table_of(tables, num_items, total, num_targets):
  """Returns the record of a table of a target.

  Args:
    tables: the records of the same table in all sources.
    num_items: the number of its items in the target.
    total: that number in all targets.
    num_targets: how many targets there are.
  """
  table = type(tables[0])()
  table.CopyFrom(tables[0])
  limiter = table.rate_limiter
  max_size = max(other.max_size for other in tables)
  table.max_size = max(-(-max_size // num_targets), num_items, 1)
  samples = sum(other.rate_limiter.sample_count for other in tables)
  limiter.sample_count = samples * num_items // max(total, 1)
  limiter.insert_count = num_items
  limiter.delete_count = 0
  table.num_unique_samples = min(
      sum(other.num_unique_samples for other in tables), num_items
  )
  table.num_deleted_episodes = 0
  return table


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
