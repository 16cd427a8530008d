"""Paths of fields in nests: finding, reading, replacing and naming fields.

A path is a tuple of the keys and indices that lead to a field, such as
`('observation', 'camera', 0)`. The string `'observation/camera/0'` means the
same, and error messages use it.

A path names one leaf, or all leaves below a key; the empty tuple names the
entire nest. If a key contains a `/`, the string may be ambiguous, and the tuple
must be used.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from etils import epy
import tree

from rlds2reverb.episodes import checks

with epy.lazy_imports():
  import tensorflow as tf

Path = str | Sequence[Any]
KeyPath = tuple[Any, ...]


def name_of(path: Path) -> str:
  """Returns a path as a string, such as `observation/camera/0`."""
  return path if isinstance(path, str) else '/'.join(map(str, path))


def find(nest: Any, path: Path) -> KeyPath:
  """Returns the keys of the field that `path` names.

  Raises:
    ValueError: if `path` names no field, or more than one. The message suggests
      similar names.
  """
  keys, problem = look_up(nest, path)
  if keys is None:
    names = [name_of(keys) for keys in _nodes(nest)]
    raise ValueError(f'{problem} The fields are {names}.')
  return keys


def look_up(nest: Any, path: Path) -> tuple[KeyPath | None, str]:
  """Finds a field without raising, so that a caller can list all problems.

  Returns:
    The keys of the field that `path` names, and an empty string; or None, and
    the error message.
  """
  matches = _find_all(nest, path)
  if len(matches) == 1:
    return matches[0], ''
  if matches:
    return None, (
        f'{path!r} may be any of {matches}. Write the path as one of these'
        ' tuples.'
    )
  name = name_of(path)
  names = [name_of(keys) for keys in _nodes(nest)]
  return None, f'There is no field {name}.{checks.did_you_mean(name, names)}'


def contains(nest: Any, path: Path) -> bool:
  """Returns whether `path` names a field of `nest`."""
  return bool(_find_all(nest, path))


def get(nest: Any, path: Path) -> Any:
  """Returns the field of `nest` that `path` names: a leaf or a nest.

  Raises:
    ValueError: as `find` does.
  """
  for key in find(nest, path):
    # In the paths of `tree`, the elements of a named tuple have names.
    nest = getattr(nest, key) if hasattr(nest, '_fields') else nest[key]
  return nest


def map_leaves(fn: Callable[[str, Any], Any], nest: Any, path: Path) -> Any:
  """Replaces each leaf at or below `path` by `fn(name, leaf)`.

  Args:
    fn: a function of the name of a leaf and the leaf, as a tensor.
    nest: a nest of tensors or arrays.
    path: the path of a field of `nest`.

  Returns:
    The nest with the new leaves.

  Raises:
    ValueError: as `find` does.
  """
  keys = find(nest, path)

  def map_leaf(leaf_keys, leaf):
    if leaf_keys[: len(keys)] != keys:
      return leaf
    return fn(name_of(leaf_keys), tf.convert_to_tensor(leaf))

  return tree.map_structure_with_path(map_leaf, nest)


def remove(nest: Any, keys: KeyPath) -> Any:
  """Returns nested dicts without the field at `keys`.

  A dict that becomes empty is removed, too.

  Raises:
    ValueError: if the field is an element of a tuple or list. Removing it would
      change the indices of the elements after it.
  """
  if not keys:
    return {}
  nest = _copy_dict(nest, keys)
  child = remove(nest[keys[0]], keys[1:])
  if isinstance(child, Mapping) and not child:
    del nest[keys[0]]
  else:
    nest[keys[0]] = child
  return nest


def insert(nest: Any, path: Path, value: Any) -> Any:
  """Returns nested dicts with a new field: `value` at `path`.

  A string is split at every `/`.

  Raises:
    ValueError: if the field exists already, or if `path` leads through a leaf
      or a tuple.
  """
  keys = split(path)
  if not keys:
    raise ValueError('A field must have a path, but it is empty.')
  if len(keys) > 1:
    child = nest.get(keys[0], {}) if isinstance(nest, Mapping) else {}
    value = insert(child, keys[1:], value)
  elif isinstance(nest, Mapping) and keys[0] in nest:
    raise ValueError(f'There is a field {keys[0]!r} already: {list(nest)}.')
  return {**_copy_dict(nest, keys), keys[0]: value}


def split(path: Path) -> KeyPath:
  """Returns the keys of a path, for a field that does not exist yet."""
  return tuple(path.split('/')) if isinstance(path, str) else tuple(path)


def check_list(name: str, fields: Sequence[Path]) -> None:
  """Raises a ValueError if an argument is a string, not a list of paths.

  Args:
    name: the name of the argument.
    fields: the argument. The letters of a string would be taken for paths.
  """
  if isinstance(fields, str):
    raise ValueError(
        f'{name} must be a list of paths, but is {fields!r}. Write'
        f' [{fields!r}].'
    )


def leaves(nest: Any) -> dict[str, Any]:
  """Returns the leaves of `nest` in a dict, by their names.

  Raises:
    ValueError: if two leaves have the same name.
  """
  leaf_of_name = {}
  for keys, leaf in tree.flatten_with_path(nest):
    name = name_of(keys)
    if name in leaf_of_name:
      raise ValueError(f'Two fields have the name {name}. Rename one of them.')
    leaf_of_name[name] = leaf
  return leaf_of_name


def _nodes(nest) -> list[KeyPath]:
  nodes = {}
  for keys, _ in tree.flatten_with_path(nest):
    for length in range(1, len(keys) + 1):
      nodes[keys[:length]] = None
  return list(nodes)


def _find_all(nest, path) -> list[KeyPath]:
  if isinstance(path, str):
    return [keys for keys in _nodes(nest) if name_of(keys) == path]
  return [keys for keys in [(), *_nodes(nest)] if keys == tuple(path)]


def _copy_dict(nest, keys) -> dict[Any, Any]:
  if not isinstance(nest, Mapping):
    raise ValueError(
        f'Fields can be taken from and put into dicts only, but {keys[0]!r} is'
        f' sought in a {type(nest).__name__}.'
    )
  return dict(nest)
