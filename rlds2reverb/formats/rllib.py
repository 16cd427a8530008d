"""Experience that RLlib has recorded: JSON lines, or tables of parquet.

    output-2026-01-31_12-00-00_worker-1_0.json
      {"type": "SampleBatch", "obs": "BCJNGG...", "actions": [0, 2], ...}

A line of `JsonWriter` is a batch of transitions. Its columns are lists; some,
`obs` and `new_obs` by default, are packed: a pickle, compressed with LZ4, in
base64. A file of lines may be in a zip archive, or compressed with gzip.

A row of a parquet table is a transition, a batch as in a line, or an episode:
`output_write_episodes`, the default of RLlib's new API stack, writes the state
of a `SingleAgentEpisode`, or of a part of one, as msgpack in one column, below
a folder for each worker.

The formats are those of RLlib 2.60.
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
# Older versions write `dones` in the place of `terminateds`.
_TERMINATED, _TRUNCATED = ('terminateds', 'dones'), 'truncateds'
_EPISODE, _STEP, _AGENT = 'eps_id', 't', 'agent_index'
# These are no fields of a step.
_LEFT_OUT = (*_TERMINATED, _TRUNCATED, _NEXT, _EPISODE, 'unroll_id', 'infos')
_TYPE = 'type'
# The extensions of files of lines.
_LINES = ('.json', '.json.gz', '.zip')
# What a file may have that cannot be read.
_DAMAGES = (OSError, EOFError, zipfile.BadZipFile, zlib.error)
# The keys of the state of an episode that are read, with their columns.
_STATE = {'observations': 'obs', 'actions': 'actions', 'rewards': 'rewards'}
_BATCH_ROWS = 1024
# If a row is an episode, or a batch.
_LARGE_ROWS = 16


@gin.configurable(module='rlds2reverb')
@python_episodes.naming_path
def load_rllib(
    path: files.PathLike, *, policy: str | None = None
) -> tf.data.Dataset:
  """Reads experience that RLlib has recorded.

  Transitions of one `eps_id` (and `agent_index`) are one episode, also where it
  goes on in a later line or file. It ends where `terminateds` or `truncateds`
  says so, or where `t` does not go on; without `eps_id` and `t`, also where
  `new_obs` is not the next `obs`. An episode without an end is truncated.
  `new_obs` of the last transition is the observation of the last step; the
  others must be the next `obs`. Without `new_obs`, the last observation of a
  truncated episode is its last step, whose action does not count, and a
  terminal episode gets a step of zeros.

  Episodes that have not ended are in memory, until a later line goes on with
  them or the data ends.

  Args:
    path: a file that ends with `.json`, `.json.gz`, `.zip` or `.parquet`, or a
      folder of such files and folders, read in the order of their names.
    policy: the policy whose transitions are read from multi-agent batches. It
      must be given if there are several.

  Returns:
    A data set of episodes with stacked steps, in the order in which they end.
    Columns are step fields of their names; `obs`, `actions` and `rewards`
    become `observation`, `action` and `reward`. Packed columns have the dtypes
    that were recorded; numbers in JSON are int64, float64 and bool.

  Raises:
    ValueError: if there are no such files, or no episode can be read.
    ImportError: if there are episodes in msgpack, but it is not installed.
    InvalidArgumentError: while iterating, if a line or a table cannot be read,
      which the error names; if columns differ in length; if a packed column has
      anything but NumPy arrays, dicts, lists and numbers; or if `new_obs` is
      not the next `obs`, as with n-step returns. An episode that may have had
      transitions in such a line is invalid, and the others can still be read.
  """
  path = files.expand_local(path, 'Experience of RLlib')
  paths = _find_files(path)
  if not paths:
    raise ValueError(
        f'There is no experience of RLlib at {path}: no file that ends with'
        f' {", ".join(_LINES)} or .parquet.'
    )

  def read() -> python_episodes.Episodes:
    index = -1
    for index, part in enumerate(_read_parts(paths, policy)):
      if isinstance(part, errors.Fault):
        yield part
        continue
      place = f'{part.place}, which ends it' if part.place else ''
      yield python_episodes.attempt(
          _make_episode, part, index, place=place, file=part.file
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


# The place of a batch, for errors, and its columns; or why it cannot be read.
_Batches = Iterator[tuple[str, dict[str, Any] | Exception]]


@dataclasses.dataclass(eq=False)
class _Loss:
  """A batch that cannot be read.

  Attributes:
    fault: says why.
    is_told: whether it is the fault of an episode.
    is_unclaimed: whether it was told without knowing of which episode it is.
    num_open: how many episodes are open that may have transitions in it.
  """

  fault: errors.Fault
  is_told: bool = False
  is_unclaimed: bool = False
  num_open: int = 0


@dataclasses.dataclass(eq=False)
class _Parts:
  """The parts of an episode that have been read.

  Attributes:
    parts: the columns of each.
    losses: batches that may have other parts of it.
    is_lost: whether they have.
    is_told: whether that was told before the episode ended.
    place: the place of the last part.
    file: its file.
  """

  parts: list[dict[str, Any]] = dataclasses.field(default_factory=list)
  losses: list[_Loss] = dataclasses.field(default_factory=list)
  is_lost: bool = False
  is_told: bool = False
  place: str = ''
  file: str = ''

  def settle(self, is_lost: bool) -> Iterator[errors.Fault]:
    """Says whether parts are lost; yields faults that concern no episode."""
    for loss in self.losses:
      loss.num_open -= 1
      loss.is_told |= is_lost
      if not loss.num_open and not loss.is_told:
        yield loss.fault
    if not is_lost:
      self.losses = []


def _read_parts(
    paths: list[str], policy: str | None
) -> Iterator[_Parts | errors.Fault]:
  """Yields all parts of each episode, or the fault of an episode."""
  unfinished: dict[Any, _Parts] = {}
  last_loss: _Loss | None = None

  def finished(key: Any) -> Iterator[_Parts | errors.Fault]:
    parts = unfinished.pop(key)
    if parts.losses and not parts.is_lost:
      yield from parts.settle(True)
    if not parts.is_told:
      yield parts.losses[0].fault if parts.losses else parts

  for path in paths:
    batches = _read_parquet if path.endswith('.parquet') else _read_json
    for place, batch in batches(path, policy):
      cuts: Any = batch
      if not isinstance(batch, Exception):
        try:
          cuts = list(_cut(batch, place))
        except Exception as e:  # pylint: disable=broad-exception-caught
          cuts = e
      if isinstance(cuts, Exception):
        open_parts = [
            parts for parts in unfinished.values() if not parts.is_lost
        ]
        fault = python_episodes.to_fault(cuts, place, path)
        if not unfinished:
          yield fault
        last_loss = loss = _Loss(
            fault, is_unclaimed=not unfinished, num_open=len(open_parts)
        )
        for open_part in open_parts:
          open_part.losses.append(loss)
        continue
      for key, part, is_end in cuts:
        open_part = unfinished.setdefault(key, _Parts())
        goes_on = not open_part.parts or _goes_on(open_part.parts[-1], part)
        if not open_part.parts and last_loss and not _begins(part, True):
          open_part.losses, open_part.is_lost = [last_loss], True
          open_part.is_told = last_loss.is_unclaimed
          last_loss.is_told, last_loss.is_unclaimed = True, False
        if open_part.losses and not open_part.is_lost:
          # Nothing is lost if the steps, or else the observations, go on.
          last = open_part.parts[-1]
          is_lost = not goes_on
          if _STEP not in part or _STEP not in last:
            is_lost |= _NEXT not in last or not _leads_on(last, part)
          yield from open_part.settle(is_lost)
          open_part.is_lost = is_lost
          # The rest of the episode follows, unless it begins again.
          goes_on |= is_lost and not _begins(part, False)
        if not goes_on:
          yield from finished(key)
          unfinished[key] = open_part = _Parts()
        # Of an episode that lacks a part, the last one tells what goes on.
        if open_part.is_lost:
          open_part.parts.clear()
        open_part.parts.append(part)
        open_part.place, open_part.file = place, path
        if is_end:
          yield from finished(key)
  for key in list(unfinished):
    yield from finished(key)


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
    yield name, ValueError(f'{name} is not a whole file: {e}')


def _open_lines(path: str) -> Iterator[tuple[str, Any]]:
  """Yields the files of lines at a path, with their names for errors."""
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
          f'{place} is not a whole line of JSON: {e}. If RLlib was stopped'
          ' while it wrote, remove the line.'
      )
      continue
    yield from _batch_of(value, policy, place)


def _batch_of(content: Any, policy: str | None, place: str) -> _Batches:
  """Yields the columns of a value of JSON, if it has some of the policy."""
  try:
    kind = content.get(_TYPE) if isinstance(content, dict) else None
    if kind not in _TYPES:
      raise ValueError(
          f'{place} is no batch of RLlib: its type must be SampleBatch or'
          f' MultiAgentBatch, but is {kind!r}.'
      )
    if kind == 'MultiAgentBatch':
      content = _of_policy(content.get('policy_batches'), policy, place)
    if content is None:
      return
    columns = {
        name: _to_array(column, name, place)
        for name, column in content.items()
        if name not in (_TYPE, 'infos')
    }
  except Exception as e:  # pylint: disable=broad-exception-caught
    yield place, e
    return
  yield place, columns


def _of_policy(batches: Any, policy: str | None, place: str) -> Any:
  """Returns the batch of a policy; None if it has none here."""
  if not isinstance(batches, dict):
    raise ValueError(f'{place} has no policy_batches.')
  if policy is None and len(batches) > 1:
    raise ValueError(
        f'{place} has transitions of the policies {sorted(batches)}. Say which'
        f' are read: policy={min(batches)!r}.'
    )
  return batches.get(policy) if policy else next(iter(batches.values()), None)


def _read_parquet(path: str, policy: str | None) -> _Batches:
  """Yields the place and the columns of some rows of a file at a time."""
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
            f'{path} has no columns obs and actions, but {schema.names}, and no'
            ' column of episodes alone, as output_write_episodes=True writes'
            f' it.{format_registry.hint(path)}'
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
            f'{name} in {place} is a dict, of which RLlib does not say what its'
            ' lists are. Record with output_write_episodes=True.'
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
  except Exception as e:  # pylint: disable=broad-exception-caught
    yield place, ValueError(
        f'{place} is not an episode of RLlib: {e or type(e).__name__}.'
    )
    return
  if columns is not None:
    yield place, columns


def _columns_of_state(state: Any) -> dict[str, Any] | None:
  """Returns the columns of the state of an episode; None if it has no step.

  A buffer of the state has `lookback` rows of an earlier part first.
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
          f'{"/".join(map(str, path))} has objects, but only numbers are read,'
          ' as other objects could run code'
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
  """Returns a nest with tuples, which msgpack has made lists."""
  if isinstance(value, dict):
    return {key: _with_tuples(item) for key, item in value.items()}
  if isinstance(value, (list, tuple)):
    return tuple(map(_with_tuples, value))
  return value


def _array_of(value: dict[Any, Any]) -> Any:
  """Returns the array that `msgpack_numpy` has encoded as a dict.

  It is None in place of an array of objects, which is a pickle that could run
  code. `infos` may be such an array.
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
  """Returns a column, or a nest of columns, of NumPy arrays."""
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
  """Returns a value that RLlib has packed."""
  try:
    packed = base64.b64decode(text, validate=True)
    stream = pa.CompressedInputStream(pa.BufferReader(packed), 'lz4')
    content = limits.read_expanded('its content', stream.read, len(packed))
  except (binascii.Error, OSError) as e:
    raise ValueError(f'it is not packed as RLlib packs columns: {e}') from e
  return numpy_pickles.loads(content)


def _cut(
    batch: dict[str, Any], place: str
) -> Iterator[tuple[Any, dict[str, Any], bool]]:
  """Yields parts of a batch that are each of one episode.

  Args:
    batch: columns `[T]`.
    place: where they are from, for errors.

  Yields:
    The id of the episode, the columns, and whether the episode ends there.
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


def _leads_on(
    previous: Mapping[str, Any], following: Mapping[str, Any]
) -> bool:
  """Returns whether the first row of a part follows the last one of another."""
  last = tree.flatten(previous[_NEXT])
  first = tree.flatten(following['obs'])
  return len(last) == len(first) and all(
      end.shape[1:] == other.shape[1:]
      and columns_lib.equal_rows(end[-1:], other[:1]).all()
      for end, other in zip(last, first)
  )


def _begins(part: Mapping[str, Any], default: bool) -> bool:
  """Returns whether a part has the first step of an episode, if it tells."""
  return not part[_STEP].flat[0] if _STEP in part else default


def _goes_on(previous: Mapping[str, Any], following: Mapping[str, Any]) -> bool:
  """Returns whether a part of an episode follows another one."""
  if _STEP in previous and _STEP in following:
    return following[_STEP].flat[0] == previous[_STEP].flat[-1] + 1
  if _EPISODE not in previous and _NEXT in previous and _NEXT in following:
    return _leads_on(previous, following)
  return True


def _make_episode(parts: _Parts, index: int) -> python_episodes.PythonEpisode:
  names = parts.parts[0].keys()
  for part in parts.parts:
    if part.keys() != names:
      raise ValueError(
          f'The parts of the episode that ends before or in {parts.place} have'
          f' different columns: {sorted(names)} and {sorted(part)}.'
      )
  columns = tree.map_structure(
      lambda *pieces: np.concatenate(pieces), *parts.parts
  )
  terminated = next(
      (columns[name] for name in _TERMINATED if name in columns), False
  )
  steps = {
      {**_FIELDS, 'rewards': rlds.REWARD}.get(name, name): column
      for name, column in columns.items()
      if name not in _LEFT_OUT
  }
  if _NEXT in columns:
    following = dict(tree.flatten_with_path(columns[_NEXT]))

    def with_last(path, rows):
      if path not in following:
        raise ValueError(f'There is no {_NEXT} for each obs.')
      name = '/'.join(('', *map(str, path)))
      columns_lib.check_leads_on(
          f'episode {index}', f'obs{name}', rows, _NEXT + name, following[path]
      )
      return np.concatenate([rows, following[path][-1:]])

    steps[rlds.OBSERVATION] = tree.map_structure_with_path(
        with_last, steps[rlds.OBSERVATION]
    )
  return python_episodes.make_episode(
      steps, index, bool(np.asarray(terminated).flat[-1])
  )
