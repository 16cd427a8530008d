"""Opens a replay buffer on recorded data, with a Reverb server or without."""

from __future__ import annotations

import functools
import os
import tempfile
from typing import Any, Optional, Union

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
from rlds2reverb.replay.server import table_kinds
from rlds2reverb.replay.server import tables as tables_lib
from rlds2reverb.store import folders
from rlds2reverb.trajectories import options as options_lib

_TABLE = 'items'


@options_lib.takes_options
def open_replay_buffer(
    data: Union[tf.data.Dataset, files.PathLike, None],
    windows: Optional[windows_lib.Windows] = windows_lib.Windows(2),
    *,
    split: str = 'train',
    reverb_server: Union[bool, str, reverb.Client, reverb.Server] = False,
    table_name: Optional[str] = None,
    priority: items_lib.Priority = 1.0,
    reverb_table: Optional[reverb.Table] = None,
    timeout: float = tables_lib.SECONDS_TO_ANSWER,
    **kwargs: Any,
) -> Union[
    local_replay_buffer.EpisodesReplayBuffer,
    server_replay_buffer.ServerReplayBuffer,
]:
  """Opens a replay buffer that a TF-Agents trainer samples from.

      replay_buffer = rlds2reverb.open_replay_buffer('/data/cartpole')
      dataset = replay_buffer.as_dataset(sample_batch_size=256, num_steps=2)
      for frames, info in dataset:
        agent.train(frames)

  By default this is an `EpisodesReplayBuffer`, which samples in this process.
  With `reverb_server=True` it is a `ServerReplayBuffer`, whose server is
  started here, holds the same items, and stops when the replay buffer is
  closed, or deleted with all data sets of it. With an address it samples a
  server that others have filled. What differs between the two is in
  docs/guides/replay_buffer.md.

  Args:
    data: an RLDS data set, which may be transformed or mixed; what
      `load_episodes` takes: a directory, or the name of a TFDS data set; the
      directory of a Reverb checkpoint, as `convert` and
      `write_reverb_checkpoint` write it; or a folder of frames that an
      `EpisodesReplayBuffer` has prepared. None if `reverb_server` is an
      address.
    windows: which windows of frames are items, or None for items that are
      whole episodes. This and `priority` are those of `TableItems`. The items
      of a checkpoint that a server starts from, and prepared frames, stay as
      they are.
    split: the split of a data set on disk.
    reverb_server: whether to sample from a Reverb server; or one that is
      running: its address, `host:port`, a client of it, or itself.
    table_name: the table of a checkpoint or of a running server, which need not
      be named if it is the only one.
    priority: the priority of every item, or a function of its `Trajectory`.
    reverb_table: a table for the new server, of another kind than the default,
      which samples uniformly.
    timeout: how many seconds a server may be silent, or its table empty, before
      the replay buffer raises an error. A server that comes back in time is
      sampled further.
    **kwargs: further arguments of `EpisodesReplayBuffer`; with
      `reverb_server=True`, of `write_reverb_checkpoint`.

  Returns:
    The replay buffer.

  Raises:
    FileNotFoundError: if there is no such data, or if it is a checkpoint that
      is not whole.
    CheckpointError: if a checkpoint is damaged.
    ConnectionError: if there is no answer from the server.
    ValueError: if arguments do not go together, if the server has no such
      table, or if an argument or the data is not valid.
    InvalidArgumentError: if an episode is invalid.
  """
  if windows is not None:
    windows_lib.check_windows(windows)
  length = None if windows is None else windows.length
  serve_table = functools.partial(_sample_server, timeout, length)
  if not isinstance(reverb_server, bool):
    if data is not None or reverb_table is not None or kwargs:
      raise ValueError(
          f'The server at {tables_lib.address_of(reverb_server)} has its own'
          ' data and tables, so data must be None, and other arguments than'
          ' windows, table_name and timeout must be left out.'
      )
    return serve_table(reverb_server, table_name)
  if data is None:
    raise ValueError(
        'There must be data, or reverb_server must be the address of a server'
        ' that has some.'
    )
  if reverb_table is not None:
    if not reverb_server:
      raise ValueError(
          'reverb_table is for a Reverb server: use reverb_server=True. Without'
          ' a server, sampler= says how to sample.'
      )
    table_kinds.trajectory_signature(
        reverb_table.name, reverb_table.info.signature
    )
  folder = '' if isinstance(data, tf.data.Dataset) else files.expand(data)
  if folder and reverb_server and records.is_checkpoint(folder):
    if kwargs or reverb_table is not None:
      raise ValueError(
          f'The server starts from the checkpoint {folder}, with the tables and'
          f' items that are in it, so {sorted(kwargs) or "reverb_table"} must'
          ' be left out.'
      )
    return serve_table(serve.restore_reverb_server(folder), table_name, True)
  data = _read(data, folder, split, table_name)
  if not reverb_server:
    return local_replay_buffer.EpisodesReplayBuffer(
        data, windows, priority=priority, **kwargs
    )
  if not isinstance(data, tf.data.Dataset):
    raise ValueError(
        f'{folder} holds frames that were prepared for a replay buffer without'
        ' a server. Give the data set that they were made from.'
    )
  name = _TABLE
  if reverb_table is not None:
    name, kwargs['reverb_tables'] = reverb_table.name, [reverb_table]
  items = items_lib.TableItems(name, windows, priority=priority)
  # The items go through a checkpoint, which makes the table as large as needed.
  with tempfile.TemporaryDirectory() as parent:
    logging.info('The items for the server go through %s.', parent)
    path = os.path.join(parent, 'checkpoint')
    write.write_reverb_checkpoint(data, path, items, **kwargs)
    server = serve.restore_reverb_server(path)
  return serve_table(server, name, True)


def _read(data, folder, split, table_name):
  """Returns the data set, or the folder of prepared frames, of `data`.

  Args:
    data: see `open_replay_buffer`.
    folder: the path that `data` may be, or ''.
    split: the split of a data set on disk.
    table_name: the table of a checkpoint.
  """
  if folder and records.is_checkpoint(folder):
    tables = list(records.read_tables(folder))
    name = _only_table(table_name, tables, f'The checkpoint {folder}')
    logging.info(
        'Reading all frames of %s first. A server of restore_reverb_server has'
        ' them at once.',
        folder,
    )
    return checkpoint_episodes.read_checkpoint_episodes(
        folder, name, whole=True
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


def _sample_server(timeout, length, server, table_name, owns_server=False):
  """Returns the replay buffer of a server."""
  try:
    tables = tables_lib.table_infos(server, None, timeout)
    of = f'The Reverb server at {tables_lib.address_of(server)}'
    name = _only_table(table_name, list(tables), of)
    return server_replay_buffer.ServerReplayBuffer(
        server, name, length, timeout=timeout, owns_server=owns_server
    )
  except BaseException:
    if owns_server:
      server.stop()
    raise


def _only_table(table_name, tables, of) -> str:
  if table_name is None and len(tables) != 1:
    raise ValueError(
        f'{of} has the tables {sorted(tables)}. Say which one with table_name.'
    )
  return tables[0] if table_name is None else table_name
