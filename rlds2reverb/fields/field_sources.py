"""Finds and reads the sources from which the fields of an RLDS step are made.

The docstring of `step_mapping.StepMapping` says what a source may be.
"""

import dataclasses
import numbers
import re
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

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


@dataclasses.dataclass(frozen=True)
class Field:
  """A field that a source names.

  Attributes:
    keys: its path in the `nest_of` its episode.
    columns: which numbers of a vector are taken, the first one and the one
      after the last, as in a slice; None for the whole field.
  """

  keys: paths.KeyPath
  columns: Optional[Tuple[Optional[int], Optional[int]]] = None


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


def resolve(source: Source, nest: Dict[str, Any], problems: List[str]) -> Any:
  """Returns `source` with a `Field` for every string and tuple in it.

  Args:
    source: a source.
    nest: the `nest_of` an episode, or of the spec of one.
    problems: a list to which a sentence is added for every path that does not
      exist, that can be read in more than one way, or that leads to something
      that is not a dense tensor.
  """
  if isinstance(source, dict):
    return {k: resolve(v, nest, problems) for k, v in source.items()}
  if isinstance(source, list):
    return [resolve(item, nest, problems) for item in source]
  if not isinstance(source, (str, tuple)):
    return source
  columns: Any = None
  # A key of the data may itself end like `[0:3]`.
  if isinstance(source, str) and not paths.contains(nest, source):
    parts = _COLUMNS.fullmatch(source)
    if parts:
      source, begin, end = parts.groups()
      columns = (int(begin) if begin else None, int(end) if end else None)
  keys, problem = paths.look_up(nest, source)
  if problem:
    problems.append(problem)
  else:
    problems += _what_is_not_dense(nest, keys)
  return Field(keys, columns)


def _what_is_not_dense(nest, keys) -> List[str]:
  return [
      f'{steps_lib.field_path(path)} is not a dense tensor; make it one first'
      for path, leaf in tree.flatten_with_path(nest)
      if path[: len(keys)] == keys
      and len(tf.nest.flatten(leaf, expand_composites=True)) > 1
  ]


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


def used(sources: Any) -> List[paths.KeyPath]:
  """Returns the keys of all fields that resolved sources name."""
  return [
      source.keys
      for source in tree.flatten(sources)
      if isinstance(source, Field)
  ]


def measured(steps: Any, sources: Any) -> Tuple[Any, tf.Tensor]:
  """Returns stacked steps, checked for one length, and that length.

  Args:
    steps: a dict of tensors `[T, ...]`.
    sources: a nest of resolved sources. Leaves that none of them names are not
      checked.

  Returns:
    The steps; and their number `T`, int32 `[]`.

  Raises:
    ValueError: see `stacked_steps.lengths_of`.
    InvalidArgumentError: if the leaves that are used differ in length.
  """
  named = used(sources)
  leaves = dict(tree.flatten_with_path(steps))
  found = {
      keys: (steps_lib.field_path(keys), leaf)
      for keys, leaf in leaves.items()
      if is_below(keys, named)
  }
  checked = stacked_steps.with_equal_lengths(dict(found.values()))
  leaves.update({keys: checked[name] for keys, (name, _) in found.items()})
  steps = tree.map_structure_with_path(lambda keys, _: leaves[keys], steps)
  # The shape of a ragged or sparse field does not give the length.
  dense = (
      leaf
      for leaf in [*checked.values(), *leaves.values()]
      if not isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor))
  )
  return steps, tf.shape(next(dense))[0]


def is_below(keys: paths.KeyPath, fields: Sequence[paths.KeyPath]) -> bool:
  """Returns whether a leaf is at or below one of some fields."""
  return any(keys[: len(path)] == path for path in fields)


def read(
    source: Any,
    episode: Dict[str, Any],
    length: tf.Tensor,
    cast: Callable[[tf.Tensor], tf.Tensor],
    name: str,
    episode_of_rows: Optional[tf.Tensor] = None,
) -> Any:
  """Returns the tensors of a resolved source.

  Args:
    source: what `resolve` returns for a source that is not None.
    episode: an episode with stacked steps; or a batch, as a dict of its fields
      `[E, ...]` and its steps, for a source without functions.
    length: int32 `[]`: the number of its steps, `T`.
    cast: a function that is applied to each leaf.
    name: the name of the field that is made, for error messages.
    episode_of_rows: for a batch, the episode of each step, int64 `[T]`.

  Returns:
    A nest of tensors `[T, ...]`.

  Raises:
    InvalidArgumentError: if a source is a function and returns another length.
  """
  if isinstance(source, Field):
    nest = paths.get(nest_of(episode), source.keys)
    if source.keys[0] == EPISODE:
      nest = tf.nest.map_structure(
          lambda leaf: _repeat(leaf, length)
          if episode_of_rows is None
          else tf.gather(leaf, episode_of_rows),
          nest,
      )
    if source.columns is not None:
      nest = _columns_of(nest, source)
    return tf.nest.map_structure(cast, nest)
  if isinstance(source, dict):
    return {
        key: read(value, episode, length, cast, name, episode_of_rows)
        for key, value in source.items()
    }
  if isinstance(source, list):
    parts = dict(enumerate(source))
    parts = read(parts, episode, length, cast, name, episode_of_rows)
    return _to_vectors(list(parts.values()))
  if callable(source):
    values = tf.nest.map_structure(tf.convert_to_tensor, source(episode))
    checked = stacked_steps.with_equal_lengths(
        {rlds.STEPS: tf.range(length), name: values}
    )
    return tf.nest.map_structure(cast, checked[name])
  return _repeat(tf.constant(source), length)


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
    InvalidArgumentError: as `read` does.
  """
  problems = []
  resolved = resolve(source, nest_of(episode), problems)
  if problems:
    raise ValueError(f'{name}: ' + ' '.join(problems))
  steps, length = measured(episode[rlds.STEPS], resolved)
  episode = {**episode, rlds.STEPS: steps}
  return read(resolved, episode, length, tf.identity, name)


def has_function(sources: Any) -> bool:
  """Returns whether one of resolved sources is a function, or has one in it."""
  return any(map(callable, tree.flatten(sources)))


def kind_of(stacked: Any) -> str:
  """Returns the dtype and the shape of a step of a leaf, for an error."""
  if tf.nest.is_nested(stacked):
    return 'a nest'
  return f'{stacked.dtype.name} {stacked.shape[1:]}'


def _repeat(value, length):
  # Unlike tf.broadcast_to, tf.gather accepts strings and unknown shapes.
  return tf.gather(value[tf.newaxis], tf.zeros([length], tf.int32))


def _columns_of(leaf, source):
  """Returns some columns of a field of vectors, `[T, D]`."""
  name = steps_lib.field_path(source.keys)
  leaf = tf.nest.map_structure(tf.convert_to_tensor, leaf)
  if tf.nest.is_nested(leaf) or leaf.shape.rank != 2:
    raise ValueError(
        f'Only of a vector some numbers can be taken, but {name} is'
        f' {kind_of(leaf)}.'
    )
  begin, end = source.columns
  size = leaf.shape[1]
  taken = leaf[:, begin:end]
  bounds = [abs(bound) for bound in source.columns if bound is not None]
  if size is not None and (max(bounds, default=0) > size or not taken.shape[1]):
    ends = ':'.join('' if end is None else str(end) for end in source.columns)
    raise ValueError(
        f'{name} has {size} numbers, so [{ends}] of it cannot be taken.'
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
