"""Splits a Reverb checkpoint into parts, for a server each."""

from __future__ import annotations

import contextlib
import os
import tempfile
from typing import Any, Dict, List, Optional, Sequence

import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.replay import messages
from rlds2reverb.replay import reverb
from rlds2reverb.replay.checkpoint import new_checkpoint
from rlds2reverb.replay.checkpoint import records as records_lib
from rlds2reverb.replay.checkpoint import serve


def split_reverb_checkpoint(
    directory: files.PathLike, directories: Sequence[files.PathLike]
) -> List[Dict[str, int]]:
  """Splits a checkpoint into several, each with as many items of every table.

  The first has the first items of every table, the second those that follow,
  and so on. Chunks that items of two of them refer to are in both. What this
  holds in memory are 8 bytes for each chunk.

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
  directory = files.expand(directory)
  tables = records_lib.read_index(directory).tables
  with contextlib.ExitStack() as stack:
    paths = [
        stack.enter_context(new_checkpoint.new_checkpoint(files.expand(each)))
        for each in directories
    ]
    counts, chunk_keys = _split_items(directory, tables, paths)
    _split_chunks(directory, chunk_keys, paths)
    for path, count in zip(paths, counts):
      new_checkpoint.write_tables(
          path,
          [
              _share_of(table, count[name], len(paths))
              for name, table in tables.items()
          ],
      )
  return counts


def restore_reverb_servers(
    directory: files.PathLike,
    num_servers: int,
    *,
    ports: Optional[Sequence[int]] = None,
) -> List[reverb.Server]:
  """Starts several servers from one checkpoint, each with its share of it.

  On several machines, split the checkpoint with `split_reverb_checkpoint`, and
  start a server of its part on each, with `restore_reverb_server`.

  Args:
    directory: the checkpoint: a path, or a URL that TensorFlow can read.
    num_servers: how many servers to start.
    ports: a port for each. By default free ports are chosen.

  Returns:
    The servers, in the order of their items.

  Raises:
    OSError: as `restore_reverb_server` does, or if there is no space for
      another copy of the checkpoint while the servers start.
    CheckpointError: if the checkpoint is damaged.
    ValueError: if `num_servers` is not positive, or as `restore_reverb_server`
      does.
  """
  if num_servers < 1 or ports is not None and len(ports) != num_servers:
    raise ValueError(
        f'num_servers must be positive, with as many ports; it is {num_servers}'
        f' with {ports}.'
    )
  servers = []
  try:
    with tempfile.TemporaryDirectory() as folder:
      parts = [os.path.join(folder, f'{i}') for i in range(num_servers)]
      split_reverb_checkpoint(directory, parts)
      for index, part in enumerate(parts):
        port = None if ports is None else ports[index]
        servers.append(serve.restore_reverb_server(part, port=port))
  except BaseException:
    for server in servers:
      server.stop()
    raise
  return servers


def _split_items(directory, tables, paths):
  """Copies each item into the checkpoint that it goes to.

  Returns:
    The number of items of each table, by name, and the keys of the chunks that
    the items refer to, sorted, both in each of the checkpoints.
  """
  seen = dict.fromkeys(tables, 0)
  counts = [dict.fromkeys(tables, 0) for _ in paths]
  needed: List[List[np.ndarray]] = [[np.zeros(0, np.uint64)] for _ in paths]
  with contextlib.ExitStack() as stack:
    copies = [
        stack.enter_context(new_checkpoint.RecordFile(path, records_lib.ITEMS))
        for path in paths
    ]
    for batch, names in records_lib.read_parsed(
        directory, records_lib.ITEMS, _with_tables
    ):
      part_of = np.zeros(len(batch), np.int64)
      for name, table in tables.items():
        (chosen,) = np.nonzero(names == name.encode())
        places = seen[name] + np.arange(len(chosen))
        seen[name] += len(chosen)
        part_of[chosen] = np.minimum(
            places * len(paths) // max(records_lib.num_items(table), 1),
            len(paths) - 1,
        )
        for part, count in zip(*np.unique(part_of[chosen], return_counts=True)):
          counts[part][name] += int(count)
      for part in np.unique(part_of):
        records = batch[part_of == part]
        copies[part].write(records.tolist())
        keys = records_lib.parse_items(tf.constant(records)).chunks
        needed[part].append(np.unique(keys.numpy()))
  return counts, [np.unique(np.concatenate(keys)) for keys in needed]


def _split_chunks(directory, chunk_keys, paths) -> None:
  """Copies each chunk into the checkpoints whose items refer to it."""
  with contextlib.ExitStack() as stack:
    copies = [
        stack.enter_context(new_checkpoint.RecordFile(path, records_lib.CHUNKS))
        for path in paths
    ]
    for batch, keys in records_lib.read_parsed(
        directory, records_lib.CHUNKS, _with_keys
    ):
      for copy, needed in zip(copies, chunk_keys):
        copy.write(batch[np.isin(keys, needed)].tolist())


def _with_tables(records: tf.Tensor) -> Any:
  (names,), _ = records_lib.decode(
      records, messages.PrioritizedItem, table=tf.string
  )
  return records, names[:, 0]


def _with_keys(records: tf.Tensor) -> Any:
  keys, _ = records_lib.parse_chunks(records)
  return records, keys


def _share_of(table, num_items, num_parts):
  """Returns the record of a table that has some of its items."""
  share = type(table)()
  share.CopyFrom(table)
  limiter = share.rate_limiter
  total = max(records_lib.num_items(table), 1)
  share.max_size = max(-(-table.max_size // num_parts), num_items, 1)
  limiter.sample_count = limiter.sample_count * num_items // total
  limiter.insert_count = num_items
  limiter.delete_count = 0
  share.num_unique_samples = min(table.num_unique_samples, num_items)
  share.num_deleted_episodes = 0
  return share
