"""The flags that the programs in scripts/ share, and how a program runs.

A program defines the flags of where its episodes come from, and its own, and
ends with `run`:

    flags_lib.define_source_flags()

    def main():
      sources = flags_lib.sources_from_flags('describe')
      ...

    if __name__ == '__main__':
      flags_lib.run(main)
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from typing import (
    Any,
    Callable,
    List,
    NoReturn,
    Optional,
    Sequence,
    Tuple,
    Type,
)

from absl import app
from absl import flags
from absl import logging
from etils import epy

from rlds2reverb.jobs import quiet

with epy.lazy_imports():  # After the flags are parsed: `--help` is at once.
  from rlds2reverb.datasets import files
  from rlds2reverb.episodes import checks
  from rlds2reverb.episodes import windows as windows_lib
  from rlds2reverb.fields import named_mappings
  from rlds2reverb.jobs import mixtures
  from rlds2reverb.jobs import sources as sources_lib

# The flags are those of the program that has them defined, in `--help` too.
flags.disclaim_key_flags()

# What a count or a length may be, so that sums of them fit into 64 bits.
MAX_INTEGER = 2**31 - 1
# The exit codes of a program, besides 0: something is wrong with the data, a
# disk or a server; or with the command line, whatever the data is.
_FAILED = 1
_WRONG_USAGE = 2


def define_source_flags() -> None:
  """Defines the flags that `sources_from_flags` reads."""
  flags.DEFINE_multi_string(
      'dataset',
      None,
      'The directory of a data set, or its name in TFDS; or a file or folder of'
      ' another format. May be repeated.',
  )
  flags.DEFINE_multi_string(
      'format',
      None,
      'The format, if the files of --dataset do not tell: rlds, lerobot,'
      ' robomimic, minari, ...; or python, for a --dataset=module:function. If'
      ' repeated, one for each --dataset.',
  )
  flags.DEFINE_multi_string(
      'split',
      None,
      'The split: train, train[:10%], train+test. The default is train; if'
      ' repeated, one for each --dataset.',
  )
  flags.DEFINE_string(
      'data_dir', None, 'Where TFDS looks for a data set by its name.'
  )
  flags.DEFINE_multi_string(
      'config',
      None,
      'The name of a config, or a gin file, that maps the fields of the data'
      ' set, and may set flags. If repeated, one for each --dataset.',
  )
  flags.DEFINE_multi_string(
      'gin_binding',
      [],
      'A binding that takes precedence over those of --config, such as'
      ' "StepMapping.discount = None". May be repeated.',
  )


def sources_from_flags(program: str) -> List[sources_lib.Source]:
  """Returns the sources that the flags describe.

  Flags that the command line does not have get the values that the configs or
  `--gin_binding` bind for the program, as in `convert.num_workers = 2`.

  Args:
    program: the name of the program, one of `programs.PROGRAMS`.

  Raises:
    UsageError: if a flag is missing, or its values are not as many as the data
      sets; or if there is no such config, or a binding is not valid.
    OSError: if a file system cannot be reached.
  """
  values = flags.FLAGS
  if not values.dataset:
    raise app.UsageError('Flag --dataset must have a value.')
  splits = _one_each('split', values.dataset, values.split or ['train'])
  configs = _one_each('config', values.dataset, values.config or [None])
  formats = _one_each('format', values.dataset, values.format or [None])
  sources = []
  for dataset, split, config, form in zip(
      values.dataset, splits, configs, formats
  ):
    if config is not None and config.endswith('.gin'):
      config = files.user_path(config)
    with wrong_usage():
      source = sources_lib.make_source(
          _user_data_set(dataset),
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
    program: the name of the program, one of `programs.PROGRAMS`.
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
  with wrong_usage():
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

  For a program without `sources_from_flags`, which does it otherwise. What the
  command line has takes precedence.

  Args:
    program: the name of the program, one of `programs.PROGRAMS`.

  Raises:
    UsageError: if there is no such config, a binding is not valid, or the
      program has no flag of a name that is bound.
  """
  values = flags.FLAGS
  texts = []
  with wrong_usage():
    for config in values.config or []:
      if config.endswith('.gin'):
        config = files.user_path(config)
      with files.open_text(named_mappings.find_config(config)) as f:
        texts.append(f.read())
  bindings = '\n'.join([*texts, *values.gin_binding])
  _take_flags(program, sources_lib.Source(dataset='', bindings=bindings))


def windows_from_flags() -> Optional[windows_lib.Windows]:
  """Returns the windows of items, or None for whole episodes.

  They are described by `--sequence_length`, which is 0 for whole episodes,
  `--stride_length` and `--end_of_episode`.

  Raises:
    UsageError: if whole episodes have a stride or an end.
  """
  values = flags.FLAGS
  if values.sequence_length:
    return windows_lib.Windows(
        values.sequence_length, values.stride_length, values.end_of_episode
    )
  if values.stride_length != 1 or values.end_of_episode != 'drop':
    raise app.UsageError(
        'With --sequence_length=0 items are whole episodes, which have no'
        ' --stride_length and no --end_of_episode.'
    )
  return None


def run(
    main: Callable[..., Optional[int]],
    errors: Callable[[], Tuple[Type[Exception], ...]] = tuple,
    *,
    takes_more: Callable[[], bool] = lambda: False,
) -> None:
  """Runs a program; errors that its user can mend become one message.

  The exit code is 2 if the command line or a config is wrong, whatever the data
  is, and 1 after any other error.

  Args:
    main: the program, which returns its exit code, or None for 0.
    errors: returns the classes of such errors, besides OSError, SyntaxError,
      ValueError and, for what is not installed, ModuleNotFoundError.
    takes_more: says, when the flags of the program are known, whether arguments
      that are none of them are passed to `main`. By default they are refused.
  """

  def parse(argv):
    try:
      rest = flags.FLAGS(argv, known_only=True)
      if not takes_more():
        flags.FLAGS.unparse_flags()
        rest = flags.FLAGS(argv)
        if len(rest) > 1:
          raise app.UsageError(f'Unknown arguments: {" ".join(rest[1:])}.')
      for name, flag in flags.FLAGS.flag_values_dict().items():
        if flags.FLAGS[name].present:
          _check_value(f'--{name}', flag)
      return rest
    except (app.UsageError, flags.Error) as e:
      _refuse(e)
    except SystemExit:
      sys.exit(0)  # It was `--help`, after which absl would exit with 1.

  def call(argv):
    quiet.quiet_logs()
    try:
      sys.exit(main(*argv[1:]))
    except (app.UsageError, flags.Error) as e:
      _refuse(e)
    except (
        ModuleNotFoundError,
        OSError,
        SyntaxError,
        ValueError,
        *errors(),
    ) as e:
      logging.debug('The error was raised here:', exc_info=True)
      print(e, file=sys.stderr)
      sys.exit(_FAILED)

  app.run(call, flags_parser=parse)


@contextlib.contextmanager
def wrong_usage():
  """Raises what is wrong with values of flags and configs as such errors."""
  try:
    yield
  except (FileNotFoundError, SyntaxError, ValueError) as e:
    raise app.UsageError(str(e)) from e


def refuse_ignored(names: Sequence[str], reason: str) -> None:
  """Raises a UsageError if the command line has flags that would be ignored.

  What a config binds for them may serve another program, or another call.

  Args:
    names: the names of the flags.
    reason: why they are ignored.
  """
  for name in names:
    if flags.FLAGS[name].present:
      raise app.UsageError(f'--{name} has no effect {reason}. Leave it out.')


def _check_value(name: str, value: Any) -> None:
  """Raises a UsageError if no flag can have this value."""
  for one in value if isinstance(value, list) else [value]:
    if isinstance(one, str) and not one:
      raise app.UsageError(f'{name} must not be empty.')
    if isinstance(one, float) and not math.isfinite(one):
      raise app.UsageError(f'{name} must be a finite number, but is {one}.')
    if isinstance(one, int) and abs(one) >= 1 << 63:
      raise app.UsageError(f'{name} must be below 2**63, but is {one}.')


def _refuse(error: Exception) -> NoReturn:
  """Ends a program that was called wrongly, with one line."""
  message = ' '.join(str(error).split())
  if isinstance(error, flags.UnrecognizedFlagError):
    name = error.flagname
    hint = checks.did_you_mean(name, flags.FLAGS, prefix='--')
    message = f'There is no flag --{name}.{hint}'
  if not message.endswith(('.', '?')):
    message += '.'
  print(f'{message} See --help.', file=sys.stderr)
  sys.exit(_WRONG_USAGE)


def _user_data_set(name: str) -> str:
  """Returns the path of a file or directory of the user, or the name."""
  path = files.user_path(name)
  if files.exists(path) or name.startswith(('.', '~', os.sep)):
    return path
  return name


def _one_each(name, datasets, values):
  if len(values) == 1:
    return values * len(datasets)
  if len(values) != len(datasets):
    raise app.UsageError(
        f'--{name} is there {len(values)} times, and --dataset'
        f' {len(datasets)} times. Pass it once, or once for each data set.'
    )
  return values


def _take_flags(program: str, source: sources_lib.Source) -> None:
  """Gives flags the values that a source binds, unless the user gave some."""
  values = flags.FLAGS
  with wrong_usage():
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
            [flag.parser.parse(str(each)) for each in value]
            if isinstance(flag, flags.MultiFlag)
            else str(value)
        )
      except (flags.IllegalFlagValueError, TypeError, ValueError) as e:
        raise app.UsageError(
            f'{program}.{name} is bound to {value!r}: {e}.'
        ) from e
      _check_value(f'{program}.{name}', flag.value)
