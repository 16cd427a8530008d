"""Batches of items, each a function of the seed and of its number."""

import hashlib
import sys
from typing import Any, Callable, Mapping, Optional

import numpy as np
import tree

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import draws
from rlds2reverb.random_access import batch_iterator
from rlds2reverb.random_access import items as items_lib
from rlds2reverb.random_access import mixed_items

_SAMPLERS = ('uniform', 'without_replacement')


class Batches:
  """Batches of random items, as a sequence: `batches[i]` is batch number `i`.

  What is in a batch depends on the data, the seed and its number alone. So
  training goes on with the very next batch when its number is known, whatever
  reads batches: any number of threads or processes, in PyTorch, JAX or
  TensorFlow.

      batches = Batches({'bridge': bridge, 'kuka': kuka}, 64, seed=1)
      for batch in batches.iterate(start=step):
        ...
      loader = torch.utils.data.DataLoader(
          batches, batch_size=None, sampler=range(step, 10**6), num_workers=4)

  Where several processes train together, all draw the same batches, and each
  reads its share of every one. So a run may go on with another number of
  processes, and nothing is seen twice or left out.

      items of batch 0     7 2 9 4 1 3 8 0
      process 0 of 2       7   9   1   8
      process 1 of 2         2   4   3   0

  Attributes:
    items: the items, as `MixedItems`.
    batch_size: the number of items of a batch, of all processes together.
  """

  def __init__(
      self,
      items: Any,
      batch_size: int,
      *,
      sampler: str = 'uniform',
      weights: Optional[Mapping[str, float]] = None,
      drop_last: bool = True,
      num_batches: Optional[int] = None,
      seed: int = 0,
      process: tuple = (0, 1),
      transform: Optional[Callable[[Any], Any]] = None,
  ):
    """Creates the batches.

    Args:
      items: `Items`; or a dict from names of data sets to the `Items` of each.
      batch_size: the number of items of a batch, of all processes together.
      sampler: `'uniform'`: every item is as likely as any other, each time.
        `'without_replacement'`: every item comes once an epoch, in a new random
        order every epoch.
      weights: by the names of the data sets, how likely each of them is to be
        drawn, in proportion; for `'uniform'`. By default each counts by the
        number of its items.
      drop_last: whether the last items of an epoch are left out where they do
        not make a whole batch. Else that batch has fewer items.
      num_batches: how many batches there are. By default there is no end.
      seed: an integer from 0 up; the same one gives the same batches.
      process: which process this is, and of how many, such as `(rank,
        world_size)` or `(jax.process_index(), jax.process_count())`.
      transform: a function that is applied to every batch, a nest of arrays
        `[B, ...]`.

    Raises:
      ValueError: if an argument is not valid, or there are too few items.
    """
    checks.check_positive('batch_size', batch_size)
    checks.check_choice('sampler', sampler, _SAMPLERS)
    self.items = mixed_items.mixed(items)
    self.batch_size = batch_size
    self._index, self._count = process
    if not 0 <= self._index < self._count or batch_size % self._count:
      raise ValueError(
          'process must be (index, count), and the batch_size of all processes'
          f' a multiple of count, but process is {process} and batch_size'
          f' {batch_size}.'
      )
    if not len(self.items):  # pylint: disable=g-explicit-length-test
      raise ValueError(
          'There are no items to draw from: no episode is so long.'
      )
    self._sampler, self._drop_last = sampler, drop_last
    self._sums = self._cumulative(weights)
    self._num_batches = sys.maxsize if num_batches is None else num_batches
    self._seeds = draws.seeds_of(seed, 2)
    self._transform = transform
    self._seed = seed
    self._order: Any = None, None

  def __len__(self) -> int:
    return self._num_batches

  def __getitem__(self, number: int) -> Any:
    """Returns a batch, a nest of NumPy arrays `[B / processes, ...]`."""
    if not 0 <= number < self._num_batches:
      raise IndexError(
          f'There is no batch {number}: there are {self._num_batches}.'
      )
    batch = self.items.batch(self.draw(number)[self._index :: self._count])
    return batch if self._transform is None else self._transform(batch)

  def __iter__(self):
    return self.iterate()

  @property
  def batches_per_epoch(self) -> int:
    """How many batches have every item once."""
    count = len(self.items)
    if self._drop_last:
      return count // self.batch_size
    return -(-count // self.batch_size)

  def iterate(
      self, start: int = 0, *, num_threads: int = 2, num_ahead: int = 4
  ) -> batch_iterator.BatchIterator:
    """Returns an iterator of batches, which threads read in advance.

    Args:
      start: the number of the first batch.
      num_threads: how many batches are read at the same time.
      num_ahead: how many batches, at most, are in memory before they are asked
        for.
    """
    return batch_iterator.BatchIterator(self, start, num_threads, num_ahead)

  def draw(self, number: int) -> np.ndarray:
    """Returns the items of a batch, of all processes, int64 `[B]`."""
    if self._sampler == 'without_replacement':
      return self._draw_from_epoch(number)
    first, count = number * self.batch_size, self.batch_size
    places = draws.fractions(self._seeds[0], first, count)
    if self._sums is None:
      return draws.below(places, len(self.items))
    counts = self.items.counts
    # A product may be rounded up to the sum itself, in which nothing lies.
    limit = np.nextafter(self._sums[-1], 0)
    source = np.searchsorted(
        self._sums, np.minimum(places * self._sums[-1], limit), 'right'
    )
    places = draws.fractions(self._seeds[1], first, count)
    within = draws.below(places, counts[source])
    return (np.cumsum(counts) - counts)[source] + within

  def as_dataset(self, start: int = 0, **kwargs: Any) -> Any:
    """Returns the batches from `start` on as a `tf.data.Dataset`.

    Batches of frames are `Trajectory`s of TF-Agents.

    Args:
      start: the number of the first batch.
      **kwargs: further arguments of `iterate`.
    """
    # pylint: disable-next=g-import-not-at-top
    from rlds2reverb.random_access import tf_batches

    return tf_batches.as_dataset(self, start, **kwargs)

  def identity(self) -> str:
    """Returns what tells these batches from others, whoever reads them."""
    parts = (
        self.items.identity(),
        self.batch_size,
        self._sampler,
        None if self._sums is None else self._sums.tolist(),
        self._drop_last,
        self._seed,
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

  @property
  def spec(self) -> Any:
    """The nest of a batch, with `Spec` leaves, of which None may be a size."""
    size: Any = self.batch_size // self._count
    is_short = len(self.items) % self.batch_size and not self._drop_last
    if is_short and self._sampler == 'without_replacement':
      size = None
    if self._transform is None:
      return tree.map_structure(
          lambda leaf: items_lib.Spec(leaf.dtype, (size, *leaf.shape)),
          self.items.spec,
      )
    return tree.map_structure(
        lambda leaf: items_lib.Spec(
            'string' if leaf.dtype == object else leaf.dtype.name,
            (size, *leaf.shape[1:]),
        ),
        self[0],
    )

  def _draw_from_epoch(self, number) -> np.ndarray:
    epoch, number = divmod(number, self.batches_per_epoch)
    count = len(self.items)
    begin = number * self.batch_size
    places = np.arange(begin, min(begin + self.batch_size, count))
    # Threads may make one order twice, which does no harm.
    known, order = self._order
    if known != epoch:
      order = draws.Permutation(count, self._seeds[0], epoch)
      self._order = epoch, order
    return order(places)

  def _cumulative(self, weights) -> Optional[np.ndarray]:
    """Returns the sums of the weights up to each data set, or None."""
    epoch = self._sampler == 'without_replacement'
    if epoch and not self.batches_per_epoch:
      raise ValueError(
          f'A batch of {self.batch_size} items is larger than an epoch, which'
          f' has {len(self.items)}, and drop_last leaves out what is not a'
          ' whole batch: nothing would be left.'
      )
    if weights is None:
      return None
    sources = self.items.sources
    if epoch or set(weights) != set(sources):
      raise ValueError(
          f'weights must be of the data sets {sorted(sources)}, and are for the'
          f" sampler 'uniform', but are of {sorted(weights)}, for"
          f' {self._sampler!r}.'
      )
    found = np.array([weights[name] for name in sources], np.float64)
    if not (np.isfinite(found) & (found >= 0)).all() or not found.any():
      raise ValueError(
          'weights must be 0 or more, finite, and not all 0, but are'
          f' {dict(weights)}.'
      )
    for name, weight in zip(sources, found):
      if weight and not len(sources[name]):
        raise ValueError(
            f'{name} has the weight {weight}, but no items to draw.'
        )
    return np.cumsum(found)

  def __getstate__(self):
    return {**self.__dict__, '_order': (None, None)}
