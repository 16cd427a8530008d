"""The insert stream of a Reverb server, on which many items travel at once."""

from __future__ import annotations

import collections
import threading
import time
from typing import Deque, List, Optional, Sequence

import grpc

from rlds2reverb.replay import protos
from rlds2reverb.replay.server import tables as tables_lib

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
    self.sent = self.confirmed = 0
    self._timeout = timeout
    self._small: List[bytes] = []
    self._num_small = 0
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

  def write(
      self, request: bytes, num_items: int, keep_chunk_keys: Sequence[int]
  ) -> None:
    """Sends a request; waits while too many are waiting to be sent.

    Args:
      request: chunks and items, an `InsertStreamRequest`.
      num_items: the number of items that it holds.
      keep_chunk_keys: the keys of the chunks, of this request or of earlier
        ones, that later requests refer to. The server forgets all other chunks,
        and ends the stream with an error if it does not have one of these.

    Raises:
      InsertError: if the stream has failed, or the server did nothing for
        `timeout` seconds.
    """
    self._small.append(request)
    self._num_small += num_items
    if sum(map(len, self._small)) >= _REQUEST_BYTES:
      self._send(keep_chunk_keys)

  def flush(self) -> None:
    """Waits until the server has confirmed every item; raises as `write` does.

    Nothing that comes later may refer to chunks that were sent before.
    """
    if self._small:  # A server refuses a request that is empty.
      self._send(())
    self._wait(lambda: self.confirmed == self.sent)

  def _send(self, keep_chunk_keys) -> None:
    """Sends the small requests that wait to be sent together."""
    self._wait(lambda: len(self._waiting) < _MAX_WAITING)
    # Two requests, one after the other, are one of all that they hold. What is
    # kept is what those after the last of them need, and nothing else.
    keep = protos.InsertStreamRequest(keep_chunk_keys=keep_chunk_keys)
    with self._changed:
      self._waiting.append(b''.join([*self._small, keep.SerializeToString()]))
      self.sent += self._num_small
      self._small, self._num_small = [], 0
      self._changed.notify_all()

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
