"""Starts Reverb servers from checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import contextlib
import dataclasses
import glob
import os
import shutil
import socket
import tempfile
from typing import Any
import weakref

from absl import logging

from rlds2reverb.datasets import files
from rlds2reverb.episodes import checks
from rlds2reverb.replay import reverb
from rlds2reverb.replay.checkpoint import records as records_lib
from rlds2reverb.replay.checkpoint import write
from rlds2reverb.replay.server import tables as tables_lib

_TIMEOUT_SECONDS = 30


@dataclasses.dataclass(frozen=True)
class TableOverrides:
  """Settings of a table that override the settings in its checkpoint.

  A setting of None stays unchanged.

  Attributes:
    name: the name of the table; None for all tables of the checkpoint. Settings
      by name take precedence.
    sampler: a function that creates the selector that samples items. Tables
      cannot share a selector or a rate limiter, so each calls the function.
    max_size: the maximum number of items.
    max_times_sampled: how often an item is sampled before it is removed; 0 for
      no limit.
    rate_limiter: a function that creates the rate limiter.
  """

  name: str | None = None
  sampler: Callable[[], Any] | None = None
  max_size: int | None = None
  max_times_sampled: int | None = None
  rate_limiter: Callable[[], reverb.rate_limiters.RateLimiter] | None = None

  def with_defaults(self, defaults: TableOverrides) -> TableOverrides:
    """Returns these overrides, with `defaults` for settings that are None."""
    return dataclasses.replace(
        defaults,
        **{
            name: value
            for name, value in vars(self).items()
            if value is not None
        },
    )

  def apply(self, record: Any) -> reverb.Table:
    """Returns the table of a checkpoint's record with these settings."""
    limiter = record.rate_limiter
    return reverb.Table(
        record.table_name,
        sampler=self.sampler() if self.sampler else _selector(record.sampler),
        remover=_selector(record.remover),
        max_size=record.max_size if self.max_size is None else self.max_size,
        max_times_sampled=(
            record.max_times_sampled
            if self.max_times_sampled is None
            else self.max_times_sampled
        ),
        rate_limiter=(
            self.rate_limiter()
            if self.rate_limiter
            else reverb.rate_limiters.RateLimiter(
                samples_per_insert=limiter.samples_per_insert,
                min_size_to_sample=limiter.min_size_to_sample,
                min_diff=limiter.min_diff,
                max_diff=limiter.max_diff,
            )
        ),
    )


def _selector(options: Any) -> Any:
  """Returns the selector that Reverb's `KeyDistributionOptions` define."""
  selectors = reverb.selectors
  kind = options.WhichOneof('distribution')
  if kind == 'prioritized':
    return selectors.Prioritized(options.prioritized.priority_exponent)
  if kind == 'heap':
    return selectors.MinHeap() if options.heap.min_heap else selectors.MaxHeap()
  return {
      'fifo': selectors.Fifo,
      'lifo': selectors.Lifo,
      'uniform': selectors.Uniform,
  }[kind]()


def restore_reverb_server(
    directory: files.PathLike,
    *,
    port: int | None = None,
    checkpoint_root: files.PathLike | None = None,
    tables: Sequence[reverb.Table | TableOverrides] = (),
) -> reverb.Server:
  """Starts a Reverb server from a checkpoint.

  Tables have the settings of the checkpoint, unless `tables` overrides them:

      restore_reverb_server('/data/cartpole', tables=[
          reverb.Table(
              'transitions',
              sampler=reverb.selectors.Prioritized(0.6),
              remover=reverb.selectors.Fifo(),
              max_size=2_000_000,
              rate_limiter=reverb.rate_limiters.MinSize(1000))])

  Like every Reverb server, it listens on all interfaces and does not
  authenticate its clients: whoever reaches the port can read and change its
  tables.

  Args:
    directory: the checkpoint, on the local disk.
    port: the port of the server. By default a free port is chosen.
    checkpoint_root: the directory on the local disk that the server writes its
      own checkpoints to. If it already has one, the server starts from that one
      instead of `directory`. Reverb removes all other files from this
      directory. The default is a temporary directory, which is removed with the
      server.
    tables: tables of the checkpoint with other settings: sampler, remover,
      maximum size, rate limiter and the number of times that an item is
      sampled; or `TableOverrides`, which override single settings. The items
      and the signature stay unchanged. The rate limiter starts with all items
      as inserted, and no samples.

  Returns:
    The server, with the tables of the checkpoint.

  Raises:
    FileNotFoundError: if `directory` is not a complete checkpoint.
    CheckpointError: if it is damaged: if a file is missing or truncated, or its
      content does not match the other files.
    ConnectionError: if the server does not answer.
    ValueError: if `port` is in use, if a directory is not on the local disk, if
      `checkpoint_root` contains `directory`, unless that is the newest
      checkpoint there; or if one of `tables` is not in the checkpoint, is given
      twice, or is smaller than the number of its items.
  """
  directory = files.expand_local(directory, 'The checkpoint')
  if port is not None:
    check_port(port)
  if checkpoint_root is not None:
    checkpoint_root = files.expand_local(checkpoint_root, 'checkpoint_root')
    newest = newest_checkpoint(checkpoint_root)
    is_newest = newest is not None and os.path.samefile(newest, directory)
    if not is_newest and os.path.realpath(directory).startswith(
        os.path.join(os.path.realpath(checkpoint_root), '')
    ):
      raise ValueError(
          f'checkpoint_root {checkpoint_root} holds {directory}, and Reverb'
          ' removes old checkpoints from its root. Choose another root.'
      )
    directory = newest or directory
  with contextlib.ExitStack() as stack:
    if checkpoint_root is None:
      checkpoint_root = stack.enter_context(tempfile.TemporaryDirectory())
    if tables:
      folder = checkpoint_root
      if newest_checkpoint(checkpoint_root) is None:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
      directory = _override_tables(directory, folder, tables)
    try:
      server = _start_server(directory, port, checkpoint_root)
    except BaseException:
      if tables:  # In the root, the copy would be the newest checkpoint.
        shutil.rmtree(directory, ignore_errors=True)
      raise
    weakref.finalize(server, stack.pop_all().close)
  logging.info(
      'A Reverb server with %s listens on port %d of all interfaces, without'
      ' authentication.',
      directory,
      server.port,
  )
  return server


def _override_tables(directory, folder, tables) -> str:
  """Writes a checkpoint of the same items with other settings of its tables.

  Args:
    directory: the checkpoint.
    folder: where the new checkpoint goes. Its name sorts after the name of
      `directory`, so a server with this root starts from it.
    tables: tables with other settings, and `TableOverrides`.

  Returns:
    The path of the new checkpoint. Its large files are links if possible.
  """
  records = records_lib.read_tables(directory)
  named_tables = [table for table in tables if table.name is not None]
  names = [table.name for table in named_tables]
  for name in names:
    checks.check_known('The checkpoint', 'table', name, list(records))
  if len(set(names)) < len(names):
    raise ValueError(f'tables has a table twice: {names}.')
  new_tables = dict(zip(names, named_tables))
  for defaults in (table for table in tables if table.name is None):
    for name in records:
      table = new_tables.get(name, TableOverrides(name))
      if isinstance(table, TableOverrides):
        new_tables[name] = table.with_defaults(defaults)
  for name, table in new_tables.items():
    record = records[name]
    if isinstance(table, TableOverrides):
      table = table.apply(record)
    new_record = write.table_checkpoint(
        name, table, records_lib.num_items(record), None
    )
    if record.HasField('signature'):
      new_record.signature.CopyFrom(record.signature)
    new_record.num_unique_samples = record.num_unique_samples
    records[name] = new_record
  name = os.path.basename(directory.rstrip(os.sep))
  target = os.path.join(folder, f'{name}.with_tables')
  with records_lib.new_checkpoint(target, replace=True) as path:
    for file in records_lib.ITEMS, records_lib.CHUNKS:
      files.link(os.path.join(directory, file), os.path.join(path, file))
    with records_lib.RecordFile(os.path.join(path, records_lib.TABLES)) as file:
      file.write(record.SerializeToString() for record in records.values())
  return target


def check_port(port: int) -> None:
  """Raises a ValueError if a port is in use."""
  # A second Reverb server would start on the same port without an error.
  with socket.socket() as probe:
    # Old connections of a server that died do not block the port.
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
      probe.bind(('', port))
    except OSError as error:
      raise ValueError(
          f'Port {port} is in use. Choose another one, or none.'
      ) from error


def newest_checkpoint(root: str) -> str | None:
  """Returns the newest checkpoint in `root`, which a server starts from.

  Args:
    root: a directory that a server writes its checkpoints to, as `files.expand`
      returns it. It need not exist.

  Returns:
    The path of the checkpoint, or None if there is no checkpoint.
  """
  markers = glob.glob(os.path.join(glob.escape(root), '*', records_lib.DONE))
  return max(map(os.path.dirname, markers), default=None)


def _start_server(directory, port, checkpoint_root) -> reverb.Server:
  """Starts a server, and checks that it has loaded all items."""
  tables = records_lib.read_tables(directory)
  records_lib.validate(directory, tables)
  try:
    server = reverb.Server(
        [
            # Everything but the name comes from the checkpoint.
            reverb.Table(
                name,
                sampler=reverb.selectors.Uniform(),
                remover=reverb.selectors.Fifo(),
                max_size=table.max_size,
                rate_limiter=reverb.rate_limiters.MinSize(1),
            )
            for name, table in tables.items()
        ],
        port,
        reverb.checkpointers.DefaultCheckpointer(
            checkpoint_root, fallback_checkpoint_path=directory
        ),
    )
  except RuntimeError as error:
    raise records_lib.CheckpointError(
        f'The checkpoint {directory} is damaged, or has other tables: {error}'
    ) from error
  try:
    infos = tables_lib.table_infos(server, list(tables), _TIMEOUT_SECONDS)
    # A server silently skips items that are repeated or lack a chunk.
    for name, table in tables.items():
      records_lib.check_num_items(directory, table, infos[name].current_size)
  except BaseException:
    server.stop()
    raise
  return server
