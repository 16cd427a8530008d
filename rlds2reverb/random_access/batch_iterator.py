"""Reads batches in advance, in threads, with bounded memory."""

import collections
from concurrent import futures
from typing import Any, Deque, Dict

from rlds2reverb.episodes import checks


class BatchIterator:
  """An iterator of batches that can save its position.

  Images are decoded and resized outside of Python's lock, so threads keep
  several cores busy. The position does not count batches that were only read in
  advance.

      iterator = batches.iterate()
      batch = next(iterator)
      state = iterator.state_dict()      # A small dict, for a checkpoint.
      iterator.load_state_dict(state)    # In a new process, before `next`.

  Attributes:
    position: the number of the next batch.
  """

  def __init__(
      self, batches: Any, start: int, num_threads: int, num_ahead: int
  ):
    """Creates the iterator; see `Batches.iterate`."""
    checks.check_positive('num_threads', num_threads)
    checks.check_positive('num_ahead', num_ahead)
    self.position = start
    self._batches = batches
    self._num_threads, self._num_ahead = num_threads, num_ahead
    self._executor: Any = None
    self._ahead: Deque[futures.Future] = collections.deque()

  def __iter__(self):
    return self

  def __next__(self) -> Any:
    """Returns the next batch."""
    if self._executor is None:
      # Threads do not survive a fork, so they are made as late as possible.
      self._executor = futures.ThreadPoolExecutor(self._num_threads)
    while len(self._ahead) < self._num_ahead:
      number = self.position + len(self._ahead)
      self._ahead.append(
          self._executor.submit(self._batches.__getitem__, number)
      )
    batch = self._ahead.popleft().result()
    self.position += 1
    return batch

  def state_dict(self) -> Dict[str, Any]:
    """Returns the position, for `load_state_dict`."""
    return {'position': self.position, 'identity': self._batches.identity()}

  def load_state_dict(self, state: Dict[str, Any]) -> None:
    """Goes on from the position of another iterator over the same batches.

    Raises:
      ValueError: if the batches differ in data, seed or options.
    """
    if state['identity'] != self._batches.identity():
      raise ValueError(
          'The state is of other batches: the data, the windows, the images,'
          ' the weights, the seed, replacement or the batch size was another'
          ' one. Where that is meant, iterate(start=position) goes on from any'
          ' position.'
      )
    self.close()
    self.position = int(state['position'])

  def close(self) -> None:
    """Stops the threads, and drops batches that were read in advance."""
    if self._executor is not None:
      self._executor.shutdown(wait=True, cancel_futures=True)
      self._executor = None
    self._ahead.clear()

  def __enter__(self):
    return self

  def __exit__(self, *unused):
    self.close()

  def __del__(self):
    if getattr(self, '_executor', None) is not None:
      self._executor.shutdown(wait=False, cancel_futures=True)
