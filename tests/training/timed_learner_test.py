"""Tests of the time that a learner waits for data."""

import time

from absl.testing import absltest
import numpy as np
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.train.utils import train_utils
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from rlds2reverb.training import behavioral_cloning
from rlds2reverb.training import timed_learner

_SECONDS = 0.05
_OBSERVATION = tf.TensorSpec([2], tf.float32)
_ACTION = tensor_spec.BoundedTensorSpec([], tf.int64, 0, 1)


class TimedLearnerTest(absltest.TestCase):

  def _learner(self, seconds):
    train_step = train_utils.create_train_step()
    agent = behavioral_cloning.BehavioralCloning(layers=(4,)).make_agent(
        ts.time_step_spec(_OBSERVATION), _ACTION, train_step
    )
    frames = trajectory.Trajectory(
        step_type=tf.ones([3, 1], tf.int32),
        observation=tf.zeros([3, 1, 2]),
        action=tf.zeros([3, 1], tf.int64),
        policy_info=(),
        next_step_type=tf.ones([3, 1], tf.int32),
        reward=tf.zeros([3, 1]),
        discount=tf.ones([3, 1]),
    )

    def wait(number):
      time.sleep(seconds)
      return number

    def as_dataset():
      numbers = tf.data.Dataset.range(100)
      if seconds:
        numbers = numbers.map(
            lambda number: tf.ensure_shape(
                tf.py_function(wait, [number], tf.int64), []
            )
        )
      return numbers.map(lambda number: (frames, number))

    return timed_learner.TimedLearner(
        self.create_tempdir().full_path,
        train_step,
        agent,
        as_dataset,
        checkpoint_interval=0,
    )

  def test_waiting_share_is_that_of_the_slow_data_set(self):
    learner = self._learner(_SECONDS)
    learner.run(2)
    self.assertTrue(np.isnan(learner.waiting_share))  # The step was traced.
    start = time.perf_counter()
    learner.run(10)
    learner.run(5)
    seconds = time.perf_counter() - start
    waited = learner.waiting_share * seconds
    # One batch is made while the learner is not running.
    self.assertBetween(waited, 14 * _SECONDS, seconds)
    self.assertEqual(learner.train_step_numpy, 17)

  def test_fast_data_is_waited_for_less(self):
    shares = []
    for seconds in 0, _SECONDS:
      learner = self._learner(seconds)
      learner.run(1)
      learner.run(15)
      shares.append(learner.waiting_share)
    self.assertLess(shares[0], shares[1])

  def test_waiting_is_told_once_it_is_known(self):
    learner = self._learner(0)
    describe = timed_learner.describe_waiting
    self.assertEqual(describe(learner.waiting_share), '')
    self.assertEqual(describe(0.1234), ', waiting for data 12.3% of the time')


if __name__ == '__main__':
  absltest.main()
