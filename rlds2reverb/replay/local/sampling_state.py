"""What a checkpoint saves of sampling: how many batches were handed out."""

import json
from typing import Any, Dict, List

import tensorflow as tf

from rlds2reverb.replay.local import dataset


class SamplingState(tf.train.experimental.PythonState):
  """The positions of the data sets of a replay buffer, for a checkpoint.

  Attributes:
    identity: what the batches depend on, by its name.
    iterators: the iterators of `get_next`; a restored position drops them.
  """

  def __init__(self, identity: Dict[str, Any]):
    self.identity = identity
    self.iterators: Dict[Any, Any] = {}
    self._data_sets: List[dataset.Streams] = []
    # The positions of all data sets, also of those that are not made yet.
    self._restored: List[List[int]] = []

  def add(self, streams: dataset.Streams) -> None:
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
