"""Finds and reads the sources from which the fields of an RLDS step are made.

The docstring of `step_mapping.StepMapping` says what a source may be.
"""

import numbers
import re
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

import tensorflow as tf
import tree

from rlds2reverb.episodes import episode_batches
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.episodes import steps as steps_lib

Source = Union[
    None, str, Tuple[Any, ...], dict, list, numbers.Number, Callable[..., Any]
]

EPISODE = '..'

_COLUMNS = re.compile(r'(.+)\[(-?\d*):(-?\d*)\]')


class Derived:
  """A source that is derived from another one, its only attribute."""

  def derive(self, value: Any, rows: 'Rows') -> tf.Tensor:
    """Returns the field for all rows, `[T, ...]`.

    Args:
      value: the tensors of the other source, a nest of `[T, ...]`.
      rows: the steps.
    """
    raise NotImplementedError


class Rows(NamedTuple):
  """The steps that sources are read from, of one episode or of a batch.

  Attributes:
    episode: the episode with stacked steps; or, of a batch, its steps and the
      other fields `[E, ...]`.
    row_splits: int64 `[E + 1]`, as in `EpisodeBatch`.
    first: bool `[T]`: which steps are the first ones by their position.
    last: bool `[T]`: which steps are the last ones by their position.
    episode_of_rows: of a batch, the episode of each step, int64 `[T]`.
  """

  episode: Dict[str, Any]
  row_splits: tf.Tensor
  first: tf.Tensor
  last: tf.Tensor
  episode_of_rows: Optional[tf.Tensor]

  def repeat(self, value: tf.Tensor) -> tf.Tensor:
    """Returns one value for each step, `[T, ...]`."""
    # Unlike tf.broadcast_to, tf.gather accepts strings and unknown shapes.
    return tf.gather(value[tf.newaxis], tf.zeros_like(self.first, tf.int32))

  def of_episode(self, leaf: tf.Tensor) -> tf.Tensor:
    """Returns the value of each step's episode, `[T, ...]`."""
    if self.episode_of_rows is None:
      return self.repeat(leaf)
    return tf.gather(leaf, self.episode_of_rows)


_Reader = Callable[[Rows], Any]
_Cast = Callable[[tf.Tensor], tf.Tensor]


class Finder:
  """Finds sources in the fields of a data set, and makes their readers.

  Attributes:
    used: the keys of all fields that are read.
    problems: a sentence for every path that does not exist or that can be read
      in more than one way. Then the readers cannot be used.
    calls_functions: whether a source is a function.
  """

  def __init__(self, episode: Dict[str, Any]):
    """Creates the finder for an episode, or for the spec of one."""
    self.used: List[paths.KeyPath] = []
    self.problems: List[str] = []
    self.calls_functions = False
    self._nest = nest_of(episode)

  def reader_of(self, source: Source, name: str, cast: _Cast) -> _Reader:
    """Returns a function that reads a source, a nest of `[T, ...]`.

    Args:
      source: a source, but not None.
      name: the name of the field that is made, for error messages.
      cast: a function that is applied to each leaf of the data.
    """
    if isinstance(source, dict):
      parts = {k: self.reader_of(v, name, cast) for k, v in source.items()}
      return lambda rows: {key: read(rows) for key, read in parts.items()}
    if isinstance(source, list):
      vectors = [self.reader_of(part, name, cast) for part in source]
      return lambda rows: _to_vectors([read(rows) for read in vectors])
    if isinstance(source, (str, tuple)):
      read = self._reader_of_path(source)
    elif isinstance(source, Derived):
      (of,) = vars(source).values()
      value = self.reader_of(of, name, tf.identity)
      read = lambda rows: source.derive(value(rows), rows)
    elif callable(source):
      self.calls_functions = True
      read = lambda rows: _called(source, rows, name)
    else:
      return lambda rows: rows.repeat(tf.constant(source))
    return lambda rows: tf.nest.map_structure(cast, read(rows))

  def _reader_of_path(self, path) -> _Reader:
    columns = None
    # A key of the data may itself end like `[0:3]`.
    if isinstance(path, str) and not paths.contains(self._nest, path):
      parts = _COLUMNS.fullmatch(path)
      if parts:
        path, *ends = parts.groups()
        columns = slice(*(int(end) if end else None for end in ends))
    keys, problem = paths.look_up(self._nest, path)
    if problem:
      self.problems.append(problem)
    else:
      self.used.append(keys)

    def read(rows):
      found = paths.get(nest_of(rows.episode), keys)
      if keys[0] == EPISODE:
        found = tf.nest.map_structure(rows.of_episode, found)
      if columns is None:
        return found
      return _columns_of(found, steps_lib.field_path(keys), columns)

    return read


def nest_of(episode: Dict[str, Any]) -> Dict[str, Any]:
  """Returns a dict of a step's fields, with the episode's fields at `..`.

  Args:
    episode: an episode, or the spec of one.

  Raises:
    ValueError: if a step is not a dict.
  """
  steps = episode[rlds.STEPS]
  if isinstance(steps, (tf.data.Dataset, tf.data.DatasetSpec)):
    steps = steps.element_spec
  if not isinstance(steps, dict):
    raise ValueError(
        f'A step must be a dict of fields, but is a {type(steps).__name__}.'
    )
  metadata = {k: v for k, v in episode.items() if k != rlds.STEPS}
  return {**steps, EPISODE: metadata}


def rows_of(
    episode: Dict[str, Any],
    used: Sequence[paths.KeyPath],
    row_splits: Optional[tf.Tensor] = None,
) -> Rows:
  """Returns the rows of stacked steps, checked for one length.

  Args:
    episode: see `Rows`.
    used: the keys of the fields that are used. Other leaves are not checked.
    row_splits: those of a batch; None for an episode. Of a single episode, a
      field that is not used may be longer than others.

  Raises:
    ValueError: see `stacked_steps.lengths_of`.
    InvalidArgumentError: if the leaves that are used differ in length.
  """
  leaves = dict(tree.flatten_with_path(episode[rlds.STEPS]))
  names = {
      steps_lib.field_path(keys): keys
      for keys in leaves
      if is_below(keys, used)
  }
  checked = stacked_steps.with_equal_lengths(
      {name: leaves[keys] for name, keys in names.items()}
  )
  leaves.update({names[name]: leaf for name, leaf in checked.items()})
  steps = tree.unflatten_as(episode[rlds.STEPS], list(leaves.values()))
  # The shape of a ragged or sparse field does not give the length.
  all_leaves = [*checked.values(), *leaves.values()]
  dense = (leaf for leaf in all_leaves if not steps_lib.is_composite(leaf))
  length = tf.shape(next(dense), tf.int64)[0]
  owner, splits = None, tf.stack([0, length])
  if row_splits is not None:
    splits = tf.minimum(row_splits, length)
    owner = episode_batches.episode_of_rows(splits)
  begins = episode_batches.count_begins(splits, length + 1) > 0
  episode = {**episode, rlds.STEPS: steps}
  return Rows(episode, splits, begins[:-1], begins[1:], owner)


def is_below(keys: paths.KeyPath, fields: Iterable[paths.KeyPath]) -> bool:
  """Returns whether a leaf is at or below one of some fields."""
  return any(keys[: len(path)] == path for path in fields)


def describe(episode: Dict[str, Any]) -> List[str]:
  """Returns a line with the path, dtype and shape of each leaf of `nest_of`."""
  is_stacked = isinstance(episode[rlds.STEPS], dict)
  lines = []
  for keys, leaf in tree.flatten_with_path(nest_of(episode)):
    first = int(is_stacked and keys[0] != EPISODE)
    shape = getattr(leaf, 'shape', None)
    kind = '' if shape is None else f': {leaf.dtype.name} {shape[first:]}'
    lines.append(f'{steps_lib.field_path(keys)}{kind}')
  return lines


def kind_of(stacked: Any) -> str:
  """Returns the dtype and the shape of a step of a leaf, for an error."""
  if tf.nest.is_nested(stacked):
    return 'a nest'
  return f'{stacked.dtype.name} {stacked.shape[1:]}'


def _called(function, rows, name):
  """Returns the tensors of a source that is a function of the episode."""
  made = graphs.as_user_code(function)(rows.episode)
  made = tf.nest.map_structure(tf.convert_to_tensor, made)
  checked = {rlds.STEPS: rows.first, name: made}
  return stacked_steps.with_equal_lengths(checked)[name]


def _columns_of(leaf, name, columns):
  """Returns some columns of a field of vectors, `[T, D]`."""
  leaf = tf.nest.map_structure(tf.convert_to_tensor, leaf)
  if tf.nest.is_nested(leaf) or leaf.shape.rank != 2:
    raise ValueError(
        f'Only of a vector some numbers can be taken, but {name} is'
        f' {kind_of(leaf)}.'
    )
  size, taken = leaf.shape[1], leaf[:, columns]
  ends = [columns.start, columns.stop]
  furthest = max(abs(end or 0) for end in ends)
  if size is not None and (furthest > size or not taken.shape[1]):
    text = ':'.join('' if end is None else str(end) for end in ends)
    raise ValueError(
        f'{name} has {size} numbers, so [{text}] of it cannot be taken.'
    )
  return taken


def _to_vectors(values):
  """Concatenates all leaves of `values`, `[T, ...]`, to vectors `[T, D]`."""
  leaves = tf.nest.flatten(values)
  dtypes = {leaf.dtype for leaf in leaves}
  floats = [dtype for dtype in dtypes if dtype.is_floating]
  sizes = [leaf.shape[1:].num_elements() for leaf in leaves]
  if None in sizes or tf.string in dtypes or not (floats or len(dtypes) == 1):
    raise ValueError(
        'Only numbers of known shapes, all of one dtype or some of them floats,'
        ' can be concatenated to a vector, but there are '
        + ', '.join(map(kind_of, leaves))
    )
  dtype = max(floats, key=lambda d: d.size) if floats else leaves[0].dtype
  vectors = [
      tf.reshape(tf.cast(leaf, dtype), [-1, size])
      for leaf, size in zip(leaves, sizes)
  ]
  return tf.concat(vectors, axis=1)
