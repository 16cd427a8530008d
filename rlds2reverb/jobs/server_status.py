"""The state of the tables of a running Reverb server."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Union

import numpy as np
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
  rows: List[List[str]] = [
      ['table', *(name.replace('_', ' ') for name in TableStatus._fields)]
  ]
  for name, status in tables.items():
    rows.append([name, *map(_to_text, status)])
  widths = [max(map(len, column)) for column in zip(*rows)]
  return '\n'.join(
      '  '.join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
      for row in rows
  )


def _to_text(value: Any) -> str:
  if isinstance(value, bool):
    return 'yes' if value else 'no'
  return f'{value:,}'


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
  leaves = tf.nest.flatten(signature) if signature is not None else []
  if not leaves or any(
      leaf.dtype == tf.string or not leaf.shape[1:].is_fully_defined()
      for leaf in leaves
  ):
    return 0
  return sum(
      int(np.prod(leaf.shape[1:], dtype=np.int64)) * leaf.dtype.size
      for leaf in leaves
  )
