"""Inserts the items of one `FrameSource` into several Reverb servers.

The identity of an episode decides to which server it goes. So however often it
is written, its items go to the same server, and the episodes of a data set are
spread evenly:

    episode    0  1  2  3  4  5
    server     0  1  0  1  0  1

Every server is fed by a thread of its own, from the frames that are read once.
"""

from __future__ import annotations

from concurrent import futures
import queue
import threading
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple
import zlib

import numpy as np

from rlds2reverb.replay import frames as frames_lib
from rlds2reverb.replay import reverb
from rlds2reverb.replay.server import bulk
from rlds2reverb.replay.server import insert_stream
from rlds2reverb.replay.server import tables as tables_lib
from rlds2reverb.trajectories import frame_blocks

# The number of blocks that may wait for a server. A block has a few megabytes.
_BLOCKS_WAITING = 2
_SECONDS_PER_LOOK = 0.1


def server_of(episode_id: Any, num_servers: int) -> int:
  """Returns the index of the server that an episode goes to.

  Args:
    episode_id: what identifies the episode: its index in its split, or the
      value of the field that the caller has named.
    num_servers: how many servers there are.
  """
  if not isinstance(episode_id, int):
    episode_id = zlib.crc32(str(episode_id).encode())
  return episode_id % num_servers


def insert(
    source: frames_lib.FrameSource,
    clients: Sequence[reverb.Client],
    *,
    timeout: float,
) -> List[Dict[str, tables_lib.WrittenItems]]:
  """Inserts the items of a `FrameSource`, each into one of several servers.

  Args:
    source: the frames, and which items to make of them.
    clients: a client of each server. Their order decides what goes where.
    timeout: see `write_rlds_to_reverb`.

  Returns:
    For each server, how many items it has confirmed: a `WrittenItems` for each
    table, by its name.

  Raises:
    ConnectionError: if a server does not answer.
    InsertError: if one fails, or confirms nothing for `timeout` seconds. The
      message says what the tables of each server hold.
    ValueError: as `write_rlds_to_reverb` does.
    InvalidArgumentError: if an episode is invalid.
  """
  if len(clients) == 1:
    _, counts = bulk.insert(source, clients[0], timeout=timeout)
    return [counts]
  failed = threading.Event()
  feeds = [_Feed(failed) for _ in clients]

  def insert_share(client, feed):
    try:
      _, counts = bulk.insert(
          source,
          client,
          timeout=timeout,
          blocks=feed.blocks(),
      )
      return counts
    except BaseException:
      failed.set()
      raise

  with futures.ThreadPoolExecutor(len(clients)) as pool:
    jobs = [
        pool.submit(insert_share, client, feed)
        for client, feed in zip(clients, feeds)
    ]
    try:
      for block in source.frames():
        for server, part in _shares(block, len(clients)):
          feeds[server].put(part)
        if failed.is_set():
          break
    finally:
      for feed in feeds:
        feed.put(None)
  try:
    return [job.result() for job in jobs]
  except insert_stream.InsertError as error:
    raise insert_stream.InsertError(
        f'{_first_failure(clients, jobs)} {_describe(source, clients)}',
        error.confirmed,
    ) from error
  except ConnectionError as error:
    raise ConnectionError(f'{error} {_describe(source, clients)}') from error


class _Feed:
  """Hands blocks to the thread of a server, unless some server has failed."""

  def __init__(self, failed: threading.Event):
    self._failed = failed
    self._queue = queue.Queue(_BLOCKS_WAITING)

  def put(self, block: Optional[frame_blocks.FrameBlock]) -> None:
    """Adds a block, or None at the end; waits until there is room."""
    while not self._failed.is_set():
      try:
        return self._queue.put(block, timeout=_SECONDS_PER_LOOK)
      except queue.Full:
        pass

  def blocks(self) -> Iterator[frame_blocks.FrameBlock]:
    while True:
      try:
        block = self._queue.get(timeout=_SECONDS_PER_LOOK)
      except queue.Empty:
        if self._failed.is_set():
          return
        continue
      if block is None:
        return
      yield block


def _shares(
    block: frame_blocks.FrameBlock, num_servers: int
) -> Iterator[Tuple[int, frame_blocks.FrameBlock]]:
  """Yields the episodes of a block that go to each server, as blocks."""
  servers = np.array(
      [server_of(each, num_servers) for each in block.episode_ids]
  )
  for server in np.unique(servers).tolist():
    yield server, frame_blocks.choose_episodes(block, servers == server)


def _first_failure(clients, jobs) -> str:
  for client, job in zip(clients, jobs):
    if job.exception():
      return f'{client.server_address}: {job.exception()}'
  return ''


def _describe(source, clients) -> str:
  """Says what the tables of every server hold."""
  names = [table.table_name for table in source.tables]
  return ' '.join(
      f'{client.server_address}: {tables_lib.describe_contents(client, names)}'
      for client in clients
  )
