"""Writes RLDS data into Reverb servers, over their insert streams.

A request holds many items, which count when the server confirms them. With
several servers, the id of an episode determines its server. So the items of an
episode go to the same server however often it is written, and the episodes of a
data set are spread evenly:

    episode    0  1  2  3  4  5
    server     0  1  0  1  0  1
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
import contextlib
import threading
import time
from typing import Any
import zlib

from absl import logging
import grpc
import numpy as np
import tensorflow as tf

from rlds2reverb.replay import frames as frames_lib
from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay import layout as layout_lib
from rlds2reverb.replay import priorities as priorities_lib
from rlds2reverb.replay import protos
from rlds2reverb.replay import reverb
from rlds2reverb.replay.server import tables as tables_lib
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import specs

_METHOD = '/deepmind.reverb.ReverbService/InsertStream'
# How many requests may be queued. Most of them have half a mebibyte.
_MAX_QUEUED_REQUESTS = 4


class InsertError(RuntimeError):
  """Raised if a Reverb server did not confirm all items.

  Attributes:
    confirmed: the number of items that the server has confirmed.
  """

  def __init__(self, message: str, confirmed: int):
    super().__init__(message)
    self.confirmed = confirmed


@options_lib.takes_options
def write_rlds_to_reverb(
    rlds_data: tf.data.Dataset,
    client: str | reverb.Client | reverb.Server,
    tables: items_lib.TableItems | Sequence[items_lib.TableItems],
    *,
    options: options_lib.ConversionOptions | None = None,
    timeout: float = tables_lib.SECONDS_TO_CONFIRM,
) -> dict[str, tables_lib.WrittenItems]:
  """Writes RLDS data into the tables of a Reverb server, as trajectories.

  The items equal the items of the TF-Agents observers, but they are encoded
  together, and a request holds many of them. Short episodes may share
  chunks: then `num_episodes` of a table is lower than with an observer; see
  `ConversionOptions.one_episode_chunks`. Several tables are filled in one pass,
  and share their rows, which the server stores once:

      rlds2reverb.write_rlds_to_reverb(
          rlds_data, 'localhost:8000',
          [rlds2reverb.TableItems('transitions'),
           rlds2reverb.TableItems('sequences', rlds2reverb.Windows(80))])

  Args:
    rlds_data: the data, as in `convert_rlds_to_trajectories`; or a data set of
      sequences, `Trajectory`s `[L, ...]`, each of which becomes an item.
    client: the server: its address, `host:port`, a client of it, or the server
      itself.
    tables: the items of each table.
    options: how the data is converted, and the identity of the items.
    timeout: how many seconds the server may take to answer, or to confirm
      another item. The default is longer than for sampling, because giving up
      leaves only a part of the data in the tables.

  Returns:
    The numbers of items that the server has confirmed, a `WrittenItems` for
    each table, by its name: new items, and items that were already in the
    table. The server counts insertions without their origin, so items that
    others write concurrently count as new items of this data.

  Raises:
    ConnectionError: if the server does not answer.
    InsertError: if the server fails, or confirms nothing for `timeout` seconds.
      The message contains the number of confirmed items and the sizes of the
      tables.
    ValueError: if there is no such table; if its signature does not fit the
      data (a `SpecMismatchError`); if an episode is longer than
      `max_sequence_length`; if two episodes have the same `episode_id`; if a
      priority is not a number from 0 up, or too large or small for the
      `priority_exponent` of its table; or if an argument is not valid.
    InvalidArgumentError: if an episode is invalid. After an error in the data
      the tables hold the episodes before the invalid one, and nothing of it.
  """
  source = frames_lib.make_frame_source(rlds_data, tables, options)
  _, [counts] = insert(source, [client], timeout=timeout)
  return counts


def insert(
    source: frames_lib.FrameSource,
    servers: Sequence[Any],
    *,
    timeout: float,
    infos: list[dict[str, Any]] | None = None,
) -> tuple[int, list[dict[str, tables_lib.WrittenItems]]]:
  """Inserts the items of a `FrameSource`, each into one of the servers.

  Args:
    source: the frames, and the items to create from them.
    servers: the servers. Their order determines which episodes each receives.
    timeout: see `write_rlds_to_reverb`, also for the errors.
    infos: the `TableInfo`s of each server before the insert, by table, if the
      caller has already requested them.

  Returns:
    The number of frames; and for each server the numbers of items that it has
    confirmed, a `WrittenItems` for each table, by its name.
  """
  addresses = tables_lib.addresses_of(servers)
  names = [table.table_name for table in source.tables]
  get_infos = lambda: [
      tables_lib.table_infos(address, names, timeout) for address in addresses
  ]
  infos = infos or get_infos()
  layouts = []
  for server_infos in infos:
    ranges = {}
    for name, info in server_infos.items():
      specs.check_signature(info.signature, source.spec)
      ranges[name] = priorities_lib.PriorityRange.of_table(info)
    layouts.append(layout_lib.Layout(source, priority_ranges=ranges))
  streams: list[InsertStream] = []
  try:
    with contextlib.ExitStack() as stack:
      for address in addresses:
        streams.append(stack.enter_context(InsertStream(address, timeout)))
      _send(source, layouts, streams)
    new_infos = get_infos()
  except BaseException as error:
    contents = ' '.join(
        (f'{address}: ' if len(addresses) > 1 else '')
        + tables_lib.describe_contents(address, names)
        for address in addresses
    )
    if isinstance(error, (InsertError, ConnectionError)):
      error.args = (f'{error} {contents}',)
    else:
      logging.error(
          '%s when the server had confirmed %d items. %s',
          'Failed' if isinstance(error, Exception) else 'Interrupted',
          sum(stream.confirmed for stream in streams),
          contents,
      )
    raise
  return sum(layout.num_frames for layout in layouts), [
      tables_lib.count_written_items(old, new, layout.num_items)
      for old, new, layout in zip(infos, new_infos, layouts)
  ]


def _send(source, layouts, streams) -> None:
  """Sends all items, and waits until the servers have confirmed them."""
  try:
    for segment in source.segments():
      servers = np.array(
          [
              server_of(episode_id, len(streams))
              for episode_id in segment.episode_ids
          ]
      )
      for server in np.unique(servers).tolist():
        episodes = segment.choose(np.flatnonzero(servers == server))
        for batch in layouts[server].add(episodes):
          streams[server].write(batch)
    for layout in layouts:
      layout.warn()
  except InsertError:
    raise
  except Exception:
    # After an error in the data, the episodes before it are still written.
    for stream in streams:
      stream.flush()
    raise
  for stream in streams:
    stream.flush()


def server_of(episode_id: Any, num_servers: int) -> int:
  """Returns the index of the server that stores an episode.

  Args:
    episode_id: the index of the episode in its split, or the value of the field
      `ConversionOptions.episode_id`.
    num_servers: the number of servers.
  """
  if not isinstance(episode_id, int):
    episode_id = zlib.crc32(str(episode_id).encode())
  return episode_id % num_servers


class InsertStream:
  """Sends batches of items to a server, and counts the confirmed items.

  Attributes:
    sent: the number of items that have been sent.
    confirmed: the number of items that the server has confirmed.
  """

  def __init__(self, address: str, timeout: float):
    """Opens the stream.

    Args:
      address: the address of the server, `host:port`.
      timeout: how many seconds the server may take to accept another request or
        to confirm another item.
    """
    self.sent = self.confirmed = 0
    self._timeout = timeout
    # The condition guards the counters above and the attributes below, which
    # the sender's and the reader's thread change.
    self._changed = threading.Condition()
    self._requests: collections.deque[bytes | None] = collections.deque()
    self._failure = ''
    self._last_progress = time.monotonic()
    self._channel = tables_lib.open_channel(address)
    self._call = self._channel.stream_stream(_METHOD)(
        iter(self._next_request, None)
    )
    self._reader = threading.Thread(target=self._read_responses, daemon=True)
    self._reader.start()

  def __enter__(self):
    return self

  def __exit__(self, *unused_error):
    """Closes the stream. Items that are not confirmed yet may be lost."""
    with self._changed:
      self._requests = collections.deque([None])
      self._changed.notify_all()
    self._call.cancel()
    self._channel.close()
    self._reader.join()

  def write(self, batch: layout_lib.EncodedBatch) -> None:
    """Sends a batch; blocks while too many requests are queued.

    The server drops all chunks except `batch.keep_chunk_keys`, and fails the
    stream if one of those chunks is missing.

    Raises:
      InsertError: if the stream has failed, or made no progress for `timeout`
        seconds.
    """
    request = protos.InsertStreamRequest(
        chunks=batch.chunks,
        items=batch.items,
        keep_chunk_keys=batch.keep_chunk_keys,
    ).SerializeToString()
    self._wait_for(lambda: len(self._requests) < _MAX_QUEUED_REQUESTS)
    with self._changed:
      self._requests.append(request)
      self.sent += len(batch.items)
      self._changed.notify_all()

  def flush(self) -> None:
    """Waits until all items are confirmed; raises the errors of `write`."""
    self._wait_for(lambda: self.confirmed == self.sent)

  def _wait_for(self, condition) -> None:
    with self._changed:
      self._last_progress = time.monotonic()
      while not condition():
        seconds = self._last_progress + self._timeout - time.monotonic()
        if seconds <= 0:
          self._failure = self._failure or (
              f'The server confirmed nothing for {self._timeout:g} seconds.'
          )
        if self._failure:
          raise InsertError(
              f'{self._failure} It has confirmed {self.confirmed} of the'
              f' {self.sent} items sent so far.',
              self.confirmed,
          )
        self._changed.wait(seconds)

  def _next_request(self) -> bytes | None:
    """Returns the next request, or None at the end. Called by gRPC."""
    with self._changed:
      self._changed.wait_for(lambda: self._requests)
      self._report_progress()
      return self._requests.popleft()

  def _read_responses(self) -> None:
    failure = 'The server ended the insert stream.'
    try:
      for response in self._call:
        keys = protos.InsertStreamResponse.FromString(response).keys
        with self._changed:
          self.confirmed += len(keys)
          self._report_progress()
    except grpc.RpcError as error:
      failure = f'The insert stream failed: {error.code()}: {error.details()}.'
    with self._changed:
      self._failure = failure
      self._changed.notify_all()

  def _report_progress(self) -> None:
    self._last_progress = time.monotonic()
    self._changed.notify_all()
