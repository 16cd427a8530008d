"""Reads gin bindings without making them part of the program's gin config.

A name without a module is looked up in this package first, so a file still
works if another library has registered the same name with gin.
"""

import dataclasses
import functools
import importlib
import io
from typing import Any, Callable, Dict, Iterable, Optional

import gin
from gin import config_parser
import tree

from rlds2reverb.episodes import checks

_MODULE = 'rlds2reverb'
# These are imported with this package, not chosen by the user. Some of their
# functions run code that a config names: `suite_gym.load` imports a module.
_REFUSED = ('gin', 'tf_agents')

# The arguments of functions and classes, by their names in gin.
Bindings = Dict[Callable[..., Any], Dict[str, Any]]


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


def read(text: str, path: str) -> Bindings:
  """Returns the arguments that gin bindings bind for each configurable.

  Args:
    text: the bindings, in gin's syntax. The last binding of an argument counts.
    path: the name of the file that the text is from, for messages.

  Raises:
    SyntaxError: if it is not in gin's syntax.
    ValueError: if it has other statements than bindings, or names something
      that is not registered with gin.
  """
  bindings: Bindings = {}
  lines = io.StringIO(text)
  lines.name = path
  for one in config_parser.ConfigParser(lines, _Delegate()):
    if isinstance(one, config_parser.BlockDeclaration):
      continue
    is_binding = isinstance(one, config_parser.BindingStatement)
    if not is_binding or one.scope or not one.arg_name:
      raise ValueError(
          f'{path}, line {one.location.line_num}: a config may only have'
          " bindings such as StepMapping.action = 'action'."
      )
    configurable = get_configurable(one.selector, path)
    bindings.setdefault(configurable, {})[one.arg_name] = one.value
  return bindings


def arguments_of(
    name: str, text: str, path: str, known: Optional[Iterable[str]] = None
) -> Dict[str, Any]:
  """Returns the arguments that gin bindings bind for one configurable.

  Args:
    name: the name of the configurable.
    text: see `read`.
    path: see `read`.
    known: the names of all arguments that may be bound, if they are known.

  Returns:
    The arguments by name, with objects in place of references such as
    `@TerminalOnSuccess()`; an empty dict if none is bound.

  Raises:
    SyntaxError: as `read` does.
    ValueError: as `read` does; if a reference names something that is not
      registered with gin, or if there is no argument of a name.
  """
  bindings = read(text, path)

  def bound_to(name):
    configurable = get_configurable(name, path)
    return tree.map_structure(resolve, bindings.get(configurable, {}))

  def resolve(value):
    if not isinstance(value, _Reference):
      return value
    found = get_configurable(value.name, path)
    return found(**bound_to(value.name)) if value.is_called else found

  bound = bound_to(name)
  for argument in () if known is None else bound:
    checks.check_known(f'{name}, bound in {path},', 'field', argument, known)
  return bound


def get_configurable(name: str, path: str) -> Callable[..., Any]:
  """Returns the object that gin has under a name, first from this package.

  Raises:
    ValueError: if no module or several modules have registered the name, or if
      gin or TF-Agents has registered it.
  """
  _register_all()
  for full_name in f'{_MODULE}.{name}', name:
    try:
      with gin.config_scope(None):  # Or gin returns a new object at each call.
        configurable = gin.get_configurable(full_name)
    except KeyError as e:
      raise ValueError(
          f'{path} names {name}, which more than one module has registered with'
          f' gin: {e}. Write the module before the name.'
      ) from e
    except ValueError:
      continue  # The name is not registered.
    if configurable.__module__.split('.')[0] in _REFUSED:
      raise ValueError(
          f'{path} names {name} of {configurable.__module__}. A config may name'
          ' what rlds2reverb registers with gin, and what your program does.'
          ' Register a function of your own that calls it.'
      )
    return configurable
  raise ValueError(
      f'{path} names {name}, which is not registered with gin. Import the'
      ' module that registers it first.'
  )


@functools.lru_cache(maxsize=None)
def _register_all() -> None:
  """Imports the modules that register with gin."""
  package = importlib.import_module(_MODULE)
  for name in dir(package):
    getattr(package, name)
