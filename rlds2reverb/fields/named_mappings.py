"""The mappings of well-known data sets, by name.

A config is a gin file in `configs/`, such as `bridge.gin`. It binds the fields
of `StepMapping`, and the arguments of what they refer to:

    StepMapping.action = ['action/world_vector', 'action/open_gripper']
    StepMapping.discount = None
    StepMapping.is_terminal = @TerminalOnSuccess()
    TerminalOnSuccess.success = '../success'
"""

import dataclasses
import glob
import os
from typing import Any, Callable, Dict, List

import gin
from gin import config_parser
import tree

from rlds2reverb.datasets import files
from rlds2reverb.episodes import checks
from rlds2reverb.fields import step_mapping

_SUFFIX = '.gin'
_MAPPING = 'StepMapping'


def load_mapping(name_or_path: files.PathLike) -> step_mapping.StepMapping:
  """Reads the mapping of a well-known data set, or of your own gin file.

      data = map_fields(load_episodes('bridge'), load_mapping('bridge'))

  What the program has bound in gin does not count, and stays as it is. To have
  a config as part of the program's own gin config, include its file there;
  `map_fields(data)` then uses it.

  Args:
    name_or_path: the name of a config, one of `config_names()`, or the path of
      a gin file, which ends in `.gin`.

  Returns:
    The mapping. Fields that the file does not bind have their defaults.

  Raises:
    FileNotFoundError: if there is no gin file at that path.
    SyntaxError: if the file is not in gin's syntax.
    ValueError: if there is no config of that name, with the names that come
      nearest; or if the file has other statements than bindings, none of
      `StepMapping`, or a binding of something that does not exist.
  """
  name_or_path = os.fspath(name_or_path)
  if name_or_path.endswith(_SUFFIX):
    path = files.expand(name_or_path)
  else:
    path = os.path.join(config_folder(), f'{name_or_path}{_SUFFIX}')
    if name_or_path not in config_names():
      raise ValueError(
          f'There is no config {name_or_path}.'
          f'{checks.did_you_mean(name_or_path, config_names())} The configs are'
          f' {config_names()}. The path of a gin file must end in {_SUFFIX}.'
      )
  bindings = _read_bindings(path)
  if _MAPPING not in bindings:
    raise ValueError(
        f'{path} must bind fields of {_MAPPING}, with lines such as'
        f" {_MAPPING}.action = 'action'."
    )
  # Every field is passed, or gin would fill in what the program has bound.
  arguments = {
      field.name: field.default_factory()
      if field.default is dataclasses.MISSING
      else field.default
      for field in dataclasses.fields(step_mapping.StepMapping)
  }
  for name, value in bindings[_MAPPING].items():
    if name not in arguments:
      raise ValueError(
          f'{path} binds {_MAPPING}.{name}, which is not a field.'
          f'{checks.did_you_mean(name, arguments)} The fields are'
          f' {list(arguments)}.'
      )
    arguments[name] = tree.map_structure(
        lambda leaf: _resolve(leaf, bindings, path), value
    )
  return step_mapping.StepMapping(**arguments)


def config_names() -> List[str]:
  """Returns the names of all configs, sorted."""
  files = glob.glob(os.path.join(config_folder(), f'*{_SUFFIX}'))
  return sorted(os.path.basename(file)[: -len(_SUFFIX)] for file in files)


def config_folder() -> str:
  """Returns where the configs are: installed, or else in the checkout."""
  package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
  installed = os.path.join(package, 'configs')
  if os.path.isdir(installed):
    return installed
  return os.path.join(os.path.dirname(package), 'configs')


@dataclasses.dataclass(frozen=True)
class _Reference:
  """A value such as `@TerminalOnSuccess()`, or without the parentheses."""

  name: str
  is_called: bool


class _Delegate(config_parser.ParserDelegate):
  """Leaves references to be resolved when all bindings are read."""

  def configurable_reference(self, scoped_configurable_name, evaluate):
    return _Reference(scoped_configurable_name, evaluate)

  def macro(self, macro_name):
    raise ValueError(f'A config must not have macros, but has %{macro_name}.')


def _read_bindings(path: str) -> Dict[str, Dict[str, Any]]:
  """Returns the arguments that a gin file binds, by what they are for."""
  bindings = {}
  with files.open_text(path) as f:
    for statement in config_parser.ConfigParser(f, _Delegate()):
      if isinstance(statement, config_parser.BlockDeclaration):
        continue
      if (
          not isinstance(statement, config_parser.BindingStatement)
          or statement.scope
          or not statement.arg_name
      ):
        raise ValueError(
            f'{path}, line {statement.location.line_num}: a config may only'
            f" have bindings such as {_MAPPING}.action = 'action'."
        )
      _get_configurable(statement.selector, path)
      arguments = bindings.setdefault(_last(statement.selector), {})
      arguments[statement.arg_name] = statement.value
  return bindings


def _resolve(value: Any, bindings: Dict[str, Dict[str, Any]], path: str) -> Any:
  if not isinstance(value, _Reference):
    return value
  configurable = _get_configurable(value.name, path)
  if not value.is_called:
    return configurable
  return configurable(**bindings.get(_last(value.name), {}))


def _get_configurable(name: str, path: str) -> Callable[..., Any]:
  try:
    return gin.get_configurable(name)
  except ValueError as e:
    raise ValueError(
        f'{path} names {name}, which is not registered with gin. Import the'
        ' module that registers it first.'
    ) from e


def _last(selector: str) -> str:
  return selector.rpartition('.')[2]
