"""Tests of the loop that trains."""

import contextlib
import dataclasses
import functools
import glob
import io
import os
import re
import subprocess
import sys

from absl.testing import absltest
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from rlds2reverb import training
from rlds2reverb.datasets import loading
from rlds2reverb.datasets import recording

_BATCH = 8
_MONITORING = training.Monitoring(summary=2, checkpoint=4, num_eval_episodes=2)
_CONTINUE = """
import sys
from tests.training import trainer_test
trainer_test.run(*sys.argv[1:3], int(sys.argv[3]))
"""


@dataclasses.dataclass(frozen=True)
class _Logging(training.BehavioralCloning):
  """Behavioural cloning that logs its batches, in a variable of its agent."""

  def make_agent(self, time_step_spec, action_spec, train_step):
    agent = super().make_agent(time_step_spec, action_spec, train_step)
    agent.log = tf.Variable(tf.zeros([20, _BATCH, 3]), trainable=False)
    train = agent.train

    def train_and_log(experience):
      row = tf.minimum(train_step, 19)
      agent.log.scatter_nd_update([[row]], [experience.observation[:, 0]])
      return train(experience)

    agent.train = train_and_log
    return agent


def run(data, directory, num_steps, **kwargs):
  return training.train(
      _Logging(layers=(8,)),
      loading.load_episodes(data),
      'Pendulum-v1',
      directory,
      num_steps,
      **{
          'batches': training.BatchOptions(_BATCH),
          'monitoring': _MONITORING,
          'seed': 4,
          **kwargs,
      },
  )


def _read(directory):
  """Returns the log and the weights of the newest checkpoint."""
  reader = tf.train.load_checkpoint(f'{directory}/train/checkpoints')
  variables = {
      name: reader.get_tensor(name)
      for name in reader.get_variable_to_shape_map()
  }
  (log,) = [value for name, value in variables.items() if '/log/' in name]
  weights = {
      name: value
      for name, value in variables.items()
      if '_cloning_network' in name
  }
  return log, weights


class TrainTest(tf.test.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.data = os.path.join(cls.get_temp_dir(cls()), 'data')
    recording.record_episodes('Pendulum-v1', cls.data, 3, max_steps=30)

  def _directory(self):
    return os.path.join(self.create_tempdir().full_path, 'run')

  @classmethod
  @functools.cache
  def _whole(cls):
    """Returns the log and the weights of 10 train steps."""
    whole = os.path.join(cls.get_temp_dir(cls()), 'whole')
    run(cls.data, whole, 10)
    return _read(whole)

  def _check_goes_on(self, continue_run):
    """Checks that 5 train steps and 5 more are the same as 10."""
    log, weights = self._whole()
    self.assertLen(np.unique(log[:10].reshape(10, -1), axis=0), 10)
    self.assertNotEmpty(weights)

    parts = self._directory()
    self.assertEqual(run(self.data, parts, 5).num_steps, 5)
    self.assertAllEqual(_read(parts)[0][5:], np.zeros([15, _BATCH, 3]))
    continue_run(self.data, parts, 10)
    found_log, found_weights = _read(parts)
    self.assertAllEqual(found_log, log)
    self.assertAllClose(found_weights, weights, rtol=1e-5)

  @pytest.mark.long
  def test_a_run_that_goes_on_is_as_one_without_interruption(self):
    self._check_goes_on(run)

  @pytest.mark.long
  def test_a_run_goes_on_in_another_process(self):
    def continue_run(*args):
      subprocess.run(
          [sys.executable, '-c', _CONTINUE, *map(str, args)],
          env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
          check=True,
          capture_output=True,
      )

    self._check_goes_on(continue_run)

  @pytest.mark.long
  def test_saved_policy_acts_on_raw_observations_with_raw_actions(self):
    directory = self._directory()
    result = run(self.data, directory, 200)
    self.assertEqual(result.policy_dir, f'{directory}/policy')
    policy = tf.saved_model.load(result.policy_dir)
    observations = [
        episode['steps']['observation'][:-1]
        for episode in loading.load_episodes(self.data)
    ]
    observation = tf.concat(observations, 0)
    action = policy.action(
        ts.restart(observation, batch_size=len(observation))
    ).action
    # Actions are random, in [-2, 2]: the best guess is their mean, which is 0.
    self.assertLess(abs(np.mean(action)), 0.5)
    self.assertAllInRange(action, -2.0, 2.0)
    self.assertLess(result.waiting_share, 1.0)

  def test_progress_tells_of_waiting_after_the_first_train_steps(self):
    shown = io.StringIO()
    with contextlib.redirect_stderr(shown):
      run(
          self.data,
          self._directory(),
          4,
          monitoring=dataclasses.replace(_MONITORING, progress=True),
      )
    lines = re.findall(r'(\d)/4 [^\r]*(loss[^\r]*)\]', shown.getvalue())
    told = dict(lines)
    self.assertRegex(told['2'], r'^loss [-\d.e]+$')
    self.assertRegex(
        told['4'], r'^loss [-\d.e]+, waiting for data \d+\.\d% of the time$'
    )

  @pytest.mark.long
  def test_what_is_written(self):
    directory = self._directory()
    run(
        self.data,
        directory,
        8,
        monitoring=training.Monitoring(2, 4, 4, num_eval_episodes=2),
    )
    tags = {}
    for folder in 'train', 'eval':
      (path,) = glob.glob(f'{directory}/{folder}/events*')
      for event in tf.compat.v1.train.summary_iterator(path):
        for value in event.summary.value:
          tags.setdefault(f'{folder}/{value.tag}', []).append(event.step)
    self.assertEqual(tags['eval/Metrics/AverageReturn'], [4, 8])
    self.assertEqual(tags['eval/Metrics/StandardError'], [4, 8])
    self.assertEqual(tags['train/Data/waiting_share'], [4, 6, 8])
    self.assertNotEmpty(tags['train/Losses/total_loss'])
    checkpoints = glob.glob(f'{directory}/train/checkpoints/*.index')
    self.assertSameElements(
        [os.path.basename(path) for path in checkpoints],
        ['ckpt-4.index', 'ckpt-8.index'],
    )

  @pytest.mark.long
  def test_other_settings_are_refused(self):
    directory = self._directory()
    run(self.data, directory, 2)
    with self.assertRaisesRegex(
        ValueError, 'other settings: batch_size was 8, and is 9'
    ):
      run(self.data, directory, 4, batches=training.BatchOptions(9))
    other = os.path.join(self.create_tempdir().full_path, 'data')
    recording.record_episodes('Pendulum-v1', other, 3, max_steps=30, seed=1)
    with self.assertRaisesRegex(ValueError, 'other settings: normalization'):
      run(other, directory, 4)


class MonitoringTest(absltest.TestCase):

  def test_next_stop(self):
    monitoring = training.Monitoring(summary=4, checkpoint=6, evaluation=0)
    stops = [0]
    while stops[-1] < 14:
      stops.append(monitoring.next_stop(stops[-1], 14))
    self.assertEqual(stops, [0, 4, 6, 8, 12, 14])


if __name__ == '__main__':
  absltest.main()
