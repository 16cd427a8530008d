"""Compares the targets of the BUILD files with the Python files.

BUILD files are Starlark, and in syntax Python: `ast` reads them. Bazel itself
is not needed, so that pytest, too, finds a file without a target.
"""

import ast
import os
import posixpath
from typing import Dict, Iterator, List, NamedTuple, Optional, Set

from absl.testing import absltest

# The folder of a checkout, or the runfiles where Bazel has put the same files.
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

_WITHOUT_TARGET = {
    'setup.py': 'for pip',
    'docs/conf.py': 'for Sphinx',
    'tests/conftest.py': 'for pytest',
}
# What a floor of the library depends on is on the same floor, or on one above
# it in this list. Tests may put any pieces together.
_FLOORS = (
    'episodes',
    'datasets',
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
    'training',
    'jobs/descriptions',
    'jobs',
    'jobs/beam',
)
_OUTPUT_FOLDERS = ('build', 'dist', '__pycache__')


class _Target(NamedTuple):
  """A target of a BUILD file; paths and labels are complete.

  Attributes:
    label: for example `//tests/episodes:blocks_test`.
    rule: `py_library`, `py_binary`, `py_test` or another.
    files: the paths of `srcs`, from the top folder.
    deps: the labels of `deps`.
    data: the labels of `data`.
  """

  label: str
  rule: str
  files: List[str]
  deps: List[str]
  data: List[str]


def _read(path: str) -> ast.Module:
  with open(os.path.join(_ROOT, path), encoding='utf-8') as f:
    return ast.parse(f.read(), path)


def _get_python_files() -> List[str]:
  """Returns the paths of all Python files, from the top folder."""
  files = []
  for folder, subfolders, names in os.walk(_ROOT):
    subfolders[:] = [
        name
        for name in subfolders
        if not name.startswith('.')
        and name not in _OUTPUT_FOLDERS
        and not os.path.exists(os.path.join(folder, name, 'pyvenv.cfg'))
    ]
    for name in names:
      path = os.path.join(folder, name)
      # Bazel makes an empty __init__.py where there is none.
      if name.endswith('.py') and not (
          name == '__init__.py' and not os.path.getsize(path)
      ):
        files.append(os.path.relpath(path, _ROOT))
  return sorted(files)


def _get_label(name: str, folder: str) -> str:
  """Returns the label of `name`, as a BUILD file in `folder` may write it."""
  label = name if '//' in name else f'//{folder}:{name.lstrip(":")}'
  path, _, target = label.partition(':')
  return path if posixpath.basename(path) == target else label


def _read_targets(folder: str) -> Iterator[_Target]:
  """Yields the targets of the BUILD file in `folder`."""
  for statement in _read(posixpath.join(folder, 'BUILD')).body:
    if not isinstance(statement, ast.Expr) or not isinstance(
        statement.value, ast.Call
    ):
      continue
    rule = statement.value.func.id
    arguments = {
        keyword.arg: keyword.value for keyword in statement.value.keywords
    }
    if 'name' not in arguments or not rule.startswith('py_'):
      continue
    lists = {'srcs': [], 'deps': [], 'data': []}
    for key in lists.keys() & arguments.keys():
      try:
        lists[key] = ast.literal_eval(arguments[key])
      except ValueError as e:
        raise ValueError(
            f'{folder}/BUILD, line {arguments[key].lineno}: {key} must be a'
            ' list of names, without glob.'
        ) from e
    yield _Target(
        label=_get_label(ast.literal_eval(arguments['name']), folder),
        rule=rule,
        files=[posixpath.join(folder, name) for name in lists['srcs']],
        deps=[_get_label(name, folder) for name in lists['deps']],
        data=[_get_label(name, folder) for name in lists['data']],
    )


def _is_program(path: str) -> bool:
  """Returns whether a file ends with `if __name__ == '__main__'`."""
  last = _read(path).body[-1:]
  return bool(last) and ast.unparse(last[0]).startswith(
      "if __name__ == '__main__':"
  )


def _get_expected_rule(path: str) -> str:
  if path.endswith('_test.py'):
    return 'py_test'
  return 'py_binary' if _is_program(path) else 'py_library'


def _find_module(module: str, files: Set[str]) -> Optional[str]:
  path = module.replace('.', '/')
  for candidate in (f'{path}.py', f'{path}/__init__.py'):
    if candidate in files:
      return candidate
  return None


def _get_imported_files(path: str, files: Set[str]) -> Set[str]:
  """Returns which of `files` the file at `path` imports."""
  imported = set()
  for node in ast.walk(_read(path)):
    if isinstance(node, ast.Import):
      imported.update(_find_module(name.name, files) for name in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
      imported.update(
          _find_module(f'{node.module}.{name.name}', files)
          or _find_module(node.module, files)
          for name in node.names
      )
  return imported - {None}


def _get_floor(label: str) -> Optional[int]:
  """Returns the place of a label in `_FLOORS`; the whole package is on top.

  The exports of a folder stand above all folders below it.
  """
  if label == '//rlds2reverb':
    return len(_FLOORS)
  path, _, target = label[2:].partition(':')
  top, _, folder = path.partition('/')
  if top == 'rlds2reverb' and target == 'exports':
    return max(
        place
        for place, name in enumerate(_FLOORS)
        if posixpath.join(name, '').startswith(posixpath.join(folder, ''))
    )
  if top == 'rlds2reverb' and folder in _FLOORS:
    return _FLOORS.index(folder)
  return None


class BazelTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.files = _get_python_files()
    cls.folders = sorted({os.path.dirname(path) for path in cls.files})
    cls.targets: Dict[str, _Target] = {}
    for folder in cls.folders:
      if os.path.exists(os.path.join(_ROOT, folder, 'BUILD')):
        for target in _read_targets(folder):
          cls.targets[target.label] = target

  def test_each_file_has_one_target(self):
    for path in self.files:
      with self.subTest(path):
        targets = [
            target for target in self.targets.values() if path in target.files
        ]
        if path in _WITHOUT_TARGET:
          self.assertEmpty(targets)
          continue
        rule = _get_expected_rule(path)
        self.assertEqual(
            [rule],
            [target.rule for target in targets],
            f'{path} needs a {rule} in {os.path.dirname(path)}/BUILD.',
        )

  def test_each_test_runs_as_a_program(self):
    for path in self.files:
      if path.endswith('_test.py'):
        with self.subTest(path):
          self.assertTrue(
              _is_program(path),
              f"{path} must end with `if __name__ == '__main__'` and run its"
              ' tests there, or Bazel passes it without running any.',
          )

  def test_targets_name_what_exists(self):
    for target in self.targets.values():
      with self.subTest(target.label):
        for path in target.files:
          self.assertTrue(
              os.path.exists(os.path.join(_ROOT, path)),
              f'{target.label} names {path}, which does not exist.',
          )
        self.assertContainsSubset(target.deps, self.targets)

  def test_imports_are_dependencies(self):
    owners = {
        path: target.label
        for target in self.targets.values()
        for path in target.files
    }
    for target in self.targets.values():
      with self.subTest(target.label):
        imported = set()
        for path in target.files:
          if os.path.exists(os.path.join(_ROOT, path)):
            imported.update(_get_imported_files(path, set(owners)))
        needed = {owners[path] for path in imported} - {target.label}
        self.assertSameElements(
            needed,
            target.deps,
            f'The deps of {target.label} must be what it imports:'
            f' {sorted(needed)}',
        )

  def test_dependencies_go_one_way(self):
    for target in self.targets.values():
      floor = _get_floor(target.label)
      if floor is None:
        continue
      for dependency in target.deps + target.data:
        with self.subTest(target.label):
          self.assertLessEqual(
              _get_floor(dependency) or 0,
              floor,
              f'{target.label} must not depend on {dependency}: imports go'
              f' {" <- ".join(_FLOORS)}.',
          )

  def test_bazel_sees_all_files(self):
    # Else this test passes under Bazel for a folder that it does not look into.
    self.assertSameElements(
        [_get_label('sources', folder) for folder in self.folders],
        self.targets['//tests:bazel_test'].data,
        'The data of //tests:bazel_test must be the `sources` of all folders'
        ' that have Python files.',
    )


if __name__ == '__main__':
  absltest.main()
