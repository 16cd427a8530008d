"""The position of sampling: how many batches each iterator has handed out.

Every data set of a replay buffer has streams of batches, which differ in their
random numbers. An iterator takes the first stream that no other iterator has,
goes on where that one stands, and gives it back when it ends:

    for batch in dataset.take(3)       stream 0, batches 0, 1, 2
    for batch in dataset.take(2)       stream 0, batches 3, 4
    zip(dataset, dataset)              streams 0 and 1 at the same time
"""

import json
import threading
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np
import tensorflow as tf

# The greatest number of iterators of a data set at once.
_MAX_STREAMS = 256


class Streams:
  """How many batches of each stream of a data set have been handed out."""

  def __init__(self, positions: Sequence[int] = (), goes_on: bool = True):
    """Creates the streams.

    Args:
      positions: the positions of the first ones.
      goes_on: whether an iterator goes on where another one has ended, rather
        than at the start.
    """
    self._lock = threading.Lock()
    self._goes_on = goes_on
    # Operations in graphs count here, because they cannot count in Python. This
    # is no `tf.Variable`, since a distribution strategy would make several of
    # one.
    with tf.init_scope(), tf.device('cpu'):
      self._counts = tf.raw_ops.VarHandleOp(
          dtype=tf.int64,
          shape=[_MAX_STREAMS],
          shared_name='cd2c89b7-88b7-44c8-ad83-06c2a9158347',  # Anonymous.
      )
    self.restore(positions)

  def restore(self, positions: Sequence[int]) -> None:
    """Sets the positions of all streams, and forgets existing iterators."""
    counts = np.zeros(_MAX_STREAMS, np.int64)
    counts[: len(positions)] = positions
    with self._lock, tf.init_scope(), tf.device('cpu'):
      self._is_taken = [False] * len(positions)
      tf.raw_ops.AssignVariableOp(resource=self._counts, value=counts)

  def take(self) -> Tuple[int, int, List[bool]]:
    """Takes a stream that no other iterator has.

    Returns:
      Its number, the number of its next batch, and what `give_back` needs.
    """
    with self._lock:
      taken = self._is_taken
      number = next((k for k, each in enumerate(taken) if not each), len(taken))
      if number == _MAX_STREAMS:
        raise ValueError(
            f'There are {number} iterators of one data set already. Let go of'
            ' some, or call as_dataset again.'
        )
      taken[number : number + 1] = [True]
      begin = self._read()[number] if self._goes_on else 0
      return number, int(begin), taken

  def give_back(self, number: int, taken: List[bool]) -> None:
    """Lets others have a stream."""
    with self._lock:
      taken[number] = False

  def count(self, number: tf.Tensor, position: tf.Tensor) -> tf.Operation:
    """Notes in a graph how many batches of a stream have been handed out."""
    return tf.raw_ops.ResourceScatterUpdate(
        resource=self._counts, indices=number, updates=position
    )

  def positions(self) -> List[int]:
    """Returns the position of each stream."""
    return self._read()[: len(self._is_taken)].tolist()

  def _read(self) -> np.ndarray:
    with tf.init_scope(), tf.device('cpu'):
      return tf.raw_ops.ReadVariableOp(
          resource=self._counts, dtype=tf.int64
      ).numpy()


class SamplingState(tf.train.experimental.PythonState):
  """The positions of the data sets of a replay buffer, for a checkpoint.

  Attributes:
    iterators: the iterators of `get_next`; a restored position drops them.
  """

  def __init__(self, identity: Dict[str, Any]):
    """Creates the state.

    Args:
      identity: what the batches depend on, by its name.
    """
    self.identity = identity
    self._data_sets: List[Streams] = []
    # The positions of data sets that have not been made yet.
    self._restored: List[List[int]] = []
    self.iterators: Dict[Any, Any] = {}

  def new_data_set(self) -> Tuple[int, Streams]:
    """Returns the number and the streams of the next data set."""
    number = len(self._data_sets)
    restored = self._restored[number : number + 1]
    self._data_sets.append(Streams(restored[0] if restored else ()))
    return number, self._data_sets[-1]

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
