"""Reads mutated copies of files in a process that may crash.

`python -m tests.fuzzing FOLDER` is the child process of `fuzz_test.py`. Each
line of its standard input is a request in JSON: the name of a format, the seed
of a mutation, and whether the mutation is crafted or random. The child answers
each request with a line of JSON. Its memory is limited to 2 GB.

A random mutation changes the bytes of a file. A crafted mutation changes the
content of a file, such as numbers, shapes, dtypes and names, and keeps the file
readable; checksums are correct if the format has them.
"""

import argparse
from collections.abc import Callable
import contextlib
import filecmp
import hashlib
import itertools
import json
import os
import pathlib
import random
import re
import resource
import shutil
import struct
import sys
import tempfile
from typing import Any, NamedTuple
import zipfile
import zlib

import h5py
import numpy as np
import pyarrow as pa
from pyarrow import parquet
import tensorflow as tf

import rlds2reverb
from rlds2reverb import fields
from rlds2reverb import formats
from rlds2reverb import indexing
from rlds2reverb import random_access
from rlds2reverb.datasets import loading
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.fields import configs
from rlds2reverb.indexing import index as index_lib
from rlds2reverb.jobs import convert
from rlds2reverb.jobs import job as job_lib
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import processes
from rlds2reverb.jobs import sources
from rlds2reverb.replay import items
from rlds2reverb.replay.checkpoint import episodes
from rlds2reverb.replay.checkpoint import merge
from rlds2reverb.replay.checkpoint import records
from rlds2reverb.replay.checkpoint import serve
from rlds2reverb.statistics import compute
from rlds2reverb.statistics import results
from rlds2reverb.store import folders
from tests import tfds_files
from tests.formats import expected
from tests.jobs import data_sets

MEMORY_BYTES = 2 << 30
SAME, OTHER, ERROR, FAULT = 'same', 'other', 'error', 'fault'
_ERRORS = (
    ImportError,  # From features that name an unknown class of TFDS.
    ValueError,
    OSError,
    SyntaxError,  # From gin files.
    tf.errors.OpError,
    records.CheckpointError,
)
_DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'data')
_ODD_NUMBERS = (0, -1, 1, 255, 2**31 - 1, 2**31, 2**40, 2**62, 2**63, 2**64 - 1)
_ODD_VALUES = (
    *_ODD_NUMBERS,
    -(2**63),
    0.5,
    1e308,
    float('nan'),
    None,
    True,
    '',
    'x',
    '../x',
    '/etc/passwd',
    '\0',
    [],
    [[]],
    {},
    [2**40, 2**40],
    '<f8',
    'string',
    'object',
    'é' * 1000,
)


class Format(NamedTuple):
  """A file format, and functions that write, read and mutate its files.

  Attributes:
    make: writes intact files to a new folder.
    read: reads all files in a folder; returns a nest of arrays.
    craft: makes a crafted mutation in a folder, whose files remain readable.
    checked: a regular expression for the names of files with checksums, which
      are never read with other content after a random mutation.
    changed: a regular expression for the names of files that may be mutated.
  """

  make: Callable[[str], None]
  read: Callable[[str], Any]
  craft: Callable[[random.Random, str, str], None]
  checked: str = '$^'
  changed: str = ''


def digest(nest: Any) -> str:
  """Returns a hash of a nest of arrays, with their dtypes and shapes."""
  found = hashlib.sha256()
  for leaf in tf.nest.flatten(nest):
    array = np.asarray(leaf)
    found.update(f'{array.dtype} {array.shape} '.encode())
    is_object = array.dtype == object
    found.update(
        repr(array.tolist()).encode() if is_object else array.tobytes()
    )
  return found.hexdigest()


def _files_in(folder: str, pattern: str = '') -> list[pathlib.Path]:
  return sorted(
      path
      for path in pathlib.Path(folder).rglob('*')
      if path.is_file()
      and re.match(pattern, os.fspath(path.relative_to(folder)))
  )


# Random mutations.


def change_bytes(rng: random.Random, content: bytes) -> bytes:
  """Returns `content` with a random mutation."""
  size = len(content)
  begin = rng.randrange(size + 1)
  end = min(size, begin + rng.choice((1, 4, 8, 100, size)))
  kind = rng.randrange(8)
  if kind < 2 and size:  # Flip a bit.
    position = rng.randrange(size)
    bit = content[position] ^ 1 << rng.randrange(8)
    return content[:position] + bytes([bit]) + content[position + 1 :]
  if kind == 2:  # Write an unusual number of 4 or 8 bytes.
    number = rng.choice(_ODD_NUMBERS) % 2**64
    new = struct.pack('<Q', number)[: rng.choice((4, 8))]
    return content[:begin] + new + content[begin + len(new) :]
  if kind == 3:
    new = rng.randbytes(rng.choice((1, 2, 8, 64)))
    return content[:begin] + new + content[begin + len(new) :]
  if kind == 4:
    return content[:begin]
  if kind == 5:
    return content[:begin] + content[end:]
  if kind == 6:  # Repeat a part.
    return content[:end] + content[begin:]
  other = rng.randrange(size + 1)  # Copy a part of the file to another place.
  new = content[other : other + end - begin]
  return content[:begin] + new + content[begin + len(new) :]


def change_randomly(rng: random.Random, folder: str, pattern: str = '') -> str:
  """Mutates a file of a folder at random; returns its relative path."""
  files = _files_in(folder, pattern)
  path = rng.choice(files)
  kind = rng.randrange(20)
  if kind == 0:
    path.unlink()
  elif kind == 1:
    shutil.copy(rng.choice(files), path.with_name(path.name + '~'))
    os.replace(path.with_name(path.name + '~'), path)
  elif kind == 2:
    path.write_bytes(b'')
  else:
    path.write_bytes(change_bytes(rng, path.read_bytes()))
  return os.fspath(path.relative_to(folder))


# Crafted mutations.


def change_json(rng: random.Random, value: Any) -> Any:
  """Returns a JSON value in which one value is replaced by an unusual one."""
  if isinstance(value, (dict, list)) and value and rng.randrange(8):
    keys = list(value) if isinstance(value, dict) else range(len(value))
    key = rng.choice(keys)
    value = dict(value) if isinstance(value, dict) else list(value)
    kind = rng.randrange(10)
    if kind == 0:
      del value[key]
    elif kind == 1 and isinstance(value, dict):
      value[rng.choice(('x', '', '../x', '0'))] = value.pop(key)
    elif kind == 2 and isinstance(value, list):
      value.append(value[key])
    else:
      value[key] = change_json(rng, value[key])
    return value
  if isinstance(value, str) and value[:1] in ('{', '['):
    try:
      return json.dumps(change_json(rng, json.loads(value)))
    except ValueError:
      pass
  if isinstance(value, str) and rng.randrange(2):
    return re.sub(
        r'\d+', lambda _: str(rng.choice(_ODD_NUMBERS)), value, count=1
    )
  if isinstance(value, (int, float)) and rng.randrange(2):
    return value + rng.choice((-1, 1, 2**32, -value * 2))
  return rng.choice(_ODD_VALUES)


def _craft_json(rng: random.Random, path: pathlib.Path) -> None:
  text = path.read_text(encoding='utf-8')
  lines = text.splitlines()
  if lines and all(re.fullmatch(r'{.*}', line) for line in lines):
    line_number = rng.randrange(len(lines))
    lines[line_number] = json.dumps(
        change_json(rng, json.loads(lines[line_number]))
    )
    path.write_text('\n'.join(lines), encoding='utf-8')
  else:
    changed = json.dumps(change_json(rng, json.loads(text)))
    path.write_text(changed, encoding='utf-8')


def _odd_array(rng: random.Random, array: np.ndarray) -> np.ndarray:
  """Returns an array with different values, shape or dtype."""
  kind = rng.randrange(9)
  if kind == 0:
    return array[: rng.randrange(len(array) + 1)] if array.ndim else array[None]
  if kind == 1:
    return np.concatenate([array, array]) if array.ndim else array
  if kind == 2:
    return array[..., None]
  if kind == 3:
    return array.reshape(-1)
  if kind == 4:
    return array.astype(rng.choice(('S', 'f8', 'i1', '?', 'c16', 'f2')))
  if kind == 5:
    return array[:0] if array.ndim else array
  if kind == 6:
    return np.zeros([3, 0, 2], array.dtype)
  if array.dtype.kind not in 'iuf' or not array.size:
    return array[::-1] if array.ndim else array
  changed = array.copy()
  odd = rng.choice((0, -1, 127, 2**31 - 1, 2**62, float('nan'), float('inf')))
  with np.errstate(all='ignore'):
    changed.reshape(-1)[rng.randrange(array.size)] = np.array(odd).astype(
        array.dtype
    )
  return changed


def _odd_header(rng: random.Random, content: bytes) -> bytes:
  """Returns an .npy file with a different header of the same length."""
  end = content.find(b'\n') + 1
  header = content[10:end]
  old, new = rng.choice(
      [
          (rb"'descr': '[^']*'", b"'descr': '|O'"),
          (rb"'descr': '[^']*'", b"'descr': '<f8'"),
          (rb"'descr': '[^']*'", b"'descr': '|S0'"),
          (rb"'descr': '[^']*'", b"'descr': '<M8'"),
          (rb"'shape': \([^)]*\)", b"'shape': (%d,)" % 10**12),
          (rb"'shape': \([^)]*\)", b"'shape': (-1,)"),
          (rb"'shape': \([^)]*\)", b"'shape': (0, %d)" % 2**62),
          (rb"'shape': \([^)]*\)", b"'shape': (%d, 4)" % 2**62),
          (rb"'shape': \([^)]*\)", b"'shape': ()"),
      ]
  )
  header = re.sub(old, new, header).strip() + b' \n'
  return content[:8] + struct.pack('<H', len(header)) + header + content[end:]


def _craft_npy(rng: random.Random, path: pathlib.Path) -> None:
  array = np.load(path, allow_pickle=True)
  if array.dtype == object:
    np.save(path, np.array(change_json(rng, array.item()), object))
  elif rng.randrange(2):
    path.write_bytes(_odd_header(rng, path.read_bytes()))
  else:
    np.save(path, _odd_array(rng, array))


def _craft_npz(rng: random.Random, path: pathlib.Path) -> None:
  with zipfile.ZipFile(path) as archive:
    members = {name: archive.read(name) for name in archive.namelist()}
  name = rng.choice(list(members))
  kind = rng.randrange(8)
  if kind == 0:
    del members[name]
  elif kind == 1:
    members['../x.npy'] = members.pop(name)
  elif kind == 2:
    members[name] = change_bytes(rng, members[name])
  elif kind < 6:
    members[name] = _odd_header(rng, members[name])
  if kind < 6:
    with zipfile.ZipFile(path, 'w') as archive:
      for each, content in members.items():
        archive.writestr(each, content)
    return
  with np.load(path) as arrays:
    found = dict(arrays)
  name = rng.choice(list(found))
  np.savez(path, **{**found, name: _odd_array(rng, found[name])})


def _craft_hdf5(rng: random.Random, path: pathlib.Path) -> None:
  """Replaces a data set, a group or an attribute of an HDF5 file."""
  with h5py.File(path, 'r+') as file:
    names: list[str] = []
    file.visit(names.append)
    name = rng.choice(names)
    node = file[name]
    attributes = dict(node.attrs)
    if attributes and rng.randrange(3) == 0:
      key = rng.choice(list(attributes))
      del node.attrs[key]
      odd = rng.choice(_ODD_VALUES[:14] + ('x', '../x', b'\xff', [1.5, 2.5]))
      if odd is not None:
        node.attrs[key] = odd if odd != '\0' else 'x'
      return
    is_group = isinstance(node, h5py.Group)
    array = np.zeros([3]) if is_group else node[()]
    del node, file[name]
    kind = rng.randrange(10)
    if kind == 0:
      return
    if kind == 1:
      file[name] = file['/']
    elif kind == 2:
      file[name] = h5py.ExternalLink('/etc/passwd', '/')
    elif kind == 3:
      file[name] = h5py.SoftLink('/' + name)
    elif kind == 4:
      shape = rng.choice([(10**10,), (4, 10**9), (0, 0), ()])
      chunks = tuple(min(3, max(1, size)) for size in shape) or None
      file.create_dataset(name, shape, 'f4', chunks=chunks)
    elif kind == 5:
      file.create_dataset(name, data=h5py.Empty('f4'))
    elif kind == 6:
      file.create_dataset(
          name, data=['x'] * 3, dtype=h5py.string_dtype(length=None)
      )
    elif isinstance(array, np.ndarray) and array.dtype != object:
      file[name] = _odd_array(rng, array)
    else:
      file[name] = 7


def _change_table(rng: random.Random, table: pa.Table) -> pa.Table:
  """Returns a table with a changed column or changed rows."""
  column_index = rng.randrange(table.num_columns)
  name, column = table.column_names[column_index], table.column(column_index)
  kind = rng.randrange(8)
  if kind == 0:
    table = table.drop_columns([name])
  elif kind == 1:
    table = table.set_column(
        column_index, name, pa.nulls(len(table), column.type)
    )
  elif kind == 2:
    table = table.set_column(column_index, name, pa.array(range(len(table))))
  elif kind == 3:
    table = table.append_column(name, column)
  elif kind == 4:
    table = table.slice(rng.randrange(len(table) + 1))
  elif kind == 5:
    table = table.set_column(column_index, name, pa.array([[]] * len(table)))
  elif kind == 6:
    mask = pa.array([rng.randrange(3) > 0 for _ in range(len(table))])
    table = table.filter(mask)
  else:
    table = table.set_column(column_index, name, pa.array(['é'] * len(table)))
  return table


def _craft_parquet(rng: random.Random, path: pathlib.Path) -> None:
  table = parquet.read_table(path, partitioning=None)
  parquet.write_table(_change_table(rng, table), path)


def _craft_arrow(rng: random.Random, path: pathlib.Path) -> None:
  with pa.ipc.open_stream(path.read_bytes()) as reader:
    table = _change_table(rng, reader.read_all())
  with pa.ipc.new_stream(os.fspath(path), table.schema) as writer:
    writer.write_table(table)


_GIN_LINES = (
    'StepMapping.is_terminal = @TerminalOnSuccess()',
    'TerminalOnSuccess.success = @TerminalOnSuccess()',
    'StepMapping.other = 1',
    'StepMapping.cast = {"float32": 7}',
    'StepMapping.cast = [["float32"]]',
    'StepMapping.last_reward = {}',
    'transform_episodes.transforms = 7',
    'transform_episodes.transforms = @StepMapping()',
    'TerminalOnSuccess = 1',
    'a/StepMapping.action = "action"',
    'StepMapping.action = %MACRO',
    'StepMapping.action = @gin.singleton()',
    'StepMapping.action = @a/TerminalOnSuccess()',
    'include "/etc/passwd"',
    'import os',
    '[' * 3000,
    '- ' * 3000,
    'StepMapping.action = ' + '{' * 3000,
    'StepMapping.action = ' + '1 + ' * 3000 + '1',
    'StepMapping.action = 1_0e400',
    'StepMapping.action = ' + '9' * 5000,
    'StepMapping.action = b"\\xff"',
    'StepMapping.action = "\\ud800"',
    'StepMapping.action = "\\N{x}"',
    '  StepMapping.action = 1',
    '\ud800',
    '\0',
)


def _craft_gin(rng: random.Random, path: pathlib.Path) -> None:
  """Adds, removes or changes a line of a gin file."""
  lines = path.read_text(encoding='utf-8').splitlines()
  line_number = rng.randrange(len(lines))
  kind = rng.randrange(5)
  if kind == 0:
    del lines[line_number]
  elif kind == 1:
    lines[line_number] = re.sub(
        r'\w+', lambda _: rng.choice(('x', '7')), lines[line_number], count=1
    )
  elif kind == 2:
    odd = repr(rng.choice(_ODD_VALUES))
    lines[line_number] = re.sub(
        r'= .*', lambda _: f'= {odd}', lines[line_number]
    )
  else:
    lines.insert(line_number, rng.choice(_GIN_LINES))
  content = '\n'.join(lines).encode('utf-8', 'surrogatepass')
  path.write_bytes(content)


def _craft_records(compression: str):
  """Returns a function that mutates a record and updates its checksum."""

  def craft(rng: random.Random, path: pathlib.Path) -> None:
    found = tf.data.TFRecordDataset(os.fspath(path), compression)
    contents = list(found.as_numpy_iterator())
    record_index = rng.randrange(len(contents))
    kind = rng.randrange(8)
    if kind == 0:
      del contents[record_index]
    elif kind == 1:
      contents.insert(record_index, rng.choice(contents))
    elif kind == 2:
      contents[record_index] = rng.choice(contents)
    else:
      contents[record_index] = change_bytes(rng, contents[record_index])
    options = tf.io.TFRecordOptions(compression)
    with tf.io.TFRecordWriter(os.fspath(path), options) as writer:
      for record in contents:
        writer.write(record)

  return craft


def _craft_array_record(rng: random.Random, path: pathlib.Path) -> None:
  from array_record.python import array_record_module

  reader = array_record_module.ArrayRecordReader(os.fspath(path))
  contents = reader.read_all()
  reader.close()
  record_index = rng.randrange(len(contents))
  if rng.randrange(4):
    contents[record_index] = change_bytes(rng, contents[record_index])
  else:
    del contents[record_index]
  writer = array_record_module.ArrayRecordWriter(
      os.fspath(path), 'group_size:1'
  )
  for record in contents:
    writer.write(record)
  writer.close()


def _craft_store(rng: random.Random, folder: str, pattern: str = '') -> None:
  """Mutates a row store and updates its checksums."""
  del pattern
  marker = pathlib.Path(folder, folders.MARKER)
  content = json.loads(json.loads(marker.read_text())['content'])
  kind = rng.randrange(3)
  if kind == 0:
    name = rng.choice(list(content['files']))
    path = pathlib.Path(folder, name)
    if name == folders.ARRAYS:
      _craft_npz(rng, path)
    else:
      path.write_bytes(change_bytes(rng, path.read_bytes()))
    data = path.read_bytes()
    blocks = range(0, len(data), folders.BLOCK_BYTES)
    content['files'][name] = [
        len(data),
        [zlib.crc32(data[at : at + folders.BLOCK_BYTES]) for at in blocks],
    ]
  else:
    content = change_json(rng, content)
  marker.unlink()
  folders.write_marker(folder, content)


_CRAFTS: dict[str, Callable[[random.Random, pathlib.Path], None]] = {
    '.json': _craft_json,
    '.jsonl': _craft_json,
    '.zarray': _craft_json,
    '.zgroup': _craft_json,
    '.zattrs': _craft_json,
    '.zmetadata': _craft_json,
    '.npy': _craft_npy,
    '.npz': _craft_npz,
    '.h5': _craft_hdf5,
    '.hdf5': _craft_hdf5,
    '.parquet': _craft_parquet,
    '.arrow': _craft_arrow,
    '.gin': _craft_gin,
}


def _craft_any(rng: random.Random, folder: str, pattern: str = '') -> None:
  """Mutates a file with the function for its file name extension."""
  found = []
  for path in _files_in(folder, pattern):
    suffix = path.suffix or path.name
    if '.array_record' in path.name:
      found.append((path, _craft_array_record))
    elif '.tfrecord' in path.name:
      zipped = os.path.exists(os.path.join(folder, 'tables.tfrecord'))
      found.append((path, _craft_records('ZLIB' if zipped else '')))
    elif suffix in _CRAFTS:
      found.append((path, _CRAFTS[suffix]))
  path, craft = rng.choice(found)
  craft(rng, path)


# Formats.


# Files that the readers do not read, and videos, which have their own tests.
_UNREAD = shutil.ignore_patterns('expected.npz', '*.mp4')


def _copy(*path: str) -> Callable[[str], None]:
  def make(folder: str) -> None:
    source = os.path.join(_DATA, *path)
    if os.path.isdir(source):
      shutil.copytree(source, folder, ignore=_UNREAD, dirs_exist_ok=True)
    else:
      os.makedirs(folder, exist_ok=True)
      shutil.copy(source, folder)

  return make


def _unzip_torchrl(folder: str) -> None:
  with zipfile.ZipFile(os.path.join(_DATA, 'torchrl.zip')) as archive:
    for name in archive.namelist():
      if name.startswith('nested/') and not name.endswith('/'):
        path = os.path.join(folder, name[len('nested/') :])
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'wb') as f:
          f.write(archive.read(name))


def _elements(dataset: tf.data.Dataset) -> list[Any]:
  # A mutated length can make a data set infinite. `Dataset.take` would trace a
  # graph for each mutation.
  return list(itertools.islice(dataset.as_numpy_iterator(), 1000))


def _load(name: str, path: str = '', **options: Any) -> Callable[[str], Any]:
  return lambda folder: _elements(
      formats.load(
          os.path.join(folder, path) if path else folder, name, **options
      )
  )


def _write_npz(folder: str) -> None:
  os.makedirs(folder, exist_ok=True)
  rng = np.random.default_rng(0)
  np.savez_compressed(
      os.path.join(folder, 'data.npz'),
      observations=rng.normal(size=(20, 3)).astype(np.float32),
      actions=rng.integers(0, 3, 20),
      rewards=rng.normal(size=20),
      terminals=np.arange(20) % 5 == 4,
      timeouts=np.zeros(20, bool),
  )


def _write_rlds(file_format: str) -> Callable[[str], None]:
  def make(folder: str) -> None:
    tfds_files.write(
        folder,
        data_sets.FEATURES,
        [data_sets.episode(number, 2 + number) for number in range(4)],
        file_format=file_format,
    )

  return make


def _episodes() -> tf.data.Dataset:
  folder = os.path.join(tempfile.mkdtemp(), 'data')
  _write_rlds('tfrecord')(folder)
  return loading.load_episodes(folder)


def _write_checkpoint(folder: str) -> None:
  shutil.rmtree(folder, ignore_errors=True)
  rlds2reverb.write_reverb_checkpoint(
      _episodes(), folder, [items.TableItems('experience')]
  )


def _read_checkpoint(folder: str) -> Any:
  """Reads a checkpoint by restoring it, merging it and reading its episodes."""
  server = serve.restore_reverb_server(folder)
  found: dict[Any, Any] = {}
  try:
    client = server.localhost_client()
    [(name, info)] = client.server_info().items()
    for _ in range(100 if info.current_size else 0):
      for sample in client.sample(name, 100, emit_timesteps=False):
        found[int(np.ravel(sample.info.key)[0])] = sample.data
      if len(found) == info.current_size:
        break
  finally:
    server.stop()
  with tempfile.TemporaryDirectory() as other:
    merge.merge_reverb_checkpoints([folder], os.path.join(other, 'merged'))
  read = episodes.read_checkpoint_episodes(folder, name)
  return [found[key] for key in sorted(found)], _elements(read)


def _write_prepared(folder: str) -> None:
  os.rmdir(folder)
  rlds2reverb.open_replay_buffer(
      _episodes(), windows_lib.Windows(2), directory=folder
  ).close()


def _read_prepared(folder: str) -> Any:
  buffer = rlds2reverb.open_replay_buffer(folder)
  try:
    found = buffer.as_dataset(
        sample_batch_size=4, single_deterministic_pass=True
    )
    return _elements(found), buffer.gather_all()
  finally:
    buffer.close()


def _write_index(folder: str) -> None:
  os.rmdir(folder)
  random_access.build_index(_episodes(), folder)


def _read_index(folder: str) -> Any:
  windows = random_access.Items(
      random_access.Index(folder), windows_lib.Windows(2)
  )
  return windows.batch(np.arange(len(windows)))


def _write_transitions(folder: str) -> None:
  os.rmdir(folder)
  indexing.TransitionIndex.from_episodes(
      _episodes(), keys=['observation']
  ).save(folder)


def _read_transitions(folder: str) -> Any:
  indexing.TransitionIndex.load(folder)
  return index_lib.read_transitions(folder)


_JOB = 'out.job'


def _make_plan(folder: str) -> plan_lib.Plan:
  source = sources.make_source(os.path.join(folder, 'data'), 'train')
  return plan_lib.make_plan(
      [sources.open_source(source)],
      plan_lib.Output(plan_lib.STATISTICS, os.path.join(folder, 'out'), ''),
      task_bytes=1,
  )


def _job_place(folder: str) -> str:
  """Returns the folder that contains the data and the output of a job.

  A plan contains their paths, so all copies of the folder of a job share them.
  """
  return os.path.join(os.path.dirname(os.path.dirname(folder)), 'job')


class _Stopped(processes.InProcessEngine):
  """Runs the tasks, and is interrupted before their outputs are joined."""

  def join(self, job_runner):
    raise KeyboardInterrupt


def _write_job(folder: str) -> None:
  place = _job_place(folder)
  shutil.rmtree(place, ignore_errors=True)
  _write_rlds('tfrecord')(os.path.join(place, 'data'))
  with contextlib.suppress(KeyboardInterrupt):
    convert.convert(
        _make_plan(place), engine=_Stopped(), print_fn=lambda _: None
    )
  shutil.copytree(os.path.join(place, _JOB), folder, dirs_exist_ok=True)


def _keep(*names: str) -> Callable[[str], None]:
  """Returns a `make` that writes only the files of a job with these names."""

  def make(folder: str) -> None:
    _write_job(folder)
    for path in _files_in(folder):
      if not re.match('|'.join(names), os.fspath(path.relative_to(folder))):
        path.unlink()

  return make


def _read_plan(folder: str) -> Any:
  plan = _make_plan(_job_place(folder))
  job_lib.Job(plan, folder).check_same_plan()
  return np.array(plan.hash)


def _read_job(folder: str) -> Any:
  place = _job_place(folder)
  shutil.rmtree(os.path.join(place, 'out'), ignore_errors=True)
  convert.convert(_make_plan(place), folder, print_fn=lambda _: None)
  path = os.path.join(place, 'out', 'statistics.json')
  with open(path, 'rb') as f:
    return np.array(f.read())


def _write_maniskill(folder: str) -> None:
  rng = np.random.default_rng(0)
  with h5py.File(os.path.join(folder, 'a.h5'), 'w') as file:
    for number, length in enumerate((3, 2, 4)):
      group = file.create_group(f'traj_{number}')
      group['obs/agent/qpos'] = rng.normal(size=(length + 1, 2))
      rgb = rng.integers(0, 255, (length + 1, 4, 4, 3)).astype(np.uint8)
      group.create_dataset('obs/sensor/rgb', data=rgb, compression='gzip')
      group['env_states/cube'] = rng.normal(size=(length + 1, 3))
      group['actions'] = rng.normal(size=(length, 2))
      group['rewards'] = rng.normal(size=length)
      group['terminated'] = np.arange(length) == length - 1
  _write_json(
      os.path.join(folder, 'a.json'),
      {'env_info': {'env_id': 'PickCube-v1'}, 'episodes': []},
  )


def _write_gr00t(folder: str) -> None:
  _copy('lerobot', 'v2.1')(folder)
  modality = {
      'state': {
          'arm': {'start': 0, 'end': 2},
          'gripper': {'start': 2, 'end': 3},
      },
      'action': {'arm': {'start': 1, 'end': 2, 'original_key': 'action'}},
      'video': {'ego': {'original_key': 'observation.images.top'}},
      'annotation': {'human.task': {'original_key': 'task_index'}},
  }
  _write_json(os.path.join(folder, 'meta', 'modality.json'), modality)


def _write_json(path: str, value: Any) -> None:
  pathlib.Path(path).write_text(json.dumps(value), encoding='utf-8')


def _read_calvin(folder: str) -> Any:
  return [
      _load('calvin', language=language)(folder) for language in (False, True)
  ]


_GIN = """# Of the data set of a robot.
StepMapping.observation = {'image': 'observation/image', 'state': 'state[:6]'}
StepMapping.action = ['action/world_vector', 'action/open_gripper']
StepMapping.discount = None
StepMapping.is_terminal = @TerminalOnSuccess()
StepMapping.cast = {'float64': 'float32'}
StepMapping.last_reward = 'transition'
TerminalOnSuccess.success = '../success'
transform_episodes.transforms = [@RelabelGoals(), @FitImages()]
RelabelGoals.max_distance = 2
FitImages.sizes = {'observation/image': (4, 4)}
"""


def _write_gin(folder: str) -> None:
  pathlib.Path(folder, 'mine.gin').write_text(_GIN, encoding='utf-8')


def _read_gin(folder: str) -> Any:
  path = os.path.join(folder, 'mine.gin')
  found = fields.load_mapping(path), configs.load_transforms(path)
  return np.array(repr(found))


def _write_statistics(folder: str) -> None:
  found = rlds2reverb.statistics.compute_statistics(_episodes())

  path = pathlib.Path(folder, 'statistics.json')
  path.write_text(results.to_json(found), encoding='utf-8')


def _read_statistics(folder: str) -> Any:

  found = compute.load_statistics(os.path.join(folder, 'statistics.json'))
  return np.array(results.to_json(found))


FORMATS: dict[str, Format] = {
    'checkpoint': Format(
        _write_checkpoint, _read_checkpoint, _craft_any, r'.*\.tfrecord'
    ),
    'prepared_frames': Format(
        _write_prepared, _read_prepared, _craft_store, ''
    ),
    'index': Format(_write_index, _read_index, _craft_store, ''),
    'transition_index': Format(
        _write_transitions, _read_transitions, _craft_any
    ),
    'plan': Format(_keep('plan'), _read_plan, _craft_any),
    'receipts': Format(_write_job, _read_job, _craft_any),
    'statistics': Format(_write_statistics, _read_statistics, _craft_any),
    'tfrecord': Format(
        _write_rlds('tfrecord'),
        lambda folder: _elements(loading.load_episodes(folder)),
        _craft_any,
        r'.*\.tfrecord',
    ),
    'array_record': Format(
        _write_rlds('array_record'),
        lambda folder: _elements(loading.load_episodes(folder)),
        _craft_any,
    ),
    'npz': Format(_write_npz, _load('npz', 'data.npz'), _craft_any),
    'hdf5': Format(
        _copy('minari', 'cartpole', 'data'), _load('minari'), _craft_any
    ),
    'robomimic': Format(
        _copy('robomimic', 'low_dim.hdf5'),
        _load('robomimic', 'low_dim.hdf5'),
        _craft_any,
    ),
    'd3rlpy': Format(
        _copy('d3rlpy', 'arrays.h5'), _load('d3rlpy', 'arrays.h5'), _craft_any
    ),
    'parquet': Format(
        _copy('parquet', 'episodes.parquet'),
        _load(
            'parquet', 'episodes.parquet', column_names={'terminals': 'dones'}
        ),
        _craft_any,
    ),
    'lerobot': Format(
        _copy('lerobot', 'v3.0'),
        _load('lerobot', cameras=[], exclude=['observation.sketch']),
        _craft_any,
    ),
    'zarr': Format(_copy('zarr', 'pusht.zarr'), _load('zarr'), _craft_any),
    'torchrl': Format(_unzip_torchrl, _load('torchrl', 'storage'), _craft_any),
    'calvin': Format(expected.write_calvin_files, _read_calvin, _craft_any),
    'imitation': Format(
        _copy('imitation', 'folder'), _load('imitation'), _craft_any
    ),
    'imitation_npz': Format(
        _copy('imitation', 'trajectories.npz'),
        _load('imitation', 'trajectories.npz'),
        _craft_any,
    ),
    'maniskill': Format(
        _write_maniskill, _load('maniskill', 'a.h5'), _craft_any
    ),
    'gr00t': Format(
        _write_gr00t,
        _load(
            'lerobot',
            modality=True,
            cameras=[],
            exclude=['observation.sketch'],
        ),
        _craft_any,
        changed='meta/(modality|info).json',
    ),
    'gin': Format(_write_gin, _read_gin, _craft_any),
    'rllib': Format(_copy('rllib', 'plain'), _load('rllib'), _craft_any),
}


class Child:
  """Mutates and reads copies of the files of each format."""

  def __init__(self, folder: str):
    self._folder = folder
    self._right: dict[str, str] = {}

  def _whole(self, name: str) -> str:
    folder = os.path.join(self._folder, 'whole', name)
    if name not in self._right:
      # A job refers to its own folder, so each child writes it again. The files
      # of other formats may exist already, complete or not, because an earlier
      # child wrote them.
      marker = f'{folder}.complete'
      if not os.path.exists(marker) or name in ('plan', 'receipts'):
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        FORMATS[name].make(folder)
        pathlib.Path(marker).touch()
      copy = self._copy(name, folder)
      self._right[name] = digest(FORMATS[name].read(copy))
    return folder

  def _copy(self, name: str, folder: str) -> str:
    copy = os.path.join(self._folder, 'copy', name)
    shutil.rmtree(copy, ignore_errors=True)
    return shutil.copytree(folder, copy)

  def run(self, name: str, seed: int, is_crafted: bool) -> dict[str, str]:
    """Mutates and reads a format; returns the `outcome` and its `details`."""
    copy = self._copy(name, self._whole(name))
    rng = random.Random(f'{name} {seed}')
    pattern = FORMATS[name].changed
    changed = ''
    if is_crafted:
      try:
        FORMATS[name].craft(rng, copy, pattern)
      except Exception:
        # The library of the format refuses to write some values.
        changed = change_randomly(rng, copy, pattern)
    else:
      changed = change_randomly(rng, copy, pattern)
    try:
      found = digest(FORMATS[name].read(copy))
    except _ERRORS as error:
      text = f'{error} {getattr(error, "filename", "")}'
      is_clear = copy in text or _job_place(copy) in text
      return {
          'outcome': ERROR if is_clear else FAULT,
          'details': f'{changed}: {type(error).__name__}: {text}',
      }
    except BaseException as error:
      return {
          'outcome': FAULT,
          'details': f'{changed}: {type(error).__name__}: {error}',
      }
    if found == self._right[name]:
      return {'outcome': SAME, 'details': changed}
    # A copy of another file has correct checksums, too.
    new = os.path.join(copy, changed)  # The mutation may have removed it.
    is_other_file = os.path.isfile(new) and any(
        filecmp.cmp(new, path, shallow=False)
        for path in _files_in(self._whole(name))
    )
    checked = not (is_crafted or is_other_file) and re.match(
        FORMATS[name].checked, changed
    )
    return {
        'outcome': FAULT if checked else OTHER,
        'details': f'{changed}: other content',
    }


def main(folder: str) -> None:
  """Answers the requests of the standard input."""
  answers = os.fdopen(os.dup(1), 'w', encoding='utf-8')
  os.dup2(2, 1)
  child = Child(folder)
  resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
  print('ready', file=answers, flush=True)
  for line in sys.stdin:
    answer = child.run(*json.loads(line))
    print(json.dumps(answer), file=answers, flush=True)


if __name__ == '__main__':
  parser = argparse.ArgumentParser()
  parser.add_argument('folder')
  main(parser.parse_args().folder)
