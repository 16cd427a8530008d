"""Writes RLDS data into Reverb servers, over their insert streams.

Many items travel in one request, and count when the server confirms them. Of
several servers, the identity of an episode decides to which it goes. So however
often it is written, its items go to the same server, and the episodes of a data
set are spread evenly:

    episode    0  1  2  3  4  5
    server     0  1  0  1  0  1
"""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from typing import Any, Deque, Dict, List, Optional, Sequence, Tuple, Union
import zlib

from absl import logging
import grpc
import numpy as np
import tensorflow as tf

from rlds2reverb.replay import frames as frames_lib
from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay import layout as layout_lib
from rlds2reverb.replay import protos
from rlds2reverb.replay import reverb
from rlds2reverb.replay.server import tables as tables_lib
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import specs

_METHOD = '/deepmind.reverb.ReverbService/InsertStream'
# How many requests may wait for the network. Most are half a mebibyte.
_MAX_WAITING = 4


class InsertError(RuntimeError):
  """An error that says that a Reverb server did not confirm all items.

  Attributes:
    confirmed: the number of items that the server did confirm.
  """

  def __init__(self, message: str, confirmed: int):
    super().__init__(message)
    self.confirmed = confirmed


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
  source = frames_lib.make_frame_source(rlds_data, tables, options)
  _, [counts] = insert(source, [client], timeout=timeout)
  return counts


def insert(
    source: frames_lib.FrameSource,
    servers: Sequence[Any],
    *,
    timeout: float,
    before: Optional[List[Dict[str, Any]]] = None,
) -> Tuple[int, List[Dict[str, tables_lib.WrittenItems]]]:
  """Inserts the items of a `FrameSource`, each into one of the servers.

  Args:
    source: the frames, and which items to make of them.
    servers: the servers. Their order decides what goes where.
    timeout: see `write_rlds_to_reverb`, which has the errors, too.
    before: what each server has said of its tables, if it was asked.

  Returns:
    The number of frames; and for each server how many items it has confirmed, a
    `WrittenItems` for each table, by its name.
  """
  addresses = tables_lib.addresses_of(servers)
  names = [table.table_name for table in source.tables]
  layouts = [layout_lib.Layout(source) for _ in addresses]
  ask = lambda: [tables_lib.table_infos(a, names, timeout) for a in addresses]
  before = before or ask()
  for infos in before:
    for info in infos.values():
      specs.check_signature(info.signature, source.spec)
  streams: List[InsertStream] = []
  try:
    with contextlib.ExitStack() as stack:
      for address in addresses:
        streams.append(stack.enter_context(InsertStream(address, timeout)))
      _send(source, layouts, streams)
    after = ask()
  except BaseException as error:
    contents = ' '.join(
        (f'{address}: ' if len(addresses) > 1 else '')
        + tables_lib.describe_contents(address, names)
        for address in addresses
    )
    if isinstance(error, (InsertError, ConnectionError)):
      error.args = (f'{error} {contents}',)
      raise
    what = 'Failed' if isinstance(error, Exception) else 'Interrupted'
    confirmed = sum(stream.confirmed for stream in streams)
    logging.error(
        f'{what} when the server had confirmed %d items. %s',
        confirmed,
        contents,
    )
    raise
  return sum(layout.num_frames for layout in layouts), [
      tables_lib.written_items(infos, infos_after, layout.num_items)
      for infos, infos_after, layout in zip(before, after, layouts)
  ]


def _send(source, layouts, streams) -> None:
  """Sends all items, and waits until they are confirmed."""
  try:
    for segment in source.segments():
      ids = segment.episode_ids
      servers = np.array([server_of(each, len(streams)) for each in ids])
      for server in np.unique(servers).tolist():
        of_server = segment.choose(np.flatnonzero(servers == server))
        for batch in layouts[server].add(of_server):
          streams[server].write(batch)
    for layout in layouts:
      layout.warn()
  except InsertError:
    raise
  except Exception:
    # After an error in the data, the episodes before it still arrive.
    for stream in streams:
      stream.flush()
    raise
  for stream in streams:
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


class InsertStream:
  """Sends batches of items, and counts those that the server confirms.

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
    # The threads that send and read share all below, under this condition.
    self._changed = threading.Condition()
    self._waiting: Deque[Optional[bytes]] = collections.deque()
    self._failure = ''
    self._progress = time.monotonic()
    self._channel = tables_lib.open_channel(address)
    self._call = self._channel.stream_stream(_METHOD)(iter(self._next, None))
    self._reader = threading.Thread(target=self._read, daemon=True)
    self._reader.start()

  def __enter__(self):
    return self

  def __exit__(self, *unused_error):
    """Ends the stream. Items that are not confirmed by now may be lost."""
    with self._changed:
      self._waiting = collections.deque([None])
      self._changed.notify_all()
    self._call.cancel()
    self._channel.close()
    self._reader.join()

  def write(self, batch: layout_lib.Batch) -> None:
    """Sends a batch; waits while too many are waiting to be sent.

    The server forgets all chunks but those that the batch keeps, and ends the
    stream with an error if it does not have one of these.

    Raises:
      InsertError: if the stream has failed, or the server did nothing for
        `timeout` seconds.
    """
    request = protos.InsertStreamRequest(
        chunks=batch.chunks,
        items=batch.items,
        keep_chunk_keys=batch.keep_chunk_keys,
    ).SerializeToString()
    self._wait(lambda: len(self._waiting) < _MAX_WAITING)
    with self._changed:
      self._waiting.append(request)
      self.sent += len(batch.items)
      self._changed.notify_all()

  def flush(self) -> None:
    """Waits until all items are confirmed; raises as `write` does."""
    self._wait(lambda: self.confirmed == self.sent)

  def _wait(self, condition) -> None:
    with self._changed:
      self._progress = time.monotonic()
      while not condition():
        left = self._progress + self._timeout - time.monotonic()
        if left <= 0:
          self._failure = self._failure or (
              f'The server confirmed nothing for {self._timeout:g} seconds.'
          )
        if self._failure:
          raise InsertError(
              f'{self._failure} It has confirmed {self.confirmed} of the'
              f' {self.sent} items sent so far.',
              self.confirmed,
          )
        self._changed.wait(left)

  def _next(self) -> Optional[bytes]:
    """Returns the next request, or None; gRPC calls this in its own thread."""
    with self._changed:
      self._changed.wait_for(lambda: self._waiting)
      self._moved()
      return self._waiting.popleft()

  def _read(self) -> None:
    failure = 'The server ended the insert stream.'
    try:
      for response in self._call:
        keys = protos.InsertStreamResponse.FromString(response).keys
        with self._changed:
          self.confirmed += len(keys)
          self._moved()
    except grpc.RpcError as error:
      failure = f'The insert stream failed: {error.code()}: {error.details()}.'
    with self._changed:
      self._failure = failure
      self._changed.notify_all()

  def _moved(self) -> None:
    self._progress = time.monotonic()
    self._changed.notify_all()
