"""Limits on the memory and the files that a file can make its reader use.

A small file can expand to any size: an array of zeros, an image of one color,
a header with a wrong shape. Readers check the size of a value before they
allocate memory for it, and refuse larger values than the limit.

A file can also name other files. Readers refuse a name that leads outside of
the folder of the data set, unless the user allows the place.
"""

from collections.abc import Callable
import os

# The environment variable that sets the limit in bytes. Worker processes and
# commands inherit it.
VARIABLE = 'RLDS2REVERB_MAX_VALUE_BYTES'
_DEFAULT_BYTES = 256 << 20
# The environment variable that allows places outside of data sets: folders,
# joined by colons.
PLACES_VARIABLE = 'RLDS2REVERB_ALLOWED_PLACES'
# A compressed file may expand this many times, and any file to this many
# values of the largest size.
_MAX_EXPANSION = 100
_NUM_VALUES = 4
# Videos of a fixed camera, and images of simulators, expand this many times.
IMAGE_EXPANSION = 1000


def max_value_bytes() -> int:
  """Returns the limit in bytes, 256 MiB by default.

  Raises:
    ValueError: if the environment variable is not a positive integer.
  """
  text = os.environ.get(VARIABLE)
  if not text:
    return _DEFAULT_BYTES
  if not text.isdecimal() or not int(text):
    raise ValueError(
        f'{VARIABLE} must be a number of bytes of at least 1, but is {text!r}.'
    )
  return int(text)


def max_expanded_bytes(file_bytes: int, expansion: int = _MAX_EXPANSION) -> int:
  """Returns to how many bytes compressed content may expand.

  Args:
    file_bytes: the size of the file, or of its compressed part.
    expansion: how many times it may expand. Small files may always expand to
      four values of the largest size.
  """
  return max(_NUM_VALUES * max_value_bytes(), expansion * file_bytes)


def check_size(name: str, num_bytes: int) -> None:
  """Raises a ValueError if a value is larger than the limit.

  Args:
    name: the value and its location, the subject of the error.
    num_bytes: its size in memory.
  """
  limit = max_value_bytes()
  if num_bytes > limit:
    raise ValueError(
        f'{name} takes {num_bytes} bytes, more than the limit of {limit}. If'
        f' the file is right, raise the limit: {VARIABLE}={num_bytes}.'
    )


def check_expanded(
    name: str, num_bytes: int, file_bytes: int, expansion: int = _MAX_EXPANSION
) -> None:
  """Raises a ValueError if compressed content expands too far.

  Args:
    name: the content and its location, the subject of the error.
    num_bytes: its size in memory.
    file_bytes: see `max_expanded_bytes`.
    expansion: see `max_expanded_bytes`.
  """
  limit = max_expanded_bytes(file_bytes, expansion)
  if num_bytes > limit:
    raise ValueError(
        f'{name} expands to {num_bytes} bytes, more than the limit of {limit}.'
        f' If the file is right, raise the limit: {VARIABLE}={num_bytes}.'
    )


def read_expanded(
    name: str, read: Callable[[int], bytes], file_bytes: int
) -> bytes:
  """Returns the expanded content of a stream.

  Args:
    name: the content and its location, the subject of the error.
    read: reads from the stream at most as many bytes as it is given.
    file_bytes: see `max_expanded_bytes`.

  Raises:
    ValueError: if it expands too far.
  """
  limit = max_expanded_bytes(file_bytes)
  content = read(limit + 1)
  if len(content) > limit:
    raise ValueError(
        f'{name} has more than {limit} bytes. If the file is right, raise the'
        f' limit with {VARIABLE}.'
    )
  return content


def check_place(name: str, path: str, folder: str | None = None) -> None:
  """Raises a ValueError if a file names a path outside of its data set.

  Symbolic links are not resolved.

  Args:
    name: the file and the location of the path in it, the subject of the error.
    path: the path on the local disk. A relative path is one in `folder`, or in
      the working directory.
    folder: the folder of the data set; None if every path needs permission.
  """
  path = os.path.abspath(os.path.join(folder or '', path))
  allowed = os.environ.get(PLACES_VARIABLE, '').split(os.pathsep)
  places = [os.path.expanduser(place) for place in allowed if place]
  if folder is not None:
    places.append(folder)
  places = list(map(os.path.abspath, places))
  if not any(os.path.commonpath([path, place]) == place for place in places):
    raise ValueError(
        f'{name} names {path}'
        + (f', which is outside of {folder}' if folder else '')
        + '. If you trust the file, and the files that it names, allow their'
        f' folder: {PLACES_VARIABLE}={os.path.dirname(path)}.'
    )
