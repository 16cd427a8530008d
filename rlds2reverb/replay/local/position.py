"""The position of sampling: how many batches each iterator has handed out.

Every data set of a replay buffer has streams of batches, which differ in their
random numbers. An iterator takes the first stream that no other iterator has,
goes on where that one stands, and gives it back when it ends:

    for batch in dataset.take(3)       stream 0, batches 0, 1, 2
    for batch in dataset.take(2)       stream 0, batches 3, 4
    zip(dataset, dataset)              streams 0 and 1 at the same time
"""

import itertools
import json
import threading
from typing import Any, Dict, Iterator, List, Sequence

import numpy as np
import tensorflow as tf

from rlds2reverb.replay.local import batches as batches_lib


class Streams:
  """The batches of a data set, and how many were handed out of each stream.

  Attributes:
    batches: the batches of any stream.
    number: the number of the data set.
  """

  def __init__(self, batches: batches_lib.FrameBatches, goes_on: bool = True):
    """Creates the streams.

    Args:
      batches: the batches of any stream.
      goes_on: whether an iterator goes on where another one has ended, rather
        than at the start.
    """
    self.batches, self.number = batches, 0
    self._goes_on, self._lock = goes_on, threading.Lock()
    self._is_taken: List[bool] = []
    # The batches of each iterator, its stream, and the number of the next one.
    self._runs: Dict[int, List[Any]] = {}
    self._new_numbers = itertools.count()
    # Operations in graphs count here, because they cannot count in Python.
    with tf.init_scope(), tf.device('cpu'):
      self._counts = tf.lookup.experimental.MutableHashTable(
          tf.int64, tf.int64, 0, experimental_is_anonymous=True
      )

  def restore(self, positions: Sequence[int]) -> None:
    """Sets the positions of all streams, and forgets existing iterators."""
    with self._lock, tf.init_scope(), tf.device('cpu'):
      self._is_taken = [False] * len(positions)
      self._counts.remove(self._counts.export()[0])
      self._counts.insert(
          np.arange(len(positions)), np.array(positions, np.int64)
      )

  def new_run(self) -> Iterator[np.int64]:
    """Yields the number of a new iterator, which has a stream until it ends."""
    with self._lock:
      taken, run = self._is_taken, next(self._new_numbers)
      stream = (taken + [False]).index(False)
      taken[stream : stream + 1] = [True]
      begin = self.positions()[stream] if self._goes_on else 0
      batches = self.batches.of_stream(self.number, stream)
      self._runs[run] = [batches, stream, begin]
    try:
      yield np.int64(run)
    finally:
      taken[stream] = False
      del self._runs[run]

  def read(self, number: int) -> List[np.ndarray]:
    """Reads the next group of batches of an iterator.

    Args:
      number: the number of the iterator.

    Returns:
      The number of the stream, and how many of its batches have been handed out
      with each batch, int64 `[k]`; and the leaves of the batches `[k, ...]`.
      Where groups are of one batch, they have no axis `k`.

    Raises:
      StopIteration: at the end of the data set.
    """
    run = self._runs[int(number)]
    batches, stream, first = run
    leaves = batches.read_leaves(first, batches.group_size)
    if not leaves:
      raise StopIteration
    run[2] += len(leaves[-1])
    positions = np.arange(first, run[2]) + 1
    group = [np.full_like(positions, stream), positions, *leaves]
    return group if batches.group_size > 1 else [leaf[0] for leaf in group]

  def count(self, stream: tf.Tensor, position: tf.Tensor) -> None:
    """Notes in a graph how many batches of a stream have been handed out."""
    self._counts.insert(stream, position)

  def positions(self) -> List[int]:
    """Returns the position of each stream."""
    with tf.init_scope(), tf.device('cpu'):
      numbers = np.arange(len(self._is_taken))
      return self._counts.lookup(numbers).numpy().tolist()


class SamplingState(tf.train.experimental.PythonState):
  """The positions of the data sets of a replay buffer, for a checkpoint.

  Attributes:
    identity: what the batches depend on, by its name.
    iterators: the iterators of `get_next`; a restored position drops them.
  """

  def __init__(self, identity: Dict[str, Any]):
    self.identity = identity
    self.iterators: Dict[Any, Any] = {}
    self._data_sets: List[Streams] = []
    # The positions of all data sets, also of those that are not made yet.
    self._restored: List[List[int]] = []

  def add(self, streams: Streams) -> None:
    """Adds a data set, once it has been made, and gives it its number."""
    streams.number = len(self._data_sets)
    for positions in self._restored[streams.number :][:1]:
      streams.restore(positions)
    self._data_sets.append(streams)

  def restore(self, positions: List[List[int]]) -> None:
    """Sets the positions of all data sets, also of those made later."""
    self._restored = positions
    self.iterators.clear()
    for streams, places in zip(self._data_sets, positions):
      streams.restore(places)

  def seek(self, number: int) -> None:
    """Lets all data sets that there are, or the first one, go on at a batch."""
    self.restore([[number]] * max(len(self._positions()), 1))

  def serialize(self) -> str:
    """Returns the number of batches of each stream of each data set."""
    return json.dumps({**self.identity, 'positions': self._positions()})

  def deserialize(self, value: str) -> None:
    """Restores what `serialize` returned.

    Raises:
      ValueError: if the position is that of other batches.
    """
    saved = json.loads(value)
    different = [
        f'{name} {saved.get(name)!r} (here {own!r})'
        for name, own in self.identity.items()
        if saved.get(name) != own
    ]
    if different:
      raise ValueError(
          'The checkpoint is of a replay buffer that draws other batches, with'
          f' {", ".join(different)}. Make the replay buffer as it was, or leave'
          ' it out of the checkpoint to sample from the start.'
      )
    self.restore(saved['positions'])

  def _positions(self) -> List[List[int]]:
    positions = [streams.positions() for streams in self._data_sets]
    return positions + self._restored[len(positions) :]


class SavedBytes(tf.train.experimental.PythonState):
  """What something without TensorFlow serializes, for a checkpoint."""

  def __init__(self, saved: Any):
    """Takes what has the methods `serialize` and `deserialize`."""
    self._saved = saved

  def serialize(self) -> bytes:
    """Returns its bytes."""
    return self._saved.serialize()

  def deserialize(self, value: bytes) -> None:
    """Restores them."""
    self._saved.deserialize(value)
