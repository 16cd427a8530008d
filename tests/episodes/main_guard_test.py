"""Tests of scripts that start processes without a `__main__` guard."""

import os
import subprocess
import sys

from absl.testing import absltest
import pytest

_CALLS = """
import multiprocessing
from rlds2reverb.episodes import checks

checks.check_main_guard()
context = multiprocessing.get_context('spawn')
process = context.Process(target=print)
process.start()
process.join()
print('exit code', process.exitcode)
"""
_JOB = """
from rlds2reverb.jobs import processes

engine = processes.Processes(2)
for outcome in engine.map(None, [0], None):
  print(outcome)
"""


class MainGuardTest(absltest.TestCase):

  def _run(self, text):
    path = self.create_tempdir().create_file('script.py', text).full_path
    return subprocess.run(
        [sys.executable, path],
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )

  def test_missing_main_guard_is_explained(self):
    result = self._run(_CALLS)
    self.assertEqual(result.stdout, 'exit code 1\n')
    self.assertIn('if __name__ == "__main__":', result.stderr)
    lines = _CALLS.strip().splitlines()
    guarded = [*lines[:2], 'if __name__ == "__main__":']
    guarded += [f'  {line}' for line in lines[2:]]
    result = self._run('\n'.join(guarded))
    self.assertEqual((result.stdout, result.stderr), ('\nexit code 0\n', ''))

  @pytest.mark.long
  def test_error_of_a_job_explains_missing_main_guard(self):
    result = self._run(_JOB)
    self.assertEqual(result.returncode, 1)
    *_, message = result.stderr.split('TaskError: ')
    self.assertStartsWith(message, 'The process that starts the workers has')
    self.assertIn('if __name__ == "__main__":', message)


if __name__ == '__main__':
  absltest.main()
