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

from rlds2reverb.episodes import rlds
from rlds2reverb.training import normalization

_MEAN, _STD = np.array([5.0, -2.0]), np.array([2.0, 0.5])
_LOW, _HIGH = np.array([-3.0]), np.array([1.0])


def _episodes(discrete=False, observation=None):
  """Two episodes whose statistics are known."""
  around = np.array([[-1.0, 1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, -1.0]])
  action = np.array([[-3.0], [1.0], [0.5], [0.0]])
  steps = {
      rlds.OBSERVATION: np.float32(_MEAN + _STD * around)
      if observation is None
      else observation,
      rlds.ACTION: np.array([1, 0, 1, 0]) if discrete else np.float32(action),
      rlds.REWARD: np.ones(4, np.float32),
      rlds.DISCOUNT: np.ones(4, np.float32),
      rlds.IS_FIRST: np.arange(4) == 0,
      rlds.IS_LAST: np.arange(4) == 3,
      rlds.IS_TERMINAL: np.zeros(4, bool),
  }
  return tf.data.Dataset.from_tensors({rlds.STEPS: steps}).repeat(2)


class _Identity(tf_policy.TFPolicy):
  """Acts with the first number of its observation."""

  def __init__(self):
    super().__init__(
        ts.time_step_spec(tf.TensorSpec([2], tf.float32)),
        tensor_spec.BoundedTensorSpec([1], tf.float32, -1, 1),
    )

  def _action(self, time_step, policy_state, seed):
    return policy_step.PolicyStep(
        tf.clip_by_value(time_step.observation[:, :1], -1, 1)
    )


class NormalizationTest(tf.test.TestCase):

  def test_data_has_mean_0_deviation_1_and_actions_up_to_1(self):
    fitted = normalization.fit_normalization(_episodes())
    for episode in fitted.apply(_episodes()):
      steps = episode[rlds.STEPS]
      self.assertAllClose(
          steps[rlds.OBSERVATION], [[-1, 1], [1, -1], [1, 1], [-1, -1]]
      )
      # The action of the last step, 0, does not count: -3 to 1 are -1 to 1.
      self.assertAllClose(steps[rlds.ACTION], [[-1], [1], [0.75], [0.5]])

  def test_frames_are_normalised_as_episodes_are(self):
    fitted = normalization.fit_normalization(_episodes())
    frames = trajectory.Trajectory(*[()] * 7)._replace(
        observation=tf.constant([[_MEAN, _MEAN + _STD]], tf.float32),
        action=tf.constant([[_LOW, _HIGH]], tf.float32),
    )
    frames = fitted.apply_to_frames(frames)
    self.assertAllClose(frames.observation, [[[0, 0], [1, 1]]])
    self.assertAllClose(frames.action, [[[-1], [1]]])

  def test_what_is_not_of_floats_stays(self):
    observation = np.arange(8, dtype=np.uint8).reshape(4, 2)
    data = _episodes(discrete=True, observation=observation)
    fitted = normalization.fit_normalization(data)
    for episode in fitted.apply(data):
      self.assertAllEqual(episode[rlds.STEPS][rlds.OBSERVATION], observation)
      self.assertAllEqual(episode[rlds.STEPS][rlds.ACTION], [1, 0, 1, 0])
    spec = tensor_spec.BoundedTensorSpec([2], tf.uint8, 0, 255)
    action = tensor_spec.BoundedTensorSpec([], tf.int64, 0, 1)
    specs = normalization.normalized_specs(ts.time_step_spec(spec), action)
    self.assertEqual(specs, (ts.time_step_spec(spec), action))

  def test_specs_of_floats(self):
    spec = tensor_spec.BoundedTensorSpec([2], tf.float32, -9, 9, 'o')
    action = tensor_spec.BoundedTensorSpec([1], tf.float32, -3, 1, 'a')
    time_step, action = normalization.normalized_specs(
        ts.time_step_spec(spec), action
    )
    self.assertNotIsInstance(
        time_step.observation, tensor_spec.BoundedTensorSpec
    )
    self.assertAllEqual(action.minimum, -1.0)
    self.assertAllEqual(action.maximum, 1.0)

  def test_saved_policy_takes_and_gives_raw_numbers(self):
    fitted = normalization.fit_normalization(_episodes())
    policy = normalization.DenormalizedPolicy(
        _Identity(),
        ts.time_step_spec(tf.TensorSpec([2], tf.float32)),
        tensor_spec.BoundedTensorSpec([1], tf.float32, -2.5, 1),
        fitted,
    )
    directory = os.path.join(self.create_tempdir().full_path, 'policy')
    policy_saver.PolicySaver(policy).save(directory)
    normalised = np.array([0.0, 0.5, 1.0, 7.0, -1.0])
    step = ts.restart(
        tf.constant(
            np.stack([_MEAN[0] + _STD[0] * normalised, np.zeros(5)], 1),
            tf.float32,
        ),
        batch_size=5,
    )
    # -1 .. 1 are -3 .. 1, and the environment takes no less than -2.5.
    expected = [[-1.0], [0.0], [1.0], [1.0], [-2.5]]
    self.assertAllClose(policy.action(step).action, expected)
    loaded = tf.saved_model.load(directory)
    self.assertAllClose(loaded.action(step).action, expected)


if __name__ == '__main__':
  absltest.main()
