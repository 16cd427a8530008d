r"""Generates the tables in the pages of the manual, from the code and configs.

    python docs/generate.py           # writes them
    python docs/generate.py --check   # fails if a page is stale

A page has the place of a table between two comments:

    <!-- generated: names of rlds2reverb.datasets -->
    <!-- end -->

Each page of docs/reference has one after each block of Sphinx directives, with
the public names that the block documents, their arguments and their summaries,
and the public methods of classes: GitHub shows the pages without running
Sphinx.
"""

from collections.abc import Container
from collections.abc import Iterator
import importlib
import inspect
import pathlib
import re
import sys
from typing import Any

_DOCS = pathlib.Path(__file__).absolute().parent
_CONFIGS = _DOCS.parent / 'configs'
_REFERENCE = _DOCS / 'reference'
# Replay buffers have the methods of TF-Agents' own.
_TF_AGENTS = 'tf_agents.replay_buffers.'
_SPECIAL_METHODS = ('__call__', '__getitem__', '__iter__', '__len__')
_BLOCK = re.compile(
    r'(```\{eval-rst\}\n(.*?)```\n)(?:\n<!-- generated: names.*?-->\n.*?'
    r'<!-- end -->\n)?',
    re.DOTALL,
)
_TABLE = re.compile(
    r'(<!-- generated: data sets -->\n).*?(<!-- end -->)', re.DOTALL
)
_DIRECTIVE = re.compile(
    r'^\.\. auto(\w+):: (\S+)\n((?:   :.*\n)*)', re.MULTILINE
)
# What the comments of a config say of its data set.
_FACTS = ('Also called', 'Location', 'Size')


def _public_names(module: Any, options: str) -> Iterator[str]:
  """Yields the names that `automodule` documents."""
  if ':no-members:' in options:
    return
  only = re.search(r':members: (.+)', options)
  excluded = re.search(r':exclude-members: (.+)', options)
  skipped = excluded[1].split(', ') if excluded else []
  names = only[1].split(', ') if only else sorted(dir(module), key=str.lower)
  for name in names:
    value = getattr(module, name)
    is_ours = getattr(value, '__module__', '').startswith('rlds2reverb')
    is_there = ':imported-members:' in options or (
        getattr(value, '__module__', '') == module.__name__
    )
    is_item = inspect.isclass(value) or inspect.isroutine(value)
    if name[0] != '_' and name not in skipped and is_ours and is_item:
      if is_there:
        yield name


def _find(path: str) -> Any:
  """Returns the class or function of a dotted path."""
  module, _, name = path.rpartition('.')
  return getattr(importlib.import_module(module), name)


def _arguments(value: Any) -> str:
  """Returns the arguments of a call, without types and defaults."""
  # Nobody calls an enum or an error.
  if hasattr(value, '__members__') or (
      inspect.isclass(value) and issubclass(value, BaseException)
  ):
    return ''
  try:
    parameters = inspect.signature(value).parameters.values()
  except (TypeError, ValueError):
    return ''
  texts: list[str] = []
  for one in parameters:
    if one.name == 'self':
      continue
    if one.kind is one.KEYWORD_ONLY and not any(t[0] == '*' for t in texts):
      texts.append('*')
    star = {one.VAR_POSITIONAL: '*', one.VAR_KEYWORD: '**'}.get(one.kind, '')
    is_optional = one.default is not one.empty
    texts.append(f'{star}{one.name}{"=..." if is_optional else ""}')
  return f'({", ".join(texts)})'


def _summary(value: Any) -> str:
  summary = inspect.cleandoc(value.__doc__ or '').split('\n\n')[0]
  return ' '.join(summary.split())


def _methods(cls: Any, documented: Container[Any]) -> Iterator[str]:
  """Yields a line for each public method of a class.

  Args:
    cls: the class.
    documented: the classes that have entries of their own, in which their
      methods are.
  """
  seen = set()
  bases: list[Any] = []
  for owner in cls.__mro__:
    if any(issubclass(base, owner) for base in bases):
      continue
    if owner is not cls and owner in documented:
      bases.append(owner)
      continue
    if not owner.__module__.startswith(('rlds2reverb.', _TF_AGENTS)):
      continue
    for name, value in vars(owner).items():
      is_static = isinstance(value, (staticmethod, classmethod))
      function = inspect.unwrap(value.__func__ if is_static else value)
      is_method = inspect.isfunction(function)
      if not is_method and not isinstance(function, property):
        continue
      if name in seen or (name[0] == '_' and name not in _SPECIAL_METHODS):
        continue
      # Without a docstring it does what the method of a base class does.
      if not function.__doc__:
        continue
      seen.add(name)
      arguments = _arguments(function) if is_method else ''
      if isinstance(value, classmethod):
        arguments = re.sub(r'\(cls(, )?', '(', arguments)
      yield f'  - `{name}{arguments}`: {_summary(function)}'
  if bases:
    names = ' and '.join(f'`{base.__name__}`' for base in bases)
    yield f'  - and the methods of {names}'


def _entry(name: str, value: Any, documented: Container[Any]) -> str:
  line = f'- `{name}{_arguments(value)}`: {_summary(value)}'
  if not inspect.isclass(value) or issubclass(value, BaseException):
    return line
  return '\n'.join([line, *_methods(value, documented)])


def _entries(directives: str) -> Iterator[tuple[str, Any]]:
  """Yields the names that a block of directives documents, and their values."""
  for kind, path, options in _DIRECTIVE.findall(directives):
    if kind != 'module':
      yield path.rpartition('.')[2], _find(path)
      continue
    module = importlib.import_module(path)
    for name in _public_names(module, options):
      yield name, getattr(module, name)


def _documented() -> set[Any]:
  """Returns all classes that the reference has entries of."""
  return {
      value
      for path in _REFERENCE.glob('*.md')
      for match in _BLOCK.finditer(path.read_text('utf-8'))
      for _, value in _entries(match[2])
      if inspect.isclass(value)
  }


def _with_names(match: 're.Match[str]', documented: Container[Any]) -> str:
  """Returns a block of directives with the names that it documents."""
  block, directives = match[1], match[2]
  titles = [
      path
      for kind, path, _ in _DIRECTIVE.findall(directives)
      if kind == 'module'
  ]
  lines = [
      _entry(name, value, documented) for name, value in _entries(directives)
  ]
  if not lines:
    return block
  title = f' of {titles[0]}' if titles else ''
  text = '\n'.join(dict.fromkeys(lines))
  return (
      f'{block}\n<!-- generated: names{title} -->\n\n{text}\n\n<!-- end -->\n'
  )


def _load_command(name: str, location: str) -> str:
  """Returns the command that loads a data set, in Markdown.

  Args:
    name: the name of the config.
    location: where the data set is, as the config says: `Open X-Embodiment` and
      a version, a URL, `TFDS` and a name, or a format and what its reader
      takes; '' if it has no public place in RLDS.
  """
  kind, _, place = location.partition(' ')
  if not location or kind.startswith('gs://'):
    data = f"datasets.load_episodes('{location or f'~/data/{name}'}')"
  elif kind == 'Open':
    version = place.rpartition(' ')[2]
    data = f"datasets.load_episodes('gs://gresearch/robotics/{name}/{version}')"
  elif kind == 'TFDS':
    data = f"datasets.load_episodes('{place}')"
  else:
    data = f"formats.load('{place}', '{kind}')"
  command = f"fields.map_fields({data}, '{name}')"
  if kind == 'TFDS':
    prepare = f"tfds.builder('{place}').download_and_prepare()"
    command = f'{prepare}; episodes = {command}'
  return f'`{command}`'


def _data_sets() -> str:
  """Returns the table of the data sets that have a config."""
  rows = [
      '| data set | also called | description | size | load it |',
      '|-|-|-|-|-|',
  ]
  for path in sorted(_CONFIGS.glob('*.gin')):
    text, name = path.read_text('utf-8'), path.stem
    facts = {
        key: ' '.join(re.findall(rf'^# {key}: (.*)', text, re.MULTILINE))
        for key in _FACTS
    }
    comment: list[str] = []
    for line in text.splitlines():
      if not line.startswith('# ') or line[2:].startswith(_FACTS):
        break
      comment.append(line[2:])
    sentence = re.split(r'[.:](?:\s|$)', ' '.join(comment))[0]
    sentence = sentence.replace('|', r'\|')
    cells = (
        f'`{name}`',
        facts['Also called'].replace(' ', ', '),
        sentence,
        facts['Size'] or 'unknown',
        _load_command(name, facts['Location']),
    )
    rows.append(f'| {" | ".join(cells)} |')
  return '\n'.join(rows)


def generate() -> Iterator[tuple[pathlib.Path, str, str]]:
  """Yields the pages with their texts, before and after."""
  documented = _documented()
  for path in sorted(_DOCS.rglob('*.md')):
    if '_build' in path.parts:
      continue
    old = path.read_text('utf-8')
    new = _BLOCK.sub(lambda match: _with_names(match, documented), old)
    if _TABLE.search(new):
      table = _data_sets()
      new = _TABLE.sub(lambda m, t=table: f'{m[1]}\n{t}\n\n{m[2]}', new)
    yield path, old, new


def main(*arguments: str) -> int:
  stale = [(path, new) for path, old, new in generate() if new != old]
  for path, new in stale:
    if '--check' in arguments:
      print(f'{path} is stale: run `python docs/generate.py`.', file=sys.stderr)
    else:
      path.write_text(new, 'utf-8')
  return int(bool(stale) and '--check' in arguments)


if __name__ == '__main__':
  sys.path.insert(0, str(_DOCS.parent))
  sys.exit(main(*sys.argv[1:]))
