"""JSON files of this library and of other programs."""

from collections.abc import Mapping
import json
from typing import Any

from rlds2reverb.datasets import files
from rlds2reverb.episodes import checks
from rlds2reverb.store import damage

_JSON_TYPES = {
    bool: 'true or false',
    dict: 'an object',
    float: 'a number',
    int: 'an integer',
    list: 'a list',
    str: 'a string',
}


def read_json(path: str, remedy: str) -> dict[str, Any]:
  """Returns the JSON object in a file of this library.

  Args:
    path: the file.
    remedy: a sentence of advice if the file is damaged.

  Raises:
    FileNotFoundError: if there is no such file.
    OSError: if it does not hold a JSON object.
  """
  with damage.naming_damage(path, remedy), files.open_text(path) as f:
    text = f.read()
  return damage.parse_json(text, path, remedy)


def read_json_object(path: str) -> dict[str, Any]:
  """Reads a file of another program that holds one JSON object.

  Raises:
    FileNotFoundError: if there is no such file.
    ValueError: if it is empty, damaged, a Git LFS pointer, or holds anything
      but an object.
  """
  return parse_json_object(_read_text(path), path)


def read_json_lines(path: str) -> list[tuple[str, dict[str, Any]]]:
  """Reads a file with a JSON object in each line. Blank lines are skipped.

  Returns:
    The place of each object, such as `line 3 of FILE`, and the object.

  Raises:
    FileNotFoundError, ValueError: see `read_json_object`.
  """
  lines = []
  for number, line in enumerate(_read_text(path).splitlines(), 1):
    if line.strip():
      place = f'line {number} of {path}'
      lines.append((place, parse_json_object(line, place)))
  return lines


def _read_text(path: str) -> str:
  try:
    with files.open_text(path) as f:
      text = f.read()
  except IsADirectoryError:
    raise ValueError(f'{path} must be a file, but is a folder.') from None
  files.check_not_pointer(path)
  return text


def parse_json_object(text: str, place: str) -> dict[str, Any]:
  """Returns the JSON object in a text; see `read_json_object`."""
  if not text.strip():
    raise ValueError(f'{place} is empty, but must hold JSON.')
  try:
    content = json.loads(text)
  except (RecursionError, ValueError) as e:
    raise ValueError(f'{place} is not complete JSON: {e}.') from e
  if not isinstance(content, dict):
    kind = type(content).__name__
    raise ValueError(f'{place} must hold a JSON object, but holds a {kind}.')
  return content


def get_json_value(
    content: Mapping[str, Any],
    key: str,
    kind: type[Any] | tuple[type[Any], ...],
    place: str,
    default: Any = None,
) -> Any:
  """Returns the value of a key of a JSON object.

  Args:
    content: the object.
    key: the key.
    kind: the type of the value; `float` includes integers.
    place: where the object is, for errors, such as the path of its file.
    default: the value if there is no such key; None if the key is required.

  Raises:
    ValueError: if there is no such key, or its value has another type.
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
    names = ' or '.join(_JSON_TYPES[kind] for kind in kinds)
    raise ValueError(f'{key!r} of {place} must be {names}, but is {value!r}.')
  return value
