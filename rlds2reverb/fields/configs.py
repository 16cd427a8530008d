"""Loads configs of well-known data sets by name, and your own gin files.

A config is a gin file in `configs/`, such as `bridge.gin`. It binds the fields
of `StepMapping`, the arguments of the sources in them, and transforms:

    StepMapping.action = ['action/world_vector', 'action/open_gripper']
    StepMapping.is_terminal = @TerminalOnSuccess()
    TerminalOnSuccess.success = '../success'
    transform_episodes.transforms = [@RelativeToAbsoluteGripper()]

Configs in `configs/mixtures/`, such as `oxe_magic_soup.gin`, bind a `Mixture`.
Configs do not change the gin config of the program, and are not changed by it.
A name without a module is looked up in this package first, so a file still
works if another library has registered the same name with gin.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import functools
import importlib
import io
import os
import re
import tempfile
from typing import Any

import gin
from gin import config_parser
import tree

from rlds2reverb.datasets import files
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import rlds
from rlds2reverb.fields import step_mapping

MIXTURES = 'mixtures'
_TRANSFORMS = 'transform_episodes'
_SUFFIX = '.gin'
# Other names of the data set, such as its names in Octo and OpenVLA.
_ALIASES = re.compile(r'^# Also called: (.*)', re.MULTILINE)

_MODULE = 'rlds2reverb'
# Modules that this package imports, not the user. Some of their functions run
# code that a config could name: `suite_gym.load` imports a module.
_REFUSED = ('gin', 'tf_agents')

# The arguments of functions and classes, by their names in gin.
Bindings = dict[Callable[..., Any], dict[str, Any]]


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True)
class Mixture:
  """Data sets to train on together.

  Attributes:
    weights: a dict from the names of the data sets to their weights. A weight
      is a factor of the size of the data set: a data set of weight 2 is seen
      twice as often as one of weight 1 with as many steps.
    configs: a dict from the names of data sets to the names of their configs,
      if these differ.
    transforms: transforms of the episodes of every data set after its own
      transforms, which give all data sets the same fields.
  """

  weights: Mapping[str, float]
  configs: Mapping[str, str] = dataclasses.field(default_factory=dict)
  transforms: Sequence[Any] = ()

  def __post_init__(self):
    checks.check_weights(self.weights, are_positive=True)
    unknown = set(self.configs) - set(self.weights)
    if unknown:
      raise ValueError(
          f'The mixture has configs of {sorted(unknown)}, which have no weight.'
      )

  def get_config(self, dataset: str) -> str:
    """Returns the name of the config of a data set."""
    return self.configs.get(dataset, dataset)


def load_mapping(name_or_path: files.PathLike) -> step_mapping.StepMapping:
  """Loads the `StepMapping` of a well-known data set, or of your own gin file.

      mapping = load_mapping('bridge')
      mapping = dataclasses.replace(mapping, reward=None)
      episodes = map_fields(load_episodes('bridge'), mapping)

  Args:
    name_or_path: the name of a config, one of `fields.config_names()`, or the
      path of a gin file, which ends in `.gin`.

  Returns:
    The mapping, for `map_fields`.

  Raises:
    FileNotFoundError: if the gin file does not exist.
    SyntaxError: if the file is not valid gin.
    ValueError: if there is no such config, with similar names; or if the file
      has statements other than bindings, no binding of `StepMapping`, or a
      binding of something that does not exist.
  """
  return parse_dataclass(step_mapping.StepMapping, *read_config(name_or_path))


def load_mixture(name_or_path: files.PathLike) -> Mixture:
  """Loads a mixture of well-known data sets, or of your own gin file.

      load_mixture('oxe_magic_soup').weights['taco_play']  # 2.0

  Args:
    name_or_path: the name of a mixture, one of `config_names('mixtures')`, or
      the path of a gin file, which ends in `.gin`.

  Returns:
    The mixture.

  Raises:
    FileNotFoundError: if the gin file does not exist.
    SyntaxError: if the file is not valid gin.
    ValueError: if there is no such mixture, with similar names; or if the file
      does not bind a mixture.
  """
  return parse_dataclass(Mixture, *read_config(name_or_path, MIXTURES))


def load_transforms(name_or_path: files.PathLike) -> list[Any]:
  """Loads the transforms of a well-known data set, or of your own gin file.

      episodes = map_fields(load_episodes(name), name)
      episodes = transform_episodes(episodes, load_transforms(name))

  Args:
    name_or_path: the name of a config, one of `fields.config_names()`, or the
      path of a gin file, which ends in `.gin`.

  Returns:
    The transforms and filters, for `transform_episodes`; an empty list if the
    config has none.

  Raises:
    FileNotFoundError: if the gin file does not exist.
    SyntaxError: if the file is not valid gin.
    ValueError: if there is no such config, with similar names; or if the file
      has a binding of something that does not exist.
  """
  return parse_transforms(*read_config(name_or_path))


def config_names(group: str = '') -> list[str]:
  """Returns the names of all configs, sorted.

  Args:
    group: by default the mappings of data sets; or `mixtures`; or `training`,
      flags and hyper-parameters of trainers.
  """
  names = os.listdir(os.path.join(get_config_folder(), group))
  return sorted(
      name[: -len(_SUFFIX)] for name in names if name.endswith(_SUFFIX)
  )


def get_config_folder() -> str:
  """Returns the folder of the configs, in the package or in the checkout."""
  package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
  installed = os.path.join(package, 'configs')
  if os.path.isdir(installed):
    return installed
  return os.path.join(os.path.dirname(package), 'configs')


def read_config(
    name_or_path: files.PathLike, group: str = ''
) -> tuple[str, str]:
  """Returns the text of a config and its path; see `find_config`.

  Raises:
    FileNotFoundError: if the gin file does not exist.
    ValueError: as `find_config` does, or if the file is not text.
  """
  path = find_config(name_or_path, group)
  with _naming_file(path), files.open_text(path) as f:
    return f.read(), path


@contextlib.contextmanager
def _naming_file(path: str) -> Iterator[None]:
  """Raises errors that do not name a config's file as ValueErrors that do.

  A config can bind any value, and call any class with any arguments, so it can
  raise any error.
  """
  try:
    yield
  except (OSError, SyntaxError):  # They have the path as an attribute.
    raise
  # Python's own parser runs out of memory for some brackets.
  except (MemoryError, RecursionError) as e:
    raise ValueError(
        f'{path} cannot be parsed: its values are nested too deeply.'
    ) from e
  except Exception as e:
    if isinstance(e, ValueError) and path in str(e):
      raise
    # Gin adds lines with the values of the program's config.
    message = str(e).strip().partition('\n')[0] or type(e).__name__
    raise ValueError(f'{path} is not a valid config: {message}') from e


def find_config(name_or_path: files.PathLike, group: str = '') -> str:
  """Returns the path of a config.

  Args:
    name_or_path: the name of a config, one of `config_names(group)`, or without
      a group also `training/` and one of `config_names('training')`; or the
      path of a gin file, which ends in `.gin`.
    group: see `config_names`.

  Raises:
    ValueError: if there is no such config, with similar names.
  """
  name_or_path = os.fspath(name_or_path)
  if name_or_path.endswith(_SUFFIX):
    return files.expand(name_or_path)
  names, aliases = config_names(group), {}
  if not group:
    names += [f'training/{name}' for name in config_names('training')]
    aliases = {} if name_or_path in names else _find_aliases()
  name = aliases.get(name_or_path, name_or_path)
  if name not in names:
    kind = group.removesuffix('s') or 'config'
    raise ValueError(
        f'There is no {kind} {name_or_path}.'
        f'{checks.did_you_mean(name_or_path, [*names, *aliases])} The {kind}s'
        f' are {names}. The path of a gin file must end in {_SUFFIX}.'
    )
  return os.path.join(get_config_folder(), group, f'{name}{_SUFFIX}')


@functools.cache
def _find_aliases() -> dict[str, str]:
  """Returns a dict from other names of data sets to their configs."""
  return {
      alias: config
      for config in config_names()
      for aliases in _ALIASES.findall(read_config(config)[0])
      for alias in aliases.split()
  }


def load_known_features(config: str) -> dict[str, Any]:
  """Loads the TFDS features of the data sets of a config, without their data.

  They are needed to check a config without downloading a data set. They are
  read from `configs/features/<config>/features.json`, which TFDS writes, or
  from such a file in each subfolder, which is named after a variant. If there
  is no such folder, they come from the TFDS builders whose names begin with the
  name of the config.

  Args:
    config: one of `config_names()`.

  Returns:
    A dict from names of data sets, such as `d4rl_mujoco_ant/v2-medium`, to the
    `FeaturesDict` of an episode. It is empty if no features are known.
  """
  import tensorflow_datasets as tfds

  folder = os.path.join(get_config_folder(), 'features', config)
  features = {}
  for root, _, names in sorted(os.walk(folder)):
    if 'features.json' in names:
      name = os.path.join(config, os.path.relpath(root, folder))
      features[os.path.normpath(name)] = (
          tfds.features.FeatureConnector.from_config(root)
      )
  if os.path.isdir(folder):
    return features
  builders = tfds.list_builders(with_community_datasets=False)
  # TFDS prefers features on disk, so an empty folder is its data_dir.
  with tempfile.TemporaryDirectory() as empty:
    for builder in (name for name in builders if name.startswith(config)):
      for variant in tfds.builder_cls(builder).builder_configs or ['']:
        name = os.path.join(builder, variant).rstrip('/')
        episode = tfds.builder(name, data_dir=empty).info.features
        if rlds.STEPS in episode:
          features[name] = episode
  return features


@dataclasses.dataclass(frozen=True)
class _Reference:
  """A value such as `@TerminalOnSuccess()`, or without the parentheses."""

  name: str
  is_called: bool


class _Delegate(config_parser.ParserDelegate):
  """Returns references unresolved, until all bindings are parsed."""

  def configurable_reference(self, scoped_configurable_name, evaluate):
    if '/' in scoped_configurable_name:
      raise ValueError(
          f'A config must not have scopes, but has @{scoped_configurable_name}.'
      )
    return _Reference(scoped_configurable_name, evaluate)

  def macro(self, macro_name):
    raise ValueError(f'A config must not have macros, but has %{macro_name}.')


def parse_bindings(text: str, path: str) -> Bindings:
  """Returns the arguments that gin bindings bind for each configurable.

  Args:
    text: gin bindings. The last binding of an argument takes precedence.
    path: the path of the file with the text, for errors.

  Raises:
    SyntaxError: if the text is not valid gin.
    ValueError: if it has statements other than bindings, a name that is not
      registered with gin, or too deeply nested values.
  """
  bindings: Bindings = {}
  lines = io.StringIO(text)
  lines.name = path
  with _naming_file(path):
    statements = list(config_parser.ConfigParser(lines, _Delegate()))
  for statement in statements:
    if isinstance(statement, config_parser.BlockDeclaration):
      continue
    if (
        not isinstance(statement, config_parser.BindingStatement)
        or statement.scope
        or not statement.arg_name
    ):
      raise ValueError(
          f'{path}, line {statement.location.line_num}: a config may only have'
          " bindings such as StepMapping.action = 'action'."
      )
    configurable = get_configurable(statement.selector, path)
    arguments = bindings.setdefault(configurable, {})
    arguments[statement.arg_name] = statement.value
  return bindings


def parse_arguments(
    name: str, text: str, path: str, allowed: Iterable[str] | None = None
) -> dict[str, Any]:
  """Returns the arguments that gin bindings bind for one configurable.

  Args:
    name: the name of the configurable.
    text: see `parse_bindings`.
    path: see `parse_bindings`.
    allowed: the names of all arguments that may be bound; by default any.

  Returns:
    The arguments by name, with references such as `@TerminalOnSuccess()`
    resolved to objects; an empty dict if none is bound.

  Raises:
    SyntaxError: as `parse_bindings` does.
    ValueError: as `parse_bindings` does; or if a reference is not registered
      with gin, or there is no argument of a name.
  """
  bindings = parse_bindings(text, path)
  callers: list[Any] = []

  def get_arguments(name):
    configurable = get_configurable(name, path)
    if configurable in callers:
      raise ValueError(f'{path} binds an argument of {name} to itself.')
    callers.append(configurable)
    arguments = tree.map_structure(resolve, bindings.get(configurable, {}))
    callers.pop()
    return arguments

  def resolve(value):
    if not isinstance(value, _Reference):
      return value
    configurable = get_configurable(value.name, path)
    if value.is_called:
      return configurable(**get_arguments(value.name))
    return configurable

  with _naming_file(path):
    arguments = get_arguments(name)
  if allowed is not None:
    for argument in arguments:
      checks.check_known(
          f'{name}, bound in {path},', 'field', argument, allowed
      )
  return arguments


def parse_transforms(text: str, path: str) -> list[Any]:
  """Returns the transforms and filters that gin bindings define."""
  arguments = parse_arguments(_TRANSFORMS, text, path, ['transforms'])
  with _naming_file(path):
    return list(arguments.get('transforms', ()))


def parse_dataclass(cls: Any, text: str, path: str) -> Any:
  """Returns the dataclass that gin bindings define.

  Args:
    cls: the class, `StepMapping` or `Mixture`.
    text: gin bindings.
    path: the path of the file with the text, for errors.

  Raises:
    SyntaxError: if the text is not valid gin.
    ValueError: if no field of the class, or not every required field, is bound;
      or as `parse_arguments` does.
  """
  # Every field is passed, or gin would set the others by the bindings of the
  # program.
  fields = {
      field.name: field.default
      if field.default_factory is dataclasses.MISSING
      else field.default_factory()
      for field in dataclasses.fields(cls)
  }
  arguments = parse_arguments(cls.__name__, text, path, fields)
  fields.update(arguments)
  if not arguments or dataclasses.MISSING in fields.values():
    example = f'{cls.__name__}.{next(iter(fields))} = ...'
    raise ValueError(
        f'{path} must bind fields of {cls.__name__}, for example {example}.'
    )
  with _naming_file(path):
    return cls(**fields)


def get_configurable(name: str, path: str) -> Callable[..., Any]:
  """Returns the object that is registered with gin, first by this package.

  Raises:
    ValueError: if the name is registered by no module, by several modules, or
      by gin or TF-Agents.
  """
  _register_all()
  for full_name in f'{_MODULE}.{name}', name:
    try:
      with gin.config_scope(None):  # Or gin returns a new object at each call.
        configurable = gin.get_configurable(full_name)
    except KeyError as e:
      raise ValueError(
          f'{path} names {name}, which several modules have registered with'
          f' gin: {e}. Write the module before the name.'
      ) from e
    except ValueError:
      continue  # The name is not registered.
    if configurable.__module__.split('.')[0] in _REFUSED:
      raise ValueError(
          f'{path} names {name} of {configurable.__module__}. A config may only'
          ' name what rlds2reverb and your program register with gin. Register'
          ' a function of your own that calls it.'
      )
    return configurable
  raise ValueError(
      f'{path} names {name}, which is not registered with gin. Import the'
      ' module that registers it first.'
  )


@functools.cache
def _register_all() -> None:
  """Imports the modules that register with gin."""
  package = importlib.import_module(_MODULE)
  for name in dir(package):
    getattr(package, name)
