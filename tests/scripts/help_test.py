"""`--help` of every program comes at once: nothing large is imported for it."""

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
    'train',
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
    # A command that goes on in the next line says so.
    self.assertNotRegex(result.stdout, r'\S {3,}--')
    imported = {
        line.rpartition('|')[2].strip()
        for line in result.stderr.splitlines()
        if line.startswith('import time:')
    }
    self.assertIn('absl.flags', imported)
    self.assertNoCommonElements(imported, _LARGE)


if __name__ == '__main__':
  absltest.main()
