"""HDF5 files of demonstrations: robomimic, robosuite, LIBERO and RoboCasa.

    data/demo_0/obs/<name>       [T, ...]
                next_obs/<name>  [T, ...], which LIBERO's files do not have
                actions, rewards, dones, states  [T, ...]
    data.attrs                   env_args and others, JSON
    data/demo_0.attrs            ep_meta of RoboCasa, JSON with `lang`
    mask/<filter key>            the names of some demonstrations

The format is that of robomimic.github.io, as robomimic 0.3 reads it.
"""

import os
import re
from typing import Any, Dict, List, Optional

from absl import logging
import gin
import h5py
import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.datasets import other_formats
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import rlds
from rlds2reverb.formats import columns as columns_lib
from rlds2reverb.formats import hdf5
from rlds2reverb.formats import python_episodes

_DATA = 'data'
_MASK = 'mask'
_META = 'ep_meta'
_DEMO = re.compile(r'demo_(\d+)')
_OBSERVATIONS = 'obs'
_NEXT_OBSERVATIONS = 'next_obs'
_ACTIONS = 'actions'
_REWARDS = 'rewards'
_DONES = 'dones'
_USED = (_OBSERVATIONS, _NEXT_OBSERVATIONS, _ACTIONS, _REWARDS)


@gin.configurable(module='rlds2reverb')
def load_robomimic(
    path: files.PathLike, *, filter_key: Optional[str] = None
) -> tf.data.Dataset:
  """Reads the demonstrations in an HDF5 file of robomimic's layout.

  Args:
    path: the path of the file, on the local disk.
    filter_key: which demonstrations are read: the name of a list of them below
      `mask`, such as `train`, `valid` or `20_percent`. By default it is all.

  Returns:
    A data set of episodes in the order of their numbers, `demo_2` before
    `demo_10`. `episode_id` is that number. The texts in the attributes of
    `data`, such as `env_args` and LIBERO's `problem_info`, are fields of the
    episodes; so is RoboCasa's `ep_meta` of each demonstration. The steps are
    stacked `[T + 1, ...]`: the last observation is the last of `next_obs`.
    `observation`, `action` and `reward` have the dtypes in the file, `discount`
    is float32, and everything else with a row for each transition, such as
    `states` and `dones`, is a step field of its name. A reward is float32 zeros
    if there is none.

    An episode whose last `dones` is set is terminal; a collector may have set
    others before it, which change nothing. Where there is no `next_obs`, it is
    as with `from_flat_arrays`: the last observation of a truncated episode is
    its last step, and a terminal one gets a step of zeros.

  Raises:
    ValueError: if there is no such file, if it is not of this layout, if it has
      no such filter key, or if the first demonstration lacks a column.
    InvalidArgumentError: while iterating, if a demonstration does not have the
      columns of the first, or as many rows.
  """
  path = files.expand_local(path, 'A robomimic data set')
  names = hdf5.names_in(path)
  if _DATA not in names:
    raise ValueError(
        f'{path} is not of the layout of robomimic: it has {names}, and no'
        f' {_DATA} with demo_0, demo_1 and so on.{other_formats.hint(path)}'
    )
  with h5py.File(path, 'r') as file:
    demos = _demos(file, filter_key)
    fields = {
        name: value
        for name, value in file[_DATA].attrs.items()
        if isinstance(value, (str, bytes))
    }
    first = file[_DATA][demos[0]]
    left_out = _left_out(first)
    has_meta = _META in first.attrs
  if left_out:
    logging.warning(
        'Left out: columns without numbers or strings for each transition: %s.',
        ', '.join(left_out),
    )

  def read() -> python_episodes.Episodes:
    with h5py.File(path, 'r') as file:
      for demo in demos:
        group = file[_DATA][demo]
        own = {_META: group.attrs.get(_META, '')} if has_meta else {}
        yield _episode(group, set(left_out), {**fields, **own})

  return python_episodes.to_dataset(read, len(demos))


def _demos(file: h5py.File, filter_key: Optional[str]) -> List[str]:
  """Returns the names of the demonstrations, in the order of their numbers."""
  found = [name for name in file[_DATA] if _DEMO.fullmatch(name)]
  if not found:
    raise ValueError(
        f'{file.filename} has no demonstration such as demo_0 below {_DATA},'
        f' but {list(file[_DATA])[:10]}.'
    )
  if filter_key is not None:
    masks = list(file.get(_MASK, ()))
    if filter_key not in masks:
      raise ValueError(
          f'{file.filename} has no filter key {filter_key!r}.'
          f'{checks.did_you_mean(filter_key, masks)} It has {masks}.'
      )
    wanted = {name.decode() for name in file[_MASK][filter_key][:]}
    missing = sorted(wanted - set(found))
    if missing or not wanted:
      raise ValueError(
          f'The filter key {filter_key!r} of {file.filename} names'
          f' {missing or "nothing"}, but the demonstrations are'
          f' {sorted(found, key=_number)[:10]} and so on.'
      )
    found = [name for name in found if name in wanted]
  return sorted(found, key=_number)


def _number(demo: str) -> int:
  return int(_DEMO.fullmatch(demo).group(1))


def _left_out(demo: h5py.Group) -> List[str]:
  """Returns the names of columns that have no row for each transition."""
  columns = columns_lib.leaves(demo)
  length = len(columns.get(_ACTIONS, ()))
  return [
      name
      for name, column in columns.items()
      if name.split('/')[0] not in _USED
      and not (columns_lib.is_readable(column) and len(column) == length)
  ]


def _episode(
    demo: h5py.Group, left_out, fields: Dict[str, Any]
) -> python_episodes.PythonEpisode:
  """Returns the columns of a demonstration."""
  where = f'{demo.name} of {demo.file.filename}'
  columns = columns_lib.leaves(demo)
  observations = columns_lib.below(_OBSERVATIONS, columns)
  if not observations or _ACTIONS not in columns:
    raise ValueError(
        f'{where} has no {_ACTIONS}, or no {_OBSERVATIONS}, but'
        f' {sorted(columns)}. Make the observations of a file of simulator'
        " states with robomimic's dataset_states_to_obs.py."
    )
  length = len(columns[_ACTIONS])
  for name in columns:
    rows = columns[name].shape[:1]
    if name not in left_out and rows != (length,):
      raise ValueError(
          f'{name} of {where} has {rows or "no"} rows, but {_ACTIONS} has'
          f' {length}.'
      )
  is_terminal = length > 0 and bool(_last(columns, _DONES))
  has_next = _NEXT_OBSERVATIONS in demo
  num_steps = length + (length > 0 and (has_next or is_terminal))

  def read_observation(name):
    column = columns[name]
    if not has_next:
      return column
    following = columns.get(_NEXT_OBSERVATIONS + name[len(_OBSERVATIONS) :])
    if following is None:
      raise ValueError(f'{where} has {name}, but not in {_NEXT_OBSERVATIONS}.')
    return np.concatenate([column[:], following[length - 1 :]])

  others = [
      name
      for name in columns
      if name not in left_out and name.split('/')[0] not in _USED
  ]
  steps = {
      rlds.OBSERVATION: tf.nest.map_structure(read_observation, observations),
      rlds.ACTION: columns[_ACTIONS],
      rlds.REWARD: columns.get(_REWARDS, np.zeros(length, np.float32)),
      **{
          top: tf.nest.map_structure(
              columns.get, columns_lib.below(top, others)
          )
          for top in dict.fromkeys(name.split('/')[0] for name in others)
      },
  }
  return python_episodes.PythonEpisode(
      steps,
      num_steps,
      is_terminal,
      _number(os.path.basename(demo.name)),
      fields,
  )


def _last(columns, name) -> Any:
  return np.ravel(columns[name][-1:])[0] if name in columns else False
