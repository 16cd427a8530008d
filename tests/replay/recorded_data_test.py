"""Tests that data as it is found comes out of a Reverb server right.

The data is recorded from real environments. Each test gives it one deviation
from RLDS that data sets have, writes it to disk so, and undoes it by a mapping.
What is sampled must be equal, bit by bit, to what was recorded, or to what a
plain Python loop makes of it.
"""

import os

from absl.testing import parameterized
import gym
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from tf_agents.replay_buffers import reverb_utils
import tree

from rlds2reverb.datasets import recording
from rlds2reverb.fields import step_mapping
from rlds2reverb.replay.server import push
from rlds2reverb.trajectories import specs
from rlds2reverb.transforms import images
from tests import recordings
from tests import testing

_MAPPING = step_mapping.StepMapping
_ACTIONS = (b'NOOP', b'FIRE', b'RIGHT', b'LEFT')


def _said(steps):
  # TensorFlow's strings are bytes, and may end with zeros.
  return b'balance \xc3\xa0 %d\0' % len(steps)


def _with_language(steps):
  return [
      {
          **step,
          'observation': {
              'image': step['observation']['pixels'],
              'language': _said(steps),
          },
      }
      for step in steps
  ]


def _shortened(steps):
  if len(steps) % 2:
    return [{**steps[0], 'is_last': np.bool_(True)}]
  return steps


_NAMED_ACTIONS = recordings.each(
    lambda step: {'action': _ACTIONS[step['action']]}
)

# Recordings, how the steps were changed, the mapping that undoes it, and what
# then differs from what was recorded.
_MAPPED = {
    'string_actions': ('breakout', _NAMED_ACTIONS, _MAPPING(), _NAMED_ACTIONS),
    'no_flags': (
        'cartpole',
        recordings.drop('is_first', 'is_last'),
        _MAPPING(is_first=None, is_last=None),
    ),
    'episodes_of_one_step': ('cartpole', _shortened, _MAPPING(), _shortened),
}


@pytest.mark.long
class RecordedDataTest(recordings.RecordedDataTestCase):

  @parameterized.product(name=recordings.NAMES, form=recordings.FORMS)
  def test_as_recorded(self, name, form):
    data = recordings.load(self.directories[name], form)
    self.check_sampled(data, self.steps(name))

  @parameterized.parameters(*_MAPPED)
  def test_mapped(self, case):
    self.check_mapped(*_MAPPED[case])

  def test_language_of_episodes(self):
    self.check_mapped(
        'cartpole_pixels',
        recordings.as_recorded,
        _MAPPING(
            observation={
                'image': 'observation/pixels',
                'language': '../task/said',
            }
        ),
        _with_language,
        metadata=lambda steps: {'task': {'said': _said(steps)}},
    )

  def test_images_of_a_size_that_the_data_set_leaves_open(self):
    self.check_mapped(
        'breakout', recordings.as_recorded, _MAPPING(), open_images=True
    )

  def test_images_that_stay_encoded_until_they_are_sampled(self):
    data = recordings.load(
        self.directories['breakout'],
        'stacked',
        {'steps': {'observation': tfds.decode.SkipDecoding()}},
    )
    self.assertEqual(data.element_spec['steps']['observation'].dtype, tf.string)
    sampled = self.push_and_sample(data)
    shown = [
        step['observation']
        for steps in self.steps('breakout')
        for pair in zip(steps, steps[1:])
        for step in pair
    ]
    encoded = np.array(
        [frame.observation for item in sampled for frame in item], object
    )
    nest = {'image': encoded}
    decoded = images.decode_images(nest, ['image'], size=(210, 160))
    np.testing.assert_array_equal(decoded['image'], np.stack(shown))
    scaled = images.decode_images(
        nest, ['image'], size=(210, 160), to_float=True
    )
    np.testing.assert_array_equal(
        scaled['image'], np.stack(shown) / np.float32(255)
    )

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
    for form in recordings.FORMS:
      data = recordings.load(path, form)
      sampled = tree.map_structure(
          lambda *leaves: np.concatenate(leaves), *_sample(data)
      )
      for field in ('observation', 'action', 'reward', 'discount'):
        np.testing.assert_array_equal(getattr(sampled, field), steps[field])
      self.assertAllEqual(sampled.step_type, [0] + [1] * 99_998 + [2])
      self.assertAllEqual(sampled.next_step_type, [1] * 99_998 + [2, 0])


def _sample(data):
  """Returns what a server gives of data in sequences of 1000 frames."""
  spec = specs.create_trajectory_data_spec(data)
  with testing.reverb_server(spec) as client:
    observer = reverb_utils.ReverbAddTrajectoryObserver(
        client, testing.TABLE, sequence_length=1000, stride_length=1000
    )
    push.push_rlds_to_reverb(data, observer)
    observer.close()
    samples = client.sample(
        testing.TABLE,
        num_samples=testing.size(client),
        emit_timesteps=False,
        unpack_as_table_signature=True,
    )
    return [sample.data for sample in samples]


if __name__ == '__main__':
  tf.test.main()
