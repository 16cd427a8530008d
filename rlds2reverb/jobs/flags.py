"""The flags that the programs in scripts/ share.

A program defines the flags for the source of its episodes, and its own:

    flags_lib.define_source_flags()

    def main():
      sources = flags_lib.sources_from_flags('describe')
      ...

    if __name__ == '__main__':
      usage.run(main)
"""

from __future__ import annotations

import os
from typing import (
    Any,
    List,
    Sequence,
)

from absl import app
from absl import flags
from etils import epy

from rlds2reverb.jobs import usage

with epy.lazy_imports():  # After the flags: `--help` is fast.
  from rlds2reverb.datasets import files
  from rlds2reverb.episodes import checks
  from rlds2reverb.episodes import windows as windows_lib
  from rlds2reverb.fields import configs
  from rlds2reverb.jobs import mixtures
  from rlds2reverb.jobs import sources as sources_lib
  from rlds2reverb.replay import items as items_lib

# The flags belong to the program that defines them, in `--help` too.
flags.disclaim_key_flags()

# The largest count or length, so that sums of them fit into 64 bits.
_MAX_INTEGER = 2**31 - 1


_SOURCE_FLAGS = {
    'dataset': (
        'The directory of a data set, or its name in TFDS; or a file or folder'
        ' of another format. May be repeated.'
    ),
    'format': (
        'The format, if the files of --dataset do not tell: rlds, lerobot,'
        ' robomimic, minari, ...; or python, for a --dataset=module:function.'
        ' If repeated, one for each --dataset.'
    ),
    'split': (
        'The split: train, train[:10%], train+test. The default is train; if'
        ' repeated, one for each --dataset.'
    ),
    'config': (
        'The name of a config, or a gin file, that maps the fields of the data'
        ' set, and may set flags. If repeated, one for each --dataset.'
    ),
    'gin_binding': (
        'A binding that takes precedence over those of --config, such as'
        ' "StepMapping.discount = None". May be repeated.'
    ),
}


def define_source_flags() -> None:
  """Defines the flags that `sources_from_flags` reads."""
  for name, text in _SOURCE_FLAGS.items():
    flags.DEFINE_multi_string(name, [] if name == 'gin_binding' else None, text)
  flags.DEFINE_string(
      'data_dir', None, 'Where TFDS looks for a data set by its name.'
  )


def sources_from_flags(program: str) -> List[sources_lib.Source]:
  """Returns the sources that the flags describe.

  Flags that the command line does not have get the values that the configs or
  `--gin_binding` bind for the program, as in `convert.num_workers = 2`.

  Args:
    program: the name of the program, one of `sources.PROGRAMS`.

  Raises:
    UsageError: if a flag is missing, or its values are not as many as the data
      sets; or if there is no such config, or a binding is not valid.
    OSError: if a file system cannot be reached.
  """
  values = flags.FLAGS
  if not values.dataset:
    raise app.UsageError('Flag --dataset must have a value.')
  splits = _one_each('split', 'dataset', ['train'])
  configs = _one_each('config', 'dataset', [None])
  formats = _one_each('format', 'dataset', [None])
  sources = []
  for dataset, split, config, form in zip(
      values.dataset, splits, configs, formats
  ):
    if config is not None and config.endswith('.gin'):
      config = files.user_path(config)
    with usage.wrong_usage():
      source = sources_lib.make_source(
          user_data_set(dataset),
          split,
          data_dir=values.data_dir and files.user_path(values.data_dir),
          config=config,
          bindings=values.gin_binding,
          format=form,
      )
    _take_flags(program, source)
    sources.append(source)
  return sources


def mixture_from_flags(program: str, mixture: str) -> List[sources_lib.Source]:
  """Returns the sources of a mixture, whose data sets are in `--data_dir`.

  Flags get values as in `sources_from_flags`.

  Args:
    program: the name of the program, one of `sources.PROGRAMS`.
    mixture: the name of a mixture, or a gin file of the user.

  Raises:
    UsageError: if there is no `--data_dir`, or a flag that a mixture takes the
      place of; if there is no such mixture, or a binding is not valid.
    OSError: if a file system cannot be reached.
  """
  values = flags.FLAGS
  if values.dataset or values.config or values.format:
    raise app.UsageError(
        '--mixture says which data sets and configs there are. Leave out'
        ' --dataset, --config and --format.'
    )
  if values.data_dir is None:
    raise app.UsageError(
        '--mixture needs --data_dir, in which each data set has a folder.'
    )
  if values.split and len(values.split) > 1:
    raise app.UsageError('--mixture takes one --split for all data sets.')
  if mixture.endswith('.gin'):
    mixture = files.user_path(mixture)
  with usage.wrong_usage():
    sources = mixtures.make_sources(
        mixture,
        files.user_path(values.data_dir),
        (values.split or ['train'])[0],
        bindings=values.gin_binding,
    )
  for source in sources:
    _take_flags(program, source)
  return sources


def define_gin_flags() -> None:
  """Defines the flags of a program that reads no data set.

  `define_source_flags` defines them, too.
  """
  flags.DEFINE_multi_string(
      'config', None, 'A gin file that sets flags. May be repeated.'
  )
  flags.DEFINE_multi_string(
      'gin_binding',
      [],
      'A binding that sets a flag and takes precedence over --config, such as'
      ' "record_episodes.seed = 1". May be repeated.',
  )


def take_bound_flags(program: str) -> None:
  """Gives flags the values that the configs or `--gin_binding` bind.

  Only a program without `sources_from_flags`, which does the same, calls this.
  Flags of the command line take precedence.

  Args:
    program: the name of the program, one of `sources.PROGRAMS`.

  Raises:
    UsageError: if there is no such config, a binding is not valid, or the
      program has no flag of a name that is bound.
  """
  values = flags.FLAGS
  texts = []
  with usage.wrong_usage():
    for config in values.config or []:
      if config.endswith('.gin'):
        config = files.user_path(config)
      texts.append(configs.read_config(config)[0])
  bindings = '\n'.join([*texts, *values.gin_binding])
  _take_flags(program, sources_lib.Source(dataset='', bindings=bindings))


def define_table_flags(*ends: str) -> None:
  """Defines the flags that `tables_from_flags` reads.

  Args:
    *ends: the ends of windows that items can have.
  """
  flags.DEFINE_multi_string(
      'table',
      ['experience'],
      "The table's name. If this and the next flags are repeated, there are"
      ' several tables: each flag once, or once for each table.',
  )
  flags.DEFINE_multi_integer(
      'sequence_length',
      [2],
      'Frames of an item; 0 for whole episodes.',
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
      'What becomes of last frames that do not fill an item; see Windows.',
  )
  flags.DEFINE_multi_float('priority', [1.0], 'The priority of every item.')
  flags.DEFINE_bool(
      'allow_empty', False, 'Whether a table may end without an item.'
  )


# The names of the flags that `define_table_flags` defines.
TABLE_FLAGS = (
    'table',
    'sequence_length',
    'stride_length',
    'end_of_episode',
    'priority',
    'allow_empty',
)


def tables_from_flags() -> List[items_lib.TableItems]:
  """Returns which items go into which table.

  Raises:
    UsageError: if a value is not valid, the values are not as many as the
      tables, or whole episodes have a stride or an end.
  """
  values = flags.FLAGS
  names = values.table
  each = [_one_each(flag, 'table') for flag in TABLE_FLAGS[1:5]]
  tables = []
  for name, length, stride, end, priority in zip(names, *each):
    if not length and (stride, end) != (1, 'drop'):
      raise app.UsageError(
          'With --sequence_length=0 items are whole episodes, which have no'
          ' --stride_length and no --end_of_episode.'
      )
    with usage.wrong_usage():
      windows = windows_lib.Windows(length, stride, end) if length else None
      tables.append(items_lib.TableItems(name, windows, priority=priority))
  if len(set(names)) < len(names):
    raise app.UsageError(f'The tables must differ, but --table is {names}.')
  return tables


def user_data_set(name: str) -> str:
  """Returns the path of a file or directory of the user, or the name."""
  path = files.user_path(name)
  if files.exists(path) or name.startswith(('.', '~', os.sep)):
    return path
  return name


def _one_each(name: str, of: str, default: Sequence[Any] = ()) -> Sequence[Any]:
  """Returns values of a flag, one for each value of another flag.

  Args:
    name: the name of the flag, which has one value, or as many as the other.
    of: the name of the other flag.
    default: the value of a flag that was not given.
  """
  values = flags.FLAGS[name].value or default
  count = len(flags.FLAGS[of].value)
  if len(values) not in (1, count):
    raise app.UsageError(
        f'--{name} is there {len(values)} times, and --{of} {count} times. Pass'
        f' it once, or once for each --{of}.'
    )
  return values if len(values) == count else [*values] * count


def _take_flags(program: str, source: sources_lib.Source) -> None:
  """Gives flags the values that a source binds, unless the user gave some."""
  values = flags.FLAGS
  with usage.wrong_usage():
    bound = sources_lib.arguments_of(program, source)
  for name, value in bound.items():
    if name not in values:
      raise app.UsageError(
          f'{program}.{name} is bound, but {program} has no flag'
          f' --{name}.{checks.did_you_mean(name, values)}'
      )
    flag = values[name]
    if not flag.present:
      # This checks the value as if it had been typed.
      try:
        flag.parse(
            [flag.parser.parse(str(each)) for each in _listed(value)]
            if isinstance(flag, flags.MultiFlag)
            else str(value)
        )
      except (flags.IllegalFlagValueError, TypeError, ValueError) as e:
        raise app.UsageError(
            f'{program}.{name} is bound to {value!r}: {e}.'
        ) from e
      usage.check_value(f'{program}.{name}', flag.value)


def _listed(value: Any) -> Sequence[Any]:
  return value if isinstance(value, (list, tuple)) else [value]
