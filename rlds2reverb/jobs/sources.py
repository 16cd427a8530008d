"""The sources of the episodes of a job, as values that can be stored.

A `Source` names a data set, a split, and the transforms of every episode. It is
plain text, so a job can keep it in a file, and another process or machine can
open it. `open_source` finds the data set, and tells how many episodes there
are, and in which files, without reading any of RLDS:

    source = make_source('/data/cartpole', config='recorded_gym')
    opened = open_source(source)
    opened.num_episodes
    for part in opened.shards:  # one Range for each file
      episodes = opened.read(part)
"""

import dataclasses
import os
import pkgutil
from typing import Any, Dict, List, Optional, Sequence, Tuple

import gin
import tensorflow as tf
import tensorflow_datasets as tfds

from rlds2reverb.datasets import files
from rlds2reverb.datasets import loading
from rlds2reverb.datasets import mixtures as mixtures_lib
from rlds2reverb.episodes import checks
from rlds2reverb.fields import bindings as bindings_lib
from rlds2reverb.fields import configs
from rlds2reverb.fields import mixtures as named_lib
from rlds2reverb.fields import step_mapping
from rlds2reverb.formats import python_dicts
from rlds2reverb.formats import readers
from rlds2reverb.jobs import opened as opened_lib
from rlds2reverb.trajectories import rules as rules_lib

# The programs in scripts/ whose flags a config may set, as in
# `convert.sequence_length = 80`. A program uses such a value unless the command
# line has the flag. Other programs ignore it, so one file can serve several.
PROGRAMS = ('convert', 'describe', 'validate', 'serve', 'record_episodes')
for _program in PROGRAMS:
  # Gin needs only the names; nothing calls these functions.
  gin.register(_program, module='rlds2reverb.programs')(lambda **flags: flags)

_RLDS = 'rlds'
_PYTHON = 'python'  # The format of episodes that a function returns.
_FORMATS = (*readers.READERS, _RLDS, _PYTHON)


@dataclasses.dataclass(frozen=True)
class Source:
  """The origin of episodes, and their transforms; see `make_source`.

  Attributes:
    dataset: the absolute path of a data set's folder or file, its URL, or the
      name of a TFDS data set; of the format `python`, `module:function`.
    split: a TFDS split, for example `train`, `train[:10%]` or `train+test`.
    data_dir: the directory in which TFDS looks for a data set by its name.
    config: the name or the path of the config, for messages; None if there is
      none.
    bindings: the text of the config and, below it, the lines of `make_source`'s
      `bindings`: one string, as plans store it.
    format: the name of its format; None for RLDS.
  """

  dataset: str
  split: str = 'train'
  data_dir: Optional[str] = None
  config: Optional[str] = None
  bindings: str = ''
  format: Optional[str] = None


def make_source(
    dataset: files.PathLike,
    split: str = 'train',
    *,
    data_dir: Optional[files.PathLike] = None,
    config: Optional[str] = None,
    bindings: Sequence[str] = (),
    format: Optional[str] = None,
) -> Source:
  """Makes a `Source`.

  Args:
    dataset: a directory or a name, as `load_episodes` takes it; a file or a
      folder of another format, as `formats.load` takes it; or a function of
      Python without arguments, `module:function`, that returns episodes, as
      RLDS or as `from_episodes` takes them.
    split: a TFDS split, or several, joined by `+`.
    data_dir: the directory in which TFDS looks for a data set by its name.
    config: the name of a config, or the path of a gin file. Its text becomes a
      part of the source, so that later changes of the file change nothing. It
      may bind the fields of `StepMapping`, by which the episodes are mapped,
      and `transform_episodes.transforms`, which a `Mixture`'s follow.
    bindings: more gin bindings, which take precedence over those of the config.
      They may bind the options of a format's reader, as in
      `load_zarr.leave_out = ['img']`.
    format: the name of a format, one of `formats.readers.READERS`, `rlds` or
      `python`. By default the files tell.

  Returns:
    The source.

  Raises:
    FileNotFoundError: if there is no such config.
    SyntaxError: if the bindings are not in gin's syntax.
    ValueError: if there is no config or no format of that name, or if a binding
      is of something that does not exist.
  """
  # pylint: disable=redefined-builtin
  dataset = os.fspath(dataset)
  path = files.expand(dataset)
  if format != _PYTHON and files.exists(path):
    dataset = path
    format = format or readers.find_format(path)
  if format is not None:
    checks.check_choice('format', format, _FORMATS)
  text = ''
  if config is not None:
    text, _ = configs.read_config(config)
  source = Source(
      dataset,
      split,
      None if data_dir is None else files.expand(data_dir),
      config,
      '\n'.join([text, *bindings]).strip(),
      None if format == _RLDS else format,
  )
  _preprocessing_of(source)  # It must be valid.
  return source


def _preprocessing_of(source: Source) -> Tuple[Any, List[Any]]:
  """Returns the mapping of a source or None, and its transforms and filters.

  The transforms of its mixture come last.
  """
  path, mapping = _file_of(source), None
  if arguments_of('StepMapping', source):
    mapping = configs.object_of(step_mapping.StepMapping, source.bindings, path)
  shared = arguments_of('Mixture', source).get('transforms', ())
  return mapping, [*configs.transforms_of(source.bindings, path), *shared]


def arguments_of(name: str, source: Source) -> Any:
  """Returns the arguments that a source binds for a class or a program.

  Args:
    name: the name under which gin knows it: `ConversionRules`, for example, or
      one of `PROGRAMS`.
    source: the source.

  Returns:
    A dict of the arguments by name, which is empty if none is bound.
  """
  return bindings_lib.arguments_of(name, source.bindings, _file_of(source))


def options_of(source: Source) -> Dict[str, Any]:
  """Returns the options that a source binds for the reader of its format."""
  if source.format not in readers.READERS:
    return {}
  return arguments_of(readers.READERS[source.format].__name__, source)


def rules_of(source: Source, **chosen: Any) -> rules_lib.ConversionRules:
  """Returns the rules that a source binds for `ConversionRules`.

  Args:
    source: the source.
    **chosen: rules that take precedence, unless they are None.

  Raises:
    ValueError: if there is no such rule, or a value is not valid.
  """
  rules = arguments_of('ConversionRules', source)
  rules.update((key, rule) for key, rule in chosen.items() if rule is not None)
  known = [rule.name for rule in dataclasses.fields(rules_lib.ConversionRules)]
  for name in rules:
    checks.check_known('ConversionRules', 'rule', name, known)
  return rules_lib.ConversionRules(**rules)


def open_source(source: Source) -> opened_lib.OpenSource:
  """Finds the data set of a source, without reading an episode.

  Raises:
    FileNotFoundError: if there is no such data set on disk.
    OSError: if the file system cannot be reached.
    ValueError: if it has no such split, if an episode would be read twice, or
      if it is not a data set of its format.
  """
  preprocessing = source, *_preprocessing_of(source)
  if source.format is not None:
    options = options_of(source)
    episodes = (
        _call(source.dataset)
        if source.format == _PYTHON
        else readers.load(source.dataset, source.format, **options)
    )
    return opened_lib.FormatSource(episodes, options, *preprocessing)
  try:
    with files.os_errors(source.dataset):
      builder = loading.find_builder(source.dataset, source.data_dir)
  except FileNotFoundError as e:
    hint = files.hint(files.expand(source.dataset)) or checks.did_you_mean(
        source.dataset.partition('/')[0], tfds.list_builders()
    )
    raise FileNotFoundError(f'{e}{hint}') from None
  return opened_lib.RldsSource(builder, *preprocessing)


def _call(name: str) -> tf.data.Dataset:
  """Returns the episodes of a function of Python, `module:function`."""
  try:
    function = pkgutil.resolve_name(name)
  except (AttributeError, ImportError, ValueError) as e:
    raise ValueError(
        f'There is no function {name}, which must be module:function: {e}.'
    ) from e
  episodes = function()
  if isinstance(episodes, tf.data.Dataset):
    return episodes
  return python_dicts.from_episodes(function)


def _file_of(source: Source) -> str:
  return source.config or 'the gin bindings'


def make_sources(
    mixture: files.PathLike,
    data_dir: files.PathLike,
    split: str = 'train',
    *,
    bindings: Sequence[str] = (),
) -> List[Source]:
  """Makes a source for each data set of a mixture.

  Args:
    mixture: the name of a mixture, one of `fields.config_names('mixtures')`, or
      the path of a gin file.
    data_dir: the directory in which each data set has a folder of its name.
    split: a TFDS split, the same for all data sets.
    bindings: gin bindings that take precedence over those of the data sets'
      configs and of the mixture.

  Returns:
    The sources, in the order of the mixture. Each has the mapping and the
    transforms of its config, and those of the mixture after them.

  Raises:
    FileNotFoundError: if there is no such gin file.
    SyntaxError: if the bindings are not in gin's syntax.
    ValueError: if there is no mixture of that name, or no config of one of its
      data sets.
  """
  text, path = configs.read_config(mixture, configs.MIXTURES)
  text = '\n'.join([text, *bindings])
  loaded = configs.object_of(named_lib.Mixture, text, path)
  return [
      make_source(
          os.path.join(files.expand(data_dir), dataset),
          split,
          config=loaded.config_of(dataset),
          bindings=[text],
      )
      for dataset in loaded.weights
  ]


def weights_of(opened: Sequence[opened_lib.OpenSource]) -> Dict[str, float]:
  """Returns the share of the episodes of each source in a mixture, by name.

  A mixture's weight is a factor of the size of its data set, so this is the
  product of the weight and of the number of episodes.

  Args:
    opened: the sources of `make_sources`, opened.
  """
  weights = arguments_of('Mixture', opened[0].source)['weights']
  return {
      name: weight * source.num_episodes
      for (name, weight), source in zip(weights.items(), opened)
  }


def read_mixture(
    mixture: files.PathLike,
    data_dir: files.PathLike,
    split: str = 'train',
    *,
    bindings: Sequence[str] = (),
    **options: Any,
) -> tf.data.Dataset:
  """Draws the episodes of a mixture's data sets by their weights.

  Args:
    mixture: see `make_sources`.
    data_dir: see `make_sources`.
    split: see `make_sources`.
    bindings: see `make_sources`.
    **options: arguments of `datasets.mix_datasets`: subbatch_size, stop_when,
      seed and start.

  Returns:
    A data set of `Mixed` episodes, each mapped and transformed. Each
    data set gives its episodes in their order.

  Raises:
    FileNotFoundError: as `make_sources` does, and if a data set is not on disk.
    SyntaxError: as `make_sources` does.
    ValueError: as `make_sources` does; if a config does not fit its data set;
      or if the data sets do not have one form in the end.
  """
  opened = [
      open_source(source)
      for source in make_sources(mixture, data_dir, split, bindings=bindings)
  ]
  weights = weights_of(opened)
  return mixtures_lib.mix_datasets(
      {name: source.read() for name, source in zip(weights, opened)},
      weights,
      **options,
  )
