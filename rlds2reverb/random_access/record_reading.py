"""Finds and reads the records of a TFDS data set, with references for images.

Records are read in tasks, in the order in which TFDS gives them. A record is a
`tf.train.Example`, whose images are runs of bytes of the file. It is rewritten
with a short string in the place of each, and then parsed quickly.
"""

import collections
from concurrent import futures
import contextlib
import functools
import multiprocessing
import os
from typing import (
    Deque,
    Dict,
    Iterator,
    List,
    NamedTuple,
    Sequence,
)

from google.protobuf import message
import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from rlds2reverb.datasets import record_lengths
from rlds2reverb.datasets import record_order
from rlds2reverb.episodes import tf_errors
from rlds2reverb.store import references

# The bytes of records that one task reads, and the number of waiting tasks for
# each process.
_TASK_BYTES = 64 << 20
_TASKS_PER_PROCESS = 2
_RECORDS_AHEAD = 16
_MAX_BUFFER_BYTES = 1 << 18

_HEADER_BYTES = 12
# The first bytes of an image, by which it is found in its record.
_SEARCHED_BYTES = 64


class Records(NamedTuple):
  """Records, in the order in which TFDS gives them.

  Attributes:
    folder: the folder of the data set.
    names: the names of the files.
    file: int64 `[R]`: the number of the file of each record.
    offset: int64 `[R]`: where in it each record begins.
    length: int64 `[R]`: how many bytes it has.
  """

  folder: str
  names: List[str]
  file: np.ndarray
  offset: np.ndarray
  length: np.ndarray

  def part(self, begin: int, end: int) -> 'Records':
    """Returns some of the records."""
    columns = self.file, self.offset, self.length
    return Records(
        self.folder, self.names, *[column[begin:end] for column in columns]
    )

  def path(self, number: int) -> str:
    """Returns the path of the file that has a record."""
    return os.path.join(self.folder, self.names[self.file[number]])


class Images(NamedTuple):
  """The images of records, and the references that replace them.

  Attributes:
    names: the keys of their features.
    mark: the first bytes of references.
  """

  names: Sequence[str]
  mark: bytes


def find_records(builder: tfds.core.DatasetBuilder, split: str) -> Records:
  """Returns the records of a split.

  Raises:
    OSError: if a file has fewer records than it should have.
  """
  instructions = builder.info.splits[split].file_instructions
  paths = [os.fspath(each.filename) for each in instructions]
  begins, lengths = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
  for path, each in zip(paths, instructions):
    found = record_lengths.read_lengths(path, each.skip + each.take)
    if len(found) < each.skip + each.take:
      raise OSError(
          f'{path} is damaged, or compressed: it has {len(found)} whole'
          f' records, but should have at least {each.skip + each.take}. If it'
          ' is compressed, unpack it first, as TFDS does not read it either.'
      )
    sizes = found + record_lengths.FRAME_BYTES
    begins.append((np.cumsum(sizes) - sizes)[each.skip :])
    lengths.append(found[each.skip :])
  counts = [each.take for each in instructions]
  order = record_order.record_order(
      np.zeros(len(counts), np.int64),
      np.array(counts, np.int64),
      tfds.ReadConfig(),
      builder.info.disable_shuffling,
  )
  file, record = np.concatenate(
      [np.zeros([2, 0], np.int64), *order.batch(1 << 16).as_numpy_iterator()], 1
  )
  place = np.cumsum([0, *counts])[file] + record
  folder = os.fspath(builder.data_path)
  relative = [os.path.relpath(path, folder) for path in paths]
  names = sorted(set(relative))  # Several parts of a split may be in one file.
  numbers = np.array([names.index(name) for name in relative], np.int64)
  return Records(
      folder,
      names,
      numbers[file],
      np.concatenate(begins)[place],
      np.concatenate(lengths)[place],
  )


def read(
    records: Records, images: Images, num_processes: int
) -> Iterator[List[bytes]]:
  """Yields records, some at a time, with references in place of images.

  Args:
    records: the records.
    images: the images to replace.
    num_processes: how many processes read.

  Raises:
    OSError: if a record is damaged.
  """
  tasks = list(_tasks(records))
  num_processes = min(num_processes, len(tasks))
  if num_processes <= 1:
    yield from _walk(tasks, images)
    return
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
    finally:
      for future in waiting:
        future.cancel()


def _tasks(records: Records) -> Iterator[Records]:
  begin, ends = 0, np.cumsum(records.length)
  while begin < len(ends):
    before = ends[begin] - records.length[begin]
    end = int(np.searchsorted(ends, before + _TASK_BYTES, 'right'))
    end = max(end, begin + 1)
    yield records.part(begin, end)
    begin = end


def _walk_one(task: Records, images: Images) -> List[bytes]:
  [part] = _walk([task], images)
  return part


def _walk(tasks: Sequence[Records], images: Images) -> Iterator[List[bytes]]:
  """Yields the records of each task; TensorFlow checks them in its threads."""
  if not tasks:
    return
  lengths = _lengths(tasks).as_numpy_iterator()
  for task in tasks:
    part = []
    with contextlib.ExitStack() as stack:
      files: Dict[int, int] = {}
      for number, (file, offset, length) in enumerate(
          zip(*map(np.ndarray.tolist, task[2:]))
      ):
        if file not in files:
          files[file] = os.open(task.path(number), os.O_RDONLY)
          stack.callback(os.close, files[file])
        begin = offset + _HEADER_BYTES
        replace = functools.partial(
            references.reference, images.mark, file, begin
        )
        try:
          record = os.pread(files[file], length, begin)
          if next(lengths) != length or len(record) != length:
            raise ValueError(f'it has {len(record)} bytes instead of {length}')
          part.append(_replace_images(record, images.names, replace))
        except (
            tf.errors.OpError,
            StopIteration,
            ValueError,
            message.DecodeError,
        ) as e:
          raise OSError(
              f'{task.path(number)} is damaged: the record at byte {offset}'
              ' cannot be read: '
              + (tf_errors.message_of(e) if hasattr(e, 'message') else str(e))
          ) from e
    yield part


def _replace_images(record: bytes, names: Sequence[str], replace) -> bytes:
  """Returns a record with other strings in the place of images.

  Args:
    record: a serialized `tf.train.Example`.
    names: the keys of the features.
    replace: takes the position of a string in the record, and the string, and
      returns what takes its place.
  """
  if not names:
    return record
  example = tf.train.Example.FromString(record)
  for name in set(names) & set(example.features.feature):
    values = example.features.feature[name].bytes_list.value
    place = 0
    for number, value in enumerate(values):
      # Equal bytes elsewhere in the record are as good.
      head = value[:_SEARCHED_BYTES]
      place = record.index(head, place)
      while record[place : place + len(value)] != value:
        place = record.index(head, place + 1)
      values[number] = replace(place, value)
      place += len(value)
  return example.SerializeToString()


def _lengths(tasks: Sequence[Records]) -> tf.data.Dataset:
  """Returns the lengths of records, after their checksums were checked.

  TensorFlow only checks the records, and Python reads them again: that is much
  faster than copying them out of TensorFlow.
  """
  paths, offsets, counts = [], [], []
  for task in tasks:
    # The places where a record does not follow the one before it.
    follows = task.offset[:-1] + task.length[:-1] + record_lengths.FRAME_BYTES
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
  return dataset.map(tf.strings.length).prefetch(_RECORDS_AHEAD)
