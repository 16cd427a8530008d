"""Writes rows: to a folder, or to memory."""

from typing import Any, Dict, Optional, Sequence

import numpy as np

from rlds2reverb.store import files
from rlds2reverb.store import layout as layout_lib
from rlds2reverb.store import references


class RowWriter:
  """Writes the rows and the strings of frames or steps.

  Attributes:
    layout: how a frame is stored.
    files: the files, in the order of `layout.file_names`.
    num_rows: how many rows were written.
  """

  def __init__(
      self,
      layout: layout_lib.RowLayout,
      folder: Optional[str] = None,
      mark: Optional[bytes] = None,
  ):
    """Creates the writer.

    Args:
      layout: how a frame is stored.
      folder: an empty folder for the files, or None for memory.
      mark: the first bytes of references to strings elsewhere.
    """
    self.layout = layout
    self.files = [
        files.ChecksummedFile(name, folder) for name in layout.file_names
    ]
    self.num_rows = 0
    self._mark = mark
    self._known: Dict[bytes, int] = {}

  def append(self, leaves: Sequence[Any]) -> None:
    """Appends frames, given their leaves, arrays `[B, ...]`."""
    # An instruction is the same in all steps of an episode.
    self._known.clear()
    rows = self.layout.encode(leaves, self._cells_of)
    for file, group in zip(self.files, rows):
      file.write(group)
    self.num_rows += len(rows[0])

  def close(self) -> None:
    """Closes the files. What was mapped stays."""
    for file in self.files:
      file.close()

  def _cells_of(self, strings: np.ndarray) -> np.ndarray:
    return references.cells_of(strings, self._mark, self._add_string)

  def _add_string(self, value: bytes) -> int:
    begin = self._known.get(value)
    if begin is None:
      begin = self._known[value] = self.files[-1].size
      self.files[-1].write(value)
    return begin
