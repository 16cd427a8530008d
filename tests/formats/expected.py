"""Computes expected steps in NumPy, and copies the test data of formats."""

import json
import os
import shutil
from typing import Any

import numpy as np
import tree

from tests import golden

# Files that the libraries of the formats wrote.
DATA = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), 'data'
)


def steps(
    observation: Any,
    action: Any,
    reward: Any = None,
    *,
    terminal: bool = False,
    **others: Any,
) -> dict[str, Any]:
  """Returns all fields of the steps of an episode of `T` actions.

  The episode has `T + 1` steps if it has `T + 1` observations or is terminal.
  Fields with fewer rows are padded with zeros.
  """
  length = len(tree.flatten(action)[0])
  count = max(len(tree.flatten(observation)[0]), length + terminal)
  step = np.arange(count)
  is_last = step == count - 1
  if reward is None:
    reward = np.zeros(length, np.float32)

  def padded(rows):
    rows = np.asarray(rows)
    if rows.dtype.kind in 'OSU':
      texts = [one.encode() if isinstance(one, str) else one for one in rows]
      found = np.full(count, b'', object)
      found[: len(texts)] = texts
    else:
      dtype = rows.dtype.newbyteorder('=')
      found = np.zeros((count, *rows.shape[1:]), dtype)
      found[: len(rows)] = rows
    return found

  fields = {'observation': observation, 'action': action, 'reward': reward}
  return {
      **tree.map_structure(padded, {**fields, **others}),
      'discount': np.where(terminal & (step >= count - 2), 0, 1).astype('f4'),
      'is_first': step == 0,
      'is_last': is_last,
      'is_terminal': is_last & terminal,
  }


def assert_read(test: Any, dataset: Any, episodes: Any, ids: Any = None) -> Any:
  """Asserts the steps and ids of all episodes; returns the episodes."""
  actual = list(dataset.as_numpy_iterator())
  ids = range(len(episodes)) if ids is None else ids
  test.assertEqual([episode['episode_id'] for episode in actual], list(ids))
  golden.assert_frames_equal(
      test, [episode['steps'] for episode in actual], episodes
  )
  return actual


def assert_refused(test: Any, load: Any, *cases: Any) -> None:
  """Asserts errors; a case is a path, optional options, and a message."""
  for path, *options, message in cases:
    with test.subTest(message), test.assertRaisesRegex(ValueError, message):
      load(path, **dict(*options))


def copy_of(test: Any, *path: str) -> str:
  """Copies a file or folder of `DATA`; returns the path of the copy."""
  source = os.path.join(DATA, *path)
  folder = test.create_tempdir().full_path
  copy = os.path.join(folder, os.path.basename(source))
  return (shutil.copytree if os.path.isdir(source) else shutil.copy)(
      source, copy
  )


def change_json(path: str, change: Any) -> None:
  """Changes the content of a JSON file with a function."""
  content = {}
  if os.path.exists(path):
    with open(path, encoding='utf-8') as f:
      content = json.load(f)
  change(content)
  with open(path, 'w', encoding='utf-8') as f:
    json.dump(content, f)


def write_calvin(test: Any) -> Any:
  """Writes a CALVIN folder; returns its path and its frames.

  Some frames belong to no episode.
  """
  folder = test.create_tempdir().full_path
  return folder, write_calvin_files(folder)


def write_calvin_files(folder: str) -> Any:
  """Writes a data set in the layout of CALVIN; returns the frames."""
  frames = []
  for number in range(10):
    rng = np.random.default_rng(number)
    frames.append(
        {
            'actions': rng.normal(size=7),
            'rel_actions': rng.normal(size=7),
            'robot_obs': rng.normal(size=15),
            'rgb_static': rng.integers(0, 255, (8, 8, 3)).astype(np.uint8),
        }
    )
    if number in (3, 4, 5, 6, 9):
      file = f'episode_{number:07d}.npz'
      np.savez(os.path.join(folder, file), **frames[-1])
  np.save(os.path.join(folder, 'ep_start_end_ids.npy'), [[3, 6], [9, 9]])
  os.mkdir(os.path.join(folder, 'lang_annotations'))
  language = {'ann': ['open', 'lift'], 'task': ['door', 'red']}
  np.save(
      os.path.join(folder, 'lang_annotations', 'auto_lang_ann.npy'),
      {'language': language, 'info': {'indx': [(4, 6), (3, 4)]}},
  )
  return frames
