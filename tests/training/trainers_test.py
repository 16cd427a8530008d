"""Trains with the trainers in examples/."""

import glob
import os
import subprocess
import sys

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.trajectories import trajectory

from examples import behavioral_cloning
from examples import cql_sac
from examples import recurrent_dqn
from rlds2reverb.datasets import recording
from tests.scripts import programs

_CONTINUE = """
import sys
from tests.training import trainers_test
trainers_test.run(*sys.argv[1:3], int(sys.argv[3]))
"""


def run(data, directory, num_steps, **kwargs):
  arguments = {
      'environment': 'Pendulum-v1',
      'layers': (8,),
      'batch_size': 8,
      'checkpoint_interval': 4,
      'num_eval_episodes': 2,
      'seed': 4,
  }
  return behavioral_cloning.train_eval(
      data, directory, num_steps, **{**arguments, **kwargs}
  )


def _weights(directory):
  """Returns the weights in the newest checkpoint."""
  reader = tf.train.load_checkpoint(f'{directory}/train/checkpoints')
  return {
      name: reader.get_tensor(name)
      for name in reader.get_variable_to_shape_map()
      if '_cloning_network' in name
  }


class TrainTest(tf.test.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.data = os.path.join(cls.get_temp_dir(cls()), 'data')
    recording.record_episodes('Pendulum-v1', cls.data, 3, max_steps=30)

  def _directory(self):
    return os.path.join(self.create_tempdir().full_path, 'run')

  @pytest.mark.long
  def test_resumed_run_has_the_batches_of_an_uninterrupted_run(self):
    whole, parts, others = (self._directory() for _ in range(3))
    run(self.data, whole, 10)
    run(self.data, parts, 5)
    other_process = [sys.executable, '-c', _CONTINUE, self.data, parts, '10']
    subprocess.run(
        other_process,
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
        check=True,
        capture_output=True,
    )
    run(self.data, others, 10, seed=5)
    weights = _weights(whole)
    self.assertNotEmpty(weights)
    self.assertAllClose(_weights(parts), weights, rtol=1e-5)
    self.assertNotAllClose(_weights(others), weights, rtol=1e-2)

  def test_logs_and_checkpoints_are_written_and_other_settings_raise(self):
    directory = self._directory()
    returns = run(self.data, directory, 8)
    self.assertLen(returns.returns, 2)
    tags = {}
    for folder in 'train', 'eval':
      (path,) = glob.glob(f'{directory}/{folder}/events*')
      for event in tf.compat.v1.train.summary_iterator(path):
        for value in event.summary.value:
          tags.setdefault(f'{folder}/{value.tag}', []).append(event.step)
    self.assertEqual(tags['eval/Metrics/AverageReturn'], [8])
    self.assertEqual(tags['eval/Metrics/StandardError'], [8])
    checkpoints = glob.glob(f'{directory}/train/checkpoints/*.index')
    self.assertSameElements(
        [os.path.basename(path) for path in checkpoints],
        ['ckpt-4.index', 'ckpt-8.index'],
    )
    with self.assertRaisesRegex(
        ValueError, 'other settings: batch_size was 8, and is 9'
    ):
      run(self.data, directory, 9, batch_size=9)
    other = os.path.join(self.create_tempdir().full_path, 'data')
    recording.record_episodes('Pendulum-v1', other, 3, max_steps=30, seed=1)
    with self.assertRaisesRegex(ValueError, 'other settings: normalization'):
      run(other, directory, 9)


class ClonesLossTest(tf.test.TestCase):

  def test_cross_entropy_and_squared_error_of_all_but_last_frames(self):
    generator = np.random.default_rng(0)
    frames = trajectory.Trajectory(*[()] * 7)._replace(
        step_type=tf.constant([[0], [1], [1], [2]])
    )
    logits = generator.normal(size=(4, 1, 3)).astype(np.float32)
    chosen = [0, 2, 1, 0]
    expected = np.log(np.exp(logits[:, 0]).sum(1))
    expected -= logits[np.arange(4), 0, chosen]
    actual = behavioral_cloning.compute_losses(
        frames._replace(action=tf.constant(chosen)[:, None]), logits, False
    )
    self.assertAllClose(actual[:, 0], [*expected[:3], 0])
    for shape in (), (2,), (2, 3):
      action = generator.normal(size=(4, 1, *shape)).astype(np.float32)
      output = generator.normal(size=(4, *shape)).astype(np.float32)
      squares = (output - action[:, 0]).reshape(4, -1) ** 2
      actual = behavioral_cloning.compute_losses(
          frames._replace(action=tf.constant(action)), output, True
      )
      self.assertAllClose(actual[:, 0], [*squares.mean(1)[:3], 0])


@pytest.mark.long
class ReturnsTest(parameterized.TestCase):

  @parameterized.parameters(
      ('cartpole_bc', behavioral_cloning, 1000, 450),
      ('pendulum_cql_sac', cql_sac, 3000, -300),
      ('position_only_cartpole_recurrent_dqn', recurrent_dqn, 600, 300),
  )
  def test_trainers_reach_their_returns(self, config, trainer, count, least):
    folder = self.create_tempdir().full_path
    data = f'{folder}/data'
    result = programs.run(
        'record_episodes', f'--config=training/{config}', f'--directory={data}'
    )
    self.assertEqual(result.returncode, 0, result.stderr)
    returns = trainer.train_eval(data, f'{folder}/run', count)
    self.assertGreater(returns.mean, least)
    if trainer is recurrent_dqn:
      returns = trainer.train_eval(
          data, f'{folder}/other', count, lstm_size=None
      )
      self.assertLess(returns.mean, 100)


if __name__ == '__main__':
  absltest.main()
