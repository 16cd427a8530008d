"""Folders of prepared frames: the files of a store, with checks.

    prepared_frames.json   what the frames were made from, how many there are,
                           and checksums of the two files of metadata
    spec.pbtxt             the spec of a frame
    index.npz              the runs of items, their priorities, and checksums of
                           each MB of the files of frames
    rows-*.bin             the rows of each group of columns
    strings.bin            all strings, one after the other

The first file has a checksum of its own, so that nothing is read unchecked.
"""

import io
import json
import os
from typing import Any, Dict, List, NamedTuple, Optional
import zlib

import numpy as np
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import trajectory

from rlds2reverb.datasets import files
from rlds2reverb.replay.local import store as store_lib
from rlds2reverb.store import files as row_files

# This file is written last: where it is, the others are whole.
MARKER = 'prepared_frames.json'
_SPEC = 'spec.pbtxt'
_INDEX = 'index.npz'
# The version of the files' format.
_VERSION = 3
_AGAIN = 'prepare it again'
# The number of blocks of each file that are checked when a folder is opened.
_BLOCKS_AT_OPENING = 32


class _Folder(NamedTuple):
  """A folder whose metadata has been checked."""

  marker: Dict[str, Any]
  spec: Any
  runs: store_lib.Runs
  priorities: Optional[np.ndarray]
  paths: List[str]
  checksums: List[np.ndarray]


def write_metadata(
    folder: str,
    store: store_lib.FrameStore,
    checksums: List[np.ndarray],
    made_from: Optional[str],
) -> None:
  """Writes what makes the files of a store a folder of prepared frames.

  Args:
    folder: the folder, which has the files of the store.
    store: the store.
    checksums: the checksums of its files.
    made_from: what tells the data from other data, if that is known.
  """
  arrays = store.runs._asdict()
  if store.priorities is not None:
    arrays['priorities'] = store.priorities
  for number, values in enumerate(checksums):
    arrays[f'checksums_{number}'] = values
  np.savez(os.path.join(folder, _INDEX), **arrays)
  tensor_spec.to_pbtxt_file(os.path.join(folder, _SPEC), store.spec)
  content = json.dumps(
      {
          'made_from': made_from,
          'form': store.windows._asdict(),
          'sizes': [len(store.rows[0]), len(store.strings)],
          'checksums': {
              name: zlib.crc32(_read(os.path.join(folder, name)))
              for name in (_SPEC, _INDEX)
          },
      }
  )
  with open(os.path.join(folder, MARKER), 'w', encoding='utf-8') as f:
    json.dump(
        {
            'version': _VERSION,
            'checksum': zlib.crc32(content.encode()),
            'content': content,
        },
        f,
    )


def read_marker(folder: str) -> Optional[Dict[str, Any]]:
  """Returns what a folder of prepared frames says of itself.

  Args:
    folder: a folder on the local disk.

  Returns:
    A dictionary, in which `made_from` tells the data from other data; None if
    the folder holds no prepared frames.

  Raises:
    OSError: if the file that says it is damaged, or of another version.
  """
  path = os.path.join(folder, MARKER)
  try:
    data = _read(path)
  except (FileNotFoundError, NotADirectoryError):
    return None
  try:
    marker = json.loads(data)
    version = marker['version']
    if version == _VERSION:
      content = marker['content']
      if zlib.crc32(content.encode()) != marker['checksum']:
        raise ValueError('its checksum is wrong')
      return json.loads(content)
  except (ValueError, KeyError, TypeError, AttributeError) as e:
    raise _damage(path, str(e)) from e
  raise OSError(
      f'{path} is of version {version}, and this is version {_VERSION}. Remove'
      ' its folder, and prepare it again.'
  )


def open_store(folder: str) -> store_lib.FrameStore:
  """Maps the files of a folder of prepared frames, once they are checked.

  The metadata is checked whole. Each file of frames is checked for its size and
  for the checksums of 32 MB: a small file whole, a large one at its first and
  last MB and at others between them. That takes about 15 ms a file if it is in
  the page cache, and otherwise as long as 32 reads of 1 MB. Use
  `check_prepared_frames` to check all of it.

  Args:
    folder: a folder on the local disk.

  Raises:
    FileNotFoundError: if there is no such folder, or no frames in it.
    OSError: if it is damaged, or of another version.
  """
  opened = _open_folder(folder)
  _check_blocks(opened, _BLOCKS_AT_OPENING)
  return store_lib.map_store(
      opened.paths,
      opened.spec,
      store_lib.ItemWindows(**opened.marker['form']),
      tuple(opened.marker['sizes']),
      opened.runs,
      opened.priorities,
      opened.checksums,
  )


def check_prepared_frames(directory: files.PathLike) -> None:
  """Reads a folder of prepared frames whole, and checks every byte.

  Opening the folder checks all metadata, but of large files a part alone.

  Args:
    directory: what `EpisodesReplayBuffer(..., directory=)` has written.

  Raises:
    FileNotFoundError: if there is no such folder, or no frames in it.
    OSError: if it is damaged, or of another version.
  """
  folder = files.expand_local(directory, 'The folder of prepared frames')
  _check_blocks(_open_folder(folder), None)


def _open_folder(folder: str) -> _Folder:
  marker = read_marker(folder)
  if marker is None:
    raise FileNotFoundError(
        f'{folder} holds no prepared frames: it has no {MARKER}.'
    )
  for name, checksum in marker['checksums'].items():
    path = os.path.join(folder, name)
    if zlib.crc32(_read_or_damage(path)) != checksum:
      raise _damage(path, 'its checksum is wrong')
  spec = trajectory.Trajectory(
      *tensor_spec.from_pbtxt_file(os.path.join(folder, _SPEC))
  )
  layout = store_lib.layout_of(spec)
  with np.load(io.BytesIO(_read(os.path.join(folder, _INDEX)))) as index:
    runs = store_lib.Runs(*[index[name] for name in store_lib.Runs._fields])
    priorities = index.get('priorities')
    paths = [os.path.join(folder, name) for name in layout.file_names]
    checksums = [index[f'checksums_{k}'] for k in range(len(paths))]
  num_rows, num_string_bytes = marker['sizes']
  sizes = [num_rows * size for size in layout.row_bytes]
  for path, size in zip(paths, [*sizes, num_string_bytes]):
    row_files.check_size(path, size, _AGAIN)
  return _Folder(marker, spec, runs, priorities, paths, checksums)


def _check_blocks(opened: _Folder, limit: Optional[int]) -> None:
  """Checks the blocks of all files, or `limit` blocks of each."""
  for path, checksums in zip(opened.paths, opened.checksums):
    row_files.check_blocks(path, checksums, _AGAIN, limit)


def _read(path: str) -> bytes:
  with open(path, 'rb') as f:
    return f.read()


def _read_or_damage(path: str) -> bytes:
  try:
    return _read(path)
  except FileNotFoundError as e:
    raise _damage(path, 'it is missing') from e


def _damage(path: str, problem: str) -> OSError:
  return row_files.damaged(path, problem, _AGAIN)
