"""The flags that the programs in scripts/ share.

A program defines the flags for the source of its episodes, and its own:

    flags_lib.define_source_flags()
    flags_lib.define('jobs.describing.describe', 'sample', lower_bound=1)

`sources_from_flags` returns the sources, when these are parsed.
"""

from __future__ import annotations

import ast
import os
import re
from typing import Any, List, Optional, Sequence, Union

from absl import app
from absl import flags
from etils import epy

from rlds2reverb.jobs import usage

with epy.lazy_imports():  # After the flags: `--help` is fast.
  from rlds2reverb.datasets import files
  from rlds2reverb.episodes import checks
  from rlds2reverb.episodes import windows as windows_lib
  from rlds2reverb.fields import configs
  from rlds2reverb.jobs import sources as sources_lib
  from rlds2reverb.replay import items as items_lib
  from rlds2reverb.trajectories import rules as rules_lib

# The flags belong to the program that defines them, in `--help` too.
flags.disclaim_key_flags()

# The largest count or length, so that sums of them fit into 64 bits.
_MAX_INTEGER = 2**31 - 1
# The fields of `ConversionRules` that are flags, with their values.
_RULES = {
    'terminal_discount': (
        ['step', 'transition'],
        'Where the discount of a terminal episode is 0; trainers need'
        ' transition.',
    ),
    'nan': (
        ['report', 'invalid'],
        'Whether NaN makes an episode invalid, or passes.',
    ),
    'validation': (
        ['strict', 'tf_agents'],
        'Which episodes are valid; see ConversionRules.',
    ),
}
# The names of the flags that `define_table_flags` defines.
TABLE_FLAGS = (
    'table',
    'sequence_length',
    'stride_length',
    'end_of_episode',
    'priority',
    'allow_empty',
)


def define(
    function: str,
    *names: str,
    repeated: bool = False,
    more: str = '',
    **options: Any,
) -> None:
  """Defines flags for arguments of a function.

  Their types, their defaults and their help are those of its signature and of
  its docstring. These are read from its file, without an import of it.

  Args:
    function: its path in rlds2reverb, such as `jobs.describing.describe`.
    *names: the names of the arguments; or `flag=argument`, where a flag has
      another name.
    repeated: whether the flags may be repeated.
    more: what the help says besides.
    **options: what absl's functions take besides, such as `lower_bound`.
  """
  *module, name = function.split('.')
  path = os.path.join(os.path.dirname(__file__), '..', *module)
  with open(f'{path}.py', encoding='utf-8') as f:
    body = ast.parse(f.read()).body
  found: Any
  (found,) = [node for node in body if getattr(node, 'name', '') == name]
  arguments = [*found.args.args, *found.args.kwonlyargs]
  # As the first arguments may have none.
  defaults = [*found.args.defaults, *found.args.kw_defaults][::-1]
  defaults = dict(zip([each.arg for each in arguments[::-1]], defaults))
  types = {each.arg: ast.unparse(each.annotation) for each in arguments}
  texts = re.findall(
      r'^  (\w+): (.*(?:\n    .*)*)', ast.get_docstring(found), re.MULTILINE
  )
  for name in names:
    flag, _, argument = name.rpartition('=')
    (kind,) = re.findall(r'\b(?:int|float|bool)\b', types[argument]) or ['str']
    kind = {'int': 'integer', 'str': 'string'}.get(kind, kind)
    default = defaults.get(argument) and ast.literal_eval(defaults[argument])
    if repeated and default is not None:
      default = [*default] if isinstance(default, tuple) else [default]
    text = ' '.join(dict(texts)[argument].replace('`', '').split())
    getattr(flags, f'DEFINE_{"multi_" * repeated}{kind}')(
        flag or argument,
        default,
        text[0].upper() + text[1:] + more,
        **options,
    )


def define_source_flags() -> None:
  """Defines the flags that `sources_from_flags` reads."""
  function = 'jobs.sources.make_source'
  define(function, 'dataset', 'gin_binding=bindings', repeated=True)
  each = ' If repeated, one for each --dataset.'
  define(function, 'split', 'config', 'format', repeated=True, more=each)
  define(function, 'data_dir')


def sources_from_flags(
    program: str, mixture: Optional[str] = None
) -> List[sources_lib.Source]:
  """Returns the sources that the flags describe.

  Other flags get the values that configs or `--gin_binding` bind for the
  program, as in `convert.num_workers = 2`, unless the command line has them.

  Args:
    program: the name of the program, one of `sources.PROGRAMS`.
    mixture: the name of a mixture, or a gin file of the user, with the data
      sets and the configs in `--data_dir`; by default `--dataset` has them.

  Raises:
    UsageError: if a flag is missing, or its values are not as many as the data
      sets; if a mixture takes its place; or if there is no such config, or a
      binding is not valid.
    OSError: if a file system cannot be reached.
  """
  values = flags.FLAGS
  data_dir = values.data_dir and files.user_path(values.data_dir)
  bindings = values.gin_binding
  if mixture is None:
    usage.require('dataset')
    names = 'dataset', 'split', 'config', 'format'
    each = [_one_each(name, 'dataset') for name in names]
    with usage.wrong_usage():
      sources = [
          sources_lib.make_source(
              user_data_set(dataset),
              split,
              data_dir=data_dir,
              config=user_config(config),
              bindings=bindings,
              format=form,
          )
          for dataset, split, config, form in zip(*each)
      ]
  elif values.dataset or values.config or values.format:
    raise app.UsageError(
        '--mixture says which data sets and configs there are. Leave out'
        ' --dataset, --config and --format.'
    )
  elif data_dir is None:
    raise app.UsageError(
        '--mixture needs --data_dir, in which each data set has a folder.'
    )
  elif len(values.split) > 1:
    raise app.UsageError('--mixture takes one --split for all data sets.')
  else:
    with usage.wrong_usage():
      sources = sources_lib.make_sources(
          user_config(mixture), data_dir, *values.split, bindings=bindings
      )
  for source in sources:
    _take_flags(program, source)
  return sources


def source_or_checkpoint(
    program: str, several: str, ignored: Sequence[str]
) -> Union[sources_lib.Source, str]:
  """Returns the source of `--dataset`, or the path of `--checkpoint_dir`.

  Args:
    program: the name of the program, one of `sources.PROGRAMS`.
    several: what to say where there are several data sets.
    ignored: the flags that have no effect with a checkpoint.

  Raises:
    UsageError: as `sources_from_flags` does; if there are both, or several.
  """
  values = flags.FLAGS
  if values.checkpoint_dir is None:
    source, *others = sources_from_flags(program)
    if others:
      raise app.UsageError(several)
    return source
  if values.dataset:
    raise app.UsageError('Pass --dataset or --checkpoint_dir, not both.')
  usage.refuse_ignored(ignored, 'with --checkpoint_dir')
  return files.user_path(values.checkpoint_dir)


def take_bound_flags(program: str) -> None:
  """Gives flags the values that the configs or `--gin_binding` bind.

  Only a program that reads no data set, and defines these flags itself, calls
  this. Flags of the command line take precedence.

  Args:
    program: the name of the program, one of `sources.PROGRAMS`.

  Raises:
    UsageError: if there is no such config, a binding is not valid, or the
      program has no flag of a name that is bound.
  """
  with usage.wrong_usage():
    texts = [
        configs.read_config(user_config(config))[0]
        for config in flags.FLAGS.config or []
    ]
  bindings = '\n'.join([*texts, *flags.FLAGS.gin_binding])
  _take_flags(program, sources_lib.Source(dataset='', bindings=bindings))


def define_strings(**texts: str) -> None:
  """Defines flags of text, without a default, by their help."""
  for name, text in texts.items():
    flags.DEFINE_string(name, None, text)


def define_rule_flags(*names: str) -> None:
  """Defines flags for fields of `ConversionRules`."""
  for name in names:
    values, text = _RULES[name]
    text += ' The default is that of the config, or the first.'
    flags.DEFINE_enum(name, None, values, text)


def rules_from_flags(source: sources_lib.Source) -> rules_lib.ConversionRules:
  """Returns the rules of a source's config, changed by the flags there are."""
  values = {n: flags.FLAGS[n].value for n in _RULES if n in flags.FLAGS}
  with usage.wrong_usage():
    return sources_lib.rules_of(source, **values)


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
  text = 'Frames of an item; 0 for whole episodes.'
  flags.DEFINE_multi_integer('sequence_length', [2], text, 0, _MAX_INTEGER)
  text = 'Frames between the starts of two items.'
  flags.DEFINE_multi_integer('stride_length', [1], text, 1, _MAX_INTEGER)
  text = 'What becomes of last frames that do not fill an item; see Windows.'
  flags.DEFINE_multi_enum('end_of_episode', ['drop'], ends, text)
  flags.DEFINE_multi_float('priority', [1.0], 'The priority of every item.')
  text = 'Whether a table may end without an item.'
  flags.DEFINE_bool('allow_empty', False, text)


def tables_from_flags() -> List[items_lib.TableItems]:
  """Returns which items go into which table.

  Raises:
    UsageError: if a value is not valid, the values are not as many as the
      tables, or whole episodes have a stride or an end.
  """
  names = flags.FLAGS.table
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


def user_config(name: Optional[str]) -> Optional[str]:
  """Returns the path of a gin file of the user, or the name of a config."""
  return files.user_path(name) if name and name.endswith('.gin') else name


def _one_each(name: str, of: str) -> Sequence[Any]:
  """Returns values of a flag, one for each value of another flag.

  Args:
    name: the name of the flag, which has one value or none, or as many as the
      other.
    of: the name of the other flag.
  """
  values = flags.FLAGS[name].value or [None]
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
    if flag.present:
      continue
    several = isinstance(value, (list, tuple))
    try:  # This checks the value as if it had been typed.
      texts = list(map(str, value if several else [value]))
      flag.parse(texts if isinstance(flag, flags.MultiFlag) else texts[0])
    except (flags.IllegalFlagValueError, TypeError, ValueError) as e:
      message = f'{program}.{name} is bound to {value!r}: {e}.'
      raise app.UsageError(message) from e
    usage.check_value(f'{program}.{name}', flag.value)
