"""Checks the pages of the manual and README.md without running them.

`snippets_test` runs their blocks. Here links and names must lead somewhere,
calls have parameters that exist, and messages are those of the library.
"""

import ast
from collections.abc import Iterator
import importlib
import inspect
import os
import pkgutil
import re
import sys
import textwrap
from typing import Any

from absl.testing import absltest

import rlds2reverb
from tests import pages

_ERRORS = 'docs/guides/errors.md'
_LINK = re.compile(r'\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]*))?\)')
_HEADING = re.compile(r'^#+ (.+)$', re.MULTILINE)
_CODE = re.compile(r'(?<!`)`([^`\n]+)`(?!`)')
# Indented lines of a docstring, like code blocks in Markdown.
_INDENTED = re.compile(r'(?:^(?: {4,}.*|)\n?)+', re.MULTILINE)
# Its tables show the parameters in order, and not examples of values.
_DROP_IN = 'tf_agents.md'


def _anchor(heading: str) -> str:
  """Returns the anchor that GitHub gives a heading."""
  return re.sub(r'[^\w\- ]', '', heading.lower()).replace(' ', '-')


def _rooms() -> list[Any]:
  """Returns the public packages of the library."""
  # `dir` lists all of them, and each is imported on first use.
  return [
      room
      for name in dir(rlds2reverb)
      if inspect.ismodule(room := getattr(rlds2reverb, name))
      and room.__name__ == f'rlds2reverb.{name}'
  ]


def _public() -> dict[str, Any]:
  """Returns the public functions and classes by their names."""
  return {
      name: getattr(module, name)
      for module in (*_rooms(), rlds2reverb)
      for name in dir(module)
      if callable(getattr(module, name)) and name[0] != '_'
  }


def _nodes_of_library() -> Iterator[Any]:
  """Yields all nodes of the syntax trees of the library."""
  for folder, _, names in os.walk(os.path.join(pages.ROOT, 'rlds2reverb')):
    for name in names:
      if name.endswith('.py'):
        path = os.path.relpath(os.path.join(folder, name), pages.ROOT)
        yield from ast.walk(ast.parse(pages.read(path)))


def _documented(value: Any) -> str:
  """Returns the docstrings of a function, or of a class and its methods."""
  values = [value]
  if inspect.isclass(value):
    values += [
        method
        for name, method in inspect.getmembers(value, inspect.isfunction)
        if name[0] != '_'
    ]
  return '\n'.join(inspect.getdoc(one) or '' for one in values)


def _calls(code: str, mode: str = 'eval') -> list[ast.Call]:
  """Returns the calls in code; none if it is no Python."""
  try:
    # `f(x=, y=)` is how the manual names parameters.
    tree = ast.parse(re.sub(r'=(?=[,)])', '=0', code), mode=mode)
  except SyntaxError:  # It is text or a drawing, or leaves something out.
    return []
  return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def _parameters(call: ast.Call, public: dict[str, Any]) -> list[str]:
  """Returns the parameters of what is called, if it is ours and has names."""
  name = getattr(call.func, 'attr', getattr(call.func, 'id', None))
  if name not in public:
    return []
  parameters = inspect.signature(public[name]).parameters
  if any(p.kind == p.VAR_KEYWORD for p in parameters.values()):
    return []
  return list(parameters)


class PagesTest(absltest.TestCase):

  def test_blocks_run_or_say_why_not(self):
    self.assertNotEmpty(list(pages.blocks('README.md')))
    for page in pages.paths():
      fences = re.findall(r'^ *```(.*)$', pages.read(page), re.MULTILINE)
      with self.subTest(page):
        # Every second fence closes a block. Without a language, a block would
        # neither run nor be seen to be left out.
        self.assertNotIn('', fences[::2])
        self.assertSameElements(fences[1::2], [''] if fences else [])

  def test_links_resolve(self):
    for page in pages.paths():
      for path, anchor in _LINK.findall(pages.read(page)):
        with self.subTest(f'{page}: {path}#{anchor}'):
          target = page
          if path:
            target = os.path.normpath(os.path.join(os.path.dirname(page), path))
            self.assertTrue(os.path.exists(os.path.join(pages.ROOT, target)))
          if anchor:
            headings = _HEADING.findall(pages.read(target))
            self.assertIn(anchor, map(_anchor, headings))

  def test_ideas_leads_to_every_page(self):
    linked = {
        os.path.normpath(os.path.join('docs', path))
        for path, _ in _LINK.findall(pages.read('docs/ideas.md'))
    }
    # The pages of the reference have a separate page with links to them.
    expected = {
        page
        for page in pages.paths()
        if page.startswith('docs/') and not page.startswith('docs/reference/')
    } - {'docs/ideas.md', 'docs/index.md'}
    self.assertEqual(linked, expected | {'docs/reference/index.md'})

  def test_names_are_those_of_the_library(self):
    folders = '|'.join(room.__name__.split('.')[1] for room in _rooms())
    name = re.compile(rf'`(?:rlds2reverb\.)?((?:{folders})(?:\.(?!json)\w+)+)')
    found = 0
    for page in pages.paths():
      for path in name.findall(pages.read(page)):
        with self.subTest(f'{page}: {path}'):
          found += 1
          value = rlds2reverb
          for part in path.split('.'):
            self.assertTrue(hasattr(value, part))
            value = getattr(value, part)
    self.assertGreater(found, 50)

  def test_calls_have_the_parameters_of_the_library(self):
    public, invalid, num_calls = _public(), [], 0
    places = [
        (f'{page}:{number}', line, call)
        for page in pages.paths()
        for number, line in enumerate(pages.read(page).splitlines(), 1)
        for code in _CODE.findall(line)
        for call in _calls(code)
    ]
    places += [
        (name, '', call)
        for name, value in public.items()
        for block in _INDENTED.findall(_documented(value))
        for call in _calls(textwrap.dedent(block), 'exec')
    ]
    for place, line, call in places:
      parameters = _parameters(call, public)
      num_calls += bool(parameters)
      named = [keyword.arg for keyword in call.keywords if keyword.arg]
      if _DROP_IN in place and line.startswith('|'):
        given = [a.id for a in call.args if isinstance(a, ast.Name)]
        named += given * (given != parameters[: len(given)])
      if parameters and set(named) - set(parameters):
        invalid.append(f'{place}: {ast.unparse(call)}: it has {parameters}')
    self.assertGreater(num_calls, 80)
    self.assertEmpty(invalid, '\n' + '\n'.join(invalid))

  def test_messages_on_error_page_exist_in_the_library(self):
    strings = set()
    for node in _nodes_of_library():
      if isinstance(node, ast.Constant) and isinstance(node.value, str):
        strings.add(node.value)
      elif isinstance(node, ast.ClassDef):
        strings.add(node.name)
    # The first column of the tables.
    rows = re.findall(r'^\| (`.+?) \|', pages.read(_ERRORS), re.MULTILINE)
    messages = [text for row in rows for text in re.findall('`(.+?)`', row)]
    self.assertNotEmpty(messages)
    for message in messages:
      with self.subTest(message):
        self.assertTrue(any(message in string for string in strings))


class ReferenceTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.modules, self.classes = set(), set()
    for page in pages.paths():
      for kind, path in re.findall(
          r'auto(module|class)::[ ](\S+)', pages.read(page)
      ):
        (self.modules if kind == 'module' else self.classes).add(path)
    self.shown = {}
    for path in self.classes:
      module, _, name = path.rpartition('.')
      self.shown[name] = getattr(importlib.import_module(module), name)
    for module in sorted(self.modules):
      importlib.import_module(module)
      for name in dir(sys.modules[module]):
        value = getattr(sys.modules[module], name)
        if inspect.isfunction(value) or inspect.isclass(value):
          self.shown[name] = value

  def test_reference_has_every_public_name(self):
    walked = pkgutil.walk_packages(rlds2reverb.__path__, 'rlds2reverb.')
    folders = {module.name for module in walked if module.ispkg}
    # What users need of these is in the folders above them.
    self.assertEqual(
        folders - self.modules,
        {
            'rlds2reverb.arrays',
            'rlds2reverb.jobs.descriptions',
            'rlds2reverb.replay.checkpoint',
            'rlds2reverb.replay.server',
            'rlds2reverb.store',
        },
    )
    for name, value in self.shown.items():
      if value.__module__.startswith('rlds2reverb') and name[0] != '_':
        # Sphinx omits members without a docstring.
        self.assertTrue(inspect.getdoc(value), name)

  def test_reference_has_the_classes_it_mentions(self):
    named = set()
    for value in self.shown.values():
      if value.__module__.startswith('rlds2reverb'):
        found = re.findall(r'`(?:[\w.]+\.)?([A-Z]\w+)', _documented(value))
        named.update(found)
    classes = {
        node.name
        for node in _nodes_of_library()
        if isinstance(node, ast.ClassDef) and node.name[0] != '_'
    }
    self.assertNotEmpty(named & set(self.shown))
    # `SampleInfo` is Reverb's. Users neither make nor look into the others.
    hidden = {'Episodes', 'Fault', 'ItemIndex', 'JobRunner', 'Progress'}
    hidden |= {'FrameRing', 'RowLayout', 'WorkerDiedError', 'SampleInfo'}
    self.assertEmpty((named & classes) - set(self.shown) - hidden)

  def test_reference_has_the_names_that_pages_import(self):
    imported = {
        f'{module}.{name.strip()}'
        for page in pages.paths()
        if page.startswith('docs/')
        for module, names in re.findall(
            r'^from (rlds2reverb[\w.]*) import ([\w, ]+)',
            pages.read(page),
            re.MULTILINE,
        )
        for name in names.split(',')
    }
    self.assertNotEmpty(imported)
    self.assertEmpty(imported - self.modules)


if __name__ == '__main__':
  absltest.main()
