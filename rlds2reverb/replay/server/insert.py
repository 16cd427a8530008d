"""Writes RLDS data into Reverb servers, over their insert streams.

Of several servers, the identity of an episode decides to which it goes. So
however often it is written, its items go to the same server, and the episodes
of a data set are spread evenly:

    episode    0  1  2  3  4  5
    server     0  1  0  1  0  1
"""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, Union
import zlib

from absl import logging
import grpc
import numpy as np
import tensorflow as tf

from rlds2reverb.replay import encoding
from rlds2reverb.replay import frames as frames_lib
from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay import layout as layout_lib
from rlds2reverb.replay import protos
from rlds2reverb.replay import reverb
from rlds2reverb.replay import segments as segments_lib
from rlds2reverb.replay.server import tables as tables_lib
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import specs

_METHOD = '/deepmind.reverb.ReverbService/InsertStream'
# How many requests may wait for the network. Most are half a mebibyte.
_MAX_WAITING = 4
# Those of a few short episodes are sent together, until they have this size.
_REQUEST_BYTES = 256 << 10


class InsertError(RuntimeError):
  """An error that says that a Reverb server did not confirm all items.

  Attributes:
    confirmed: the number of items that the server did confirm.
  """

  def __init__(self, message: str, confirmed: int):
    super().__init__(message)
    self.confirmed = confirmed


class InsertStream:
  """Sends insert requests, and counts the items that the server confirms.

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
    self.sent = 0
    self.confirmed = 0
    self._timeout = timeout
    self._changed = threading.Condition()
    self._waiting = collections.deque()
    self._small: List[bytes] = []
    self._num_small = 0
    self._keep = b''
    self._is_closing = False
    self._failure: Optional[str] = None
    self._progress = time.monotonic()
    self._channel = tables_lib.open_channel(
        address, ('grpc.max_send_message_length', -1)
    )
    self._call = self._channel.stream_stream(_METHOD)(self._requests())
    self._reader = threading.Thread(target=self._read, daemon=True)
    self._reader.start()

  def __enter__(self):
    return self

  def __exit__(self, *unused_error):
    """Ends the stream. Items that are not confirmed by now may be lost."""
    with self._changed:
      self._is_closing = True
      self._waiting.clear()
      self._changed.notify_all()
    self._call.cancel()
    self._channel.close()
    self._reader.join()

  def write(
      self, request: bytes, num_items: int, keep_chunk_keys: Sequence[int]
  ) -> None:
    """Sends a request; waits while too many are waiting to be sent.

    Args:
      request: chunks and items, an `InsertStreamRequest`.
      num_items: the number of items that it holds.
      keep_chunk_keys: the keys of the chunks that later requests refer to.

    Raises:
      InsertError: if the stream has failed, or the server did nothing for
        `timeout` seconds.
    """
    # Two requests, one after the other, are one of all that they hold. What is
    # kept is what those after the last of them need, and nothing else.
    self._small.append(request)
    self._keep = encoding.insert_request([], [], keep_chunk_keys)
    self._num_small += num_items
    if sum(map(len, self._small)) >= _REQUEST_BYTES:
      self._send()

  def _send(self) -> None:
    """Sends the small requests that wait to be sent together."""
    if not self._small:
      return
    self._wait(lambda: len(self._waiting) < _MAX_WAITING)
    with self._changed:
      self._waiting.append(b''.join([*self._small, self._keep]))
      self.sent += self._num_small
      self._small, self._num_small = [], 0
      self._changed.notify_all()

  def flush(self) -> None:
    """Waits until the server has confirmed every item.

    Raises:
      InsertError: if the stream has failed, or the server did nothing for
        `timeout` seconds.
    """
    self._send()
    self._wait(lambda: self.confirmed == self.sent)

  def _wait(self, condition) -> None:
    with self._changed:
      self._progress = time.monotonic()
      while not condition():
        left = self._progress + self._timeout - time.monotonic()
        if self._failure is None and left <= 0:
          self._failure = (
              f'The server confirmed nothing for {self._timeout:g} seconds.'
          )
        if self._failure is not None:
          raise InsertError(
              f'{self._failure} It has confirmed {self.confirmed} of the'
              f' {self.sent} items sent so far.',
              self.confirmed,
          )
        self._changed.wait(left)

  def _requests(self):
    """Yields the requests; gRPC calls this in a thread of its own."""
    while True:
      with self._changed:
        self._changed.wait_for(lambda: self._waiting or self._is_closing)
        if self._is_closing:
          return
        request = self._waiting.popleft()
        self._moved()
      yield request

  def _read(self) -> None:
    failure = 'The server ended the insert stream.'
    try:
      for response in self._call:
        with self._changed:
          self.confirmed += len(
              protos.InsertStreamResponse.FromString(response).keys
          )
          self._moved()
    except grpc.RpcError as error:
      failure = f'The insert stream failed: {error.code()}: {error.details()}.'
    with self._changed:
      self._failure = failure
      self._changed.notify_all()

  def _moved(self) -> None:
    self._progress = time.monotonic()
    self._changed.notify_all()


@options_lib.takes_options
def write_rlds_to_reverb(
    rlds_data: tf.data.Dataset,
    client: Union[str, reverb.Client, reverb.Server],
    tables: Union[items_lib.TableItems, Sequence[items_lib.TableItems]],
    *,
    options: Optional[options_lib.ConversionOptions] = None,
    timeout: float = tables_lib.SECONDS_TO_CONFIRM,
) -> Dict[str, tables_lib.WrittenItems]:
  """Writes RLDS data into the tables of a Reverb server, as trajectories.

  The items are the same that the TF-Agents observers write. But they are
  encoded together, and a request holds many of them. Short episodes may share
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
    client: the server: its address, `host:port`, a client of it, or itself.
    tables: which items go into which table.
    options: how the data is converted, and what the keys of items depend on.
    timeout: how many seconds the server may take to answer, or to confirm
      another item; longer by default than elsewhere, as giving up leaves only a
      part of the data in the tables.

  Returns:
    How many items the server has confirmed, a `WrittenItems` for each table, by
    its name: new ones, and ones that were there before. The difference between
    the two is what the server counts, so items that others write into the table
    at the same time count as new items of this data.

  Raises:
    ConnectionError: if the server does not answer.
    InsertError: if it fails, or confirms nothing for `timeout` seconds. The
      message says what it had confirmed, and what its tables hold.
    ValueError: if there is no such table; if its signature does not fit the
      data (a `SpecMismatchError`); if an episode is longer than
      `max_sequence_length`; if two episodes have the same `episode_id`; if a
      priority is not a number from 0 up; or if an argument is not valid.
    InvalidArgumentError: if an episode is invalid. After an error in the data
      the episodes before it are in the tables, and nothing of the episode at
      fault.
  """
  client = tables_lib.client_of(client)
  source = frames_lib.make_frame_source(rlds_data, tables, options)
  _, [counts] = insert(source, [client], timeout=timeout)
  return counts


def insert(
    source: frames_lib.FrameSource,
    clients: Sequence[reverb.Client],
    *,
    timeout: float,
    before: Optional[List[Dict[str, Any]]] = None,
) -> Tuple[int, List[Dict[str, tables_lib.WrittenItems]]]:
  """Inserts the items of a `FrameSource`, each into one of the servers.

  Args:
    source: the frames, and which items to make of them.
    clients: a client of each server. Their order decides what goes where.
    timeout: see `write_rlds_to_reverb`, which has the errors, too.
    before: what each server has said of its tables, if it was asked.

  Returns:
    The number of frames; and for each server how many items it has confirmed, a
    `WrittenItems` for each table, by its name.
  """
  tables_lib.check_timeout(timeout)
  names = [table.table_name for table in source.tables]
  layouts = [layout_lib.Layout(source) for _ in clients]
  streams: List[InsertStream] = []
  ask = lambda: [tables_lib.table_infos(c, names, timeout) for c in clients]
  try:
    before = before or ask()
    for infos in before:
      for info in infos.values():
        specs.check_signature(info.signature, source.spec)
    with contextlib.ExitStack() as stack:
      for client in clients:
        stream = InsertStream(client.server_address, timeout)
        streams.append(stack.enter_context(stream))
      _send_all(source, layouts, streams)
    after = ask()
  except (InsertError, ConnectionError) as error:
    error.args = (f'{error} {_describe(clients, names)}',)
    raise
  except BaseException as error:
    what = 'Failed' if isinstance(error, Exception) else 'Interrupted'
    logging.error(
        f'{what} when the server had confirmed %d items. %s',
        sum(stream.confirmed for stream in streams),
        _describe(clients, names),
    )
    raise
  counts = [
      tables_lib.written_items(infos, infos_after, layout.num_items)
      for infos, infos_after, layout in zip(before, after, layouts)
  ]
  return sum(layout.num_frames for layout in layouts), counts


def _send_all(source, layouts, streams) -> None:
  """Sends all items, and waits until they are confirmed."""
  try:
    for segment in source.segments():
      for server, share in _shares(segment, len(streams)):
        for batch in layouts[server].add(share):
          request = encoding.insert_request(batch.chunks, batch.items, [])
          streams[server].write(
              request, len(batch.items), batch.keep_chunk_keys
          )
  except InsertError:
    raise
  except Exception:
    # The episodes before the one at fault still arrive.
    for stream in streams:
      stream.flush()
    raise
  for layout, stream in zip(layouts, streams):
    layout.warn()
    stream.flush()


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


def _shares(
    segment: segments_lib.Segment, num_servers: int
) -> Iterator[Tuple[int, segments_lib.Segment]]:
  """Yields the episodes of a segment that go to each server."""
  if num_servers == 1:
    yield 0, segment
    return
  ids = segment.episode_ids
  servers = np.array([server_of(each, num_servers) for each in ids])
  for server in np.unique(servers).tolist():
    yield server, segment.choose(servers == server)


def _describe(clients, names) -> str:
  """Says what the tables of every server hold."""
  return ' '.join(
      (f'{client.server_address}: ' if len(clients) > 1 else '')
      + tables_lib.describe_contents(client, names)
      for client in clients
  )
