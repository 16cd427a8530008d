"""The state of the tables of a running Reverb server."""

from __future__ import annotations

from typing import Any, Dict, Mapping, NamedTuple, Union

import tensorflow as tf

from rlds2reverb.replay import reverb
from rlds2reverb.replay.server import tables as tables_lib


class TableStatus(NamedTuple):
  """A table at one moment; counts are since the server started.

  Attributes:
    size: how many items it holds.
    max_size: how many it can hold.
    inserted: how many items have gone in.
    removed: how many of them are not there any more.
    sampled: how many items were sampled.
    blocks_inserts: whether the rate limiter lets inserts wait now.
    blocks_samples: whether it lets samples wait now.
    frame_bytes: the bytes of a frame, as numbers in memory; 0 if the signature
      does not tell.
  """

  size: int
  max_size: int
  inserted: int
  removed: int
  sampled: int
  blocks_inserts: bool
  blocks_samples: bool
  frame_bytes: int


def ask(
    server: Union[str, reverb.Client, reverb.Server], timeout: float = 10.0
) -> Dict[str, TableStatus]:
  """Returns the status of every table of a server, by name.

  Args:
    server: the server, or its address, `host:port`.
    timeout: how many seconds to wait for it. It is shorter than for sampling,
      because people and Prometheus wait for the status.

  Raises:
    ConnectionError: if the server does not answer in time.
    ValueError: if the address is not one.
  """
  client = tables_lib.client_of(server)
  infos = tables_lib.table_infos(client, None, timeout)
  return {name: _status(info) for name, info in sorted(infos.items())}


def to_text(tables: Mapping[str, TableStatus]) -> str:
  """Returns the status as a table to read."""
  rows = [[name, *map(_to_text, status)] for name, status in tables.items()]
  heads = ['table', *TableStatus._fields]
  rows.insert(0, [head.replace('_', ' ') for head in heads])
  widths = [max(map(len, column)) for column in zip(*rows)]
  return '\n'.join(
      '  '.join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
      for row in rows
  )


def _to_text(value: Any) -> str:
  return f'{value:,}' if type(value) is int else 'yes' if value else 'no'


def _status(info: Any) -> TableStatus:
  limiter = info.rate_limiter_info
  inserted = tables_lib.inserted(info)
  sampled = limiter.sample_stats.completed
  credit = inserted * limiter.samples_per_insert - sampled
  return TableStatus(
      size=info.current_size,
      max_size=info.max_size,
      inserted=inserted,
      removed=inserted - info.current_size,
      sampled=sampled,
      # As Reverb's RateLimiter has it.
      blocks_inserts=info.current_size >= limiter.min_size_to_sample
      and credit + limiter.samples_per_insert > limiter.max_diff,
      blocks_samples=info.current_size < limiter.min_size_to_sample
      or credit - 1 < limiter.min_diff,
      frame_bytes=_frame_bytes(info.signature),
  )


def _frame_bytes(signature: Any) -> int:
  leaves = [] if signature is None else tf.nest.flatten(signature)
  sizes = [
      None if leaf.dtype == tf.string else leaf.shape[1:].num_elements()
      for leaf in leaves
  ]
  if None in sizes:
    return 0
  return sum(size * leaf.dtype.size for size, leaf in zip(sizes, leaves))
