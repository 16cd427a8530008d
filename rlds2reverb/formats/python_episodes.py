"""Makes RLDS data sets of episodes that only Python can read.

A reader is a generator of episodes, each a nest of columns; `to_dataset` makes
the data set. Passing short episodes from Python to TensorFlow one by one is
slow, so the rows of several are passed together.
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
)

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.episodes import blocks
from rlds2reverb.episodes import data_sets
from rlds2reverb.episodes import episode_batches
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.formats import columns as columns_lib

_EPISODE_ID = 'episode_id'
# How much of the episodes is passed to TensorFlow at a time.
BATCH_BYTES = 4 << 20


class PythonEpisode(NamedTuple):
  """The steps of an episode, or of `E`, without flags and discounts.

  Attributes:
    steps: a dict of step fields. Every leaf is a column, see `columns`: a row
      for each step; or for each but the last ones of episodes that `may_lack`
      it, which are then zero.
    num_steps: int64 `[E]`: the number of steps.
    is_terminal: bool `[E]`: whether the last step is terminal.
    episode_id: int64 `[E]`: the number that identifies the episode.
    fields: a nest of the other fields of the episodes, columns of `E` rows.
    may_lack: bool `[E]`: whether a column may lack the row of the last step.
  """

  steps: Dict[str, Any]
  num_steps: np.ndarray
  is_terminal: np.ndarray
  episode_id: np.ndarray
  fields: Mapping[str, Any]
  may_lack: np.ndarray


Episodes = Generator[PythonEpisode, None, None]


def make_episode(
    steps: Dict[str, Any],
    episode_id: int,
    is_terminal: Any = False,
    fields: Optional[Mapping[str, Any]] = None,
    has_last: Optional[bool] = None,
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
    has_last: whether there must be one observation more than actions, or just
      as many; by default that is not known.

  Raises:
    ValueError: if there is no observation; or if there are not as many
      observations, actions or rewards.
  """
  if not tf.nest.flatten(steps.get(rlds.OBSERVATION, ())):
    raise ValueError(
        f'Episode {episode_id} has no observation, but only {sorted(steps)}.'
        ' Leave out fewer fields.'
    )
  first = lambda name: tf.nest.flatten(steps[name])[0]
  num_observations = len(first(rlds.OBSERVATION))
  length = len(first(rlds.ACTION if rlds.ACTION in steps else rlds.OBSERVATION))
  has_next = num_observations == length + 1
  is_terminal = bool(np.ravel(is_terminal)[-1:].any()) and length > 0
  steps.setdefault(rlds.REWARD, np.zeros(length, np.float32))
  counts = {rlds.ACTION: length, rlds.REWARD: length}
  if has_last is not None:
    counts[rlds.OBSERVATION] = length + has_last
  for name, count in counts.items():
    for column in tf.nest.flatten(steps.get(name, ())):
      if len(column) != count:
        raise ValueError(
            f'Episode {episode_id} has {len(column)} rows of {name}, but'
            f' {length} of actions: expected {count}.'
        )
  num_steps = length + (has_next or is_terminal)
  return PythonEpisode(
      steps,
      columns_lib.row(num_steps),
      columns_lib.row(is_terminal),
      columns_lib.row(episode_id),
      tf.nest.map_structure(columns_lib.row, fields or {}),
      columns_lib.row(True),
  )


def to_dataset(
    episodes: Callable[[], Episodes],
    num_episodes: Optional[int] = None,
) -> tf.data.Dataset:
  """Makes an RLDS data set of episodes that Python reads.

  Args:
    episodes: a generator function of episodes. It is called once here, for the
      first episode, and each time the data set is iterated. The columns of an
      episode are read before the next episode is asked for.
    num_episodes: the number of episodes, if it is known.

  Returns:
    A data set of episodes with stacked `steps`, and with `episode_id` and the
    fields of the episodes. It has batches; see `data_sets.batches_of`. The
    steps have these fields, if they are not there already:

      is_first    |  1     0    ...  0     0   |
      is_last     |  0     0         0     1   |
      is_terminal |  0     0         0     e   |   e: the episode is terminal
      discount    |  1     1        1-e   1-e  |

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
        lambda path, column: _check(first, path, column), first.steps
    )
    fields = tf.nest.map_structure(columns_lib.row_spec, first.fields)
  made = dict.fromkeys(rlds.FLAGS, tf.TensorSpec([], tf.bool))
  made[rlds.DISCOUNT] = tf.TensorSpec([], tf.float32)
  stacked = lambda spec: tf.TensorSpec([None, *spec.shape], spec.dtype)
  dataset = tf.data.Dataset.from_generator(
      lambda: _batches(episodes, spec, fields),
      output_signature=episode_batches.EpisodeBatch(
          tf.nest.map_structure(stacked, {**spec, **made, **spec}),
          tf.TensorSpec([None], tf.int64),
          tf.nest.map_structure(
              stacked, {_EPISODE_ID: tf.TensorSpec([], tf.int64), **fields}
          ),
      ),
  ).prefetch(1)
  return data_sets.Episodes(dataset, num_episodes)


def _batches(
    episodes: Callable[[], Episodes], spec: Any, field_specs: Any
) -> Iterator[episode_batches.EpisodeBatch]:
  """Reads the episodes, a batch at a time."""
  max_steps = max(BATCH_BYTES // blocks.step_bytes(spec), 1)
  waiting: List[PythonEpisode] = []
  num_steps = 0
  error = None
  with contextlib.closing(episodes()) as found:
    try:
      for episode in found:
        length = episode.num_steps.sum()
        if waiting and num_steps + length > max_steps:
          yield _join(waiting)
          waiting, num_steps = [], 0
        waiting.append(_read(episode, spec, field_specs))
        num_steps += length
    except (OSError, ValueError) as e:
      error = e  # The episodes before the one at fault come first.
  if waiting:
    yield _join(waiting)
  if error is not None:
    raise error


def _join(episodes: List[PythonEpisode]) -> episode_batches.EpisodeBatch:
  """Returns the batch of episodes that have been read."""
  join = lambda *rows: rows[0] if len(rows) == 1 else np.concatenate(rows)
  steps, lengths, is_terminal, ids, fields, _ = tf.nest.map_structure(
      join, *episodes
  )
  splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
  row = np.arange(splits[-1])
  # The number of steps that follow each step in its episode.
  rest = np.repeat(splits[1:], lengths) - 1 - row
  is_terminal = np.repeat(is_terminal, lengths)
  made = {
      rlds.IS_FIRST: row == np.repeat(splits[:-1], lengths),
      rlds.IS_LAST: rest == 0,
      rlds.IS_TERMINAL: (rest == 0) & is_terminal,
      rlds.DISCOUNT: 1 - ((rest <= 1) & is_terminal).astype(np.float32),
  }
  return episode_batches.EpisodeBatch(
      {**made, **steps}, splits, {**fields, _EPISODE_ID: ids}
  )


def _read(episode: PythonEpisode, spec: Any, field_specs: Any) -> PythonEpisode:
  """Returns an episode in arrays of its own, `[T, ...]` and `[1, ...]`."""
  try:
    tf.nest.assert_same_structure(spec, episode.steps)
  except (TypeError, ValueError) as e:
    found, first = (
        [steps_lib.field_path(path) for path, _ in tree.flatten_with_path(nest)]
        for nest in (episode.steps, spec)
    )
    raise ValueError(
        f'Episode {episode.episode_id[0]} has the fields {found}, but the first'
        f' episode has {first}.'
    ) from e
  ends = np.cumsum(episode.num_steps) - 1
  is_there = np.ones(episode.num_steps.sum(), bool)
  is_there[ends[episode.may_lack & (ends >= 0)]] = False

  def read(path, row_spec, column):
    _check(episode, path, column, row_spec)
    # TensorFlow may write into an array that it is given, so it gets a new one.
    rows = columns_lib.zeros(len(is_there), row_spec)
    if len(column):
      place = slice(None) if len(column) == len(is_there) else is_there
      rows[place] = columns_lib.read(column, slice(None), row_spec)
    return rows

  return episode._replace(
      steps=tree.map_structure_with_path(read, spec, episode.steps),
      fields=tf.nest.map_structure(
          lambda spec, rows: columns_lib.read(rows, slice(None), spec).copy(),
          field_specs,
          episode.fields,
      ),
  )


def _name_of(episode: PythonEpisode) -> str:
  ids = episode.episode_id[:1].tolist()
  return f'episode {ids[0]}' if ids else 'no episode'


def _check(
    episode: PythonEpisode,
    path: Any,
    column: columns_lib.AnyColumn,
    row_spec: Optional[tf.TensorSpec] = None,
) -> tf.TensorSpec:
  """Checks a column by the spec of its rows in the first episode, if known."""
  name = steps_lib.field_path(path)
  where = f'{name} of {_name_of(episode)}'
  spec = row_spec or columns_lib.checked_spec(name, column, where)
  most = episode.num_steps.sum()
  counts = most - episode.may_lack.sum(), most
  if len(column) not in counts:
    raise ValueError(
        f'{where} has {len(column)} rows, but an episode of {most} steps has'
        f' {counts[0]} or {most} of each field.'
    )
  if len(column) and columns_lib.row_spec(column) != spec:
    raise ValueError(
        f'The rows of {where} are {column.dtype} {column.shape[1:]}, but those'
        f' of the first episode are {spec.dtype.name} {spec.shape}.'
    )
  return spec
