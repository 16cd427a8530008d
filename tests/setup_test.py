"""Compares setup.py with the lock files and the programs."""

import distutils.core
import os
import runpy
import shutil
import subprocess
import sys

from absl.testing import absltest
from absl.testing import parameterized
from packaging import requirements
from packaging import specifiers
from packaging import utils
from packaging import version as packaging_version

import rlds2reverb

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_VERSIONS = ('3.10', '3.11', '3.12', '3.13')
_REVERB = ('3.10', '3.11')
_STALE = 'Run requirements/lock.sh.'


def _read_setup():
  folder = os.getcwd()
  os.chdir(_ROOT)
  try:
    return distutils.core.run_setup('setup.py', stop_after='init')
  finally:
    os.chdir(folder)


def _are_for(version, lines):
  """Yields the requirements that a Python of this version has."""
  environment = {
      'python_version': version,
      'python_full_version': f'{version}.9',
      'sys_platform': 'linux',
      'platform_machine': 'x86_64',
  }
  for requirement in map(requirements.Requirement, lines):
    if requirement.marker is None or requirement.marker.evaluate(environment):
      yield requirement


def _read_lock(name, version):
  """Returns the locked version of each package, by its normalised name."""
  path = os.path.join(_ROOT, 'requirements', f'{name}.txt')
  with open(path, encoding='utf-8') as f:
    lines = [line.partition('#')[0].strip() for line in f]
  return {
      utils.canonicalize_name(requirement.name): str(
          requirement.specifier
      ).removeprefix('==')
      for requirement in _are_for(version, filter(None, lines))
  }


class LockFilesTest(parameterized.TestCase):

  @parameterized.parameters(
      *(('tests', version) for version in _VERSIONS),
      *((name, version) for name in ('beam', 'docs') for version in _REVERB),
  )
  def test_lock_file_has_the_requirements_of_setup_py(self, name, version):
    locked = _read_lock(name, version)
    setup = _read_setup()
    extras = {'test', name} & set(setup.extras_require)
    wanted = sum(
        (setup.extras_require[extra] for extra in extras),
        list(setup.install_requires),
    )
    for requirement in _are_for(version, wanted):
      package = utils.canonicalize_name(requirement.name)
      if package == 'tensorflow':
        package = 'tensorflow-cpu'
      self.assertIn(package, locked, _STALE)
      self.assertTrue(
          requirement.specifier.contains(locked[package]),
          f'setup.py asks for {requirement}, and {name}.txt has'
          f' {locked[package]} for Python {version}. {_STALE}',
      )
    self.assertEqual(locked['tf-agents'], '0.19.0')
    self.assertEqual('dm-reverb' in locked, version in _REVERB)

  @parameterized.parameters('3.11', '3.12', '3.13')
  def test_frameworks_lock_is_complete_and_agrees_with_tests(self, version):
    locked = _read_lock('frameworks', version)
    wanted = ['absl-py', 'dm-tree', 'etils', 'numba', 'numpy', 'pillow']
    for framework in ('torch', 'jax'):
      for requirement in _read_setup().extras_require[framework]:
        wanted.append(requirements.Requirement(requirement).name)
    self.assertContainsSubset(wanted, locked, _STALE)
    for name in ('tensorflow', 'tensorflow-cpu', 'tf-agents', 'dm-reverb'):
      self.assertNotIn(name, locked)
    # `torch/lib/*.so` of the wheel on PyPI are linked to these. pip installs
    # them only if the file lists them, because of --no-deps.
    libraries = (
        'cublas cuda-cupti cuda-nvrtc cuda-runtime cudnn-cu13 cufft cufile'
        ' curand cusolver cusparse cusparselt-cu13 nccl-cu13 nvjitlink'
        ' nvshmem-cu13'
    )
    linked = [f'nvidia-{library}' for library in libraries.split()]
    self.assertContainsSubset(linked, locked, _STALE)
    beside = _read_lock('tests', version)
    del beside['typing-extensions']  # TF-Agents works with a newer one.
    shared = set(beside) & set(locked)
    self.assertEqual(
        {name: locked[name] for name in shared},
        {name: beside[name] for name in shared},
        _STALE,
    )

  def test_every_supported_python_has_a_lock_file(self):
    allowed = specifiers.SpecifierSet(_read_setup().python_requires)
    self.assertEqual(
        tuple(f'3.{m}' for m in range(30) if f'3.{m}' in allowed), _VERSIONS
    )


class PackagesTest(absltest.TestCase):

  def test_version_package_and_program_per_command(self):
    setup = _read_setup()
    version = setup.get_version()
    self.assertEqual(rlds2reverb.__version__, version)
    self.assertEqual(str(packaging_version.Version(version)), version)
    self.assertContainsSubset(
        ['rlds2reverb', 'rlds2reverb.configs', 'rlds2reverb.scripts'],
        setup.packages,
    )
    packages = {package.split('.')[0] for package in setup.packages}
    self.assertEqual(packages, {'rlds2reverb'})
    # By its path: tests/ has a package of the name scripts, too.
    functions = runpy.run_path(os.path.join(_ROOT, 'scripts', '__init__.py'))
    for command in setup.entry_points['console_scripts']:
      name, function = command.split(' = rlds2reverb.scripts:')
      program = name.removeprefix('rlds2reverb-').replace('-', '_')
      self.assertEqual(function, f'run_{program}')
      self.assertTrue(callable(functions[function]))
      path = os.path.join(_ROOT, 'scripts', f'{program}.py')
      self.assertTrue(os.path.exists(path))

  def test_stale_build_files_are_not_installed(self):
    folder = self.create_tempdir().full_path
    for name in ('setup.py', 'README.md', 'LICENSE'):
      shutil.copy(os.path.join(_ROOT, name), folder)
    for name in ('rlds2reverb', 'configs', 'scripts'):
      shutil.copytree(os.path.join(_ROOT, name), os.path.join(folder, name))
    built = os.path.join(folder, 'build', 'lib', 'rlds2reverb')
    os.makedirs(built)
    with open(os.path.join(built, 'removed.py'), 'w', encoding='utf-8'):
      pass
    subprocess.run(
        [sys.executable, 'setup.py', '-q', 'build'], cwd=folder, check=True
    )
    names = os.listdir(built)
    self.assertIn('version.py', names)
    self.assertNotIn('removed.py', names)


if __name__ == '__main__':
  absltest.main()
