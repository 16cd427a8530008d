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
from typing import Any, Dict, Iterable, Iterator, List, Tuple

import h5py
import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from rlds2reverb.datasets import files
from rlds2reverb.formats import columns as columns_lib
from rlds2reverb.formats import hdf5
from rlds2reverb.formats import ted_columns

FORMATS = FLAT, NESTED, HDF5 = 'flat', 'nested', 'hdf5'
# Beside TorchRL's files, which do not name it: TorchRL ignores it.
REST_FILE = 'rlds.tfrecord'

_HDF5_FILE = 'checkpoint.h5'
_META_FILE = 'meta.json'
_LENGTH_FILE = 'storage_metadata.json'
_VALUES = ('is_full', 'shift', '_storage_shape')
_TENSOR_DICT = "<class 'tensordict._td.TensorDict'>"
_VALUE = "<class 'tensordict.tensorclass.NonTensorData'>"

# The fields by their names, such as `info/speed`: arrays `[N, ...]` for
# transitions or `[N + E, ...]` for steps; and the number of transitions, at
# most `N`.
Storage = Tuple[Dict[str, np.ndarray], int]


def marker_of(format: str) -> str:  # pylint: disable=redefined-builtin
  """Returns the name of a file that a whole storage has."""
  return _HDF5_FILE if format == HDF5 else _LENGTH_FILE


def find(path: str) -> str:
  """Returns the folder of a storage, or the path of its HDF5 file.

  Raises:
    ValueError: if there is none at a path.
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
      f'{path} is not a storage of TorchRL: it has neither {_LENGTH_FILE} nor'
      f' {_HDF5_FILE}, but {sorted(os.listdir(path))}.'
  )


def read(path: str) -> Storage:
  """Reads a folder of memory-mapped tensors, or an HDF5 file.

  Raises:
    ValueError: if it is not one, of a kind that is not read, or damaged.
  """
  return _read_hdf5(path) if os.path.isfile(path) else _read_folder(path)


def _read_folder(folder: str) -> Storage:
  metadata = _read_json(folder, _LENGTH_FILE)
  meta = _read_json(folder, _META_FILE)
  shape = meta['shape']
  if '_storage_shape' in meta:
    shape = _read_json(folder, '_storage_shape', _META_FILE)['data']
  # An int stands for a shape of one dimension.
  if metadata['is_pytree'] or (not isinstance(shape, int) and len(shape) != 1):
    raise ValueError(
        f'{folder} holds a storage of the shape {shape}, or a pytree. Only'
        ' storages of a TensorDict of one dimension, that of time, are read:'
        ' save each part as one.'
    )
  return dict(_read_columns(folder, '')), metadata['len']


def _read_hdf5(path: str) -> Storage:
  names = hdf5.names_in(path)
  groups = [name for name in names if name.startswith('traj_')]
  groups.sort(key=lambda name: int(name.removeprefix('traj_')))
  if not groups or '_len' not in names:
    raise ValueError(
        f'{path} is not a file of TorchRL: it must have _len and episodes'
        f' such as traj_0, but has {sorted(names)}.'
    )
  with h5py.File(path, 'r') as file:
    parts = [columns_lib.leaves(file[group]) for group in groups]
    for group, part in zip(groups, parts):
      if part.keys() != parts[0].keys():
        raise ValueError(
            f'{group} of {path} has the fields {sorted(part)}, but'
            f' {groups[0]} has {sorted(parts[0])}.'
        )
    join = lambda name: np.concatenate([part[name][()] for part in parts])
    return {name: join(name) for name in parts[0]}, int(file['_len'][()])


def _read_json(*parts: str) -> Dict[str, Any]:
  path = os.path.join(*parts)
  if not os.path.isfile(path):
    raise ValueError(
        f'There is no {path}, which a storage of TorchRL has. Is this one that'
        ' FlatStorageCheckpointer or NestedStorageCheckpointer has saved?'
    )
  with files.open_text(path) as f:
    return json.load(f)


def _read_columns(folder: str, prefix: str) -> Iterator[Tuple[str, np.ndarray]]:
  meta = _read_json(folder, _META_FILE)
  if meta['_type'] != _TENSOR_DICT:
    raise ValueError(
        f'{folder} holds a {meta["_type"]}. Only a TensorDict is read.'
    )
  for name, entry in meta.items():
    path = os.path.join(folder, name)
    if name in _VALUES or not isinstance(entry, dict):
      continue
    if 'type' in entry:
      yield from _read_columns(path, f'{prefix}{name}/')
    else:
      yield prefix + name, _read_column(path, entry)


def _read_column(path: str, entry: Dict[str, Any]) -> np.ndarray:
  """Returns the rows of a field, mapped to memory."""
  try:
    name = entry['dtype'].removeprefix('torch.')
    dtype = np.dtype(tf.as_dtype(name).as_numpy_dtype)
  except TypeError as e:
    raise ValueError(
        f'{path} is {name}, which TensorFlow does not have. Cast it before it'
        ' is saved.'
    ) from e
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
  found = os.path.getsize(file) if os.path.isfile(file) else -1
  # The files of the nested form may be longer than the rows that count.
  if found < expected:
    raise ValueError(
        f'{file} must have {expected} bytes, for {dtype} {list(shape)}, but'
        + (' is not there.' if found < 0 else f' has {found}.')
    )
  if not expected:
    return np.zeros(shape, dtype)
  return np.memmap(file, dtype, 'r', shape=shape)


def write(
    folder: str,
    episodes: Iterable[Dict[str, np.ndarray]],
    format: str,  # pylint: disable=redefined-builtin
) -> int:
  """Writes transitions in one of the formats.

  Args:
    folder: an empty folder.
    episodes: the rows of each episode, by the names of the fields.
    format: one of `FORMATS`.

  Returns:
    The number of transitions.
  """
  if format == HDF5:
    return _write_hdf5(os.path.join(folder, _HDF5_FILE), episodes)
  nested = format == NESTED
  shapes: Dict[str, List[Tuple[int, ...]]] = {}
  dtypes = {}
  for columns in episodes:
    for name, rows in columns.items():
      path = os.path.join(folder, f'{name}.memmap')
      os.makedirs(os.path.dirname(path), exist_ok=True)
      with open(path, 'ab') as f:
        f.write(rows.tobytes())
      shapes.setdefault(name, []).append(rows.shape)
      dtypes[name] = rows.dtype
  num_episodes = len(shapes[ted_columns.DONE])
  length = sum(shape[0] for shape in shapes[ted_columns.DONE])
  # By the paths of folders, what their meta files say of what is in them.
  metas: Dict[str, Dict[str, Any]] = {'': {}}
  own = {'shape': [num_episodes] if nested else [], '_type': _TENSOR_DICT}
  for name, found in shapes.items():
    shape = [sum(one[0] for one in found), *found[0][1:]]
    if nested:
      np.array(found).tofile(os.path.join(folder, f'{name}.shape.memmap'))
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
  for name, value in _own_values(length):
    metas[''][name] = {'type': 'NonTensorData'}
    value = {'data': value, '_type': _VALUE, '_is_non_tensor': True}
    _write_json({**value, '_metadata': None}, folder, name, _META_FILE)
  for name, meta in metas.items():
    _write_json({**meta, **own, 'device': 'cpu'}, folder, name, _META_FILE)
  marker = {'metadata': {}, 'is_pytree': False, 'len': length}
  _write_json(marker, folder, _LENGTH_FILE)
  return length


def _write_json(value: Any, *parts: str) -> None:
  path = os.path.join(*parts)
  os.makedirs(os.path.dirname(path), exist_ok=True)
  with open(path, 'w', encoding='utf-8') as f:
    json.dump(value, f)


def _write_hdf5(path: str, episodes: Iterable[Dict[str, np.ndarray]]) -> int:
  """Writes a group for each episode; returns the number of transitions."""
  length = 0
  with h5py.File(path, 'w') as file:
    for number, columns in enumerate(episodes):
      file.create_group(f'traj_{number}').update(columns)
      length += len(columns[ted_columns.DONE])
    file.update({**dict(_own_values(length)), '_len': length})
  return length


def _own_values(length: int) -> Iterator[Tuple[str, Any]]:
  return zip(_VALUES, (True, length, [length]))


def write_rest(folder: str, rests: List[ted_columns.Rest]) -> None:
  """Writes data for which TorchRL has no place: names and tensors in turn."""
  with tf.io.TFRecordWriter(os.path.join(folder, REST_FILE)) as writer:
    for name in sorted(rests[0]):
      column = np.concatenate([rest[name] for rest in rests])
      writer.write(name)
      writer.write(tf.make_tensor_proto(column).SerializeToString())


def read_rest(folder: str) -> ted_columns.Rest:
  """Reads what `write_rest` wrote, if it did."""
  path = os.path.join(folder, REST_FILE)
  if not os.path.isfile(path):
    return {}
  records = list(tf.data.TFRecordDataset(path).as_numpy_iterator())
  return {
      name.decode(): tf.make_ndarray(tensor_pb2.TensorProto.FromString(record))
      for name, record in zip(records[::2], records[1::2])
  }
