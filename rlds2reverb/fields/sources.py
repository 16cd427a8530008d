"""Sources of the fields of an RLDS step: paths, constants, functions.

The docstring of `step_mapping.StepMapping` defines the valid sources.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses
import numbers
import re
from typing import Any, NamedTuple

import gin
import tensorflow as tf
import tree

from rlds2reverb.episodes import batch as batch_lib
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import pipelines
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import rows as rows_lib
from rlds2reverb.episodes import steps as steps_lib

FieldSource = (
    str
    | tuple[Any, ...]
    | dict
    | list
    | numbers.Number
    | Callable[..., Any]
    | None
)

EPISODE = '..'

_SLICE = re.compile(r'(.+)\[(-?\d*):(-?\d*)\]')


class StepRows(NamedTuple):
  """The steps of an episode, or of a batch of episodes, to read sources from.

  Attributes:
    episode: the episode with stacked steps; for a batch, its steps and the
      other fields `[E, ...]`.
    row_splits: int64 `[E + 1]`, as in `EpisodeBatch`.
    is_first: bool `[T]`: the first step of each episode, by its position.
    is_last: bool `[T]`: the last step of each episode, by its position.
    episode_of_rows: for a batch, the episode of each step, int64 `[T]`.
  """

  episode: dict[str, Any]
  row_splits: tf.Tensor
  is_first: tf.Tensor
  is_last: tf.Tensor
  episode_of_rows: tf.Tensor | None

  def repeat(self, value: tf.Tensor) -> tf.Tensor:
    """Repeats one value for each step, `[T, ...]`."""
    # Unlike tf.broadcast_to, tf.gather accepts strings and unknown shapes.
    return tf.gather(value[tf.newaxis], tf.zeros_like(self.is_first, tf.int32))

  def repeat_per_episode(self, leaf: tf.Tensor) -> tf.Tensor:
    """Repeats the value of each episode for its steps, `[T, ...]`."""
    if self.episode_of_rows is None:
      return self.repeat(leaf)
    return tf.gather(leaf, self.episode_of_rows)


def make_rows(
    episode: dict[str, Any],
    used: Sequence[paths.KeyPath],
    row_splits: tf.Tensor | None = None,
) -> StepRows:
  """Returns the rows of stacked steps, and checks that they have one length.

  Args:
    episode: see `StepRows`.
    used: the keys of the fields that are read. Only their leaves are checked.
    row_splits: the row splits of a batch; None for an episode. Unused fields of
      a single episode may be longer.

  Raises:
    ValueError: see `steps.get_lengths`.
    InvalidArgumentError: if leaves that are read differ in length.
  """
  leaves = dict(tree.flatten_with_path(episode[rlds.STEPS]))
  names = {paths.name_of(keys): keys for keys in leaves if is_below(keys, used)}
  checked = steps_lib.check_equal_lengths(
      {name: leaves[keys] for name, keys in names.items()}
  )
  leaves.update({names[name]: leaf for name, leaf in checked.items()})
  steps = tree.unflatten_as(episode[rlds.STEPS], list(leaves.values()))
  # The shape of a ragged or sparse field does not have the length.
  all_leaves = [*checked.values(), *leaves.values()]
  dense = (leaf for leaf in all_leaves if not rows_lib.is_composite(leaf))
  length = tf.shape(next(dense), tf.int64)[0]
  if row_splits is None:
    row_splits, episode_of_rows = tf.stack([0, length]), None
  else:
    row_splits = tf.minimum(row_splits, length)
    episode_of_rows = batch_lib.episode_of_rows(row_splits)
  is_start = batch_lib.count_starts(row_splits, length + 1) > 0
  episode = {**episode, rlds.STEPS: steps}
  return StepRows(
      episode, row_splits, is_start[:-1], is_start[1:], episode_of_rows
  )


class Derived:
  """A source that is computed from another source, its only attribute."""

  def derive(self, value: Any, rows: StepRows) -> tf.Tensor:
    """Returns the field for all rows, `[T, ...]`.

    Args:
      value: the tensors of the other source, a nest of `[T, ...]`.
      rows: the steps.
    """
    raise NotImplementedError


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True)
class TerminalOnSuccess(Derived):
  """Computes `is_terminal` from success: successful episodes are terminal.

      success          |  0  0  0  1 |  0  0  1  0 |  0  1  0  0 |
      is_terminal      |  0  0  0  1 |  0  0  0  1 |  0  0  0  0 |

  Some recorders report success with the last step, others with the transition
  into it; both count. An earlier success does not make the episode terminal.

  Attributes:
    success: the source of the success, one number or bool.
  """

  success: FieldSource

  def derive(self, value: Any, rows: StepRows) -> tf.Tensor:
    success = steps_lib.to_column('success', value, tf.bool)
    return rows.is_last & (success | (tf.roll(success, 1, 0) & ~rows.is_first))


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True)
class TerminalOnZeroDiscount(Derived):
  """Computes `is_terminal` from the discount of the last transition.

      discount         |  1  1  0  - |  1  1  1  - |  0  1  1  - |
      is_terminal      |  0  0  0  1 |  0  0  0  0 |  0  0  0  0 |

  The discount of the last step is a placeholder, and ignored. An episode
  without transitions is not terminal.

  Attributes:
    discount: the source of the discount, one number.
  """

  discount: FieldSource

  def derive(self, value: Any, rows: StepRows) -> tf.Tensor:
    discount = steps_lib.to_column('discount', value, tf.float32)
    return rows.is_last & ~rows.is_first & (tf.roll(discount, 1, 0) == 0)


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True)
class DiscountFromTransitions(Derived):
  """Replaces the discount of the last step, if it is a placeholder.

      discount         | .9 .9  0  - | .9 .9 .9  - |  - |
      result           | .9 .9  0  0 | .9 .9 .9 .9 |  1 |

  The last step gets the discount of the last transition, and 1 in an episode
  without transitions.

  Attributes:
    discount: the source of the discount, one number.
  """

  discount: FieldSource

  def derive(self, value: Any, rows: StepRows) -> tf.Tensor:
    discount = steps_lib.to_column('discount', value, tf.float32)
    previous = tf.where(rows.is_first, 1.0, tf.roll(discount, 1, 0))
    return tf.where(rows.is_last, previous, discount)


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True)
class TextFromCodes(Derived):
  """Decodes a string from zero-padded character codes.

      codes       | 112 117 115 104   0   0 |
      text        | 'push'                  |

  Language Table stores its instructions in this form, int32 `[512]`.

  Attributes:
    source: the source of the codes, a vector of integers.
  """

  source: FieldSource

  def derive(self, value: Any, rows: StepRows) -> tf.Tensor:
    is_vector = not tf.nest.is_nested(value) and value.shape.rank == 2
    if not is_vector or not value.dtype.is_integer:
      raise ValueError(
          'TextFromCodes needs a vector of integers per step, but'
          f' {self.source!r} is {describe_leaf(value)}.'
      )
    text = tf.strings.unicode_encode(tf.cast(value, tf.int32), 'UTF-8')
    return tf.strings.regex_replace(text, r'(?s)\x00.*', '')


_Reader = Callable[[StepRows], Any]
_Cast = Callable[[tf.Tensor], tf.Tensor]


class SourceResolver:
  """Resolves sources in the fields of a data set, and makes their readers.

  Attributes:
    used: the keys of all fields that are read.
    problems: a sentence for every path that does not exist or is ambiguous. If
      there are any, the readers cannot be used.
    has_functions: whether a source is a function.
  """

  def __init__(self, episode: dict[str, Any]):
    """Takes an episode or the spec of an episode."""
    self.used: list[paths.KeyPath] = []
    self.problems: list[str] = []
    self.has_functions = False
    self._fields = get_fields(episode)

  def make_reader(self, source: FieldSource, name: str, cast: _Cast) -> _Reader:
    """Returns a function that reads a source, a nest of `[T, ...]`.

    Args:
      source: a source, but not None.
      name: the name of the field to make, for errors.
      cast: a function that is applied to each leaf of the data.
    """
    if isinstance(source, dict):
      parts = {k: self.make_reader(v, name, cast) for k, v in source.items()}
      return lambda rows: {key: read(rows) for key, read in parts.items()}
    if isinstance(source, list):
      vectors = [self.make_reader(part, name, cast) for part in source]
      return lambda rows: _concatenate([read(rows) for read in vectors])
    if isinstance(source, (str, tuple)):
      read = self._make_path_reader(source)
    elif isinstance(source, Derived):
      (value_source,) = vars(source).values()
      read_value = self.make_reader(value_source, name, tf.identity)
      read = lambda rows: source.derive(read_value(rows), rows)
    elif callable(source):
      self.has_functions = True
      read = lambda rows: _call(source, rows, name)
    else:
      return lambda rows: rows.repeat(tf.constant(source))
    return lambda rows: tf.nest.map_structure(cast, read(rows))

  def _make_path_reader(self, path) -> _Reader:
    columns = None
    # A key of the data may itself end in `[0:3]`.
    if isinstance(path, str) and not paths.contains(self._fields, path):
      match = _SLICE.fullmatch(path)
      if match:
        path, *bounds = match.groups()
        columns = slice(*(int(bound) if bound else None for bound in bounds))
    keys, problem = paths.look_up(self._fields, path)
    if keys is None:
      self.problems.append(problem)
    else:
      self.used.append(keys)

    def read(rows):
      value = paths.get(get_fields(rows.episode), keys)
      if keys[0] == EPISODE:
        value = tf.nest.map_structure(rows.repeat_per_episode, value)
      if columns is None:
        return value
      return _slice_columns(value, paths.name_of(keys), columns)

    return read


def get_fields(episode: dict[str, Any]) -> dict[str, Any]:
  """Returns the fields of a step, with the fields of the episode at `..`.

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
  episode_fields = {k: v for k, v in episode.items() if k != rlds.STEPS}
  return {**steps, EPISODE: episode_fields}


def is_below(keys: paths.KeyPath, fields: Iterable[paths.KeyPath]) -> bool:
  """Returns whether a leaf is at or below one of the fields."""
  return any(keys[: len(field)] == field for field in fields)


def describe(episode: dict[str, Any]) -> list[str]:
  """Returns the path, dtype and shape of each leaf, one line per leaf."""
  is_stacked = isinstance(episode[rlds.STEPS], dict)
  lines = []
  for keys, leaf in tree.flatten_with_path(get_fields(episode)):
    first = int(is_stacked and keys[0] != EPISODE)
    shape = getattr(leaf, 'shape', None)
    kind = '' if shape is None else f': {leaf.dtype.name} {shape[first:]}'
    lines.append(f'{paths.name_of(keys)}{kind}')
  return lines


def describe_leaf(stacked: Any) -> str:
  """Returns the dtype and the shape of a leaf in one step, for errors."""
  if tf.nest.is_nested(stacked):
    return 'a nest'
  return f'{stacked.dtype.name} {stacked.shape[1:]}'


def _call(function, rows, name):
  """Returns the tensors of a source that is a function of the episode."""
  value = pipelines.as_user_code(function)(rows.episode)
  value = tf.nest.map_structure(tf.convert_to_tensor, value)
  checked = {rlds.STEPS: rows.is_first, name: value}
  return steps_lib.check_equal_lengths(checked)[name]


def _slice_columns(leaf, name, columns):
  """Returns some columns of a field of vectors, `[T, D]`."""
  leaf = tf.nest.map_structure(tf.convert_to_tensor, leaf)
  if tf.nest.is_nested(leaf) or leaf.shape.rank != 2:
    raise ValueError(
        f'Only vectors can be sliced, but {name} is {describe_leaf(leaf)}.'
    )
  size, selected = leaf.shape[1], leaf[:, columns]
  bounds = [columns.start, columns.stop]
  max_index = max(abs(bound or 0) for bound in bounds)
  if size is not None and (max_index > size or not selected.shape[1]):
    text = ':'.join('' if bound is None else str(bound) for bound in bounds)
    raise ValueError(
        f'The slice [{text}] of {name} is empty or out of range: it has'
        f' {size} numbers.'
    )
  return selected


def _concatenate(values):
  """Concatenates all leaves of `values`, `[T, ...]`, to vectors `[T, D]`."""
  leaves = tf.nest.flatten(values)
  dtypes = {leaf.dtype for leaf in leaves}
  floats = [dtype for dtype in dtypes if dtype.is_floating]
  sizes = [leaf.shape[1:].num_elements() for leaf in leaves]
  if None in sizes or tf.string in dtypes or not (floats or len(dtypes) == 1):
    raise ValueError(
        'Only numbers of known shapes, which have one dtype or include floats,'
        ' can be concatenated to a vector, but the sources are '
        + ', '.join(map(describe_leaf, leaves))
    )
  dtype = max(floats, key=lambda d: d.size) if floats else leaves[0].dtype
  vectors = [
      tf.reshape(tf.cast(leaf, dtype), [-1, size])
      for leaf, size in zip(leaves, sizes)
  ]
  return tf.concat(vectors, axis=1)
