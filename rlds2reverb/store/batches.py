"""Batches by their numbers, and their iterator, whose state is a number."""

import abc
import collections
from concurrent import futures
from typing import Any, Deque, Dict, List, Optional

from rlds2reverb.episodes import checks


class Batches(abc.ABC):
  """A sequence of batches: `batches[i]` is number `i`.

  Attributes:
    group_size: how many batches are drawn and read together at most.
    num_threads: how many threads of an iterator read in advance.
  """

  group_size = 1
  num_threads = 0

  @abc.abstractmethod
  def read(self, first: int, count: int) -> List[Any]:
    """Returns some batches, from number `first` on.

    Args:
      first: the number of the first one.
      count: how many, at most; there may be fewer, and are none after the last.
    """

  @abc.abstractmethod
  def identity(self) -> str:
    """Returns a value that differs for other batches, not for processes."""

  def __getitem__(self, number: int) -> Any:
    """Returns a batch, a nest of NumPy arrays.

    Raises:
      IndexError: if there is no such batch.
    """
    batches = self.read(number, 1) if number >= 0 else []
    if not batches:
      raise IndexError(f'There is no batch {number}.')
    return batches[0]

  def __iter__(self) -> 'BatchIterator':
    return self.iterate()

  def iterate(
      self,
      start: int = 0,
      *,
      num_threads: Optional[int] = None,
      num_ahead: int = 4,
  ) -> 'BatchIterator':
    """Returns an iterator of batches.

    Args:
      start: the number of the first batch.
      num_threads: how many threads read in advance, which helps where images
        are decoded; by default those of the batches.
      num_ahead: how many batches, at most, are in memory then before they are
        asked for.
    """
    if num_threads is None:
      num_threads = self.num_threads
    return BatchIterator(self, start, num_threads, num_ahead)


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
      self, batches: Batches, start: int, num_threads: int, num_ahead: int
  ):
    """Creates the iterator; see `Batches.iterate`."""
    checks.check_not_negative('num_threads', num_threads)
    checks.check_positive('num_ahead', num_ahead)
    self.position = start
    self._batches = batches
    self._num_threads, self._num_ahead = num_threads, num_ahead
    # Batches that were read; or where there are threads, what will have one.
    self._ahead: Deque[Any] = collections.deque()
    self._executor: Optional[futures.ThreadPoolExecutor] = None

  def __iter__(self):
    return self

  def __next__(self) -> Any:
    """Returns the next batch."""
    ahead, read = self._ahead, self._batches.read
    if not self._num_threads:
      if not ahead:
        ahead.extend(read(self.position, self._batches.group_size))
      found = [ahead.popleft()] if ahead else []
    else:
      if self._executor is None:
        # Threads do not survive a fork, so they are made as late as possible.
        self._executor = futures.ThreadPoolExecutor(self._num_threads)
      while len(ahead) < self._num_ahead:
        number = self.position + len(ahead)
        ahead.append(self._executor.submit(read, number, 1))
      found = ahead.popleft().result()
    if not found:
      raise StopIteration
    self.position += 1
    return found[0]

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
      self._executor.shutdown(cancel_futures=True)
      self._executor = None
    self._ahead.clear()

  def __enter__(self):
    return self

  def __exit__(self, *unused):
    self.close()
