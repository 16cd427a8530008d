"""Batches of items, each a function of the seed and of its number."""

import hashlib
import sys
from typing import Any, Mapping, Optional, Tuple

import numpy as np
import tree

from rlds2reverb.arrays import augmentation
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import draws
from rlds2reverb.random_access import augmenting
from rlds2reverb.random_access import batch_iterator
from rlds2reverb.random_access import item_weights
from rlds2reverb.random_access import items as items_lib
from rlds2reverb.random_access import mixed_items

Augment = Mapping[str, augmentation.Augmentation]


class Batches:
  """Batches of random items, an endless sequence: `batches[i]` is number `i`.

  A batch depends on the data, the seed and its number alone. So the number of
  the next batch is enough to go on training, with any number of threads or
  processes, in PyTorch, JAX or TensorFlow.

      batches = Batches({'bridge': bridge, 'kuka': kuka}, 64, seed=1)
      for batch in batches.iterate(start=step):
        ...
      loader = torch.utils.data.DataLoader(
          batches, batch_size=None, sampler=range(step, 10**6), num_workers=4)

  Where several processes train together, all draw the same batches, and each
  reads its share of every one. A run may go on with another number of
  processes: nothing is seen twice or left out.

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
      replacement: bool = True,
      weights: Any = None,
      drop_last: bool = True,
      seed: int = 0,
      process: Tuple[int, int] = (0, 1),
      augment: Optional[Augment] = None,
  ):
    """Creates the batches.

    Args:
      items: `Items`; or a dict from names of data sets to the `Items` of each.
      batch_size: the number of items of a batch, of all processes together.
      replacement: whether every item is as likely as any other, each time. Else
        every item comes once an epoch, in a new random order every epoch.
      weights: by the names of the data sets, how likely each of them is to be
        drawn, in proportion; with replacement. In place of a number, an array
        has the weight of each item, as `Items.episode_weights` gives it; their
        sum is the weight of the data set. For single `Items` it is such an
        array. By default all are equal.
      drop_last: whether the last items of an epoch are left out where they do
        not make a whole batch. Else that batch has fewer items: JAX compiles a
        train step again for it, and some processes may have none.
      seed: an integer from 0 up; the same one gives the same batches.
      process: which process this is, and of how many, such as `(rank,
        world_size)` or `(jax.process_index(), jax.process_count())`.
      augment: by the paths of decoded images, how they are changed at random,
        all frames of an item alike. The changes of item `k` of batch `i` are
        those of `transforms.augment_images` with the seed `(seed, i *
        batch_size + k)`, plus `n` for the n-th path, from 0.

    Raises:
      ValueError: if an argument is not valid, or there are too few items.
    """
    checks.check_positive('batch_size', batch_size)
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
    self._epochs = not replacement
    self._drop_last = drop_last
    if self._epochs and not self.batches_per_epoch:
      raise ValueError(
          f'A batch of {batch_size} items is larger than an epoch, which has'
          f' {len(self.items)}, and drop_last leaves out what is not a whole'
          ' batch: nothing would be left.'
      )
    self._weights = None
    if weights is not None:
      if self._epochs:
        raise ValueError('weights need replacement=True.')
      if not isinstance(weights, Mapping):
        weights = {'': weights}
      self._weights = item_weights.ItemWeights(weights, self.items.sources)
    self._seed = seed
    self._seeds = draws.seeds_of(seed, 2)
    self._augment = dict(augment or {})
    augmenting.check_fields(self._augment, self.items.spec)
    self._order: Any = None, None

  def __len__(self) -> int:
    """The largest length of a sequence: there is no end."""
    return sys.maxsize

  def __getitem__(self, number: int) -> Any:
    """Returns a batch, a nest of NumPy arrays `[B / processes, ...]`."""
    if number < 0:
      raise IndexError(f'There is no batch {number}.')
    items = self.draw(number)
    own = np.arange(self._index, len(items), self._count)
    batch = self.items.batch(items[own])
    augmenting.augment_batch(
        batch, self._augment, self._seed, number * self.batch_size + own
    )
    return batch

  def __iter__(self):
    return self.iterate()

  @property
  def batches_per_epoch(self) -> int:
    """The number of batches that have every item once."""
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
    if self._epochs:
      return self._draw_from_epoch(number)
    first, count = number * self.batch_size, self.batch_size
    places = [draws.fractions(seed, first, count) for seed in self._seeds]
    if self._weights is None:
      return draws.below(places[0], len(self.items))
    return self._weights.draw(*places)

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
    """Returns a value that differs for other batches, not for processes."""
    parts = (
        self.items.identity(),
        self.batch_size,
        self._epochs,
        self._weights and self._weights.identity(),
        self._drop_last,
        self._seed,
        self._augment,
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

  @property
  def spec(self) -> Any:
    """The nest of a batch, with `Spec` leaves, whose sizes may be None."""
    size: Any = self.batch_size // self._count
    if self._epochs and not self._drop_last:
      if len(self.items) % self.batch_size:
        size = None
    return tree.map_structure(
        lambda leaf: items_lib.Spec(leaf.dtype, (size, *leaf.shape)),
        self.items.spec,
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

  def __getstate__(self):
    return {**self.__dict__, '_order': (None, None)}
