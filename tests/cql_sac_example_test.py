"""TF-Agents' own CQL-SAC example, with one import swapped."""

import glob
import os
import sys
import types
from unittest import mock

from absl.testing import absltest
import numpy as np
import pytest
import rlds
import tensorflow as tf
from tf_agents.environments import suite_gym
from tf_agents.replay_buffers import rlds_to_reverb as theirs

from rlds2reverb import rlds_to_reverb
from rlds2reverb.datasets import loading
from rlds2reverb.datasets import recording

# The example imports D4RL for the names of its environments, and D4RL is on no
# package index. Its default for loading is a function that RLDS no longer has.
with mock.patch.dict(
    sys.modules, d4rl=types.ModuleType('d4rl')
), mock.patch.object(rlds, 'load', loading.load_episodes, create=True):
  from tf_agents.examples.cql_sac.kumar20 import cql_sac_train_eval as example

_NUM_STEPS = 4


@pytest.mark.long
class CqlSacExampleTest(tf.test.TestCase):

  def setUp(self):
    super().setUp()
    self.directory = os.path.join(self.create_tempdir().full_path, 'data')
    recording.record_episodes('Pendulum-v1', self.directory, 3, max_steps=20)
    self.enter_context(mock.patch.object(example, 'load_d4rl', suite_gym.load))

  def _train(self, load):
    """Runs the example; returns where it has written to."""
    root = self.create_tempdir().full_path
    example.train_eval(
        root,
        env_name='Pendulum-v1',
        dataset_name=self.directory,
        load_dataset_fn=load,
        num_gradient_updates=_NUM_STEPS,
        actor_fc_layers=(8,),
        critic_joint_fc_layers=(8,),
        batch_size=4,
        data_shuffle_buffer_size=100,
        eval_interval=_NUM_STEPS,
        policy_save_interval=_NUM_STEPS,
        eval_episodes=1,
        reward_shift=0.5,
        action_clipping=(-1.5, 1.5),
        seed=0,
    )
    return root

  def test_example_trains_with_one_import_swapped(self):
    self.assertIs(example.rlds_to_reverb, theirs)
    pushed = []

    def push(rlds_data, observer):
      """Records the frames that the example pushes, and the item count."""
      frames = list(rlds_to_reverb.convert_rlds_to_trajectories(rlds_data))
      count = rlds_to_reverb.push_rlds_to_reverb(rlds_data, observer)
      pushed.append((frames, count))
      return count

    swapped = types.SimpleNamespace(**vars(rlds_to_reverb))
    swapped.push_rlds_to_reverb = push
    with mock.patch.object(example, 'rlds_to_reverb', swapped):
      # The example maps nested steps, as `rlds.load` gives them.
      root = self._train(lambda name: _nested(loading.load_episodes(name)))
    ((frames, count),) = pushed
    self.assertEqual(count, 3 * 21)
    self.assertLen(frames, count)
    # The frames contain the rewards and actions that the example changed.
    rewards, actions = [], []
    for episode in loading.load_episodes(self.directory).as_numpy_iterator():
      rewards.extend(episode[rlds.STEPS][rlds.REWARD] + 0.5)
      actions.extend(np.clip(episode[rlds.STEPS][rlds.ACTION], -1.5, 1.5))
    self.assertAllClose([frame.reward for frame in frames], rewards)
    self.assertAllClose([frame.action for frame in frames], actions)
    self.assertNotEmpty(glob.glob(f'{root}/policies/policy/saved_model.pb'))
    self.assertNotEmpty(glob.glob(f'{root}/eval/events*'))
    self.assertNotEmpty(glob.glob(f'{root}/train/events*'))


def _nested(episodes):
  return episodes.map(
      lambda episode: {
          **episode,
          rlds.STEPS: tf.data.Dataset.from_tensor_slices(episode[rlds.STEPS]),
      }
  )


if __name__ == '__main__':
  absltest.main()
