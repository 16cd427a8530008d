"""The bytes of protocol buffers, for many messages at a time."""

import functools
from typing import Any

import numpy as np

# The bytes of a varint that holds a key, 64 bits.
KEY_BYTES = 10
# The bytes that a message begins with: the tag of the key, and the longest key.
KEY_HEAD = 1 + KEY_BYTES


def keys_of(heads: np.ndarray) -> np.ndarray:
  """Decodes the keys of chunks or items, which stand at their beginning.

  Args:
    heads: the first `KEY_HEAD` bytes, or more, of `ChunkData`s or
      `PrioritizedItem`s as `encoding` encodes them, uint8 `[N, bytes]`.

  Returns:
    The keys, uint64 `[N]`.
  """
  digits = heads[:, 1:KEY_HEAD].astype(np.uint64)
  # The bytes after the last one of the varint belong to the next field.
  last = np.argmax(heads[:, 1:KEY_HEAD] < 128, axis=1)
  used = np.arange(KEY_BYTES) <= last[:, None]
  digits = np.where(used, digits & np.uint64(127), np.uint64(0))
  shifts = np.arange(0, 7 * KEY_BYTES, 7, dtype=np.uint64)
  return np.bitwise_or.reduce(digits << shifts, axis=1)


def field(tag: bytes, content: bytes) -> bytes:
  """Returns a field of bytes, with its tag and its length."""
  return tag + varint(len(content)) + content


@functools.lru_cache(maxsize=4096)
def varint(value: int) -> bytes:
  """Returns a number from 0 up as a varint."""
  digits = bytearray()
  while value >= 128:
    digits.append(value & 127 | 128)
    value >>= 7
  digits.append(value)
  return bytes(digits)


def fixed_varints(values: np.ndarray, size: int) -> np.ndarray:
  """Returns varints of `size` bytes each, uint8 `values.shape + [size]`."""
  shifts = np.arange(0, 7 * size, 7, dtype=np.uint64)
  digits = (values.astype(np.uint64)[..., None] >> shifts).astype(np.uint8)
  digits[..., :-1] |= 128
  digits[..., -1] &= 127
  return digits


def record(**parts: Any) -> np.ndarray:
  """Returns a structured scalar array that has the bytes of its parts.

  Args:
    **parts: the parts in their order, bytes or arrays, by name.
  """
  parts = {
      name: np.array(part, f'V{len(part)}') if isinstance(part, bytes) else part
      for name, part in parts.items()
  }
  record = np.zeros(
      (), [(name, part.dtype, part.shape) for name, part in parts.items()]
  )
  for name, part in parts.items():
    record[name] = part
  return record


def count_keys(response: bytes) -> int:
  """Returns how many keys an `InsertStreamResponse` confirms."""
  # The response is one field of packed varints. The last byte of a varint, and
  # no other one, is below 128.
  content = np.frombuffer(response, np.uint8)
  if not content.size:
    return 0
  header = 2 + int(np.argmax(content[1:] < 128))
  return int(np.count_nonzero(content[header:] < 128))
