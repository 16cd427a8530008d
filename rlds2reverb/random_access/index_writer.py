"""Writes the files of an index."""

import json
import os
from typing import Any, List, Optional, Sequence

import numpy as np

from rlds2reverb.random_access import index as index_lib
from rlds2reverb.store import data_files
from rlds2reverb.store import files
from rlds2reverb.store import layout as layout_lib
from rlds2reverb.store import writer


class IndexWriter(writer.RowWriter):
  """Writes an index, episode by episode.

  Attributes:
    lengths: how many rows each episode has.
  """

  def __init__(self, folder: str, spec: Any, mark: bytes):
    """Creates the writer.

    Args:
      folder: an empty folder.
      spec: the nest of a step, whose leaves are specs of TensorFlow's.
      mark: the first bytes of references.

    Raises:
      ValueError: if the shape of a leaf is not fully known.
    """
    layout = layout_lib.RowLayout.of_spec(
        spec, 'Leave the field out, or pad it, in the function prepare.'
    )
    super().__init__(layout, folder, mark)
    self.lengths: List[int] = []
    self._folder = folder

  def append(self, leaves: Sequence[Any], is_new: bool = True) -> None:
    """Appends steps that begin an episode, or go on with the last one."""
    super().append(leaves)
    if is_new:
      self.lengths.append(0)
    self.lengths[-1] += len(leaves[0])

  def finish(
      self,
      data_dir: str,
      facts: Sequence[data_files.FileFacts],
      is_trajectory: bool,
      fingerprint: Optional[str],
  ) -> None:
    """Writes the file that says that the index is whole.

    Args:
      data_dir: the folder of the data set.
      facts: the facts of the files that references name.
      is_trajectory: whether rows are frames of `Trajectory`s.
      fingerprint: a string that differs for any other index.
    """
    lengths = files.ChecksummedFile(index_lib.LENGTHS, self._folder)
    lengths.write(np.array(self.lengths, np.int64))
    own = {
        os.path.basename(file.path): [file.size, file.finish().tolist()]
        for file in (lengths, *self.files)
    }
    lengths.close()
    self.close()
    marker = {
        'version': index_lib.VERSION,
        'fingerprint': fingerprint,
        'data_dir': data_dir,
        'data_files': [list(known) for known in facts],
        'is_trajectory': is_trajectory,
        'layout': self.layout.to_json(),
        'own_files': own,
    }
    path = os.path.join(self._folder, index_lib.MARKER)
    with open(path, 'x', encoding='utf-8') as f:
      json.dump(marker, f)
