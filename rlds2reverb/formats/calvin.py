"""CALVIN's data sets: an npz file a frame.

    episode_0000042.npz   actions, rel_actions, robot_obs, scene_obs, rgb_static
                          and so on, of frame 42
    ep_start_end_ids.npy  int64 [E, 2], the first and the last frame of episodes
    lang_annotations/auto_lang_ann.npy
                          texts, and the frames that each is about

They are the folders `training` and `validation` of github.com/mees/calvin.
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
    leave_out: Sequence[str] = (),
) -> tf.data.Dataset:
  """Reads the episodes of a CALVIN data set.

  As with `load_lerobot`, no observation is stored after the last action, so an
  episode of `T` frames has `T` steps, the action of the last one does not
  count, and all episodes are truncated. An episode is in memory as a whole;
  CALVIN's have up to 50,000 frames, so leave out their images, or read those
  with a text.

  Args:
    directory: the folder `training` or `validation`, on the local disk.
    language: whether an episode is the span of a text, at most 64 frames. Then
      `language_instruction` and `task` are fields of the episodes.
    leave_out: names of arrays that are not read, such as `depth_tactile`.

  Returns:
    A data set of episodes with stacked steps, in the order in which a file
    lists them. `actions` is `action`, `robot_obs`, `scene_obs`, `rgb_static`
    and so on are below `observation`, and all else, such as `rel_actions`, is a
    step field of its name; all have their dtypes. The reward is float32 zeros.

  Raises:
    ValueError: if there is no such data set or array, or if a file is damaged.
    InvalidArgumentError: while iterating, if a frame is missing or damaged, or
      is not like the first.
  """
  directory = downloads.find(directory, 'CALVIN', marker=_BOUNDS_FILE)
  path = os.path.join(directory, _LANGUAGE_FILE if language else _BOUNDS_FILE)
  if not os.path.isfile(path):
    raise ValueError(f'There is no {path}, which has the texts of the frames.')
  spans = _find_texts(path) if language else _read_bounds(path)
  invalid = [span[:2] for span in spans if not 0 <= span[0] <= span[1]]
  if invalid or not spans:
    raise ValueError(
        f'{path} must have the first and the last frame of each episode, but'
        f' has {invalid[:10] or "none"}.'
    )
  like = _read_first(directory, [first for first, *_ in spans])
  place = f'A frame of {directory}'
  columns_lib.check_left_out(place, like, leave_out)
  columns_lib.check_has(place, [_ACTIONS], like)
  names = {
      name: f'{rlds.OBSERVATION}/' * name.startswith(_OBSERVATIONS) + name
      for name in like
      if name not in leave_out
  }
  if _ACTIONS in names:
    names[_ACTIONS] = rlds.ACTION

  def read_span(index: int) -> python_episodes.PythonEpisode:
    first, last, fields = spans[index]
    frames = range(first, last + 1)
    # A wrong number of frames would take memory before one is missing.
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
  """Returns the arrays of the first frame that is whole."""
  for frame in frames[: python_episodes.MAX_FAULTS_FIRST]:
    with contextlib.suppress(ValueError):
      return _read_frame(directory, frame)
  return _read_frame(directory, frames[0])  # It tells what is wrong.


def _column(
    directory: str, frames: range, name: str, like: np.ndarray
) -> columns_lib.Column:
  """Returns an array of the frames of an episode."""

  def read(begin: int, end: int) -> np.ndarray:
    array = np.empty((end - begin, *like.shape), like.dtype)
    for row, frame in enumerate(frames[begin:end]):
      value = _read_frame(directory, frame, [name])[name]
      if value.shape != like.shape or value.dtype != like.dtype:
        raise ValueError(
            f'{name} of frame {frame} of {directory} is {value.dtype}'
            f' {value.shape}, but that of the first frame is {like.dtype}'
            f' {like.shape}.'
        )
      array[row] = value
    return array

  return columns_lib.Column(like.dtype, (len(frames), *like.shape), read)


def _frame_path(directory: str, frame: int) -> str:
  return os.path.join(directory, f'episode_{frame:07d}.npz')


def _read_frame(
    directory: str, frame: int, names: Sequence[str] = ()
) -> dict[str, np.ndarray]:
  """Returns arrays of a frame; all if no names are given."""
  path = _frame_path(directory, frame)
  try:
    return npz.read_arrays(path, names)
  except FileNotFoundError:
    raise ValueError(f'There is no frame {path}.') from None
  except (
      EOFError,
      KeyError,
      OSError,
      RuntimeError,  # Of zip files that are encrypted, or of a later version.
      ValueError,
      zipfile.BadZipFile,
      zlib.error,
  ) as e:
    files.check_not_pointer(path)
    _refuse_pickles(path, e)
    raise ValueError(f'{path} is not a whole frame of CALVIN: {e}') from e


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
        f'{path} has no first and last frames of episodes: {e}'
    ) from e
  if bounds.dtype.kind not in 'iu' or bounds.shape[1:] != (2,):
    raise ValueError(
        f'{path} must have integers of the shape (episodes, 2), the first and'
        f' the last frame of each, but has {bounds.dtype} {bounds.shape}.'
    )
  return [(*span, {}) for span in bounds.tolist()]


def _find_texts(path: str) -> list[tuple[int, int, dict[str, str]]]:
  """Returns the first and last frames that texts are about, and the texts."""
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
  except Exception as e:  # Whatever is missing or has another type.
    files.check_not_pointer(path)
    raise ValueError(f'{path} has no texts of CALVIN: {e}.') from e


def _values_of(rows: Any, kind: type[Any]) -> Iterator[list[Any]]:
  """Yields the values of each row, which are of one type."""
  for row in rows:
    row = row.tolist() if isinstance(row, np.ndarray) else row
    row = row if isinstance(row, (list, tuple)) else [row]
    values = [
        value.item() if isinstance(value, np.generic) else value
        for value in row
    ]
    for value in values:
      if type(value) is not kind:  # pylint: disable=unidiomatic-typecheck
        raise ValueError(
            f'it has a {type(value).__name__} where {kind.__name__} is expected'
        )
    yield values
