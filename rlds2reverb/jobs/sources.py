"""Data sets that a job reads, described by plain values.

A `Source` is a data set, a split and the transforms of every episode, as plain
text. A job stores it in a file, and other processes and machines open it.
`open_source` locates the data set and its files without reading any records:

    source = make_source('/data/cartpole', config='recorded_gym')
    opened = open_source(source)
    opened.num_episodes
    for part in opened.shards:  # one Range per file
      episodes = opened.read(part)
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import os
import pkgutil
from typing import Any

import gin
import tensorflow as tf
import tensorflow_datasets as tfds

from rlds2reverb.datasets import files
from rlds2reverb.datasets import loading
from rlds2reverb.datasets import mixtures
from rlds2reverb.episodes import checks
from rlds2reverb.fields import configs
from rlds2reverb.fields import step_mapping
from rlds2reverb.formats import python_dicts
from rlds2reverb.formats import readers
from rlds2reverb.jobs import opened as opened_lib
from rlds2reverb.trajectories import options as options_lib

# The programs in scripts/ whose flags a config may set, as in
# `convert.sequence_length = 80`. Flags of the command line take precedence.
# Other programs ignore the bindings, so several can share a config.
PROGRAMS = ('convert', 'describe', 'validate', 'serve', 'record_episodes')
for _program in PROGRAMS:
  # Gin needs only the names. The functions are never called.
  gin.register(_program, module='rlds2reverb.programs')(lambda **flags: flags)

_RLDS = 'rlds'
_PYTHON = 'python'  # The format of a Python function that returns episodes.
_FORMATS = (*readers.READERS, _RLDS, _PYTHON)


@dataclasses.dataclass(frozen=True)
class Source:
  """A data set, its split and its transforms; see `make_source`.

  Attributes:
    dataset: the absolute path of a folder or file, a URL, the name of a TFDS
      data set, or `module:function` with the format `python`.
    split: a TFDS split, for example `train`, `train[:10%]` or `train+test`.
    data_dir: the directory in which TFDS looks for a data set by its name.
    config: the name or path of the config, for messages, or None.
    bindings: the text of the config, followed by the `bindings` of
      `make_source`.
    format: the name of the format, or None for RLDS.
  """

  dataset: str
  split: str = 'train'
  data_dir: str | None = None
  config: str | None = None
  bindings: str = ''
  format: str | None = None

  def get_arguments(self, name: str) -> dict[str, Any]:
    """Returns the arguments that the bindings set for a class or program.

    Args:
      name: the name in gin, such as `ConversionRules`, or one of `PROGRAMS`.
    """
    return configs.parse_arguments(name, self.bindings, self._place)

  def get_reader_options(self) -> dict[str, Any]:
    """Returns the options that the bindings set for the format's reader."""
    if self.format not in readers.READERS:
      return {}
    return self.get_arguments(readers.READERS[self.format].__name__)

  def make_rules(self, **overrides: Any) -> options_lib.ConversionRules:
    """Returns the `ConversionRules` of the bindings.

    Args:
      **overrides: rules that take precedence, unless they are None.

    Raises:
      ValueError: if a rule does not exist or its value is not valid.
    """
    rules = self.get_arguments('ConversionRules')
    rules.update((k, rule) for k, rule in overrides.items() if rule is not None)
    fields = dataclasses.fields(options_lib.ConversionRules)
    for name in rules:
      checks.check_known(
          'ConversionRules', 'rule', name, [field.name for field in fields]
      )
    return options_lib.ConversionRules(**rules)

  def parse_preprocessing(self) -> tuple[Any, list[Any]]:
    """Returns the mapping or None, and the transforms and filters."""
    mapping = None
    if self.get_arguments('StepMapping'):
      mapping = configs.parse_dataclass(
          step_mapping.StepMapping, self.bindings, self._place
      )
    transforms = configs.parse_transforms(self.bindings, self._place)
    # The transforms of a mixture come last.
    shared = self.get_arguments('Mixture').get('transforms', ())
    return mapping, [*transforms, *shared]

  @property
  def _place(self) -> str:
    return self.config or 'the gin bindings'


def make_source(
    dataset: files.PathLike,
    split: str = 'train',
    *,
    data_dir: files.PathLike | None = None,
    config: str | None = None,
    bindings: Sequence[str] = (),
    format: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Source:
  """Makes a `Source`.

  Args:
    dataset: a directory or a name, as for `load_episodes`; a file or a folder
      of another format, as for `formats.load`; or a Python function without
      arguments, `module:function`, that returns episodes, as RLDS or as for
      `from_episodes`.
    split: a TFDS split, or several, joined by `+`.
    data_dir: the directory in which TFDS looks for a data set by its name.
    config: the name of a config, or the path of a gin file. The source stores
      its text, so later edits of the file have no effect. It may bind the
      fields of `StepMapping`, which map the episodes, and
      `transform_episodes.transforms`, which run before a `Mixture`'s.
    bindings: more gin bindings, which take precedence over the config. They
      may bind options of a format's reader, as in
      `load_zarr.leave_out = ['img']`.
    format: the name of a format: one of `formats.readers.READERS`, `rlds` or
      `python`. By default it is detected from the files.
    options: options of the format's reader, such as `{'episode_column': 'run'}`
      for `load_parquet`. They take precedence over bindings.

  Returns:
    The source.

  Raises:
    FileNotFoundError: if the config does not exist.
    SyntaxError: if the bindings are not in gin's syntax.
    ValueError: if the config or format does not exist, if its reader has no
      such option, or if a binding is of an unknown name.
  """
  # pylint: disable=redefined-builtin
  dataset = os.fspath(dataset)
  path = files.expand(dataset)
  if format != _PYTHON and files.exists(path):
    dataset = path
    format = format or readers.find_format(path)
  if format is not None:
    checks.check_choice('format', format, _FORMATS)
  lines = [configs.read_config(config)[0]] if config is not None else ['']
  lines += bindings
  reader = readers.READERS.get(format or '')
  # RLDS data has no options.
  prefix, names = '', ()
  if reader is not None:
    prefix, names = reader.__name__, readers.option_names(reader)
  for option, value in (options or {}).items():
    checks.check_known(
        f'The reader of {format or _RLDS}', 'option', option, names
    )
    lines.append(f'{prefix}.{option} = {value!r}')
  source = Source(
      dataset,
      split,
      None if data_dir is None else files.expand(data_dir),
      config,
      '\n'.join(lines).strip(),
      None if format == _RLDS else format,
  )
  source.parse_preprocessing()  # Raises if the bindings are not valid.
  return source


def open_source(source: Source) -> opened_lib.OpenSource:
  """Locates the data set of a source, without reading any records.

  Raises:
    FileNotFoundError: if the data set does not exist.
    OSError: if the file system cannot be reached.
    ValueError: if the split does not exist or repeats an episode, or if the
      data set is not of its format.
  """
  if source.format is not None:
    options = source.get_reader_options()
    episodes = (
        _call(source.dataset)
        if source.format == _PYTHON
        else readers.load(source.dataset, source.format, **options)
    )
    return opened_lib.FormatSource(source, episodes, options)
  try:
    with files.os_errors(source.dataset):
      builder = loading.find_builder(source.dataset, source.data_dir)
  except FileNotFoundError as e:
    hint = files.hint(files.expand(source.dataset)) or checks.did_you_mean(
        source.dataset.partition('/')[0], tfds.list_builders()
    )
    raise FileNotFoundError(f'{e}{hint}') from None
  return opened_lib.RldsSource(source, builder)


def _call(name: str) -> tf.data.Dataset:
  """Returns the episodes of a Python function, `module:function`."""
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


def make_sources(
    mixture: files.PathLike,
    data_dir: files.PathLike,
    split: str = 'train',
    *,
    bindings: Sequence[str] = (),
) -> list[Source]:
  """Makes a source for each data set of a mixture.

  Args:
    mixture: the name of a mixture, one of `fields.config_names('mixtures')`, or
      the path of a gin file.
    data_dir: the directory in which each data set has a folder of its name.
    split: a TFDS split, the same for all data sets.
    bindings: gin bindings that take precedence over the configs of the data
      sets and over the mixture.

  Returns:
    The sources, in the order of the mixture. Each has the mapping and the
    transforms of its config, followed by the transforms of the mixture.

  Raises:
    FileNotFoundError: if the gin file does not exist.
    SyntaxError: if the bindings are not in gin's syntax.
    ValueError: if the mixture, or the config of a data set, does not exist.
  """
  text, path = configs.read_config(mixture, configs.MIXTURES)
  text = '\n'.join([text, *bindings])
  loaded = configs.parse_dataclass(configs.Mixture, text, path)
  return [
      make_source(
          os.path.join(files.expand(data_dir), dataset),
          split,
          config=loaded.get_config(dataset),
          bindings=[text],
      )
      for dataset in loaded.weights
  ]


def compute_weights(
    opened: Sequence[opened_lib.OpenSource],
) -> dict[str, float]:
  """Returns the share of the episodes of each source in a mixture, by name.

  A mixture's weight multiplies the size of a data set, so the share is the
  weight times the number of episodes.

  Args:
    opened: the opened sources of `make_sources`.
  """
  weights = opened[0].source.get_arguments('Mixture')['weights']
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
  """Samples episodes of a mixture's data sets by their weights.

  Args:
    mixture: see `make_sources`.
    data_dir: see `make_sources`.
    split: see `make_sources`.
    bindings: see `make_sources`.
    **options: arguments of `datasets.mix_datasets`: subbatch_size, stop_when,
      seed and start.

  Returns:
    A data set of mapped and transformed `Mixed` episodes. Episodes of a data
    set come in their order.

  Raises:
    FileNotFoundError: as `make_sources` does, and if a data set does not exist.
    SyntaxError: as `make_sources` does.
    ValueError: as `make_sources` does; if a config does not fit its data set;
      or if the data sets do not end up with the same spec.
  """
  sources = make_sources(mixture, data_dir, split, bindings=bindings)
  opened = list(map(open_source, sources))
  weights = compute_weights(opened)
  return mixtures.mix_datasets(
      {name: source.read() for name, source in zip(weights, opened)},
      weights,
      **options,
  )
