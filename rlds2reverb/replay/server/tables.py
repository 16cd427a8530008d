"""Asks a running Reverb server what its tables hold."""

from __future__ import annotations

import math
import time
from typing import (
    Any,
    Dict,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

from absl import logging
import grpc

from rlds2reverb.replay import protos
from rlds2reverb.replay import reverb
from rlds2reverb.replay.server import addresses

# How long a server may be silent. It is longer for inserts: who gives up then
# leaves only a part of the data in the tables.
SECONDS_TO_ANSWER = 30.0
SECONDS_TO_CONFIRM = 60.0

_SERVER_INFO = '/deepmind.reverb.ReverbService/ServerInfo'
_DESCRIBE_TIMEOUT_SECONDS = 5
_RETRY_SECONDS = 0.1


class WrittenItems(NamedTuple):
  """The numbers of items of a table that a server has confirmed.

  Attributes:
    new: the number of items that went into the table.
    existing: the number of items whose key was in the table already. The server
      sets their priority again, and leaves their content as it was.
  """

  new: int
  existing: int


def table_infos(
    client: reverb.Client,
    names: Optional[Sequence[str]],
    timeout: float,
) -> Dict[str, Any]:
  """Asks a server for its tables.

  Args:
    client: a client of the server.
    names: the tables to ask for, or None for all.
    timeout: how many seconds to wait for the server.

  Returns:
    Reverb's `TableInfo`s, by name.

  Raises:
    ConnectionError: if the server does not answer in time.
    ValueError: if it does not have one of the tables.
  """
  deadline = time.monotonic() + timeout
  infos = None
  while infos is None:
    left = deadline - time.monotonic()
    try:
      infos = client.server_info(timeout=max(math.ceil(left), 1))
    # For a lost connection Reverb raises a plain RuntimeError, without waiting.
    except (reverb.errors.ReverbError, RuntimeError) as error:
      if time.monotonic() >= deadline:
        raise ConnectionError(
            'There is no answer from a Reverb server at'
            f' {client.server_address}. Start it, or correct the address.'
        ) from error
      time.sleep(_RETRY_SECONDS)
  if names is None:
    return infos
  missing = [name for name in names if name not in infos]
  if missing:
    raise ValueError(
        f'The Reverb server at {client.server_address} has no table'
        f' {missing[0]!r}. Its tables are {sorted(infos)}.'
    )
  return {name: infos[name] for name in names}


def check_timeout(timeout: float) -> None:
  """Raises a ValueError if a timeout is not positive."""
  if not timeout > 0:
    raise ValueError(f'timeout must be positive, but is {timeout}.')


def open_channel(address: str, *options: Tuple[str, int]) -> grpc.Channel:
  """Returns a channel to a server.

  The channel uses no proxy, which would not reach the user's own servers.

  Args:
    address: the address of the server, `host:port`.
    *options: further options of gRPC.
  """
  return grpc.insecure_channel(
      address, options=[('grpc.enable_http_proxy', 0), *options]
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
    addresses.check_address(server)
    return server
  if isinstance(server, reverb.Client):
    return server.server_address
  return f'localhost:{server.port}'


def client_of(
    server: Union[str, reverb.Client, reverb.Server],
) -> reverb.Client:
  """Returns a client of a server; see `address_of`."""
  if isinstance(server, reverb.Client):
    return server
  return reverb.Client(address_of(server))


def addresses_of(
    servers: Union[str, reverb.Client, reverb.Server, Sequence[Any]],
) -> List[str]:
  """Returns the addresses of a server, or of several; see `address_of`.

  Raises:
    ValueError: if there are none, or as `address_of` does.
  """
  if isinstance(servers, (list, tuple)):
    found = [address_of(server) for server in servers]
  else:
    found = [address_of(servers)]
  if not found:
    raise ValueError('There are no servers.')
  return found


def state_of(address: str, timeout: float) -> str:
  """Returns what tells one run of a server from every other.

  A server that was started again, also from a checkpoint, has another one.

  Args:
    address: the address of the server, `host:port`.
    timeout: how many seconds to wait for the server.

  Raises:
    ConnectionError: if the server does not answer in time.
  """
  try:
    with open_channel(address) as channel:
      response = channel.unary_unary(_SERVER_INFO)(
          b'', timeout=timeout, wait_for_ready=True
      )
  except grpc.RpcError as error:
    raise ConnectionError(
        f'There is no answer from a Reverb server at {address}:'
        f' {error.code()}.'
    ) from error
  state = protos.ServerInfoResponse.FromString(response).tables_state_id
  if not state:
    raise ConnectionError(f'{address} does not answer as a Reverb server does.')
  return state[0].hex()


def describe_contents(client: reverb.Client, names: Sequence[str]) -> str:
  """Describes the content of tables, and why they do not take more.

  Args:
    client: a client of the server.
    names: the names of the tables.
  """
  try:
    infos = table_infos(client, names, _DESCRIBE_TIMEOUT_SECONDS)
  except (ConnectionError, ValueError) as error:
    return str(error)
  return ' '.join(map(_describe, infos.values()))


def inserted(info: Any) -> int:
  """Returns how many items have ever been inserted into a table.

  Args:
    info: the `TableInfo` of the table.
  """
  return info.rate_limiter_info.insert_stats.completed


def written_items(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    confirmed: Mapping[str, int],
) -> Dict[str, WrittenItems]:
  """Returns how many of the confirmed items were new.

  A server does not say for each item whether it was new, but it counts the
  items that go into a table. So items that others write at the same time count
  as new here.

  Args:
    before: the `TableInfo`s before the items were sent, by name.
    after: the `TableInfo`s after they were confirmed, by name.
    confirmed: the number of items that the server has confirmed, by table.

  Returns:
    The numbers of each table, by name.
  """
  counts = {}
  for name, went_in in count_inserted(before, after).items():
    new = min(max(went_in, 0), confirmed[name])
    counts[name] = WrittenItems(new, confirmed[name] - new)
    if counts[name].existing:
      logging.info(
          'Table %r held %d of the items already.', name, counts[name].existing
      )
  return counts


def count_inserted(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> Dict[str, int]:
  """Returns how many items were inserted; warns if a table was too small.

  Args:
    before: the `TableInfo`s before the items were sent, by name.
    after: the `TableInfo`s after they were confirmed, by name.
  """
  counts = {}
  for name, table in after.items():
    counts[name] = inserted(table) - inserted(before[name])
    held = before[name].current_size
    logging.info(
        'The server took %d new items into table %r, which now holds %d.',
        counts[name],
        name,
        table.current_size,
    )
    removed = held + counts[name] - table.current_size
    if removed > 0 and table.current_size == table.max_size:
      logging.warning(
          'Table %r is too small: %d items were inserted beside the %d it held,'
          ' but its max_size is %d, so %d items were removed. Create the table'
          ' with a larger max_size.',
          name,
          counts[name],
          held,
          table.max_size,
          removed,
      )
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
    raise ValueError(
        f'Table {info.name!r} would block: nobody samples it while it is'
        f' filled, and its rate limiter has {_limits(info)}. Fill a table with'
        ' the MinSize rate limiter.'
    )


def _describe(info) -> str:
  text = f'Table {info.name!r} holds {info.current_size} items.'
  if blocks_after(info):
    sampled = info.rate_limiter_info.sample_stats.completed
    text += (
        ' Its rate limiter lets no more in before it is sampled: it has'
        f' {_limits(info)}, with {inserted(info)} items inserted and'
        f' {sampled} sampled. Fill a table with the MinSize rate limiter, or'
        ' sample at the same time.'
    )
  return text


def _limits(info) -> str:
  limiter = info.rate_limiter_info
  return (
      f'samples_per_insert={limiter.samples_per_insert:g} and'
      f' max_diff={limiter.max_diff:g}'
  )
