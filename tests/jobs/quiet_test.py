"""Tests of keeping noise away."""

import os
import subprocess
import sys
import textwrap

from absl.testing import absltest


class QuietTest(absltest.TestCase):

  def test_quiet_stderr_leaves_lines_out_unless_there_is_an_error(self):
    def stderr_of(program):
      done = subprocess.run(
          [
              sys.executable,
              '-c',
              'import os\n'
              'from rlds2reverb.jobs import quiet\n' + textwrap.dedent(program),
          ],
          env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
          capture_output=True,
          text=True,
          check=False,
      )
      return done.stderr.splitlines()

    self.assertEqual(
        stderr_of("""
            with quiet.quiet_stderr('[noise]'):
              os.write(2, b'[noise] of C++\\nof use\\n')
            os.write(2, b'[noise] later\\n')
            """),
        ['of use', '[noise] later'],
    )
    self.assertEmpty(stderr_of("""
        with quiet.quiet_stderr():
          os.write(2, b'anything\\n')
        """))
    lines = stderr_of("""
        with quiet.quiet_stderr():
          os.write(2, b'why\\n')
          raise ValueError('what')
        """)
    self.assertEqual(lines[0], 'why')
    self.assertEqual(lines[-1], 'ValueError: what')


if __name__ == '__main__':
  absltest.main()
