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
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
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
    None, str, Tuple[Any, ...], dict, list, numbers.Number, Callable[..., Any]
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


def parts_of(source: Source) -> Iterator[Source]:
  """Yields the paths, functions and constants in a source."""
  if isinstance(source, (dict, list)):
    for part in source.values() if isinstance(source, dict) else source:
      yield from parts_of(part)
  else:
    yield source


def find(
    source: Source, nest: Dict[str, Any]
) -> Tuple[List[paths.KeyPath], List[str]]:
  """Finds the fields of the data that a source names.

  Args:
    source: a source, but not None.
    nest: the `nest_of` an episode, or of the spec of one.

  Returns:
    The keys of the fields; and a sentence for every path that does not exist,
    that can be read in more than one way, or that leads to something that is
    not a dense tensor.
  """
  used, problems = [], []
  for part in parts_of(source):
    if not isinstance(part, (str, tuple)):
      continue
    keys, problem, _ = _look_up(nest, part)
    if problem:
      problems.append(problem)
      continue
    used.append(keys)
    for below, leaf in tree.flatten_with_path(nest):
      if is_below(below, [keys]) and steps_lib.is_composite(leaf):
        name = steps_lib.field_path(below)
        problems.append(f'{name} is not a dense tensor; make it one first')
  return used, problems


def _look_up(nest, path):
  """Returns the keys of a path, what is wrong with it, and the columns."""
  columns = None
  # A key of the data may itself end like `[0:3]`.
  if isinstance(path, str) and not paths.contains(nest, path):
    parts = _COLUMNS.fullmatch(path)
    if parts:
      path, *ends = parts.groups()
      columns = slice(*(int(end) if end else None for end in ends))
  return (*paths.look_up(nest, path), columns)


def read(source: Source, rows: Rows, name: str) -> Any:
  """Returns the tensors of a source that fits, a nest of `[T, ...]`.

  Args:
    source: a source, but not None.
    rows: the steps.
    name: the name of the field that is made, for error messages.

  Raises:
    InvalidArgumentError: if a function returns another length.
  """
  if isinstance(source, dict):
    return {key: read(part, rows, name) for key, part in source.items()}
  if isinstance(source, list):
    return _to_vectors([read(part, rows, name) for part in source])
  if isinstance(source, (str, tuple)):
    nest = nest_of(rows.episode)
    keys, _, columns = _look_up(nest, source)
    found = paths.get(nest, keys)
    if keys[0] == EPISODE:
      found = tf.nest.map_structure(rows.repeat, found)
    if columns is not None:
      found = _columns_of(found, steps_lib.field_path(keys), columns)
  elif callable(source):
    found = tf.nest.map_structure(tf.convert_to_tensor, source(rows.episode))
    found = stacked_steps.with_equal_lengths(
        {rlds.STEPS: tf.range(rows.length), name: found}
    )[name]
  else:
    return _repeated(tf.constant(source), rows)
  return tf.nest.map_structure(rows.cast, found)


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
  used, problems = find(source, nest_of(episode))
  if problems:
    raise ValueError(f'{name}: ' + ' '.join(problems))
  return read(source, measured(episode, used), name)


def measured(episode: Dict[str, Any], used: Sequence[paths.KeyPath]) -> Rows:
  """Returns the rows of stacked steps, checked for one length.

  Args:
    episode: see `Rows`.
    used: the keys of the fields that are used. Other leaves are not checked.

  Raises:
    ValueError: see `stacked_steps.lengths_of`.
    InvalidArgumentError: if the leaves that are used differ in length.
  """
  leaves = dict(tree.flatten_with_path(episode[rlds.STEPS]))
  are_used = [keys for keys in leaves if is_below(keys, used)]
  names = {steps_lib.field_path(keys): keys for keys in are_used}
  checked = stacked_steps.with_equal_lengths(
      {name: leaves[keys] for name, keys in names.items()}
  )
  leaves.update({keys: checked[name] for name, keys in names.items()})
  steps = tree.map_structure_with_path(
      lambda keys, _: leaves[keys], episode[rlds.STEPS]
  )
  # The shape of a ragged or sparse field does not give the length.
  dense = (
      leaf
      for leaf in [*checked.values(), *leaves.values()]
      if not steps_lib.is_composite(leaf)
  )
  return Rows({**episode, rlds.STEPS: steps}, tf.shape(next(dense))[0])


def is_below(keys: paths.KeyPath, fields: Iterable[paths.KeyPath]) -> bool:
  """Returns whether a leaf is at or below one of some fields."""
  return any(keys[: len(path)] == path for path in fields)


def describe(episode: Dict[str, Any]) -> List[str]:
  """Returns a line with the path, dtype and shape of each leaf of `nest_of`."""
  nested = (tf.data.Dataset, tf.data.DatasetSpec)
  is_nested = isinstance(episode[rlds.STEPS], nested)
  lines = []
  for keys, leaf in tree.flatten_with_path(nest_of(episode)):
    line = steps_lib.field_path(keys)
    if hasattr(leaf, 'shape'):
      first = 0 if is_nested or keys[0] == EPISODE else 1
      line += f': {leaf.dtype.name} {tf.TensorShape(leaf.shape)[first:]}'
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
