"""Sources: what a field of an RLDS step is made of, found and read.

`fields.StepMapping` says what a source may be.
"""

import dataclasses
import difflib
import functools
import numbers
import operator
from typing import Any, Callable, Dict, List, Tuple, Union

import rlds
import tensorflow as tf
import tree

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

_EPISODE = '..'


@dataclasses.dataclass(frozen=True)
class Path:
  """Where a field is.

  Attributes:
    keys: the keys that lead to it, from the step, or from its episode.
    in_episode: whether it is a field of the episode.
  """

  keys: Tuple[Any, ...]
  in_episode: bool

  def full(self) -> Tuple[Any, ...]:
    return (_EPISODE, *self.keys) if self.in_episode else self.keys

  def name(self) -> str:
    return steps_lib.field_path(self.full())


class Paths:
  """The paths of all fields of an episode and of its steps.

  Args:
    episode: an episode, or the spec of one.
  """

  def __init__(self, episode: Dict[str, Any]):
    steps = episode[rlds.STEPS]
    self._is_stacked = not isinstance(
        steps, (tf.data.Dataset, tf.data.DatasetSpec)
    )
    nests = {
        False: steps if self._is_stacked else steps.element_spec,
        True: {k: v for k, v in episode.items() if k != rlds.STEPS},
    }
    self._leaves = {
        Path(keys, in_episode): leaf
        for in_episode, nest in nests.items()
        for keys, leaf in tree.flatten_with_path(nest)
    }
    self._nodes = {
        Path(path.keys[:end], path.in_episode)
        for path in self._leaves
        for end in range(1, len(path.keys) + 1)
    }

  def resolve(self, source: Source, problems: List[str]) -> Any:
    """Returns `source` with a `Path` for every string and tuple in it.

    Args:
      source: a source.
      problems: gets a sentence for every path that is not there, or that can be
        read in more than one way.
    """
    if isinstance(source, dict):
      return {k: self.resolve(v, problems) for k, v in source.items()}
    if isinstance(source, list):
      return [self.resolve(item, problems) for item in source]
    if not isinstance(source, (str, tuple)):
      return source
    as_read = Path.name if isinstance(source, str) else Path.full
    found = [path for path in self._nodes if as_read(path) == source]
    if len(found) == 1:
      return found[0]
    if found:
      problems.append(
          f'the path {source!r} can be read as each of'
          f' {sorted(map(Path.full, found))}; give the tuple'
      )
    else:
      problems.append(f'there is no field {source!r}{self._suggestion(source)}')
    return None

  def _suggestion(self, source) -> str:
    name = source if isinstance(source, str) else steps_lib.field_path(source)
    names = sorted({path.name() for path in self._nodes})
    nearest = difflib.get_close_matches(name, names)
    return f'; the nearest: {", ".join(nearest)}' if nearest else ''

  def describe(self) -> List[str]:
    """Returns a line a leaf: its path, its dtype and the shape of one."""
    lines = []
    for path, leaf in self._leaves.items():
      line = path.name()
      if hasattr(leaf, 'shape'):
        shape = tf.TensorShape(leaf.shape)
        if self._is_stacked and not path.in_episode:
          shape = shape[1:]
        line += f': {leaf.dtype.name} {shape}'
      lines.append(line)
    return lines


def read(
    source: Any,
    episode: Dict[str, Any],
    length: tf.Tensor,
    cast: Callable[[tf.Tensor], tf.Tensor],
) -> Any:
  """Returns the tensors of a resolved source.

  Args:
    source: what `Paths.resolve` returns of a source that is not None.
    episode: the episode, its steps stacked.
    length: int32 `[]`: the number of its steps, `T`.
    cast: applied to each leaf.

  Returns:
    A nest of tensors `[T, ...]`.
  """
  if isinstance(source, Path):
    nest = episode if source.in_episode else episode[rlds.STEPS]
    nest = functools.reduce(operator.getitem, source.keys, nest)
    if source.in_episode:
      nest = tf.nest.map_structure(lambda leaf: _repeat(leaf, length), nest)
    return tf.nest.map_structure(cast, nest)
  if isinstance(source, dict):
    return {k: read(v, episode, length, cast) for k, v in source.items()}
  if isinstance(source, list):
    return _to_vectors([read(v, episode, length, cast) for v in source])
  if callable(source):
    values = tf.nest.map_structure(tf.convert_to_tensor, source(episode))
    return tf.nest.map_structure(cast, values)
  return _repeat(tf.constant(source), length)


def num_steps(steps: Any) -> tf.Tensor:
  """Returns int32 `[]`: the number of stacked `steps`."""
  # A ragged field, if there is one, has another kind of shape.
  dense = (l for l in tf.nest.flatten(steps) if isinstance(l, tf.Tensor))
  return tf.shape(next(dense))[0]


def _repeat(value, length):
  # Unlike tf.broadcast_to, tf.gather takes strings and unknown shapes.
  return tf.gather(value[tf.newaxis], tf.zeros([length], tf.int32))


def _to_vectors(values):
  """Concatenates all leaves of `values`, `[T, ...]`, to vectors `[T, D]`."""
  leaves = tf.nest.flatten(values)
  dtypes = {leaf.dtype for leaf in leaves}
  floats = [dtype for dtype in dtypes if dtype.is_floating]
  sizes = [leaf.shape[1:].num_elements() for leaf in leaves]
  if (
      None in sizes
      or tf.string in dtypes
      or not (floats or len(dtypes) == 1)
  ):
    raise ValueError(
        'Only numbers of known shapes, all of one dtype or some of them floats,'
        ' can be concatenated to a vector, but there are '
        + ', '.join(f'{leaf.dtype.name} {leaf.shape[1:]}' for leaf in leaves)
    )
  dtype = max(floats, key=lambda d: d.size) if floats else leaves[0].dtype
  return tf.concat(
      [
          tf.reshape(tf.cast(leaf, dtype), [-1, size])
          for leaf, size in zip(leaves, sizes)
      ],
      axis=1,
  )
