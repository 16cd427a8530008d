"""Starts Reverb servers from checkpoints."""

from __future__ import annotations

import contextlib
import glob
import os
import socket
import tempfile
from typing import Optional
import weakref

from absl import logging

from rlds2reverb.datasets import files
from rlds2reverb.replay import reverb
from rlds2reverb.replay.checkpoint import records as records_lib
from rlds2reverb.replay.server import tables as tables_lib

_TIMEOUT_SECONDS = 30


def restore_reverb_server(
    directory: files.PathLike,
    *,
    port: Optional[int] = None,
    checkpoint_root: Optional[files.PathLike] = None,
) -> reverb.Server:
  """Starts a Reverb server from a checkpoint.

  Like every Reverb server, it listens on all interfaces and does not
  authenticate its clients: whoever reaches the port can read and change its
  tables.

  Args:
    directory: the checkpoint, on the local disk.
    port: the port of the server. By default a free port is chosen.
    checkpoint_root: the directory on the local disk that the server writes its
      own checkpoints to. If there is one already, the server starts from that
      one instead of `directory`. Reverb removes everything else from this
      directory. The default is a temporary directory, which is removed with the
      server.

  Returns:
    The server, with the tables of the checkpoint.

  Raises:
    FileNotFoundError: if `directory` is not a whole checkpoint.
    CheckpointError: if it is damaged: if a file is missing or cut, or does not
      hold what the other files say.
    ConnectionError: if the server does not answer.
    ValueError: if `port` is in use, if a directory is not on the local disk, or
      if `checkpoint_root` contains `directory`, unless that is the newest
      checkpoint there.
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
    server = _start(directory, port, checkpoint_root)
    weakref.finalize(server, stack.pop_all().close)
  logging.info(
      'A Reverb server with %s listens on port %d of all interfaces, without'
      ' authentication.',
      directory,
      server.port,
  )
  return server


def check_port(port: int) -> None:
  """Raises a ValueError if a port is in use."""
  # A second Reverb server would start on the same port without an error.
  with socket.socket() as probe:
    # Old connections of a server that has died do not block the port.
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
      probe.bind(('', port))
    except OSError as error:
      raise ValueError(
          f'Port {port} is in use. Choose another one, or none.'
      ) from error


def newest_checkpoint(root: str) -> Optional[str]:
  """Returns the checkpoint in `root` that a server starts from, if any.

  Args:
    root: a directory that a server writes its checkpoints to, as `files.expand`
      returns it. It need not exist.
  """
  found = glob.glob(os.path.join(glob.escape(root), '*', records_lib.DONE))
  return max(map(os.path.dirname, found), default=None)


def _start(directory, port, checkpoint_root) -> reverb.Server:
  """Starts a server, and checks that it holds what its checkpoint says."""
  tables = records_lib.read_tables(directory)
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
        f'The checkpoint {directory} is damaged, or of other tables: {error}'
    ) from error
  try:
    infos = tables_lib.table_infos(server, list(tables), _TIMEOUT_SECONDS)
    # A server checks the checksum of every record, as `read_index` does. But it
    # silently leaves out items that are there twice or lack a chunk.
    for name, table in tables.items():
      records_lib.check_num_items(directory, table, infos[name].current_size)
  except BaseException:
    server.stop()
    raise
  return server
