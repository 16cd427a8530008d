"""Asks running Reverb servers what their tables hold.

There is one way to ask, a call of gRPC. Reverb's own client waits for ever for
a server that died, or raises errors of several kinds.
"""

from __future__ import annotations

import re
from typing import (
    Any,
    Dict,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Union,
)

from absl import logging
import grpc

from rlds2reverb.replay import protos
from rlds2reverb.replay import reverb

# How long a server may be silent. It is longer for inserts: who gives up then
# leaves only a part of the data in the tables.
SECONDS_TO_ANSWER = 30.0
SECONDS_TO_CONFIRM = 60.0

_SERVER_INFO = '/deepmind.reverb.ReverbService/ServerInfo'
_DESCRIBE_TIMEOUT_SECONDS = 5
_MAX_PORT = 65535


class WrittenItems(NamedTuple):
  """The numbers of items of a table that a server has confirmed.

  Attributes:
    new: the number of items that went into the table.
    existing: the number of items whose key was in the table already. The server
      sets their priority again, and leaves their content as it was.
  """

  new: int
  existing: int


def check_address(address: str) -> None:
  """Raises a ValueError if `address` is not a host and a port: `host:8000`."""
  found = re.fullmatch('.+:([0-9]{1,5})', address)
  if not found or not 0 < int(found[1]) <= _MAX_PORT:
    raise ValueError(
        'The address of a server must be host:port, such as localhost:8000,'
        f' with a port from 1 to {_MAX_PORT}, but is {address!r}.'
    )


def address_of(server: Union[str, reverb.Client, reverb.Server]) -> str:
  """Returns the address of a server, `host:port`.

  Every function that takes a server takes any of these.

  Args:
    server: its address; or a client of it; or the server itself, if it is in
      this process.

  Raises:
    ValueError: if an address is not a host and a port.
  """
  if isinstance(server, str):
    check_address(server)
    return server
  if isinstance(server, reverb.Client):
    return server.server_address
  return f'localhost:{server.port}'


def addresses_of(
    servers: Union[str, reverb.Client, reverb.Server, Sequence[Any]],
) -> List[str]:
  """Returns the addresses of a server, or of several; see `address_of`.

  Raises:
    ValueError: if there are none, or as `address_of` does.
  """
  if not isinstance(servers, (list, tuple)):
    servers = [servers]
  if not servers:
    raise ValueError('There are no servers.')
  return list(map(address_of, servers))


def open_channel(address: str) -> grpc.Channel:
  """Returns a channel to the server at an address, `host:port`.

  The channel uses no proxy, which would not reach the user's own servers, and
  tries soon again to reach a server that was away.
  """
  options = {
      'grpc.enable_http_proxy': 0,
      'grpc.max_receive_message_length': -1,
      'grpc.max_reconnect_backoff_ms': 1000,
      'grpc.max_send_message_length': -1,
      'grpc.use_local_subchannel_pool': 1,
  }
  return grpc.insecure_channel(address, options=list(options.items()))


def table_infos(
    server: Union[str, reverb.Client, reverb.Server],
    names: Optional[Sequence[str]],
    timeout: float,
) -> Dict[str, Any]:
  """Asks a server for its tables.

  Args:
    server: the server.
    names: the tables to ask for, or None for all.
    timeout: how many seconds to wait for the server.

  Returns:
    Reverb's `TableInfo`s, by name.

  Raises:
    ConnectionError: if the server does not answer in time.
    ValueError: if it does not have one of the tables, or `timeout` is not
      positive.
  """
  found = map(
      reverb.reverb_types.TableInfo.from_serialized_proto,
      _ask(server, timeout).table_info,
  )
  infos = {info.name: info for info in found}
  for name in infos if names is None else names:
    if name not in infos:
      raise ValueError(
          f'The Reverb server at {address_of(server)} has no table {name!r}.'
          f' Its tables are {sorted(infos)}.'
      )
  return infos if names is None else {name: infos[name] for name in names}


def state_of(
    server: Union[str, reverb.Client, reverb.Server], timeout: float
) -> str:
  """Returns what tells one run of a server from every other.

  A server that was started again, also from a checkpoint, has another one. The
  arguments and errors are those of `table_infos`.
  """
  return _ask(server, timeout).tables_state_id[0].hex()


def _ask(server, timeout) -> protos.ServerInfoResponse:
  if not timeout > 0:
    raise ValueError(f'timeout must be positive, but is {timeout}.')
  address = address_of(server)
  try:
    with open_channel(address) as channel:
      response = channel.unary_unary(_SERVER_INFO)(
          b'', timeout=timeout, wait_for_ready=True
      )
  except grpc.RpcError as error:
    raise ConnectionError(
        f'There is no answer from a Reverb server at {address}. Start it, or'
        ' correct the address.'
    ) from error
  return protos.ServerInfoResponse.FromString(response)


def inserted(info: Any) -> int:
  """Returns how many items have ever been inserted into a table.

  Args:
    info: the `TableInfo` of the table.
  """
  return info.rate_limiter_info.insert_stats.completed


def written_items(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    confirmed: Optional[Mapping[str, int]] = None,
) -> Dict[str, WrittenItems]:
  """Returns how many items were new, and warns if a table was too small.

  A server does not say for each item whether it was new, but it counts the
  items that go into a table. So items that others write at the same time count
  as new here.

  Args:
    before: the `TableInfo`s before the items were sent, by name.
    after: the `TableInfo`s after they were confirmed, by name.
    confirmed: the number of items that the server has confirmed, by table;
      without it all that went in counts, and nothing as existing.

  Returns:
    The numbers of each table, by name.
  """
  counts = {}
  for name, table in after.items():
    new, existing = inserted(table) - inserted(before[name]), 0
    size, held = table.current_size, before[name].current_size
    if size == table.max_size < held + new:
      logging.warning(
          'Table %r is too small: %d items were inserted beside the %d it held,'
          ' but its max_size is %d, so %d items were removed. Create the table'
          ' with a larger max_size.',
          name,
          new,
          held,
          size,
          held + new - size,
      )
    if confirmed is not None:
      new = min(max(new, 0), confirmed[name])
      existing = confirmed[name] - new
    found = 'Table %r took %d new items, had %d of them, and now holds %d.'
    logging.info(found, name, new, existing, size)
    counts[name] = WrittenItems(new, existing)
  return counts


def blocks_after(info: Any, count: int = 1) -> bool:
  """Returns whether a table blocks before it has taken `count` more items.

  Args:
    info: the `TableInfo` of the table, which nobody samples meanwhile.
    count: the number of items.
  """
  limiter = info.rate_limiter_info
  sampled = limiter.sample_stats.completed
  # The condition of `RateLimiter::CanInsert` in Reverb 0.14.0.
  return (
      info.current_size + count > limiter.min_size_to_sample
      and (inserted(info) + count) * limiter.samples_per_insert - sampled
      > limiter.max_diff
  )


def check_not_blocking(info: Any, count: int) -> None:
  """Raises a ValueError if a table blocks before taking `count` more items.

  Args:
    info: the `TableInfo` of the table, which nobody samples meanwhile.
    count: the number of items.
  """
  if blocks_after(info, count):
    raise ValueError(f'Table {info.name!r} would block: {_why(info)}')


def describe_contents(server: Any, names: Sequence[str]) -> str:
  """Describes the content of tables, and why they do not take more.

  Args:
    server: the server.
    names: the names of the tables.
  """
  try:
    infos = table_infos(server, names, _DESCRIBE_TIMEOUT_SECONDS)
  except (ConnectionError, ValueError) as error:
    return str(error)
  return ' '.join(
      f'Table {info.name!r} holds {info.current_size} items.'
      + (f' It blocks: {_why(info)}' if blocks_after(info) else '')
      for info in infos.values()
  )


def _why(info) -> str:
  limiter = info.rate_limiter_info
  return (
      'its rate limiter lets no more in before it is sampled, as it has'
      f' samples_per_insert={limiter.samples_per_insert:g} and'
      f' max_diff={limiter.max_diff:g}, with {inserted(info)} items inserted'
      f' and {limiter.sample_stats.completed} sampled. Fill a table with the'
      ' MinSize rate limiter, or sample at the same time.'
  )
