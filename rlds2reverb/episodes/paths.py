"""Fields of a nest, named by their paths.

A path is a tuple of the keys and indices that lead to a field, or, shorter, the
string that joins them with `/`, as error messages have it:
`('observation', 'camera', 0)` is `'observation/camera/0'`. It names one leaf,
or all leaves below a key; the empty tuple names the whole nest. Where a key has
a `/` in it, and the string could mean two fields, only the tuple will do.
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
Keys = Tuple[Any, ...]


def find(nest: Any, path: Path) -> Keys:
  """Returns the keys of the one field of `nest` that `path` names.

  Raises:
    ValueError: if there is none, with the names that come nearest, or more.
  """
  keys, problem = look_up(nest, path)
  if problem:
    names = [steps_lib.field_path(keys) for keys in _nodes(nest)]
    raise ValueError(f'{problem} The fields are {names}.')
  return keys


def look_up(nest: Any, path: Path) -> Tuple[Optional[Keys], str]:
  """Returns the keys that `find` does, or None, and what is wrong with `path`.

  For those who list several problems in one message.
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
    # `tree` has the elements of a named tuple by name.
    nest = getattr(nest, key) if hasattr(nest, '_fields') else nest[key]
  return nest


def map_leaves(fn: Callable[[str, Any], Any], nest: Any, path: Path) -> Any:
  """Returns `nest` with `fn(name, leaf)` for each leaf at or below `path`.

  `fn` is given tensors, also where a leaf is an array.
  """
  keys = find(nest, path)

  def map_leaf(leaf_keys, leaf):
    if leaf_keys[: len(keys)] != keys:
      return leaf
    return fn(steps_lib.field_path(leaf_keys), tf.convert_to_tensor(leaf))

  return tree.map_structure_with_path(map_leaf, nest)


def remove(nest: Any, keys: Keys) -> Any:
  """Returns nested dicts without what is at `keys`, nor a dict left empty.

  Raises:
    ValueError: if it is an element of a tuple or list, where what comes behind
      it would change its place.
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


def insert(nest: Any, keys: Keys, value: Any) -> Any:
  """Returns nested dicts with `value` at `keys`, where there is nothing yet.

  Raises:
    ValueError: if there is something, or `keys` leads through a leaf or tuple.
  """
  if not keys:
    raise ValueError('A field must have a path, but it is empty.')
  if len(keys) > 1:
    below = nest.get(keys[0], {}) if isinstance(nest, Mapping) else {}
    value = insert(below, keys[1:], value)
  elif isinstance(nest, Mapping) and keys[0] in nest:
    raise ValueError(f'There is a field {keys[0]!r} already: {list(nest)}.')
  return {**_copy(nest, keys), keys[0]: value}


def split(path: Path) -> Keys:
  """Returns the keys of a path to a field that is not there yet."""
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
  """Returns a path as messages have it."""
  return path if isinstance(path, str) else steps_lib.field_path(path)


def leaves(nest: Any) -> Dict[str, Any]:
  """Returns the leaves of `nest` by the names of their paths.

  Raises:
    ValueError: if two leaves have one name.
  """
  named = {}
  for keys, leaf in tree.flatten_with_path(nest):
    name = steps_lib.field_path(keys)
    if name in named:
      raise ValueError(f'Two fields have the name {name}. Rename one of them.')
    named[name] = leaf
  return named


def _nodes(nest) -> List[Keys]:
  nodes = {}
  for keys, _ in tree.flatten_with_path(nest):
    for length in range(1, len(keys) + 1):
      nodes[keys[:length]] = None
  return list(nodes)


def _find_all(nest, path) -> List[Keys]:
  if isinstance(path, str):
    return [
        keys for keys in _nodes(nest) if steps_lib.field_path(keys) == path
    ]
  return [keys for keys in [(), *_nodes(nest)] if keys == tuple(path)]


def _copy(nest, keys) -> Dict[Any, Any]:
  if not isinstance(nest, Mapping):
    raise ValueError(
        f'Fields can be taken from and put into dicts only, but {keys[0]!r} is'
        f' sought in a {type(nest).__name__}.'
    )
  return dict(nest)
