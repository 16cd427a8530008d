"""Rows, nests of `[N, ...]`: makes tensors of them, and adds columns."""

from typing import Any, Dict, Mapping, Optional

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import steps as steps_lib

_SCALARS = (bool, int, float, complex, str, bytes, np.generic)

# Other names for the columns that a function adds, by the names that it gives
# them by itself.
Names = Optional[Mapping[str, str]]


def to_tensors(**nests: Any) -> Dict[str, Any]:
  """Makes tensors of the rows that a caller gives, and checks their number.

  Args:
    **nests: by the names of the arguments, nests of `[N, ...]`, whose leaves
      are tensors, arrays, or lists of numbers or strings. A list of anything
      else is a part of the nest, and so is every tuple.

  Returns:
    The nests, every leaf a tensor.

  Raises:
    ValueError: if a leaf has no first dimension, or not the `N` of the others.
    InvalidArgumentError: if that is only known later.
  """

  def convert(node):
    if _is_array(node):
      return tf.convert_to_tensor(list(node))
    # `tree` descends into nodes for which this returns None.
    return None if tree.is_nested(node) else tf.convert_to_tensor(node)

  nests = tree.traverse(convert, nests)
  leaves = {
      steps_lib.field_path(keys): leaf
      for keys, leaf in tree.flatten_with_path(nests)
  }
  for name, leaf in leaves.items():
    if leaf.shape.rank == 0:
      raise ValueError(
          f'{name} is one value, {leaf}, but needs a first dimension: the rows.'
      )
  problem = 'Rows must be of one number in all fields'
  known = {name: leaf.shape[0] for name, leaf in leaves.items()}
  if len(set(known.values()) - {None}) > 1:
    found = ', '.join(f'{name} has {count}' for name, count in known.items())
    raise ValueError(f'{problem}, but {found}.')
  if len(leaves) < 2 or None not in known.values():
    return nests
  counts = {name: tf.shape(leaf, tf.int64)[0] for name, leaf in leaves.items()}
  first, *others = counts.values()
  found = [part for pair in counts.items() for part in pair]
  is_one = tf.reduce_all([count == first for count in others])
  return graphs.asserted(nests, is_one, f'{problem}, but they are', *found)


def _is_array(node: Any) -> bool:
  """Whether `node` is a list of numbers or strings, or of such lists."""
  return (
      isinstance(node, (list, range))
      and len(node) > 0  # pylint: disable=g-explicit-length-test
      and all(isinstance(part, _SCALARS) or _is_array(part) for part in node)
  )


def add_columns(
    columns: Dict[str, Any], made: Dict[str, Any], names: Names = None
) -> Dict[str, Any]:
  """Returns `columns` and the columns `made`, none of which replaces another.

  Args:
    columns: a dict of columns.
    made: the new columns, by their names.
    names: other names for some of `made`.

  Returns:
    A new dict.

  Raises:
    ValueError: if there is a column of such a name already, or `names` has a
      name that is not in `made`.
  """
  names = dict(names or {})
  for name in names:
    checks.check_choice('A key of names', name, list(made))
  columns = dict(columns)
  for name, column in made.items():
    new_name = names.get(name, name)
    if new_name in columns:
      raise ValueError(
          f'There is a field {new_name!r} already, and a column of that name is'
          f' to be added. Name it otherwise, with names={{{name!r}: ...}}, or'
          f' rename the field first: RenameFields({{{new_name!r}: ...}}).'
      )
    columns[new_name] = column
  return columns
