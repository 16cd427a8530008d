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
from rlds2reverb.fields import mapping as mapping_lib
from rlds2reverb.fields import step_mapping
from rlds2reverb.replay.server import push
from rlds2reverb.trajectories import report as report_lib
from rlds2reverb.trajectories import rules as rules_lib
from rlds2reverb.trajectories import specs
from rlds2reverb.transforms import applying
from rlds2reverb.transforms import images
from tests import recordings
from tests import testing

_MAPPING = step_mapping.StepMapping


@pytest.mark.long
class RecordedDataTest(recordings.RecordedDataTestCase):

  def test_recordings_differ_in_all_that_could_be_mixed_up(self):
    ends = {
        name: {bool(s[-1]['is_terminal']) for s in self.steps(name)}
        for name in recordings.NAMES
    }
    self.assertEqual(
        ends,
        {
            'walker': {False},
            'cartpole_pixels': {False},
            'half_cheetah': {False},
            'breakout': {False, True},
            'cartpole': {False, True},
        },
    )
    for name in recordings.NAMES:
      for steps in self.steps(name):
        shown = {
            tuple(
                np.asarray(leaf).tobytes()
                for leaf in tree.flatten((step['observation'], step['action']))
            )
            for step in steps
        }
        # Else rows that change places would go unnoticed.
        self.assertGreater(len(shown), len(steps) / 3, name)

  @parameterized.product(name=recordings.NAMES, form=recordings.FORMS)
  def test_as_recorded(self, name, form):
    data = recordings.load(self.directories[name], form)
    self.check_sampled(data, self.steps(name))

  # Observations.

  def test_names_of_their_own(self):
    self.check_mapped(
        'cartpole_pixels',
        lambda steps: [
            {
                'state': step['observation'],
                'control': {'commands': step['action']},
                'gain': step['reward'],
                'gamma': step['discount'],
                'begin': step['is_first'],
                'timeout_or_done': step['is_last'],
                'done': step['is_terminal'],
            }
            for step in steps
        ],
        _MAPPING(
            observation={
                'camera': {'rgb': 'state/pixels', 'depth': 'state/depth'},
                'cart': {'position': 'state/position'},
            },
            action='control/commands',
            reward='gain',
            discount='gamma',
            is_first='begin',
            is_last='timeout_or_done',
            is_terminal='done',
        ),
        recordings.each(
            lambda step: {
                'observation': {
                    'camera': {
                        'rgb': step['observation']['pixels'],
                        'depth': step['observation']['depth'],
                    },
                    'cart': {'position': step['observation']['position']},
                }
            }
        ),
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

  def test_a_dummy_last_observation_is_cut(self):
    path = self.write_changed(
        'half_cheetah',
        lambda steps: [*steps[:-1], {**steps[-1], 'observation': np.zeros(17)}],
    )

    def cut(episode):
      steps = tf.nest.map_structure(lambda leaf: leaf[:-1], episode['steps'])
      return {**episode, 'steps': steps}

    for form in recordings.FORMS:
      data = recordings.load(path, form)
      data = applying.transform_episodes(data, [cut])
      data = mapping_lib.map_fields(data, _MAPPING(is_last=None))
      self.check_sampled(
          data,
          [
              [*s[:-2], {**s[-2], 'is_last': True}]
              for s in self.steps('half_cheetah')
          ],
      )

  @parameterized.parameters('said', '../task/said')
  def test_language(self, path):
    def instruction(steps):
      # TensorFlow's strings are bytes, and may end with zeros.
      return b'balance \xc3\xa0 %d\0' % len(steps)

    self.check_mapped(
        'cartpole_pixels',
        lambda steps: [{**step, 'said': instruction(steps)} for step in steps],
        _MAPPING(observation={'image': 'observation/pixels', 'language': path}),
        lambda steps: [
            {
                **step,
                'observation': {
                    'image': step['observation']['pixels'],
                    'language': instruction(steps),
                },
            }
            for step in steps
        ],
        metadata=lambda steps: {'task': {'said': instruction(steps)}},
    )

  @parameterized.parameters('breakout', 'cartpole_pixels')
  def test_images_of_a_size_that_the_data_set_leaves_open(self, name):
    self.check_mapped(
        name,
        recordings.as_recorded,
        _MAPPING(),
        open_images=True,
    )

  # Actions.

  def test_string_actions(self):
    names = (b'NOOP', b'FIRE', b'RIGHT', b'LEFT')
    change = recordings.each(lambda step: {'action': names[step['action']]})
    self.check_mapped('breakout', change, _MAPPING(), change)

  # Rewards and discounts.

  @parameterized.parameters('step', 'transition')
  def test_discounts_of_1_into_terminal_states(self, terminal_discount):
    change = recordings.each(lambda step: {'discount': np.float32(1)})
    path = self.write_changed('breakout', change)
    for form in recordings.FORMS:
      self.check_sampled(
          recordings.load(path, form),
          [change(steps) for steps in self.steps('breakout')],
          rules=rules_lib.ConversionRules(terminal_discount=terminal_discount),
      )

  # Ends of episodes.

  def test_is_last_is_never_set(self):
    self.check_mapped(
        'walker',
        recordings.each(lambda step: {'is_last': np.bool_(False)}),
        _MAPPING(is_last=None),
    )

  @parameterized.parameters(
      ('is_first',), ('is_last',), ('is_first', 'is_last')
  )
  def test_no_flags(self, *missing):
    self.check_mapped(
        'cartpole',
        recordings.drop(*missing),
        _MAPPING(**dict.fromkeys(missing)),
    )

  # Lengths of episodes.

  def test_episodes_of_one_step(self):
    def shorten(steps):
      if len(steps) % 2:
        return [{**steps[0], 'is_last': np.bool_(True)}]
      return steps

    self.assertLen({len(steps) % 2 for steps in self.steps('cartpole')}, 2)
    self.check_mapped('cartpole', shorten, _MAPPING(), shorten)

  def test_episodes_without_steps(self):
    path = os.path.join(self.create_tempdir().full_path, 'changed')
    first, *others = [{'steps': steps} for steps in self.steps('walker')]
    recordings.write([first, {'steps': []}, *others], path)
    for form in recordings.FORMS:
      data = mapping_lib.map_fields(recordings.load(path, form))
      report = report_lib.ConversionReport()
      self.check_sampled(
          data,
          self.steps('walker'),
          rules=rules_lib.ConversionRules(invalid_episodes='skip'),
          report=report,
      )
      self.assertEqual([e.episode for e in report.skipped_episodes], [1])

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
      spec = specs.create_trajectory_data_spec(data)
      with testing.reverb_server(spec) as client:
        observer = reverb_utils.ReverbAddTrajectoryObserver(
            client, testing.TABLE, sequence_length=1000, stride_length=1000
        )
        push.push_rlds_to_reverb(data, observer)
        sampled = tree.map_structure(
            lambda *leaves: np.concatenate(leaves), *_drain(client)
        )
        observer.close()
      for field in ('observation', 'action', 'reward', 'discount'):
        np.testing.assert_array_equal(getattr(sampled, field), steps[field])
      self.assertAllEqual(sampled.step_type, [0] + [1] * 99_998 + [2])
      self.assertAllEqual(sampled.next_step_type, [1] * 99_998 + [2, 0])


def _drain(client):
  return [
      sample.data
      for sample in client.sample(
          testing.TABLE,
          num_samples=testing.size(client),
          emit_timesteps=False,
          unpack_as_table_signature=True,
      )
  ]


if __name__ == '__main__':
  tf.test.main()
