"""Tests that `--help` of every program is fast and imports no large package.

Where nobody reads it, as in `--help | head`, a program ends without a message.
"""

import os
import subprocess
import sys

from absl.testing import absltest
from absl.testing import parameterized

from tests.scripts import programs

_PROGRAMS = (
    'build_index',
    'convert',
    'describe',
    'quickstart',
    'record_episodes',
    'serve',
    'status',
    'validate',
    'validate_configs',
)
# They take from a third of a second to several.
_LARGE = ('gin', 'matplotlib', 'numpy', 'reverb', 'tensorflow', 'tf_agents')


class HelpTest(parameterized.TestCase):

  @parameterized.parameters(*_PROGRAMS)
  def test_help_imports_nothing_large(self, program):
    result = programs.run(program, '--help', PYTHONPROFILEIMPORTTIME='1')
    self.assertEqual(result.returncode, 0, result.stderr)
    self.assertIn(f'{program}.py:', result.stdout)
    # A command that continues in the next line ends with a backslash.
    self.assertNotRegex(result.stdout, r'\S {3,}--')
    imported = {
        line.rpartition('|')[2].strip()
        for line in result.stderr.splitlines()
        if line.startswith('import time:')
    }
    self.assertIn('absl.flags', imported)
    self.assertNoCommonElements(imported, _LARGE)

  def test_closed_output_pipe_is_no_error(self):
    program = 'from rlds2reverb.jobs import usage; usage.run(print)'
    reading, writing = os.pipe()
    os.close(reading)
    try:
      result = subprocess.run(
          [sys.executable, '-c', program, '--help'],
          env=programs.environment(),
          stdout=writing,
          stderr=subprocess.PIPE,
          text=True,
          check=False,
      )
    finally:
      os.close(writing)
    self.assertEqual((result.returncode, result.stderr), (1, ''))


if __name__ == '__main__':
  absltest.main()
