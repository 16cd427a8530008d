"""A test that kills jobs; `kills` does it more often."""

import os
import subprocess
import sys

from absl.testing import absltest
import pytest


class KillsTest(absltest.TestCase):

  @pytest.mark.long
  def test_jobs_that_are_killed_end_as_if_they_had_not_been(self):
    done = subprocess.run(
        [sys.executable, '-m', 'tests.jobs.kills', '--kills=12'],
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == '__main__':
  absltest.main()
