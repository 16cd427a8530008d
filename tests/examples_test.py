"""Runs the examples, and compares what they print with what they say."""

import contextlib
import inspect
import io
import os
import textwrap

from absl.testing import parameterized
import pytest
import tensorflow as tf

from examples import hdf5_to_rlds
from examples import mixture
from examples import offline_to_online
from examples import own_transform
from examples import prioritized_replay
from examples import record_and_convert
from examples import replace_tf_agents
from examples import replay_without_server
from examples import reverb_checkpoint
from examples import sequences_for_rnn
from examples import validate_and_quarantine

_EXAMPLES = (
    hdf5_to_rlds,
    mixture,
    offline_to_online,
    own_transform,
    prioritized_replay,
    record_and_convert,
    replace_tf_agents,
    replay_without_server,
    reverb_checkpoint,
    sequences_for_rnn,
    validate_and_quarantine,
)
# Their frameworks are in other environments, where frameworks_test runs them.
_ELSEWHERE = ('jax_batches.py', 'pytorch_batches.py')
_FOLDER = os.path.dirname(os.path.abspath(hdf5_to_rlds.__file__))
_MAX_LINES = 60
# tests/training trains with these.
_TRAINERS = ('behavioral_cloning.py', 'cql_sac.py', 'recurrent_dqn.py')
_MAX_TRAINER_LINES = 150
_AGENT = 'burn_in_dqn.py'  # That of recurrent_dqn, for its users to edit.


def _name(example):
  return example.__name__.split('.')[-1]


class ExamplesTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.named_parameters((_name(one), one) for one in _EXAMPLES)
  @pytest.mark.long
  def test_it_prints_what_it_says(self, example):
    # What an indented paragraph after "It prints" shows.
    _, _, said = inspect.getdoc(example).partition('It prints')
    said = [line for line in said.splitlines() if line.startswith('    ')]
    self.assertNotEmpty(said)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
      example.main()
    self.assertMultiLineEqual(
        textwrap.dedent('\n'.join(said)), printed.getvalue().strip()
    )

  @parameterized.named_parameters((_name(one), one) for one in _EXAMPLES)
  def test_it_is_short_and_says_how_to_run_it(self, example):
    self.assertLess(len(inspect.getsource(example).splitlines()), _MAX_LINES)
    self.assertIn(
        f'\n\n    python -m examples.{_name(example)}\n\n',
        inspect.getdoc(example),
    )

  @parameterized.parameters(*_TRAINERS)
  def test_trainers_are_short(self, name):
    with open(os.path.join(_FOLDER, name), encoding='utf-8') as f:
      text = f.read()
    self.assertLessEqual(len(text.splitlines()), _MAX_TRAINER_LINES)
    self.assertIn(f'\n    python -m examples.{name[:-3]} /tmp/', text)

  def test_all_are_here(self):
    self.assertCountEqual(
        [
            *_ELSEWHERE,
            *_TRAINERS,
            _AGENT,
            *[f'{_name(example)}.py' for example in _EXAMPLES],
        ],
        [
            name
            for name in os.listdir(_FOLDER)
            if name.endswith('.py') and name != '__init__.py'
        ],
    )


if __name__ == '__main__':
  tf.test.main()
