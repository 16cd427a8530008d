"""Reverb servers of data sets, their checkpoints, and their status.

Reverb keeps only its newest checkpoint in its folder, the root.
`KeptCheckpoints` keeps earlier ones next to the root as hard links of the same
files, which take no additional space:

    root/2026-01-01T12:30...        the newest, written by Reverb
    root.kept/2026-01-01T11:30...   kept
    root.kept/2026-01-01T12:30...   kept

Metrics for Prometheus need the extra `metrics`, which installs
prometheus_client.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import functools
import glob
import importlib
import os
import shutil
import tempfile
import time
from typing import Any, NamedTuple

from absl import logging

from rlds2reverb.datasets import files
from rlds2reverb.jobs import sources as sources_lib
from rlds2reverb.jobs import summary
from rlds2reverb.replay import items
from rlds2reverb.replay import reverb
from rlds2reverb.replay.checkpoint import records
from rlds2reverb.replay.checkpoint import serve
from rlds2reverb.replay.checkpoint import write
from rlds2reverb.replay.server import tables as tables_lib
from rlds2reverb.trajectories import options as options_lib

_KEPT = '.kept'
_DAMAGED = '.damaged-'
# Metrics by the field of `TableStatus`: the kind, the suffix of the name, the
# help. Numbers that only increase are counters.
_METRICS = {
    'size': ('Gauge', 'items', 'Items in the table.'),
    'max_size': ('Gauge', 'max_items', 'Items that fit into the table.'),
    'inserted': ('Counter', 'inserted_items', 'Items that have gone in.'),
    'removed': ('Counter', 'removed_items', 'Items that have gone out.'),
    'sampled': ('Counter', 'sampled_items', 'Items that were sampled.'),
    'blocks_inserts': ('Gauge', 'blocks_inserts', 'Whether inserts wait.'),
    'blocks_samples': ('Gauge', 'blocks_samples', 'Whether samples wait.'),
}


def serve_source(
    source: sources_lib.Source,
    tables: Sequence[items.TableItems],
    *,
    port: int | None = None,
    checkpoint_root: files.PathLike | None = None,
    rules: options_lib.ConversionRules | None = None,
    allow_empty: bool = False,
    overrides: Sequence[serve.TableOverrides] = (),
) -> reverb.Server:
  """Starts a Reverb server with the episodes of a source.

  The server starts from a temporary checkpoint of the episodes, so every table
  has the size of its items.

  Args:
    source: the source.
    tables: the items of each table.
    port: see `restore_reverb_server`.
    checkpoint_root: see `restore_reverb_server`. If it has a checkpoint, the
      server starts from that instead of the source.
    rules: the rules of the conversion. By default the source binds them.
    allow_empty: whether a table may have no items.
    overrides: settings of tables; see `restore_reverb_server`.

  Returns:
    The server.

  Raises:
    OSError: as `open_source` and `restore_reverb_server` do, or if the disk has
      no space for the temporary checkpoint.
    ValueError: as `open_source`, `write_reverb_checkpoint` and
      `restore_reverb_server` do, or if a table would have no items. The port is
      checked before the episodes are read.
    InvalidArgumentError: if an episode is invalid.
  """
  restore = functools.partial(
      serve.restore_reverb_server,
      port=port,
      checkpoint_root=checkpoint_root,
      tables=overrides,
  )
  if port is not None:
    serve.check_port(port)
  if checkpoint_root is not None:
    newest = serve.newest_checkpoint(
        files.expand_local(checkpoint_root, 'checkpoint_root')
    )
    if newest is not None:
      return restore(newest)
  rules = source.make_rules() if rules is None else rules
  opened = sources_lib.open_source(source)
  options = options_lib.ConversionOptions(rules)
  with tempfile.TemporaryDirectory() as folder:
    checkpoint = os.path.join(folder, 'checkpoint')
    counts = write.write_reverb_checkpoint(
        opened.read(), checkpoint, tables, options=options
    )
    if not allow_empty and not all(counts.values()):
      longest = max(sources_lib.read_lengths(opened.read()), default=0)
      raise ValueError(summary.explain_empty(tables, counts, longest))
    return restore(checkpoint)


@dataclasses.dataclass(frozen=True)
class KeptCheckpoints:
  """The checkpoints of a root.

  Attributes:
    root: the folder to which the server writes checkpoints.
    count: the maximum number of checkpoints, including the newest.
    max_hours: the maximum age of all but the newest checkpoint.
  """

  root: str
  count: int = 1
  max_hours: float | None = None

  @property
  def _kept(self) -> str:
    return self.root.rstrip(os.sep) + _KEPT

  def locked(self) -> contextlib.AbstractContextManager[bool]:
    """Locks the root, as other servers would remove its files.

    Raises:
      BlockingIOError: if another server has locked it.
    """
    return files.lock(f'{self._kept}.lock', self.root)

  def paths(self) -> list[str]:
    """Returns all complete checkpoints, the newest first."""
    paths = {
        os.path.basename(path := os.path.dirname(done)): path
        for folder in (self._kept, self.root)
        for done in glob.glob(f'{glob.escape(folder)}/*/{records.DONE}')
    }
    return [paths[name] for name in sorted(paths, reverse=True)]

  def restart(
      self,
      port: int | None = None,
      overrides: Sequence[serve.TableOverrides] = (),
  ) -> reverb.Server | None:
    """Starts a server from the newest checkpoint; returns None without one.

    A damaged checkpoint is renamed, and the previous one is used. Incomplete
    checkpoints of a killed server are removed.

    Args:
      port: see `restore_reverb_server`.
      overrides: settings of tables; see `restore_reverb_server`.

    Raises:
      CheckpointError: if all are damaged.
      OSError, ValueError: as `restore_reverb_server` does.
    """
    self._remove_incomplete()
    paths = self.paths()
    for path in paths:
      try:
        return serve.restore_reverb_server(
            path, port=port, checkpoint_root=self.root, tables=overrides
        )
      except records.CheckpointError as e:
        if path == paths[-1]:
          raise
        logging.warning('Using the previous checkpoint: %s', e)
        self._rename_damaged(os.path.basename(path))
    return None

  def write(self, client: reverb.Client) -> str:
    """Makes a server write a checkpoint; returns its path.

    Raises:
      RuntimeError: if the server cannot write it.
      OSError: if the files cannot be linked.
    """
    path = client.checkpoint()
    if self.count > 1:
      self._keep(path)
      hours = self.max_hours or float('inf')
      for index, old in enumerate(self.paths()):
        if index >= self.count or (index and _get_age(old) > 3600 * hours):
          self._remove(os.path.join(self._kept, os.path.basename(old)))
    return path

  def age(self) -> float | None:
    """Returns the age in seconds of the newest checkpoint, or None."""
    return next(map(_get_age, self.paths()), None)

  def _keep(self, path: str) -> None:
    """Links the files of a checkpoint into a new folder, atomically."""
    target = os.path.join(self._kept, os.path.basename(path.rstrip(os.sep)))
    with files.new_folder(target, [records.DONE], replace=True) as folder:
      shutil.copytree(
          path, folder, copy_function=files.link, dirs_exist_ok=True
      )

  def _rename_damaged(self, name: str) -> None:
    """Renames a damaged checkpoint, so that no server starts from it."""
    aside = os.path.join(self._kept, _DAMAGED + name)
    for folder in self.root, self._kept:
      path = os.path.join(folder, name)
      if os.path.exists(path):
        # Both may be links of the same files. The second one remains.
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(path, aside)

  def _remove(self, path: str) -> None:
    """Removes a kept checkpoint, after marking it as incomplete."""
    with contextlib.suppress(FileNotFoundError):
      os.remove(os.path.join(path, records.DONE))
    shutil.rmtree(path, ignore_errors=True)

  def _remove_incomplete(self) -> None:
    """Removes checkpoints that a killed server was removing or linking."""
    files.remove_unfinished(self._kept)
    for path in glob.glob(f'{glob.escape(self._kept)}/*/'):
      if not os.path.exists(os.path.join(path, records.DONE)):
        self._remove(path)


def _get_age(path: str) -> float:
  return time.time() - os.stat(os.path.join(path, records.DONE)).st_mtime


class TableStatus(NamedTuple):
  """The state of a table; counts start with the server.

  Attributes:
    size: the number of items in the table.
    max_size: the maximum number of items.
    inserted: the number of inserted items.
    removed: the number of removed items.
    sampled: the number of sampled items.
    blocks_inserts: whether the rate limiter blocks inserts.
    blocks_samples: whether the rate limiter blocks samples.
  """

  size: int
  max_size: int
  inserted: int
  removed: int
  sampled: int
  blocks_inserts: bool
  blocks_samples: bool


def get_status(
    server: str | reverb.Client | reverb.Server, timeout: float = 10.0
) -> dict[str, TableStatus]:
  """Returns the status of every table of a server, by name.

  Args:
    server: the server, or its address, `host:port`.
    timeout: how many seconds to wait for it.

  Raises:
    ConnectionError: if the server does not answer in time.
    ValueError: if the address is not valid.
  """
  infos = tables_lib.table_infos(server, None, timeout)
  return {name: _make_status(info) for name, info in sorted(infos.items())}


def format_status(tables: Mapping[str, TableStatus]) -> str:
  """Returns the status as a text table."""
  rows = [[name, *map(_format, status)] for name, status in tables.items()]
  heads = ['table', *TableStatus._fields]
  rows.insert(0, [head.replace('_', ' ') for head in heads])
  widths = [max(map(len, column)) for column in zip(*rows)]
  return '\n'.join(
      '  '.join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
      for row in rows
  )


def _format(value: Any) -> str:
  return f'{value:,}' if type(value) is int else 'yes' if value else 'no'


def _make_status(info: Any) -> TableStatus:
  limiter = info.rate_limiter_info
  inserted = tables_lib.num_inserted(info)
  sampled = limiter.sample_stats.completed
  credit = inserted * limiter.samples_per_insert - sampled
  return TableStatus(
      size=info.current_size,
      max_size=info.max_size,
      inserted=inserted,
      removed=inserted - info.current_size,
      sampled=sampled,
      blocks_inserts=tables_lib.would_block(info),
      # As in Reverb's RateLimiter.
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
    checkpoints: KeptCheckpoints | None = None,
) -> None:
  """Serves the metrics of a server at `http://host:port/metrics`.

  Args:
    port: the port, on all interfaces.
    server: the server, which is queried at every scrape.
    checkpoints: the checkpoints of the server, if it writes any.

  Raises:
    ModuleNotFoundError: if prometheus_client is not installed.
    OSError: if the port is in use.
  """
  prometheus = import_prometheus()
  registry = prometheus.CollectorRegistry()
  registry.register(_Collector(server.localhost_client(), checkpoints))
  prometheus.start_http_server(port, registry=registry)


@dataclasses.dataclass(frozen=True, eq=False)  # It must have a hash.
class _Collector:
  """Queries a server at every scrape."""

  client: reverb.Client
  checkpoints: KeptCheckpoints | None

  def collect(self) -> Iterator[Any]:
    core = importlib.import_module('prometheus_client.core')
    tables = get_status(self.client)
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
