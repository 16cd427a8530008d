"""Reads the records of a TFDS data set, with references in place of images.

Records are read in tasks, in the order in which TFDS gives them. A record is a
`tf.train.Example`, whose images are runs of bytes of the file. It is rewritten
with a short string in the place of each, and then parsed quickly.
"""

import collections
from concurrent import futures
from concurrent.futures import process
import multiprocessing
from typing import Any, Deque, Iterator, List, Sequence

from google.protobuf import message
import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import record_places
from rlds2reverb.episodes import errors
from rlds2reverb.store import array_records
from rlds2reverb.store import main_guard
from rlds2reverb.store import strings

# The bytes of records that one task reads, and the number of waiting tasks for
# each process.
_TASK_BYTES = 64 << 20
_TASKS_PER_PROCESS = 2
_RECORDS_AHEAD = 16
_MAX_BUFFER_BYTES = 1 << 18

_HEADER_BYTES = 12
_DAMAGES = tf.errors.OpError, StopIteration, ValueError, message.DecodeError
# The first bytes of an image, by which it is found in its record.
_SEARCHED_BYTES = 64


def read(
    records: record_places.Records, images: Sequence[str], num_processes: int
) -> Iterator[List[bytes]]:
  """Yields records, some at a time, with references in place of images.

  Args:
    records: the records.
    images: the keys of the features that are images.
    num_processes: how many processes read.

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
    yield from _walk(tasks, images)
    return
  main_guard.check()
  # A process that has used TensorFlow must not be forked.
  context = multiprocessing.get_context('spawn')
  with futures.ProcessPoolExecutor(num_processes, context) as executor:
    waiting: Deque[futures.Future] = collections.deque()
    try:
      for task in tasks:
        waiting.append(executor.submit(_walk_one, task, images))
        if len(waiting) >= _TASKS_PER_PROCESS * num_processes:
          yield waiting.popleft().result()
      while waiting:
        yield waiting.popleft().result()
    except process.BrokenProcessPool as e:
      raise RuntimeError(
          main_guard.explain('A process that reads records has died.')
      ) from e
    finally:
      executor.shutdown(cancel_futures=True)


def _walk_one(
    task: record_places.Records, images: Sequence[str]
) -> List[bytes]:
  [part] = _walk([task], images)
  return part


def _walk(
    tasks: Sequence[record_places.Records], images: Sequence[str]
) -> Iterator[List[bytes]]:
  """Yields the records of each task; TensorFlow reads and checks them."""
  if not tasks:
    return
  if tasks[0].is_array_record:
    yield from (_read_array_records(task, images) for task in tasks)
    return
  records = _checked(tasks).as_numpy_iterator()
  for task in tasks:
    part: List[bytes] = []
    for file, offset, length in zip(*map(np.ndarray.tolist, task[3:])):
      try:
        record = next(records)
        if len(record) != length:
          raise ValueError(f'it has {len(record)} bytes instead of {length}')
        begin = offset + _HEADER_BYTES
        part.append(_replace_images(record, images, file, begin))
      except _DAMAGES as e:
        is_of_tf = isinstance(e, tf.errors.OpError)
        raise OSError(
            f'{task.path(len(part))} is damaged: the record at byte {offset}'
            f' cannot be read: {errors.message_of(e) if is_of_tf else e}'
        ) from e
    yield part


def _read_array_records(
    task: record_places.Records, images: Sequence[str]
) -> List[bytes]:
  """Returns the records of a task of ArrayRecord files."""
  part: List[bytes] = []
  for file, number in zip(task.file.tolist(), task.offset.tolist()):
    path = task.path(len(part))
    [record] = array_records.open_file(path).read(number, number + 1)
    begin = strings.offset_in_record(number, 0)
    try:
      part.append(_replace_images(record, images, file, begin))
    except message.DecodeError as e:
      raise OSError(
          f'{path} is damaged: record {number} is not a tf.train.Example: {e}'
      ) from e
  return part


def _replace_images(
    record: bytes, images: Sequence[str], file: int, begin: int
) -> bytes:
  """Returns a record with references in the place of images.

  Args:
    record: a serialized `tf.train.Example`.
    images: the keys of the features that are images.
    file: the number of its file.
    begin: where in the file it begins, or `strings.offset_in_record`.
  """
  if not images:
    return record
  example = tf.train.Example.FromString(record)
  features: Any = example.features.feature
  for name in set(images) & set(features):
    values = features[name].bytes_list.value
    place = 0
    for number, value in enumerate(values):
      # Equal bytes elsewhere in the record are as good.
      head = value[:_SEARCHED_BYTES]
      place = record.index(head, place)
      while record[place : place + len(value)] != value:
        place = record.index(head, place + 1)
      values[number] = strings.reference(file, begin + place, value)
      place += len(value)
  return example.SerializeToString()


def _checked(tasks: Sequence[record_places.Records]) -> tf.data.Dataset:
  """Returns the records of tasks, whose checksums TensorFlow checks."""
  paths, offsets, counts = [], [], []
  for task in tasks:
    # The places where a record does not follow the one before it.
    follows = task.offset[:-1] + task.length[:-1] + record_places.FRAME_BYTES
    jumps = (follows != task.offset[1:]) | (task.file[:-1] != task.file[1:])
    begins = np.concatenate([[0], np.flatnonzero(jumps) + 1])
    paths += [task.path(begin) for begin in begins]
    offsets.append(task.offset[begins])
    counts.append(np.diff(begins, append=len(task.offset)))
  runs = paths, np.concatenate(offsets), np.concatenate(counts)
  num_bytes = sum(int(task.length.sum()) for task in tasks)
  buffer_size = min(num_bytes // len(paths), _MAX_BUFFER_BYTES)

  def records_of(path, offset, count):
    # This is `tf.data.TFRecordDataset` from any offset of a file.
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=[path],
        compression_type='',
        buffer_size=buffer_size,
        byte_offsets=[offset],
    )
    spec = tf.TensorSpec([], tf.string)
    return tf.data.experimental.from_variant(variant, spec).take(count)

  dataset = tf.data.Dataset.from_tensor_slices(runs).flat_map(records_of)
  return dataset.prefetch(_RECORDS_AHEAD)
