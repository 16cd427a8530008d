"""Serves a Reverb checkpoint, or a data set, until it is told to stop.

Reverb keeps only the newest checkpoint of its own in its folder, the root.
`KeptCheckpoints` keeps earlier ones beside the root as second names (hard
links) of the same files, which take no more space than they took in the root:

    root/2026-01-01T12:30...        the newest, by Reverb
    root.kept/2026-01-01T11:30...   those that are kept
    root.kept/2026-01-01T12:30...
"""

from __future__ import annotations

import dataclasses
import functools
import glob
import os
import shutil
import tempfile
import time
from typing import ContextManager, List, Optional, Sequence

from absl import logging

from rlds2reverb.datasets import files
from rlds2reverb.datasets import locks
from rlds2reverb.datasets import whole
from rlds2reverb.jobs import opened as opened_lib
from rlds2reverb.jobs import sources as sources_lib
from rlds2reverb.jobs import summary
from rlds2reverb.replay import items
from rlds2reverb.replay import reverb
from rlds2reverb.replay.checkpoint import records
from rlds2reverb.replay.checkpoint import serve
from rlds2reverb.replay.checkpoint import write
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import rules as rules_lib

_KEPT = '.kept'
_DAMAGED = '.damaged-'


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
  restore = functools.partial(
      serve.restore_reverb_server, port=port, checkpoint_root=checkpoint_root
  )
  if port is not None:
    serve.check_port(port)
  if checkpoint_root is not None:
    newest = serve.newest_checkpoint(
        files.expand_local(checkpoint_root, 'checkpoint_root')
    )
    if newest is not None:
      return restore(newest)
  rules = sources_lib.rules_of(source) if rules is None else rules
  opened = sources_lib.open_source(source)
  options = options_lib.ConversionOptions(rules)
  with tempfile.TemporaryDirectory() as folder:
    checkpoint = os.path.join(folder, 'checkpoint')
    counts = write.write_reverb_checkpoint(
        opened.read(), checkpoint, tables, options=options
    )
    if not allow_empty and not all(counts.values()):
      longest = max(opened_lib.lengths_of(opened.read()), default=0)
      raise ValueError(summary.why_empty(tables, counts, longest))
    return restore(checkpoint)


@dataclasses.dataclass(frozen=True)
class KeptCheckpoints:
  """The checkpoints of a root.

  Attributes:
    root: the folder that the server writes its checkpoints to.
    count: how many of them are kept, the newest included.
    max_hours: the largest age of those kept, except for the newest.
  """

  root: str
  count: int = 1
  max_hours: Optional[float] = None

  @property
  def _kept(self) -> str:
    return self.root.rstrip(os.sep) + _KEPT

  def locked(self) -> ContextManager[bool]:
    """Locks the root against other servers, which would remove its files.

    Raises:
      BlockingIOError: if one writes to it.
    """
    return locks.locked(f'{self._kept}.lock', self.root)

  def paths(self) -> List[str]:
    """Returns all checkpoints that are whole, the newest first."""
    found = {
        os.path.basename(path := os.path.dirname(done)): path
        for folder in (self._kept, self.root)
        for done in glob.glob(f'{glob.escape(folder)}/*/{records.DONE}')
    }
    return [found[name] for name in sorted(found, reverse=True)]

  def restart(self, port: Optional[int] = None) -> Optional[reverb.Server]:
    """Starts a server from the newest checkpoint, if there is any.

    One that is damaged is put aside, and the one before it is taken. What a
    server was keeping when it was killed is removed.

    Args:
      port: see `restore_reverb_server`.

    Raises:
      CheckpointError: if all are damaged.
      OSError, ValueError: as `restore_reverb_server` does.
    """
    whole.remove_unfinished(self._kept)
    paths = self.paths()
    for path in paths:
      try:
        return serve.restore_reverb_server(
            path, port=port, checkpoint_root=self.root
        )
      except records.CheckpointError as e:
        if path == paths[-1]:
          raise
        logging.warning('Going on from the checkpoint before: %s', e)
        self._put_aside(os.path.basename(path))
    return None

  def write(self, client: reverb.Client) -> str:
    """Lets a server write a checkpoint; returns its path.

    Raises:
      RuntimeError: if the server cannot write it.
      OSError: if it cannot be kept.
    """
    path = client.checkpoint()
    if self.count > 1:
      self._keep(path)
      self._remove_old()
    return path

  def age(self) -> Optional[float]:
    """Returns how many seconds ago the newest was written; None without one."""
    return next(map(_age_of, self.paths()), None)

  def _keep(self, path: str) -> None:
    """Gives the files of a checkpoint second names, which appear together."""
    kept = os.path.join(self._kept, os.path.basename(path.rstrip(os.sep)))
    with whole.new_folder(kept, [records.DONE], replace=True) as folder:
      shutil.copytree(
          path, folder, copy_function=files.link, dirs_exist_ok=True
      )

  def _put_aside(self, name: str) -> None:
    """Keeps a damaged checkpoint where no server starts from it."""
    aside = os.path.join(self._kept, _DAMAGED + name)
    for folder in self.root, self._kept:
      path = os.path.join(folder, name)
      if os.path.exists(path):
        # If two names lead to the same files, the later one stays.
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(path, aside)

  def _remove_old(self) -> None:
    hours = self.max_hours or float('inf')
    for index, path in enumerate(self.paths()):
      if index >= self.count or (index and _age_of(path) > 3600 * hours):
        kept = os.path.join(self._kept, os.path.basename(path))
        shutil.rmtree(kept, ignore_errors=True)


def _age_of(path: str) -> float:
  return time.time() - os.stat(os.path.join(path, records.DONE)).st_mtime
