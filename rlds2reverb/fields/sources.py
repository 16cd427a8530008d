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
    Tuple,
    Union,
)

import tensorflow as tf
import tree

from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.episodes import steps as steps_lib

Source = Union[
    None,
    str,
    Tuple[Any, ...],
    Dict[str, Any],
    List[Any],
    numbers.Number,
    Callable[[Dict[str, Any]], Any],
]

EPISODE = '..'

_COLUMNS = re.compile(r'(.+)\[(-?\d*):(-?\d*)\]')


class Rows(NamedTuple):
  """The steps that sources are read from, of one episode or of a batch.

  Attributes:
    episode: the episode with stacked steps; or, of a batch, its steps and the
      other fields `[E, ...]`.
    length: int32 `[]`: the number of all steps, `T`.
    cast: a function that is applied to each leaf of the data.
    episode_of_rows: of a batch, the episode of each step, int64 `[T]`.
  """

  episode: Dict[str, Any]
  length: tf.Tensor
  cast: Callable[[tf.Tensor], tf.Tensor] = tf.identity
  episode_of_rows: Optional[tf.Tensor] = None

  def repeat(self, leaf: tf.Tensor) -> tf.Tensor:
    """Returns a leaf of the episode for each of its steps, `[T, ...]`."""
    if self.episode_of_rows is None:
      return _repeated(leaf, self)
    return tf.gather(leaf, self.episode_of_rows)


class Reader(NamedTuple):
  """How the tensors of a source are read.

  Attributes:
    used: the keys, in the `nest_of` an episode, of the fields that it names.
    calls: whether it calls a function, which takes one episode.
    read: a function from `Rows` to a nest of tensors `[T, ...]`. It raises an
      InvalidArgumentError if a function returns another length.
  """

  used: Tuple[paths.KeyPath, ...]
  calls: bool
  read: Callable[[Rows], Any]


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


def reader_of(
    source: Source, nest: Dict[str, Any], problems: List[str], name: str
) -> Reader:
  """Returns how a source is read.

  Args:
    source: a source, but not None.
    nest: the `nest_of` an episode, or of the spec of one.
    problems: a list to which a sentence is added for every path that does not
      exist, that can be read in more than one way, or that leads to something
      that is not a dense tensor.
    name: the name of the field that is made, for error messages.
  """
  if isinstance(source, (dict, list)):
    items = source.items() if isinstance(source, dict) else enumerate(source)
    parts = {key: reader_of(part, nest, problems, name) for key, part in items}

    def read_parts(rows):
      found = {key: part.read(rows) for key, part in parts.items()}
      return found if isinstance(source, dict) else _to_vectors(found)

    return Reader(
        tuple(keys for part in parts.values() for keys in part.used),
        any(part.calls for part in parts.values()),
        read_parts,
    )
  if isinstance(source, (str, tuple)):
    return _reader_of_path(source, nest, problems)
  if not callable(source):
    return Reader((), False, lambda rows: _repeated(tf.constant(source), rows))

  def call(rows):
    values = tf.nest.map_structure(tf.convert_to_tensor, source(rows.episode))
    checked = stacked_steps.with_equal_lengths(
        {rlds.STEPS: tf.range(rows.length), name: values}
    )
    return tf.nest.map_structure(rows.cast, checked[name])

  return Reader((), True, call)


def _reader_of_path(path, nest, problems) -> Reader:
  """Returns how a field is read; `columns` are some numbers of a vector."""
  columns: Any = None
  # A key of the data may itself end like `[0:3]`.
  if isinstance(path, str) and not paths.contains(nest, path):
    parts = _COLUMNS.fullmatch(path)
    if parts:
      path, *ends = parts.groups()
      columns = slice(*(int(end) if end else None for end in ends))
  keys, problem = paths.look_up(nest, path)
  if problem:
    problems.append(problem)
    return Reader((), False, lambda rows: None)
  problems += [
      f'{steps_lib.field_path(below)} is not a dense tensor; make it one first'
      for below, leaf in tree.flatten_with_path(nest)
      if is_below(below, [keys])
      and len(tf.nest.flatten(leaf, expand_composites=True)) > 1
  ]

  def read(rows):
    found = paths.get(nest_of(rows.episode), keys)
    if keys[0] == EPISODE:
      found = tf.nest.map_structure(rows.repeat, found)
    if columns is not None:
      found = _columns_of(found, steps_lib.field_path(keys), columns)
    return tf.nest.map_structure(rows.cast, found)

  return Reader((keys,), False, read)


def read_alone(source: Source, episode: Dict[str, Any], name: str) -> Any:
  """Returns the tensors of a source that is a part of another source.

  Args:
    source: a source.
    episode: an episode with stacked steps.
    name: the name of the result, for error messages.

  Returns:
    A nest of tensors `[T, ...]`.

  Raises:
    ValueError: if the source does not fit the episode.
    InvalidArgumentError: as a `Reader` does.
  """
  problems: List[str] = []
  reader = reader_of(source, nest_of(episode), problems, name)
  if problems:
    raise ValueError(f'{name}: ' + ' '.join(problems))
  return reader.read(measured(episode, reader.used))


def measured(episode: Dict[str, Any], used: Iterable[paths.KeyPath]) -> Rows:
  """Returns the rows of stacked steps, checked for one length.

  Args:
    episode: see `Rows`.
    used: the keys of the fields that are used. Other leaves are not checked.

  Raises:
    ValueError: see `stacked_steps.lengths_of`.
    InvalidArgumentError: if the leaves that are used differ in length.
  """
  used = list(used)
  leaves = dict(tree.flatten_with_path(episode[rlds.STEPS]))
  names = {
      keys: steps_lib.field_path(keys)
      for keys in leaves
      if is_below(keys, used)
  }
  checked = stacked_steps.with_equal_lengths(
      {name: leaves[keys] for keys, name in names.items()}
  )
  leaves.update({keys: checked[name] for keys, name in names.items()})
  steps = tree.map_structure_with_path(
      lambda keys, _: leaves[keys], episode[rlds.STEPS]
  )
  # The shape of a ragged or sparse field does not give the length.
  dense = (
      leaf
      for leaf in [*checked.values(), *leaves.values()]
      if not isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor))
  )
  return Rows({**episode, rlds.STEPS: steps}, tf.shape(next(dense))[0])


def is_below(keys: paths.KeyPath, fields: Iterable[paths.KeyPath]) -> bool:
  """Returns whether a leaf is at or below one of some fields."""
  return any(keys[: len(path)] == path for path in fields)


def describe(episode: Dict[str, Any]) -> List[str]:
  """Returns a line with the path, dtype and shape of each leaf of `nest_of`."""
  stacked = not isinstance(
      episode[rlds.STEPS], (tf.data.Dataset, tf.data.DatasetSpec)
  )
  lines = []
  for keys, leaf in tree.flatten_with_path(nest_of(episode)):
    line = steps_lib.field_path(keys)
    if hasattr(leaf, 'shape'):
      shape = tf.TensorShape(leaf.shape)
      if stacked and keys[0] != EPISODE:
        shape = shape[1:]
      line += f': {leaf.dtype.name} {shape}'
    lines.append(line)
  return lines


def _repeated(value, rows):
  # Unlike tf.broadcast_to, tf.gather accepts strings and unknown shapes.
  return tf.gather(value[tf.newaxis], tf.zeros([rows.length], tf.int32))


def kind_of(stacked: Any) -> str:
  """Returns the dtype and the shape of a step of a leaf, for an error."""
  if tf.nest.is_nested(stacked):
    return 'a nest'
  return f'{stacked.dtype.name} {stacked.shape[1:]}'


def _columns_of(leaf, name, columns):
  """Returns some columns of a field of vectors, `[T, D]`."""
  leaf = tf.nest.map_structure(tf.convert_to_tensor, leaf)
  if tf.nest.is_nested(leaf) or leaf.shape.rank != 2:
    raise ValueError(
        f'Only of a vector some numbers can be taken, but {name} is'
        f' {kind_of(leaf)}.'
    )
  size = leaf.shape[1]
  taken = leaf[:, columns]
  ends = [columns.start, columns.stop]
  furthest = max((abs(end) for end in ends if end is not None), default=0)
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
  return tf.concat(
      [
          tf.reshape(tf.cast(leaf, dtype), [-1, size])
          for leaf, size in zip(leaves, sizes)
      ],
      axis=1,
  )
