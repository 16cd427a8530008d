"""Creates tables of Reverb servers, and reads the state of running servers.

The state comes from one gRPC call with a timeout. Reverb's own client waits
forever for a server that died, or raises errors of several classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
import math
import re
from typing import Any, NamedTuple

from absl import logging
import grpc
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import trajectory

from rlds2reverb.episodes import checks
from rlds2reverb.replay import protos
from rlds2reverb.replay import reverb

# How long a server may be silent. Inserts wait longer, because giving up leaves
# only a part of the data in the tables.
SECONDS_TO_ANSWER = 30.0
SECONDS_TO_CONFIRM = 60.0

_KINDS = ('uniform', 'prioritized', 'queue', 'one_pass', 'top_k')
_SERVER_INFO = '/deepmind.reverb.ReverbService/ServerInfo'
_DESCRIBE_TIMEOUT_SECONDS = 5
_MAX_PORT = 65535


def create_reverb_table(
    table_name: str,
    data_spec: Any,
    max_size: int,
    kind: str = 'uniform',
    *,
    priority_exponent: float = 0.6,
    min_size_to_sample: int = 1,
) -> reverb.Table:
  """Creates a `reverb.Table` whose items are sequences of frames.

  The table is for `reverb.Server`, or for `reverb_tables` of
  `write_reverb_checkpoint`. The `TableItems` of the same table name define its
  items. There are five kinds:

  *   `"uniform"`: all items are equally likely, however often they were drawn.
  *   `"prioritized"`: an item of priority p is drawn with probability
      `p**priority_exponent / sum`, as in "Prioritized Experience Replay"
      (Schaul et al., 2016): with priorities 1, 4, 9, 16 and an exponent of 0.5,
      0.1, 0.2, 0.3, 0.4. An item of priority 0 is never drawn. If all
      priorities are 0, Reverb draws uniformly, which `sample_reverb_servers`
      refuses. Priorities whose powers or their sum a float64 cannot hold, such
      as 1e200 with an exponent of 2, are refused. `TableItems.priority` defines
      the initial priorities, `PriorityUpdater` updates them.
  *   `"queue"`: every item is sampled once, in the order of insertion.
  *   `"one_pass"`: every item is sampled once, in random order, and removed
      then: drawing without replacement. Each draw is uniform over the remaining
      items, so fill the table before sampling. For several epochs, fill a table
      for each in one call: then the server stores the rows once for all of
      them. (With `max_times_sampled=2` in one table some items would come twice
      before others come at all.)
  *   `"top_k"`: the table keeps the `max_size` items of the highest priority,
      and samples them uniformly. The priority is the rank of an item, such as
      the return of its episode. With ranks 5, 1, 3, 3, 9, 2 and `max_size=3`
      the table keeps 5, 9, 3. Of items of equal rank Reverb keeps the newer.

  The other kinds remove the oldest item when they are full: with `max_size=3` a
  table holds items 2, 3 and 4 after items 0 to 4 were written. No kind blocks
  inserts, because the rate limiter is `MinSize`. A rate limiter that does, such
  as `SampleToInsertRatio` or the one of `reverb.Table.queue`, blocks forever if
  recorded data is written before anything samples it.

  Args:
    table_name: the name of the table.
    data_spec: the spec of a frame, from `create_trajectory_data_spec`.
    max_size: the maximum number of items.
    kind: how the table samples and removes items, see above.
    priority_exponent: the exponent of priorities in a `"prioritized"` table,
      from 0 up. With 0, sampling is uniform.
    min_size_to_sample: the minimum number of items for sampling.

  Raises:
    ValueError: if an argument is not valid.
  """
  checks.check_choice('kind', kind, _KINDS)
  of_table = f'of table {table_name!r}'
  checks.check_positive(f'max_size {of_table}', max_size)
  checks.check_positive(f'min_size_to_sample {of_table}', min_size_to_sample)
  if min_size_to_sample > max_size:
    raise ValueError(
        f'Table {table_name!r} could never be sampled: it holds at most'
        f' {max_size} items, and min_size_to_sample is {min_size_to_sample}.'
    )
  if not 0 <= priority_exponent < math.inf:
    raise ValueError(
        f'priority_exponent {of_table} must be a number from 0 up, but is'
        f' {priority_exponent}.'
    )
  selectors = reverb.selectors
  if kind == 'prioritized':
    sampler = selectors.Prioritized(priority_exponent)
  else:
    sampler = selectors.Fifo() if kind == 'queue' else selectors.Uniform()
  return reverb.Table(
      table_name,
      sampler=sampler,
      remover=selectors.MinHeap() if kind == 'top_k' else selectors.Fifo(),
      max_size=max_size,
      max_times_sampled=1 if kind in ('queue', 'one_pass') else 0,
      rate_limiter=reverb.rate_limiters.MinSize(min_size_to_sample),
      signature=tensor_spec.add_outer_dim(data_spec),
  )


def to_trajectory_signature(
    table_name: str, signature: Any, checkpoint: str = ''
) -> trajectory.Trajectory:
  """Returns the signature of a table as a `Trajectory`.

  Args:
    table_name: the name of the table.
    signature: the signature of the table.
    checkpoint: the path of the table's checkpoint, for the error.

  Raises:
    ValueError: if the signature has other fields than a `Trajectory`.
  """
  if getattr(signature, '_fields', ()) != trajectory.Trajectory._fields:
    place = f' of the checkpoint {checkpoint}' if checkpoint else ''
    raise ValueError(
        f'The signature of table {table_name!r}{place} is not of trajectories:'
        f' {signature}.'
    )
  return trajectory.Trajectory(*signature)


class WrittenItems(NamedTuple):
  """The numbers of items of a table that a server has confirmed.

  Attributes:
    new: the number of items that were added to the table.
    existing: the number of items whose key was already in the table. The server
      sets their priority again, and does not change their content.
  """

  new: int
  existing: int


def check_address(address: str) -> None:
  """Raises a ValueError if `address` is not a host and a port: `host:8000`."""
  match = re.fullmatch('.+:([0-9]{1,5})', address)
  if not match or not 0 < int(match[1]) <= _MAX_PORT:
    raise ValueError(
        'The address of a server must be host:port, such as localhost:8000,'
        f' with a port from 1 to {_MAX_PORT}, but is {address!r}.'
    )


def address_of(server: str | reverb.Client | reverb.Server) -> str:
  """Returns the address of a server, `host:port`.

  Args:
    server: the address, a client, or a server in this process.

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
    servers: str | reverb.Client | reverb.Server | Sequence[Any],
) -> list[str]:
  """Returns the addresses of one or several servers; see `address_of`.

  Raises:
    ValueError: if there is no server, or an address is not a host and a port.
  """
  if not isinstance(servers, (list, tuple)):
    servers = [servers]
  if not servers:
    raise ValueError('There are no servers.')
  return list(map(address_of, servers))


def open_channel(address: str) -> grpc.Channel:
  """Opens a gRPC channel to a server.

  The channel uses no proxy, because a proxy would not reach the user's own
  servers, and reconnects within a second to a server that was restarted.

  Args:
    address: the address of the server, `host:port`.
  """
  options = {
      'grpc.enable_http_proxy': 0,
      'grpc.max_receive_message_length': -1,
      'grpc.max_reconnect_backoff_ms': 1000,
      'grpc.max_send_message_length': -1,
      'grpc.use_local_subchannel_pool': 1,
  }
  return grpc.insecure_channel(address, options=list(options.items()))


def _get_server_info(server, timeout) -> protos.ServerInfoResponse:
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


def table_infos(
    server: str | reverb.Client | reverb.Server,
    names: Sequence[str] | None,
    timeout: float,
) -> dict[str, Any]:
  """Requests the `TableInfo`s of tables from a server.

  Args:
    server: the server.
    names: the names of the tables, or None for all.
    timeout: the maximum time to wait for the server, in seconds.

  Returns:
    Reverb's `TableInfo`s, by the name of the table.

  Raises:
    ConnectionError: if the server does not answer in time.
    ValueError: if the server does not have one of the tables, or `timeout` is
      not positive.
  """
  from_proto = reverb.reverb_types.TableInfo.from_serialized_proto
  response = _get_server_info(server, timeout)
  infos = {info.name: info for info in map(from_proto, response.table_info)}
  if names is None:
    return infos
  for name in names:
    if name not in infos:
      raise ValueError(
          f'The Reverb server at {address_of(server)} has no table {name!r}.'
          f' Its tables are {sorted(infos)}.'
      )
  return {name: infos[name] for name in names}


def get_state_id(
    server: str | reverb.Client | reverb.Server, timeout: float
) -> str:
  """Returns an id that changes with every start of a server.

  It takes and raises the same as `table_infos`.
  """
  return _get_server_info(server, timeout).tables_state_id[0].hex()


def num_inserted(info: Any) -> int:
  """Returns the number of items ever inserted into the table of `info`."""
  return info.rate_limiter_info.insert_stats.completed


def count_written_items(
    old_infos: Mapping[str, Any],
    new_infos: Mapping[str, Any],
    confirmed: Mapping[str, int] | None = None,
) -> dict[str, WrittenItems]:
  """Counts new and existing items, and warns if a table was too small.

  A server does not report for each item whether it was new, but it counts
  insertions. So items that others write concurrently count as new, too.

  Args:
    old_infos: the `TableInfo`s before the items were sent, by name.
    new_infos: the `TableInfo`s after the items were confirmed, by name.
    confirmed: the number of items that the server has confirmed, by table. If
      None, all inserted items are new.

  Returns:
    The counts of each table, by its name.
  """
  counts = {}
  for name, info in new_infos.items():
    old_size, size = old_infos[name].current_size, info.current_size
    new = num_inserted(info) - num_inserted(old_infos[name])
    existing = 0
    if size == info.max_size < old_size + new:
      logging.warning(
          'Table %r is too small: %d items were inserted in addition to the %d'
          ' that it held, but its max_size is %d, so %d items were removed.'
          ' Create the table with a larger max_size.',
          name,
          new,
          old_size,
          size,
          old_size + new - size,
      )
    if confirmed is not None:
      new = min(max(new, 0), confirmed[name])
      existing = confirmed[name] - new
    logging.info(
        'Table %r took %d new items, had %d of them, and now holds %d.',
        name,
        new,
        existing,
        size,
    )
    counts[name] = WrittenItems(new, existing)
  return counts


def would_block(info: Any, count: int = 1) -> bool:
  """Returns whether a table would block while `count` items are inserted.

  Args:
    info: the `TableInfo` of the table. Nobody samples the table concurrently.
    count: the number of items.
  """
  limiter = info.rate_limiter_info
  num_samples = limiter.sample_stats.completed
  # The condition of `RateLimiter::CanInsert` in Reverb 0.14.0.
  return (
      info.current_size + count > limiter.min_size_to_sample
      and (num_inserted(info) + count) * limiter.samples_per_insert
      - num_samples
      > limiter.max_diff
  )


def check_not_blocking(info: Any, count: int) -> None:
  """Raises a ValueError if a table would block; see `would_block`."""
  if would_block(info, count):
    raise ValueError(
        f'Table {info.name!r} would block: {_explain_blocking(info)}'
    )


def describe_contents(server: Any, names: Sequence[str]) -> str:
  """Describes the sizes of tables, and why they block, for error messages.

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
      + (f' It blocks: {_explain_blocking(info)}' if would_block(info) else '')
      for info in infos.values()
  )


def _explain_blocking(info) -> str:
  limiter = info.rate_limiter_info
  return (
      'its rate limiter allows no further insert before the table is sampled,'
      f' as it has samples_per_insert={limiter.samples_per_insert:g},'
      f' max_diff={limiter.max_diff:g}, {num_inserted(info)} items inserted and'
      f' {limiter.sample_stats.completed} items sampled. Fill a table with a'
      ' MinSize rate limiter, or sample at the same time.'
  )
