"""Compares and hashes values, to tell data sets or transforms apart."""

import dataclasses
import hashlib
import json
from typing import Any, Mapping

import numpy as np


class ByValue:
  """A base for dataclasses that are equal if their values are equal.

  Declare them with `eq=False`: the comparison that a dataclass generates fails
  on arrays, and its hash fails on lists and dicts, too. Here lists, tuples and
  arrays with the same numbers are equal, and NaN equals NaN.
  """

  def __eq__(self, other: Any) -> bool:
    if type(self) is not type(other):
      return NotImplemented
    return _comparable(vars(self)) == _comparable(vars(other))

  def __hash__(self) -> int:
    return hash((type(self), _comparable(vars(self))))


def fingerprint(*identity: Any) -> str:
  """Returns a hash of values: 16 hexadecimal digits.

  Args:
    *identity: strings, numbers, bools, None, numpy arrays, dtypes, the
      transforms and mappings of this package and other dataclasses; and dicts,
      lists and tuples of them.

  Raises:
    ValueError: on anything else, for example on a function, because a function
      may change without notice.
  """
  text = json.dumps([_plain(value) for value in identity], sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def _comparable(value: Any) -> Any:
  """Returns `value` in a form that can be compared and hashed."""
  if isinstance(value, (np.ndarray, np.generic)):
    value = value.tolist()
  if isinstance(value, Mapping):
    return frozenset((key, _comparable(item)) for key, item in value.items())
  if isinstance(value, (list, tuple)):
    return tuple(map(_comparable, value))
  return 'NaN' if isinstance(value, float) and np.isnan(value) else value


def _plain(value: Any) -> Any:
  """Returns `value` in a form that JSON can hold, which keeps its type."""
  if value is None or isinstance(value, (bool, int, float, str)):
    return value
  if isinstance(value, (np.ndarray, np.generic)):
    return ['array', value.dtype.name, value.tolist()]
  if isinstance(value, np.dtype):
    return ['dtype', value.name]
  if dataclasses.is_dataclass(value) and not isinstance(value, type):
    return [
        type(value).__qualname__,
        {
            field.name: _plain(getattr(value, field.name))
            for field in dataclasses.fields(value)
        },
    ]
  if isinstance(value, Mapping):
    items = [[_plain(key), _plain(item)] for key, item in value.items()]
    return ['dict', sorted(items, key=json.dumps)]
  if isinstance(value, (list, tuple)):
    return ['list', [_plain(item) for item in value]]
  raise ValueError(
      f'{value!r} has no identity that can be hashed. Name it by a string that'
      ' changes when what it does changes.'
  )
