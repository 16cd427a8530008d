"""Where sampling stands: how many batches each iterator has handed out.

Every data set of a replay buffer has streams of batches, which differ in their
random numbers. An iterator takes the first stream that no other iterator has,
goes on where that one stands, and gives it back when it ends:

    for batch in dataset.take(3)       stream 0, batches 0, 1, 2
    for batch in dataset.take(2)       stream 0, batches 3, 4
    zip(dataset, dataset)              streams 0 and 1 at the same time
"""

import threading
from typing import Callable, List, Sequence, Tuple

import tensorflow as tf

from rlds2reverb.replay.local import samplers

# How many iterators of a data set there can be at once.
_MAX_STREAMS = 256


class Stream:
  """The batches of one iterator.

  Attributes:
    draw: the function that draws them.
    position: how many of them have been handed out.
  """

  def __init__(self, draw: samplers.DrawFn, position: int = 0):
    self.draw = draw
    self.position = position
    self.is_taken = False


class Streams:
  """The streams of a data set."""

  def __init__(
      self,
      make_draw: Callable[[int], samplers.DrawFn],
      goes_on: bool = True,
  ):
    """Creates the streams.

    Args:
      make_draw: returns the function that draws the batches of a stream, which
        has a number.
      goes_on: whether an iterator goes on where another one has ended. If not,
        each begins at the start.
    """
    self._make_draw = make_draw
    self._lock = threading.Lock()
    self._streams: List[Stream] = []
    # Operations in graphs count here, as they cannot in Python. Not a
    # `tf.Variable`, of which a distribution strategy would make several.
    with tf.init_scope(), tf.device('cpu'):
      self._counts = tf.raw_ops.VarHandleOp(
          dtype=tf.int64,
          shape=[_MAX_STREAMS],
          shared_name='cd2c89b7-88b7-44c8-ad83-06c2a9158347',  # It has none.
      )
    self._goes_on = goes_on
    self.restore(())

  def restore(self, positions: Sequence[int]) -> None:
    """Sets where the streams stand. Iterators that there are do not count."""
    with self._lock:
      self._streams = [
          Stream(self._make_draw(number), position)
          for number, position in enumerate(positions)
      ]
      with tf.init_scope(), tf.device('cpu'):
        tf.raw_ops.AssignVariableOp(
            resource=self._counts, value=tf.fill([_MAX_STREAMS], tf.int64.min)
        )

  def take(self) -> Tuple[int, Stream]:
    """Returns a stream that nobody else has, and its number."""
    with self._lock:
      number = next(
          (k for k, each in enumerate(self._streams) if not each.is_taken),
          len(self._streams),
      )
      if number == _MAX_STREAMS:
        raise ValueError(
            f'There are {number} iterators of one data set already. Let go of'
            ' some, or call as_dataset again.'
        )
      if number == len(self._streams):
        self._streams.append(Stream(self._make_draw(number)))
      stream = self._streams[number]
      stream.is_taken = True
      stream.position = self._position(number) if self._goes_on else 0
      return number, stream

  def count(self, number: tf.Tensor, position: tf.Tensor) -> tf.Operation:
    """Notes in a graph how many batches of a stream have been handed out."""
    return tf.raw_ops.ResourceScatterUpdate(
        resource=self._counts, indices=number, updates=position
    )

  def give_back(self, number: int, stream: Stream) -> None:
    """Lets others have a stream."""
    with self._lock:
      if self._streams[number : number + 1] == [stream]:
        stream.is_taken = False

  def positions(self) -> List[int]:
    """Returns where each stream stands."""
    return [self._position(number) for number in range(len(self._streams))]

  def _position(self, number: int) -> int:
    with tf.init_scope(), tf.device('cpu'):
      counts = tf.raw_ops.ReadVariableOp(resource=self._counts, dtype=tf.int64)
    return max(int(counts[number]), self._streams[number].position)
