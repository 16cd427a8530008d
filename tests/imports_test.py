"""Holds the folders of the library to the order of the data.

It reads the files as text, so it needs nothing that they import.
"""

import ast
from collections.abc import Iterator
import pathlib
import re

from absl.testing import absltest

# The folder of a checkout, or the runfiles where Bazel has put the same files.
_ROOT = pathlib.Path(__file__).absolute().parent.parent
# A folder of the library imports from itself and from those above it in this
# list, the folders within a folder standing where the list has them.
_LAYERS = (
    'episodes',
    'arrays',
    'store',
    'datasets',
    'formats',
    'fields',
    'statistics',
    'transforms',
    'transforms/robotics',
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
# These files import from the layers above their own folder, for the user.
_ABOVE_THEIR_FOLDERS = (
    'rlds2reverb/replay/__init__.py',
    'rlds2reverb/replay/opening.py',
    'rlds2reverb/transforms/__init__.py',
)


def _find_files(folder: str) -> list[str]:
  """Returns the paths of the Python files in a folder, from the top folder."""
  # Bazel makes an empty __init__.py where there is none.
  return sorted(
      str(path.relative_to(_ROOT))
      for path in (_ROOT / folder).rglob('*.py')
      if path.stat().st_size
  )


def _read(path: str) -> ast.Module:
  return ast.parse((_ROOT / path).read_text('utf-8'), path)


def _get_imported_modules(path: str) -> Iterator[pathlib.Path]:
  """Yields the modules, and the names in them, that a file imports."""
  for node in ast.walk(_read(path)):
    if isinstance(node, ast.Import):
      names = [name.name for name in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module:
      names = [f'{node.module}.{name.name}' for name in node.names]
    else:
      continue
    for name in names:
      yield pathlib.Path(name.replace('.', '/'))


def _find_file(module: pathlib.Path, files: list[str]) -> str | None:
  """Returns the file of a module, or of that in which a name stands."""
  for path in (module, module.parent):
    for file in (f'{path}.py', f'{path}/__init__.py'):
      if file in files:
        return file
  return None


def _get_layer(path: str) -> int:
  """Returns the place of a file in `_LAYERS`; the package itself is on top."""
  folder = str(pathlib.Path(path).parent.relative_to('rlds2reverb'))
  if folder == '.':
    return len(_LAYERS)
  if path in _ABOVE_THEIR_FOLDERS:
    return max(i for i, name in enumerate(_LAYERS) if name.startswith(folder))
  return _LAYERS.index(folder)


class ImportsTest(absltest.TestCase):

  def test_imports_follow_the_order_of_folders(self):
    files = _find_files('rlds2reverb')
    # Nobody imports the package itself from within it.
    files.remove('rlds2reverb/__init__.py')
    for path in files:
      imported = {_find_file(m, files) for m in _get_imported_modules(path)}
      for other in sorted(imported - {None}):
        self.assertLessEqual(
            _get_layer(other),
            _get_layer(path),
            f'{path} must not import {other}: imports go'
            f' {" <- ".join(_LAYERS)}.',
        )

  def test_contributing_lists_the_importers_of_each_folder(self):
    files = _find_files('rlds2reverb')
    importers = {name: set() for name in _LAYERS if '/' not in name}
    for path in files:
      for module in _get_imported_modules(path):
        if other := _find_file(module, files):
          folder, imported = path.split('/')[1], other.split('/')[1]
          if folder in importers and imported in {*importers} - {folder}:
            importers[imported].add(folder)
    table = re.findall(
        r'^\| `(\w+)` \| .* \| (.*) \|$',
        (_ROOT / 'CONTRIBUTING.md').read_text('utf-8'),
        re.MULTILINE,
    )
    self.assertEqual([name for name, _ in table], list(importers))
    core = {name for name, listed in table if listed == 'core'}
    for name, listed in table:
      if name not in core:
        self.assertEqual(set(re.findall(r'`(\w+)`', listed)), importers[name])
        self.assertNoCommonElements(importers[name], core)

  def test_each_test_runs_as_a_program(self):
    tests = [p for p in _find_files('tests') if p.endswith('_test.py')]
    self.assertGreater(len(tests), 1)
    for path in tests:
      self.assertStartsWith(
          ast.unparse(_read(path).body[-1]),
          "if __name__ == '__main__':",
          f"{path} must end with `if __name__ == '__main__'` and run its"
          ' tests there, or Bazel passes it without running any.',
      )


if __name__ == '__main__':
  absltest.main()
