"""Tests of `convert --runner`, as users call it."""

import os
import subprocess
import sys

from absl.testing import absltest
import pytest

from tests.jobs import data_sets
from tests.jobs import job_testing
from tests.jobs.beam import beam_testing


@beam_testing.needs_beam
class ProgramTest(beam_testing.BeamTestCase):

  def _run(self, *args):
    return subprocess.run(
        [sys.executable, '-m', 'scripts.convert', *args],
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
    )

  @pytest.mark.long
  def test_options_of_beam_are_handed_through(self):
    output = self.new()
    done = self._run(
        f'--dataset={self.directory}',
        f'--checkpoint_dir={output}',
        '--table=' + job_testing.TABLE,
        '--task_mb=0.0001',
        '--runner=FnApiRunner',
        '--direct_num_workers=2',
        '--direct_running_mode',
        'multi_processing',
    )
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertRegex(done.stdout, r'items in experience +26')
    self.assertEqual(
        job_testing.rewards_of(job_testing.items_of(output)),
        job_testing.ALL_PAIRS,
    )

  @pytest.mark.long
  def test_a_damaged_file_is_named(self):
    directory = data_sets.numbered(self.new('data'), job_testing.LENGTHS)
    path = data_sets.files_of(directory)[0]
    os.truncate(path, os.path.getsize(path) - 10)
    done = self._run(
        f'--dataset={directory}',
        f'--checkpoint_dir={self.new()}',
        '--runner=FnApiRunner',
    )
    self.assertEqual(done.returncode, 1)
    self.assertIn(f'task 0: {path} is damaged', done.stderr)
    self.assertNotIn('Traceback', done.stderr)

  def test_a_flag_that_is_mistyped(self):
    done = self._run(
        f'--dataset={self.directory}',
        f'--checkpoint_dir={self.new()}',
        '--runner=FnApiRunner',
        '--sequence_lenght=3',
    )
    self.assertEqual(done.returncode, 2)
    self.assertIn(
        'There is no option --sequence_lenght. Did you mean --sequence_length?',
        done.stderr,
    )


if __name__ == '__main__':
  absltest.main()
