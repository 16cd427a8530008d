"""Reads the configs of well-known data sets, by name, and your own gin files.

A config is a gin file in `configs/`, such as `bridge.gin`. It binds the fields
of `StepMapping`, the arguments of the sources in them, and transforms:

    StepMapping.action = ['action/world_vector', 'action/open_gripper']
    StepMapping.is_terminal = @TerminalOnSuccess()
    TerminalOnSuccess.success = '../success'
    transform_episodes.transforms = [@RelativeToAbsoluteGripper()]

Those in `configs/mixtures/`, such as `oxe_magic_soup.gin`, bind a `Mixture`.
What they bind has no effect on the program's own gin config, nor that on them.
"""

import dataclasses
import functools
import os
import re
from typing import Any, Dict, List, Tuple

from rlds2reverb.datasets import files
from rlds2reverb.episodes import checks
from rlds2reverb.fields import bindings
from rlds2reverb.fields import derived_sources  # noqa: F401
from rlds2reverb.fields import mixtures
from rlds2reverb.fields import step_mapping

MIXTURES = 'mixtures'
_TRANSFORMS = 'transform_episodes'
_SUFFIX = '.gin'
# Other names of its data set, such as those of Octo and OpenVLA, in a config.
_ALSO_CALLED = re.compile(r'^# Also called: (.*)', re.MULTILINE)


def load_mapping(name_or_path: files.PathLike) -> step_mapping.StepMapping:
  """Reads the mapping of a config.

  Args:
    name_or_path: see `find_config`.

  Raises:
    FileNotFoundError: if there is no gin file at that path.
    SyntaxError: if the file is not in gin's syntax.
    ValueError: if there is no config of that name, with the names that come
      nearest; or if the file has other statements than bindings, none of
      `StepMapping`, or a binding of something that does not exist.
  """
  return object_of(step_mapping.StepMapping, *read_config(name_or_path))


def load_mixture(name_or_path: files.PathLike) -> mixtures.Mixture:
  """Reads a mixture of well-known data sets, or of your own gin file.

      load_mixture('oxe_magic_soup').weights['taco_play']  # 2.0

  Args:
    name_or_path: the name of a mixture, one of `config_names('mixtures')`, or
      the path of a gin file, which ends in `.gin`.

  Returns:
    The mixture.

  Raises:
    FileNotFoundError: if there is no gin file at that path.
    SyntaxError: if the file is not in gin's syntax.
    ValueError: if there is no mixture of that name, with the names that come
      nearest; or if the file does not bind one.
  """
  return object_of(mixtures.Mixture, *read_config(name_or_path, MIXTURES))


def load_transforms(name_or_path: files.PathLike) -> List[Any]:
  """Reads the transforms of a well-known data set, or of your own gin file.

      episodes = map_fields(load_episodes(name), name)
      episodes = transform_episodes(episodes, load_transforms(name))

  Args:
    name_or_path: the name of a config, one of `fields.config_names()`, or the
      path of a gin file, which ends in `.gin`.

  Returns:
    The transforms and filters, for `transform_episodes`; an empty list if the
    config has none.

  Raises:
    FileNotFoundError: if there is no gin file at that path.
    SyntaxError: if the file is not in gin's syntax.
    ValueError: if there is no config of that name, with the names that come
      nearest; or if a binding is of something that does not exist.
  """
  return transforms_of(*read_config(name_or_path))


def transforms_of(text: str, path: str) -> List[Any]:
  """Returns the transforms and filters that gin bindings describe."""
  bound = bindings.arguments_of(_TRANSFORMS, text, path, ['transforms'])
  return list(bound.get('transforms', ()))


def object_of(kind: Any, text: str, path: str) -> Any:
  """Returns the dataclass that gin bindings describe.

  Args:
    kind: the class, `StepMapping` or `Mixture`.
    text: the bindings, in gin's syntax.
    path: the name of the file that they are from, for messages.

  Raises:
    SyntaxError: if the text is not in gin's syntax.
    ValueError: if nothing of the class is bound, or not what it needs; or as
      `bindings.arguments_of` does.
  """
  # Every field is passed, because gin would fill in others with the program's
  # own bindings.
  fields = {
      one.name: one.default
      if one.default_factory is dataclasses.MISSING
      else one.default_factory()
      for one in dataclasses.fields(kind)
  }
  bound = bindings.arguments_of(kind.__name__, text, path, fields)
  fields.update(bound)
  if not bound or dataclasses.MISSING in fields.values():
    example = f'{kind.__name__}.{next(iter(fields))} = ...'
    raise ValueError(
        f'{path} must bind fields of {kind.__name__}, as {example} does.'
    )
  return kind(**fields)


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
    aliases = {} if name_or_path in names else _aliases()
  name = aliases.get(name_or_path, name_or_path)
  if name not in names:
    what = group.removesuffix('s') or 'config'
    raise ValueError(
        f'There is no {what} {name_or_path}.'
        f'{checks.did_you_mean(name_or_path, [*names, *aliases])} The {what}s'
        f' are {names}. The path of a gin file must end in {_SUFFIX}.'
    )
  return os.path.join(config_folder(), group, f'{name}{_SUFFIX}')


@functools.lru_cache(maxsize=None)
def _aliases() -> Dict[str, str]:
  """Returns the configs of the other names of data sets."""
  return {
      alias: config
      for config in config_names()
      for names in _ALSO_CALLED.findall(read_config(config)[0])
      for alias in names.split()
  }


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
