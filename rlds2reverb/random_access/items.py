"""Items of an index: windows of its episodes, accessed by number."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
import hashlib
import inspect
import re
from typing import Any

import numpy as np
import tree

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.random_access import chunks as chunks_lib
from rlds2reverb.random_access import images as images_lib
from rlds2reverb.random_access import index as index_lib
from rlds2reverb.store import items as store_items
from rlds2reverb.store import rows as store_rows

Images = Mapping[str, tuple[int, int] | images_lib.ImageFormat]

_MASK = 'mask'


@dataclasses.dataclass(frozen=True)
class Spec:
  """The shape and dtype of a leaf of an item.

  Attributes:
    dtype: the name of its dtype, `'string'` for strings.
    shape: its shape.
  """

  dtype: str
  shape: tuple[Any, ...]

  @classmethod
  def of(cls, leaf: Any) -> 'Spec':
    """Returns the spec of an item of an array `[B, ...]`."""
    leaf = np.asarray(leaf)
    name = 'string' if leaf.dtype.kind in 'OSU' else leaf.dtype.name
    return cls(name, leaf.shape[1:])

  @property
  def numpy_dtype(self) -> np.dtype:
    """The dtype of its array, which is `object` for strings."""
    name = 'object' if self.dtype == 'string' else self.dtype
    return store_rows.numpy_dtype(name)

  def __str__(self):
    return f'{self.dtype} {self.shape}'


class ItemSequence:
  """Base class: a map-style PyTorch data set and a Grain data source.

  Attributes:
    num_items: the number of items.
  """

  num_items = 0

  def batch(self, items: Any) -> Any:
    """Returns items, stacked: the nest of one, with arrays `[B, ...]`."""
    raise NotImplementedError

  def identity(self) -> Any:
    """Returns a value that differs for other items, for `fingerprint`."""
    raise NotImplementedError

  def __len__(self) -> int:
    return self.num_items

  # Grain compares it when the position of an iterator is restored.
  def __repr__(self) -> str:
    return f'{type(self).__name__}({self.identity()!r})'

  def __getitem__(self, item: Any) -> Any:
    """Returns an item; or `batch` of a list or an array of integers.

    Args:
      item: an integer from `-len` to `len - 1`; or a list or array `[B]`.

    Raises:
      IndexError: if there is no such item.
      TypeError: if it is anything else.
    """
    if isinstance(item, list) or np.ndim(item) and hasattr(item, '__array__'):
      return self.batch(item)
    return self.__getitems__([checks.to_index('The index of an item', item)])[0]

  def __getitems__(self, items: Sequence[int]) -> list[Any]:
    batch = self.batch(items)
    return [
        tree.map_structure(lambda leaf, row=row: leaf[row], batch)
        for row in range(len(items))
    ]

  def check_numbers(self, items: Any) -> np.ndarray:
    """Returns the numbers of items, from 0 up, int64 `[B]`.

    Args:
      items: numbers from `-len` to `len - 1`.

    Raises:
      IndexError: if there is no such item.
      TypeError: if they are not integers, or not `[B]`.
    """
    items, count = np.asarray(items), self.num_items
    # An empty list makes an array of floats.
    if items.ndim != 1 or items.dtype.kind not in 'iu' and items.size:
      raise TypeError(
          'Items are indexed by one integer, or by a list or array [B] of'
          f' integers, but found {items.dtype} {list(items.shape)}.'
      )
    invalid = items[(items < -count) | (items >= count)]
    if len(invalid):
      raise IndexError(
          f'Item {invalid[0]} is out of range: there are {count} items.'
      )
    items = items.astype(np.int64)
    return np.where(items < 0, items + count, items)


class Items(ItemSequence):
  """The windows of an index, as a sequence.

  It is a map-style `Dataset` of PyTorch and a `RandomAccessDataSource` of
  Grain: it has `len(items)`, `items[i]` and, for many items, `batch`. An item
  is a nest of NumPy arrays; nothing is stored twice.

      loader = torch.utils.data.DataLoader(items, batch_size=64, shuffle=True)
      dataset = grain.MapDataset.source(items).shuffle(seed=0).batch(64)

      images = {'observation/eye': (64, 64)}
      items = Items(index, ActionChunks(2, 4), images=images)
      items[7]['observation']['eye']  # uint8 [2, 64, 64, 3]

  Attributes:
    index: the index.
    windows: `ActionChunks` or `Windows`, of steps.
    transform: the function that is applied to batches, such as a `Normalizer`,
      whose `invert` recovers the actions of a policy.
    spec: the nest of one item, with `Spec` leaves.
  """

  def __init__(
      self,
      index: index_lib.Index,
      windows: chunks_lib.ActionChunks | windows_lib.Windows,
      *,
      images: Images | None = None,
      with_mask: bool = False,
      transform: Callable[[Any], Any] | None = None,
  ):
    """Finds the items.

    Args:
      index: the index.
      windows: the windows of steps that are items.
      images: the height and width, or the `ImageFormat`, of the images to
        decode, by their paths, such as `'observation/image'`. Other images, and
        text, are objects of type `bytes`.
      with_mask: whether items of `Windows` have a further field `mask`, bool
        `[L]`: False for padding.
      transform: a function that is applied to a batch of items `[B, ...]`, such
        as a `Normalizer`. It may add and remove fields and change dtypes and
        shapes, for all items alike. It is also applied to the first item, for
        `spec`. A checkpoint of an iterator identifies a function by its module
        and name, and another object by its repr, without addresses.

    Raises:
      ValueError: if the index has no such fields, or `transform` does not keep
        the dimension of the batch.
    """
    self.index, self.windows, self.transform = index, windows, transform
    # Everything else is computed again when the items are unpickled.
    self._arguments: dict[str, Any] = dict(
        images=images, with_mask=with_mask, transform=transform
    )
    self._images = images_lib.formats_by_column(
        images or {}, index.layout.columns
    )
    self._with_mask = with_mask
    self._chunks = None
    if isinstance(windows, chunks_lib.ActionChunks):
      self._chunks = chunks_lib.ChunkReader(windows, index)
      episodes, windows = self._chunks.episodes, windows_lib.Windows(1)
    else:
      windows_lib.check_windows(windows)
      episodes = store_items.find_episodes(index.lengths, windows)
    self._index = store_items.ItemIndex(episodes, windows)
    self._counts = episodes.num_items
    self.num_items = self._index.num_items
    # A transform may return other dtypes for an empty batch.
    count = 0 if transform is None else min(self.num_items, 1)
    self.spec: Any = None
    batch = self._read(np.zeros(count, np.int64))
    if transform is not None:
      batch = transform(batch)
      self._check_transformed(batch, count)
    self.spec = tree.map_structure(Spec.of, batch)

  def __reduce__(self):
    make = functools.partial(type(self), **self._arguments)
    return make, (self.index, self.windows)

  def identity(self) -> Any:
    """Returns a value that differs for other items, for `fingerprint`."""
    return [
        self.index.fingerprint,
        self.windows,
        sorted(self._images.items()),
        self._with_mask,
        _name_function(self.transform),
    ]

  def episode_and_start(self, items: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns the episode of each item, and its first row in the episode.

    Args:
      items: the numbers of the items, `[B]`.

    Returns:
      Both int64 `[B]`. An item of `ActionChunks` starts at the step itself.
    """
    return self._index.episode_and_start(self.check_numbers(items))

  def column(self, path: str) -> np.ndarray:
    """Returns a field of the first step of each item, `[len, ...]`.

    Args:
      path: the path of a numeric field, such as `'reward'`.
    """
    names = [column.name for column in self.index.layout.columns]
    checks.check_choice('path', path, names)
    _, rows, _ = self._index.find(np.arange(len(self)))
    return self.index.take(rows, [names.index(path)])[0]

  def episode_weights(self, weights: Any | None = None) -> np.ndarray:
    """Returns weights of items that draw an episode first, and then an item.

    Args:
      weights: the weight of each episode `[E]`; by default all are equal.

    Returns:
      float64 `[len]`, for `Batches`.
    """
    counts = self._counts
    weights = np.ones(len(counts)) if weights is None else weights
    weights = np.asarray(weights, np.float64)
    if weights.shape != counts.shape or len(counts) != len(self.index.lengths):
      raise ValueError(
          f'weights must have the shape [{len(self.index.lengths)}], one weight'
          f' per episode, but have {list(weights.shape)}. Windows that cross'
          ' episodes cannot be weighted by episode.'
      )
    return np.repeat(weights / np.maximum(counts, 1), counts)

  def batch(self, items: Any) -> Any:
    """Returns items, stacked: the nest of one, with arrays `[B, ...]`.

    Args:
      items: their numbers, `[B]`; each from `-len` to `len - 1`.

    Raises:
      IndexError: if there is no such item.
      TypeError: if `items` is not one list or array of integers.
      ValueError: if `transform` returns other fields or dtypes than for the
        first item.
      OSError: if the files have changed since they were indexed.
    """
    items = self.check_numbers(items)
    batch = self._read(items)
    if self.transform is not None:
      batch = self.transform(batch)
      if len(items):
        self._check_transformed(batch, len(items))
    return batch

  def _check_transformed(self, batch: Any, count: int) -> None:
    """Raises a ValueError unless a batch has `count` items of `spec`."""
    dtypes = {}
    for keys, leaf in tree.flatten_with_path(batch):
      shape = np.shape(leaf)
      if shape[:1] != (count,):
        raise ValueError(
            f'Field {_name(keys)} of the transformed items has the shape'
            f' {list(shape)}, but its first dimension must be the batch of'
            f' {count}. The transform must keep it.'
        )
      dtypes[keys] = Spec.of(leaf).dtype
    if self.spec is None:
      return
    expected = {
        keys: leaf.dtype for keys, leaf in tree.flatten_with_path(self.spec)
    }
    for keys in {**expected, **dtypes}:
      if dtypes.get(keys) != expected.get(keys):
        raise ValueError(
            f'Field {_name(keys)} of the transformed items is'
            f' {dtypes.get(keys, "missing")}, but it was'
            f' {expected.get(keys, "missing")} for the first item. The'
            ' transform must return the same fields and dtypes for all items.'
        )

  def _read(self, items: np.ndarray) -> Any:
    if self._chunks:
      episode, step = self._index.episode_and_start(items)
      return self._chunks.read(episode, step, self._decode)
    leaves = self._index.read(self.index, items)
    batch = self.index.layout.nest(self._decode(leaves, range(len(leaves))))
    if self._with_mask:
      batch[_MASK] = self._index.is_data(items)
    return batch

  def _decode(self, leaves, numbers) -> list[np.ndarray]:
    """Returns columns with images and strings instead of their cells."""
    return self.index.with_strings(
        [
            images_lib.decode_all(
                self.index, leaf, self._images[number], number
            )
            if number in self._images
            else leaf
            for number, leaf in zip(numbers, leaves)
        ]
    )


class MixedItems(ItemSequence):
  """The items of several data sets, concatenated.

  Fields that only some data sets have are zeros, or empty strings, in the
  others. All other specs must be equal.

  Attributes:
    sources: the items of each data set, by its name.
    counts: int64 `[D]`: the number of items of each data set.
    spec: the nest of one item, with `Spec` leaves.
  """

  first = 0  # The number of the first item, for samplers.

  def __init__(self, sources: Mapping[str, Items]):
    """Mixes items.

    Args:
      sources: the items of each data set, by its name.

    Raises:
      ValueError: if there are no data sets, or a field differs between them.
    """
    if not sources:
      raise ValueError('There are no data sets to mix.')
    self.sources = dict(sources)
    self.counts = np.array(list(map(len, sources.values())), np.int64)
    self.num_items = int(self.counts.sum())
    self._first = np.cumsum(self.counts) - self.counts
    self._specs: dict[Any, Spec] = {}
    for name, items in self.sources.items():
      for keys, spec in tree.flatten_with_path(items.spec):
        expected = self._specs.setdefault(keys, spec)
        if expected != spec:
          raise ValueError(
              f'Field {_name(keys)} is {spec} in {name}, but {expected} in the'
              ' data sets before it. Pad it with PadField in `prepare` of'
              ' build_index, or resize images with `images=`.'
          )
    self.spec = store_rows.nest_of(self._specs)

  def batch(self, items: Any) -> Any:
    """Returns items, stacked; see `Items.batch`."""
    items = self.check_numbers(items)
    if len(self.sources) == 1:
      return next(iter(self.sources.values())).batch(items)
    # A data set without items starts where the next data set does.
    source = np.searchsorted(self._first, items, 'right') - 1
    leaves = {
        keys: np.full(
            [len(items), *spec.shape],
            b'' if spec.dtype == 'string' else 0,
            spec.numpy_dtype,
        )
        for keys, spec in self._specs.items()
    }
    for number, source_items in enumerate(self.sources.values()):
      rows = np.flatnonzero(source == number)
      if not len(rows):
        continue
      part = source_items.batch(items[rows] - self._first[number])
      for keys, leaf in tree.flatten_with_path(part):
        shape, expected = np.shape(leaf)[1:], leaves[keys].shape[1:]
        if shape != expected:  # It would be broadcast.
          raise ValueError(
              f'Field {_name(keys)} has items of the shape {list(shape)}, but'
              f' the first one had {list(expected)}. The transform of mixed'
              ' items must return one shape.'
          )
        leaves[keys][rows] = leaf
    return store_rows.nest_of(leaves)

  def identity(self) -> Any:
    """Returns a value that differs for other items, for `fingerprint`."""
    return [[name, items.identity()] for name, items in self.sources.items()]


def _name_function(function: Any, depth: int = 3) -> Any:
  """Returns a value that identifies a function in all processes.

  Args:
    function: a function, or an object. Without a repr of its own, an object is
      identified by its class and attributes.
    depth: the number of objects to follow, as objects may refer to each other.
  """
  if inspect.isfunction(function):
    return f'{function.__module__}.{function.__qualname__}'
  if isinstance(function, np.ndarray):  # Its repr may skip values.
    return hashlib.sha256(function.tobytes()).hexdigest()[:16]
  name = re.sub(r' at 0x[0-9a-f]+', '', repr(function))
  if inspect.ismethod(function) and depth:
    return [name, _name_function(function.__self__, depth - 1)]
  if type(function).__repr__ is object.__repr__ and depth:
    values = sorted(getattr(function, '__dict__', {}).items())
    return [name, [(k, _name_function(v, depth - 1)) for k, v in values]]
  return function if name == repr(function) else name


def _name(keys: tuple[Any, ...]) -> str:
  """Returns the name of a leaf of a nest."""
  return '/'.join(map(str, keys))
