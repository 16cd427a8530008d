"""JSON files of metadata, read with errors that name the file and the key."""

import json
from typing import Any, Dict, List, Mapping, Tuple, Type, Union

from rlds2reverb.datasets import files
from rlds2reverb.episodes import checks

_NAMES = {
    bool: 'true or false',
    dict: 'an object',
    float: 'a number',
    int: 'an integer',
    list: 'a list',
    str: 'a string',
}


def read(path: str) -> Dict[str, Any]:
  """Reads a file that holds one JSON object.

  Raises:
    FileNotFoundError: if there is no such file.
    ValueError: if it is empty, damaged, a Git LFS pointer, or holds anything
      but an object.
  """
  return parse(_text_of(path), path)


def read_lines(path: str) -> List[Tuple[str, Dict[str, Any]]]:
  """Reads a file with a JSON object in each line; blank lines are left out.

  Returns:
    The place of each object, such as `line 3 of FILE`, and the object.

  Raises:
    FileNotFoundError, ValueError: as `read` does.
  """
  lines = []
  for number, line in enumerate(_text_of(path).splitlines(), 1):
    if line.strip():
      place = f'line {number} of {path}'
      lines.append((place, parse(line, place)))
  return lines


def get(
    content: Mapping[str, Any],
    key: str,
    kind: Union[Type[Any], Tuple[Type[Any], ...]],
    place: str,
    default: Any = None,
) -> Any:
  """Returns the value of a key.

  Args:
    content: the object.
    key: the key.
    kind: the type of the value; `float` includes integers.
    place: where the object is, for errors, such as the path of its file.
    default: the value if there is no such key; None says that there must be.

  Raises:
    ValueError: if there is no such key, or its value is of another type.
  """
  if key not in content:
    if default is not None:
      return default
    raise ValueError(
        f'{place} must have the key {key!r}, but has {sorted(content)}.'
        f'{checks.did_you_mean(key, content)}'
    )
  value = content[key]
  kinds = kind if isinstance(kind, tuple) else (kind,)
  accepted = (*kinds, int) if float in kinds else kinds
  is_bool = isinstance(value, bool) and bool not in kinds
  if is_bool or not isinstance(value, accepted):
    names = ' or '.join(_NAMES[one] for one in kinds)
    raise ValueError(f'{key!r} of {place} must be {names}, but is {value!r}.')
  return value


def _text_of(path: str) -> str:
  try:
    with files.open_text(path) as f:
      text = f.read()
  except IsADirectoryError:
    raise ValueError(f'{path} must be a file, but is a folder.') from None
  files.check_not_pointer(path)
  return text


def parse(text: str, place: str) -> Dict[str, Any]:
  """Returns the JSON object in a text; see `read`."""
  if not text.strip():
    raise ValueError(f'{place} is empty, but must hold JSON.')
  try:
    content = json.loads(text)
  except (RecursionError, ValueError) as e:
    raise ValueError(f'{place} is not whole JSON: {e}.') from e
  if not isinstance(content, dict):
    kind = type(content).__name__
    raise ValueError(f'{place} must hold a JSON object, but holds a {kind}.')
  return content
