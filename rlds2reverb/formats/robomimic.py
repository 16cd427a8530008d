"""HDF5 files of demonstrations: robomimic, robosuite, LIBERO and RoboCasa.

    data/demo_0/obs/<name>       [T, ...]
                next_obs/<name>  [T, ...], which LIBERO's files do not have
                actions, rewards, dones, states  [T, ...]
    data.attrs                   env_args and others, JSON
    data/demo_0.attrs            ep_meta of RoboCasa, JSON with `lang`
    mask/<filter key>            the names of some demonstrations

The format is that of robomimic.github.io, as robomimic 0.3 reads it.
"""

from __future__ import annotations

from typing import Any

from etils import epy
import gin
import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.datasets import format_registry
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import rlds
from rlds2reverb.formats import columns as columns_lib
from rlds2reverb.formats import hdf5
from rlds2reverb.formats import python_episodes

with epy.lazy_imports(error_callback=format_registry.explain_missing_library):
  import h5py

_DATA = 'data'
_MASK = 'mask'
_META = 'ep_meta'
_NEXT = 'next_obs'
_LAYOUT = hdf5.GroupLayout(
    'demo',
    {rlds.OBSERVATION: 'obs', rlds.ACTION: 'actions', rlds.REWARD: 'rewards'},
    'dones',
    has_last=None,
    help=' Make the observations of a file of simulator states with'
    " robomimic's dataset_states_to_obs.py.",
)


@gin.configurable(module='rlds2reverb')
@python_episodes.naming_path
def load_robomimic(
    path: files.PathLike, *, filter_key: str | None = None
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
    stacked `[T + 1, ...]`: the last observation is the last of `next_obs`, the
    others are `obs`, which the others of `next_obs` must repeat.
    `observation`, `action` and `reward` have the dtypes in the file, `discount`
    is float32, and everything else with a row for each transition, such as
    `states` and `dones`, is a step field of its name. A reward is float32 zeros
    if there is none.

    An episode whose last `dones` is set is terminal; a collector may have set
    others before it, which change nothing. Without `next_obs`, as in
    `from_flat_arrays`, the last observation of a truncated episode is its last
    step, and a terminal one gets a step of zeros.

  Raises:
    ValueError: if there is no such file, if it is not of this layout, if it has
      no such filter key, or if the first demonstration lacks a column.
    InvalidArgumentError: while iterating, if a demonstration does not have the
      columns of the first, or as many rows; or if `next_obs` of a step is not
      `obs` of the next step. The demonstrations after it can still be read.
  """
  path = files.expand_local(path, 'A robomimic data set')
  names = hdf5.names_in(path)
  if _DATA not in names:
    raise ValueError(
        f'{path} is not of the layout of robomimic: it has {names}, and no'
        f' {_DATA} with demo_0, demo_1 and so on.'
    )
  with h5py.File(path, 'r') as file:
    groups = _find_groups(file, filter_key)
    fields = {
        name: value
        for name, value in file[_DATA].attrs.items()
        if isinstance(value, (str, bytes))
    }
    has_meta = any(
        _META in group.attrs for group in hdf5.first_groups(file, groups)
    )

  def fields_of(group):
    meta = {_META: group.attrs.get(_META, '')} if has_meta else {}
    return {**fields, **meta}

  return hdf5.read_groups(path, _LAYOUT, groups, fields_of, _with_last)


def _with_last(place: str, columns: dict[str, Any]) -> dict[str, Any]:
  """Returns columns whose observations end with the last of `next_obs`."""
  following = {
      name.removeprefix('next_'): columns.pop(name)
      for name in columns_lib.below(_NEXT, columns)
  }
  observed = columns_lib.below('obs', columns)
  if not following or not observed:
    return columns
  if set(observed) != set(following):
    raise ValueError(
        f'{place} has other fields below {_NEXT} than below obs:'
        f' {sorted(following)}, but {observed}.'
    )
  for name, column in following.items():
    rows = columns[name][:]  # Read once: it may be images.
    columns_lib.check_leads_on(place, name, rows, f'next_{name}', column)
    columns[name] = np.concatenate([rows, column[-1:]])
  return columns


def _find_groups(file: h5py.File, filter_key: str | None) -> dict[str, int]:
  """Returns the demonstrations that are read, with their numbers."""
  numbers = _LAYOUT.numbers(file[_DATA])
  if not numbers:
    raise ValueError(
        f'{file.filename} has no demonstration such as demo_0 below {_DATA},'
        f' but {list(file[_DATA])[:10]}.'
    )
  wanted = set(numbers)
  if filter_key is not None:
    masks = list(file.get(_MASK, ()))
    checks.check_known(file.filename, 'filter key', filter_key, masks)
    wanted = {name.decode() for name in file[_MASK][filter_key][:]}
    if not wanted or wanted - set(numbers):
      raise ValueError(
          f'The filter key {filter_key!r} of {file.filename} names'
          f' {sorted(wanted - set(numbers)) or "nothing"}, but the'
          f' demonstrations are {list(numbers)[:10]} and so on.'
      )
  return {
      f'{_DATA}/{name}': numbers[name] for name in numbers if name in wanted
  }
