"""Makes RLDS episodes of columns that Python reads, one episode at a time.

All readers of other formats use this module, except that of flat arrays.
"""

import contextlib
from typing import (
    Any,
    Callable,
    Dict,
    Generator,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
)

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.datasets import python_batches
from rlds2reverb.episodes import blocks
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.formats import columns as columns_lib

# How much of the episodes is passed to TensorFlow at a time.
_BATCH_BYTES = 4 << 20


class PythonEpisode(NamedTuple):
  """The steps of one episode, without flags and discounts.

  Attributes:
    steps: a dict of step fields. Every leaf is a column of `num_steps` rows, or
      of one less, whose last row is then zero; see `columns`.
    num_steps: the number of steps.
    is_terminal: whether the last step is terminal.
    episode_id: the number that identifies the episode.
    fields: a nest of the other fields of the episode, numbers or strings.
  """

  steps: Dict[str, Any]
  num_steps: int
  is_terminal: bool
  episode_id: int
  fields: Mapping[str, Any] = {}


Episodes = Generator[PythonEpisode, None, None]


def make_episode(
    steps: Dict[str, Any],
    episode_id: int,
    is_terminal: Any = False,
    fields: Optional[Mapping[str, Any]] = None,
) -> PythonEpisode:
  """Returns the episode of `T` actions with the given columns.

  It has `T + 1` steps if there are as many observations, or if it is terminal:
  then a step of zeros stands for the observation that is not there. Otherwise
  the last observation is its last step, whose action does not count.

  Args:
    steps: a dict of step fields with `T` or `T + 1` rows; without a reward it
      is float32 zeros.
    episode_id: the number that identifies the episode.
    is_terminal: whether it ends in a terminal state: a bool, or a column whose
      last row says so.
    fields: other fields of the episode.
  """
  first = lambda name: tf.nest.flatten(steps[name])[0]
  num_observations = len(first(rlds.OBSERVATION))
  length = num_observations
  if rlds.ACTION in steps:
    length = len(first(rlds.ACTION))
  has_next = num_observations == length + 1
  is_terminal = bool(np.ravel(is_terminal)[-1:].any()) and length > 0
  steps.setdefault(rlds.REWARD, np.zeros(length, np.float32))
  num_steps = length + (has_next or is_terminal)
  return PythonEpisode(steps, num_steps, is_terminal, episode_id, fields or {})


def to_dataset(
    episodes: Callable[[], Episodes],
    num_episodes: Optional[int] = None,
) -> tf.data.Dataset:
  """Makes an RLDS data set of episodes that Python reads.

  Args:
    episodes: a generator function of episodes. It is called once
      here, for the first episode, and each time the data set is iterated. The
      columns of an episode are read before the next episode is asked for.
    num_episodes: the number of episodes, if it is known.

  Returns:
    A data set of episodes with batches; see `python_batches.to_episodes`.

  Raises:
    ValueError: if there is no episode, or if a column of the first cannot be
      read or has a wrong number of rows.
    InvalidArgumentError: while iterating, if another episode is not like it.
  """
  with contextlib.closing(episodes()) as found:
    first = next(found, None)
    if first is None:
      raise ValueError('There is no episode.')
    spec = tree.map_structure_with_path(
        lambda path, column: _row_spec(first, path, column), first.steps
    )
    tree.map_structure_with_path(
        lambda path, row_spec, column: _check(first, path, row_spec, column),
        spec,
        first.steps,
    )
    field_specs = tf.nest.map_structure(
        lambda value: columns_lib.row_spec(_rows([value])), first.fields
    )
  return python_batches.to_episodes(
      lambda: _batches(episodes, spec, field_specs),
      spec,
      num_episodes,
      field_specs,
  )


def _row_spec(episode, path, column) -> tf.TensorSpec:
  if not columns_lib.is_readable(column):
    raise ValueError(
        f'{_name(path)} of episode {episode.episode_id} must have a row of'
        ' numbers or strings for each step, but is'
        f' {column.dtype} {column.shape}.'
    )
  columns_lib.check_objects(_name(path), column)
  return columns_lib.row_spec(column)


def _name(path) -> str:
  return steps_lib.field_path(path)


def _batches(
    episodes: Callable[[], Episodes],
    spec: Any,
    field_specs: Dict[str, tf.TensorSpec],
) -> Iterator[python_batches.PythonBatch]:
  """Reads the episodes, a batch at a time."""
  max_steps = max(_BATCH_BYTES // blocks.step_bytes(spec), 1)
  waiting: List[PythonEpisode] = []
  num_steps = 0
  error = None
  with contextlib.closing(episodes()) as found:
    try:
      for episode in found:
        if waiting and num_steps + episode.num_steps > max_steps:
          yield _batch(waiting, spec, field_specs)
          waiting, num_steps = [], 0
        waiting.append(episode._replace(steps=_read(episode, spec)))
        num_steps += episode.num_steps
    except (OSError, ValueError) as e:
      error = e  # The episodes before the one at fault come first.
  if waiting:
    yield _batch(waiting, spec, field_specs)
  if error is not None:
    raise error


def _rows(values: Sequence[Any]) -> np.ndarray:
  """Returns values as rows; NumPy's own strings lose zeros at their ends."""
  is_text = isinstance(values[0], (bytes, str))
  return np.asarray(values, object if is_text else None)


def _batch(
    episodes: List[PythonEpisode],
    spec: Any,
    field_specs: Dict[str, tf.TensorSpec],
) -> python_batches.PythonBatch:
  """Joins episodes whose columns have been read."""
  if len(episodes) == 1:
    steps = episodes[0].steps
  else:
    steps = tf.nest.map_structure(
        lambda *rows: np.concatenate(rows),
        *(episode.steps for episode in episodes),
    )
  fields = tf.nest.map_structure(
      lambda spec, *values: columns_lib.read(_rows(values), slice(None), spec),
      field_specs,
      *(episode.fields for episode in episodes),
  )
  ids = np.array([episode.episode_id for episode in episodes], np.int64)
  return python_batches.PythonBatch(
      steps,
      np.array([episode.num_steps for episode in episodes], np.int64),
      np.array([episode.is_terminal for episode in episodes]),
      {python_batches.EPISODE_ID: ids, **fields},
  )


def _read(episode: PythonEpisode, spec: Any) -> Any:
  """Returns the steps of an episode in arrays of their own, `[T, ...]`."""
  try:
    tf.nest.assert_same_structure(spec, episode.steps)
  except (TypeError, ValueError) as e:
    raise ValueError(
        f'Episode {episode.episode_id} has the fields'
        f' {_names_in(episode.steps)}, but the first episode has'
        f' {_names_in(spec)}.'
    ) from e

  def read(path, row_spec, column):
    _check(episode, path, row_spec, column)
    # TensorFlow may write into an array that it is given, so it gets a new one.
    rows = columns_lib.zeros(episode.num_steps, row_spec)
    if len(column):
      rows[: len(column)] = columns_lib.read(column, slice(None), row_spec)
    return rows

  return tree.map_structure_with_path(read, spec, episode.steps)


def _check(episode, path, row_spec, column) -> None:
  """Checks the rows of a column against those of the first episode."""
  counts = episode.num_steps - 1, episode.num_steps
  if len(column) not in counts:
    raise ValueError(
        f'{_name(path)} of episode {episode.episode_id} has {len(column)} rows,'
        f' but an episode of {episode.num_steps} steps has {counts[0]} or'
        f' {counts[1]} of each field.'
    )
  if len(column) and columns_lib.row_spec(column) != row_spec:
    raise ValueError(
        f'The rows of {_name(path)} of episode {episode.episode_id} are'
        f' {column.dtype} {column.shape[1:]}, but those of the first episode'
        f' are {row_spec.dtype.name} {row_spec.shape}.'
    )


def _names_in(nest) -> List[str]:
  return [_name(path) for path, _ in tree.flatten_with_path(nest)]
