"""Zarr replay buffers, as diffusion_policy and UMI write them.

    data/action        [N, ...], the frames of all episodes one after the other
    data/<name>        [N, ...], what was observed at each frame
    meta/episode_ends  int64 [E], the frame after the last one of each episode

It is a folder, or a file `.zarr.zip`. It needs the extra, `pip install
'.[zarr]'` in a clone, and imagecodecs for images in JPEG XL, as UMI's are.
"""

import os
from typing import Any, Dict, List, Sequence, Tuple

from absl import logging
import gin
import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.episodes import rlds
from rlds2reverb.formats import columns as columns_lib
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
  steps = _steps(path, [name for name in arrays if name not in leave_out])
  starts = [0, *ends[:-1]]

  def read() -> python_episodes.Episodes:
    arrays = _open(path)[1]
    columns = {name: _Chunks(arrays[name]) for name in tf.nest.flatten(steps)}
    for index, (begin, end) in enumerate(zip(starts, ends)):
      rows = tf.nest.map_structure(
          lambda name, begin=begin, end=end: columns[name].rows(begin, end),
          steps,
      )
      yield python_episodes.make_episode(rows, index)

  return python_episodes.to_dataset(read, len(ends))


class _Chunks:
  """An array whose chunks are not decoded again for the next episode."""

  def __init__(self, array: Any):
    self._array = array
    self._held = range(0)
    self._values = np.zeros(0)

  def rows(self, begin: int, end: int) -> columns_lib.Column:
    """Returns a column of the rows from `begin` until `end`."""
    shape = (end - begin, *self._array.shape[1:])
    return columns_lib.Column(
        self._array.dtype,
        shape,
        lambda first, stop: self._read(begin + first, begin + stop),
    )

  def _read(self, begin: int, end: int) -> np.ndarray:
    if begin not in self._held or end > self._held.stop:
      chunk = self._array.chunks[0]
      self._held = range(begin // chunk * chunk, -(-end // chunk) * chunk)
      self._values = self._array[self._held.start : self._held.stop]
    return self._values[begin - self._held.start : end - self._held.start]


def _open(path: str) -> Tuple[List[int], Dict[str, Any]]:
  """Returns the ends of the episodes, and the arrays of the frames."""
  if not os.path.exists(path):
    raise ValueError(f'There is no Zarr replay buffer at {path}.')
  zarr = _import_zarr()
  try:
    store = (
        zarr.storage.ZipStore(path, mode='r') if os.path.isfile(path) else path
    )
    root = zarr.open_group(store, mode='r')
    data, ends = root[_DATA], root[_META][_ENDS]
    arrays = dict(sorted(data.arrays()))
    groups = sorted(name for name, _ in data.groups())
  except (KeyError, OSError, ValueError) as e:
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
    codecs = [getattr(one, 'codec_id', '') for one in _codecs(array)]
    if _UNSAFE_CODEC in codecs or array.dtype.kind == 'O':
      raise ValueError(
          f'The array {name} of {path} has objects of Python, which may run any'
          ' code when they are read, so it is refused.'
      )
  if groups:
    logging.warning('Left out: groups below %s of %s: %s.', _DATA, path, groups)
  ends = ends[:].tolist()
  _check(path, ends, arrays)
  return ends, arrays


def _codecs(array: Any) -> List[Any]:
  """Returns the codecs of an array of Zarr's format 2."""
  metadata = getattr(array, 'metadata', array)  # Zarr 3, or 2.
  filters = getattr(metadata, 'filters', None) or ()
  return [*filters, getattr(metadata, 'compressor', None)]


def _check(path: str, ends: List[int], arrays: Dict[str, Any]) -> None:
  if not ends or min(np.diff([0, *ends])) < 0:
    raise ValueError(
        f'{_META}/{_ENDS} of {path} must have the increasing ends of episodes,'
        f' but is {ends[:10]}.'
    )
  for name, array in arrays.items():
    if not array.shape or array.shape[0] != ends[-1]:
      raise ValueError(
          f'{_DATA}/{name} of {path} has the shape {array.shape}, but there are'
          f' {ends[-1]} frames by {_META}/{_ENDS}.'
      )


def _steps(path: str, names: List[str]) -> Dict[str, Any]:
  """Returns the fields of a step; every leaf is the name of its array."""
  tops = [name for name in names if name in (rlds.ACTION, rlds.REWARD)]
  observation = {name: name for name in names if name not in tops}
  if not observation:
    raise ValueError(f'{path} has no observation below {_DATA}, but {names}.')
  return {rlds.OBSERVATION: observation, **{name: name for name in tops}}


def _import_zarr() -> Any:
  try:
    # pylint: disable=g-import-not-at-top
    import zarr
    import zarr.storage
  except ImportError as e:
    raise ImportError(
        'Zarr replay buffers are read through Zarr, which is not installed.'
        " Run `pip install '.[zarr]'` in a clone of rlds2reverb."
    ) from e
  try:
    from imagecodecs import numcodecs
  except ImportError:
    return zarr
  numcodecs.register_codecs(verbose=False)
  return zarr
