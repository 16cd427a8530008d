"""Experience that RLlib has recorded: JSON lines, or parquet tables.

    output-2026-01-31_12-00-00_worker-1_0.json
      {"type": "SampleBatch", "obs": "BCJNGG...", "actions": [0, 2], ...}

A line of `JsonWriter` is a batch of transitions. Its columns are lists; some,
`obs` and `new_obs` by default, are packed: a pickle, compressed with LZ4, in
base64. Files of lines may be in a zip archive, or compressed with gzip.

A row of a parquet table is a transition, a batch as in a line, or an episode:
`output_write_episodes`, the default of RLlib's new API stack, writes the state
of a complete or partial `SingleAgentEpisode` as msgpack in a single column, in
a folder for each worker.

The formats are as of RLlib 2.60.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import gzip
import itertools
import json
import os
import re
from typing import Any, IO
import zipfile
import zlib

from etils import epy
import gin
import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.datasets import files
from rlds2reverb.datasets import format_registry
from rlds2reverb.episodes import errors
from rlds2reverb.episodes import limits
from rlds2reverb.episodes import rlds
from rlds2reverb.formats import arrow
from rlds2reverb.formats import columns as columns_lib
from rlds2reverb.formats import numpy_pickles
from rlds2reverb.formats import python_episodes

with epy.lazy_imports(error_callback=format_registry.explain_missing_library):
  import msgpack
  import pyarrow as pa

_TYPES = ('SampleBatch', 'MultiAgentBatch')
_FIELDS = {'obs': rlds.OBSERVATION, 'actions': rlds.ACTION}
_NEXT = 'new_obs'
# Older versions write `dones` instead of `terminateds`.
_TERMINATED, _TRUNCATED = ('terminateds', 'dones'), 'truncateds'
_EPISODE, _STEP, _AGENT = 'eps_id', 't', 'agent_index'
# These columns do not become step fields.
_SKIPPED = (*_TERMINATED, _TRUNCATED, _NEXT, _EPISODE, 'unroll_id', 'infos')
_TYPE = 'type'
# The extensions of files of lines.
_LINES = ('.json', '.json.gz', '.zip')
# The errors that parsers raise for damaged files.
_DAMAGES = (OSError, EOFError, zipfile.BadZipFile, zlib.error)
# Keys of the state of an episode, and their columns.
_STATE = {'observations': 'obs', 'actions': 'actions', 'rewards': 'rewards'}
_BATCH_ROWS = 1024
# If a row is an episode or a batch.
_LARGE_ROWS = 16


@gin.configurable(module='rlds2reverb')
@python_episodes.naming_path
def load_rllib(
    path: files.PathLike, *, policy: str | None = None
) -> tf.data.Dataset:
  """Reads experience that RLlib has recorded.

  Transitions with the same `eps_id` (and `agent_index`) are an episode, which
  may continue in a later line or file. An episode ends at a row with
  `terminateds` or `truncateds`, or if `t` is not consecutive; without `eps_id`
  and `t`, also if `new_obs` is not the next `obs`. An episode without an end is
  truncated. `new_obs` of the last transition is the observation of the last
  step; every other `new_obs` must be the next `obs`. Without `new_obs`, the
  last observation of a truncated episode becomes its last step, whose action is
  ignored, and a step of zeros is appended to a terminal episode.

  Unfinished episodes remain in memory until they continue in a later line, or
  until the end of the data.

  Args:
    path: a file that ends with `.json`, `.json.gz`, `.zip` or `.parquet`, or a
      folder of such files and folders, which are sorted by name.
    policy: the policy whose transitions are read from multi-agent batches.
      Required if there are several policies.

  Returns:
    A data set of episodes with stacked steps, in the order in which they end.
    Columns become step fields of the same names, except that `obs`, `actions`
    and `rewards` become `observation`, `action` and `reward`. Packed columns
    keep their dtypes; numbers in JSON are int64, float64 and bool.

  Raises:
    ValueError: if there are no such files, or if no episode can be read.
    ImportError: if there are episodes in msgpack, but msgpack is not installed.
    InvalidArgumentError: while iterating, if a line or table is damaged; if
      columns differ in length; if a packed column contains anything but NumPy
      arrays, dicts, lists and numbers; or if `new_obs` is not the next `obs`,
      as for n-step returns. Episodes that may have transitions in a damaged
      line are invalid. The other episodes can still be read.
  """
  path = files.expand_local(path, 'Experience of RLlib')
  paths = _find_files(path)
  if not paths:
    raise ValueError(
        f'There is no experience of RLlib at {path}: expected a file that ends'
        f' with {", ".join(_LINES)} or .parquet.'
    )

  def read() -> python_episodes.Episodes:
    index = -1
    for index, episode in enumerate(_read_episodes(paths, policy)):
      if isinstance(episode, errors.Fault):
        yield episode
        continue
      place = f'{episode.place}, where it ends' if episode.place else ''
      yield python_episodes.attempt(
          _make_episode, episode, index, place=place, file=episode.file
      )
    if index < 0:
      raise ValueError(f'There are no episodes in {", ".join(paths[:3])}.')

  return python_episodes.to_dataset(read)


def _find_files(path: str) -> list[str]:
  if os.path.isfile(path):
    return [path]
  # Worker 2 before worker 10.
  key = lambda name: [
      int(part) if part.isdigit() else part for part in re.split(r'(\d+)', name)
  ]
  return sorted(
      (
          name
          for name in files.local_files(path)
          if name.endswith((*_LINES, '.parquet'))
      ),
      key=key,
  )


# The place of a batch for errors, and its columns or its error.
_Batches = Iterator[tuple[str, dict[str, Any] | Exception]]


@dataclasses.dataclass(eq=False)
class _Loss:
  """A damaged batch.

  Attributes:
    fault: the fault of the batch.
    is_reported: whether the fault of an episode has been reported for it.
    is_unassigned: whether it was reported without an episode.
    num_open: the number of open episodes that may have transitions in it.
  """

  fault: errors.Fault
  is_reported: bool = False
  is_unassigned: bool = False
  num_open: int = 0


@dataclasses.dataclass(eq=False)
class _Episode:
  """An episode of which some batches have been read.

  Attributes:
    parts: the columns in each batch.
    losses: damaged batches that may contain other parts of the episode.
    is_lost: whether they do.
    is_reported: whether the fault was reported before the end of the episode.
    place: the place of the last part.
    file: the file of the last part.
  """

  parts: list[dict[str, Any]] = dataclasses.field(default_factory=list)
  losses: list[_Loss] = dataclasses.field(default_factory=list)
  is_lost: bool = False
  is_reported: bool = False
  place: str = ''
  file: str = ''

  def settle(self, is_lost: bool) -> Iterator[errors.Fault]:
    """Decides whether parts are lost; yields faults without an episode."""
    for loss in self.losses:
      loss.num_open -= 1
      loss.is_reported |= is_lost
      if not loss.num_open and not loss.is_reported:
        yield loss.fault
    if not is_lost:
      self.losses = []


def _read_episodes(
    paths: list[str], policy: str | None
) -> Iterator[_Episode | errors.Fault]:
  """Yields complete episodes, or the faults of episodes."""
  unfinished: dict[Any, _Episode] = {}
  last_loss: _Loss | None = None

  def finish(key: Any) -> Iterator[_Episode | errors.Fault]:
    episode = unfinished.pop(key)
    if episode.losses and not episode.is_lost:
      yield from episode.settle(True)
    if not episode.is_reported:
      yield episode.losses[0].fault if episode.losses else episode

  for path in paths:
    batches = _read_parquet if path.endswith('.parquet') else _read_json
    for place, batch in batches(path, policy):
      cuts: Any = batch
      if not isinstance(batch, Exception):
        try:
          cuts = list(_cut(batch, place))
        except Exception as e:
          cuts = e
      if isinstance(cuts, Exception):
        affected = [e for e in unfinished.values() if not e.is_lost]
        fault = python_episodes.to_fault(cuts, place, path)
        if not unfinished:
          yield fault
        last_loss = loss = _Loss(
            fault, is_unassigned=not unfinished, num_open=len(affected)
        )
        for episode in affected:
          episode.losses.append(loss)
        continue
      for key, part, is_end in cuts:
        episode = unfinished.setdefault(key, _Episode())
        continues = not episode.parts or _continues(episode.parts[-1], part)
        if not episode.parts and last_loss and not _begins(part, True):
          episode.losses, episode.is_lost = [last_loss], True
          episode.is_reported = last_loss.is_unassigned
          last_loss.is_reported, last_loss.is_unassigned = True, False
        if episode.losses and not episode.is_lost:
          # Nothing is lost if steps, or else observations, are consecutive.
          last = episode.parts[-1]
          is_lost = not continues
          if _STEP not in part or _STEP not in last:
            is_lost |= _NEXT not in last or not _is_next(last, part)
          yield from episode.settle(is_lost)
          episode.is_lost = is_lost
          # The rest of the episode follows, unless a new episode begins.
          continues |= is_lost and not _begins(part, False)
        if not continues:
          yield from finish(key)
          unfinished[key] = episode = _Episode()
        # An incomplete episode only needs its last part, for `_continues`.
        if episode.is_lost:
          episode.parts.clear()
        episode.parts.append(part)
        episode.place, episode.file = place, path
        if is_end:
          yield from finish(key)
  for key in list(unfinished):
    yield from finish(key)


def _read_json(path: str, policy: str | None) -> _Batches:
  """Yields the place and the columns of each line of a file."""
  name = path
  hint = files.pointer_hint(path)
  if hint:
    yield name, ValueError(hint)
    return
  try:
    for name, lines in _open_lines(path):
      yield from _read_lines(name, lines, policy)
  except _DAMAGES as e:
    if isinstance(e, OSError) and e.errno is not None:
      raise
    yield name, ValueError(f'{name} is not a complete file: {e}')


def _open_lines(path: str) -> Iterator[tuple[str, Any]]:
  """Yields the files of lines at a path, with their descriptions."""
  if path.endswith('.zip'):
    with zipfile.ZipFile(path) as archive:
      for name in sorted(archive.namelist()):
        if name.endswith('.json'):
          with archive.open(name) as file:
            yield f'{name} in {path}', file
  else:
    is_compressed = path.endswith('.gz')
    with gzip.open(path) if is_compressed else open(path, 'rb') as file:
      yield path, file


def _read_lines(name: str, file: IO[bytes], policy: str | None) -> _Batches:
  """Yields the place and the columns of each line."""
  for number in itertools.count(1):
    place = f'line {number} of {name}'
    try:
      line = limits.read_expanded(place, file.readline, 0)
    except ValueError as e:
      yield place, e
      return
    if not line:
      return
    if not line.strip():
      continue
    try:
      value = json.loads(line.decode(errors='replace'))
    except (ValueError, RecursionError) as e:
      yield place, ValueError(
          f'{place} is not a complete line of JSON: {e}. If RLlib was stopped'
          ' while writing, remove the line.'
      )
      continue
    yield from _batch_of(value, policy, place)


def _batch_of(content: Any, policy: str | None, place: str) -> _Batches:
  """Yields the columns of a JSON batch, if it contains the policy."""
  try:
    kind = content.get(_TYPE) if isinstance(content, dict) else None
    if kind not in _TYPES:
      raise ValueError(
          f'{place} is not a batch of RLlib: its type must be SampleBatch or'
          f' MultiAgentBatch, but is {kind!r}.'
      )
    if kind == 'MultiAgentBatch':
      batches = content.get('policy_batches')
      if not isinstance(batches, dict):
        raise ValueError(f'{place} has no policy_batches.')
      if policy is None and len(batches) > 1:
        raise ValueError(
            f'{place} has transitions of the policies {sorted(batches)}. Select'
            f' a policy: policy={min(batches)!r}.'
        )
      name = policy or next(iter(batches), None)
      content = batches.get(name)
    if content is None:
      return
    columns = {
        name: _to_array(column, name, place)
        for name, column in content.items()
        if name not in (_TYPE, 'infos')
    }
  except Exception as e:
    yield place, e
    return
  yield place, columns


def _read_parquet(path: str, policy: str | None) -> _Batches:
  """Yields the places and the columns of batches of rows."""
  begin = 0
  try:
    with arrow.open_parquet(path) as file, arrow.open_errors(path):
      schema = file.schema_arrow
      names = [
          field.name for field in schema if not pa.types.is_null(field.type)
      ]
      episodes = [field.name for field in schema if arrow.is_binary(field.type)]
      is_episodes = len(schema.names) == 1 and bool(episodes)
      if not is_episodes and not {'obs', 'actions'} <= {*names}:
        raise ValueError(
            f'{path} has the columns {schema.names}, but must have obs and'
            ' actions, or a single column of episodes as with'
            f' output_write_episodes=True.{format_registry.hint(path)}'
        )
      is_large = is_episodes or _TYPE in names
      size = _LARGE_ROWS if is_large else _BATCH_ROWS
      for rows in arrow.iter_batches(file, size):
        if is_large:
          for number, row in enumerate(rows.to_pylist(), begin):
            place = f'row {number} of {path}'
            if is_episodes:
              yield from _batch_of_state(row[episodes[0]], place)
            else:
              yield from _batch_of(row, policy, place)
        else:
          yield from _batch_of_rows(rows, names, f'row {begin} and later', path)
        begin += rows.num_rows
  except ValueError as e:
    yield f'row {begin} and later of {path}', e


def _batch_of_rows(
    rows: pa.RecordBatch, names: list[str], place: str, path: str
) -> _Batches:
  """Yields the columns of rows that are transitions."""
  place = f'{place} of {path}'
  columns = {}
  try:
    for name in names:
      column = rows[name]
      if name == 'infos':
        continue
      if name in _FIELDS and pa.types.is_struct(column.type):
        raise ValueError(
            f'{name} in {place} is a dict, whose lists RLlib stores without'
            ' their types. Record with output_write_episodes=True.'
        )
      columns[name] = _to_array(
          column.to_pylist()
          if pa.types.is_string(column.type)
          else arrow.to_array(pa.chunked_array([column]), None, name),
          name,
          place,
      )
  except ValueError as e:
    yield place, e
    return
  yield place, columns


def _batch_of_state(packed: Any, place: str) -> _Batches:
  """Yields the columns of the state of a `SingleAgentEpisode`, in msgpack."""
  unpack = msgpack.unpackb  # An ImportError is not an error of the data.
  try:
    state = unpack(
        packed, object_hook=_array_of, raw=False, strict_map_key=False
    )
    columns = _columns_of_state(state)
  except Exception as e:
    yield place, ValueError(
        f'{place} is not an episode of RLlib: {e or type(e).__name__}.'
    )
    return
  if columns is not None:
    yield place, columns


def _columns_of_state(state: Any) -> dict[str, Any] | None:
  """Returns the columns of the state of an episode; None without a step.

  Buffers begin with `lookback` rows of the previous part.
  """
  if not isinstance(state, dict) or 'observations' not in state:
    raise ValueError(
        'it must be the state of a SingleAgentEpisode, but has'
        f' {sorted(state) if isinstance(state, dict) else type(state).__name__}'
    )
  buffers = {
      **{column: state.get(name) for name, column in _STATE.items()},
      **(state.get('extra_model_outputs') or {}),
  }
  columns: dict[str, Any] = {}
  for name, buffer in buffers.items():
    if buffer is None:
      continue
    lookback, data = int(buffer['lookback']), _with_tuples(buffer['data'])
    if buffer['finalized']:
      columns[name] = tree.map_structure(
          lambda leaf, n=lookback: leaf[n:], data
      )
    elif len(data) > lookback:
      columns[name] = tree.map_structure(
          lambda *leaves: np.stack(leaves), *data[lookback:]
      )
  for path, leaf in tree.flatten_with_path(columns):
    if leaf is None or leaf.dtype.hasobject:
      raise ValueError(
          f'{"/".join(map(str, path))} has objects, which could run code; only'
          ' numbers are read'
      )
  if 'actions' not in columns:
    return None
  count = len(tree.flatten(columns['actions'])[0])
  observed = columns['obs']
  lengths = {len(leaf) for leaf in tree.flatten(observed)}
  if lengths != {count + 1}:
    raise ValueError(
        f'it has {sorted(lengths)} observations, but {count} actions'
    )
  is_last = np.arange(count) == count - 1
  return {
      **columns,
      'obs': tree.map_structure(lambda leaf: leaf[:-1], observed),
      _NEXT: tree.map_structure(lambda leaf: leaf[1:], observed),
      _TERMINATED[0]: is_last & bool(state['is_terminated']),
      _TRUNCATED: is_last & bool(state['is_truncated']),
      _EPISODE: np.array([str(state['id_']).encode()] * count, object),
      _STEP: np.arange(count) + int(state['t_started']),
  }


def _with_tuples(value: Any) -> Any:
  """Returns a nest with tuples, which msgpack converts to lists."""
  if isinstance(value, dict):
    return {key: _with_tuples(item) for key, item in value.items()}
  if isinstance(value, (list, tuple)):
    return tuple(map(_with_tuples, value))
  return value


def _array_of(value: dict[Any, Any]) -> Any:
  """Decodes an array that `msgpack_numpy` has encoded as a dict.

  Arrays of objects, such as `infos`, are pickles that could run code, so they
  become None.
  """
  keys = {
      key.decode() if isinstance(key, bytes) else key: item
      for key, item in value.items()
  }
  if 'nd' not in keys:
    return value
  kind = keys['type']
  if keys.get('kind') or not isinstance(kind, str) or np.dtype(kind).hasobject:
    return None
  array = np.frombuffer(keys['data'], np.dtype(kind))
  return array.reshape(keys['shape']) if keys['nd'] else array[0]


def _to_array(column: Any, name: str, place: str) -> Any:
  """Converts a column, or a nest of columns, to NumPy arrays."""
  try:
    if isinstance(column, str):
      column = _unpack(column)
    if isinstance(column, dict):
      return {
          key: _to_array(value, f'{name}/{key}', place)
          for key, value in column.items()
      }
    if isinstance(column, list) and column:
      if isinstance(column[0], str) and column[0].startswith('BCJNGG'):
        column = [_unpack(value) for value in column]
      if isinstance(column[0], dict):
        return tree.map_structure(lambda *rows: np.stack(rows), *column)
    array = np.asarray(column)
    if array.dtype == object and not isinstance(column[0], (str, bytes)):
      raise ValueError('its values have no common shape and dtype')
    if array.dtype.kind == 'U':
      array = np.array([value.encode() for value in column], object)
    return array
  except (ValueError, TypeError) as e:
    raise ValueError(
        f'The column {name} in {place} cannot be read: {e}.'
    ) from e


def _unpack(text: str) -> Any:
  """Decodes a packed value."""
  try:
    packed = base64.b64decode(text, validate=True)
    stream = pa.CompressedInputStream(pa.BufferReader(packed), 'lz4')
    content = limits.read_expanded('its content', stream.read, len(packed))
  except (binascii.Error, OSError) as e:
    raise ValueError(f'it is not a packed column of RLlib: {e}') from e
  return numpy_pickles.loads(content)


def _cut(
    batch: dict[str, Any], place: str
) -> Iterator[tuple[Any, dict[str, Any], bool]]:
  """Splits a batch by episodes.

  Args:
    batch: columns `[T]`.
    place: the description of the batch for errors.

  Yields:
    The id of an episode, its columns, and whether the episode ends there.
  """
  missing = [name for name in _FIELDS if name not in batch]
  if missing:
    raise ValueError(
        f'There is no column {", ".join(missing)} in {place}. Its columns are'
        f' {sorted(batch)}.'
    )
  lengths = {
      '/'.join(map(str, path)): leaf.shape[0] if leaf.ndim else 0
      for path, leaf in tree.flatten_with_path(batch)
  }
  if len(set(lengths.values())) > 1:
    raise ValueError(f'The columns in {place} differ in length: {lengths}.')
  count = next(iter(lengths.values()))
  zeros = np.zeros(count, bool)
  terminated = next((batch[n] for n in _TERMINATED if n in batch), zeros)
  terminated = np.asarray(terminated, bool).reshape(count)
  ends = terminated | np.asarray(batch.get(_TRUNCATED, zeros), bool).reshape(
      count
  )
  keys = [
      np.asarray(batch[name]).reshape(count)
      for name in (_EPISODE, _AGENT)
      if name in batch
  ]
  changes = zeros[1:].copy()
  for key in keys:
    changes |= key[1:] != key[:-1]
  if _STEP in batch:
    step = np.asarray(batch[_STEP]).reshape(count)
    changes |= step[1:] != step[:-1] + 1
  elif not keys and _NEXT in batch:
    for previous, following in zip(
        tree.flatten(batch['obs']), tree.flatten(batch[_NEXT])
    ):
      changes |= columns_lib.find_jumps(previous, following)
  bounds = np.flatnonzero(np.append(changes | ends[:-1], True)) + 1
  for begin, end in zip([0, *bounds], bounds):
    if begin < end:
      part = tree.map_structure(lambda leaf, a=begin, b=end: leaf[a:b], batch)
      values = (key[begin : begin + 1].tolist()[0] for key in keys)
      yield tuple(values), part, bool(ends[end - 1])


def _is_next(previous: Mapping[str, Any], following: Mapping[str, Any]) -> bool:
  """Returns whether the observations of two parts are consecutive."""
  last = tree.flatten(previous[_NEXT])
  first = tree.flatten(following['obs'])
  return len(last) == len(first) and all(
      end.shape[1:] == other.shape[1:]
      and columns_lib.equal_rows(end[-1:], other[:1]).all()
      for end, other in zip(last, first)
  )


def _begins(part: Mapping[str, Any], default: bool) -> bool:
  """Returns whether a part begins an episode; the default without steps."""
  return not part[_STEP].flat[0] if _STEP in part else default


def _continues(
    previous: Mapping[str, Any], following: Mapping[str, Any]
) -> bool:
  """Returns whether two parts of an episode are consecutive."""
  if _STEP in previous and _STEP in following:
    return following[_STEP].flat[0] == previous[_STEP].flat[-1] + 1
  if _EPISODE not in previous and _NEXT in previous and _NEXT in following:
    return _is_next(previous, following)
  return True


def _make_episode(
    episode: _Episode, index: int
) -> python_episodes.PythonEpisode:
  names = episode.parts[0].keys()
  for part in episode.parts:
    if part.keys() != names:
      raise ValueError(
          f'The parts of the episode that ends before or in {episode.place}'
          f' have different columns: {sorted(names)} and {sorted(part)}.'
      )
  columns = tree.map_structure(
      lambda *pieces: np.concatenate(pieces), *episode.parts
  )
  terminated = next(
      (columns[name] for name in _TERMINATED if name in columns), False
  )
  steps = {
      {**_FIELDS, 'rewards': rlds.REWARD}.get(name, name): column
      for name, column in columns.items()
      if name not in _SKIPPED
  }
  if _NEXT in columns:
    following = dict(tree.flatten_with_path(columns[_NEXT]))

    def with_last(path, rows):
      if path not in following:
        raise ValueError(f'There is no {_NEXT} for each obs.')
      name = '/'.join(('', *map(str, path)))
      columns_lib.check_next_rows(
          f'episode {index}', f'obs{name}', rows, _NEXT + name, following[path]
      )
      return np.concatenate([rows, following[path][-1:]])

    steps[rlds.OBSERVATION] = tree.map_structure_with_path(
        with_last, steps[rlds.OBSERVATION]
    )
  return python_episodes.make_episode(
      steps, index, bool(np.asarray(terminated).flat[-1])
  )
