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
from typing import Any, Dict, List, Optional, Sequence

import gin
import tensorflow_datasets as tfds

from rlds2reverb.datasets import files
from rlds2reverb.datasets import loading
from rlds2reverb.episodes import checks
from rlds2reverb.fields import bindings as bindings_lib
from rlds2reverb.fields import configs
from rlds2reverb.fields import step_mapping
from rlds2reverb.formats import readers
from rlds2reverb.jobs import format_source
from rlds2reverb.jobs import opened as opened_lib
from rlds2reverb.trajectories import rules as rules_lib

# The programs in scripts/ whose flags a config may set, as in
# `convert.sequence_length = 80`. A program uses such a value unless the command
# line has the flag. Other programs ignore it, so one file can serve several.
PROGRAMS = (
    'convert',
    'describe',
    'validate',
    'serve',
    'record_episodes',
)
for _program in PROGRAMS:
  # Gin needs only the names; nothing calls these functions.
  gin.register(_program, module='rlds2reverb.programs')(lambda **flags: flags)


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
  if format != format_source.PYTHON and files.exists(path):
    dataset = path
    format = format or readers.find_format(path)
  if format is not None:
    checks.check_choice('format', format, format_source.FORMATS)
  text = ''
  if config is not None:
    text, _ = configs.read_config(config)
  source = Source(
      dataset,
      split,
      None if data_dir is None else files.expand(data_dir),
      config,
      '\n'.join([text, *bindings]).strip(),
      None if format == format_source.RLDS else format,
  )
  mapping_of(source)
  transforms_of(source)
  return source


def mapping_of(source: Source) -> Optional[step_mapping.StepMapping]:
  """Returns the mapping of a source, or None if its data is RLDS already."""
  if not arguments_of('StepMapping', source):
    return None
  return configs.object_of(
      step_mapping.StepMapping, source.bindings, _file_of(source)
  )


def transforms_of(source: Source) -> List[Any]:
  """Returns the transforms and filters of a source, its mixture's last."""
  own = configs.transforms_of(source.bindings, _file_of(source))
  shared = arguments_of('Mixture', source).get('transforms', ())
  return [*own, *shared]


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
  known = [
      field.name for field in dataclasses.fields(rules_lib.ConversionRules)
  ]
  for name in rules:
    if name not in known:
      raise ValueError(
          f'ConversionRules has no {name}.{checks.did_you_mean(name, known)}'
      )
  return rules_lib.ConversionRules(**rules)


def open_source(source: Source) -> opened_lib.OpenSource:
  """Finds the data set of a source, without reading an episode.

  Raises:
    FileNotFoundError: if there is no such data set on disk.
    OSError: if the file system cannot be reached.
    ValueError: if it has no such split, if an episode would be read twice, or
      if it is not a data set of its format.
  """
  preprocessing = source, mapping_of(source), transforms_of(source)
  if source.format is not None:
    return format_source.FormatSource(options_of(source), *preprocessing)
  try:
    with files.os_errors(source.dataset):
      builder = loading.find_builder(source.dataset, source.data_dir)
  except FileNotFoundError as e:
    raise FileNotFoundError(f'{e}{_similar_data_sets(source)}') from None
  return opened_lib.RldsSource(builder, *preprocessing)


def _similar_data_sets(source: Source) -> str:
  """Returns a sentence that suggests a data set, or an empty string."""
  return files.hint(files.expand(source.dataset)) or checks.did_you_mean(
      source.dataset.partition('/')[0], tfds.list_builders()
  )


def _file_of(source: Source) -> str:
  return source.config or 'the gin bindings'
