"""Zarr replay buffers of diffusion_policy and UMI.

    data/action        [N, ...], the frames of all episodes in sequence
    data/<name>        [N, ...], an observation at each frame
    meta/episode_ends  int64 [E], the end of each episode, exclusive

A buffer is a folder or a `.zarr.zip` file. Requires the extra `zarr`, `pip
install '.[zarr]'` in a clone, and imagecodecs for the JPEG XL images of UMI.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import itertools
import math
import os
from typing import Any
import zipfile
import zlib

from absl import logging
from etils import epy
import gin
import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.datasets import format_registry
from rlds2reverb.datasets import json_files
from rlds2reverb.episodes import limits
from rlds2reverb.episodes import rlds
from rlds2reverb.formats import columns as columns_lib
from rlds2reverb.formats import python_episodes

with epy.lazy_imports(error_callback=format_registry.explain_missing_library):
  import numcodecs
  import zarr

_DATA = 'data'
_META = 'meta'
_ENDS = 'episode_ends'
# This codec runs code that is stored in the values.
_UNSAFE_CODEC = 'pickle'
# The last 4 bytes of the header are the size of the chunk.
_BLOSC_HEADER_BYTES = 16
_ARRAY_FILE = '.zarray'
_METADATA_FILES = {_ARRAY_FILE, '.zgroup', '.zattrs', 'zarr.json'}


@gin.configurable(module='rlds2reverb')
@python_episodes.naming_path
def load_zarr(
    path: files.PathLike, *, exclude: Sequence[str] = ()
) -> tf.data.Dataset:
  """Reads the episodes of a Zarr replay buffer of diffusion_policy or UMI.

  A frame has an observation and an action. As with `load_lerobot`, no
  observation is stored after the last action, so an episode of `T` frames has
  `T` steps, and the action of the last step is ignored. All episodes are
  truncated, because the format has no terminal flags.

  Args:
    path: a local folder or zip file.
    exclude: names of arrays to skip, such as `img`.

  Returns:
    A data set of episodes, `{'episode_id': int64 [], 'steps': {...}}`, in the
    order of the buffer, with stacked steps. Dtypes are kept. `data/action`
    becomes `action`, and `data/reward` becomes `reward`, which is float32 zeros
    if it is missing. Any other array becomes `observation/<name>`. Buffers of
    UMI have no actions; `map_fields` can compute them from poses.

  Raises:
    ValueError: if the buffer or an array does not exist, if an array does not
      have a row for each frame, exceeds the size limit, or would run code when
      it is read.
    ImportError: if Zarr, or the codec of an array, is not installed.
  """
  path = files.expand_local(path, 'A Zarr replay buffer')
  ends, arrays = _open(path)
  columns_lib.check_exclude(f'{path}/{_DATA}', arrays, exclude)
  names = [name for name in arrays if name not in exclude]

  def read() -> python_episodes.Episodes:
    columns = {
        name: _column(path, array) for name, array in _open(path)[1].items()
    }

    def read_one(index: int) -> python_episodes.PythonEpisode:
      begin, end = bounds[index : index + 2]
      parts = {
          name: columns_lib.part(columns[name], begin, end) for name in names
      }
      tops = {
          name: parts.pop(name)
          for name in (rlds.ACTION, rlds.REWARD)
          if name in parts
      }
      return python_episodes.make_episode(
          {rlds.OBSERVATION: parts, **tops}, index
      )

    def place_of(index: int) -> tuple[str, str]:
      begin, end = bounds[index : index + 2]
      return f'frames {begin} to {end - 1} of {path}', path

    yield from python_episodes.attempt_each(
        read_one, range(len(ends)), place_of
    )

  bounds = [0, *ends]
  return python_episodes.to_dataset(read, len(ends), num_compared=1)


def _column(path: str, array: Any) -> columns_lib.LazyColumn:
  """Returns an array as a column, with a cache of the last chunks."""
  cached, values = range(0), np.zeros(0)

  def read(begin: int, end: int) -> np.ndarray:
    nonlocal cached, values
    if begin not in cached or end > cached.stop:
      chunk = array.chunks[0]
      cached = range(begin // chunk * chunk, -(-end // chunk) * chunk)
      try:
        _check_chunks(path, array, cached)
        values = array[cached.start : cached.stop]
      except Exception as e:
        cached = range(0)
        files.check_not_pointer(path)
        raise ValueError(
            f'{array.name.lstrip("/")} of {path} is damaged in the frames'
            f' {begin} to {end - 1}: {e or type(e).__name__}.'
        ) from e
    return values[begin - cached.start : end - cached.start]

  return columns_lib.LazyColumn(array.dtype, array.shape, read)


def _open(path: str) -> tuple[list[int], dict[str, Any]]:
  """Returns the ends of the episodes, and the arrays."""
  if not os.path.exists(path):
    raise ValueError(f'There is no Zarr replay buffer at {path}.')
  # An ImportError is not an error of the data.
  open_group, open_zip = zarr.open_group, zarr.storage.ZipStore
  with contextlib.suppress(ImportError):
    from imagecodecs import numcodecs as image_codecs

    image_codecs.register_codecs(verbose=False)
  try:
    is_zip = os.path.isfile(path)
    root = open_group(open_zip(path, mode='r') if is_zip else path, mode='r')
    data, ends = root[_DATA], root[_META][_ENDS]
    arrays = dict(sorted(data.arrays()))
    groups = sorted(name for name, _ in data.groups())
  except Exception as e:  # Zarr 2 and 3 raise errors of many classes.
    files.check_not_pointer(path)
    _check_metadata(path, is_zip)
    raise ValueError(
        f'{path} is not a Zarr replay buffer with {_DATA} and'
        f' {_META}/{_ENDS}: {e or type(e).__name__}.'
    ) from e
  for name, array in (*arrays.items(), (_ENDS, ends)):
    metadata = getattr(array, 'metadata', array)  # Zarr 3, or 2.
    codecs = [
        *(getattr(metadata, 'filters', None) or ()),
        getattr(metadata, 'compressor', None),
    ]
    ids = [getattr(codec, 'codec_id', '') for codec in codecs]
    _check_size(f'{name} of {path}', array, path)
    if array.dtype.kind == 'O' or _UNSAFE_CODEC in ids:
      raise ValueError(f'{name} of {path} {columns_lib.RUNS_CODE}')
  columns_lib.warn_skipped(f'groups below {_DATA} of {path}', groups)
  try:
    _check_chunks(path, ends, range(*ends.shape))
    ends = ends[:].tolist()
  except Exception as e:
    files.check_not_pointer(path)
    raise ValueError(
        f'{_META}/{_ENDS} of {path} cannot be read: {e or type(e).__name__}.'
    ) from e
  if not ends or min(np.diff([0, *ends])) < 0:
    raise ValueError(
        f'{_META}/{_ENDS} of {path} must be the increasing ends of episodes,'
        f' but is {ends[:10]}.'
    )
  for name, array in arrays.items():
    missing = array.nchunks - array.nchunks_initialized
    if missing:
      logging.warning(
          '%d of the %d chunks of %s/%s in %s do not exist, so their rows are'
          ' the fill value %s. If the chunks were lost, copy them again.',
          missing,
          array.nchunks,
          _DATA,
          name,
          path,
          array.fill_value,
      )
    if array.shape[:1] != (ends[-1],):
      raise ValueError(
          f'{_DATA}/{name} of {path} has the shape {array.shape}, but there are'
          f' {ends[-1]} frames according to {_META}/{_ENDS}.'
      )
  return ends, arrays


def _check_chunks(path: str, array: Any, rows: range) -> None:
  """Raises a ValueError if Blosc would read past the end of a chunk.

  Blosc trusts the size in the header of a chunk, so it would decode arbitrary
  memory after a truncated chunk. Zip files have checksums instead.

  Args:
    path: the folder or the zip file of the buffer.
    array: the array.
    rows: the rows whose chunks are checked.
  """
  metadata = getattr(array, 'metadata', array)  # Zarr 3, or 2.
  codecs = [getattr(metadata, 'compressor', None)]
  codecs += getattr(metadata, 'codecs', ())
  is_blosc = any('blosc' in type(codec).__name__.lower() for codec in codecs)
  if not is_blosc or not os.path.isdir(path):
    return
  counts = [-(-n // size) for n, size in zip(array.shape, array.chunks)]
  first = range(rows.start // array.chunks[0], -(-rows.stop // array.chunks[0]))
  for place in itertools.product(first, *map(range, counts[1:])):
    if hasattr(metadata, 'encode_chunk_key'):
      name = metadata.encode_chunk_key(place)
    else:
      name = array._dimension_separator.join(map(str, place))
    file = os.path.join(path, array.path, name)
    if not os.path.isfile(file):
      continue  # Its rows are the fill value.
    with open(file, 'rb') as f:
      header = f.read(_BLOSC_HEADER_BYTES)
      size = os.fstat(f.fileno()).st_size
    if size < int.from_bytes(header[-4:], 'little'):
      files.check_not_pointer(file)
      raise ValueError(
          f'{file} has {size} bytes, but its header says'
          f" {int.from_bytes(header[-4:], 'little')}"
      )


def _check_metadata(path: str, is_zip: bool) -> None:
  """Validates the metadata files; the errors of Zarr lack the file name.

  Raises:
    ImportError: if a codec of imagecodecs is missing.
    ValueError: if a file is damaged or has an unknown codec.
  """
  for name, content in _read_metadata(path, is_zip):
    file = os.path.join(path, name)
    try:
      metadata = json_files.parse_json_object(content.decode('utf-8'), file)
    except UnicodeDecodeError as e:
      raise ValueError(f'{file} is not UTF-8 text: {e}.') from e
    if os.path.basename(name) != _ARRAY_FILE:
      continue
    filters = metadata.get('filters') or ()
    compressor = metadata.get('compressor')
    for codec in (*filters, *([compressor] if compressor else ())):
      try:
        numcodecs.get_codec(codec)
      except Exception as e:  # Types and settings may be wrong, too.
        message = f'{file} has the unknown codec {codec!r}.'
        if 'imagecodecs' in str(codec):
          raise ImportError(
              f'{message} For the JPEG XL images of UMI, run `pip install'
              ' imagecodecs`.'
          ) from e
        raise ValueError(message) from e
    try:
      for key in 'shape', 'chunks':
        sizes = metadata[key]
        if not all(type(size) is int and size >= 0 for size in sizes):
          raise ValueError(f'its {key} is {sizes}')
      if isinstance(metadata['dtype'], str):  # Not a structured dtype.
        np.dtype(metadata['dtype'])
      if metadata['zarr_format'] != 2:
        raise ValueError(f'its zarr_format is {metadata["zarr_format"]!r}')
    except Exception as e:  # Keys may be missing, and types wrong.
      text = f'it has no key {e}' if isinstance(e, KeyError) else str(e)
      raise ValueError(f'{file} is damaged: {text}.') from e


def _read_metadata(path: str, is_zip: bool) -> Iterator[tuple[str, bytes]]:
  """Yields the names and contents of the metadata files."""
  if not is_zip:
    for folder, _, names in sorted(os.walk(path)):
      for name in sorted(_METADATA_FILES.intersection(names)):
        file = os.path.join(folder, name)
        with open(file, 'rb') as f:
          yield os.path.relpath(file, path), f.read()
    return
  try:
    with zipfile.ZipFile(path) as archive:
      for name in archive.namelist():
        if os.path.basename(name) in _METADATA_FILES:
          yield name, archive.read(name)
  except (EOFError, OSError, zipfile.BadZipFile, zlib.error) as e:
    raise ValueError(f'{path} is not a complete zip file of Zarr: {e}.') from e


def _check_size(place: str, array: Any, path: str) -> None:
  """Raises a ValueError if an array or its chunks are too large.

  Zarr decodes entire chunks, and missing chunks do not take space on disk.
  """
  item_bytes = array.dtype.itemsize
  chunk_bytes = math.prod(array.chunks) * item_bytes
  limits.check_size(f'A chunk of {place}, {list(array.chunks)},', chunk_bytes)
  size = math.prod(array.shape) * item_bytes
  if size > limits.max_expanded_bytes(0):
    stored = files.total_size(files.local_files(path))
    limits.check_expanded(place, size, stored)
