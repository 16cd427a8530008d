"""CALVIN data sets: one npz file per frame.

    episode_0000042.npz   actions, rel_actions, robot_obs, scene_obs, rgb_static
                          and so on, of frame 42
    ep_start_end_ids.npy  int64 [E, 2], the first and last frame of each episode
    lang_annotations/auto_lang_ann.npy
                          instructions, with the frames of each

github.com/mees/calvin calls the folders `training` and `validation`.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import os
from typing import Any
import zipfile
import zlib

import gin
import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.episodes import rlds
from rlds2reverb.formats import columns as columns_lib
from rlds2reverb.formats import downloads
from rlds2reverb.formats import npz
from rlds2reverb.formats import numpy_pickles
from rlds2reverb.formats import python_episodes

_BOUNDS_FILE = 'ep_start_end_ids.npy'
_LANGUAGE_FILE = os.path.join('lang_annotations', 'auto_lang_ann.npy')
_ACTIONS = 'actions'
_TEXT = 'language_instruction'
_OBSERVATIONS = ('robot_obs', 'scene_obs', 'rgb_', 'depth_')


@gin.configurable(module='rlds2reverb')
@python_episodes.naming_path
def load_calvin(
    directory: files.PathLike,
    *,
    language: bool = False,
    exclude: Sequence[str] = (),
) -> tf.data.Dataset:
  """Reads the episodes of a CALVIN data set.

  As with `load_lerobot`, no observation is stored after the last action. An
  episode of `T` frames has `T` steps, the action of the last step is ignored,
  and all episodes are truncated. A complete episode is in memory. CALVIN's
  episodes have up to 50,000 frames, so skip the images or set `language`.

  Args:
    directory: the local folder `training` or `validation`.
    language: whether an episode is the span of an instruction, at most 64
      frames, with `language_instruction` and `task` as episode fields.
    exclude: names of arrays to skip, such as `depth_tactile`.

  Returns:
    A data set of episodes with stacked steps, in the order of the file.
    `actions` becomes `action`; `robot_obs`, `scene_obs`, `rgb_*` and `depth_*`
    are below `observation`; all other arrays, such as `rel_actions`, are step
    fields of the same name. Dtypes are kept. The reward is float32 zeros.

  Raises:
    ValueError: if the data set or an array does not exist, or if a file is
      damaged.
    InvalidArgumentError: while iterating, if a frame is missing or damaged, or
      if its arrays differ from the first frame.
  """
  directory = downloads.find(directory, 'CALVIN', marker=_BOUNDS_FILE)
  path = os.path.join(directory, _LANGUAGE_FILE if language else _BOUNDS_FILE)
  if not os.path.isfile(path):
    raise ValueError(f'There is no file {path} with the instructions.')
  spans = _read_instructions(path) if language else _read_bounds(path)
  invalid = [span[:2] for span in spans if not 0 <= span[0] <= span[1]]
  if invalid or not spans:
    raise ValueError(
        f'{path} must contain the first and last frame of each episode, but'
        f' has {invalid[:10] or "none"}.'
    )
  like = _read_first(directory, [first for first, *_ in spans])
  place = f'A frame of {directory}'
  columns_lib.check_exclude(place, like, exclude)
  columns_lib.check_has(place, [_ACTIONS], like)
  names = {
      name: f'{rlds.OBSERVATION}/{name}'
      if name.startswith(_OBSERVATIONS)
      else name
      for name in like
      if name not in exclude
  }
  if _ACTIONS in names:
    names[_ACTIONS] = rlds.ACTION

  def read_span(index: int) -> python_episodes.PythonEpisode:
    first, last, fields = spans[index]
    frames = range(first, last + 1)
    # A wrong span would allocate memory before a frame is missing.
    if not os.path.isfile(_frame_path(directory, last)):
      raise ValueError(f'There is no frame {_frame_path(directory, last)}.')
    steps = {
        path: _column(directory, frames, name, like[name])
        for name, path in names.items()
    }
    return python_episodes.make_episode(
        columns_lib.nest(steps), index, fields=fields
    )

  def place_of(index: int) -> tuple[str, str]:
    first, last, _ = spans[index]
    return f'frames {first} to {last} of {directory}', ''

  return python_episodes.to_dataset(
      lambda: python_episodes.attempt_each(
          read_span, range(len(spans)), place_of
      ),
      len(spans),
      num_compared=1,
  )


def _read_first(directory: str, frames: Sequence[int]) -> dict[str, np.ndarray]:
  """Returns the arrays of the first frame that can be read."""
  for frame in frames[: python_episodes.MAX_FAULTS_FIRST]:
    with contextlib.suppress(ValueError):
      return _read_frame(directory, frame)
  return _read_frame(directory, frames[0])  # Raises the error.


def _column(
    directory: str, frames: range, name: str, like: np.ndarray
) -> columns_lib.LazyColumn:
  """Returns a column of an array, with a row for each frame of an episode."""

  def read(begin: int, end: int) -> np.ndarray:
    array = np.empty((end - begin, *like.shape), like.dtype)
    for row, frame in enumerate(frames[begin:end]):
      value = _read_frame(directory, frame, [name])[name]
      if value.shape != like.shape or value.dtype != like.dtype:
        raise ValueError(
            f'{name} of frame {frame} of {directory} is {value.dtype}'
            f' {value.shape}, but {like.dtype} {like.shape} in the first frame.'
        )
      array[row] = value
    return array

  return columns_lib.LazyColumn(like.dtype, (len(frames), *like.shape), read)


def _frame_path(directory: str, frame: int) -> str:
  return os.path.join(directory, f'episode_{frame:07d}.npz')


def _read_frame(
    directory: str, frame: int, names: Sequence[str] = ()
) -> dict[str, np.ndarray]:
  """Returns arrays of a frame; all of them by default."""
  path = _frame_path(directory, frame)
  try:
    return npz.read_arrays(path, names)
  except FileNotFoundError:
    raise ValueError(f'There is no frame {path}.') from None
  except (
      EOFError,
      KeyError,
      OSError,
      RuntimeError,  # The zip file is encrypted or of a newer version.
      ValueError,
      zipfile.BadZipFile,
      zlib.error,
  ) as e:
    files.check_not_pointer(path)
    _refuse_pickles(path, e)
    raise ValueError(f'{path} is not a complete CALVIN frame: {e}') from e


def _refuse_pickles(path: str, error: Exception) -> None:
  """Raises a ValueError if NumPy has refused an array of objects."""
  if 'Object arrays' in str(error):
    raise ValueError(f'An array of {path} {columns_lib.RUNS_CODE}') from error


def _read_bounds(path: str) -> list[tuple[int, int, dict[str, str]]]:
  """Returns the first and last frames of episodes."""
  try:
    with open(path, 'rb') as f:
      bounds = npz.read_array(f, os.path.getsize(path))
  except (EOFError, OSError, ValueError) as e:
    files.check_not_pointer(path)
    _refuse_pickles(path, e)
    raise ValueError(
        f'{path} must contain the first and last frame of each episode: {e}'
    ) from e
  if bounds.dtype.kind not in 'iu' or bounds.shape[1:] != (2,):
    raise ValueError(
        f'{path} must contain integers of shape (episodes, 2), the first and'
        f' last frame of each episode, but has {bounds.dtype} {bounds.shape}.'
    )
  return [(*span, {}) for span in bounds.tolist()]


def _read_instructions(path: str) -> list[tuple[int, int, dict[str, str]]]:
  """Returns the first and last frame of each instruction, with its text."""
  try:
    with open(path, 'rb') as f:
      npz.read_header(f)
      content = numpy_pickles.loads(f.read()).item()
    language = content['language']
    rows = zip(
        _values_of(content['info']['indx'], int),
        _values_of(language['ann'], str),
        _values_of(language['task'], str),
    )
    return [
        (first, last, {_TEXT: text, 'task': task})
        for (first, last), (text,), (task,) in rows
    ]
  except Exception as e:  # A key is missing, or a value has another type.
    files.check_not_pointer(path)
    raise ValueError(f'{path} has no CALVIN instructions: {e}.') from e


def _values_of(rows: Any, kind: type[Any]) -> Iterator[list[Any]]:
  """Yields the values of each row; all must have the type `kind`."""
  for row in rows:
    row = row.tolist() if isinstance(row, np.ndarray) else row
    row = row if isinstance(row, (list, tuple)) else [row]
    values = [
        value.item() if isinstance(value, np.generic) else value
        for value in row
    ]
    for value in values:
      if type(value) is not kind:
        raise ValueError(
            f'it has a {type(value).__name__} where {kind.__name__} is expected'
        )
    yield values
