"""Items of an index: windows of its episodes, each found by its number."""

import dataclasses
from typing import (
    Any,
    Callable,
    Dict,
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
from rlds2reverb.random_access import images as images_lib
from rlds2reverb.random_access import index as index_lib
from rlds2reverb.random_access import references
from rlds2reverb.random_access import row_layout

# The names of `rlds` and of `windows.stacking`, whose modules use TensorFlow.
_OBSERVATION, _ACTION = 'observation', 'action'
_OBSERVATION_MASK, _ACTION_MASK = 'observation_mask', 'action_mask'
_MASK = 'mask'
_HAS_ACTION = 'has_action'
# The step types of a frame of padding, as TF-Agents' observers pad.
_BOUNDARY = {'step_type': 2, 'next_step_type': 0}

_COUNTED_EPISODES = _COUNTED_ROWS = 1 << 16

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
    return row_layout.numpy_dtype(self.dtype)

  def __str__(self):
    return f'{self.dtype} {self.shape}'


class Items:
  """The windows of an index, as a sequence.

  It has what a map-style `Dataset` of PyTorch and a `RandomAccessDataSource` of
  Grain need: `len(items)`, `items[i]`, and many at once. An item is a nest of
  NumPy arrays; nothing is stored twice.

      images = {'observation/eye': (64, 64)}
      items = Items(index, ActionChunks(2, 4), images=images)
      items[7]['observation']['eye']  # uint8 [2, 64, 64, 3]

  Attributes:
    index: the index.
    windows: `ActionChunks`, of steps; or `Windows`, of steps or of the frames
      of trajectories.
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
      ValueError: if the index has no such fields, or is one of frames, of which
        no `ActionChunks` are made.
    """
    self.index = index
    self.windows = windows
    # One of the two.
    self._windows: Any = None
    self._chunks: Any = None
    self._images = images_lib.formats_of(images or {}, index.layout.columns)
    self._with_mask = with_mask
    self._transform = transform
    lengths = index.lengths
    if isinstance(windows, action_chunks.ActionChunks):
      self._chunks = windows
      self._check_chunks(windows)
    else:
      windows_lib.check_windows(windows)
      self._windows = windows
      if windows.crosses_episodes:
        lengths = np.array([lengths.sum()], np.int64)
    self._lengths = lengths
    self._spec: Any = None
    # How many steps have an action.
    self._acting = self._count_acting() if self._chunks else lengths
    self._first_row = np.cumsum(lengths) - lengths
    self._first_item = np.concatenate([[0], np.cumsum(self._counts())])

  def __len__(self) -> int:
    return int(self._first_item[-1])

  def __getitem__(self, item: int) -> Any:
    return unstack(self.batch([item]), 1)[0]

  def __getitems__(self, items: Sequence[int]) -> List[Any]:
    return unstack(self.batch(items), len(items))

  @property
  def spec(self) -> Any:
    """The nest of one item, with `Spec` leaves."""
    if self._spec is None:
      self._spec = self._find_spec()
    return self._spec

  def identity(self) -> Any:
    """Returns what tells these items from others, for `fingerprint`."""
    return [
        self.index.fingerprint,
        self.windows,
        sorted(self._images.items()),
        self._with_mask,
        self._transform,
    ]

  def episode_and_start(self, items: Any) -> Tuple[np.ndarray, np.ndarray]:
    """Returns the episode of items, and at which row of it each one starts.

    Args:
      items: their numbers `[B]`.

    Returns:
      Both int64 `[B]`. An item of `ActionChunks` starts at the step itself.
    """
    items = check_numbers(items, len(self))
    episode = np.searchsorted(self._first_item, items, 'right') - 1
    start = items - self._first_item[episode]
    if self._windows:
      start = start * self._windows.stride
      if self._windows.end == windows_lib.EndOfEpisode.OVERLAP:
        latest = self._lengths[episode] - self._windows.length
        start = np.minimum(start, np.maximum(latest, 0))
    return episode, start

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
    """Returns weights of items by which an episode is drawn, then one of it.

    Args:
      weights: the weight of each episode `[E]`; by default all are alike.

    Returns:
      float64 `[len]`, for `Batches`.
    """
    counts = np.diff(self._first_item)
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
      OSError: if the files are not those that were indexed.
    """
    episode, start = self.episode_and_start(items)
    first, length = self._first_row[episode], self._lengths[episode]
    if self._chunks:
      batch = self._make_chunks(first, start, self._acting[episode])
    else:
      batch = self._make_windows(first, start, length)
    return batch if self._transform is None else self._transform(batch)

  def _counts(self) -> np.ndarray:
    """Returns how many items each episode has."""
    if self._chunks:
      return self._lengths if self._chunks.last_steps else self._acting
    counts = []
    for begin in range(0, len(self._lengths), _COUNTED_EPISODES):
      part = self._lengths[begin : begin + _COUNTED_EPISODES]
      found = self._windows.find(part).episode
      counts.append(np.bincount(found, minlength=len(part)))
    return np.concatenate([*counts, np.zeros(0, np.int64)])

  def _count_acting(self) -> np.ndarray:
    """Returns how many steps of each episode have an action."""
    lengths = self._lengths
    if _HAS_ACTION not in self.index.layout.structure:
      return np.maximum(lengths - 1, 0)
    number = self.index.layout.structure[_HAS_ACTION]
    ends = np.cumsum(lengths)
    counts = np.zeros(len(lengths), np.int64)
    for begin in range(0, self.index.num_rows, _COUNTED_ROWS):
      rows = np.arange(begin, min(begin + _COUNTED_ROWS, ends[-1]))
      [has_action] = self.index.read(rows, [number])
      np.add.at(counts, np.searchsorted(ends, rows[has_action], 'right'), 1)
    return counts

  def _check_chunks(self, chunks):
    structure = self.index.layout.structure
    if self.index.is_trajectory:
      raise ValueError(
          'ActionChunks are made of steps, but the index has the frames of'
          ' trajectories: build it without as_trajectories.'
      )
    for name in (_OBSERVATION, _ACTION, chunks.goal_step):
      if name is not None and name not in structure:
        raise ValueError(
            f'ActionChunks need a field {name}, but steps have'
            f' {sorted(structure)}. Map the fields in the function prepare of'
            ' build_index.'
        )
    for name in (_OBSERVATION_MASK, _ACTION_MASK):
      if name in structure:
        raise ValueError(f'There is a field {name} already. Rename it.')

  def _make_windows(self, first, start, length) -> Any:
    rows = start[:, np.newaxis] + np.arange(self._windows.length)
    mask = rows < length[:, np.newaxis]
    rows = first[:, np.newaxis] + np.minimum(rows, length[:, np.newaxis] - 1)
    columns = self.index.layout.columns
    leaves = self._read(rows, range(len(columns)))
    if self._windows.fill != 'repeat':
      for column, leaf in zip(columns, leaves):
        leaf[~mask] = b'' if leaf.dtype == object else 0
        if self.index.is_trajectory and column.name in _BOUNDARY:
          leaf[~mask] = _BOUNDARY[column.name]
    nest = self.index.layout.nest(leaves)
    return {**nest, _MASK: mask} if self._with_mask else nest

  def _make_chunks(self, first, step, stop) -> Dict[str, Any]:
    chunks, layout = self._chunks, self.index.layout
    of: Dict[str, List[int]] = {_OBSERVATION: [], _ACTION: [], '': []}
    for number, column in enumerate(layout.columns):
      name = column.keys[0]
      of[name if name in of else ''].append(number)
    found: Dict[int, np.ndarray] = {}
    frames = chunks.frames(step)
    rows = first[:, np.newaxis] + np.maximum(frames, 0)
    found.update(zip(of[_OBSERVATION], self._read(rows, of[_OBSERVATION])))
    found.update(zip(of[''], self._read(first + step, of[''])))
    actions, past = chunks.actions(step), stop[:, np.newaxis, np.newaxis]
    rows = np.minimum(actions, np.maximum(past - 1, 0))
    rows += first[:, np.newaxis, np.newaxis]
    found.update(zip(of[_ACTION], self._read(rows, of[_ACTION])))
    if chunks.fill != 'repeat':
      beyond = actions >= past
      fill = 0 if chunks.fill == 'zeros' else chunks.fill
      for number in of[_ACTION]:
        is_text = found[number].dtype == object
        found[number][beyond] = b'' if is_text else fill
    nest = layout.nest([found[number] for number in range(len(found))])
    goal = chunks.goal_step and nest[chunks.goal_step]
    nest[_OBSERVATION_MASK] = frames >= 0
    nest[_ACTION_MASK] = chunks.action_mask(step, stop, goal)
    return nest

  def _find_spec(self) -> Any:
    specs = []
    for number, column in enumerate(self.index.layout.columns):
      spec = Spec(column.dtype, tuple(column.shape))
      if number in self._images:
        image_format = self._images[number]
        shape = *spec.shape, *image_format.shape
        spec = Spec(image_format.dtype, shape)
      lead: Tuple[int, ...] = ()
      if self._windows:
        lead = (self._windows.length,)
      elif column.keys[0] in (_OBSERVATION, _ACTION):
        lead = (self._chunks.num_frames,)
        if column.keys[0] == _ACTION:
          lead = (*lead, self._chunks.num_actions)
      specs.append(Spec(spec.dtype, (*lead, *spec.shape)))
    nest = self.index.layout.nest(specs)
    if self._with_mask:
      nest[_MASK] = Spec('bool', (self._windows.length,))
    if self._chunks:
      frames, actions = self._chunks.num_frames, self._chunks.num_actions
      nest[_OBSERVATION_MASK] = Spec('bool', (frames,))
      nest[_ACTION_MASK] = Spec('bool', (frames, actions))
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
