"""Writes batches of chunks and items into the files of a checkpoint."""

import contextlib
from typing import Any, Callable, Dict, List, Sequence

import numpy as np

from rlds2reverb.replay import layout as layout_lib
from rlds2reverb.replay import wire
from rlds2reverb.replay.checkpoint import new_checkpoint
from rlds2reverb.replay.checkpoint import part_keys
from rlds2reverb.replay.checkpoint import records as records_lib


class BatchWriter:
  """Writes batches of chunks and items into the files of a folder."""

  def __init__(
      self,
      path: str,
      record_file: Callable[[str, str], Any] = new_checkpoint.RecordFile,
  ):
    """Opens the files.

    Args:
      path: the folder.
      record_file: what opens a file, by its folder and its name.
    """
    self._chunk_keys: List[np.ndarray] = []
    self._item_keys: List[np.ndarray] = []
    self._files = contextlib.ExitStack()
    self._chunks, self._items = (
        self._files.enter_context(record_file(path, file))
        for file in (records_lib.CHUNKS, records_lib.ITEMS)
    )

  def __enter__(self):
    return self

  def __exit__(self, *error):
    return self._files.__exit__(*error)

  def write(self, batch: layout_lib.Batch) -> None:
    self._chunks.write(batch.chunks)
    heads = b''.join(chunk[: wire.KEY_HEAD] for chunk in batch.chunks)
    heads = np.frombuffer(heads, np.uint8).reshape(-1, wire.KEY_HEAD)
    self._chunk_keys.append(wire.keys_of(heads))
    for items in batch.items:
      content = items['item'].tobytes()
      size = len(content) // len(items)
      self._items.write(
          content[begin : begin + size]
          for begin in range(0, len(content), size)
      )
      heads = np.frombuffer(content, np.uint8).reshape(-1, size)
      self._item_keys.append(wire.keys_of(heads))

  @property
  def keys(self) -> Dict[str, np.ndarray]:
    """The keys of what was written so far, uint64 `[N]`, by its kind.

    See `part_keys.KINDS`.
    """
    return dict(
        zip(part_keys.KINDS, map(_join, (self._chunk_keys, self._item_keys)))
    )


def _join(keys: Sequence[np.ndarray]) -> np.ndarray:
  return np.concatenate(keys) if keys else np.zeros(0, np.uint64)
