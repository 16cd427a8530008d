"""The files of TorchRL storages, read and written without torch.

`FlatStorageCheckpointer` and `NestedStorageCheckpointer` write a folder of
memory-mapped tensors of tensordict, as of version 0.14:

    meta.json                the dtype and shape of each field, and the folders
    observation.memmap       the rows of a field
    observation.shape.memmap int64 [E, rank], only in the nested form: the shape
                             of each episode
    info/meta.json, ...      nested fields, in a folder
    is_full, shift, _storage_shape    a folder each, with a value in meta.json
    storage_metadata.json    `len`, the number of transitions

`H5StorageCheckpointer` writes an HDF5 file with a group for each episode,
`traj_0`, `traj_1`, ..., and with the same values.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import functools
import json
import math
import os
from typing import Any, NamedTuple

from etils import epy
from google.protobuf import message
import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from rlds2reverb.datasets import files
from rlds2reverb.datasets import format_registry
from rlds2reverb.datasets import json_files
from rlds2reverb.datasets import record_files
from rlds2reverb.episodes import errors
from rlds2reverb.episodes import limits
from rlds2reverb.formats import columns as columns_lib
from rlds2reverb.formats import hdf5_files
from rlds2reverb.formats import python_episodes
from rlds2reverb.formats import ted

with epy.lazy_imports(error_callback=format_registry.explain_missing_library):
  import h5py

FORMATS = FLAT, NESTED, HDF5 = 'flat', 'nested', 'hdf5'
# An additional file, which TorchRL ignores.
EXTRA_FILE = 'rlds.tfrecord'

_HDF5_FILE = 'checkpoint.h5'
_META_FILE = 'meta.json'
_LENGTH_FILE = 'storage_metadata.json'
_VALUES = ('is_full', 'shift', '_storage_shape')
_TENSOR_DICT = "<class 'tensordict._td.TensorDict'>"
_VALUE = "<class 'tensordict.tensorclass.NonTensorData'>"


class Storage(NamedTuple):
  """An open storage.

  Attributes:
    columns: the fields by name, such as `info/speed`: columns `[N, ...]` of
      transitions or `[N + E, ...]` of steps.
    length: the number of transitions, at most `N`.
  """

  columns: Mapping[str, columns_lib.AnyColumn]
  length: int


class Groups(NamedTuple):
  """The groups of an HDF5 file, each an episode with transitions.

  Attributes:
    names: the names of the `G` readable groups.
    lengths: int64 `[G]`: the number of transitions of each group.
    ends: the flags of transitions that end an episode, columns `[N, ...]`.
    form: the shapes and dtypes of the columns.
    faults: the faults of unreadable groups, by index in the file.
  """

  names: list[str]
  lengths: np.ndarray
  ends: dict[str, np.ndarray]
  form: _Form
  faults: dict[int, errors.Fault]


def marker_of(format: str) -> str:
  """Returns the name of a file that every complete storage has."""
  return _HDF5_FILE if format == HDF5 else _LENGTH_FILE


def find(path: str) -> str:
  """Returns the folder of a storage, or the path of its HDF5 file.

  Raises:
    ValueError: if there is no storage at the path.
  """
  if not os.path.exists(path):
    raise ValueError(f'There is no storage of TorchRL at {path}.')
  if os.path.isfile(path):
    return path
  for folder in (path, os.path.join(path, 'storage')):
    file = os.path.join(folder, _HDF5_FILE)
    if os.path.isfile(os.path.join(folder, _LENGTH_FILE)):
      return folder
    if os.path.isfile(file):
      return file
  raise ValueError(
      f'{path} is not a storage of TorchRL: it must contain {_LENGTH_FILE} or'
      f' {_HDF5_FILE}, but has {sorted(os.listdir(path))}.'
  )


@contextlib.contextmanager
def open_storage(path: str, groups: Groups | None) -> Iterator[Storage]:
  """Opens a folder of memory-mapped tensors, or an HDF5 file.

  Args:
    path: the result of `find`.
    groups: the groups of an HDF5 file, as `find_groups` returns them; None for
      a folder.

  Raises:
    ValueError: if a folder is not a storage, is not supported, or is damaged.
  """
  if groups is None:
    yield _read_folder(path)
    return
  with h5py.File(path, 'r') as file:
    # One group is enough, because episodes are read one after the other.
    open_group = functools.lru_cache(1)(
        functools.partial(hdf5_files.open_group, file)
    )
    columns: dict[str, columns_lib.AnyColumn] = {
        name: groups.ends[name]
        if name in groups.ends
        else _group_column(path, open_group, groups, name)
        for name in groups.form
    }
    yield Storage(columns, int(groups.lengths.sum()))


def _read_folder(folder: str) -> Storage:
  metadata = _read_json(folder, _LENGTH_FILE)
  meta = _read_json(folder, _META_FILE)
  meta_file = os.path.join(folder, _META_FILE)
  shape = json_files.get_json_value(meta, 'shape', (list, int), meta_file)
  if '_storage_shape' in meta:
    value = _read_json(folder, '_storage_shape', _META_FILE)
    place = os.path.join(folder, '_storage_shape', _META_FILE)
    shape = json_files.get_json_value(value, 'data', (list, int), place)
  # An int is a shape of one dimension.
  place = os.path.join(folder, _LENGTH_FILE)
  length = json_files.get_json_value(metadata, 'len', int, place)
  if json_files.get_json_value(metadata, 'is_pytree', bool, place) or (
      not isinstance(shape, int) and len(shape) != 1
  ):
    raise ValueError(
        f'{folder} is a storage of shape {shape}, or of a pytree, according to'
        f' _storage_shape or shape of {_META_FILE}. Only TensorDicts with one'
        ' dimension, time, are supported. Save each part separately.'
    )
  return Storage(dict(_read_columns(folder, '')), length)


def find_groups(path: str) -> Groups:
  """Returns the groups of an HDF5 file, with faults of different groups.

  Only the flags are read here. `open_storage` reads other columns lazily.

  Raises:
    ValueError: if the file is not from TorchRL, or if no group can be read.
  """
  names = hdf5_files.check_file(path)
  groups = [name for name in names if name.startswith('traj_')]
  groups.sort(key=lambda name: int(name.removeprefix('traj_')))
  if not groups or '_len' not in names:
    raise ValueError(
        f'{path} is not a file of TorchRL: it must contain _len and episodes'
        f' such as traj_0, but has {sorted(names)}.'
    )
  forms: dict[str, _Form] = {}
  ends: dict[str, dict[str, np.ndarray]] = {}
  faults: dict[int, errors.Fault] = {}
  with h5py.File(path, 'r') as file:
    for index, group in enumerate(groups):
      place = f'{group} of {path}'
      try:
        forms[group], ends[group] = _read_form(file, group, place)
      except Exception as e:
        faults[index] = python_episodes.to_fault(e, place, path)
    length = int(file['_len'][()])
  if not forms:
    raise ValueError(faults[0].rule)
  # The most common form; the first one of several.
  candidates = [*forms.values()]
  form = max(candidates, key=candidates.count)
  like = next(group for group in forms if forms[group] == form)
  for group in [group for group in forms if forms[group] != form]:
    difference = _difference(forms.pop(group), form, like)
    problem = f'{group} of {path} {difference}'
    faults[groups.index(group)] = errors.Fault(problem, file=path)
  lengths = [len(next(iter(ends[group].values()))) for group in forms]
  if not faults and sum(lengths) != length:
    raise ValueError(
        f'_len of {path} must be the number of transitions in its groups,'
        f' {sum(lengths)}, but is {length}.'
    )
  return Groups(
      [*forms],
      np.array(lengths, np.int64),
      {
          name: np.concatenate([ends[group][name] for group in forms])
          for name in ends[like]
      },
      form,
      faults,
  )


# The number of additional rows of each field, its row shape and its dtype.
_Form = dict[str, tuple[int, tuple[int, ...], np.dtype]]


def _read_form(
    file: h5py.File, group: str, place: str
) -> tuple[_Form, dict[str, np.ndarray]]:
  """Returns the form of the columns of a group, and its flags.

  Raises:
    ValueError: if the group is not an episode with transitions.
  """
  columns = columns_lib.leaves(hdf5_files.open_group(file, group))
  ends = {
      name: _read_rows(name, column, place)
      for name, column in columns.items()
      if name.removeprefix(ted.BELOW_NEXT) in ted.END_KEYS
  }
  done, _ = ted.find_ends({**columns, **ends})
  if not len(done) or done[:-1].any():
    raise ValueError(
        f'{place} must be one episode with transitions, but '
        + (
            'a transition before the last one is done.'
            if len(done)
            else 'it has none.'
        )
    )
  form = {}
  for name, column in columns.items():
    if not column.shape or len(column) - len(done) not in (0, 1):
      raise ValueError(
          f'{name} in {place} has the shape {list(column.shape or ())}, but'
          f' there are {len(done)} transitions.'
      )
    form[name] = len(column) - len(done), column.shape[1:], column.dtype
  return form, ends


def _read_rows(
    name: str, column: h5py.Dataset, place: str, rows: Any = ()
) -> np.ndarray:
  try:
    return column[rows]
  except (OSError, RuntimeError) as e:
    raise ValueError(f'{name} in {place} is damaged: {e}.') from e


def _group_column(
    path: str,
    open_group: Callable[[str], h5py.Group],
    groups: Groups,
    name: str,
) -> columns_lib.LazyColumn:
  """Returns the concatenated rows of a column of all groups."""
  num_more, shape, dtype = groups.form[name]
  ends = np.cumsum(groups.lengths + num_more)

  def read(begin: int, end: int) -> np.ndarray:
    parts = [np.empty((0, *shape), dtype)]
    while begin < end:
      index = int(np.searchsorted(ends, begin, side='right'))
      first = int(ends[index] - groups.lengths[index] - num_more)
      stop = min(end, int(ends[index]))
      group = groups.names[index]
      # h5py reads a data set faster than a slice of all rows.
      is_all = stop - begin == groups.lengths[index] + num_more
      rows = () if is_all else slice(begin - first, stop - first)
      place = f'{group} of {path}'
      parts.append(_read_rows(name, open_group(group)[name], place, rows))
      begin = stop
    return np.concatenate(parts[1:]) if len(parts) > 2 else parts[-1]

  return columns_lib.LazyColumn(dtype, (int(ends[-1]), *shape), read)


def _difference(form: _Form, expected: _Form, like: str) -> str:
  """Describes the difference between the forms of two groups."""
  if form.keys() != expected.keys():
    return f'has the fields {sorted(form)}, but {like} has {sorted(expected)}.'
  name = next(name for name in form if form[name] != expected[name])
  texts = [
      f'{dtype} {list(shape)}{" of steps" if of_steps else ""}'
      for of_steps, shape, dtype in (form[name], expected[name])
  ]
  return f'has rows of {name} that are {texts[0]}, but {texts[1]} in {like}.'


def _read_json(*parts: str) -> dict[str, Any]:
  path = os.path.join(*parts)
  if not os.path.isfile(path):
    raise ValueError(
        f'There is no {path}, which a storage of TorchRL must contain. Save it'
        ' with FlatStorageCheckpointer or NestedStorageCheckpointer.'
    )
  return json_files.read_json_object(path)


def _read_columns(
    folder: str, prefix: str
) -> Iterator[tuple[str, columns_lib.AnyColumn]]:
  meta = _read_json(folder, _META_FILE)
  place = os.path.join(folder, _META_FILE)
  kind = json_files.get_json_value(meta, '_type', str, place)
  if kind != _TENSOR_DICT:
    raise ValueError(f'{folder} is a {kind}. Only TensorDicts are supported.')
  for name, entry in meta.items():
    path = os.path.join(folder, name)
    limits.check_place(f'The field {name!r} of {place}', path, folder)
    if name in _VALUES or not isinstance(entry, dict):
      continue
    if 'type' in entry and 'dtype' not in entry:
      yield from _read_columns(path, f'{prefix}{name}/')
    else:
      yield prefix + name, _read_column(path, entry, f'{name!r} of {place}')


def _read_column(
    path: str, entry: dict[str, Any], place: str
) -> columns_lib.AnyColumn:
  """Returns a field, whose rows are read lazily."""
  name = json_files.get_json_value(entry, 'dtype', str, place).removeprefix(
      'torch.'
  )
  try:
    dtype = np.dtype(tf.as_dtype(name).as_numpy_dtype)
  except TypeError as e:
    raise ValueError(
        f'{path} has dtype {name}, which TensorFlow does not support. Cast it'
        ' before saving.'
    ) from e
  shape = tuple(json_files.get_json_value(entry, 'shape', list, place))
  if not all(type(size) is int and size >= 0 for size in shape):
    raise ValueError(f"'shape' of {place} must be sizes, but is {shape}.")
  if json_files.get_json_value(entry, 'is_nested', bool, place):
    shapes_file = f'{path}.shape.memmap'
    files.check_not_pointer(shapes_file)
    try:
      shapes = np.fromfile(shapes_file, np.int64).reshape(shape)
    except (FileNotFoundError, ValueError) as e:
      raise ValueError(
          f'{shapes_file} does not exist or does not have the shape {shape}:'
          f' {e}.'
      ) from e
    if len(np.unique(shapes[:, 1:], axis=0)) > 1:
      raise ValueError(
          f'The rows of {path} must have the same shape in all episodes:'
          f' {shapes.tolist()}.'
      )
    shape = (int(shapes[:, 0].sum()), *shapes[:1, 1:].ravel().tolist())
  file = f'{path}.memmap'
  expected = int(np.prod(shape)) * dtype.itemsize
  num_bytes = os.path.getsize(file) if os.path.isfile(file) else -1
  # Files of the nested form may be longer than their rows. A Git LFS pointer
  # may have the size of the rows.
  files.check_not_pointer(file)
  if num_bytes < expected:
    raise ValueError(
        f'{file} must have {expected} bytes, for {dtype} {list(shape)}, but'
        + (' does not exist.' if num_bytes < 0 else f' has {num_bytes}.')
    )
  if not expected:
    return np.zeros(shape, dtype)

  def read(begin: int, end: int) -> np.ndarray:
    # Pages of a mapped file would remain in the memory of the process.
    size = math.prod(shape[1:])
    rows = np.fromfile(
        file, dtype, (end - begin) * size, offset=begin * size * dtype.itemsize
    )
    return rows.reshape(end - begin, *shape[1:])

  return columns_lib.LazyColumn(dtype, shape, read)


def write(
    folder: str,
    episodes: Iterable[dict[str, np.ndarray]],
    format: str,
) -> int:
  """Writes transitions in one of the formats.

  Args:
    folder: an empty folder.
    episodes: the rows of each episode, by field.
    format: one of `FORMATS`.

  Returns:
    The number of transitions.
  """
  if format == HDF5:
    return _write_hdf5(os.path.join(folder, _HDF5_FILE), episodes)
  nested = format == NESTED
  shapes: dict[str, list[tuple[int, ...]]] = {}
  dtypes = {}
  for columns in episodes:
    for name, rows in columns.items():
      path = os.path.join(folder, f'{name}.memmap')
      os.makedirs(os.path.dirname(path), exist_ok=True)
      with open(path, 'ab') as f:
        f.write(rows.tobytes())
      shapes.setdefault(name, []).append(rows.shape)
      dtypes[name] = rows.dtype
  num_episodes = len(shapes[ted.DONE])
  length = sum(shape[0] for shape in shapes[ted.DONE])
  # The contents of the metadata files, by folder.
  metas: dict[str, dict[str, Any]] = {'': {}}
  metadata = {'shape': [num_episodes] if nested else [], '_type': _TENSOR_DICT}
  for name, leaf_shapes in shapes.items():
    shape = [
        sum(leaf_shape[0] for leaf_shape in leaf_shapes),
        *leaf_shapes[0][1:],
    ]
    if nested:
      np.array(leaf_shapes).tofile(os.path.join(folder, f'{name}.shape.memmap'))
      shape = [num_episodes, len(shape)]
    entry = {
        'device': 'cpu',
        'shape': shape,
        'dtype': f'torch.{dtypes[name]}',
        'is_nested': nested,
    }
    while name:
      name, _, leaf = name.rpartition('/')
      metas.setdefault(name, {}).setdefault(leaf, entry)
      entry = {'type': 'TensorDict'}
  for name, value in _constant_values(length):
    metas[''][name] = {'type': 'NonTensorData'}
    value = {'data': value, '_type': _VALUE, '_is_non_tensor': True}
    _write_json({**value, '_metadata': None}, folder, name, _META_FILE)
  for name, meta in metas.items():
    _write_json({**meta, **metadata, 'device': 'cpu'}, folder, name, _META_FILE)
  marker = {'metadata': {}, 'is_pytree': False, 'len': length}
  _write_json(marker, folder, _LENGTH_FILE)
  return length


def _write_json(value: Any, *parts: str) -> None:
  path = os.path.join(*parts)
  os.makedirs(os.path.dirname(path), exist_ok=True)
  with open(path, 'w', encoding='utf-8') as f:
    json.dump(value, f)


def _write_hdf5(path: str, episodes: Iterable[dict[str, np.ndarray]]) -> int:
  """Writes a group for each episode; returns the number of transitions."""
  length = 0
  with h5py.File(path, 'w') as file:
    for number, columns in enumerate(episodes):
      file.create_group(f'traj_{number}').update(columns)
      length += len(columns[ted.DONE])
    file.update({**dict(_constant_values(length)), '_len': length})
  return length


def _constant_values(length: int) -> Iterator[tuple[str, Any]]:
  return zip(_VALUES, (True, length, [length]))


def write_extra(folder: str, extras: list[ted.Extra]) -> None:
  """Writes data that TorchRL cannot represent, as pairs of name and tensor."""
  with tf.io.TFRecordWriter(os.path.join(folder, EXTRA_FILE)) as writer:
    for name in sorted(extras[0]):
      column = np.concatenate([extra[name] for extra in extras])
      writer.write(name)
      writer.write(tf.make_tensor_proto(column).SerializeToString())


def read_extra(folder: str) -> ted.Extra:
  """Reads the file of `write_extra`, if it exists."""
  path = os.path.join(folder, EXTRA_FILE)
  if not os.path.isfile(path):
    return {}
  try:
    records = list(record_files.read_tfrecords(path).as_numpy_iterator())
    extra = {
        name.decode(): tf.make_ndarray(
            tensor_pb2.TensorProto.FromString(record)
        )
        for name, record in zip(records[::2], records[1::2])
    }
  except (tf.errors.OpError, message.DecodeError, UnicodeError) as e:
    files.check_not_pointer(path)
    text = errors.message_of(e) if isinstance(e, tf.errors.OpError) else e
    raise ValueError(f'{path} is damaged: {text}.') from e
  if ted.NUM_STEPS not in extra:
    raise ValueError(f'{path} has no {ted.NUM_STEPS}.')
  return extra
