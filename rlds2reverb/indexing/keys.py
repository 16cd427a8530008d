"""Keys: fields by whose bytes rows are looked up.

Two keys are equal if all their bytes are. So -0.0 and 0.0 differ, and a NaN is
equal to the NaN of the same bits.
"""

import hashlib
import math
from typing import Any, Sequence, Tuple

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.episodes import steps as steps_lib


class Keys:
  """The distinct keys of rows in memory, in the order of their bytes.

  Attributes:
    starts: int64 `[K + 1]`: where the rows of each key begin in `rows`.
    rows: int64 `[N]`: the indices of the rows, those of one key in the order in
      which they were recorded.
    group: int64 `[N]`: for each row, the number of its key.
  """

  def __init__(self, recorded: Any):
    """Sorts rows by their keys.

    Args:
      recorded: a nest of tensors `[N, ...]`, with at least one row.
    """
    self._specs = tf.nest.map_structure(
        lambda leaf: tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype),
        recorded,
    )
    keys = _to_bytes([leaf.numpy() for leaf in tf.nest.flatten(recorded)])
    self.rows = np.argsort(keys, kind='stable')
    keys = keys[self.rows]
    begins = np.append(True, keys[1:] != keys[:-1])
    self.group = np.empty(len(keys), np.int64)
    self.group[self.rows] = np.cumsum(begins) - 1
    self.starts = np.append(np.flatnonzero(begins), len(keys))
    self._keys = keys[begins]

  def __len__(self) -> int:
    """Returns the number of distinct keys."""
    return len(self._keys)

  @property
  def num_bytes(self) -> int:
    arrays = (self._keys, self.rows, self.starts, self.group)
    return sum(array.nbytes for array in arrays)

  def find(self, wanted: Any) -> Tuple[tf.Tensor, tf.Tensor]:
    """Returns the numbers of keys, int64 `[B]`, and which are there, bool.

    Args:
      wanted: a nest as recorded, every leaf `[B, ...]`.

    Raises:
      ValueError: if it has another structure, dtype or shape, so that nothing
        would ever be found.
    """
    wanted = tf.nest.map_structure(tf.convert_to_tensor, wanted)
    tf.nest.assert_same_structure(wanted, self._specs)
    specs = tf.nest.flatten(self._specs)
    for (path, leaf), spec in zip(tree.flatten_with_path(wanted), specs):
      if leaf.dtype != spec.dtype or not spec.shape.is_compatible_with(
          leaf.shape
      ):
        raise ValueError(
            f'{steps_lib.field_path(path)} of a key is {leaf.dtype.name}'
            f' {leaf.shape}, but was recorded as {spec.dtype.name}'
            f' {spec.shape}: the first dimension is that of the keys.'
        )

    def search(*leaves):
      keys = _to_bytes(leaves)
      group = np.searchsorted(self._keys, keys)
      group = np.minimum(group, len(self._keys) - 1)
      return group, self._keys[group] == keys

    leaves = tf.nest.flatten(wanted)
    found = tf.numpy_function(search, leaves, [tf.int64, tf.bool])
    return tuple(tf.ensure_shape(part, leaves[0].shape[:1]) for part in found)


def _to_bytes(leaves: Sequence[np.ndarray]) -> np.ndarray:
  """Returns the bytes of each row of all leaves; a hash for each string."""
  parts = []
  for leaf in leaves:
    if leaf.dtype == object:
      hashes = [
          hashlib.blake2b(word, digest_size=16).digest() for word in leaf.flat
      ]
      # Not of the kind S, which cuts off bytes of zero.
      leaf = np.array(hashes, 'V16').reshape(leaf.shape)
    num_bytes = leaf.dtype.itemsize * math.prod(leaf.shape[1:])
    flat = np.ascontiguousarray(leaf).reshape(-1).view(np.uint8)
    parts.append(flat.reshape([len(leaf), num_bytes]))
  # A byte more, as no array has rows of no bytes.
  parts.append(np.zeros([len(leaves[0]), 1], np.uint8))
  joined = np.concatenate(parts, 1)
  return joined.view(f'V{joined.shape[1]}')[:, 0]
