"""Whole episodes of TorchRL's columns, and what RLDS has beyond them.

The *rest* is all that TorchRL has no place for: a `Ted` without data. Its last
steps and its metadata are dicts of arrays, by the names of the fields.
"""

from typing import Any, Iterator, List

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.formats import ted as ted_lib

# Beside TorchRL's files, which do not name it: TorchRL ignores it.
REST_FILE = 'rlds.tfrecord'
_PACK_BYTES = 2 << 20


class Packs:
  """Yields several whole episodes at once, as a generator of a data set does.

  Args:
    columns: by the names of the fields, arrays `[N, ...]`, or `[S, ...]` of
      what is known at every step of the episodes that have a transition.
    at_steps: the names of the latter.
    num_steps: int64 `[E]`: how many steps each episode has.
    rest: a `Ted` without data; or None. Then the packs are the columns alone.
    first_row: where the oldest transition is; those before it follow the last.
    breaks: int64 `[B]`: transitions that end an episode, but are not done. As
      nothing else in a pack says so, each is the last one of its pack.
  """

  def __init__(
      self, columns, at_steps, num_steps, rest, *, first_row=0, breaks=()
  ):
    self._columns = columns
    self._first_row = first_row
    self._breaks = np.asarray(breaks, np.int64)
    self._at_steps = at_steps
    self._num_steps = num_steps
    self._rest = rest
    # Where each episode ends, in rows of each kind.
    self._step_ends = np.cumsum(np.where(num_steps > 1, num_steps, 0))
    self._transition_ends = np.cumsum(np.maximum(num_steps - 1, 0))
    self._last_step_ends = np.cumsum(num_steps > 0)
    spec = {
        name: tf.TensorSpec([None, *column.shape[1:]], column.dtype)
        for name, column in columns.items()
    }
    self.signature = (spec,)
    if rest is not None:
      self.signature = (
          spec,
          *tf.nest.map_structure(_rows_spec, tuple(rest[1:])),
      )

  def __call__(self) -> Iterator[Any]:
    row_bytes = sum(
        column.dtype.itemsize * int(np.prod(column.shape[1:]))
        for column in self._columns.values()
    )
    most = max(_PACK_BYTES // max(row_bytes, 1), 1)
    ends = np.cumsum(self._num_steps)
    begin = 0
    while begin < len(ends):
      first = ends[begin - 1] if begin else 0
      end = int(np.searchsorted(ends, first + most, side='right'))
      end = max(end, begin + 1)
      after = np.searchsorted(self._breaks, self._transition_ends[begin] - 1)
      if after < len(self._breaks):
        broken = np.searchsorted(
            self._transition_ends, self._breaks[after], side='right'
        )
        end = min(end, int(broken) + 1)
      yield self._pack(begin, end)
      begin = end

  def _pack(self, begin: int, end: int) -> Any:
    """Returns the episodes `[begin, end)`."""

    def cut(column, ends):
      return np.array(column[ends[begin - 1] if begin else 0 : ends[end - 1]])

    def cut_transitions(column):
      ends = self._transition_ends
      rows = np.arange(ends[begin - 1] if begin else 0, ends[end - 1])
      return column[(rows + self._first_row) % len(column)]

    data = {
        name: cut(column, self._step_ends)
        if name in self._at_steps
        else cut_transitions(column)
        for name, column in self._columns.items()
    }
    if self._rest is None:
      return (data,)
    last_step = {
        name: cut(column, self._last_step_ends)
        for name, column in self._rest.last_step.items()
    }
    part = self._num_steps[begin:end]
    # An episode of one step has its row among the last steps only.
    is_lone = part[part > 0] == 1
    places = np.cumsum(np.where(part > 1, part, 0))[part == 1]
    for name in self._at_steps:
      source = rlds.IS_FIRST if name == ted_lib.IS_INIT else name
      rows = last_step[source][is_lone]
      data[name] = np.insert(
          data[name], places, rows.reshape(-1, *data[name].shape[1:]), axis=0
      )
    metadata = {
        name: column[begin:end] for name, column in self._rest.metadata.items()
    }
    return data, part, last_step, metadata


def _rows_spec(array: np.ndarray) -> tf.TensorSpec:
  dtype = tf.string if array.dtype == object else array.dtype
  return tf.TensorSpec([None, *array.shape[1:]], dtype)


def write_rest(path: str, rests: List[ted_lib.Ted]) -> None:
  """Writes what TorchRL has no place for: names and tensors in turn."""
  nests = [paths.leaves(rest._asdict()) for rest in rests]
  with tf.io.TFRecordWriter(path) as writer:
    for name in nests[0]:
      column = np.concatenate([nest[name] for nest in nests])
      writer.write(name)
      writer.write(tf.make_tensor_proto(column).SerializeToString())


def read_rest(path: str) -> ted_lib.Ted:
  """Reads what `write_rest` wrote, as a `Ted` without data."""
  records = list(tf.data.TFRecordDataset(path).as_numpy_iterator())
  parts = {'last_step': {}, 'metadata': {}}
  for name, record in zip(records[::2], records[1::2]):
    array = tf.make_ndarray(tensor_pb2.TensorProto.FromString(record))
    part, _, field = name.decode().partition('/')
    if field:
      parts[part][field] = array
    else:
      parts[part] = array
  return ted_lib.Ted({}, **parts)
