"""Items of an index: windows of its episodes, each found by its number."""

import dataclasses
from typing import (
    Any,
    Callable,
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
from rlds2reverb.random_access import action_chunks
from rlds2reverb.random_access import chunk_items
from rlds2reverb.random_access import images as images_lib
from rlds2reverb.random_access import index as index_lib
from rlds2reverb.random_access import window_items
from rlds2reverb.store import layout as layout_lib
from rlds2reverb.store import references

Images = Mapping[str, Union[Tuple[int, int], images_lib.ImageFormat]]


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


class Items:
  """The windows of an index, as a sequence.

  It serves as a map-style `Dataset` of PyTorch or a `RandomAccessDataSource` of
  Grain: it has `len(items)`, `items[i]` and, for many at once, `batch`. An item
  is a nest of NumPy arrays; nothing is stored twice.

      images = {'observation/eye': (64, 64)}
      items = Items(index, ActionChunks(2, 4), images=images)
      items[7]['observation']['eye']  # uint8 [2, 64, 64, 3]

  Attributes:
    index: the index.
    windows: `ActionChunks`, of steps; or `Windows`, of steps or of the frames
      of trajectories.
    transform: the function that is applied to batches, such as a `Normalizer`,
      whose `invert` undoes it for a policy's actions.
  """

  def __init__(
      self,
      index: index_lib.Index,
      windows: Union[action_chunks.ActionChunks, windows_lib.Windows],
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
      ValueError: if the index has no such fields, or if `windows` is
        `ActionChunks` but the index is one of frames.
    """
    self.index = index
    self.windows = windows
    self._images = images_lib.formats_of(images or {}, index.layout.columns)
    self._with_mask = with_mask
    self.transform = transform
    if isinstance(windows, action_chunks.ActionChunks):
      self._kind: Any = chunk_items.ChunkItems(index, windows)
    else:
      self._kind = window_items.WindowItems(index, windows, with_mask)
    self._spec = self._find_spec()
    self._first_row = np.cumsum(self._kind.lengths) - self._kind.lengths
    self._first_item = np.concatenate([[0], np.cumsum(self._kind.counts)])

  def __len__(self) -> int:
    return int(self._first_item[-1])

  def __getitem__(self, item: int) -> Any:
    return unstack(self.batch([item]), 1)[0]

  def __getitems__(self, items: Sequence[int]) -> List[Any]:
    return unstack(self.batch(items), len(items))

  @property
  def spec(self) -> Any:
    """The nest of one item, with `Spec` leaves."""
    return self._spec

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
    items = check_numbers(items, len(self))
    episode = np.searchsorted(self._first_item, items, 'right') - 1
    return episode, self._kind.starts(
        episode, items - self._first_item[episode]
    )

  def column(self, path: str) -> np.ndarray:
    """Returns a field of the first step of each item, `[len, ...]`.

    Args:
      path: the path of numbers, such as `'reward'`.
    """
    names = [column.name for column in self.index.layout.columns]
    checks.check_choice('path', path, names)
    episode, start = self.episode_and_start(np.arange(len(self)))
    rows = self._first_row[episode] + start
    return self.index.read(rows, [names.index(path)])[0]

  def episode_weights(self, weights: Optional[Any] = None) -> np.ndarray:
    """Returns weights of items that draw an episode first, and then an item.

    Args:
      weights: the weight of each episode `[E]`; by default all are equal.

    Returns:
      float64 `[len]`, for `Batches`.
    """
    counts = self._kind.counts
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
    episode, start = self.episode_and_start(items)
    batch = self._kind.make(
        self._read, episode, self._first_row[episode], start
    )
    return batch if self.transform is None else self.transform(batch)

  def _find_spec(self) -> Any:
    specs = []
    for number, column in enumerate(self.index.layout.columns):
      spec = Spec(column.dtype, tuple(column.shape))
      if number in self._images:
        image_format = self._images[number]
        shape = *spec.shape, *image_format.shape
        spec = Spec(image_format.dtype, shape)
      lead = self._kind.lead(column)
      specs.append(Spec(spec.dtype, (*lead, *spec.shape)))
    nest = self.index.layout.nest(specs)
    for name, shape in self._kind.masks.items():
      nest[name] = Spec('bool', shape)
    return nest

  def _read(self, rows, columns) -> List[np.ndarray]:
    """Returns columns of rows, with strings and images."""
    leaves = self.index.read(rows, columns)
    for place, number in enumerate(columns):
      if number in self._images:
        name = self.index.layout.columns[number].name
        leaves[place] = images_lib.decode_all(
            self.index, leaves[place], self._images[number], name
        )
      elif leaves[place].dtype == references.CELL:
        leaves[place] = self.index.strings(leaves[place])
    return leaves


def unstack(batch: Any, count: int) -> List[Any]:
  """Returns the items of a batch."""
  return [
      tree.map_structure(lambda leaf, place=place: leaf[place], batch)
      for place in range(count)
  ]


def check_numbers(items: Any, count: int) -> np.ndarray:
  """Returns the numbers of items, from 0 up, int64 `[B]`.

  Args:
    items: numbers from `-count` to `count - 1`.
    count: how many items there are.

  Raises:
    IndexError: if there is no such item.
  """
  items = np.asarray(items, np.int64)
  wrong = (items < -count) | (items >= count)
  if wrong.any():
    raise IndexError(f'There is no item {items[wrong][0]}: there are {count}.')
  return np.where(items < 0, items + count, items)
