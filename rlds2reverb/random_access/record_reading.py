"""Reads records of TFRecord files, each with references in place of images."""

import os
from typing import Dict, List, NamedTuple, Sequence

import tensorflow as tf

# It checks what it reads, and goes to where a record begins.
from tensorflow.python.lib.io import tf_record

from rlds2reverb.random_access import record_walk
from rlds2reverb.random_access import references

_HEADER_BYTES = 12


class Task(NamedTuple):
  """Records to read; of each the file, its number, the offset, the length."""

  names: Sequence[str]
  files: Sequence[int]
  offsets: Sequence[int]
  lengths: Sequence[int]


def read(
    task: Task, *, mark: bytes, names: Sequence[bytes], folder: str
) -> List[bytes]:
  """Returns records, with references in place of images.

  Args:
    task: the records.
    mark: what references begin with.
    names: the keys of the features of images.
    folder: the folder of the files.

  Raises:
    OSError: if a record is damaged.
  """
  readers: Dict[str, tf_record.tf_record_random_reader] = {}
  records = []
  for name, file, offset, length in zip(*task):
    path = os.path.join(folder, name)
    if path not in readers:
      readers[path] = tf_record.tf_record_random_reader(path)
    begin = offset + _HEADER_BYTES

    def replace(place, value, file=file, begin=begin):
      return references.reference(mark, file, begin + place, value)

    try:
      record, _ = readers[path].read(offset)
      if len(record) != length:
        raise ValueError(f'it has {len(record)} bytes instead of {length}')
      records.append(record_walk.replace_strings(record, names, replace))
    except (tf.errors.OpError, IndexError, ValueError) as e:
      raise OSError(
          f'{path} is damaged: the record at byte {offset} cannot be read: {e}'
      ) from e
  return records
