"""The state of the tables of a running Reverb server, also for Prometheus.

Only metrics need the extra `metrics`, which brings prometheus_client.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any, Dict, Iterator, Mapping, NamedTuple, Optional, Union

import tensorflow as tf

from rlds2reverb.jobs import serve
from rlds2reverb.replay import reverb
from rlds2reverb.replay.server import tables as tables_lib

# The metrics of a table: the end of its name, the field of `TableStatus`, and
# what it counts. Numbers that only grow are counters.
_OF_TABLES = (
    ('Gauge', 'items', 'size', 'Items in the table.'),
    ('Gauge', 'max_items', 'max_size', 'Items that fit into the table.'),
    ('Gauge', 'blocks_inserts', 'blocks_inserts', 'Whether inserts wait.'),
    ('Gauge', 'blocks_samples', 'blocks_samples', 'Whether samples wait.'),
    ('Counter', 'inserted_items', 'inserted', 'Items that have gone in.'),
    ('Counter', 'removed_items', 'removed', 'Items that have gone out.'),
    ('Counter', 'sampled_items', 'sampled', 'Items that were sampled.'),
    (
        'Counter',
        'sampled_bytes',
        'sampled_bytes',
        'About how many bytes were sampled, as numbers in memory.',
    ),
)


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
  infos = tables_lib.table_infos(server, None, timeout)
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
      blocks_inserts=tables_lib.blocks_after(info),
      # As Reverb's RateLimiter has it.
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


def import_prometheus() -> Any:
  """Returns the package `prometheus_client`.

  Raises:
    ModuleNotFoundError: if it is not installed.
  """
  return importlib.import_module('prometheus_client')


def serve_metrics(
    port: int,
    server: reverb.Server,
    checkpoints: Optional[serve.KeptCheckpoints] = None,
    item_lengths: Optional[Mapping[str, float]] = None,
) -> None:
  """Serves the metrics of a server at `http://host:port/metrics`.

  Args:
    port: the port, on all interfaces.
    server: the server, which is asked at every scrape.
    checkpoints: the checkpoints of the server, if it writes any.
    item_lengths: how many frames an item of a table has on average; sampled
      bytes are counted for these tables.

  Raises:
    ModuleNotFoundError: if prometheus_client is not installed.
    OSError: if the port is in use.
  """
  prometheus = import_prometheus()
  collected = prometheus.CollectorRegistry()
  client = server.localhost_client()
  collected.register(_Collector(client, checkpoints, item_lengths or {}))
  prometheus.start_http_server(port, registry=collected)


@dataclasses.dataclass(frozen=True, eq=False)  # It must have a hash.
class _Collector:
  """Asks a server at every scrape."""

  client: reverb.Client
  checkpoints: Optional[serve.KeptCheckpoints]
  item_lengths: Mapping[str, float]

  def collect(self) -> Iterator[Any]:
    core = importlib.import_module('prometheus_client.core')
    tables = {name: one._asdict() for name, one in ask(self.client).items()}
    for name, length in self.item_lengths.items():
      one = tables[name]
      if one['frame_bytes']:
        one['sampled_bytes'] = one['sampled'] * length * one['frame_bytes']
    for kind, name, field, text in _OF_TABLES:
      family = getattr(core, f'{kind}MetricFamily')
      metric = family(f'reverb_table_{name}', text, labels=['table'])
      for table, status in tables.items():
        if field in status:
          metric.add_metric([table], status[field])
      yield metric
    if self.checkpoints is None:
      return
    gauge = core.GaugeMetricFamily
    text = 'Checkpoints that the server could start from.'
    yield gauge('reverb_checkpoints', text, len(self.checkpoints.paths()))
    age = self.checkpoints.age()
    if age is not None:
      text = 'How long ago the newest checkpoint was written.'
      yield gauge('reverb_checkpoint_age_seconds', text, age)
