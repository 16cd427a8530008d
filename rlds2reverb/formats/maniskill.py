"""ManiSkill trajectories: HDF5 files that `RecordEpisode` writes.

    <name>.h5    traj_0/obs          [T + 1, ...], an array or nested groups
                        actions      [T, ...], an array or nested groups
                        terminated, truncated, success, fail, rewards   [T]
                        env_states   [T + 1, ...], nested groups
    <name>.json  the environment, and the reset arguments of each episode

This is the layout of ManiSkill 3.0.1.
"""

import json
import os

import gin
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.datasets import json_files
from rlds2reverb.episodes import rlds
from rlds2reverb.formats import hdf5_files
from rlds2reverb.formats import python_episodes

_LAYOUT = hdf5_files.GroupLayout(
    'traj',
    {rlds.OBSERVATION: 'obs', rlds.ACTION: 'actions', rlds.REWARD: 'rewards'},
    'terminated',
    help=' Generate observations from states with `python -m'
    ' mani_skill.trajectory.replay_trajectory --obs-mode`.',
)


@gin.configurable(module='rlds2reverb')
@python_episodes.naming_path
def load_maniskill(path: files.PathLike) -> tf.data.Dataset:
  """Reads the trajectories in an HDF5 file of ManiSkill.

  Args:
    path: the path of a local `.h5` file.

  Returns:
    A data set of episodes, sorted by number: `traj_2` comes before `traj_10`.
    `episode_id` is the number. `env_info` is JSON text from the `.json` file,
    if it exists. The steps are stacked `[T + 1, ...]`: `observation`, `action`,
    and `reward`, which is float32 zeros if it is missing. All other columns,
    such as `success` and `env_states`, are step fields of the same name. Dtypes
    are kept. An episode is terminal if the last `terminated` is set, which
    ManiSkill does on success.

  Raises:
    ValueError: if the file does not exist, has another layout, or has only
      states and no observations.
    InvalidArgumentError: while iterating, if the columns of a trajectory differ
      from the first trajectory, or have different numbers of rows.
  """
  path = files.expand_local(path, 'A file of ManiSkill')
  groups = _LAYOUT.numbers(hdf5_files.check_file(path))
  if not groups:
    raise ValueError(
        f'{path} is not a file of ManiSkill: it must contain groups traj_0 and'
        ' so on, with obs and actions.'
    )
  metadata, fields = f'{os.path.splitext(path)[0]}.json', {}
  if os.path.isfile(metadata):
    env_info = json_files.read_json_object(metadata).get('env_info')
    fields['env_info'] = json.dumps(env_info)
  return hdf5_files.read_groups(path, _LAYOUT, groups, lambda group: fields)
