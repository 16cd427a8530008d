"""Tests that the GitHub workflows run the checks of `.ci/run`."""

import pathlib
import re
import shlex
import subprocess

from absl.testing import absltest
import yaml

import rlds2reverb

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_WORKFLOWS = _ROOT / '.github' / 'workflows'


def _read(name):
  # YAML 1.1 reads the key `on` as True.
  workflow = yaml.safe_load((_WORKFLOWS / name).read_text())
  return {'on' if key is True else key: v for key, v in workflow.items()}


def _commands(name):
  """Returns the scripts with their arguments that a workflow runs."""
  return [
      tuple(shlex.split(step['run']))
      for job in _read(name)['jobs'].values()
      for step in job.get('steps', [])
      if 'run' in step
  ]


class WorkflowsTest(absltest.TestCase):

  def test_commands_are_scripts_of_the_repository(self):
    for path in sorted(_WORKFLOWS.glob('*.yml')):
      for shell, script, *_ in _commands(path.name):
        with self.subTest(f'{path.name}: {script}'):
          self.assertEqual(shell, 'bash')
          subprocess.run(['bash', '-n', _ROOT / script], check=True)

  def test_a_pull_request_runs_what_ci_runs(self):
    self.assertContainsSubset(
        {'pull_request', 'push', 'workflow_call'}, _read('ci.yml')['on'].keys()
    )
    commands = set(_commands('ci.yml'))
    ci = (_ROOT / '.ci' / 'run').read_text()
    for script in ('lint', 'ci_without_reverb', 'manual'):
      self.assertIn(('bash', f'scripts/{script}.sh'), commands)
      self.assertIn(f'bash scripts/{script}.sh', ci)
    # `.ci/run` runs the commands of the README.
    readme = (_ROOT / 'README.md').read_text()
    for script in ('quickstart', 'test'):
      self.assertIn(('bash', f'scripts/{script}.sh'), commands)
      self.assertIn(f'bash scripts/{script}.sh', readme)

  def test_nightly_workflow_runs_everything(self):
    self.assertIn('schedule', _read('nightly.yml')['on'])
    commands = _commands('nightly.yml')
    self.assertIn(('bash', '.ci/run'), commands)
    self.assertIn(('bash', 'scripts/test.sh', '-m', 'long'), commands)

  def test_all_python_versions_are_tested(self):
    jobs = _read('ci.yml')['jobs']
    tested = [
        version
        for job in ('tests', 'tests-without-reverb')
        for version in jobs[job]['strategy']['matrix']['python']
    ]
    supported = re.findall(
        r"'Programming Language :: Python :: (3\.\d+)'",
        (_ROOT / 'setup.py').read_text(),
    )
    self.assertEqual(tested, supported)

  def test_tags_are_published(self):
    workflow = _read('publish.yml')
    self.assertEqual(workflow['on'], {'push': {'tags': ['v*']}})
    jobs = workflow['jobs']
    self.assertEqual(jobs['publish']['needs'], 'build')
    self.assertEqual(jobs['build']['needs'], 'checks')
    self.assertEqual(jobs['checks']['uses'], './.github/workflows/ci.yml')
    self.assertIn(('bash', 'scripts/ci_wheel.sh'), _commands('publish.yml'))

  def test_caches_depend_on_existing_files(self):
    # A release is built without a cache, which other workflows can write.
    for workflow in ('ci.yml', 'nightly.yml'):
      for name, job in _read(workflow)['jobs'].items():
        for step in job['steps']:
          if 'setup-python' in step.get('uses', ''):
            with self.subTest(f'{workflow}: {name}'):
              self.assertEqual(step['with']['cache'], 'pip')
              pattern = step['with']['cache-dependency-path']
              self.assertNotEmpty(list(_ROOT.glob(pattern)))

  def test_dependabot_watches_existing_folders(self):
    updates = yaml.safe_load(
        (_ROOT / '.github' / 'dependabot.yml').read_text()
    )['updates']
    self.assertLen(updates, 2)
    for update in updates:
      folder = _ROOT / update['directory'].lstrip('/')
      self.assertTrue(folder.is_dir(), folder)

  def test_citation_has_this_version(self):
    citation = yaml.safe_load((_ROOT / 'CITATION.cff').read_text())
    self.assertEqual(citation['version'], rlds2reverb.__version__)


if __name__ == '__main__':
  absltest.main()
