"""Tests of the program that checks configs, run as a user runs it."""

import os
import subprocess
import sys

from absl.testing import absltest
import pytest

from rlds2reverb.datasets import recording
from rlds2reverb.fields import named_mappings


def _run(*args, **environment):
  return subprocess.run(
      [sys.executable, '-m', 'scripts.validate_configs', *args],
      env={
          **os.environ,
          'PYTHONPATH': os.pathsep.join(sys.path),
          **environment,
      },
      capture_output=True,
      text=True,
      check=False,
  )


@pytest.mark.long
class ValidateConfigsTest(absltest.TestCase):

  def test_every_config_fits_all_of_its_data_sets(self):
    result = _run()
    self.assertEqual(result.returncode, 0, result.stderr)
    lines = dict(line.split(maxsplit=1) for line in result.stdout.splitlines())
    self.assertEqual(list(lines), named_mappings.config_names())
    for config, outcome in lines.items():
      if config == 'd4rl_kitchen':  # Its features were found nowhere.
        self.assertStartsWith(outcome, 'can be read')
      else:
        self.assertStartsWith(outcome, 'fits ')
    self.assertEqual(lines['kuka'], 'fits kuka')
    self.assertEqual(
        lines['d4rl_antmaze'], 'fits d4rl_antmaze/umaze-v0 and 11 others'
    )

  def test_a_config_and_data_of_the_user(self):
    folder = self.create_tempdir()
    recording.record_episodes(
        'CartPole-v1', os.path.join(folder.full_path, 'data'), 2
    )
    user = {'BUILD_WORKING_DIRECTORY': folder.full_path}
    result = _run('--config=recorded_gym', '--data=data', **user)
    self.assertEqual(result.returncode, 0, result.stderr)
    self.assertRegex(
        result.stdout, r'recorded_gym +fits .*/data; dtypes and ranks were not'
    )
    # CartPole's actions are discrete, those of D4RL are vectors.
    result = _run('--config=d4rl_antmaze', '--data=data', **user)
    self.assertEqual(result.returncode, 1)
    self.assertRegex(result.stdout, 'd4rl_antmaze +FAILS')
    self.assertIn('action: float32 (8,), but here it is int64', result.stderr)

    folder.create_file('mine.gin', "StepMapping.action = 'actoin'")
    result = _run('--config=mine.gin', **user)
    self.assertEqual(result.returncode, 0, result.stderr)
    self.assertRegex(result.stdout, 'mine.gin +can be read')
    result = _run('--config=mine.gin', '--data=data', **user)
    self.assertEqual(result.returncode, 1)
    self.assertRegex(result.stdout, 'mine.gin +FAILS')
    self.assertIn('Did you mean action?', result.stderr)
    self.assertIn('observation: float32 (4,)', result.stderr)

  def test_an_unknown_config(self):
    result = _run('--config=brigde')
    self.assertEqual(result.returncode, 1)
    self.assertIn('Did you mean bridge', result.stderr)

  def test_data_needs_a_config(self):
    result = _run('--data=anything')
    self.assertEqual(result.returncode, 2)
    self.assertIn('--data needs --config', result.stdout + result.stderr)


if __name__ == '__main__':
  absltest.main()
