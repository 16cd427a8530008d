"""Serves a Reverb checkpoint, or a data set, until it is told to stop."""

import contextlib
import os
import signal
import tempfile
import threading
from typing import Any, Callable, Dict, Iterator, Optional, Sequence

import reverb

from rlds2reverb.datasets import files
from rlds2reverb.jobs import sources as sources_lib
from rlds2reverb.replay.checkpoint import serve
from rlds2reverb.replay.checkpoint import write
from rlds2reverb.replay import items
from rlds2reverb.trajectories import rules as rules_lib

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_TIMEOUT_SECONDS = 30


def serve_source(
    source: sources_lib.Source,
    tables: Sequence[items.TableItems],
    *,
    port: Optional[int] = None,
    checkpoint_root: Optional[files.PathLike] = None,
    rules: Optional[rules_lib.ConversionRules] = None,
) -> reverb.Server:
  """Starts a Reverb server with the episodes of a source.

  The episodes first become a checkpoint in a temporary folder, of which the
  server is started. So every table has just the size that its items need.

  Args:
    source: the source.
    tables: which items go into which table.
    port: see `restore_reverb_server`.
    checkpoint_root: see `restore_reverb_server`. If the root has a checkpoint
      already, the server starts from that one, and the source is not read.
    rules: how the episodes are converted. By default that is what the source
      binds for `ConversionRules`.

  Returns:
    The server.

  Raises:
    OSError: as `open_source` and `restore_reverb_server` do, or if there is no
      space for the temporary checkpoint.
    ValueError: as `open_source`, `write_reverb_checkpoint` and
      `restore_reverb_server` do. A port that is in use is refused before the
      episodes are read.
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
    rules = rules_lib.ConversionRules(
        **sources_lib.arguments_of('ConversionRules', source)
    )
  opened = sources_lib.open_source(source)
  with tempfile.TemporaryDirectory() as folder:
    checkpoint = os.path.join(folder, 'checkpoint')
    write.write_reverb_checkpoint(
        opened.read(), checkpoint, tables, rules=rules
    )
    return serve.restore_reverb_server(
        checkpoint, port=port, checkpoint_root=checkpoint_root
    )


def table_infos(server: reverb.Server) -> Dict[str, Any]:
  """Returns Reverb's `TableInfo` of every table of a server, by name."""
  return server.localhost_client().server_info(timeout=_TIMEOUT_SECONDS)


@contextlib.contextmanager
def stop_signals() -> Iterator[Callable[[], None]]:
  """Yields a function that waits for SIGINT (Ctrl-C) or SIGTERM.

  Either of them raises KeyboardInterrupt if it comes before the wait. A second
  signal does what it does without this: it ends the program at once.
  """
  is_waiting = False
  stop = threading.Event()

  def on_signal(*unused_arguments):
    restore()
    if not is_waiting:
      raise KeyboardInterrupt
    stop.set()

  def wait():
    nonlocal is_waiting
    is_waiting = True
    stop.wait()

  def restore():
    for number, handler in before.items():
      signal.signal(number, handler)

  before = {number: signal.signal(number, on_signal) for number in _SIGNALS}
  try:
    yield wait
  finally:
    restore()
