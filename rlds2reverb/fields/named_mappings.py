"""The mappings of well-known data sets, which are loaded by name.

A config is a gin file in `configs/`, such as `bridge.gin`. It binds the fields
of `StepMapping`, and the arguments of whatever these refer to:

    StepMapping.action = ['action/world_vector', 'action/open_gripper']
    StepMapping.discount = None
    StepMapping.is_terminal = @TerminalOnSuccess()
    TerminalOnSuccess.success = '../success'

A name without a module is first looked for among those of this package, so a
config still works where another library has registered the same name with gin.
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
_MODULE = 'rlds2reverb'
_MAPPING = 'StepMapping'


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
    name_or_path: the name of a config, one of `config_names()`, or the path of
      a gin file, which ends in `.gin`.
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
  mapping_bindings = bindings.get(_get_configurable(_MAPPING, path))
  if mapping_bindings is None:
    raise ValueError(
        f'{path} must bind fields of {_MAPPING}, with lines such as'
        f" {_MAPPING}.action = 'action'."
    )
  # Every field is passed, because gin would fill in the others with what the
  # program has bound.
  arguments = {
      field.name: field.default_factory()
      if field.default is dataclasses.MISSING
      else field.default
      for field in dataclasses.fields(step_mapping.StepMapping)
  }
  for name, value in mapping_bindings.items():
    if name not in arguments:
      raise ValueError(
          f'{path} binds {_MAPPING}.{name}, which is not a field.'
          f'{checks.did_you_mean(name, arguments)} The fields are'
          f' {list(arguments)}.'
      )
    arguments[name] = tree.map_structure(
        lambda leaf: _resolve(leaf, bindings, path), value
    )
  for name, value in changes.items():
    if name not in arguments:
      raise TypeError(
          f'load_mapping got {name}, which is not a field of {_MAPPING}.'
          f'{checks.did_you_mean(name, arguments)} The fields are'
          f' {list(arguments)}.'
      )
    arguments[name] = value
  return step_mapping.StepMapping(**arguments)


def config_names() -> List[str]:
  """Returns the names of all configs, sorted."""
  files = glob.glob(os.path.join(config_folder(), f'*{_SUFFIX}'))
  return sorted(os.path.basename(file)[: -len(_SUFFIX)] for file in files)


def config_folder() -> str:
  """Returns the folder of the configs, in the package or in the checkout."""
  package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
  installed = os.path.join(package, 'configs')
  if os.path.isdir(installed):
    return installed
  return os.path.join(os.path.dirname(package), 'configs')


# The arguments of functions and classes, by what gin calls for these.
_Bindings = Dict[Callable[..., Any], Dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class _Reference:
  """A value such as `@TerminalOnSuccess()`, or without the parentheses."""

  name: str
  is_called: bool


class _Delegate(config_parser.ParserDelegate):
  """Keeps references, which are resolved when all bindings have been read."""

  def configurable_reference(self, scoped_configurable_name, evaluate):
    if '/' in scoped_configurable_name:
      raise ValueError(
          f'A config must not have scopes, but has @{scoped_configurable_name}.'
      )
    return _Reference(scoped_configurable_name, evaluate)

  def macro(self, macro_name):
    raise ValueError(f'A config must not have macros, but has %{macro_name}.')


def _read_bindings(path: str) -> _Bindings:
  """Returns the arguments that a gin file binds for each configurable."""
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
      configurable = _get_configurable(statement.selector, path)
      arguments = bindings.setdefault(configurable, {})
      arguments[statement.arg_name] = statement.value
  return bindings


def _resolve(value: Any, bindings: _Bindings, path: str) -> Any:
  """Returns what a value of a config stands for."""
  if not isinstance(value, _Reference):
    return value
  configurable = _get_configurable(value.name, path)
  if not value.is_called:
    return configurable
  return configurable(**bindings.get(configurable, {}))


def _get_configurable(name: str, path: str) -> Callable[..., Any]:
  """Returns what is registered with gin under a name, this package's first."""
  # In a scope gin would return another object at each call.
  with gin.config_scope(None):
    for full_name in f'{_MODULE}.{name}', name:
      try:
        return gin.get_configurable(full_name)
      except KeyError as e:
        raise ValueError(
            f'{path} names {name}, which more than one module has registered'
            f' with gin: {e}. Write the module before the name.'
        ) from e
      except ValueError:
        pass  # It is not registered.
  raise ValueError(
      f'{path} names {name}, which is not registered with gin. Import the'
      ' module that registers it first.'
  )
