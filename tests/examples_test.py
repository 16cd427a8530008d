"""Runs the examples, and compares their output with their docstrings."""

import contextlib
import importlib
import inspect
import io
import pathlib
import textwrap

from absl.testing import absltest
from absl.testing import parameterized
import pytest

_EXAMPLES = (
    'hdf5_to_rlds',
    'mixture',
    'offline_to_online',
    'own_transform',
    'prioritized_replay',
    'record_and_convert',
    'replace_tf_agents',
    'replay_without_server',
    'reverb_checkpoint',
    'sequences_for_rnn',
    'validate_and_quarantine',
)
_MAX_LINES = 60
# tests/training trains with these.
_TRAINERS = ('behavioral_cloning', 'cql_sac', 'recurrent_dqn')
_MAX_TRAINER_LINES = 150
# Their frameworks are in other environments, where frameworks_test runs them;
# and the agent of recurrent_dqn, for its users to edit.
_OTHERS = ('jax_batches', 'pytorch_batches', 'burn_in_dqn')
_FOLDER = pathlib.Path(__file__).parent.parent / 'examples'


class ExamplesTest(parameterized.TestCase):

  @parameterized.parameters(*_EXAMPLES)
  @pytest.mark.long
  def test_output_equals_docstring(self, name):
    example = importlib.import_module(f'examples.{name}')
    # The expected output is the indented paragraph after "It prints".
    _, _, said = inspect.getdoc(example).partition('It prints')
    said = [line for line in said.splitlines() if line.startswith('    ')]
    self.assertNotEmpty(said)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
      example.main()
    self.assertMultiLineEqual(
        textwrap.dedent('\n'.join(said)), printed.getvalue().strip()
    )

  def test_examples_are_short_and_have_run_command(self):
    self.assertCountEqual(
        [*_EXAMPLES, *_TRAINERS, *_OTHERS, '__init__'],
        [path.stem for path in _FOLDER.glob('*.py')],
    )
    for name in *_EXAMPLES, *_TRAINERS:
      with self.subTest(name):
        text = (_FOLDER / f'{name}.py').read_text('utf-8')
        is_trainer = name in _TRAINERS
        self.assertLessEqual(
            len(text.splitlines()),
            _MAX_TRAINER_LINES if is_trainer else _MAX_LINES,
        )
        end = ' /tmp/' if is_trainer else '\n\n'
        self.assertIn(f'\n    python -m examples.{name}{end}', text)


if __name__ == '__main__':
  absltest.main()
