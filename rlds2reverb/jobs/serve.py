"""Serves a Reverb checkpoint, or a data set, until it is told to stop."""

from __future__ import annotations

import collections
import os
import signal
import tempfile
import threading
from typing import Dict, List, Optional, Sequence

import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.episodes import rlds
from rlds2reverb.jobs import sources as sources_lib
from rlds2reverb.jobs import summary
from rlds2reverb.replay import items
from rlds2reverb.replay import protos
from rlds2reverb.replay import reverb
from rlds2reverb.replay.checkpoint import records
from rlds2reverb.replay.checkpoint import serve
from rlds2reverb.replay.checkpoint import write
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import rules as rules_lib

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def serve_source(
    source: sources_lib.Source,
    tables: Sequence[items.TableItems],
    *,
    port: Optional[int] = None,
    checkpoint_root: Optional[files.PathLike] = None,
    rules: Optional[rules_lib.ConversionRules] = None,
    allow_empty: bool = False,
) -> reverb.Server:
  """Starts a Reverb server with the episodes of a source.

  The episodes first become a checkpoint in a temporary folder, from which the
  server starts, so every table is just as large as its items need.

  Args:
    source: the source.
    tables: which items go into which table.
    port: see `restore_reverb_server`.
    checkpoint_root: see `restore_reverb_server`. If the root has a checkpoint
      already, the server starts from that one, and the source is not read.
    rules: how the episodes are converted. By default that is what the source
      binds for `ConversionRules`.
    allow_empty: whether a table may have no items.

  Returns:
    The server.

  Raises:
    OSError: as `open_source` and `restore_reverb_server` do, or if there is no
      space for the temporary checkpoint.
    ValueError: as `open_source`, `write_reverb_checkpoint` and
      `restore_reverb_server` do, or if a table would have no items. A port
      that is in use is refused before the episodes are read.
    InvalidArgumentError: if an episode is invalid.
  """
  if port is not None:
    serve.check_port(port)
  if checkpoint_root is not None:
    newest = serve.newest_checkpoint(
        files.expand_local(checkpoint_root, 'checkpoint_root')
    )
    if newest is not None:
      return serve.restore_reverb_server(
          newest, port=port, checkpoint_root=checkpoint_root
      )
  if rules is None:
    rules = sources_lib.rules_of(source)
  opened = sources_lib.open_source(source)
  with tempfile.TemporaryDirectory() as folder:
    checkpoint = os.path.join(folder, 'checkpoint')
    counts = write.write_reverb_checkpoint(
        opened.read(),
        checkpoint,
        tables,
        options=options_lib.ConversionOptions(rules),
    )
    if not allow_empty and not all(counts.values()):
      lengths = opened.read().map(
          lambda episode: tf.shape(episode[rlds.STEPS][rlds.IS_FIRST])[0]
      )
      longest = int(lengths.reduce(0, tf.maximum))
      raise ValueError(summary.why_empty(tables, counts, longest))
    return serve.restore_reverb_server(
        checkpoint, port=port, checkpoint_root=checkpoint_root
    )


def item_lengths(directory: str) -> Dict[str, float]:
  """Returns how many frames an item has on average, by table.

  Args:
    directory: a checkpoint, whose first items tell.
  """
  lengths: Dict[str, List[int]] = collections.defaultdict(list)
  for content in next(records.read(directory, records.ITEMS), []):
    item = protos.PrioritizedItem.FromString(content)
    column = item.flat_trajectory.columns[0]
    length = sum(part.length for part in column.chunk_slices)
    lengths[item.table].append(length)
  return {table: sum(each) / len(each) for table, each in lengths.items()}


class StopSignals:
  """Waits for SIGINT (Ctrl-C) or SIGTERM; a context manager.

  Until `hold`, either of them raises KeyboardInterrupt. After it, they end
  `wait`. A second signal ends the program at once.
  """

  def __init__(self):
    self._is_held = False
    self._stop = threading.Event()

  def __enter__(self) -> 'StopSignals':
    self._handlers = {
        number: signal.signal(number, self._on_signal) for number in _SIGNALS
    }
    return self

  def __exit__(self, *unused_error) -> None:
    for number, handler in self._handlers.items():
      signal.signal(number, handler)

  def hold(self) -> None:
    """From now on, lets signals end `wait` and interrupt nothing."""
    self._is_held = True

  def wait(self, seconds: Optional[float] = None) -> bool:
    """Waits for a signal; returns whether there was one.

    Args:
      seconds: how long to wait; without end by default.
    """
    return self._stop.wait(seconds)

  def _on_signal(self, *unused_arguments) -> None:
    self.__exit__()
    if not self._is_held:
      raise KeyboardInterrupt
    self._stop.set()
