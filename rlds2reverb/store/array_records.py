"""Reads ArrayRecord files, record by record and in any order.

An ArrayRecord file has an index of its records, and each record that TFDS
writes is compressed on its own and has a checksum. `array_record`, which TFDS
installs, reads them without TensorFlow. It is imported at the first use.
"""

import collections
import functools
import os
import threading
from typing import Any

from rlds2reverb.store import damage

# How many files are open at a time in this process.
_MAX_OPEN = 64
# The bytes of decompressed records that a `RecordCache` holds.
_CACHE_BYTES = 64 << 20
# No readahead: only requested records are read, and a reader without threads
# also works in a forked process.
_OPTIONS = 'readahead_buffer_size:0,max_parallelism:0'


class ArrayRecordFile:
  """An open ArrayRecord file. Any number of threads may read it.

  Attributes:
    path: the path of the file.
    num_records: the number of records in the file.
  """

  def __init__(self, path: str):
    """Opens a file.

    Args:
      path: a path on the local disk.

    Raises:
      ModuleNotFoundError: if `array_record` is not installed.
      FileNotFoundError: if there is no such file.
      OSError: if the file is damaged or truncated.
    """
    self.path = path
    if not os.path.isfile(path):
      raise FileNotFoundError(damage.missing(path))
    self._reader = _import_module().ArrayRecordReader(path, _OPTIONS)
    if not self._reader.ok():
      raise OSError(self._find_damage())
    self.num_records = self._reader.num_records()

  def read(self, begin: int, end: int) -> list[bytes]:
    """Returns the records from `begin` to `end - 1`.

    Raises:
      OSError: if there are no such records, or a record is damaged. The error
        names the first such record.
    """
    self.check_count(end)
    try:
      return self._reader.read(list(range(begin, end)))
    except RuntimeError as e:
      if end - begin == 1:
        raise OSError(
            f'{self.path} is damaged: record {begin} cannot be read: {e}.'
            f' {damage.ADVICE}'
        ) from e
    return [self.read(index, index + 1)[0] for index in range(begin, end)]

  def check_count(self, count: int) -> None:
    """Raises an OSError if the file has fewer records than `count`."""
    if count > self.num_records:
      raise OSError(
          f'{self.path} has {self.num_records} records, but dataset_info.json'
          f' says at least {count}. {damage.ADVICE}'
      )

  def _find_damage(self) -> str:
    """Returns why the file cannot be opened."""
    pointer = damage.pointer_hint(self.path)
    if pointer:
      return pointer
    try:
      self._reader.read([0])
      reason = 'it has no index'
    except RuntimeError as e:
      reason = str(e)
    return (
        f'{self.path} is damaged or truncated: its index of records cannot be'
        f' read: {reason}. {damage.ADVICE}'
    )


def _import_module() -> Any:
  try:
    from array_record.python import array_record_module
  except ModuleNotFoundError as e:
    raise ModuleNotFoundError(
        'Reading ArrayRecord files needs array_record, which is not installed:'
        ' pip install array_record.',
        name=e.name,
    ) from e
  return array_record_module


def open_file(path: str) -> ArrayRecordFile:
  """Returns the open file at a path. Recently used files stay open.

  Raises:
    OSError: see `ArrayRecordFile`.
  """
  try:
    stat = os.stat(path)
  except FileNotFoundError:
    return ArrayRecordFile(path)  # Raises the error.
  # A file that was overwritten is opened again.
  return _open(path, stat.st_size, stat.st_mtime_ns, stat.st_ino)


@functools.lru_cache(maxsize=_MAX_OPEN)
def _open(path: str, *unused_version: int) -> ArrayRecordFile:
  return ArrayRecordFile(path)


class RecordCache:
  """Reads single records, and keeps those that were read last in memory.

  To read one image, the record of its episode is decompressed. Images that are
  read together are often of the same episode.
  """

  def __init__(self, max_bytes: int = _CACHE_BYTES):
    self._max_bytes = max_bytes
    self._num_bytes = 0
    self._records: dict[tuple[str, int], bytes] = collections.OrderedDict()
    self._lock = threading.Lock()

  def read(self, path: str, number: int) -> bytes:
    """Returns a record of a file.

    Raises:
      OSError: see `ArrayRecordFile`.
    """
    key = path, number
    with self._lock:
      record = self._records.pop(key, None)
      if record is not None:
        self._records[key] = record  # The most recent one is last.
        return record
    [record] = open_file(path).read(number, number + 1)
    with self._lock:
      if key not in self._records:
        self._records[key] = record
        self._num_bytes += len(record)
      while self._num_bytes > self._max_bytes and len(self._records) > 1:
        oldest = next(iter(self._records))
        self._num_bytes -= len(self._records.pop(oldest))
    return record
