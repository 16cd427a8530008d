"""Names the fields of a nest by their paths, to find and change them.

A path is a tuple of the keys and indices that lead to a field, such as
`('observation', 'camera', 0)`. The string that joins them with `/` is a shorter
way to write it: `'observation/camera/0'`. Error messages use this string.

A path names one leaf, or all leaves below a key; the empty tuple names the
whole nest. If a key contains a `/`, the string may mean two fields. In that
case the tuple must be used.
"""

from typing import (
    Any,
    Callable,
    Dict,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Union,
)

import tensorflow as tf
import tree

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import steps as steps_lib

Path = Union[str, Sequence[Any]]
KeyPath = Tuple[Any, ...]


def find(nest: Any, path: Path) -> KeyPath:
  """Returns the keys of the one field of `nest` that `path` names.

  Raises:
    ValueError: if `path` names no field, or more than one. The message suggests
      similar names.
  """
  keys, problem = look_up(nest, path)
  if problem:
    names = [steps_lib.field_path(keys) for keys in _nodes(nest)]
    raise ValueError(f'{problem} The fields are {names}.')
  return keys


def look_up(nest: Any, path: Path) -> Tuple[Optional[KeyPath], str]:
  """Looks a field up without raising, so that a caller can list all problems.

  Returns:
    The keys of the one field of `nest` that `path` names, and an empty string;
    or None, and a sentence that says what is wrong with `path`.
  """
  found = _find_all(nest, path)
  if len(found) == 1:
    return found[0], ''
  if found:
    return None, (
        f'{path!r} may be any of {found}. Write the path as one of these'
        ' tuples.'
    )
  name = name_of(path)
  names = [steps_lib.field_path(keys) for keys in _nodes(nest)]
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
    return fn(steps_lib.field_path(leaf_keys), tf.convert_to_tensor(leaf))

  return tree.map_structure_with_path(map_leaf, nest)


def remove(nest: Any, keys: KeyPath) -> Any:
  """Returns nested dicts without the field at `keys`.

  A dict that this leaves empty is removed, too.

  Raises:
    ValueError: if the field is an element of a tuple or list. Removing it would
      change the indices of the elements after it.
  """
  if not keys:
    return {}
  nest = _copy(nest, keys)
  rest = remove(nest[keys[0]], keys[1:])
  if isinstance(rest, Mapping) and not rest:
    del nest[keys[0]]
  else:
    nest[keys[0]] = rest
  return nest


def insert(nest: Any, path: Path, value: Any) -> Any:
  """Returns nested dicts with a new field: `value` at `path`.

  A string is split at every `/`.

  Raises:
    ValueError: if there is a field at `path` already, or if it leads through a
      leaf or a tuple.
  """
  keys = split(path)
  if not keys:
    raise ValueError('A field must have a path, but it is empty.')
  if len(keys) > 1:
    below = nest.get(keys[0], {}) if isinstance(nest, Mapping) else {}
    value = insert(below, keys[1:], value)
  elif isinstance(nest, Mapping) and keys[0] in nest:
    raise ValueError(f'There is a field {keys[0]!r} already: {list(nest)}.')
  return {**_copy(nest, keys), keys[0]: value}


def split(path: Path) -> KeyPath:
  """Returns the keys of a path, for a field that does not exist yet."""
  return tuple(path.split('/')) if isinstance(path, str) else tuple(path)


def check_list(name: str, fields: Sequence[Path]) -> None:
  """Checks that an argument is a list of paths, and not a single one.

  Args:
    name: the name of the argument, for the message of an error.
    fields: the argument.

  Raises:
    ValueError: if it is a string, whose letters would be taken for paths.
  """
  if isinstance(fields, str):
    raise ValueError(
        f'{name} must be a list of paths, but is {fields!r}. Write'
        f' [{fields!r}].'
    )


def name_of(path: Path) -> str:
  """Returns the string of a path, as error messages write it."""
  return path if isinstance(path, str) else steps_lib.field_path(path)


def leaves(nest: Any) -> Dict[str, Any]:
  """Returns the leaves of `nest` in a dict, by their names.

  Raises:
    ValueError: if two leaves have the same name.
  """
  named = {}
  for keys, leaf in tree.flatten_with_path(nest):
    name = steps_lib.field_path(keys)
    if name in named:
      raise ValueError(f'Two fields have the name {name}. Rename one of them.')
    named[name] = leaf
  return named


def _nodes(nest) -> List[KeyPath]:
  nodes = {}
  for keys, _ in tree.flatten_with_path(nest):
    for length in range(1, len(keys) + 1):
      nodes[keys[:length]] = None
  return list(nodes)


def _find_all(nest, path) -> List[KeyPath]:
  if isinstance(path, str):
    return [keys for keys in _nodes(nest) if steps_lib.field_path(keys) == path]
  return [keys for keys in [(), *_nodes(nest)] if keys == tuple(path)]


def _copy(nest, keys) -> Dict[Any, Any]:
  if not isinstance(nest, Mapping):
    raise ValueError(
        f'Fields can be taken from and put into dicts only, but {keys[0]!r} is'
        f' sought in a {type(nest).__name__}.'
    )
  return dict(nest)
