"""Reads pickles of NumPy arrays and plain values without trusting them.

A pickle is a program. It may call any function that the unpickler lets it name,
and NumPy's own can be misused: the state of a dtype may say that bytes of the
file are the addresses of objects, and using such an array reads any memory. So
an unpickler here knows no class of NumPy. It builds placeholders, which become
arrays of plain dtypes when all is read.
"""

import io
import pickle
import re
from typing import Any

import numpy as np

_DTYPE = re.compile(r'[biufcSU]\d{1,9}|O\d?')


def loads(content: bytes) -> Any:
  """Returns the value of a pickle: arrays, in a nest of dicts and lists.

  Tuples are returned as tuples, scalars of NumPy as such.

  Raises:
    ValueError: if the pickle is damaged, names anything but NumPy's arrays, has
      dtypes of several fields, or is a small text of a huge nest.
  """
  try:
    return _Converter(len(content)).convert(
        _Unpickler(io.BytesIO(content)).load()
    )
  except Exception as e:  # An unpickler raises errors of any class.
    raise ValueError(str(e) or type(e).__name__) from e


class _Dtype:
  """A dtype in a pickle."""

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
  """An array in a pickle."""

  def __setstate__(self, state: Any) -> None:
    _, self.shape, self.dtype, is_fortran, self.data = state
    self.order = 'F' if is_fortran else 'C'


def _reconstruct(*unused_arguments: Any) -> _Array:
  return _Array()


def _scalar(dtype: _Dtype, data: Any) -> Any:
  return np.frombuffer(data, dtype.to_numpy(), 1)[0]


def _from_buffer(data: Any, dtype: _Dtype, shape: Any, order: str) -> _Array:
  """Makes an array of protocol 5."""
  array = _Array()
  array.data, array.dtype, array.shape, array.order = data, dtype, shape, order
  return array


def _encode(text: str, unused_encoding: str) -> bytes:
  """Encodes the bytes of a pickle that Python 2 can read."""
  return text.encode('latin1')


def _make_no_bytes() -> bytes:
  """Returns the empty bytes of a pickle that Python 2 can read."""
  return b''


_NAMES = {
    ('multiarray', '_reconstruct'): _reconstruct,
    ('multiarray', 'scalar'): _scalar,
    ('numeric', '_frombuffer'): _from_buffer,
    ('numpy', 'ndarray'): _Array,
    ('numpy', 'dtype'): _Dtype,
    ('collections', 'OrderedDict'): dict,
    ('_codecs', 'encode'): _encode,
    ('__builtin__', 'bytes'): _make_no_bytes,
}


class _Unpickler(pickle.Unpickler):
  """Builds placeholders in place of NumPy's objects, and refuses all others."""

  def find_class(self, module: str, name: str) -> Any:
    # It is `numpy.core` before NumPy 2, and `numpy._core` since.
    key = (re.sub(r'^numpy\._?core\.', '', module), name)
    if key not in _NAMES:
      raise pickle.UnpicklingError(
          f'it has a {module}.{name}, but only NumPy arrays are unpickled, as'
          ' other objects could run code'
      )
    return _NAMES[key]


class _Converter:
  """Replaces the placeholders in a value of a pickle."""

  def __init__(self, max_values: int):
    # Each value takes a byte, unless one list is in many places of others.
    self._num_left = max_values

  def convert(self, value: Any) -> Any:
    """Returns a value with arrays in place of the placeholders."""
    self._num_left -= 1
    if self._num_left < 0:
      raise ValueError('its lists contain each other again and again')
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
