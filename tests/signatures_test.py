"""Tests that the manual calls functions by the names of their parameters."""

import ast
import inspect
import os
import re
from typing import Any, Dict, Iterator, Tuple

from absl.testing import absltest

import rlds2reverb
from rlds2reverb import agents
from rlds2reverb import datasets
from rlds2reverb import fields
from rlds2reverb import indexing
from rlds2reverb import jobs
from rlds2reverb import replay
from rlds2reverb import statistics
from rlds2reverb import tokens
from rlds2reverb import training
from rlds2reverb import trajectories
from rlds2reverb import transforms
from rlds2reverb import windows

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_CODE = re.compile(r'(?<!`)`([^`\n]+)`(?!`)')
# Their tables show the parameters in order, and not examples of values.
_DROP_IN = ('tf_agents.md',)
_MODULES = (
    rlds2reverb,
    agents,
    datasets,
    fields,
    indexing,
    jobs,
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
  return {
      name: value
      for module in _MODULES
      for name, value in vars(module).items()
      if callable(value) and not name.startswith('_')
  }


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
          name = getattr(call.func, 'attr', getattr(call.func, 'id', None))
          if name not in public:
            continue
          parameters = inspect.signature(public[name]).parameters
          if any(p.kind == p.VAR_KEYWORD for p in parameters.values()):
            continue
          num_calls += 1
          named = [keyword.arg for keyword in call.keywords if keyword.arg]
          if page in _DROP_IN and line.startswith('|'):
            given = [a.id for a in call.args if isinstance(a, ast.Name)]
            if given != list(parameters)[: len(given)]:
              named += given
          for argument in named:
            if argument not in parameters:
              wrong.append(
                  f'{page}:{number}: {ast.unparse(call)}: no {argument}; it has'
                  f' {", ".join(parameters)}'
              )
    self.assertGreater(num_calls, 40)
    self.assertEmpty(wrong, '\n' + '\n'.join(wrong))


if __name__ == '__main__':
  absltest.main()
