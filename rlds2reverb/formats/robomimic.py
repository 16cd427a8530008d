"""HDF5 files of demonstrations: robomimic, robosuite, LIBERO and RoboCasa.

    data/demo_0/obs/<name>       [T, ...]
                next_obs/<name>  [T, ...], missing in LIBERO
                actions, rewards, dones, states  [T, ...]
    data.attrs                   env_args and others, JSON
    data/demo_0.attrs            ep_meta of RoboCasa, JSON with `lang`
    mask/<filter key>            a list of demonstrations

robomimic.github.io documents the format, as of robomimic 0.3.
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
from rlds2reverb.formats import hdf5_files
from rlds2reverb.formats import python_episodes

with epy.lazy_imports(error_callback=format_registry.explain_missing_library):
  import h5py

_DATA = 'data'
_MASK = 'mask'
_META = 'ep_meta'
_NEXT = 'next_obs'
_LAYOUT = hdf5_files.GroupLayout(
    'demo',
    {rlds.OBSERVATION: 'obs', rlds.ACTION: 'actions', rlds.REWARD: 'rewards'},
    'dones',
    has_last=None,
    help=' Generate observations from simulator states with'
    " robomimic's dataset_states_to_obs.py.",
)


@gin.configurable(module='rlds2reverb')
@python_episodes.naming_path
def load_robomimic(
    path: files.PathLike, *, filter_key: str | None = None
) -> tf.data.Dataset:
  """Reads the demonstrations in an HDF5 file of robomimic's layout.

  Args:
    path: the path of a local file.
    filter_key: the name of a list of demonstrations in `mask`, such as `train`,
      `valid` or `20_percent`. By default all demonstrations are read.

  Returns:
    A data set of episodes, sorted by number: `demo_2` comes before `demo_10`.
    `episode_id` is the number. Text attributes of `data`, such as `env_args`
    and LIBERO's `problem_info`, are episode fields, and so is the `ep_meta` of
    each demonstration in RoboCasa. The steps are stacked `[T + 1, ...]`, with
    the observations in `obs` and the last of `next_obs`. `observation`,
    `action` and `reward` keep their dtypes, and `discount` is float32. All
    other columns with a row for each transition, such as `states` and `dones`,
    are step fields of the same name. A missing reward is float32 zeros.

    An episode is terminal if the last of `dones` is set; earlier `dones` are
    ignored. Without `next_obs`, as in `from_flat_arrays`, the last observation
    of a truncated episode becomes its last step, and a step of zeros is
    appended to a terminal episode.

  Raises:
    ValueError: if the file does not exist or has another layout, if the filter
      key does not exist, or if the first demonstration lacks a column.
    InvalidArgumentError: while iterating, if the columns of a demonstration
      differ from the first, or have different numbers of rows; or if `next_obs`
      of a step is not `obs` of the next step. The demonstrations after it can
      still be read.
  """
  path = files.expand_local(path, 'A robomimic data set')
  names = hdf5_files.check_file(path)
  if _DATA not in names:
    raise ValueError(
        f'{path} is not a file of robomimic: it must contain {_DATA} with'
        f' demo_0, demo_1 and so on, but has {names}.'
    )
  with h5py.File(path, 'r') as file:
    groups = _find_groups(file, filter_key)
    fields = {
        name: value
        for name, value in file[_DATA].attrs.items()
        if isinstance(value, (str, bytes))
    }
    has_meta = any(
        _META in group.attrs for group in hdf5_files.first_groups(file, groups)
    )

  def fields_of(group):
    meta = {_META: group.attrs.get(_META, '')} if has_meta else {}
    return {**fields, **meta}

  return hdf5_files.read_groups(path, _LAYOUT, groups, fields_of, _with_last)


def _with_last(place: str, columns: dict[str, Any]) -> dict[str, Any]:
  """Appends the last of `next_obs` to the observations."""
  following = {
      name.removeprefix('next_'): columns.pop(name)
      for name in columns_lib.below(_NEXT, columns)
  }
  observed = columns_lib.below('obs', columns)
  if not following or not observed:
    return columns
  if set(observed) != set(following):
    raise ValueError(
        f'{place} has different fields in {_NEXT} and obs:'
        f' {sorted(following)} and {observed}.'
    )
  for name, column in following.items():
    rows, next_rows = columns[name][:], column[:]
    columns_lib.check_next_rows(place, name, rows, f'next_{name}', next_rows)
    columns[name] = np.concatenate([rows, next_rows[-1:]])
  return columns


def _find_groups(file: h5py.File, filter_key: str | None) -> dict[str, int]:
  """Returns the numbers of the selected demonstrations, by group."""
  numbers = _LAYOUT.numbers(file[_DATA])
  if not numbers:
    raise ValueError(
        f'{file.filename} has no demonstration such as demo_0 in {_DATA},'
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
