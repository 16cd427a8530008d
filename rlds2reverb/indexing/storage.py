"""Stores transitions on disk: a file a column, and one that names them."""

import json
import os
from typing import Any, Dict, Sequence, Tuple

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.datasets import files
from rlds2reverb.datasets import whole
from rlds2reverb.episodes import gathering

_FILE = 'index.json'
_LENGTHS = 'lengths.npy'


def write(
    directory: files.PathLike,
    rows: Dict[str, Any],
    lengths: tf.Tensor,
    keys: Sequence[str],
    *,
    overwrite: bool = False,
) -> None:
  """Writes the columns of transitions, and which of them make a key.

  Args:
    directory: a folder, which appears whole or not at all.
    rows: a nest of tensors `[N, ...]`.
    lengths: int64 `[E]`: how many rows each episode has.
    keys: the paths of columns.
    overwrite: whether a folder that is not empty is replaced.

  Raises:
    FileExistsError: if the folder is not empty.
  """
  columns = []
  with whole.new_folder(
      files.expand(directory), [_FILE], replace=overwrite
  ) as folder:
    np.save(os.path.join(folder, _LENGTHS), lengths.numpy())
    for number, (path, leaf) in enumerate(tree.flatten_with_path(rows)):
      columns.append(
          {
              'path': list(path),
              'dtype': leaf.dtype.name,
              'shape': leaf.shape.as_list(),
          }
      )
      file = os.path.join(folder, f'{number}.npy')
      if leaf.dtype == tf.string:
        words = leaf.numpy().ravel().tolist()
        ends = np.cumsum([len(word) for word in words], dtype=np.int64)
        np.save(os.path.join(folder, f'{number}.ends.npy'), ends)
        np.save(file, np.frombuffer(b''.join(words), np.uint8))
      else:
        # numpy alone cannot read a bfloat16 back.
        np.save(file, leaf.numpy().reshape(-1).view(np.uint8))
    with open(os.path.join(folder, _FILE), 'w', encoding='utf-8') as f:
      json.dump({'keys': list(keys), 'columns': columns}, f)


def read(
    directory: files.PathLike,
) -> Tuple[Dict[str, Any], tf.Tensor, Tuple[str, ...]]:
  """Reads what `write` wrote: the rows, the lengths and the keys.

  Raises:
    ValueError: if there is no such folder, or it is damaged.
  """
  folder = files.expand(directory)
  path = os.path.join(folder, _FILE)
  if not files.exists(path):
    raise ValueError(f'There is no index at {folder}: {_FILE} is missing.')
  with files.open_text(path) as f:
    stored = json.load(f)
  rows = {}
  for number, column in enumerate(stored['columns']):
    array = _load(folder, f'{number}.npy')
    shape = column['shape']
    if column['dtype'] == 'string':
      ends = _load(folder, f'{number}.ends.npy')
      starts = np.append(0, ends[:-1])
      words = [array[a:b].tobytes() for a, b in zip(starts, ends)]
      leaf = tf.reshape(tf.constant(words, tf.string), shape)
    else:
      dtype = tf.as_dtype(column['dtype'])
      leaf = tf.constant(array.view(dtype.as_numpy_dtype).reshape(shape))
    _put(rows, column['path'], leaf)
  lengths = tf.constant(_load(folder, _LENGTHS), tf.int64)
  if int(tf.reduce_sum(lengths)) != int(gathering.num_rows(rows)):
    raise ValueError(f'The index at {folder} is damaged: rows are missing.')
  return _with_tuples(rows), lengths, tuple(stored['keys'])


def _load(folder, name) -> np.ndarray:
  with tf.io.gfile.GFile(os.path.join(folder, name), 'rb') as f:
    return np.load(f)


def _put(nest, path, leaf) -> None:
  for key in path[:-1]:
    nest = nest.setdefault(key, {})
  nest[path[-1]] = leaf


def _with_tuples(node) -> Any:
  """Returns a nest in which the dicts of numbers are tuples."""
  if not isinstance(node, dict):
    return node
  parts = {key: _with_tuples(part) for key, part in node.items()}
  if parts and all(isinstance(key, int) for key in parts):
    return tuple(parts[index] for index in sorted(parts))
  return parts
