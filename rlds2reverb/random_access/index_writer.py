"""Writes the files of an index."""

import json
import os
from typing import Any, BinaryIO, Dict, List, Optional, Sequence

import numpy as np
import tree

from rlds2reverb.random_access import data_files
from rlds2reverb.random_access import index as index_lib
from rlds2reverb.random_access import references
from rlds2reverb.random_access import row_layout


class IndexWriter:
  """Writes an index, episode by episode.

  Attributes:
    layout: how steps are stored.
    num_episodes: how many episodes were written.
  """

  def __init__(self, folder: str, layout: row_layout.RowLayout, mark: bytes):
    """Creates the writer.

    Args:
      folder: an empty folder.
      layout: how steps are stored.
      mark: the first bytes of references.
    """
    self.layout = layout
    self.num_episodes = 0
    self._folder = folder
    self._mark = mark
    self._files: Dict[str, BinaryIO] = {
        name: open(os.path.join(folder, name), 'xb')
        for name in (*layout.files(), index_lib.LENGTHS, index_lib.STRINGS)
    }
    self._num_string_bytes = 0
    self._known: Dict[bytes, int] = {}

  def append(self, steps: Any, length: int, is_new: bool = True) -> None:
    """Appends steps.

    Args:
      steps: their leaves, in the order of the columns, arrays `[T, ...]`.
      length: `T`.
      is_new: whether the steps begin an episode, or go on with the last one.
    """
    rows = np.empty(length, self.layout.row)
    self._known.clear()
    for number, (column, leaf) in enumerate(zip(self.layout.columns, steps)):
      if column.is_string:
        leaf = references.cells_of(
            np.asarray(leaf, object), self._mark, self._add_string
        )
      if number in self.layout.large:
        leaf = np.ascontiguousarray(leaf, column.stored)
        self._files[row_layout.large_name(number)].write(leaf.tobytes())
      else:
        rows[str(number)] = leaf
    if self.layout.row.itemsize:
      self._files['rows.bin'].write(rows.tobytes())
    lengths = self._files[index_lib.LENGTHS]
    if is_new:
      self.num_episodes += 1
      self._length = 0
    else:
      lengths.seek(-8, os.SEEK_CUR)
    self._length += length
    lengths.write(np.int64(self._length).tobytes())

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
    self.close()
    own: Dict[str, List[int]] = {}
    for name in self._files:
      path = os.path.join(self._folder, name)
      own[name] = [os.path.getsize(path), index_lib.checksum_of(path)]
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

  def close(self) -> None:
    """Closes the files."""
    for file in self._files.values():
      file.close()

  def _add_string(self, value: bytes) -> int:
    # An instruction is the same in all steps of an episode.
    begin = self._known.get(value)
    if begin is None:
      begin = self._known[value] = self._num_string_bytes
      self._files[index_lib.STRINGS].write(value)
      self._num_string_bytes += len(value)
    return begin


def layout_of(spec: Any) -> row_layout.RowLayout:
  """Returns the layout of steps.

  Args:
    spec: the nest of a step, whose leaves have a `dtype` and a `shape` of
      TensorFlow's, without the dimension of time.

  Raises:
    ValueError: if the shape of a leaf is not fully known.
  """
  columns = []
  for keys, leaf in tree.flatten_with_path(spec):
    column = row_layout.Column(keys, leaf.dtype.name, ())
    if not leaf.shape.is_fully_defined():
      raise ValueError(
          f'Field {column.name} has the shape {leaf.shape}, but random access'
          ' needs one that is the same in every step. Leave the field out, or'
          ' pad it, in the function prepare.'
      )
    columns.append(column._replace(shape=leaf.shape.as_list()))
  numbers = iter(range(len(columns)))
  structure = tree.map_structure(lambda _: next(numbers), spec)
  return row_layout.RowLayout(structure, columns)
