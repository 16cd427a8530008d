"""Keys: fields by whose bytes rows are looked up.

Two keys are equal if all their bytes are. So -0.0 and 0.0 differ, and a NaN is
equal to the NaN of the same bits.
"""

from typing import Any, NamedTuple, Tuple

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.episodes import gathering
from rlds2reverb.episodes import steps as steps_lib

# The number of rows that are compared at once, which bounds the memory.
_COMPARED_ROWS = 1 << 18
_MAX_SALTS = 8
# The integer dtypes by the logarithm of their bytes.
_INTEGERS = (tf.uint8, tf.int16, tf.int32, tf.int64)


class Groups(NamedTuple):
  """Rows, sorted by their keys.

  Attributes:
    fingerprints: int64 `[K]`, ascending: the fingerprints of the distinct keys.
    starts: int64 `[K + 1]`: where the rows of each key begin in `rows`.
    rows: int64 `[N]`: the indices of the rows, those of one key in the order in
      which they were recorded.
    group: int64 `[N]`: for each row, the number of its key.
    salt: the salt of the fingerprints.
  """

  fingerprints: np.ndarray
  starts: np.ndarray
  rows: np.ndarray
  group: np.ndarray
  salt: int


def fingerprint(keys: Any, salt: int = 0) -> tf.Tensor:
  """Returns a number for each key, the same for equal keys, int64 `[N]`.

  Args:
    keys: a nest of `[N, ...]`.
    salt: a number; another salt gives other fingerprints.
  """
  parts = [
      tf.fingerprint(_salted(_plain(leaf), salt) if salt else _plain(leaf))
      for leaf in tf.nest.flatten(keys)
  ]
  if len(parts) > 1:
    parts = [tf.fingerprint(tf.concat(parts, 1))]
  return tf.bitcast(parts[0], tf.int64)


def are_equal(keys: Any, others: Any) -> tf.Tensor:
  """Returns which keys have the same bytes as those in `others`, bool `[N]`."""

  def compare(leaf, other):
    same = _as_integers(leaf) == _as_integers(other)
    return tf.reduce_all(same, list(range(1, same.shape.rank)))

  return tf.reduce_all(
      tf.stack(tf.nest.flatten(tf.nest.map_structure(compare, keys, others))),
      0,
  )


def group_rows(keys: Any) -> Groups:
  """Sorts rows by their keys, in memory and not in a graph.

  Args:
    keys: a nest of tensors `[N, ...]`.

  Returns:
    The `Groups`, in which no two distinct keys share a fingerprint.

  Raises:
    RuntimeError: if that cannot be had.
  """
  for salt in range(_MAX_SALTS):
    prints = fingerprint(keys, salt).numpy()
    rows = np.argsort(prints, kind='stable')
    prints = prints[rows]
    begins = np.ones(len(rows), bool)
    begins[1:] = prints[1:] != prints[:-1]
    repeated = np.flatnonzero(~begins)
    if not _all_equal(keys, rows[repeated - 1], rows[repeated]):
      continue  # Two keys share a fingerprint: try another salt.
    starts = np.flatnonzero(begins)
    group = np.empty(len(rows), np.int64)
    group[rows] = np.cumsum(begins) - 1
    return Groups(
        prints[starts], np.append(starts, len(rows)), rows, group, salt
    )
  raise RuntimeError(
      f'Distinct keys have had one fingerprint {_MAX_SALTS} times. Are they'
      ' made to collide?'
  )


def find_group(
    keys: Any, fingerprints: tf.Tensor, salt: int
) -> Tuple[tf.Tensor, tf.Tensor]:
  """Finds the only group to which each key may belong; see `Groups`.

  The caller must compare the keys with `are_equal`, because another key may
  have the same fingerprint.

  Args:
    keys: a nest of `[B, ...]`.
    fingerprints: the fingerprints of the groups, as a tensor.
    salt: the salt of the groups.

  Returns:
    int64 `[B]`, the number of a group, and bool `[B]`, whether the fingerprint
    is that of the group.
  """
  wanted = fingerprint(keys, salt)
  group = tf.searchsorted(fingerprints, wanted, out_type=tf.int64)
  group = tf.minimum(group, tf.size(fingerprints, tf.int64) - 1)
  return group, tf.gather(fingerprints, group) == wanted


def check_keys(keys: Any, specs: Any) -> None:
  """Checks that keys have the fields, dtypes and shapes of the index.

  Args:
    keys: a nest of tensors `[B, ...]`.
    specs: the specs of the rows that were indexed, `[None, ...]`.

  Raises:
    ValueError: if a key would never be found, because it is of another kind.
  """
  tf.nest.assert_same_structure(keys, specs)
  for (path, leaf), spec in zip(
      tree.flatten_with_path(keys), tf.nest.flatten(specs)
  ):
    if leaf.dtype != spec.dtype or not spec.shape.is_compatible_with(
        leaf.shape
    ):
      raise ValueError(
          f'{steps_lib.field_path(path)} of a key is {leaf.dtype.name}'
          f' {leaf.shape}, but was recorded as {spec.dtype.name} {spec.shape}:'
          ' the first dimension is that of the keys.'
      )


def _plain(leaf) -> tf.Tensor:
  """Returns a leaf in a dtype whose bytes can be read."""
  return tf.cast(leaf, tf.uint8) if leaf.dtype == tf.bool else leaf


def _as_integers(leaf) -> tf.Tensor:
  """Returns a leaf as integers of the same bytes; strings as they are."""
  leaf = _plain(leaf)
  if leaf.dtype in _INTEGERS or leaf.dtype == tf.string:
    return leaf
  # As few integers as possible: comparing many takes longer.
  size = min(leaf.dtype.size, 8)
  return tf.bitcast(leaf, _INTEGERS[size.bit_length() - 1])


def _salted(leaf, salt) -> tf.Tensor:
  """Returns the bytes of a leaf, or its strings, after a byte of salt."""
  if leaf.dtype == tf.string:
    return tf.strings.join([tf.constant(chr(salt)), leaf])
  if leaf.dtype.size > 1:
    leaf = tf.bitcast(leaf, tf.uint8)
  shape = tf.shape(leaf)
  rows = tf.reshape(leaf, [shape[0], tf.reduce_prod(shape[1:])])
  first = tf.fill([shape[0], 1], tf.constant(salt, leaf.dtype))
  return tf.concat([first, rows], 1)


def _all_equal(keys, rows, others) -> bool:
  for start in range(0, len(rows), _COMPARED_ROWS):
    part = slice(start, start + _COMPARED_ROWS)
    if not tf.reduce_all(
        are_equal(
            gathering.take(keys, rows[part]), gathering.take(keys, others[part])
        )
    ):
      return False
  return True
