"""Flags that several programs in scripts/ share.

A program defines the flags for the source of its episodes, and its own flags:

    flags_lib.define_source_flags()
    flags.DEFINE_integer('sample', None, 'How many episodes to read.')

After they are parsed, `sources_from_flags` returns the sources.
"""

from __future__ import annotations

from collections.abc import Sequence
import os
from typing import Any

from absl import app
from absl import flags
from etils import epy

from rlds2reverb.jobs import usage

with epy.lazy_imports():  # So that `--help` is fast.
  from rlds2reverb.datasets import files
  from rlds2reverb.episodes import checks
  from rlds2reverb.episodes import windows as windows_lib
  from rlds2reverb.fields import configs
  from rlds2reverb.jobs import mixtures
  from rlds2reverb.jobs import sources as sources_lib
  from rlds2reverb.replay import items as items_lib
  from rlds2reverb.trajectories import options as options_lib

# `--help` lists flags under the program that defines them.
flags.disclaim_key_flags()

_MAX_INTEGER = 2**31 - 1  # Sums of such lengths fit into 64 bits.
# The fields of `ConversionRules` that are flags: their values and help.
_RULES = {
    'terminal_discount': (
        ['step', 'transition'],
        'Where the discount of a terminal episode is 0; trainers need'
        ' transition.',
    ),
    'nan': (
        ['report', 'invalid'],
        'Whether NaN makes an episode invalid, or is only reported.',
    ),
    'validation': (
        ['strict', 'tf_agents'],
        'Which episodes are valid; see ConversionRules.',
    ),
}
# The flags of `define_table_flags`.
TABLE_FLAGS = (
    'table',
    'sequence_length',
    'stride_length',
    'end_of_episode',
    'priority',
    'allow_empty',
)
# The flags of `define_source_flags` that may be repeated.
_SOURCE_FLAGS = {
    'dataset': (
        None,
        'An RLDS directory or the name of a TFDS data set; a file or folder of'
        ' another format; or a Python function module:function that returns'
        ' episodes.',
    ),
    'split': ('train', 'A TFDS split, or several, joined by +.'),
    'config': (
        None,
        'The name of a config, or the path of a gin file, which maps the fields'
        ' and transforms the episodes.',
    ),
    'format': (
        None,
        'The name of a format: one of formats.readers.READERS, rlds or python.'
        ' By default it is detected from the files.',
    ),
}


def define_source_flags() -> None:
  """Defines the flags of `sources_from_flags`."""
  for name, (default, text) in _SOURCE_FLAGS.items():
    if name != 'dataset':
      text += ' If repeated, one for each --dataset.'
    flags.DEFINE_multi_string(name, default, text)
  flags.DEFINE_string(
      'data_dir',
      None,
      'The directory in which TFDS looks for a data set by its name.',
  )
  _define_reader_flags()


def define_single_source_flags() -> None:
  """Defines the flags of `sources_from_flags` for one local data set."""
  for name, (default, text) in _SOURCE_FLAGS.items():
    flags.DEFINE_string(name, default, text)
  _define_reader_flags()


def _define_reader_flags() -> None:
  """Defines `--gin_binding` and the flags of `reader_options`."""
  flags.DEFINE_multi_string(
      'gin_binding',
      [],
      'A gin binding, which takes precedence over --config. It may bind an'
      " option of a format's reader, as in load_zarr.exclude = ['img'].",
  )
  flags.DEFINE_list(
      'column_names',
      None,
      'The names of columns of flat arrays and parquet in the data, by their'
      ' expected names: observations=obs_state,actions=act. For a missing'
      ' column: rewards=None.',
  )
  flags.DEFINE_string(
      'episode_column',
      None,
      'The column with the same value in all rows of an episode. It becomes no'
      ' step field. By default a column such as episode_id also ends episodes,'
      ' and is a step field; an id may then recur after a flag ends its'
      ' episode.',
  )
  flags.DEFINE_string(
      'step_column',
      None,
      'The column by which the rows of each episode are sorted. By default a'
      ' column such as step, timestep or t is used if the rows of an episode'
      ' are not adjacent, as with parallel environments.',
  )
  flags.DEFINE_integer(
      'max_episode_steps',
      None,
      'The maximum number of rows of an episode, for arrays without timeouts.',
  )


def reader_options() -> dict[str, Any]:
  """Returns the options of a format's reader that the flags give.

  Raises:
    UsageError: if `--column_names` is not a list of pairs.
  """
  options: dict[str, Any] = {}
  for text in flags.FLAGS.column_names or ():
    name, sign, column = (part.strip() for part in text.partition('='))
    if not name or not sign:
      raise app.UsageError(
          '--column_names must be pairs such as observations=obs_state,actions='
          f'act, but has {text!r}.'
      )
    options.setdefault('column_names', {})[name] = (
        None if column in ('', 'None') else column
    )
  for name in 'episode_column', 'step_column', 'max_episode_steps':
    if flags.FLAGS[name].value is not None:
      options[name] = flags.FLAGS[name].value
  return options


def sources_from_flags(
    program: str, mixture: str | None = None
) -> list[sources_lib.Source]:
  """Returns the sources that the flags describe.

  Other flags get the values that configs or `--gin_binding` bind for the
  program, as in `convert.num_workers = 2`, unless the command line has them.

  Args:
    program: the name of the program, one of `sources.PROGRAMS`.
    mixture: the name of a mixture or a gin file, whose data sets are in
      `--data_dir`; by default `--dataset` names the data sets.

  Raises:
    UsageError: if a flag is missing, its number of values differs from the
      number of data sets, or it does not go with a mixture; or if a config does
      not exist or a binding is not valid.
    OSError: if a file system cannot be reached.
  """
  values = flags.FLAGS
  data_dir = values.data_dir and files.user_path(values.data_dir)
  bindings = values.gin_binding
  if mixture is None:
    usage.require('dataset')
    columns = [_repeat(name, 'dataset') for name in _SOURCE_FLAGS]
    options = reader_options()
    with usage.wrong_usage():
      sources = [
          sources_lib.make_source(
              user_data_set(dataset),
              split,
              data_dir=data_dir,
              config=user_config(config),
              bindings=bindings,
              format=format_name,
              options=options,
          )
          for dataset, split, config, format_name in zip(*columns)
      ]
  elif values.dataset or values.config or values.format:
    raise app.UsageError(
        '--mixture sets the data sets and configs. Remove --dataset, --config'
        ' and --format.'
    )
  elif data_dir is None:
    raise app.UsageError(
        '--mixture needs --data_dir, in which each data set has a folder.'
    )
  elif len(values.split) > 1:
    raise app.UsageError('--mixture takes one --split for all data sets.')
  else:
    with usage.wrong_usage():
      sources = mixtures.make_sources(
          config_path(mixture), data_dir, *values.split, bindings=bindings
      )
  for source in sources:
    _set_flags(program, source)
  return sources


def source_or_checkpoint(
    program: str, several: str, ignored: Sequence[str]
) -> sources_lib.Source | str:
  """Returns the source of `--dataset`, or the path of `--checkpoint_dir`.

  Args:
    program: the name of the program, one of `sources.PROGRAMS`.
    several: the error message for several data sets.
    ignored: the flags that have no effect with a checkpoint.

  Raises:
    UsageError: as `sources_from_flags` does; if there are several data sets, or
      both flags.
  """
  values = flags.FLAGS
  if values.checkpoint_dir is None:
    source, *more_sources = sources_from_flags(program)
    if more_sources:
      raise app.UsageError(several)
    return source
  if values.dataset:
    raise app.UsageError('Pass --dataset or --checkpoint_dir, not both.')
  usage.refuse_ignored(ignored, 'with --checkpoint_dir')
  return files.user_path(values.checkpoint_dir)


def take_bound_flags(program: str) -> None:
  """Sets flags to the values that configs or `--gin_binding` bind.

  It is for programs that read no data set, and define these flags themselves.
  Flags of the command line take precedence.

  Args:
    program: the name of the program, one of `sources.PROGRAMS`.

  Raises:
    UsageError: if a config does not exist, a binding is not valid, or it is of
      an unknown flag.
  """
  with usage.wrong_usage():
    texts = [
        configs.read_config(config_path(config))[0]
        for config in flags.FLAGS.config or []
    ]
  bindings = '\n'.join([*texts, *flags.FLAGS.gin_binding])
  _set_flags(program, sources_lib.Source(dataset='', bindings=bindings))


def define_file_format(name: str, more: str = '') -> None:
  """Defines a flag for the file format of RLDS output."""
  flags.DEFINE_enum(
      name,
      'tfrecord',
      ['tfrecord', 'array_record'],
      f'The format of the files{more}: array_record is what data_source of TFDS'
      ' and Grain read.',
  )


def define_rule_flags(*names: str) -> None:
  """Defines flags for fields of `ConversionRules`."""
  for name in names:
    values, text = _RULES[name]
    text += ' By default the config decides, or else the first value is used.'
    flags.DEFINE_enum(name, None, values, text)


def rules_from_flags(source: sources_lib.Source) -> options_lib.ConversionRules:
  """Returns the rules of a source's bindings, overridden by flags."""
  values = {n: flags.FLAGS[n].value for n in _RULES if n in flags.FLAGS}
  with usage.wrong_usage():
    return source.make_rules(**values)


def define_table_flags(*ends: str) -> None:
  """Defines the flags of `tables_from_flags`.

  Args:
    *ends: the values of `--end_of_episode`.
  """
  flags.DEFINE_multi_string(
      'table',
      ['experience'],
      'The name of a table. Repeat it for several tables. The next flags are'
      ' for all tables, or repeated for each.',
  )
  flags.DEFINE_multi_integer(
      'sequence_length',
      [2],
      'Frames of an item; 0 for complete episodes.',
      lower_bound=0,
      upper_bound=_MAX_INTEGER,
  )
  flags.DEFINE_multi_integer(
      'stride_length',
      [1],
      'Frames between the starts of two items.',
      lower_bound=1,
      upper_bound=_MAX_INTEGER,
  )
  flags.DEFINE_multi_enum(
      'end_of_episode',
      ['drop'],
      ends,
      'How to handle last frames that do not fill an item; see Windows.',
  )
  flags.DEFINE_multi_float('priority', [1.0], 'The priority of every item.')
  flags.DEFINE_bool(
      'allow_empty', False, 'Whether a table may end up without items.'
  )


def tables_from_flags() -> list[items_lib.TableItems]:
  """Returns the items of each table.

  Raises:
    UsageError: if a value is not valid, a flag has another number of values
      than there are tables, or complete episodes have a stride or an end.
  """
  names = flags.FLAGS.table
  columns = [_repeat(flag, 'table') for flag in TABLE_FLAGS[1:5]]
  tables = []
  for name, length, stride, end, priority in zip(names, *columns):
    if not length and (stride, end) != (1, 'drop'):
      raise app.UsageError(
          'With --sequence_length=0 items are complete episodes, which have no'
          ' --stride_length and no --end_of_episode.'
      )
    with usage.wrong_usage():
      windows = windows_lib.Windows(length, stride, end) if length else None
      tables.append(items_lib.TableItems(name, windows, priority=priority))
  if len(set(names)) < len(names):
    raise app.UsageError(f'The tables must differ, but --table is {names}.')
  return tables


def user_data_set(name: str) -> str:
  """Returns the path of an existing or explicit local path, or the name."""
  path = files.user_path(name)
  if files.exists(path) or name.startswith(('.', '~', os.sep)):
    return path
  return name


def user_config(name: str | None) -> str | None:
  """Returns the path of a gin file of the user, or the name of a config."""
  return name and config_path(name)


def config_path(name: str) -> str:
  """Returns the path of a gin file of the user, or the name of a config."""
  return files.user_path(name) if name.endswith('.gin') else name


def _repeat(name: str, owner: str) -> Sequence[Any]:
  """Returns a value of a flag for each value of another flag.

  Args:
    name: the name of the flag, with at most one value or as many as the other.
    owner: the name of the other flag.
  """
  values = flags.FLAGS[name].value or [None]
  count = len(flags.FLAGS[owner].value)
  if len(values) not in (1, count):
    raise app.UsageError(
        f'There are {len(values)} values of --{name}, but {count} of --{owner}.'
        f' Pass it once, or once for each --{owner}.'
    )
  return values if len(values) == count else [*values] * count


def _set_flags(program: str, source: sources_lib.Source) -> None:
  """Sets flags to the values that a source binds, unless the user set them."""
  values = flags.FLAGS
  with usage.wrong_usage():
    bound = source.get_arguments(program)
  for name, value in bound.items():
    if name not in values:
      raise app.UsageError(
          f'{program}.{name} is bound, but {program} has no flag'
          f' --{name}.{checks.did_you_mean(name, values)}'
      )
    flag = values[name]
    if flag.present:
      continue
    is_list = isinstance(value, (list, tuple))
    try:  # Validates the value like one of the command line.
      texts = list(map(str, value if is_list else [value]))
      flag.parse(texts if isinstance(flag, flags.MultiFlag) else texts[0])
    except (flags.IllegalFlagValueError, TypeError, ValueError) as e:
      message = f'{program}.{name} is bound to {value!r}: {e}.'
      raise app.UsageError(message) from e
    usage.check_value(f'{program}.{name}', flag.value)
