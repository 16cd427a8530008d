"""Reads the pages of the manual and the top folder, and their code blocks."""

from collections.abc import Iterator
import os
import re
from typing import NamedTuple

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_BLOCK = re.compile(
    r'^(?P<above>[^\n]*)\n+(?P<indent> *)```(?P<language>\w+)\n'
    r'(?P<code>.*?)\n(?P=indent)```$',
    re.MULTILINE | re.DOTALL,
)
_OUTPUT = re.compile(r'\n+ *```text\n(.*?)\n *```$', re.MULTILINE | re.DOTALL)
_NOT_RUN = re.compile(r'<!-- not run: (.+) -->')


class Block(NamedTuple):
  """A block of code.

  Attributes:
    language: `python` or `sh`.
    code: the code.
    line: the number of the first line in the page, from 1.
    output: the expected output; None if the page shows none.
  """

  language: str
  code: str
  line: int
  output: str | None


def paths() -> list[str]:
  """Returns the paths of the pages relative to the top folder."""
  found = ['CONTRIBUTING.md', 'README.md', 'SECURITY.md']
  for folder, _, names in os.walk(os.path.join(ROOT, 'docs')):
    if '_build' not in folder:
      found += [
          os.path.relpath(os.path.join(folder, name), ROOT)
          for name in names
          if name.endswith('.md')
      ]
  return sorted(found)


def read(page: str) -> str:
  with open(os.path.join(ROOT, page), encoding='utf-8') as f:
    return f.read()


def blocks(page: str) -> Iterator[Block]:
  """Yields the executable blocks of a page."""
  text = read(page)
  for match in _BLOCK.finditer(text):
    if match['language'] in ('python', 'sh') and not _NOT_RUN.fullmatch(
        match['above'].strip()
    ):
      line = text.count('\n', 0, match.start('code')) + 1
      output = _OUTPUT.match(text, match.end())
      yield Block(match['language'], match['code'], line, output and output[1])
