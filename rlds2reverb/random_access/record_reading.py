"""Reads the records of a TFDS data set, with references instead of images.

Records are read in tasks, in the order of TFDS. A record is a
`tf.train.Example`, whose images are runs of bytes of the file. Each image is
replaced by a short string, so that the record is parsed quickly.
"""

import collections
from collections.abc import Iterator
from collections.abc import Sequence
from concurrent import futures
from concurrent.futures import process
import multiprocessing
from typing import Any

from google.protobuf import message
import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import record_files
from rlds2reverb.datasets import records as records_lib
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import errors
from rlds2reverb.store import array_records
from rlds2reverb.store import strings

# The number of bytes of the records of a task, and the number of waiting tasks
# of each process.
_TASK_BYTES = 64 << 20
_TASKS_PER_PROCESS = 2
_RECORDS_AHEAD = 16
_MAX_BUFFER_BYTES = 1 << 18

_HEADER_BYTES = 12
_DAMAGES = tf.errors.OpError, StopIteration, ValueError, message.DecodeError
# An image is found in its record by its first bytes.
_SEARCHED_BYTES = 64


def read(
    records: records_lib.Records, images: Sequence[str], num_processes: int
) -> Iterator[list[bytes]]:
  """Yields lists of records, with references instead of images.

  Args:
    records: the records.
    images: the keys of the features that are images.
    num_processes: the number of processes that read.

  Raises:
    OSError: if a record is damaged.
    RuntimeError: if a process dies, or the script has no `__main__` guard.
  """
  tasks, begin, ends = [], 0, np.cumsum(records.length)
  while begin < len(ends):
    limit = ends[begin] - records.length[begin] + _TASK_BYTES
    end = max(int(np.searchsorted(ends, limit, 'right')), begin + 1)
    tasks.append(records.part(begin, end))
    begin = end
  num_processes = min(num_processes, len(tasks))
  if num_processes <= 1:
    yield from _read_tasks(tasks, images)
    return
  checks.check_main_guard()
  # A process that has used TensorFlow must not be forked.
  context = multiprocessing.get_context('spawn')
  with futures.ProcessPoolExecutor(num_processes, context) as executor:
    pending: collections.deque[futures.Future] = collections.deque()
    try:
      for task in tasks:
        pending.append(executor.submit(_read_task, task, images))
        if len(pending) >= _TASKS_PER_PROCESS * num_processes:
          yield pending.popleft().result()
      while pending:
        yield pending.popleft().result()
    except process.BrokenProcessPool as e:
      raise RuntimeError(
          checks.explain_main_guard('A process that reads records has died.')
      ) from e
    finally:
      executor.shutdown(cancel_futures=True)


def _read_task(task: records_lib.Records, images: Sequence[str]) -> list[bytes]:
  return next(_read_tasks([task], images))


def _read_tasks(
    tasks: Sequence[records_lib.Records], images: Sequence[str]
) -> Iterator[list[bytes]]:
  """Yields the records of each task, which are checked."""
  if tasks and tasks[0].is_array_record:
    yield from (_read_array_records(task, images) for task in tasks)
  elif tasks:
    records = _read_tfrecords(tasks).as_numpy_iterator()
    for task in tasks:
      yield [
          _read_next(records, task, number, images)
          for number in range(len(task.offset))
      ]


def _read_next(records, task, number, images) -> bytes:
  """Returns the next record, which is a given record of a task."""
  offset = int(task.offset[number])
  try:
    record = next(records)
    length = int(task.length[number])
    if len(record) != length:
      raise ValueError(f'it has {len(record)} bytes instead of {length}')
    begin = offset + _HEADER_BYTES
    return _replace_images(record, images, int(task.file[number]), begin)
  except _DAMAGES as e:
    reason = errors.message_of(e) if isinstance(e, tf.errors.OpError) else e
    raise OSError(
        f'{task.path(number)} is damaged: the record at byte {offset} cannot be'
        f' read: {reason}'
    ) from e


def _read_array_records(
    task: records_lib.Records, images: Sequence[str]
) -> list[bytes]:
  """Returns the records of a task of ArrayRecord files."""
  records: list[bytes] = []
  for file, number in zip(task.file.tolist(), task.offset.tolist()):
    path = task.path(len(records))
    [record] = array_records.open_file(path).read(number, number + 1)
    begin = strings.offset_in_record(number, 0)
    try:
      records.append(_replace_images(record, images, file, begin))
    except message.DecodeError as e:
      raise OSError(
          f'{path} is damaged: record {number} is not a tf.train.Example: {e}'
      ) from e
  return records


def _replace_images(
    record: bytes, images: Sequence[str], file: int, begin: int
) -> bytes:
  """Returns a record with references instead of images.

  Args:
    record: a serialized `tf.train.Example`.
    images: the keys of the features that are images.
    file: the number of its file.
    begin: the byte of the file at which the record begins, or
      `strings.offset_in_record`.
  """
  if not images:
    return record
  example = tf.train.Example.FromString(record)
  features: Any = example.features.feature
  for name in set(images) & set(features):
    values = features[name].bytes_list.value
    offset = 0
    for number, value in enumerate(values):
      # Equal bytes elsewhere in the record are as good.
      head = value[:_SEARCHED_BYTES]
      offset = record.index(head, offset)
      while record[offset : offset + len(value)] != value:
        offset = record.index(head, offset + 1)
      values[number] = strings.reference(file, begin + offset, value)
      offset += len(value)
  return example.SerializeToString()


def _read_tfrecords(tasks: Sequence[records_lib.Records]) -> tf.data.Dataset:
  """Returns the records of tasks; TensorFlow checks their checksums."""
  paths, offsets, counts = [], [], []
  for task in tasks:
    # A run ends where a record does not follow the previous one.
    follows = task.offset[:-1] + task.length[:-1] + record_files.FRAME_BYTES
    jumps = (follows != task.offset[1:]) | (task.file[:-1] != task.file[1:])
    begins = np.concatenate([[0], np.flatnonzero(jumps) + 1])
    paths += [task.path(begin) for begin in begins]
    offsets.append(task.offset[begins])
    counts.append(np.diff(begins, append=len(task.offset)))
  runs = paths, np.concatenate(offsets), np.concatenate(counts)
  num_bytes = sum(int(task.length.sum()) for task in tasks)
  buffer_size = min(num_bytes // len(paths), _MAX_BUFFER_BYTES)

  def read_run(path, offset, count):
    # This is `tf.data.TFRecordDataset` from any offset of a file.
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=[path],
        compression_type='',
        buffer_size=buffer_size,
        byte_offsets=[offset],
    )
    spec = tf.TensorSpec([], tf.string)
    return tf.data.experimental.from_variant(variant, spec).take(count)

  dataset = tf.data.Dataset.from_tensor_slices(runs).flat_map(read_run)
  return dataset.prefetch(_RECORDS_AHEAD)
