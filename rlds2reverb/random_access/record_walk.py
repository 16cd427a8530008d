"""Finds the images of a record without parsing the rest of it.

A record is a `tf.train.Example` in the wire format of Protocol Buffers: fields
of a tag, a length and so many bytes, each of which may hold such fields:

    Example     features (1)
    Features    feature (1), one for each name: its key (1), its value (2)
    Feature     bytes_list (1), float_list (2) or int64_list (3)
    BytesList   value (1), one after the other

So the value of a feature of bytes is a run of bytes of the file. A record is
rewritten with a short string in the place of each image. It is still a valid
record, and is parsed quickly.
"""

from typing import Callable, Collection, Iterator, List, Tuple

_BYTES = 2  # The wire type of fields that have a length.
_FIRST = 1 << 3 | _BYTES  # The tags of fields 1 and 2.
_SECOND = 2 << 3 | _BYTES
# The sizes in bytes of numbers of a fixed size, by their wire types.
_FIXED = {1: 8, 5: 4}

# Returns the replacement of a string. Its arguments are the position of the
# string in the record, and the string.
Replace = Callable[[int, memoryview], bytes]


def replace_strings(
    record: memoryview, names: Collection[bytes], replace: Replace
) -> bytes:
  """Returns a record with some of its strings replaced.

  Args:
    record: a serialized `tf.train.Example`.
    names: the keys of the features of strings to replace.
    replace: see `Replace`.

  Raises:
    ValueError: if it is no `tf.train.Example`.
  """
  parts: List[bytes] = []
  try:
    for tag, begin, end in _fields(record, 0, len(record)):
      if tag == _FIRST:
        parts += _replace_in_features(record, begin, end, names, replace)
  except IndexError as e:
    raise ValueError('it ends within a field') from e
  return _field(_FIRST, b''.join(parts))


def _replace_in_features(view, begin, end, names, replace) -> Iterator[bytes]:
  for tag, entry, entry_end in _fields(view, begin, end):
    if tag != _FIRST:
      continue
    key, feature = b'', (entry_end, entry_end)
    for inner, start, stop in _fields(view, entry, entry_end):
      if inner == _FIRST:
        key = bytes(view[start:stop])
      elif inner == _SECOND:
        feature = start, stop
    if key not in names:
      yield _field(_FIRST, view[entry:entry_end])
      continue
    strings = []
    for inner, start, stop in _fields(view, *feature):
      if inner != _FIRST:
        raise ValueError(f'feature {key.decode()} has no strings')
      strings += [
          _field(_FIRST, replace(place, view[place:past]))
          for _, place, past in _fields(view, start, stop)
      ]
    value = _field(_FIRST, b''.join(strings))
    yield _field(_FIRST, _field(_FIRST, key) + _field(_SECOND, value))


def _fields(view, position: int, end: int) -> Iterator[Tuple[int, int, int]]:
  """Yields the tag of each field, and where its bytes begin and end."""
  while position < end:
    tag, position = _varint(view, position)
    begin = position
    if tag & 7 == _BYTES:
      length, begin = _varint(view, position)
      position = begin + length
    elif tag & 7 in _FIXED:
      position += _FIXED[tag & 7]
    elif tag & 7 == 0:
      _, position = _varint(view, position)
    else:
      raise ValueError(f'the tag {tag} at byte {begin} is not one of a field')
    if position > end:
      raise ValueError(f'the field at byte {begin} is longer than what has it')
    yield tag, begin, position


def _varint(view, position: int) -> Tuple[int, int]:
  """Returns a number, of 7 bits a byte, and where it ends."""
  byte = view[position]
  position += 1
  number, shift = byte & 0x7F, 7
  while byte & 0x80:
    byte = view[position]
    position += 1
    number |= (byte & 0x7F) << shift
    shift += 7
  return number, position


def _field(tag: int, value) -> bytes:
  """Returns a field with a length."""
  length, head = len(value), bytearray([tag])
  while length > 0x7F:
    head.append(length & 0x7F | 0x80)
    length >>= 7
  head.append(length)
  return bytes(head) + bytes(value)
