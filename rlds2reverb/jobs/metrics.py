"""The numbers of a Reverb server, for Prometheus to scrape.

It needs the extra: `pip install '.[metrics]'` in a clone.
"""

from __future__ import annotations

from typing import Iterator, Mapping, Optional

import prometheus_client
from prometheus_client import core
from prometheus_client import registry

from rlds2reverb.jobs import kept_checkpoints
from rlds2reverb.jobs import server_status
from rlds2reverb.replay import reverb

# The metrics of a table: the end of its name, the field of `TableStatus`, and
# what it counts. Numbers that only grow are counters.
_GAUGE, _COUNTER = core.GaugeMetricFamily, core.CounterMetricFamily
_OF_TABLES = (
    (_GAUGE, 'items', 'size', 'Items in the table.'),
    (_GAUGE, 'max_items', 'max_size', 'Items that fit into the table.'),
    (_GAUGE, 'blocks_inserts', 'blocks_inserts', 'Whether inserts wait.'),
    (_GAUGE, 'blocks_samples', 'blocks_samples', 'Whether samples wait.'),
    (_COUNTER, 'inserted_items', 'inserted', 'Items that have gone in.'),
    (_COUNTER, 'removed_items', 'removed', 'Items that have gone out.'),
    (_COUNTER, 'sampled_items', 'sampled', 'Items that were sampled.'),
)


def start(
    port: int,
    server: reverb.Server,
    checkpoints: Optional[kept_checkpoints.KeptCheckpoints] = None,
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
    OSError: if the port is in use.
  """
  collected = registry.CollectorRegistry()
  collected.register(_Collector(server, checkpoints, item_lengths or {}))
  prometheus_client.start_http_server(port, registry=collected)


class _Collector(registry.Collector):
  """Asks a server at every scrape."""

  def __init__(self, server, checkpoints, item_lengths):
    self._client = server.localhost_client()
    self._checkpoints = checkpoints
    self._item_lengths = item_lengths

  def describe(self):
    return []  # Nothing is asked before the first scrape.

  def collect(self) -> Iterator[core.Metric]:
    tables = server_status.ask(self._client)
    for kind, name, field, text in _OF_TABLES:
      metric = kind(f'reverb_table_{name}', text, labels=['table'])
      for table, status in tables.items():
        metric.add_metric([table], getattr(status, field))
      yield metric
    sampled = _COUNTER(
        'reverb_table_sampled_bytes',
        'About how many bytes were sampled, as numbers in memory.',
        labels=['table'],
    )
    for table, length in self._item_lengths.items():
      status = tables[table]
      num_bytes = status.sampled * length * status.frame_bytes
      if status.frame_bytes:
        sampled.add_metric([table], num_bytes)
    yield sampled
    if self._checkpoints is None:
      return
    text = 'Checkpoints that the server could start from.'
    yield _GAUGE('reverb_checkpoints', text, len(self._checkpoints.paths()))
    age = self._checkpoints.age()
    if age is not None:
      text = 'How long ago the newest checkpoint was written.'
      yield _GAUGE('reverb_checkpoint_age_seconds', text, age)
