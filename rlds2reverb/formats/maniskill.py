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

import gin
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.episodes import rlds
from rlds2reverb.formats import hdf5
from rlds2reverb.formats import python_episodes

_LAYOUT = hdf5.GroupLayout(
    'traj',
    {rlds.OBSERVATION: 'obs', rlds.ACTION: 'actions', rlds.REWARD: 'rewards'},
    'terminated',
    help=' Make the observations of a file of states with `python -m'
    ' mani_skill.trajectory.replay_trajectory --obs-mode`.',
)


@gin.configurable(module='rlds2reverb')
@python_episodes.naming_path
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
  groups = _LAYOUT.numbers(hdf5.names_in(path))
  if not groups:
    raise ValueError(
        f'{path} is not a file of ManiSkill: it must have traj_0 and so on,'
        ' with obs and actions.'
    )
  beside, fields = f'{os.path.splitext(path)[0]}.json', {}
  if os.path.isfile(beside):
    fields['env_info'] = json.dumps(
        files.read_json_object(beside).get('env_info')
    )
  return hdf5.read_groups(path, _LAYOUT, groups, lambda group: fields)
