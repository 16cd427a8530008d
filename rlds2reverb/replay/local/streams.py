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
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from absl import logging
import tensorflow as tf

from rlds2reverb.replay.local import samplers

# The greatest number of iterators of a data set at once.
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
      goes_on: whether an iterator goes on where another one has ended, rather
        than at the start.
    """
    self._make_draw = make_draw
    self._lock = threading.Lock()
    self._streams: List[Stream] = []
    # Operations in graphs count here, because they cannot count in Python. This
    # is no `tf.Variable`, since a distribution strategy would make several of
    # one.
    with tf.init_scope(), tf.device('cpu'):
      self._counts = tf.raw_ops.VarHandleOp(
          dtype=tf.int64,
          shape=[_MAX_STREAMS],
          shared_name='cd2c89b7-88b7-44c8-ad83-06c2a9158347',  # Anonymous.
      )
    self._goes_on = goes_on
    self.restore(())

  def restore(self, positions: Sequence[int]) -> None:
    """Sets the positions of all streams, and forgets existing iterators."""
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
    """Returns a stream that no other iterator has, and its number."""
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
    """Returns the position of each stream."""
    return [self._position(number) for number in range(len(self._streams))]

  def _position(self, number: int) -> int:
    with tf.init_scope(), tf.device('cpu'):
      counts = tf.raw_ops.ReadVariableOp(resource=self._counts, dtype=tf.int64)
    return max(int(counts[number]), self._streams[number].position)


class Position(tf.train.experimental.PythonState):
  """The positions of the data sets of a replay buffer, for a checkpoint.

  Attributes:
    iterators: the iterators of `get_next`; a restored position drops them.
  """

  def __init__(self, identity: Dict[str, Any]):
    """Creates the position.

    Args:
      identity: what the batches depend on, by its name.
    """
    self._identity = identity
    self._data_sets: List[Streams] = []
    # The positions of data sets that have not been made yet.
    self._restored: List[List[int]] = []
    self.iterators: Dict[Any, Any] = {}
    self._followed: Optional[Callable[[], int]] = None

  def add_data_set(self, bind: Any) -> Streams:
    """Returns the streams of the next data set.

    Args:
      bind: a function of the numbers of the data set and of a stream that
        returns the function that draws.
    """
    number = len(self._data_sets)
    streams = Streams(lambda stream: bind(number, stream))
    if number < len(self._restored):
      streams.restore(self._restored[number])
    self._data_sets.append(streams)
    return streams

  def follow(self, train_step: tf.Variable, batches_per_step: int) -> None:
    """Counts what was trained on; see `LocalReplayBuffer.follow`."""
    used = lambda: int(train_step.numpy()) * batches_per_step
    positions = [place for places in self._positions() for place in places]
    begin = max(positions, default=0) - used()
    self._followed = lambda: begin + used()

  def warn_of_distribution(self) -> None:
    """Logs what `follow` is for, if it has not been called."""
    if self._followed is None:
      logging.warning(
          'tf.distribute takes batches in advance, which a checkpoint of the'
          ' replay buffer counts as used, so that a restart leaves them out.'
          ' Call replay_buffer.follow(train_step), unless the batches come by'
          ' InputOptions(experimental_fetch_to_device=False,'
          ' experimental_replication_mode=InputReplicationMode.PER_REPLICA).'
      )

  def serialize(self) -> str:
    """Returns the number of batches of each stream of each data set."""
    positions = self._positions()
    if self._followed is not None:
      used = self._followed()
      for places in positions:
        if len(places) > 1 or (places and used > places[0]):
          raise ValueError(
              f'The trainer has used {used} batches by its train steps, but the'
              f' iterators of a data set have handed out {places}. A replay'
              ' buffer that follows a trainer has one iterator a data set, and'
              ' each train step takes as many batches as `follow` was told.'
          )
      positions = [[used] if places else [] for places in positions]
    return json.dumps({**self._identity, 'positions': positions})

  def deserialize(self, value: str) -> None:
    """Restores what `serialize` returned.

    Raises:
      ValueError: if the position is that of other batches.
    """
    saved = json.loads(value)
    different = [
        f'{name} {saved.get(name)!r} (here {own!r})'
        for name, own in self._identity.items()
        if saved.get(name) != own
    ]
    if different:
      raise ValueError(
          'The checkpoint is of a replay buffer that draws other batches, with'
          f' {", ".join(different)}. Make the replay buffer as it was, or leave'
          ' it out of the checkpoint to sample from the start.'
      )
    self._restored = saved['positions']
    self.iterators.clear()
    for streams, positions in zip(self._data_sets, self._restored):
      streams.restore(positions)

  def _positions(self) -> List[List[int]]:
    """Returns how many batches each stream of each data set has handed out."""
    positions = [streams.positions() for streams in self._data_sets]
    return positions + self._restored[len(positions) :]
