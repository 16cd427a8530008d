"""Tests of normalisation, and of the policy that undoes it."""

import os

from absl.testing import absltest
import numpy as np
import tensorflow as tf
from tf_agents.policies import policy_saver
from tf_agents.policies import tf_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from rlds2reverb.training import normalization
from tests import golden

_MEAN, _STD = np.array([5.0, -2.0]), np.array([2.0, 0.5])
_AROUND = np.array([[-1.0, 1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, -1.0]])
_BOUNDED = tensor_spec.BoundedTensorSpec


def _episodes(**changes):
  """Two episodes whose statistics are known."""
  steps = {
      **golden.make_episode([1.0] * 4, terminal=False),
      'observation': np.float32(_MEAN + _STD * _AROUND),
      'action': np.float32([[-3.0], [1.0], [0.5], [0.0]]),
      **changes,
  }
  return golden.stacked([steps, steps])


class _Identity(tf_policy.TFPolicy):
  """Acts with the first number of its observation."""

  def __init__(self):
    super().__init__(
        ts.time_step_spec(tf.TensorSpec([2], tf.float32)),
        _BOUNDED([1], tf.float32, -1, 1),
    )

  def _action(self, time_step, policy_state, seed):
    return policy_step.PolicyStep(
        tf.clip_by_value(time_step.observation[:, :1], -1, 1)
    )


class NormalizationTest(tf.test.TestCase):

  def test_episodes_and_frames(self):
    fitted = normalization.fit_normalization(_episodes())
    for episode in fitted.apply(_episodes()):
      self.assertAllClose(episode['steps']['observation'], _AROUND)
      # The action of the last step, 0, does not count: -3 to 1 are -1 to 1.
      action = episode['steps']['action']
      self.assertAllClose(action, [[-1], [1], [0.75], [0.5]])
    frames = trajectory.Trajectory(*[()] * 7)._replace(
        observation=tf.constant([[_MEAN, _MEAN + _STD]], tf.float32),
        action=tf.constant([[[-3], [1]]], tf.float32),
    )
    frames = fitted.apply_to_frames(frames)
    self.assertAllClose(frames.observation, [[[0, 0], [1, 1]]])
    self.assertAllClose(frames.action, [[[-1], [1]]])

  def test_integer_fields_are_unchanged(self):
    observation = np.arange(8, dtype=np.uint8).reshape(4, 2)
    data = _episodes(observation=observation, action=np.array([1, 0, 1, 0]))
    fitted = normalization.fit_normalization(data)
    for episode in fitted.apply(data):
      self.assertAllEqual(episode['steps']['observation'], observation)
      self.assertAllEqual(episode['steps']['action'], [1, 0, 1, 0])
    spec = ts.time_step_spec(_BOUNDED([2], tf.uint8, 0, 255))
    specs = spec, _BOUNDED([], tf.int64, 0, 1)
    self.assertEqual(normalization.normalize_specs(*specs), specs)

  def test_specs_of_floats(self):
    spec = _BOUNDED([2], tf.float32, -9, 9, 'o')
    time_step, action = normalization.normalize_specs(
        ts.time_step_spec(spec), _BOUNDED([1], tf.float32, -3, 1, 'a')
    )
    self.assertNotIsInstance(time_step.observation, _BOUNDED)
    self.assertAllEqual([action.minimum, action.maximum], [-1.0, 1.0])

  def test_saved_policy_takes_and_gives_raw_numbers(self):
    policy = normalization.DenormalizedPolicy(
        _Identity(),
        ts.time_step_spec(tf.TensorSpec([2], tf.float32)),
        _BOUNDED([1], tf.float32, -2.5, 1),
        normalization.fit_normalization(_episodes()),
    )
    directory = os.path.join(self.create_tempdir().full_path, 'policy')
    policy_saver.PolicySaver(policy).save(directory)
    normalised = np.array([[0.0], [0.5], [1.0], [7.0], [-1.0]])
    observation = tf.constant(_MEAN + _STD * normalised, tf.float32)
    step = ts.restart(observation, batch_size=5)
    # -1 .. 1 are -3 .. 1, and the environment takes no less than -2.5.
    expected = [[-1.0], [0.0], [1.0], [1.0], [-2.5]]
    for one in policy, tf.saved_model.load(directory):
      self.assertAllClose(one.action(step).action, expected)


if __name__ == '__main__':
  absltest.main()
