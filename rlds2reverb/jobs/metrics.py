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

# The metrics of a table: their names, what they count, and their fields of
# `TableStatus`. Numbers that only grow are counters.
_GAUGES = (
    ('reverb_table_items', 'Items in the table.', 'size'),
    ('reverb_table_max_items', 'Items that fit into the table.', 'max_size'),
    (
        'reverb_table_blocks_inserts',
        'Whether the rate limiter lets inserts wait.',
        'blocks_inserts',
    ),
    (
        'reverb_table_blocks_samples',
        'Whether the rate limiter lets samples wait.',
        'blocks_samples',
    ),
)
_COUNTERS = (
    ('reverb_table_inserted_items', 'Items that have gone in.', 'inserted'),
    ('reverb_table_removed_items', 'Items that have gone out.', 'removed'),
    ('reverb_table_sampled_items', 'Items that were sampled.', 'sampled'),
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
    for metrics, kind in (
        (_GAUGES, core.GaugeMetricFamily),
        (_COUNTERS, core.CounterMetricFamily),
    ):
      for name, text, field in metrics:
        metric = kind(name, text, labels=['table'])
        for table, status in tables.items():
          metric.add_metric([table], getattr(status, field))
        yield metric
    sampled = core.CounterMetricFamily(
        'reverb_table_sampled_bytes',
        'About how many bytes were sampled, as numbers in memory.',
        labels=['table'],
    )
    for table, length in self._item_lengths.items():
      status = tables[table]
      if status.frame_bytes:
        sampled.add_metric(
            [table], status.sampled * length * status.frame_bytes
        )
    yield sampled
    if self._checkpoints is not None:
      yield core.GaugeMetricFamily(
          'reverb_checkpoints',
          'Checkpoints that the server could start from.',
          len(self._checkpoints.paths()),
      )
      age = self._checkpoints.age()
      if age is not None:
        yield core.GaugeMetricFamily(
            'reverb_checkpoint_age_seconds',
            'How long ago the newest checkpoint was written.',
            age,
        )
