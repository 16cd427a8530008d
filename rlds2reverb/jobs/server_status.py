"""The state of the tables of a running Reverb server, also for Prometheus.

Only metrics need the extra `metrics`, which brings prometheus_client.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any, Dict, Iterator, Mapping, NamedTuple, Optional, Union

from rlds2reverb.jobs import serve
from rlds2reverb.replay import reverb
from rlds2reverb.replay.server import tables as tables_lib

# The metrics of a table, by the field of `TableStatus`: the kind, the end of
# the name, and what it counts. Numbers that only grow are counters.
_METRICS = {
    'size': ('Gauge', 'items', 'Items in the table.'),
    'max_size': ('Gauge', 'max_items', 'Items that fit into the table.'),
    'inserted': ('Counter', 'inserted_items', 'Items that have gone in.'),
    'removed': ('Counter', 'removed_items', 'Items that have gone out.'),
    'sampled': ('Counter', 'sampled_items', 'Items that were sampled.'),
    'blocks_inserts': ('Gauge', 'blocks_inserts', 'Whether inserts wait.'),
    'blocks_samples': ('Gauge', 'blocks_samples', 'Whether samples wait.'),
}


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
  """

  size: int
  max_size: int
  inserted: int
  removed: int
  sampled: int
  blocks_inserts: bool
  blocks_samples: bool


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
  )


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
) -> None:
  """Serves the metrics of a server at `http://host:port/metrics`.

  Args:
    port: the port, on all interfaces.
    server: the server, which is asked at every scrape.
    checkpoints: the checkpoints of the server, if it writes any.

  Raises:
    ModuleNotFoundError: if prometheus_client is not installed.
    OSError: if the port is in use.
  """
  prometheus = import_prometheus()
  collected = prometheus.CollectorRegistry()
  collected.register(_Collector(server.localhost_client(), checkpoints))
  prometheus.start_http_server(port, registry=collected)


@dataclasses.dataclass(frozen=True, eq=False)  # It must have a hash.
class _Collector:
  """Asks a server at every scrape."""

  client: reverb.Client
  checkpoints: Optional[serve.KeptCheckpoints]

  def collect(self) -> Iterator[Any]:
    core = importlib.import_module('prometheus_client.core')
    tables = ask(self.client)
    for field, (kind, name, text) in _METRICS.items():
      family = getattr(core, f'{kind}MetricFamily')
      metric = family(f'reverb_table_{name}', text, labels=['table'])
      for table, status in tables.items():
        metric.add_metric([table], getattr(status, field))
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
