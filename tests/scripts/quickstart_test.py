"""Test of the first program that a new user runs."""

import os
import re
import subprocess
import sys

from absl.testing import absltest
import pytest


class QuickstartTest(absltest.TestCase):

  @pytest.mark.long
  def test_every_stage_prints_its_result(self):
    directory = os.path.join(self.create_tempdir().full_path, 'cartpole')
    args = [
        sys.executable,
        '-m',
        'scripts.quickstart',
        f'--directory={directory}',
        '--num_episodes=12',
        '--batch_size=16',
    ]
    env = {**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)}
    for _ in range(2):  # Records the first time, and reads the second time.
      output = subprocess.run(
          args, env=env, capture_output=True, text=True, check=True
      ).stdout
      steps = int(re.search(r'read +12 episodes, (\d+) steps', output)[1])
      self.assertGreater(steps, 12 * 8)
      self.assertRegex(output, rf'converted +{steps} trajectories')
      # A pair of steps is an item, and pairs do not cross episodes.
      self.assertRegex(
          output, rf'pushed +{steps} trajectories.*confirmed {steps - 12} items'
      )
      self.assertRegex(output, r'observation +float32 \(16, 2, 4\)')


if __name__ == '__main__':
  absltest.main()
