"""Runs the code of README.md and of the pages of the manual.

The blocks of a page that are Python (`python`) or for a shell (`sh`) run one
after the other, as a reader would run them: with one namespace for the Python
of the page, and an empty home. A block that cannot run here has a line above it
that says why:

    <!-- not run: there is no such bucket -->

A `text` block right below a block of Python is what that prints, where `...`
stands for anything.

The home of a guide has the episodes that the first example of README.md
records. The cells of the tutorials run when the manual is built.
"""

import ast
import contextlib
import importlib
import inspect
import io
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import tempfile
from typing import Iterator, List, NamedTuple, Optional
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import pytest

import rlds2reverb
from rlds2reverb import datasets

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_BLOCK = re.compile(
    r'^(?P<above>[^\n]*)\n+(?P<indent> *)```(?P<language>\w+)\n'
    r'(?P<code>.*?)\n(?P=indent)```$',
    re.MULTILINE | re.DOTALL,
)
_OUTPUT = re.compile(r'\n+ *```text\n(.*?)\n *```$', re.MULTILINE | re.DOTALL)
# These record the episodes that the other pages read.
_FIRST = ('README.md', 'docs/index.md')
_ERRORS = 'docs/guides/errors.md'
_NOT_RUN = re.compile(r'<!-- not run: (.+) -->')
_LINK = re.compile(r'\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]*))?\)')
_HEADING = re.compile(r'^#+ (.+)$', re.MULTILINE)


class _Block(NamedTuple):
  """A block of code.

  Attributes:
    language: `python` or `sh`.
    code: its lines.
    line: the line of the page on which it begins, from 1.
    output: what the page says that it prints; None if it does not say.
  """

  language: str
  code: str
  line: int
  output: Optional[str]


def _pages() -> List[str]:
  """Returns the paths of the pages, from the top folder."""
  pages = ['CONTRIBUTING.md', 'README.md']
  for folder, _, names in os.walk(os.path.join(_ROOT, 'docs')):
    if '_build' not in folder:
      pages += [
          os.path.relpath(os.path.join(folder, name), _ROOT)
          for name in names
          if name.endswith('.md')
      ]
  return sorted(pages)


def _read(page: str) -> str:
  with open(os.path.join(_ROOT, page), encoding='utf-8') as f:
    return f.read()


def _blocks(page: str) -> Iterator[_Block]:
  """Yields the blocks of a page that are to be run."""
  text = _read(page)
  for match in _BLOCK.finditer(text):
    if match['language'] in ('python', 'sh') and not _NOT_RUN.fullmatch(
        match['above'].strip()
    ):
      line = text.count('\n', 0, match.start('code')) + 1
      output = _OUTPUT.match(text, match.end())
      yield _Block(match['language'], match['code'], line, output and output[1])


def _anchor(heading: str) -> str:
  """Returns the anchor that GitHub gives a heading."""
  return re.sub(r'[^\w\- ]', '', heading.lower()).replace(' ', '-')


@pytest.mark.long
class SnippetsTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = tempfile.TemporaryDirectory()
    cls.addClassCleanup(folder.cleanup)
    cls._cartpole = datasets.record_episodes(
        'CartPole-v1', os.path.join(folder.name, 'cartpole'), 50
    )

  def setUp(self):
    super().setUp()
    home = self.create_tempdir().full_path
    paths = [_ROOT, os.environ.get('PYTHONPATH', '')]
    self.enter_context(
        mock.patch.dict(
            os.environ,
            HOME=home,
            # gym sets it when it is imported, which another page may have done.
            PYGAME_HIDE_SUPPORT_PROMPT='hide',
            PATH=os.pathsep.join(
                [os.path.dirname(sys.executable), os.environ['PATH']]
            ),
            PYTHONPATH=os.pathsep.join(filter(None, paths)),
            TF_CPP_MIN_LOG_LEVEL='2',
        )
    )
    self.addCleanup(os.chdir, os.getcwd())
    os.chdir(home)

  @parameterized.named_parameters(
      (re.sub(r'\W', '_', page), page)
      for page in _pages()
      if any(_blocks(page))
  )
  def test_the_blocks_of_a_page_run(self, page):
    if page not in _FIRST:
      shutil.copytree(self._cartpole, os.path.expanduser('~/data/cartpole'))
    # A file of tests is shown whole, and does not run its tests here.
    namespace = {'__name__': 'page'}
    for block in _blocks(page):
      if block.language == 'python':
        # The lines above make a traceback name the line of the page.
        code = '\n' * (block.line - 1) + block.code
        with contextlib.redirect_stdout(io.StringIO()) as printed:
          exec(compile(code, page, 'exec'), namespace)  # pylint: disable=exec-used
        if block.output is not None:
          expected = re.escape(block.output).replace(re.escape('...'), '.*')
          self.assertRegex(
              printed.getvalue().strip(), re.compile(f'^{expected}$', re.DOTALL)
          )
        continue
      done = subprocess.run(
          ['bash', '-euo', 'pipefail', '-c', block.code],
          stdout=subprocess.PIPE,
          stderr=subprocess.STDOUT,
          text=True,
          check=False,
      )
      self.assertEqual(
          done.returncode, 0, f'{page}, line {block.line}:\n{done.stdout}'
      )


class PagesTest(absltest.TestCase):

  def test_blocks_are_found(self):
    self.assertNotEmpty(list(_blocks('README.md')))
    self.assertIn('docs/guides/errors.md', _pages())

  def test_blocks_run_or_say_why_not(self):
    for page in _pages():
      text = _read(page)
      fences = re.findall(r'^ *```(.*)$', text, re.MULTILINE)
      with self.subTest(page):
        # Every second fence closes a block. Without a language, a block would
        # neither run nor be seen to be left out.
        self.assertNotIn('', fences[::2])
        self.assertSameElements(fences[1::2], [''] if fences else [])

  def test_links_lead_somewhere(self):
    for page in _pages():
      for path, anchor in _LINK.findall(_read(page)):
        with self.subTest(f'{page}: {path}#{anchor}'):
          target = page
          if path:
            target = os.path.normpath(os.path.join(os.path.dirname(page), path))
            self.assertTrue(os.path.exists(os.path.join(_ROOT, target)))
          if anchor:
            self.assertIn(
                anchor,
                [_anchor(text) for text in _HEADING.findall(_read(target))],
            )

  def test_ideas_leads_to_every_page(self):
    linked = {
        os.path.normpath(os.path.join('docs', path))
        for path, _ in _LINK.findall(_read('docs/ideas.md'))
    }
    # The pages of the reference have a page of their own, which leads there.
    pages = {
        page
        for page in _pages()
        if page.startswith('docs/') and not page.startswith('docs/reference/')
    }
    self.assertEqual(
        linked,
        pages - {'docs/ideas.md', 'docs/index.md'}
        | {'docs/reference/index.md'},
    )

  def test_names_are_those_of_the_library(self):
    # All are there for `dir`, and are imported when they are asked for.
    folders = [
        name
        for name in dir(rlds2reverb)
        if inspect.ismodule(getattr(rlds2reverb, name))
        and getattr(rlds2reverb, name).__name__ == f'rlds2reverb.{name}'
    ]
    name = re.compile(
        rf'`(?:rlds2reverb\.)?((?:{"|".join(folders)})(?:\.(?!json)\w+)+)'
    )
    found = 0
    for page in _pages():
      for path in name.findall(_read(page)):
        with self.subTest(f'{page}: {path}'):
          found += 1
          value = rlds2reverb
          for part in path.split('.'):
            self.assertTrue(hasattr(value, part))
            value = getattr(value, part)
    self.assertGreater(found, 50)

  def test_the_reference_has_every_public_name(self):
    shown = set()
    for page in _pages():
      if page.startswith('docs/reference/'):
        shown |= set(re.findall(r'automodule:: (\S+)', _read(page)))
    folders = {
        module.name
        for module in pkgutil.walk_packages(
            rlds2reverb.__path__, 'rlds2reverb.'
        )
        if module.ispkg
    }
    # What users need of these is in the folders above them.
    self.assertEqual(
        folders - shown,
        {
            'rlds2reverb.arrays',
            'rlds2reverb.jobs.descriptions',
            'rlds2reverb.replay.checkpoint',
            'rlds2reverb.replay.server',
            'rlds2reverb.store',
        },
    )
    for module in sorted(shown):
      for name in dir(importlib.import_module(module)):
        value = getattr(sys.modules[module], name)
        if inspect.isfunction(value) or inspect.isclass(value):
          if value.__module__.startswith('rlds2reverb') and name[0] != '_':
            with self.subTest(f'{module}.{name}'):
              # Sphinx leaves out what has no docstring.
              self.assertTrue(inspect.getdoc(value))

  def test_the_reference_has_the_classes_that_it_names(self):
    shown = {}
    for page in _pages():
      for kind, path in re.findall(
          r'auto(module|class)::[ ](\S+)', _read(page)
      ):
        if kind == 'class':
          module, _, name = path.rpartition('.')
          shown[name] = getattr(importlib.import_module(module), name)
          continue
        module = importlib.import_module(path)
        for name in dir(module):
          value = getattr(module, name)
          if inspect.isfunction(value) or inspect.isclass(value):
            shown[name] = value
    named = set()
    for value in shown.values():
      if value.__module__.startswith('rlds2reverb'):
        documented = [value]
        if inspect.isclass(value):
          documented += [
              method
              for name, method in inspect.getmembers(value, inspect.isfunction)
              if name[0] != '_'
          ]
        for text in filter(None, map(inspect.getdoc, documented)):
          named |= set(re.findall(r'`(?:[\w.]+\.)?([A-Z]\w+)', text))
    classes = set()
    for folder, _, names in os.walk(os.path.join(_ROOT, 'rlds2reverb')):
      for name in names:
        if name.endswith('.py'):
          path = os.path.relpath(os.path.join(folder, name), _ROOT)
          classes |= {
              node.name
              for node in ast.parse(_read(path)).body
              if isinstance(node, ast.ClassDef) and node.name[0] != '_'
          }
    self.assertNotEmpty(named & set(shown))
    # `SampleInfo` is Reverb's. Users neither make nor look into the others.
    hidden = {'Attempt', 'Episodes', 'Fault', 'ItemIndex', 'Progress'}
    hidden |= {'FrameRing', 'RowLayout', 'WorkerDiedError'}
    self.assertEmpty((named & classes) - set(shown) - hidden - {'SampleInfo'})

  def test_the_reference_has_what_pages_import(self):
    imported = set()
    shown = set()
    for page in _pages():
      text = _read(page)
      shown |= set(re.findall(r'automodule:: (\S+)', text))
      if page.startswith('docs/'):
        for module, names in re.findall(
            r'^from (rlds2reverb[\w.]*) import ([\w, ]+)', text, re.MULTILINE
        ):
          imported |= {f'{module}.{name.strip()}' for name in names.split(',')}
    self.assertNotEmpty(imported)
    self.assertEmpty(imported - shown)

  def test_messages_are_those_of_the_library(self):
    strings = set()
    for folder, _, names in os.walk(os.path.join(_ROOT, 'rlds2reverb')):
      for name in names:
        if name.endswith('.py'):
          path = os.path.relpath(os.path.join(folder, name), _ROOT)
          for node in ast.walk(ast.parse(_read(path))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
              strings.add(node.value)
            elif isinstance(node, ast.ClassDef):
              strings.add(node.name)
    # The first column of the tables.
    rows = re.findall(r'^\| (`.+?) \|', _read(_ERRORS), re.MULTILINE)
    messages = [
        message for row in rows for message in re.findall('`(.+?)`', row)
    ]
    self.assertNotEmpty(messages)
    for message in messages:
      with self.subTest(message):
        self.assertTrue(any(message in string for string in strings))


if __name__ == '__main__':
  absltest.main()
