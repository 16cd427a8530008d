"""Opens a replay buffer on recorded data, with a Reverb server or without."""

from __future__ import annotations

import functools
import os
import tempfile
from typing import Any

from absl import logging
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.datasets import loading
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay import reverb
from rlds2reverb.replay.checkpoint import episodes as checkpoint_episodes
from rlds2reverb.replay.checkpoint import records
from rlds2reverb.replay.checkpoint import serve
from rlds2reverb.replay.checkpoint import write
from rlds2reverb.replay.local import replay_buffer as local_replay_buffer
from rlds2reverb.replay.server import replay_buffer as server_replay_buffer
from rlds2reverb.replay.server import tables as tables_lib
from rlds2reverb.store import folders
from rlds2reverb.trajectories import options as options_lib

_TABLE = 'items'


@options_lib.takes_options
def open_replay_buffer(
    data: tf.data.Dataset | files.PathLike | None,
    windows: windows_lib.Windows | None = windows_lib.Windows(2),
    *,
    split: str = 'train',
    reverb_server: bool | str | reverb.Client | reverb.Server = False,
    table_name: str | None = None,
    priority: items_lib.Priority = 1.0,
    reverb_table: reverb.Table | None = None,
    timeout: float = tables_lib.SECONDS_TO_ANSWER,
    **kwargs: Any,
) -> (
    local_replay_buffer.EpisodesReplayBuffer
    | server_replay_buffer.ServerReplayBuffer
):
  """Opens a replay buffer that a TF-Agents trainer samples from.

      replay_buffer = rlds2reverb.open_replay_buffer('/data/cartpole')
      dataset = replay_buffer.as_dataset(sample_batch_size=256, num_steps=2)
      for frames, info in dataset:
        agent.train(frames)

  By default this is an `EpisodesReplayBuffer`, which samples in this process.
  With `reverb_server=True` it is a `ServerReplayBuffer`. Its server is started
  in this process, holds the same items, and stops when the replay buffer is
  closed, or deleted together with all its data sets. With an address it samples
  a running server. docs/guides/replay_buffer.md compares the two.

  Args:
    data: an RLDS data set, which may be transformed or mixed; an argument of
      `load_episodes`, which is a directory or the name of a TFDS data set; the
      directory of a Reverb checkpoint, as `convert` and
      `write_reverb_checkpoint` write it; or a folder of frames that an
      `EpisodesReplayBuffer` has prepared. None if `reverb_server` is an
      address.
    windows: the windows of frames that are items, or None if items are complete
      episodes; see `TableItems`. `windows` and `priority` are ignored for
      prepared frames, and for a checkpoint that a server starts from.
    split: the split of a data set on disk.
    reverb_server: whether to sample from a new Reverb server; or a running
      server: its address, `host:port`, a client of it, or the server object.
    table_name: the table of a checkpoint or of a running server. It is optional
      if there is only one.
    priority: the priority of every item, or a function of its `Trajectory`.
    reverb_table: a table for the new server. By default its table samples
      uniformly.
    timeout: the number of seconds that a server may not answer, or its table
      may be empty, before the replay buffer raises an error. If the server
      answers in time, sampling continues.
    **kwargs: further arguments of `EpisodesReplayBuffer`; with
      `reverb_server=True`, of `write_reverb_checkpoint`.

  Returns:
    The replay buffer.

  Raises:
    FileNotFoundError: if the data does not exist, or is an incomplete
      checkpoint.
    CheckpointError: if a checkpoint is damaged.
    ConnectionError: if the server does not answer.
    ValueError: if arguments cannot be combined, if the server has no such
      table, or if an argument or the data is not valid.
    InvalidArgumentError: if an episode is invalid.
  """
  if windows is not None:
    windows_lib.check_windows(windows)
  length = None if windows is None else windows.length
  open_table = functools.partial(_open_server, length=length, timeout=timeout)
  if not isinstance(reverb_server, bool):
    if (
        data is not None
        or split != 'train'
        or priority != 1.0
        or reverb_table is not None
        or kwargs
    ):
      raise ValueError(
          f'The server at {tables_lib.address_of(reverb_server)} has its own'
          ' data and tables, so data must be None, and only windows, table_name'
          ' and timeout may be given.'
      )
    return open_table(reverb_server, table_name)
  if data is None:
    raise ValueError(
        'Either data must be given, or reverb_server must be the address of a'
        ' running server.'
    )
  if reverb_table is not None:
    if not reverb_server:
      raise ValueError(
          'reverb_table is for a Reverb server: use reverb_server=True. Without'
          ' a server, use sampler= to choose how to sample.'
      )
    tables_lib.to_trajectory_signature(
        reverb_table.name, reverb_table.info.signature
    )
  folder = '' if isinstance(data, tf.data.Dataset) else files.expand(data)
  if folder and reverb_server and records.is_checkpoint(folder):
    if kwargs or reverb_table is not None:
      raise ValueError(
          f'The server starts from the checkpoint {folder} with its tables and'
          f' items, so {sorted(kwargs) or "reverb_table"} cannot be given.'
      )
    return open_table(
        serve.restore_reverb_server(folder), table_name, owns_server=True
    )
  data = _resolve_data(data, folder, split, table_name)
  if not reverb_server:
    return local_replay_buffer.EpisodesReplayBuffer(
        data, windows, priority=priority, **kwargs
    )
  if not isinstance(data, tf.data.Dataset):
    raise ValueError(
        f'{folder} holds frames that were prepared for a replay buffer without'
        ' a server. Open the data set from which they were prepared.'
    )
  name = _TABLE
  if reverb_table is not None:
    name, kwargs['reverb_tables'] = reverb_table.name, [reverb_table]
  items = items_lib.TableItems(name, windows, priority=priority)
  # The server restores a checkpoint, whose table is as large as needed.
  with tempfile.TemporaryDirectory() as parent:
    logging.info('Writing the items for the server to %s.', parent)
    path = os.path.join(parent, 'checkpoint')
    write.write_reverb_checkpoint(data, path, items, **kwargs)
    server = serve.restore_reverb_server(path)
  return open_table(server, name, owns_server=True)


def _resolve_data(data, folder, split, table_name):
  """Returns an RLDS data set, or a folder of prepared frames.

  Args:
    data: see `open_replay_buffer`.
    folder: its path, or '' if it is a data set.
    split: the split of a data set on disk.
    table_name: the table of a checkpoint.
  """
  if folder and records.is_checkpoint(folder):
    tables = list(records.read_tables(folder))
    name = _only_table(table_name, tables, f'The checkpoint {folder}')
    logging.info(
        'Reading all frames of %s first. With restore_reverb_server a server'
        ' starts without this.',
        folder,
    )
    return checkpoint_episodes.read_checkpoint_episodes(
        folder, name, require_complete=True
    )
  if table_name is not None:
    raise ValueError(
        f'table_name is {table_name!r}, but {data} is neither a Reverb'
        ' checkpoint nor a server, and has no tables.'
    )
  if not folder:
    return data
  if folders.read_marker(folder) is not None:
    return folder
  return loading.load_episodes(data, split)


def _open_server(server, table_name, *, length, timeout, owns_server=False):
  """Returns a replay buffer that samples a server."""
  try:
    tables = tables_lib.table_infos(server, None, timeout)
    owner = f'The Reverb server at {tables_lib.address_of(server)}'
    name = _only_table(table_name, list(tables), owner)
    return server_replay_buffer.ServerReplayBuffer(
        server, name, length, timeout=timeout, owns_server=owns_server
    )
  except BaseException:
    if owns_server:
      server.stop()
    raise


def _only_table(table_name, tables, owner) -> str:
  """Returns `table_name`, or the only table of a server or checkpoint."""
  if table_name is None and len(tables) != 1:
    raise ValueError(
        f'{owner} has the tables {sorted(tables)}. Choose one with table_name.'
    )
  return tables[0] if table_name is None else table_name
