"""Tests of the batches that an agent learns from."""

import os

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from rlds2reverb import replay
from rlds2reverb.datasets import loading
from rlds2reverb.datasets import recording
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.training import cql_sac
from rlds2reverb.training import environments
from rlds2reverb.training import experience
from rlds2reverb.training import normalization
from rlds2reverb.training import recurrent_dqn

_NUM_STEPS = 6


class ExperienceTest(parameterized.TestCase, tf.test.TestCase):

  def setUp(self):
    super().setUp()
    directory = os.path.join(self.create_tempdir().full_path, 'data')
    recording.record_episodes('Pendulum-v1', directory, 2, max_steps=_NUM_STEPS)
    self.episodes = loading.load_episodes(directory)
    self.normalization = normalization.fit_normalization(self.episodes)

  def _open(self, reverb_server=False, algorithm=cql_sac.CqlSac()):
    return experience.open_experience(
        self.episodes,
        algorithm,
        self.normalization,
        experience.BatchOptions(16, reverb_server),
        seed=0,
    )

  def _check_batches(self, opened):
    """Checks that batches are of all normalised pairs, and of no others."""
    expected = []
    for episode in self.episodes.as_numpy_iterator():
      steps = episode['steps']
      fields = steps['observation'], steps['action'], steps['reward'][:, None]
      rows = np.concatenate(fields, axis=1)
      expected += [rows[[t, t + 1]] for t in range(_NUM_STEPS)]
    expected = np.array(expected)
    observations = np.concatenate(
        [
            episode['steps']['observation']
            for episode in self.episodes.as_numpy_iterator()
        ]
    )
    # The last step of an episode has no action.
    actions = expected[:, 0, 3]
    low, high = actions.min(), actions.max()
    expected[..., :3] -= observations.mean(0)
    expected[..., :3] /= observations.std(0)
    expected[..., 3] = 2 * (expected[..., 3] - low) / (high - low) - 1
    seen = set()
    for frames, _ in opened.as_dataset().take(20):
      self.assertEqual(frames.policy_info, ())
      batch = tf.concat(
          [frames.observation, frames.action, frames.reward[..., None]], -1
      ).numpy()
      self.assertEqual(batch.shape, (16, 2, 5))
      for item in batch:
        distance = np.abs(expected - item).max(axis=(1, 2))
        self.assertLess(distance.min(), 1e-4)
        seen.add(int(distance.argmin()))
    self.assertLen(seen, len(expected))

  @parameterized.parameters(False, True)
  def test_batches_are_of_normalised_items(self, reverb_server):
    with self._open(reverb_server) as opened:
      self._check_batches(opened)

  @pytest.mark.long
  def test_items_of_a_running_server_are_normalised(self):
    table = replay.open_replay_buffer(
        self.episodes, windows_lib.Windows(2), reverb_server=True
    )
    address = f'localhost:{table.local_server.port}'
    with self._open(address) as opened:
      self._check_batches(opened)
    # It is not stopped with the experience.
    self.assertNotEmpty(table.py_client.server_info(timeout=5))
    table.local_server.stop()

  def test_policy_info_that_is_needed_and_not_there(self):
    algorithm = recurrent_dqn.RecurrentDqn(stored_state=True)
    with self.assertRaisesRegex(ValueError, 'needs a policy_info'):
      with self._open(algorithm=algorithm):
        pass


class CheckFitsTest(absltest.TestCase):

  def test_lists_each_difference(self):
    directory = os.path.join(self.create_tempdir().full_path, 'data')
    recording.record_episodes('CartPole-v1', directory, 1, max_steps=3)
    data = loading.load_episodes(directory)
    for environment, differences in (
        ('CartPole-v1', None),
        (
            'Pendulum-v1',
            r'action is int64 \(\) in the data, and float32 \(1,\) in the'
            r' environment; observation is float32 \(4,\) in the data, and'
            r' float32 \(3,\)',
        ),
    ):
      env = environments.make_environment(environment, 0)
      arguments = (
          data,
          environment,
          tensor_spec.from_spec(env.time_step_spec()),
          tensor_spec.from_spec(env.action_spec()),
      )
      if differences is None:
        experience.check_fits(*arguments)
      else:
        with self.assertRaisesRegex(ValueError, differences):
          experience.check_fits(*arguments)


if __name__ == '__main__':
  absltest.main()
