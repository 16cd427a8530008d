"""Tests of the program that checks configs."""

import os

from absl.testing import absltest
import pytest

from rlds2reverb.datasets import recording
from rlds2reverb.fields import configs
from tests.scripts import in_process


def _run(*commands, **environment):
  return in_process.run('validate_configs', commands, **environment)


@pytest.mark.long
class ValidateConfigsTest(absltest.TestCase):

  def test_every_config_fits_all_of_its_data_sets(self):
    (result,) = _run([])
    self.assertEqual(result.code, 0, result.stderr)
    lines = dict(line.split(maxsplit=1) for line in result.stdout.splitlines())
    self.assertEqual(list(lines), configs.config_names())
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
    folder.create_file('mine.gin', "StepMapping.action = 'actoin'")
    recorded, mine, mine_on_data = _run(
        ['--config=recorded_gym', '--data=data'],
        ['--config=mine.gin'],
        ['--config=mine.gin', '--data=data'],
        BUILD_WORKING_DIRECTORY=folder.full_path,
    )
    self.assertEqual(recorded.code, 0, recorded.stderr)
    self.assertRegex(recorded.stdout, 'recorded_gym +fits .*/data')
    self.assertEqual(mine.code, 0, mine.stderr)
    self.assertRegex(mine.stdout, 'mine.gin +can be read')
    self.assertEqual(mine_on_data.code, 1)
    self.assertRegex(mine_on_data.stdout, 'mine.gin +FAILS')
    self.assertIn('Did you mean action?', mine_on_data.stderr)
    self.assertIn('observation: float32 (4,)', mine_on_data.stderr)


if __name__ == '__main__':
  absltest.main()
