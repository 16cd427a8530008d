"""Loads the mappings of well-known data sets by name.

A config is a gin file in `configs/`, such as `bridge.gin`. It binds the fields
of `StepMapping`, and the arguments of the sources in them:

    StepMapping.action = ['action/world_vector', 'action/open_gripper']
    StepMapping.discount = None
    StepMapping.is_terminal = @TerminalOnSuccess()
    TerminalOnSuccess.success = '../success'

`bindings` reads these files.
"""

import dataclasses
import os
from typing import Any, Dict, List, Optional, Tuple

from rlds2reverb.datasets import files
from rlds2reverb.episodes import checks
from rlds2reverb.fields import bindings as bindings_lib
from rlds2reverb.fields import step_mapping
from rlds2reverb.fields import text_of_codes  # noqa: F401

_SUFFIX = '.gin'
_MAPPING = 'StepMapping'
# The names of Octo, OpenVLA and LIBERO for data sets of these configs.
_NAMES = {
    'aloha_mobile': ['aloha_mobile_dataset'],
    'aloha_static_dataset': ['aloha_dagger_dataset'],
    'berkeley_gnm_recon': ['berkeley_gnm_cory_hall', 'berkeley_gnm_sac_son'],
    'bridge': ['bridge_dataset', 'bridge_orig'],
    'bridge_open_x': ['bridge_oxe'],
    'droid': ['droid_100'],
    'fmb': ['fmb_dataset'],
    'libero': [
        f'libero_{suite}_no_noops'
        for suite in ('10', 'goal', 'object', 'spatial')
    ],
    'robo_set': ['roboset'],
    'tdroid': [
        *('ppgm', 'ppgm_static', 'ppgm_wrist'),
        'tdroid_carrot_in_bowl',
        'tdroid_cover_object_with_towel',
        'tdroid_flip_pot_upright',
        'tdroid_knock_object_over',
        'tdroid_move_object_onto_plate',
        'tdroid_pour_corn_in_pot',
    ],
}
_ALIASES = {name: config for config, names in _NAMES.items() for name in names}


def load_mapping(
    name_or_path: files.PathLike, **changes: Any
) -> step_mapping.StepMapping:
  """Reads the mapping of a well-known data set, or of your own gin file.

      data = map_fields(load_episodes('bridge'), load_mapping('bridge'))

  Fields that should differ from those of the file are passed by keyword:

      load_mapping('bridge', discount=None)

  The gin bindings of the program have no effect on the mapping, and are left as
  they are. To make a config part of the program's own gin config, include its
  file there; `map_fields(data)` then uses it. Where another library has
  registered a `StepMapping` with gin too, gin itself cannot read such a file,
  but this function can.

  Args:
    name_or_path: the name of a config, one of `config_names()`, or the name
      that Octo or OpenVLA has for its data set, such as `bridge_orig`; or the
      path of a gin file, which ends in `.gin`.
    **changes: fields of `StepMapping` that take the place of those in the file.

  Returns:
    The mapping. Fields that neither the file nor `changes` sets have their
    defaults.

  Raises:
    FileNotFoundError: if there is no gin file at that path.
    SyntaxError: if the file is not in gin's syntax.
    TypeError: if `changes` has a keyword that is not a field of `StepMapping`.
    ValueError: if there is no config of that name, with the names that come
      nearest; or if the file has other statements than bindings, none of
      `StepMapping`, or a binding of something that does not exist.
  """
  text, path = read_config(name_or_path)
  mapping = mapping_from(text, path, **changes)
  if mapping is None:
    raise ValueError(
        f'{path} must bind fields of {_MAPPING}, with lines such as'
        f" {_MAPPING}.action = 'action'."
    )
  return mapping


def mapping_from(
    text: str, path: str, **changes: Any
) -> Optional[step_mapping.StepMapping]:
  """Returns the mapping that gin bindings describe, or None without any.

  Args:
    text: the bindings, in gin's syntax.
    path: the name of the file that they are from, for messages.
    **changes: see `load_mapping`.

  Raises:
    SyntaxError: as `load_mapping` does.
    TypeError: as `load_mapping` does.
    ValueError: as `load_mapping` does.
  """
  bound = bindings_lib.read_one(_MAPPING, text, path)
  if not bound:
    return None
  # Every field is passed, because gin would fill in others with the program's
  # own bindings.
  arguments: Dict[str, Any] = {
      field.name: field.default
      for field in dataclasses.fields(step_mapping.StepMapping)
  }
  arguments['cast'] = {}
  for name in [*bound, *changes]:
    if name not in arguments:
      error, problem = ValueError, f'{path} binds {_MAPPING}.{name}, which is'
      if name in changes:
        error, problem = TypeError, f'load_mapping got {name}, which is'
      raise error(
          f'{problem} not a field of {_MAPPING}.'
          f'{checks.did_you_mean(name, arguments)} The fields are'
          f' {list(arguments)}.'
      )
  return step_mapping.StepMapping(**{**arguments, **bound, **changes})


def read_config(
    name_or_path: files.PathLike, group: str = ''
) -> Tuple[str, str]:
  """Returns the text of a config and its path; see `find_config`.

  Raises:
    FileNotFoundError: if there is no gin file at that path.
    ValueError: as `find_config` does.
  """
  path = find_config(name_or_path, group)
  with files.open_text(path) as f:
    return f.read(), path


def find_config(name_or_path: files.PathLike, group: str = '') -> str:
  """Returns the path of a config.

  Args:
    name_or_path: the name of a config, one of `config_names(group)`, or without
      a group, after `training/`, of `config_names('training')`; or the path of
      a gin file, which ends in `.gin`.
    group: see `config_names`.

  Raises:
    ValueError: if there is no config of that name, with the names that come
      nearest.
  """
  name_or_path = os.fspath(name_or_path)
  if name_or_path.endswith(_SUFFIX):
    return files.expand(name_or_path)
  names, aliases = config_names(group), {}
  if not group:
    names += [f'training/{name}' for name in config_names('training')]
    aliases = _ALIASES
  name = aliases.get(name_or_path, name_or_path)
  if name not in names:
    what = group.removesuffix('s') or 'config'
    raise ValueError(
        f'There is no {what} {name_or_path}.'
        f'{checks.did_you_mean(name_or_path, [*names, *aliases])} The {what}s'
        f' are {names}. The path of a gin file must end in {_SUFFIX}.'
    )
  return os.path.join(config_folder(), group, f'{name}{_SUFFIX}')


def config_names(group: str = '') -> List[str]:
  """Returns the names of all configs, sorted.

  Args:
    group: which ones: by default the mappings of data sets; or `mixtures`; or
      `training`, the flags and hyper-parameters of trainers.
  """
  found = os.listdir(os.path.join(config_folder(), group))
  return sorted(
      name[: -len(_SUFFIX)] for name in found if name.endswith(_SUFFIX)
  )


def config_folder() -> str:
  """Returns the folder of the configs, in the package or in the checkout."""
  package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
  installed = os.path.join(package, 'configs')
  if os.path.isdir(installed):
    return installed
  return os.path.join(os.path.dirname(package), 'configs')
