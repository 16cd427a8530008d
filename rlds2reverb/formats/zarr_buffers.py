"""Zarr replay buffers, as diffusion_policy and UMI write them.

    data/action        [N, ...], the frames of all episodes one after the other
    data/<name>        [N, ...], what was observed at each frame
    meta/episode_ends  int64 [E], the frame after the last one of each episode

It is a folder, or a file `.zarr.zip`. It needs the extra, `pip install
'.[zarr]'` in a clone, and imagecodecs for images in JPEG XL, as UMI's are.
"""

import contextlib
import os
from typing import Any, Dict, List, Sequence, Tuple
import zipfile

import gin
import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.episodes import rlds
from rlds2reverb.formats import columns as columns_lib
from rlds2reverb.formats import downloads
from rlds2reverb.formats import python_episodes

_DATA = 'data'
_META = 'meta'
_ENDS = 'episode_ends'
# This codec runs code that is stored in the values.
_UNSAFE_CODEC = 'pickle'


@gin.configurable(module='rlds2reverb')
def load_zarr(
    path: files.PathLike, *, leave_out: Sequence[str] = ()
) -> tf.data.Dataset:
  """Reads the episodes of a Zarr replay buffer, as of diffusion_policy or UMI.

  A frame has an observation and the action taken there. As with `load_lerobot`,
  no observation is stored after the last action, so an episode of `T` frames
  has `T` steps, and the action of the last one does not count. All episodes
  are truncated, as nothing says otherwise.

  Args:
    path: the folder, or the zip file of one, on the local disk.
    leave_out: names of arrays that are not read, such as `img`.

  Returns:
    A data set of episodes, `{'episode_id': int64 [], 'steps': {...}}`, in the
    order of the buffer, with stacked steps of the dtypes of the arrays.
    `data/action` is `action` and `data/reward` is `reward`, which is float32
    zeros if there is none; any other array is `observation/<its name>`. UMI's
    buffers have no action: `map_fields` makes it of the poses.

  Raises:
    ValueError: if there is no such buffer, if it has no such array, if an array
      has not as many rows as there are frames, or runs code when it is read.
    ImportError: if Zarr, or what decodes an array, is not installed.
  """
  path = files.expand_local(path, 'A Zarr replay buffer')
  ends, arrays = _open(path)
  columns_lib.check_left_out(f'{path}/{_DATA}', arrays, leave_out)
  names = [name for name in arrays if name not in leave_out]

  def read() -> python_episodes.Episodes:
    columns = {name: _column(array) for name, array in _open(path)[1].items()}
    for index, (begin, end) in enumerate(zip([0, *ends], ends)):
      parts = {
          name: columns_lib.part(columns[name], begin, end) for name in names
      }
      tops = {
          name: parts.pop(name)
          for name in (rlds.ACTION, rlds.REWARD)
          if name in parts
      }
      yield python_episodes.make_episode(
          {rlds.OBSERVATION: parts, **tops}, index
      )

  return python_episodes.to_dataset(read, len(ends))


def _column(array: Any) -> columns_lib.Column:
  """Returns the rows of an array, whose last chunks are decoded only once."""
  held, values = range(0), np.zeros(0)

  def read(begin: int, end: int) -> np.ndarray:
    nonlocal held, values
    if begin not in held or end > held.stop:
      chunk = array.chunks[0]
      held = range(begin // chunk * chunk, -(-end // chunk) * chunk)
      values = array[held.start : held.stop]
    return values[begin - held.start : end - held.start]

  return columns_lib.Column(array.dtype, array.shape, read)


def _open(path: str) -> Tuple[List[int], Dict[str, Any]]:
  """Returns the ends of the episodes, and the arrays of the frames."""
  if not os.path.exists(path):
    raise ValueError(f'There is no Zarr replay buffer at {path}.')
  zarr = downloads.load(
      'zarr', 'Zarr replay buffers are read through Zarr', 'zarr'
  )
  with contextlib.suppress(ImportError):
    # pylint: disable-next=g-import-not-at-top
    from imagecodecs import numcodecs

    numcodecs.register_codecs(verbose=False)
  try:
    is_zip = os.path.isfile(path)
    store = zarr.storage.ZipStore(path, mode='r') if is_zip else path
    root = zarr.open_group(store, mode='r')
    data, ends = root[_DATA], root[_META][_ENDS]
    arrays = dict(sorted(data.arrays()))
    groups = sorted(name for name, _ in data.groups())
  except (KeyError, OSError, ValueError, zipfile.BadZipFile) as e:
    if 'codec' in str(e):
      raise ImportError(
          f'{path} is encoded in a way that Zarr does not know: {e}. For JPEG'
          ' XL, as UMI has it, install it with `pip install imagecodecs`.'
      ) from e
    raise ValueError(
        f'{path} is not a Zarr replay buffer, which has {_DATA} and'
        f' {_META}/{_ENDS}: {e}.'
    ) from e
  for name, array in (*arrays.items(), (_ENDS, ends)):
    metadata = getattr(array, 'metadata', array)  # Zarr 3, or 2.
    codecs = [
        *(getattr(metadata, 'filters', None) or ()),
        getattr(metadata, 'compressor', None),
    ]
    ids = [getattr(codec, 'codec_id', '') for codec in codecs]
    if array.dtype.kind == 'O' or _UNSAFE_CODEC in ids:
      raise ValueError(f'{name} of {path} {columns_lib.RUNS_CODE}')
  columns_lib.log_left_out(f'groups below {_DATA} of {path}', groups)
  ends = ends[:].tolist()
  if not ends or min(np.diff([0, *ends])) < 0:
    raise ValueError(
        f'{_META}/{_ENDS} of {path} must have the increasing ends of episodes,'
        f' but is {ends[:10]}.'
    )
  for name, array in arrays.items():
    if array.shape[:1] != (ends[-1],):
      raise ValueError(
          f'{_DATA}/{name} of {path} has the shape {array.shape}, but there are'
          f' {ends[-1]} frames by {_META}/{_ENDS}.'
      )
  return ends, arrays
