"""An index of RLDS data, and its items, each found by its number."""

import contextlib
import dataclasses
import functools
import os
from typing import (
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Union,
)

import numpy as np
import tree

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.random_access import chunks as chunks_lib
from rlds2reverb.random_access import images as images_lib
from rlds2reverb.store import items as store_items
from rlds2reverb.store import layout as layout_lib
from rlds2reverb.store import rows as rows_lib

PathLike = Union[str, os.PathLike]
Images = Mapping[str, Union[Tuple[int, int], images_lib.ImageFormat]]

_MASK = 'mask'
_STEP = windows_lib.Windows(1)


def expand_folder(folder: PathLike) -> str:
  """Returns the absolute path of the folder of an index.

  Raises:
    ValueError: if it is a URL.
  """
  folder = os.fspath(folder)
  if '://' in folder:
    raise ValueError(f'An index must be on the local disk, but is at {folder}.')
  return os.path.abspath(os.path.expanduser(folder))


@contextlib.contextmanager
def explain_missing_dependency(missing: str) -> Iterator[None]:
  """Says what to do if the imports that make a missing file fail.

  Args:
    missing: the subject of the error: `'... has no index yet, and building
      it'`.

  Raises:
    ModuleNotFoundError: if a module, such as TensorFlow, is not installed.
  """
  try:
    yield
  except ModuleNotFoundError as e:
    raise ModuleNotFoundError(
        f'{missing} needs the full environment, with TensorFlow: {e.name} is'
        ' not installed here. `pip install .` in a clone makes it. Make the'
        ' same call there once; then it works here.',
        name=e.name,
    ) from e


class Index(rows_lib.RowStore):
  """The steps of a data set, for random access.

  It is made by `build_index`, and reads without TensorFlow. It pickles as its
  paths, and may be read by any number of threads and processes, whether they
  are forked or spawned.

  Attributes:
    lengths: int64 `[E]`: how many rows each episode has.
  """

  def __init__(
      self,
      folder: PathLike,
      data_dir: Optional[PathLike] = None,
      check: bool = True,
  ):
    """Opens an index.

    Args:
      folder: the folder of the index.
      data_dir: the folder of the data set, if it has moved since.
      check: whether all bytes of the index are compared with their checksums.

    Raises:
      FileNotFoundError: if there is no index, or a file of the data set is not
        there.
      OSError: if the index is damaged, or does not fit the data.
    """
    super().__init__(
        **rows_lib.opened(
            expand_folder(folder),
            os.fspath(data_dir) if data_dir else None,
            None if check else 0,
        )
    )
    if list(self.arrays) != ['lengths']:
      raise FileNotFoundError(
          f'{self.folder} has prepared frames, and no index. build_index makes'
          ' one.'
      )
    self.lengths = self.arrays['lengths']

  def __reduce__(self):
    return type(self), (self.folder, self.data_dir, False)


@dataclasses.dataclass(frozen=True)
class Spec:
  """The shape and dtype of a leaf of an item.

  Attributes:
    dtype: the name of its dtype, `'string'` for strings.
    shape: its shape.
  """

  dtype: str
  shape: Tuple[Any, ...]

  @property
  def numpy_dtype(self) -> np.dtype:
    """The dtype of its array, which is `object` for strings."""
    if self.dtype == 'string':
      return np.dtype(object)
    return layout_lib.numpy_dtype(self.dtype)

  def __str__(self):
    return f'{self.dtype} {self.shape}'


class SequenceOfItems:
  """What serves as a map-style `Dataset` of PyTorch, or a source of Grain.

  Attributes:
    num_items: how many items there are.
  """

  num_items = 0

  def batch(self, items: Any) -> Any:
    """Returns items, stacked: the nest of one, with arrays `[B, ...]`."""
    raise NotImplementedError

  def __len__(self) -> int:
    return self.num_items

  def __getitem__(self, item: int) -> Any:
    return self.__getitems__([item])[0]

  def __getitems__(self, items: Sequence[int]) -> List[Any]:
    batch = self.batch(items)
    return [
        tree.map_structure(lambda leaf, place=place: leaf[place], batch)
        for place in range(len(items))
    ]

  def check_numbers(self, items: Any) -> np.ndarray:
    """Returns the numbers of items, from 0 up, int64 `[B]`.

    Args:
      items: numbers from `-len` to `len - 1`.

    Raises:
      IndexError: if there is no such item.
    """
    items, count = np.asarray(items, np.int64), self.num_items
    wrong = (items < -count) | (items >= count)
    if wrong.any():
      raise IndexError(
          f'There is no item {items[wrong][0]}: there are {count}.'
      )
    return np.where(items < 0, items + count, items)


class Items(SequenceOfItems):
  """The windows of an index, as a sequence.

  It serves as a map-style `Dataset` of PyTorch or a `RandomAccessDataSource` of
  Grain: it has `len(items)`, `items[i]` and, for many at once, `batch`. An item
  is a nest of NumPy arrays; nothing is stored twice.

      images = {'observation/eye': (64, 64)}
      items = Items(index, ActionChunks(2, 4), images=images)
      items[7]['observation']['eye']  # uint8 [2, 64, 64, 3]

  Attributes:
    index: the index.
    windows: `ActionChunks` or `Windows`, of steps.
    transform: the function that is applied to batches, such as a `Normalizer`,
      whose `invert` undoes it for a policy's actions.
    spec: the nest of one item, with `Spec` leaves.
  """

  def __init__(
      self,
      index: Index,
      windows: Union[chunks_lib.ActionChunks, windows_lib.Windows],
      *,
      images: Optional[Images] = None,
      with_mask: bool = False,
      transform: Optional[Callable[[Any], Any]] = None,
  ):
    """Finds the items.

    Args:
      index: the index.
      windows: what an item is.
      images: the height and width, or the `ImageFormat`, of the images to
        decode, by their paths, such as `'observation/image'`. Others, and text,
        come as objects of type `bytes`.
      with_mask: whether items of `Windows` have a further field `mask`, bool
        `[L]`: False where rows were filled in.
      transform: a function that is applied to a batch of items `[B, ...]`, and
        keeps shapes and dtypes, such as a `Normalizer`.

    Raises:
      ValueError: if the index has no such fields.
    """
    self.index, self.windows, self.transform = index, windows, transform
    images = images or {}
    self._images = images_lib.formats_of(images, index.layout.columns)
    self._with_mask = with_mask
    self._arguments = {
        'images': images,
        'with_mask': with_mask,
        'transform': transform,
    }
    lengths = index.lengths
    if isinstance(windows, chunks_lib.ActionChunks):
      self._acting = windows.count_acting(index, lengths)
      episodes = store_items.Episodes(
          np.cumsum(lengths) - lengths,
          lengths,
          lengths if windows.last_steps else self._acting,
      )
      self._index = store_items.ItemIndex(episodes, _STEP)
      lead_of, masks = windows.lead, windows.masks
    else:
      windows_lib.check_windows(windows)
      lead = (windows.length,)
      lead_of, masks = lambda column: lead, {_MASK: lead} if with_mask else {}
      episodes = store_items.find_episodes(lengths, windows)
      self._index = store_items.ItemIndex(episodes, windows)
    self._counts = episodes.num_items
    self.num_items = self._index.num_items
    self.spec = self._find_spec(lead_of, masks)

  def __reduce__(self):
    # The rest is found again.
    make = functools.partial(type(self), **self._arguments)
    return make, (self.index, self.windows)

  def identity(self) -> Any:
    """Returns a value that differs for other items, for `fingerprint`."""
    return [
        self.index.fingerprint,
        self.windows,
        sorted(self._images.items()),
        self._with_mask,
        self.transform,
    ]

  def episode_and_start(self, items: Any) -> Tuple[np.ndarray, np.ndarray]:
    """Returns the episode of each item, and the row of it at which it starts.

    Args:
      items: their numbers `[B]`.

    Returns:
      Both int64 `[B]`. An item of `ActionChunks` starts at the step itself.
    """
    return self._index.episode_and_start(self.check_numbers(items))

  def column(self, path: str) -> np.ndarray:
    """Returns a field of the first step of each item, `[len, ...]`.

    Args:
      path: the path of numbers, such as `'reward'`.
    """
    names = [column.name for column in self.index.layout.columns]
    checks.check_choice('path', path, names)
    rows, _ = self._index.spans(np.arange(len(self)))
    return self.index.take(rows, [names.index(path)])[0]

  def episode_weights(self, weights: Optional[Any] = None) -> np.ndarray:
    """Returns weights of items that draw an episode first, and then an item.

    Args:
      weights: the weight of each episode `[E]`; by default all are equal.

    Returns:
      float64 `[len]`, for `Batches`.
    """
    counts = self._counts
    if weights is None:
      weights = np.ones(len(counts))
    weights = np.asarray(weights, np.float64)
    if weights.shape != counts.shape or len(counts) != len(self.index.lengths):
      raise ValueError(
          f'There must be a weight for each of the {len(self.index.lengths)}'
          f' episodes, but the shape is {weights.shape}; and items that cross'
          ' episodes are of none.'
      )
    return np.repeat(weights / np.maximum(counts, 1), counts)

  def batch(self, items: Any) -> Any:
    """Returns items, stacked: the nest of one, with arrays `[B, ...]`.

    Args:
      items: their numbers, `[B]`; each from `-len` to `len - 1`.

    Raises:
      IndexError: if there is no such item.
      OSError: if the files have changed since they were indexed.
    """
    items, layout = self.check_numbers(items), self.index.layout
    if isinstance(self.windows, chunks_lib.ActionChunks):
      episode, step = self._index.episode_and_start(items)
      first = self._index.spans(items)[0] - step
      batch = self.windows.make(
          layout, self._take, first, step, self._acting[episode]
      )
    else:
      leaves, is_real = self._index.read(self.index, items)
      batch = layout.nest(self._decoded(leaves, range(len(leaves))))
      if self._with_mask:
        if is_real is None:
          is_real = np.ones([len(items), self.windows.length], bool)
        batch[_MASK] = is_real
    return batch if self.transform is None else self.transform(batch)

  def _find_spec(self, lead_of, masks) -> Any:
    specs = []
    for number, column in enumerate(self.index.layout.columns):
      dtype, shape = column.dtype, tuple(column.shape)
      if number in self._images:
        image_format = self._images[number]
        dtype, shape = image_format.dtype, (*shape, *image_format.shape)
      specs.append(Spec(dtype, (*lead_of(column), *shape)))
    nest = self.index.layout.nest(specs)
    nest.update({name: Spec('bool', shape) for name, shape in masks.items()})
    return nest

  def _take(self, rows, columns) -> List[np.ndarray]:
    """Returns columns of rows, with strings and images."""
    return self._decoded(self.index.take(rows, columns), columns)

  def _decoded(self, leaves, columns) -> List[np.ndarray]:
    """Returns columns with images, and strings, in place of their cells."""
    images = {
        place: images_lib.decode_all(
            self.index,
            leaves[place],
            self._images[number],
            self.index.layout.columns[number].name,
        )
        for place, number in enumerate(columns)
        if number in self._images
    }
    return self.index.with_strings(
        [images.get(place, leaf) for place, leaf in enumerate(leaves)]
    )


class MixedItems(SequenceOfItems):
  """The items of several data sets, one after the other.

  Fields that only some data sets have are zeros, or empty strings, in the
  others. All else must be the same.

  Attributes:
    sources: the items of each data set, by its name.
    counts: int64 `[D]`: how many items each data set has.
    spec: the nest of one item, with `Spec` leaves.
  """

  first = 0  # The number of the first item, for samplers.

  def __init__(self, sources: Mapping[str, Items]):
    """Mixes items.

    Args:
      sources: the items of each data set, by its name.

    Raises:
      ValueError: if there are none, or if a field differs between them.
    """
    if not sources:
      raise ValueError('There are no data sets to mix.')
    self.sources = dict(sources)
    self.counts = np.array([len(each) for each in sources.values()], np.int64)
    self.num_items = int(self.counts.sum())
    self._first = np.cumsum(self.counts) - self.counts
    self._specs: Dict[Any, Spec] = {}
    of: Dict[Any, str] = {}
    for name, items in self.sources.items():
      for keys, spec in tree.flatten_with_path(items.spec):
        known = self._specs.setdefault(keys, spec)
        if known != spec:
          raise ValueError(
              f'Field {"/".join(map(str, keys))} is {spec} in {name}, but'
              f' {known} in {of[keys]}. Make them the same in the function'
              ' prepare of build_index, as PadField does, or by images.'
          )
        of.setdefault(keys, name)
    specs = [items.spec for items in self.sources.values()]
    # Parts of a nest without fields have no path.
    is_one = all(_is_like(specs[0], spec) for spec in specs)
    self._template = specs[0] if is_one else None
    self.spec = self._nest(self._specs)

  def batch(self, items: Any) -> Any:
    """Returns items, stacked; see `Items.batch`."""
    items = self.check_numbers(items)
    source = np.searchsorted(self._first, items, 'right') - 1
    # A data set without items begins where the next one does.
    leaves = {
        keys: np.full(
            [len(items), *spec.shape],
            b'' if spec.dtype == 'string' else 0,
            spec.numpy_dtype,
        )
        for keys, spec in self._specs.items()
    }
    for number, each in enumerate(self.sources.values()):
      places = np.flatnonzero(source == number)
      if not len(places):
        continue
      part = each.batch(items[places] - self._first[number])
      for keys, leaf in tree.flatten_with_path(part):
        leaves[keys][places] = leaf
    return self._nest(leaves)

  def identity(self) -> Any:
    """Returns a value that differs for other items, for `fingerprint`."""
    return [[name, each.identity()] for name, each in self.sources.items()]

  def _nest(self, leaves: Mapping[Any, Any]) -> Any:
    if self._template is None:
      return _nest(leaves)
    return tree.unflatten_as(self._template, list(leaves.values()))


def _is_like(one: Any, other: Any) -> bool:
  """Returns whether two nests have the same structure."""
  try:
    tree.assert_same_structure(one, other)
  except (TypeError, ValueError):
    return False
  return True


def _nest(leaves: Mapping[Any, Any]) -> Any:
  """Returns the nest of leaves by their paths, of dicts and tuples."""
  if list(leaves) == [()]:
    return leaves[()]
  parts: Dict[Any, Dict[Any, Any]] = {}
  for keys, leaf in leaves.items():
    parts.setdefault(keys[0], {})[keys[1:]] = leaf
  nested = {key: _nest(part) for key, part in parts.items()}
  if nested and all(isinstance(key, int) for key in nested):
    return tuple(nested[key] for key in sorted(nested))
  return nested
