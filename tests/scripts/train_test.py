"""Tests of the program that trains, run as a user runs it.

The long ones train as the configs say, until the return that these promise is
safely reached.
"""

import re

from absl.testing import absltest
from absl.testing import parameterized
import pytest
import tensorflow as tf

from rlds2reverb.datasets import recording
from tests.scripts import in_process
from tests.scripts import programs


def _mean_return(result):
  return float(re.search(r'Return (-?[\d.]+) \+-', result.stdout).group(1))


class TrainTest(absltest.TestCase):

  @pytest.mark.long
  def test_a_few_steps_from_a_config_of_the_user(self):
    folder = self.create_tempdir().full_path
    recording.record_episodes('CartPole-v1', f'{folder}/data', 5)
    with open(f'{folder}/mine.gin', 'w', encoding='utf-8') as f:
      f.write(
          "train.algorithm = 'bc'\n"
          "train.environment = 'CartPole-v1'\n"
          'train.num_steps = 6\n'
          'BehavioralCloning.layers = (7,)\n'
      )
    user = {'BUILD_WORKING_DIRECTORY': folder}
    args = ('--config=mine.gin', '--dataset=./data', '--directory=run')
    other = '--gin_binding=BehavioralCloning.layers = (8,)'
    result, refused = in_process.run(
        'train', [[*args, '--num_eval_episodes=3'], [*args, other]], **user
    )
    self.assertEqual(result.code, 0, result.stderr)
    self.assertRegex(result.stdout, r'\(3 episodes\) after 6 train steps')
    self.assertIn(f'The policy is in {folder}/run/policy', result.stdout)
    self.assertIn('6/6', result.stderr)
    policy = tf.saved_model.load(f'{folder}/run/policy')
    self.assertContainsSubset(
        [(4, 7), (7, 2)],
        [tuple(variable.shape) for variable in policy.model_variables],
    )

    self.assertEqual(refused.code, 1)
    self.assertIn('has a run with other settings', refused.stderr)

  @pytest.mark.long
  def test_messages(self):
    folder = self.create_tempdir().full_path
    recording.record_episodes('CartPole-v1', f'{folder}/data', 1)
    user = {'BUILD_WORKING_DIRECTORY': folder}
    args = ('--dataset=./data', '--directory=run', '--algorithm=bc')
    wrong = (
        ((), '--environment must have a value'),
        (('--environment=Pendulum-v1',), 'does not fit Pendulum-v1'),
        (
            (
                '--environment=CartPole-v1',
                '--gin_binding=BehavioralCloning.layer = (8,)',
            ),
            'layer',
        ),
        (
            ('--environment=CartPole-v1', '--reverb_server=localhost:1'),
            'no answer from a Reverb server at localhost:1',
        ),
    )
    results = in_process.run(
        'train', [[*args, *more] for more, _ in wrong], **user
    )
    for result, (_, message) in zip(results, wrong):
      self.assertIn(result.code, (1, 2), result.stdout)
      self.assertIn(message, result.stderr + result.stdout)
      self.assertNotIn('Traceback', result.stderr)


@pytest.mark.long
class ReturnsTest(parameterized.TestCase):

  @parameterized.parameters(
      # Config, return to reach, and the highest return without a memory.
      ('cartpole_bc', 450, None),
      ('pendulum_cql_sac', -300, None),
      ('position_only_cartpole_recurrent_dqn', 300, 100),
  )
  def test_trainers_reach_their_returns(self, name, least, most_without_memory):
    folder = self.create_tempdir().full_path
    config = f'--config=training/{name}'
    data = f'{folder}/data'
    result = programs.run('record_episodes', config, f'--directory={data}')
    self.assertEqual(result.returncode, 0, result.stderr)
    args = (config, f'--dataset={data}')
    result = programs.run('train', *args, f'--directory={folder}/run')
    self.assertEqual(result.returncode, 0, result.stderr)
    self.assertGreater(_mean_return(result), least)
    if most_without_memory is not None:
      result = programs.run(
          'train',
          *args,
          '--gin_binding=RecurrentDqn.lstm_size = None',
          f'--directory={folder}/other',
      )
      self.assertLess(_mean_return(result), most_without_memory)


if __name__ == '__main__':
  absltest.main()
