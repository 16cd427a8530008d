"""The files of TorchRL's storages, read and written without torch.

A storage that `FlatStorageCheckpointer` or `NestedStorageCheckpointer` saves is
a folder of tensordict's memory-mapped tensors, as versions 0.14 write them:

    meta.json                the dtype and shape of each field, and the folders
    observation.memmap       the bytes of a field, row after row
    observation.shape.memmap int64 [E, rank], only in the nested form: the shape
                             of each episode
    info/meta.json, ...      fields that are nested, in a folder
    is_full, shift, _storage_shape    a folder each, with one value in meta.json
    storage_metadata.json    `len`, the number of transitions that are there

`H5StorageCheckpointer` writes an HDF5 file that has a group for each episode,
`traj_0`, `traj_1`, ..., and the same values beside them.
"""

import json
import os
from typing import Any, Dict, Iterator, List, NamedTuple, Tuple

import h5py
import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from rlds2reverb.episodes import paths
from rlds2reverb.formats import columns as columns_lib
from rlds2reverb.formats import hdf5
from rlds2reverb.formats import ted_columns

HDF5_FILE = 'checkpoint.h5'
META_FILE = 'meta.json'
LENGTH_FILE = 'storage_metadata.json'
# Beside TorchRL's files, which do not name it: TorchRL ignores it.
REST_FILE = 'rlds.tfrecord'

_VALUES = ('is_full', 'shift', '_storage_shape')
_TENSOR_DICT = "<class 'tensordict._td.TensorDict'>"
_VALUE = "<class 'tensordict.tensorclass.NonTensorData'>"


class Storage(NamedTuple):
  """The content of a folder or a file.

  Attributes:
    columns: by the names of fields, such as `info/speed`, arrays `[N, ...]` for
      transitions or `[N + E, ...]` for steps.
    length: the number of transitions, at most `N`.
  """

  columns: Dict[str, np.ndarray]
  length: int


def read_folder(folder: str) -> Storage:
  """Reads the memory-mapped tensors in a folder, of any of the forms.

  Raises:
    ValueError: if it is not such a folder, or of a kind that is not read.
  """
  with open(os.path.join(folder, LENGTH_FILE), encoding='utf-8') as f:
    metadata = json.load(f)
  if metadata['is_pytree']:
    raise ValueError(
        f'{folder} holds a pytree, and not a TensorDict, which alone has the'
        ' fields of episodes.'
    )
  meta = _read_json(os.path.join(folder, META_FILE))
  shape = (
      _read_json(os.path.join(folder, '_storage_shape', META_FILE))['data']
      if '_storage_shape' in meta
      else meta['shape']
  )
  # An int stands for a shape of one dimension.
  if not isinstance(shape, int) and len(shape) != 1:
    raise ValueError(
        f'{folder} holds a storage of the shape {shape}. Only storages of one'
        ' dimension, that of time, are read: save each part as one.'
    )
  columns = dict(_read_columns(folder, ''))
  return Storage(columns, metadata['len'])


def read_hdf5(path: str) -> Storage:
  """Reads the file of an `H5StorageCheckpointer`.

  Raises:
    ValueError: if it has no episodes, their fields differ, or a part of it is
      in another file.
  """
  names = hdf5.names_in(path)
  groups = sorted(
      (name for name in names if name.startswith('traj_')),
      key=lambda name: int(name[len('traj_') :]),
  )
  if not groups or '_len' not in names:
    raise ValueError(
        f'{path} is not a file of TorchRL: it must have _len and episodes'
        f' such as traj_0, but has {sorted(names)}.'
    )
  with h5py.File(path, 'r') as file:
    parts = []
    for group in groups:
      part = {
          name: column[()]
          for name, column in columns_lib.leaves(file[group]).items()
      }
      if parts and part.keys() != parts[0].keys():
        raise ValueError(
            f'{group} of {path} has the fields {sorted(part)}, but'
            f' {groups[0]} has {sorted(parts[0])}.'
        )
      parts.append(part)
    columns = {
        name: np.concatenate([part[name] for part in parts])
        for name in parts[0]
    }
    return Storage(columns, int(file['_len'][()]))


def _read_json(path: str) -> Dict[str, Any]:
  if not os.path.isfile(path):
    raise ValueError(
        f'There is no {path}, which a storage of TorchRL has. Is this one that'
        ' FlatStorageCheckpointer or NestedStorageCheckpointer has saved?'
    )
  with open(path, encoding='utf-8') as f:
    return json.load(f)


def _read_columns(folder: str, prefix: str) -> Iterator[Tuple[str, np.ndarray]]:
  meta = _read_json(os.path.join(folder, META_FILE))
  if meta['_type'] != _TENSOR_DICT:
    raise ValueError(
        f'{folder} holds a {meta["_type"]}. Only a TensorDict is read.'
    )
  for name, entry in meta.items():
    if name in _VALUES or not isinstance(entry, dict):
      continue
    path = os.path.join(folder, name)
    if 'type' in entry:
      yield from _read_columns(path, f'{prefix}{name}/')
    else:
      yield prefix + name, _read_column(path, entry)


def _read_column(path: str, entry: Dict[str, Any]) -> np.ndarray:
  """Returns the rows of a field, mapped to memory."""
  dtype = _numpy_dtype(path, entry['dtype'])
  shape = tuple(entry['shape'])
  if entry['is_nested']:
    shapes = np.fromfile(f'{path}.shape.memmap', np.int64).reshape(shape)
    if len(np.unique(shapes[:, 1:], axis=0)) > 1:
      raise ValueError(
          f'The rows of {path} differ in shape from episode to episode:'
          f' {shapes.tolist()}.'
      )
    shape = (shapes[:, 0].sum(), *shapes[:1, 1:].ravel())
  file = f'{path}.memmap'
  expected = int(np.prod(shape)) * dtype.itemsize
  found = os.path.getsize(file) if os.path.isfile(file) else None
  # The files of the nested form may be longer than the rows that count.
  if found is None or found < expected:
    raise ValueError(
        f'{file} must have {expected} bytes, for {dtype} {list(shape)}, but'
        + (' is not there.' if found is None else f' has {found}.')
    )
  if not expected:
    return np.zeros(shape, dtype)
  return np.memmap(file, dtype, 'r', shape=shape)


def _numpy_dtype(path: str, name: str) -> np.dtype:
  try:
    return np.dtype(tf.as_dtype(name.replace('torch.', '')).as_numpy_dtype)
  except TypeError as e:
    raise ValueError(
        f'{path} is {name}, which TensorFlow does not have. Cast it before it'
        ' is saved.'
    ) from e


class FolderWriter:
  """Writes the fields of episodes, row after row, into a folder."""

  def __init__(self, folder: str, nested: bool):
    self._folder = folder
    self._nested = nested
    self._files = {}
    self._rows = {}
    self._shapes: Dict[str, List[Tuple[int, ...]]] = {}

  def write(self, columns: Dict[str, np.ndarray]) -> None:
    """Adds the rows of one episode, by the names of the fields."""
    for name, rows in columns.items():
      if name not in self._files:
        path = os.path.join(self._folder, f'{name}.memmap')
        os.makedirs(os.path.dirname(path), exist_ok=True)
        # pylint: disable-next=consider-using-with
        self._files[name] = open(path, 'wb')
        self._rows[name] = rows[:0]
        self._shapes[name] = []
      self._files[name].write(np.ascontiguousarray(rows).tobytes())
      self._shapes[name].append(rows.shape)

  def close(self, length: int = 0) -> None:
    """Writes TorchRL's metadata for the rows of `length` transitions."""
    for file in self._files.values():
      file.close()
    if not length:
      return
    num_episodes = len(next(iter(self._shapes.values())))
    batch_shape = [num_episodes] if self._nested else []
    metas = {'': {}}
    for name, shapes in self._shapes.items():
      *above, key = name.split('/')
      for depth in range(len(above)):
        parent = '/'.join(above[:depth])
        metas.setdefault('/'.join(above[: depth + 1]), {})
        metas[parent][above[depth]] = {'type': 'TensorDict'}
      rows = self._rows[name]
      if self._nested:
        np.array(shapes, np.int64).tofile(
            os.path.join(self._folder, f'{name}.shape.memmap')
        )
        shape = [num_episodes, rows.ndim]
      else:
        shape = [sum(shape[0] for shape in shapes), *rows.shape[1:]]
      metas['/'.join(above)][key] = {
          'device': 'cpu',
          'shape': shape,
          'dtype': f'torch.{rows.dtype}',
          'is_nested': self._nested,
      }
    for name, value in zip(_VALUES, (True, length, [length])):
      metas[''][name] = {'type': 'NonTensorData'}
      meta = {'_type': _VALUE, '_is_non_tensor': True, '_metadata': None}
      self._write_json(os.path.join(name, META_FILE), {**meta, 'data': value})
    rest = {'shape': batch_shape, 'device': 'cpu', '_type': _TENSOR_DICT}
    for name, meta in metas.items():
      self._write_json(os.path.join(name, META_FILE), {**meta, **rest})
    self._write_json(
        LENGTH_FILE, {'metadata': {}, 'is_pytree': False, 'len': length}
    )

  def _write_json(self, name: str, value: Any) -> None:
    path = os.path.join(self._folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, 'w', encoding='utf-8') as f:
      json.dump(value, f)


class Hdf5Writer:
  """Writes the fields of episodes into an HDF5 file, a group for each."""

  def __init__(self, folder: str):
    self._file = h5py.File(os.path.join(folder, HDF5_FILE), 'w')
    self._num_episodes = 0

  def write(self, columns: Dict[str, np.ndarray]) -> None:
    """Adds one episode, by the names of its fields."""
    group = self._file.create_group(f'traj_{self._num_episodes}')
    for name, rows in columns.items():
      group.create_dataset(name, data=rows)
    self._num_episodes += 1

  def close(self, length: int = 0) -> None:
    """Writes TorchRL's metadata for the episodes."""
    if length:
      for name, value in zip(_VALUES, (True, length, [length])):
        self._file.create_dataset(name, data=value)
      self._file.create_dataset('_len', data=length)
    self._file.close()


def write_rest(path: str, rests: List[ted_columns.Rest]) -> None:
  """Writes data for which TorchRL has no place: names and tensors in turn."""
  nests = [paths.leaves(rest._asdict()) for rest in rests]
  with tf.io.TFRecordWriter(path) as writer:
    for name in nests[0]:
      column = np.concatenate([nest[name] for nest in nests])
      writer.write(name)
      writer.write(tf.make_tensor_proto(column).SerializeToString())


def read_rest(path: str) -> ted_columns.Rest:
  """Reads what `write_rest` wrote."""
  records = list(tf.data.TFRecordDataset(path).as_numpy_iterator())
  parts = {'last_step': {}, 'metadata': {}}
  for name, record in zip(records[::2], records[1::2]):
    array = tf.make_ndarray(tensor_pb2.TensorProto.FromString(record))
    part, _, field = name.decode().partition('/')
    if field:
      parts[part][field] = array
    else:
      parts[part] = array
  return ted_columns.Rest(**parts)
