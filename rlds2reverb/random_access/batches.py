"""Batches of random items, each a function of the seed and its index."""

from collections.abc import Mapping
import functools
import hashlib
import sys
from typing import Any

import numpy as np
import tree

from rlds2reverb.arrays import augmentation
from rlds2reverb.episodes import checks
from rlds2reverb.random_access import items as items_lib
from rlds2reverb.store import batches as batches_lib
from rlds2reverb.store import samplers

Augment = Mapping[str, augmentation.Augmentation]


class Batches(batches_lib.Batches):
  """An endless sequence of batches of random items: `batches[i]` is batch `i`.

  A batch depends on the data, the seed and its index alone. So the index of
  the next batch is enough to resume training, with any number of threads or
  processes, in PyTorch, JAX or TensorFlow.

      batches = Batches({'bridge': bridge, 'kuka': kuka}, 64, seed=1)
      for batch in batches.iterate(start=step):
        ...
      loader = torch.utils.data.DataLoader(
          batches, batch_size=None, sampler=range(step, 10**6), num_workers=4)

  If several processes train together, all draw the same batches, and each reads
  its share of every batch. A run may resume with another number of processes:
  no item is repeated or skipped.

      items of batch 0     7 2 9 4 1 3 8 0
      process 0 of 2       7   9   1   8
      process 1 of 2         2   4   3   0

  Attributes:
    items: the items, as `MixedItems`.
    batch_size: the number of items of a batch, of all processes together.
    spec: the nest of a batch, with `Spec` leaves, whose sizes may be None.
  """

  num_threads = 2  # They decode images.

  def __init__(
      self,
      items: Any,
      batch_size: int,
      *,
      replacement: bool = True,
      weights: Any = None,
      drop_last: bool = True,
      seed: int = 0,
      process: tuple[int, int] = (0, 1),
      augment: Augment | None = None,
  ):
    """Creates the batches.

    Args:
      items: `Items`; or a dict from names of data sets to the `Items` of each.
      batch_size: the number of items of a batch, of all processes together.
      replacement: whether items are drawn with replacement. Otherwise every
        item is drawn once an epoch, in a new random order every epoch.
      weights: the weights of data sets, by their names. An array instead of a
        number has the weight of each item, as from `Items.episode_weights`; its
        sum is the weight of the data set. For single `Items` it is such an
        array. By default all items are equally likely. Without replacement
        weights are a mask: items of weight 0 are skipped, and all other weights
        must be equal.
      drop_last: whether to drop the last items of an epoch if they do not fill
        a batch. Otherwise that batch has fewer items: JAX compiles a train step
        again for it, and some processes may have none.
      seed: an integer from 0 up; the same seed gives the same batches.
      process: the number of this process and the number of processes, such as
        `(rank, world_size)` or `(jax.process_index(), jax.process_count())`.
      augment: the random changes of decoded images, by their paths, equal for
        all frames of an item. Item `k` of batch `i` is changed as by
        `transforms.augment_images` with the seed `(seed, i * batch_size + k)`,
        plus `n` for the n-th path, from 0.

    Raises:
      ValueError: if an argument is not valid, or there are too few items.
    """
    checks.check_positive('batch_size', batch_size)
    checks.check_not_negative('seed', seed)
    for number in process:
      checks.check_not_negative('Each number of process', number)
    if not isinstance(items, items_lib.MixedItems):
      items = items if isinstance(items, Mapping) else {'': items}
      items = items_lib.MixedItems(items)
    self.items, self.batch_size, self._seed = items, batch_size, seed
    self._rank, self._count = process
    if not 0 <= self._rank < self._count or batch_size % self._count:
      raise ValueError(
          'process must be (index, count), and the batch_size of all processes'
          f' a multiple of count, but process is {process} and batch_size'
          f' {batch_size}.'
      )
    if not items.num_items:
      raise ValueError('There are no items: every episode is too short.')
    if weights is not None and not isinstance(weights, Mapping):
      weights = {'': weights}
    self._order = samplers.WithoutReplacement(drop_last)
    self._sampler: samplers.Sampler = samplers.Uniform()
    if not replacement:
      if weights is not None:
        mask = samplers.item_weights(items, weights)
        self._order = samplers.WithoutReplacement(drop_last, mask)
      self._sampler = self._order
    elif weights is not None:
      self._sampler = samplers.Weighted(weights, by='source')
    self._per_epoch = self._order.num_drawn(items)
    # All processes draw the same batches.
    self._shard = samplers.Shard(seed, stream=None)
    size = self._sampler.batch_size(items, self._shard, batch_size)
    self.spec = tree.map_structure(
        lambda leaf: items_lib.Spec(
            leaf.dtype, (size and size // self._count, *leaf.shape)
        ),
        items.spec,
    )
    self._draw = self._sampler.bind(items, self._shard)
    self._augment = dict(augment or {})
    images = [
        name
        for name, leaf in _leaves(items.spec).items()
        if leaf.dtype == 'uint8' and leaf.shape[-1:] == (3,)
    ]
    for name in self._augment:
      checks.check_choice('The path of a decoded image', name, images)

  def __len__(self) -> int:
    """The maximum length of a sequence: the batches are endless."""
    return sys.maxsize

  @property
  def batches_per_epoch(self) -> int:
    """The number of batches of an epoch, with every item of a mask once."""
    return self._order.batches_per_epoch(self._per_epoch, self.batch_size)

  def draw(self, index: int) -> np.ndarray:
    """Returns the items of a batch, of all processes, int64 `[B]`."""
    checks.check_not_negative('index', index)
    return self._draw(index, self.batch_size).items

  def as_dataset(self, start: int = 0, **kwargs: Any) -> Any:
    """Returns the batches from `start` on as a `tf.data.Dataset`.

    A failed read raises an error. The iterator then resumes with the same
    batch.

    Args:
      start: the index of the first batch.
      **kwargs: further arguments of `iterate`.

    Raises:
      ValueError: if an argument is not an integer in its range.
    """
    import tensorflow as tf

    from rlds2reverb.episodes import pipelines
    from rlds2reverb.episodes import tf_private

    self.iterate(start, **kwargs)  # Refuses invalid arguments now.
    # A generator could not resume after an error.
    iterate = pipelines.weak_method(self, 'iterate')
    generate = functools.partial(iterate, start, **kwargs)
    signature = tree.map_structure(
        lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype), self.spec
    )
    dataset = tf_private.WrappedDataset(
        tf.data.Dataset.from_generator(generate, output_signature=signature)
    )
    dataset.must_live = self
    return dataset

  def identity(self) -> str:
    """Returns a value that differs for other batches, not for processes."""
    parts = (
        self.items.identity(),
        self.batch_size,
        self._sampler.identity(),
        self._seed,
        self._augment,
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

  def read(self, index: int) -> Any:
    """Returns a batch, a nest of NumPy arrays `[B / processes, ...]`."""
    items = self.draw(index)
    # The places in the batch of the items of this process.
    places = np.arange(self._rank, len(items), self._count)
    batch = self.items.batch(items[places])
    leaves = _leaves(batch) if self._augment else {}
    for nth, (name, change) in enumerate(self._augment.items()):
      for images, place in zip(leaves[name], places.tolist()):
        seed = self._seed + nth, index * self.batch_size + place + nth
        images[...] = augmentation.augment(images, change, seed)
    return batch

  def __getstate__(self):
    # Functions are not pickled.
    return {**self.__dict__, '_draw': None}

  def __setstate__(self, state):
    self.__dict__.update(state)
    self._draw = self._sampler.bind(self.items, self._shard)


def _leaves(nest):
  return {
      '/'.join(map(str, keys)): leaf
      for keys, leaf in tree.flatten_with_path(nest)
  }
