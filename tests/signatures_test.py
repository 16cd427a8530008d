"""Tests that examples call functions by the names of their parameters."""

import ast
import inspect
import os
import re
import textwrap
from typing import Any, Dict, Iterator, List, Tuple

from absl.testing import absltest

import rlds2reverb
from rlds2reverb import agents
from rlds2reverb import datasets
from rlds2reverb import fields
from rlds2reverb import indexing
from rlds2reverb import jobs
from rlds2reverb import random_access
from rlds2reverb import replay
from rlds2reverb import statistics
from rlds2reverb import tokens
from rlds2reverb import training
from rlds2reverb import trajectories
from rlds2reverb import transforms
from rlds2reverb import windows

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_CODE = re.compile(r'(?<!`)`([^`\n]+)`(?!`)')
# What is indented in a docstring, as Markdown indents code.
_BLOCK = re.compile(r'(?:^(?: {4,}.*|)\n?)+', re.MULTILINE)
# Their tables show the parameters in order, and not examples of values.
_DROP_IN = ('tf_agents.md',)
_MODULES = (
    rlds2reverb,
    agents,
    datasets,
    fields,
    indexing,
    jobs,
    random_access,
    replay,
    statistics,
    tokens,
    training,
    trajectories,
    transforms,
    windows,
)


def _public() -> Dict[str, Any]:
  """Returns the public functions and classes by their names."""
  found = {}
  for module in _MODULES:
    for name in dir(module):  # Some are imported when they are asked for.
      value = getattr(module, name)
      if callable(value) and not name.startswith('_'):
        found[name] = value
  return found


def _pages() -> Iterator[Tuple[str, str]]:
  """Yields the name of every page of the manual, and its text."""
  yield 'README.md', os.path.join(_ROOT, 'README.md')
  for folder, _, names in os.walk(os.path.join(_ROOT, 'docs')):
    for name in names:
      if name.endswith('.md') and '_build' not in folder:
        yield name, os.path.join(folder, name)


def _calls(line: str) -> Iterator[ast.Call]:
  """Yields the calls in a line that are set as code."""
  for code in _CODE.findall(line):
    try:
      # `f(x=, y=)` is how the manual names parameters.
      tree = ast.parse(re.sub(r'=(?=[,)])', '=0', code), mode='eval')
    except SyntaxError:  # It is text, or leaves something out.
      continue
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _calls_in_docstring(value: Any) -> Iterator[ast.Call]:
  """Yields the calls in the examples of a function, or a class's methods."""
  documented = [value]
  if inspect.isclass(value):
    documented += [m for _, m in inspect.getmembers(value, inspect.isfunction)]
  for block in _BLOCK.findall('\n'.join(map(_docstring, documented))):
    try:
      tree = ast.parse(textwrap.dedent(block))
    except SyntaxError:  # A drawing.
      continue
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _docstring(value: Any) -> str:
  return inspect.getdoc(value) or ''


def _parameters(call: ast.Call, public: Dict[str, Any]) -> List[str]:
  """Returns the parameters of what is called, if it is ours and has names."""
  name = getattr(call.func, 'attr', getattr(call.func, 'id', None))
  if name not in public:
    return []
  parameters = inspect.signature(public[name]).parameters
  if any(p.kind == p.VAR_KEYWORD for p in parameters.values()):
    return []
  return list(parameters)


class SignaturesTest(absltest.TestCase):

  def test_the_manual(self):
    public = _public()
    wrong = []
    num_calls = 0
    for page, path in _pages():
      with open(path, encoding='utf-8') as f:
        lines = f.read().splitlines()
      for number, line in enumerate(lines, 1):
        for call in _calls(line):
          parameters = _parameters(call, public)
          if not parameters:
            continue
          num_calls += 1
          named = [keyword.arg for keyword in call.keywords if keyword.arg]
          if page in _DROP_IN and line.startswith('|'):
            given = [a.id for a in call.args if isinstance(a, ast.Name)]
            if given != parameters[: len(given)]:
              named += given
          for argument in named:
            if argument not in parameters:
              wrong.append(
                  f'{page}:{number}: {ast.unparse(call)}: no {argument}; it has'
                  f' {", ".join(parameters)}'
              )
    self.assertGreater(num_calls, 40)
    self.assertEmpty(wrong, '\n' + '\n'.join(wrong))

  def test_the_examples_of_docstrings(self):
    public = _public()
    wrong = []
    num_calls = 0
    for name, value in public.items():
      for call in _calls_in_docstring(value):
        parameters = _parameters(call, public)
        num_calls += bool(parameters)
        wrong += [
            f'{name}: {ast.unparse(call)}: no {keyword.arg}'
            for keyword in call.keywords
            if parameters and keyword.arg and keyword.arg not in parameters
        ]
    self.assertGreater(num_calls, 40)
    self.assertEmpty(wrong, '\n' + '\n'.join(wrong))


if __name__ == '__main__':
  absltest.main()
