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
from rlds2reverb.episodes import paths

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
      name, shape = leaf.dtype.name, leaf.shape.as_list()
      columns.append({'path': list(path), 'dtype': name, 'shape': shape})
      array = leaf.numpy().reshape(-1)
      if leaf.dtype == tf.string:
        ends = np.cumsum([*map(len, array)], dtype=np.int64)
        np.save(os.path.join(folder, f'{number}.ends.npy'), ends)
        array = np.frombuffer(b''.join(array), np.uint8)
      # numpy alone cannot read a bfloat16 back.
      np.save(os.path.join(folder, f'{number}.npy'), array.view(np.uint8))
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

  def load(name: str) -> np.ndarray:
    with tf.io.gfile.GFile(os.path.join(folder, name), 'rb') as f:
      return np.load(f)

  rows: Dict[str, Any] = {}
  for number, column in enumerate(stored['columns']):
    array, dtype = load(f'{number}.npy'), tf.as_dtype(column['dtype'])
    if dtype == tf.string:
      ends = load(f'{number}.ends.npy')
      words = [array[a:b].tobytes() for a, b in zip([0, *ends], ends)]
      leaf = tf.constant(words, tf.string)
    else:
      leaf = tf.constant(array.view(dtype.as_numpy_dtype))
    leaf = tf.reshape(leaf, column['shape'])
    rows = paths.insert(rows, tuple(column['path']), leaf)
  lengths = tf.constant(load(_LENGTHS), tf.int64)
  if int(tf.reduce_sum(lengths)) != int(gathering.num_rows(rows)):
    raise ValueError(f'The index at {folder} is damaged: rows are missing.')
  return _with_tuples(rows), lengths, tuple(stored['keys'])


def _with_tuples(node) -> Any:
  """Returns a nest in which the dicts of numbers are tuples."""
  if not isinstance(node, dict):
    return node
  parts = {key: _with_tuples(part) for key, part in node.items()}
  if parts and all(isinstance(key, int) for key in parts):
    return tuple(parts[index] for index in sorted(parts))
  return parts
