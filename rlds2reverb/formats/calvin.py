"""CALVIN's data sets: an npz file a frame.

    episode_0000042.npz   actions, rel_actions, robot_obs, scene_obs, rgb_static
                          and so on, of frame 42
    ep_start_end_ids.npy  int64 [E, 2], the first and the last frame of episodes
    lang_annotations/auto_lang_ann.npy
                          texts, and the frames that each is about

They are the folders `training` and `validation` of github.com/mees/calvin.
"""

import itertools
import os
import pickle
from typing import Any, Dict, List, Sequence, Tuple
import zipfile

import gin
import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.episodes import rlds
from rlds2reverb.formats import columns as columns_lib
from rlds2reverb.formats import downloads
from rlds2reverb.formats import npz
from rlds2reverb.formats import python_episodes

_BOUNDS_FILE = 'ep_start_end_ids.npy'
_LANGUAGE_FILE = os.path.join('lang_annotations', 'auto_lang_ann.npy')
_ACTIONS = 'actions'
_TEXT = 'language_instruction'
_OBSERVATIONS = ('robot_obs', 'scene_obs', 'rgb_', 'depth_')
# A pickle of numbers and texts needs these names. Others could run code.
_SAFE = {
    ('numpy', 'ndarray'),
    ('numpy', 'dtype'),
    *itertools.product(
        ('numpy.core.multiarray', 'numpy._core.multiarray'),
        ('_reconstruct', 'scalar'),
    ),
    ('_codecs', 'encode'),
}


@gin.configurable(module='rlds2reverb')
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
  spans = (
      _find_texts(path)
      if language
      else [(*one, {}) for one in np.load(path).tolist()]
  )
  wrong = [span[:2] for span in spans if not 0 <= span[0] <= span[1]]
  if wrong or not spans:
    raise ValueError(
        f'{path} must have the first and the last frame of each episode, but'
        f' has {wrong[:10] or "none"}.'
    )
  like = _read_frame(directory, spans[0][0])
  where = f'A frame of {directory}'
  columns_lib.check_left_out(where, like, leave_out)
  columns_lib.check_has(where, [_ACTIONS], like)
  names = {
      name: f'{rlds.OBSERVATION}/' * name.startswith(_OBSERVATIONS) + name
      for name in like
      if name not in leave_out
  }
  if _ACTIONS in names:
    names[_ACTIONS] = rlds.ACTION

  def read() -> python_episodes.Episodes:
    for index, (first, last, fields) in enumerate(spans):
      frames = range(first, last + 1)
      steps = {
          path: _column(directory, frames, name, like[name])
          for name, path in names.items()
      }
      yield python_episodes.make_episode(
          columns_lib.nest(steps), index, fields=fields
      )

  return python_episodes.to_dataset(read, len(spans))


def _column(
    directory: str, frames: range, name: str, like: np.ndarray
) -> columns_lib.Column:
  """Returns an array of the frames of an episode."""

  def read(begin: int, end: int) -> np.ndarray:
    found = np.empty((end - begin, *like.shape), like.dtype)
    for row, frame in enumerate(frames[begin:end]):
      value = _read_frame(directory, frame, [name])[name]
      if value.shape != like.shape or value.dtype != like.dtype:
        raise ValueError(
            f'{name} of frame {frame} of {directory} is {value.dtype}'
            f' {value.shape}, but that of the first frame is {like.dtype}'
            f' {like.shape}.'
        )
      found[row] = value
    return found

  return columns_lib.Column(like.dtype, (len(frames), *like.shape), read)


def _read_frame(
    directory: str, frame: int, names: Sequence[str] = ()
) -> Dict[str, np.ndarray]:
  """Returns arrays of a frame; all if no names are given."""
  path = os.path.join(directory, f'episode_{frame:07d}.npz')
  try:
    with np.load(path) as arrays:
      return {name: arrays[name] for name in names or arrays}
  except FileNotFoundError:
    raise ValueError(f'There is no frame {path}.') from None
  except (EOFError, KeyError, OSError, ValueError, zipfile.BadZipFile) as e:
    raise ValueError(f'{path} is not a whole frame of CALVIN: {e}') from e


def _find_texts(path: str) -> List[Tuple[int, int, Dict[str, str]]]:
  """Returns the first and last frames that texts are about, and the texts."""
  try:
    with open(path, 'rb') as f:
      npz.read_header(f)
      found = _Unpickler(f).load().item()
    return [
        (int(first), int(last), {_TEXT: str(text), 'task': task})
        for (first, last), text, task in zip(
            found['info']['indx'],
            found['language']['ann'],
            found['language']['task'],
        )
    ]
  except (KeyError, TypeError, ValueError, pickle.UnpicklingError) as e:
    raise ValueError(f'{path} has no texts of CALVIN: {e}') from e


class _Unpickler(pickle.Unpickler):
  """Reads numbers and texts, and refuses whatever could run code."""

  def find_class(self, module: str, name: str) -> Any:
    if (module, name) not in _SAFE:
      raise pickle.UnpicklingError(
          f'it names {module}.{name}, which may run any code, so it is refused.'
      )
    return super().find_class(module, name)
