"""ManiSkill's HDF5 files of trajectories, as its `RecordEpisode` writes them.

    <name>.h5    traj_0/obs          [T + 1, ...], an array or a group of them
                        actions      [T, ...], likewise
                        terminated, truncated, success, fail, rewards   [T]
                        env_states   [T + 1, ...], a group of arrays
    <name>.json  the environment, and what each episode was made with

The layout is that of ManiSkill 3.0.1.
"""

import json
import os
import re
from typing import Dict

from absl import logging
import gin
import h5py
import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.datasets import other_formats
from rlds2reverb.episodes import rlds
from rlds2reverb.formats import columns as columns_lib
from rlds2reverb.formats import hdf5
from rlds2reverb.formats import python_episodes

_TRAJECTORY = re.compile(r'traj_(\d+)')
_TERMINATED = 'terminated'
_FIELDS = {
    rlds.OBSERVATION: 'obs',
    rlds.ACTION: 'actions',
    rlds.REWARD: 'rewards',
}


@gin.configurable(module='rlds2reverb')
def load_maniskill(path: files.PathLike) -> tf.data.Dataset:
  """Reads the trajectories in an HDF5 file of ManiSkill's.

  Args:
    path: the path of the `.h5` file, on the local disk.

  Returns:
    A data set of episodes in the order of their numbers, `traj_2` before
    `traj_10`. `episode_id` is that number, and `env_info`, JSON text, is that
    of the `.json` file beside, if there is one. The steps are stacked
    `[T + 1, ...]`: `observation`, `action`, and `reward`, which is float32
    zeros if there is none. Everything else, such as `success` and `env_states`,
    is a step field of its name. All have their dtypes. An episode whose last
    `terminated` is set is terminal; ManiSkill sets it at success.

  Raises:
    ValueError: if there is no such file, if it is not of this layout, or if it
      has no observations, as files of states alone.
    InvalidArgumentError: while iterating, if a trajectory does not have the
      columns of the first, or as many rows.
  """
  path = files.expand_local(path, "A file of ManiSkill's")
  numbers = sorted(
      int(found.group(1))
      for found in map(_TRAJECTORY.fullmatch, hdf5.names_in(path))
      if found
  )
  hint = other_formats.hint(path, but=('maniskill',))
  if not numbers or hint:
    raise ValueError(
        f'{path} is not a file of ManiSkill: it must have traj_0 and so on,'
        f' with obs and actions.{hint}'
    )
  fields = _fields_beside(path)

  def read() -> python_episodes.Episodes:
    with h5py.File(path, 'r') as file:
      for number in numbers:
        yield _episode(file[f'traj_{number}'], number, fields)

  return python_episodes.to_dataset(read, len(numbers))


def _fields_beside(path: str) -> Dict[str, str]:
  """Returns what the JSON file says of all episodes."""
  beside = f'{os.path.splitext(path)[0]}.json'
  if not os.path.isfile(beside):
    return {}
  with files.open_text(beside) as f:
    try:
      return {'env_info': json.dumps(json.load(f)['env_info'])}
    except (KeyError, TypeError, ValueError):
      logging.warning('%s has no env_info, and is left out.', beside)
      return {}


def _episode(
    group: h5py.Group, number: int, fields: Dict[str, str]
) -> python_episodes.PythonEpisode:
  """Returns the columns of a trajectory."""
  columns = columns_lib.leaves(group)
  nests = {
      top: tf.nest.map_structure(columns.get, columns_lib.below(top, columns))
      for top in dict.fromkeys(name.split('/')[0] for name in columns)
  }
  missing = [
      name
      for name in (_FIELDS[rlds.OBSERVATION], _FIELDS[rlds.ACTION])
      if not tf.nest.flatten(nests.get(name, ()))
  ]
  if missing:
    raise ValueError(
        f'{group.name} of {group.file.filename} has no'
        f' {" and no ".join(missing)}, but {sorted(nests)}. Make the'
        ' observations of a file of states with `python -m'
        ' mani_skill.trajectory.replay_trajectory --obs-mode`.'
    )
  steps = {
      field: nests.pop(name) for field, name in _FIELDS.items() if name in nests
  }
  length = len(tf.nest.flatten(steps[rlds.ACTION])[0])
  steps.setdefault(rlds.REWARD, np.zeros(length, np.float32))
  is_terminal = length > 0 and bool(
      np.ravel(columns[_TERMINATED][-1:]).any() if _TERMINATED in columns else 0
  )
  return python_episodes.PythonEpisode(
      {**steps, **nests}, length + 1, is_terminal, number, fields
  )
