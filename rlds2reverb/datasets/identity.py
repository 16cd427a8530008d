"""What tells one version of a data set, or one transform, from another."""

import dataclasses
import hashlib
import json
import os
from typing import Any, Mapping

import numpy as np

from rlds2reverb.datasets import files

# In the folder of every data set of TFDS, which is none without it.
INFO_FILE = 'dataset_info.json'


class ByValue:
  """A base for dataclasses that are equal where their values are.

  They are to be declared with `eq=False`: the comparison that a dataclass has
  of its own fails on arrays, and its hash on lists and dicts too. Here a list,
  a tuple and an array are equal where their numbers are, and so are two NaNs.
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
    ValueError: on anything else, for example on a function, of which it cannot
      be known whether it still does the same.
  """
  text = json.dumps([_plain(value) for value in identity], sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def data_set_version(directory: str) -> str:
  """Returns a hash of what TFDS notes of the data set in `directory`.

  That is its name, version, splits, and the number of episodes in every file.
  It is the hash of nothing where there is no data set.
  """
  path = os.path.join(directory, INFO_FILE)
  if not files.exists(path):
    return fingerprint()
  with files.open_text(path) as f:
    return fingerprint(f.read())


def _comparable(value: Any) -> Any:
  """Returns `value` as what can be compared and hashed."""
  if isinstance(value, (np.ndarray, np.generic)):
    value = value.tolist()
  if isinstance(value, Mapping):
    return frozenset((key, _comparable(item)) for key, item in value.items())
  if isinstance(value, (list, tuple)):
    return tuple(map(_comparable, value))
  return 'NaN' if isinstance(value, float) and np.isnan(value) else value


def _plain(value: Any) -> Any:
  """Returns `value` as what JSON can hold, its type included."""
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
