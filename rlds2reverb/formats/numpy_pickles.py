"""A safe reader of pickled NumPy arrays and plain values.

A pickle is a program that calls any function the unpickler allows. Even NumPy's
functions are unsafe: the state of a dtype can declare bytes of the file to be
addresses of objects, and using such an array reads arbitrary memory. This
unpickler therefore builds placeholders, which are converted to arrays of plain
dtypes at the end.
"""

import io
import pickle
import re
from typing import Any

import numpy as np

_DTYPE = re.compile(r'[biufcSU]\d{1,9}|O\d?')


def loads(content: bytes) -> Any:
  """Returns a pickled nest of dicts, lists, tuples, arrays and scalars.

  Raises:
    ValueError: if the pickle is damaged, refers to anything but NumPy arrays,
      has structured dtypes, or expands to a huge nest.
  """
  try:
    return _Converter(len(content)).convert(
        _Unpickler(io.BytesIO(content)).load()
    )
  except Exception as e:  # Unpicklers raise errors of any class.
    raise ValueError(str(e) or type(e).__name__) from e


class _Dtype:
  """A placeholder for a dtype."""

  def __init__(self, name: str, *unused_options: Any):
    self._name = name
    self._order = '='

  def __setstate__(self, state: Any) -> None:
    _, self._order, *parts = state
    if any(part is not None for part in parts[:3]):  # It has fields.
      raise pickle.UnpicklingError(f'an array has the dtype {self._name}')

  def to_numpy(self) -> np.dtype:
    if not _DTYPE.fullmatch(self._name):
      raise pickle.UnpicklingError(f'an array has the dtype {self._name}')
    dtype = np.dtype(self._name)
    is_native = self._order in ('=', '|') or dtype.hasobject
    return dtype if is_native else dtype.newbyteorder(self._order)


class _Array:
  """A placeholder for an array."""

  def __setstate__(self, state: Any) -> None:
    _, self.shape, self.dtype, is_fortran, self.data = state
    self.order = 'F' if is_fortran else 'C'


def _reconstruct(*unused_arguments: Any) -> _Array:
  return _Array()


def _scalar(dtype: _Dtype, data: Any) -> Any:
  return np.frombuffer(data, dtype.to_numpy(), 1)[0]


def _from_buffer(data: Any, dtype: _Dtype, shape: Any, order: str) -> _Array:
  """Creates an array of pickle protocol 5."""
  array = _Array()
  array.data, array.dtype, array.shape, array.order = data, dtype, shape, order
  return array


def _encode(text: str, unused_encoding: str) -> bytes:
  """Encodes bytes, as in pickle protocols up to 2."""
  return text.encode('latin1')


def _make_empty_bytes() -> bytes:
  """Returns empty bytes, as in pickle protocols up to 2."""
  return b''


_NAMES = {
    ('multiarray', '_reconstruct'): _reconstruct,
    ('multiarray', 'scalar'): _scalar,
    ('numeric', '_frombuffer'): _from_buffer,
    ('numpy', 'ndarray'): _Array,
    ('numpy', 'dtype'): _Dtype,
    ('collections', 'OrderedDict'): dict,
    ('_codecs', 'encode'): _encode,
    ('__builtin__', 'bytes'): _make_empty_bytes,
}


class _Unpickler(pickle.Unpickler):
  """Replaces NumPy objects by placeholders, and rejects all other objects."""

  def find_class(self, module: str, name: str) -> Any:
    # `numpy.core` was renamed to `numpy._core` in NumPy 2.
    key = (re.sub(r'^numpy\._?core\.', '', module), name)
    if key not in _NAMES:
      raise pickle.UnpicklingError(
          f'it has a {module}.{name}, but only NumPy arrays are unpickled, as'
          ' other objects could run code'
      )
    return _NAMES[key]


class _Converter:
  """Converts placeholders to arrays."""

  def __init__(self, max_values: int):
    # A value takes at least a byte, unless a list is referenced repeatedly.
    self._num_left = max_values

  def convert(self, value: Any) -> Any:
    """Returns a nest with arrays instead of placeholders."""
    self._num_left -= 1
    if self._num_left < 0:
      raise ValueError('it expands to more values than it has bytes')
    if isinstance(value, _Array):
      return self._to_numpy(value)
    if isinstance(value, dict):
      return {key: self.convert(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
      return type(value)(map(self.convert, value))
    if isinstance(value, _Dtype):
      raise ValueError('it has a dtype without an array')
    return value

  def _to_numpy(self, array: _Array) -> np.ndarray:
    dtype = array.dtype.to_numpy()
    if dtype.hasobject:
      values = np.empty(len(array.data), object)
      values[:] = [self.convert(item) for item in array.data]
    else:
      values = np.frombuffer(array.data, dtype)
    return values.reshape(array.shape, order=array.order)
