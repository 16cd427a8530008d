"""Tests that data as it is found comes out of a Reverb server right.

The data is recorded from real environments. What is sampled must be equal, bit
by bit, to what was recorded.
"""

import os
import tempfile

from absl.testing import parameterized
import gym
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from tf_agents.replay_buffers import reverb_utils

from rlds2reverb.datasets import loading
from rlds2reverb.datasets import recording
from rlds2reverb.replay.server import push
from rlds2reverb.transforms import images
from tests import contract
from tests import golden
from tests import recordings
from tests import testing

_FRAME_FIELDS = (
    'observation',
    'action',
    'reward',
    'discount',
    'is_first',
    'is_last',
    'is_terminal',
)


def _load(path, decoders=None):
  """Yields the data as users load it: stacked by us, and nested by TFDS."""
  yield loading.load_episodes(path, decoders=decoders)
  if decoders is None:
    yield tfds.builder_from_directory(path).as_dataset(split='train')


def _sample(data, length=2, stride=1):
  """Pushes episodes; returns the sequences that a server gives, in order."""
  with testing.reverb_server(data) as client:
    observer = reverb_utils.ReverbAddTrajectoryObserver(
        client, testing.TABLE, sequence_length=length, stride_length=stride
    )
    push.push_rlds_to_reverb(data, observer)
    observer.close()
    return testing.drain(client)


@pytest.mark.long
class RecordedDataTest(parameterized.TestCase, tf.test.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = cls.enter_context(tempfile.TemporaryDirectory())
    cls.paths = {
        name: os.path.join(recordings.FOLDER, name) for name in recordings.NAMES
    }
    # What needs nothing that a user does not have is recorded anew.
    cls.paths['cartpole'] = os.path.join(folder, 'cartpole')
    recording.record_episodes(
        'CartPole-v1', cls.paths['cartpole'], 4, max_steps=15, seed=3
    )

  @parameterized.parameters(*recordings.NAMES, 'cartpole')
  def test_as_recorded(self, name):
    expected = []
    for steps in recordings.read(self.paths[name]):
      rows = [{key: step[key] for key in _FRAME_FIELDS} for step in steps]
      frames = golden.expected_frames([contract.stack(rows)])
      expected += [each for pair in zip(frames, frames[1:]) for each in pair]
    for data in _load(self.paths[name]):
      sampled = _sample(data)
      self.assertEqual({len(item) for item in sampled}, {2})
      golden.assert_frames_equal(self, sum(sampled, []), expected)

  def test_images_that_stay_encoded_until_they_are_sampled(self):
    path = self.paths['breakout']
    skip = {'steps': {'observation': tfds.decode.SkipDecoding()}}
    [data] = _load(path, skip)
    self.assertEqual(data.element_spec['steps']['observation'].dtype, tf.string)
    shown = np.stack(
        [
            step['observation']
            for steps in recordings.read(path)
            for pair in zip(steps, steps[1:])
            for step in pair
        ]
    )
    encoded = [frame.observation for item in _sample(data) for frame in item]
    nest = {'image': np.array(encoded, object)}
    for to_float, expected in (False, shown), (True, shown / np.float32(255)):
      decoded = images.decode_images(
          nest, ['image'], size=(210, 160), to_float=to_float
      )
      np.testing.assert_array_equal(decoded['image'], expected)

  def test_an_episode_of_100_000_steps(self):
    gym.register(
        'Endless-v0', entry_point='gym.envs.classic_control:CartPoleEnv'
    )
    self.addCleanup(gym.envs.registry.env_specs.pop, 'Endless-v0')
    path = os.path.join(self.create_tempdir().full_path, 'endless')
    recording.record_episodes(
        'Endless-v0',
        path,
        1,
        # Enough to keep the pole up.
        policy=lambda o: int(o @ [1.0, 1.6, 18.7, 3.5] > 0),
        max_steps=99_999,
    )
    (episode,) = tfds.builder_from_directory(path).as_dataset(split='train')
    (steps,) = tfds.as_numpy(episode['steps'].batch(100_000))
    for data in _load(path):
      sampled = sum(_sample(data, 1000, 1000), [])
      for field in ('observation', 'action', 'reward', 'discount'):
        found = np.stack([getattr(frame, field) for frame in sampled])
        np.testing.assert_array_equal(found, steps[field])
      self.assertEqual(
          [int(frame.step_type) for frame in sampled], [0] + [1] * 99_998 + [2]
      )


if __name__ == '__main__':
  tf.test.main()
