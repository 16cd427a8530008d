"""Holds the folders of the library to the order of the data.

It reads the files as text, so it needs nothing that they import.
"""

import ast
import os
from typing import Iterator, Optional, Set

from absl.testing import absltest

# The folder of a checkout, or the runfiles where Bazel has put the same files.
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# A folder of the library imports from itself and from those above it in this
# list, the folders within a folder standing where the list has them.
_FLOORS = (
    'episodes',
    'arrays',
    'store',
    'datasets',
    'formats',
    'fields',
    'statistics',
    'transforms',
    'trajectories',
    'windows',
    'indexing',
    'tokens',
    'agents',
    'replay',
    'replay/server',
    'replay/checkpoint',
    'replay/local',
    'random_access',
    'training',
    'jobs/descriptions',
    'jobs',
)
# These bring the folders below their own together for the user, and stand
# above them.
_ABOVE_THEIR_FOLDERS = (
    'rlds2reverb/replay/__init__.py',
    'rlds2reverb/replay/opening.py',
)


def _get_python_files(folder: str) -> Iterator[str]:
  """Yields the paths of the Python files in a folder, from the top folder."""
  for parent, _, names in os.walk(os.path.join(_ROOT, folder)):
    for name in names:
      path = os.path.join(parent, name)
      # Bazel makes an empty __init__.py where there is none.
      if name.endswith('.py') and os.path.getsize(path):
        yield os.path.relpath(path, _ROOT)


def _read(path: str) -> ast.Module:
  with open(os.path.join(_ROOT, path), encoding='utf-8') as f:
    return ast.parse(f.read(), path)


def _get_imported_modules(path: str) -> Iterator[str]:
  """Yields the modules, as paths without `.py`, that a file imports."""
  for node in ast.walk(_read(path)):
    if isinstance(node, ast.Import):
      names = [name.name for name in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module:
      names = [f'{node.module}.{name.name}' for name in node.names]
    else:
      continue
    for name in names:
      yield name.replace('.', '/')


def _find_file(module: str, files: Set[str]) -> Optional[str]:
  """Returns the file of a module, or of that in which a name stands."""
  parent = os.path.dirname(module)
  for path in (module, f'{module}/__init__', parent, f'{parent}/__init__'):
    if f'{path}.py' in files:
      return f'{path}.py'
  return None


def _get_floor(path: str) -> int:
  """Returns the place of a file in `_FLOORS`; the package itself is on top."""
  folder = os.path.dirname(os.path.relpath(path, 'rlds2reverb'))
  if not folder:
    return len(_FLOORS)
  if path in _ABOVE_THEIR_FOLDERS:
    return max(
        floor
        for floor, name in enumerate(_FLOORS)
        if name == folder or name.startswith(f'{folder}/')
    )
  return _FLOORS.index(folder)


class ImportsTest(absltest.TestCase):

  def test_imports_go_one_way(self):
    files = set(_get_python_files('rlds2reverb'))
    self.assertNotEmpty(files)
    # Nobody imports the package itself from within it.
    files.discard('rlds2reverb/__init__.py')
    for path in sorted(files):
      imported = {_find_file(m, files) for m in _get_imported_modules(path)}
      for other in sorted(imported - {None}):
        with self.subTest(path, imports=other):
          self.assertLessEqual(
              _get_floor(other),
              _get_floor(path),
              f'{path} must not import {other}: imports go'
              f' {" <- ".join(_FLOORS)}.',
          )

  def test_each_test_runs_as_a_program(self):
    tests = [p for p in _get_python_files('tests') if p.endswith('_test.py')]
    self.assertGreater(len(tests), 1)
    for path in tests:
      with self.subTest(path):
        self.assertStartsWith(
            ast.unparse(_read(path).body[-1]),
            "if __name__ == '__main__':",
            f"{path} must end with `if __name__ == '__main__'` and run its"
            ' tests there, or Bazel passes it without running any.',
        )


if __name__ == '__main__':
  absltest.main()
