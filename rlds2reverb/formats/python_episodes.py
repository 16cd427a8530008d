"""Creates RLDS data sets from episodes that are read in Python.

A reader is a generator that yields a `PythonEpisode`, a nest of columns, or the
`Fault` of an unreadable episode; `attempt` returns either. `to_dataset` creates
the data set. Episodes with unreadable or different columns become faults there.
As in RLDS data, a batch with a fault has no steps.

Passing short episodes from Python to TensorFlow is slow, so several episodes
are passed in a batch.
"""

from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import contextvars
import errno
import functools
import inspect
import os
import struct
import tokenize
from typing import Any, NamedTuple, TypeAlias, TypeVar
import zipfile
import zlib

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.datasets import files
from rlds2reverb.episodes import batch as batch_lib
from rlds2reverb.episodes import episode_dataset
from rlds2reverb.episodes import errors
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.formats import columns as columns_lib

_EPISODE_ID = 'episode_id'
# The maximum size of a batch that is passed to TensorFlow.
BATCH_BYTES = 4 << 20
# The number of first episodes whose fields are compared.
NUM_COMPARED = 3
# If none of this many first episodes can be read, the data set is invalid.
MAX_FAULTS_FIRST = 100

_T = TypeVar('_T')
_Reader = TypeVar('_Reader', bound=Callable[..., tf.data.Dataset])
# The path argument of the current reader, for errors of episodes.
_SOURCE = contextvars.ContextVar('source', default='')
# The errors that parsers raise for damaged files. Of h5py alone, they are
# `format_registry.HDF5_ERRORS`.
_DAMAGES = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    OSError,
    RuntimeError,
    SystemError,
    TypeError,
    ValueError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


class PythonEpisode(NamedTuple):
  """The steps of one or more episodes, `E`, without flags and discounts.

  Attributes:
    steps: a dict of step fields. Every leaf is a column, see `columns`, with a
      row for each step. Columns may lack the last row of episodes with
      `may_lack`, which is then zero.
    num_steps: int64 `[E]`: the number of steps.
    is_terminal: bool `[E]`: whether the last step is terminal.
    episode_id: int64 `[E]`: the ids of the episodes.
    fields: a nest of other episode fields, columns of `E` rows.
    may_lack: bool `[E]`: whether columns may lack the row of the last step.
    place: the location of the episodes for errors, such as `episode_1 of FILE`;
      or empty.
    file: the path of the file of the episodes; or empty.
  """

  steps: dict[str, Any]
  num_steps: np.ndarray
  is_terminal: np.ndarray
  episode_id: np.ndarray
  fields: Mapping[str, Any]
  may_lack: np.ndarray
  place: str = ''
  file: str = ''


Episode: TypeAlias = PythonEpisode | errors.Fault
Episodes: TypeAlias = Generator[Episode, None, None]


def attempt(
    function: Callable[..., PythonEpisode],
    *args: Any,
    place: str = '',
    file: str = '',
) -> Episode:
  """Returns the episode that a function reads, or its fault.

  Args:
    function: reads an episode.
    *args: the arguments of `function`.
    place: the location of the episode for errors; by default `file`.
    file: the path of the file of the episode.

  Raises:
    ImportError, MemoryError, OSError: if the error is not caused by the data;
      see `to_fault`.
  """
  place = place or file
  try:
    return function(*args)._replace(place=place, file=file)
  except Exception as e:
    return to_fault(e, place, file)


def attempt_each(
    function: Callable[[_T], PythonEpisode],
    items: Iterable[_T],
    place_of: Callable[[_T], tuple[str, str]],
) -> Episodes:
  """Yields the episode of each item, or its fault.

  Args:
    function: reads the episode of an item.
    items: the items.
    place_of: returns the place and the file of an item; see `attempt`.
  """
  for item in items:
    place, file = place_of(item)
    yield attempt(function, item, place=place, file=file)


def to_fault(error: Exception, place: str = '', file: str = '') -> errors.Fault:
  """Returns the fault of an episode whose data caused an error.

  Parsers of damaged files raise errors of many classes, so all errors become
  faults, except errors that other episodes would raise, too, or that a retry
  may fix: missing packages, out of memory, and I/O errors. These are raised
  again.

  Args:
    error: the error.
    place: the location of the episode.
    file: the path of the file of the episode.
  """
  # Parsers raise OSErrors without errno for damage. A missing file is a fault
  # of its episode only.
  is_io_error = isinstance(error, OSError) and error.errno not in (
      None,
      errno.ENOENT,
  )
  if is_io_error or isinstance(error, (ImportError, MemoryError)):
    raise error
  text = ' '.join(str(error).split()).rstrip('.')
  if not isinstance(error, (OSError, ValueError)):
    text = f'{type(error).__name__}: {text}'
  return errors.Fault(
      f'{text}.', place='' if place in text else place, file=file
  )


def naming_path(reader: _Reader) -> _Reader:
  """Decorates a reader so that its errors are ValueErrors with the path.

  Parsers of damaged files raise errors of many classes. A reader raises a
  ValueError for all, as the file is an argument of the user; files that this
  library has written raise the OSErrors of `store.damage`. An OSError with a
  file name, and a TypeError of a wrong call, remain unchanged.
  """

  @functools.wraps(reader)
  def load(path, *args, **kwargs):
    is_path = isinstance(path, (str, os.PathLike))
    token = _SOURCE.set(os.fspath(path) if is_path else '')
    try:
      return reader(path, *args, **kwargs)
    except _DAMAGES as e:
      text = str(e)
      if not is_path or _has_path(e, path):
        raise
      if _is_wrong_call(e, reader, path, args, kwargs):
        raise
      if not isinstance(e, ValueError):
        text = f'It is damaged: {type(e).__name__}: {text}.'
      raise ValueError(f'{os.fspath(path)}: {text}') from e
    finally:
      _SOURCE.reset(token)

  # `inspect.unwrap` must only remove the wrapper of gin.
  wrapper: Any = load
  del wrapper.__wrapped__
  wrapper.__signature__ = inspect.signature(reader)
  return wrapper


def _has_path(error: Exception, path: Any) -> bool:
  """Returns whether an error contains the path."""
  if isinstance(error, OSError) and error.filename:
    return True
  names = os.fspath(path), os.fspath(files.expand(path))
  return isinstance(error, (OSError, ValueError)) and any(
      name in str(error) for name in names
  )


def _is_wrong_call(error, reader, path, args, kwargs) -> bool:
  """Returns whether an error was caused by the arguments of a call."""
  if not isinstance(error, TypeError):
    return False
  try:
    inspect.signature(reader).bind(path, *args, **kwargs)
  except TypeError:
    return True
  return False


def make_episode(
    steps: dict[str, Any],
    episode_id: int,
    is_terminal: Any = False,
    fields: Mapping[str, Any] | None = None,
    has_last: bool | None = None,
) -> PythonEpisode:
  """Creates an episode of `T` actions from columns.

  The episode has `T + 1` steps if it has `T + 1` observations, or if it is
  terminal: then a step of zeros replaces the missing observation. Otherwise the
  last observation becomes the last step, whose action is ignored.

  Args:
    steps: a dict of step fields with `T` or `T + 1` rows. A missing reward is
      float32 zeros.
    episode_id: the id of the episode.
    is_terminal: whether the episode is terminal: a bool, or a column whose last
      row is the flag.
    fields: other episode fields.
    has_last: whether there must be one observation more than actions; None
      accepts both.

  Raises:
    ValueError: if there is no observation; or if the numbers of observations,
      actions and rewards do not match.
  """
  if not tf.nest.flatten(steps.get(rlds.OBSERVATION, ())):
    raise ValueError(
        f'Episode {episode_id} has no observation, but only {sorted(steps)}.'
        ' Skip fewer fields.'
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


class _Form(NamedTuple):
  """The specs that all episodes of a data set must have.

  Attributes:
    steps: a nest of the specs of one row of each step field.
    fields: a nest of the specs of other episode fields.
    episode: the name of an episode with these specs.
  """

  steps: Any
  fields: Any
  episode: str


def to_dataset(
    episodes: Callable[[], Episodes],
    num_episodes: int | None = None,
    *,
    is_last_dropped: bool = False,
    num_compared: int = NUM_COMPARED,
) -> tf.data.Dataset:
  """Creates an RLDS data set from episodes that are read in Python.

  Args:
    episodes: a generator function of episodes. It is called once immediately,
      for the first episodes, and once for each iteration of the data set. The
      columns of an episode are read before the next episode is requested. An
      error of the generator ends the data set with this error.
    num_episodes: the number of episodes, if it is known.
    is_last_dropped: whether the last step of a truncated episode has the reward
      of a transition that is dropped, because its next observation is missing.
    num_compared: the number of first episodes to inspect. The data set has the
      specs that most of them have.

  Returns:
    A data set of episodes with stacked `steps`, `episode_id` and the episode
    fields. It has batches; see `episode_dataset.batches_of`. These fields are
    added to the steps, unless they exist:

      is_first    |  1     0    ...  0     0   |
      is_last     |  0     0         0     1   |
      is_terminal |  0     0         0     e   |   e: the episode is terminal
      discount    |  1     1        1-e   1-e  |

  Raises:
    ValueError: if there is no episode, or if none of the first episodes can be
      read.
    InvalidArgumentError: while iterating, if an episode cannot be read, or if
      its specs differ. The episodes after it can still be read.
  """
  episodes = functools.partial(_with_source, episodes, _SOURCE.get())
  form = _find_form(episodes, num_compared)
  step_spec = dict.fromkeys(rlds.FLAGS, tf.TensorSpec([], tf.bool))
  step_spec[rlds.DISCOUNT] = tf.TensorSpec([], tf.float32)
  stacked = lambda spec: tf.TensorSpec([None, *spec.shape], spec.dtype)
  fault = errors.Fault(*[tf.TensorSpec([], tf.string)] * len(errors.NO_FAULT))
  dataset = tf.data.Dataset.from_generator(
      lambda: _batches(episodes, form),
      output_signature=batch_lib.EpisodeBatch(
          tf.nest.map_structure(
              stacked, {**form.steps, **step_spec, **form.steps}
          ),
          tf.TensorSpec([None], tf.int64),
          tf.nest.map_structure(
              stacked,
              {_EPISODE_ID: tf.TensorSpec([], tf.int64), **form.fields},
          ),
          fault._replace(step=tf.TensorSpec([], tf.int64)),
      ),
  ).prefetch(1)
  if is_last_dropped:
    episode_dataset.mark_last_transition_dropped(dataset)
  return episode_dataset.EpisodeDataset(dataset, num_episodes)


def _with_source(episodes: Callable[[], Episodes], source: str) -> Episodes:
  """Yields episodes; the default of their place is the data set."""
  with contextlib.closing(episodes()) as stream:
    for episode in stream:
      is_named = isinstance(episode, errors.Fault) and source in episode.rule
      if source and not episode.place and not is_named:
        episode = episode._replace(place=source)
      yield episode


def _find_form(episodes: Callable[[], Episodes], num_compared: int) -> _Form:
  """Returns the most common form of the first readable episodes."""
  forms: list[_Form] = []
  first_fault, num_faults = None, 0
  with contextlib.closing(episodes()) as stream:
    for episode in stream:
      form = _form_of(episode)
      if isinstance(form, errors.Fault):
        num_faults += 1
        first_fault = first_fault or (num_faults - 1, form)
      else:
        forms.append(form)
      if len(forms) == num_compared or (
          not forms and num_faults == MAX_FAULTS_FIRST
      ):
        break
  if forms:
    count_equal = lambda form: sum(_is_equal(form, other) for other in forms)
    return max(forms, key=count_equal)
  if first_fault is None:
    raise ValueError('There is no episode.')
  index, fault = first_fault
  text = errors.describe_fault(fault, index).numpy().decode()
  if num_faults > 1:
    text = f'None of the first {num_faults} episodes can be read. {text}'
  raise ValueError(text)


def _form_of(episode: Episode) -> _Form | errors.Fault:
  """Returns the form of an episode, or its fault."""
  if isinstance(episode, errors.Fault):
    return episode
  try:
    steps = tree.map_structure_with_path(
        lambda path, column: _check(episode, path, column), episode.steps
    )
    fields = tf.nest.map_structure(columns_lib.row_spec, episode.fields)
  except Exception as e:
    return to_fault(e, episode.place, episode.file)
  return _Form(steps, fields, _name_of(episode))


def _is_equal(form: _Form, other: _Form) -> bool:
  try:
    tree.assert_same_structure(form[:2], other[:2])
  except (TypeError, ValueError):
    return False
  return tree.flatten(form[:2]) == tree.flatten(other[:2])


def _batches(
    episodes: Callable[[], Episodes], form: _Form
) -> Iterator[batch_lib.EpisodeBatch]:
  """Reads the episodes in batches."""
  max_steps = max(BATCH_BYTES // steps_lib.estimate_step_bytes(form.steps), 1)
  pending: list[PythonEpisode] = []
  num_steps = 0
  error = None
  with contextlib.closing(_read_each(episodes, form)) as stream:
    while True:
      try:
        episode = next(stream, None)
      except Exception as e:
        error, episode = e, None  # The episodes before it come first.
      is_fault = isinstance(episode, errors.Fault)
      length = 0
      if isinstance(episode, PythonEpisode):
        length = episode.num_steps.sum()
      is_full = length and num_steps + length > max_steps
      if pending and (episode is None or is_fault or is_full):
        yield _join(pending)
        pending, num_steps = [], 0
      if error is not None:
        raise error
      if episode is None:
        return
      if isinstance(episode, errors.Fault):
        yield _without_steps(episode, form)
      else:
        pending.append(episode)
        num_steps += length


def _read_each(episodes: Callable[[], Episodes], form: _Form) -> Episodes:
  """Yields episodes in memory, or faults."""
  with contextlib.closing(episodes()) as stream:
    for episode in stream:
      read = _try_to_read(episode, form)
      if isinstance(read, errors.Fault) and isinstance(episode, PythonEpisode):
        if len(episode.num_steps) > 1:  # Isolates the faults.
          for single in _separate(episode):
            yield _try_to_read(single, form)
          continue
      yield read


def _try_to_read(episode: Episode, form: _Form) -> Episode:
  if isinstance(episode, errors.Fault):
    return episode
  return attempt(_read, episode, form, place=episode.place, file=episode.file)


def _separate(episodes: PythonEpisode) -> Iterator[PythonEpisode]:
  """Yields the episodes of a `PythonEpisode` separately."""
  num_steps, may_lack = episodes.num_steps, episodes.may_lack
  ends = np.cumsum(num_steps)
  short_ends = np.cumsum(num_steps - may_lack)
  for index, (end, short_end) in enumerate(zip(ends, short_ends)):
    begin = end - num_steps[index]
    short_begin = short_end - num_steps[index] + may_lack[index]

    def slice_rows(column, bounds=((begin, end), (short_begin, short_end))):
      return columns_lib.part(column, *bounds[len(column) < ends[-1]])

    row = slice(index, index + 1)
    yield episodes._replace(
        steps=tf.nest.map_structure(slice_rows, episodes.steps),
        num_steps=num_steps[row],
        is_terminal=episodes.is_terminal[row],
        episode_id=episodes.episode_id[row],
        fields=tf.nest.map_structure(lambda rows: rows[row], episodes.fields),
        may_lack=may_lack[row],
    )


def _without_steps(fault: errors.Fault, form: _Form) -> batch_lib.EpisodeBatch:
  """Returns the batch of a fault."""
  empty = PythonEpisode(
      tf.nest.map_structure(
          lambda spec: columns_lib.zeros(0, spec), form.steps
      ),
      columns_lib.row(0),
      columns_lib.row(False),
      columns_lib.row(0),
      tf.nest.map_structure(
          lambda spec: columns_lib.zeros(1, spec), form.fields
      ),
      columns_lib.row(False),
  )
  return _join([empty], fault)


def _join(
    episodes: list[PythonEpisode], fault: errors.Fault = errors.NO_FAULT
) -> batch_lib.EpisodeBatch:
  """Returns the batch of episodes in memory."""
  join = lambda *rows: rows[0] if len(rows) == 1 else np.concatenate(rows)
  steps, lengths, is_terminal, ids, fields = tf.nest.map_structure(
      join, *(episode[:5] for episode in episodes)
  )
  splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
  row = np.arange(splits[-1])
  # The number of steps after each step in its episode.
  remaining = np.repeat(splits[1:], lengths) - 1 - row
  is_terminal = np.repeat(is_terminal, lengths)
  flags = {
      rlds.IS_FIRST: row == np.repeat(splits[:-1], lengths),
      rlds.IS_LAST: remaining == 0,
      rlds.IS_TERMINAL: (remaining == 0) & is_terminal,
      rlds.DISCOUNT: 1 - ((remaining <= 1) & is_terminal).astype(np.float32),
  }
  return batch_lib.EpisodeBatch(
      {**flags, **steps}, splits, {**fields, _EPISODE_ID: ids}, fault
  )


def _read(episode: PythonEpisode, form: _Form) -> PythonEpisode:
  """Reads the columns of an episode into new arrays."""
  for kind, spec, nest in (
      ('fields', form.steps, episode.steps),
      ('fields of the episode', form.fields, episode.fields),
  ):
    try:
      tf.nest.assert_same_structure(spec, nest)
    except (TypeError, ValueError) as e:
      structure, expected = (
          [paths.name_of(path) for path, _ in tree.flatten_with_path(part)]
          for part in (nest, spec)
      )
      raise ValueError(
          f'{_name_of(episode).capitalize()} has the {kind} {structure}, but'
          f' {form.episode} has {expected}.'
      ) from e
  ends = np.cumsum(episode.num_steps) - 1
  has_value = np.ones(episode.num_steps.sum(), bool)
  has_value[ends[episode.may_lack & (ends >= 0)]] = False

  def read(path, row_spec, column):
    _check(episode, path, column, row_spec, form.episode)
    # TensorFlow may write into an array, so it receives a new one.
    rows = columns_lib.zeros(len(has_value), row_spec)
    if len(column):
      place = slice(None) if len(column) == len(has_value) else has_value
      rows[place] = columns_lib.read(column, slice(None), row_spec)
    return rows

  def read_field(path, spec, rows):
    actual = columns_lib.row_spec(rows)
    if actual != spec:
      raise ValueError(
          f'{paths.name_of(path)} of {_name_of(episode)} is'
          f' {actual.dtype.name} {actual.shape}, but {form.episode} has'
          f' {spec.dtype.name} {spec.shape}.'
      )
    return columns_lib.read(rows, slice(None), spec).copy()

  return episode._replace(
      steps=tree.map_structure_with_path(read, form.steps, episode.steps),
      fields=tree.map_structure_with_path(
          read_field, form.fields, episode.fields
      ),
  )


def _name_of(episode: PythonEpisode) -> str:
  ids = episode.episode_id
  return f'episode {ids[0]}' if len(ids) else 'no episode'


def _check(
    episode: PythonEpisode,
    path: Any,
    column: columns_lib.AnyColumn,
    expected: tf.TensorSpec | None = None,
    like: str = '',
) -> tf.TensorSpec:
  """Validates a column, and returns the spec of its rows.

  Args:
    episode: the episode.
    path: the path of the column.
    column: the column.
    expected: the required spec of the rows, if it is known.
    like: the name of an episode with this spec.
  """
  name = paths.name_of(path)
  place = f'{name} of {_name_of(episode)}'
  spec = expected or columns_lib.checked_spec(name, column, place)
  num_steps = episode.num_steps.sum()
  counts = num_steps - episode.may_lack.sum(), num_steps
  if len(column) not in counts:
    raise ValueError(
        f'{place} has {len(column)} rows, but an episode of {num_steps} steps'
        f' must have {counts[0]} or {num_steps}.'
    )
  if len(column) and not columns_lib.has_spec(column, spec):
    raise ValueError(
        f'The rows of {place} are {column.dtype} {column.shape[1:]}, but in'
        f' {like} they are {spec.dtype.name} {spec.shape}.'
    )
  return spec
