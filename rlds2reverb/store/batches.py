"""Random-access batches and a resumable iterator over them."""

import abc
import collections
from collections.abc import Sequence
from concurrent import futures
from typing import Any

from rlds2reverb.episodes import checks


class Batches(abc.ABC):
  """A sequence of batches: `batches[i]` is the batch of index `i`.

  Attributes:
    num_threads: the number of threads of an iterator that read ahead.
  """

  num_threads = 0

  @abc.abstractmethod
  def read(self, index: int) -> Any:
    """Returns a batch by its index, or None after the last batch."""

  def read_group(self, index: int) -> Sequence[Any]:
    """Returns one or more consecutive batches from an index on.

    It returns no batch after the last one.
    """
    batch = self.read(index)
    return [] if batch is None else [batch]

  @abc.abstractmethod
  def identity(self) -> str:
    """Returns a value that differs for other batches, not for processes."""

  def __getitem__(self, index: int) -> Any:
    """Returns a batch, a nest of NumPy arrays.

    Raises:
      IndexError: if there is no such batch.
      TypeError: if `index` is not one integer.
    """
    index = checks.to_index('The index of a batch', index)
    batch = self.read(index) if index >= 0 else None
    if batch is None:
      raise IndexError(f'There is no batch {index}.')
    return batch

  def __iter__(self) -> 'BatchIterator':
    return self.iterate()

  def iterate(
      self,
      start: int = 0,
      *,
      num_threads: int | None = None,
      num_ahead: int = 4,
  ) -> 'BatchIterator':
    """Returns an iterator of batches.

    Args:
      start: the index of the first batch.
      num_threads: the number of threads that read ahead, which helps if images
        are decoded; by default the number of the batches.
      num_ahead: the maximum number of batches that are read ahead.

    Raises:
      ValueError: if an argument is not an integer in its range.
    """
    if num_threads is None:
      num_threads = self.num_threads
    return BatchIterator(self, start, num_threads, num_ahead)


class BatchIterator:
  """An iterator of batches that can save its position.

  Images are decoded and resized without Python's lock, so threads keep several
  cores busy. The position does not count batches that were only read ahead.

      iterator = batches.iterate()
      batch = next(iterator)
      state = iterator.state_dict()      # A small dict, for a checkpoint.
      iterator.load_state_dict(state)    # In a new process, before `next`.

  Attributes:
    position: the index of the next batch.
  """

  def __init__(
      self, batches: Batches, start: int, num_threads: int, num_ahead: int
  ):
    """Creates the iterator; see `Batches.iterate`."""
    checks.check_not_negative('num_threads', num_threads)
    checks.check_positive('num_ahead', num_ahead)
    checks.check_not_negative('start', start)
    self.position = start
    self._batches = batches
    self._num_threads, self._num_ahead = num_threads, num_ahead
    # The batches from `position` on: first batches that were read, and then
    # batches that threads read.
    self._ready: collections.deque[Any] = collections.deque()
    self._ahead: collections.deque[futures.Future[Any]] = collections.deque()
    self._executor: futures.ThreadPoolExecutor | None = None

  def __iter__(self):
    return self

  def __next__(self) -> Any:
    """Returns the next batch.

    After an error, the next call reads the same batch again.
    """
    if not self._ready:
      self._ready.extend(
          self._read_ahead()
          if self._num_threads
          else self._batches.read_group(self.position)
      )
      if not self._ready:
        self._drop_ahead()
        raise StopIteration
    self.position += 1
    return self._ready.popleft()

  def _read_ahead(self) -> Sequence[Any]:
    """Returns the next batch, if there is one, and keeps the threads busy."""
    if self._executor is None:
      # Threads do not survive a fork, so they are started as late as possible.
      self._executor = futures.ThreadPoolExecutor(self._num_threads)
    ahead = self._ahead
    while len(ahead) < self._num_ahead:
      index = self.position + len(ahead)
      ahead.append(self._executor.submit(self._batches.read, index))
    try:
      batch = ahead[0].result()
    except BaseException:
      # A failed batch is read again. After an interrupted wait, the batch is
      # still being read.
      if ahead[0].done():
        self._drop_ahead()
      raise
    ahead.popleft()
    return [] if batch is None else [batch]

  def state_dict(self) -> dict[str, Any]:
    """Returns the position, for `load_state_dict`."""
    return {'position': self.position, 'identity': self._batches.identity()}

  def load_state_dict(self, state: dict[str, Any]) -> None:
    """Resumes from the position of another iterator over the same batches.

    Raises:
      ValueError: if the batches differ in data, seed or options, or the
        position is not an integer from 0 up.
    """
    if state['identity'] != self._batches.identity():
      raise ValueError(
          'The state is of other batches: the data, the windows, the images,'
          ' the transform, the weights, the seed, replacement or the batch size'
          ' differs. If this is intended, iterate(start=position) starts at any'
          ' position.'
      )
    checks.check_not_negative("The state's position", state['position'])
    self.close()
    self.position = int(state['position'])

  def close(self) -> None:
    """Stops the threads, and drops batches that were read ahead."""
    if self._executor is not None:
      self._executor.shutdown(cancel_futures=True)
      self._executor = None
    self._ready.clear()
    self._ahead.clear()

  def _drop_ahead(self) -> None:
    """Drops batches that were read ahead."""
    for future in self._ahead:
      future.cancel()
    self._ahead.clear()

  def __enter__(self):
    return self

  def __exit__(self, *unused):
    self.close()
