"""Tests of descriptions as plain values."""

import json

import numpy as np
import tensorflow as tf

from rlds2reverb.jobs import describe
from rlds2reverb.jobs.descriptions import description as description_lib
from tests import golden
from tests.jobs.descriptions import odd_data


class DescriptionTest(tf.test.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.episodes = odd_data.with_images()
    data = golden.stacked(cls.episodes).map(
        lambda episode: {**episode, 'task': 'push', 'seed': 7}
    )
    cls.description = describe.describe_episodes(data)

  def test_plain_values_are_those_of_numpy(self):
    # A NaN would be an error here, because JSON has none.
    plain = json.loads(self.description.to_json())
    steps = sum(map(golden.length_of, self.episodes))
    self.assertEqual(
        plain['counts'],
        {
            'episodes': 7,
            'empty': 0,
            'steps': steps,
            'transitions': steps - 7,
            'terminal': 0,
            'truncated': 7,
        },
    )
    returns = [episode['reward'][:-1].sum() for episode in self.episodes]
    self.assertAllClose(plain['returns']['mean'], np.mean(returns))
    self.assertAllClose(
        plain['returns']['quantiles']['0.5'], np.median(returns)
    )
    actions = np.concatenate(
        [episode['action'][:-1] for episode in self.episodes]
    )
    fields = {field['path']: field for field in plain['fields']}
    self.assertCountEqual(
        fields,
        ['task', 'seed']
        + [
            'steps/' + name
            for name in (
                'observation/position',
                'observation/fixed',
                'observation/image',
                'action',
                'reward',
                'discount',
                'is_first',
                'is_last',
                'is_terminal',
            )
        ],
    )
    action = fields['steps/action']
    self.assertEqual((action['dtype'], action['shape']), ('float32', [2]))
    self.assertAllClose(action['columns'][1]['std'], actions[:, 1].std())
    self.assertEqual(
        (action['min'], action['max']), (actions.min(), actions.max())
    )
    image = fields['steps/observation/image']
    self.assertEqual(
        (image['kind'], image['min'], image['max']), ('image', 0, 200)
    )
    self.assertEmpty(image['columns'])
    self.assertEqual(fields['task']['kind'], 'text')
    self.assertEqual((fields['seed']['min'], fields['seed']['max']), (7, 7))
    position = fields['steps/observation/position']
    self.assertEqual(
        [one['not_finite'] for one in position['columns']], [1, 1, 0]
    )

  def test_histograms(self):
    found = self.description.histograms
    self.assertEqual(
        list(found), ['lengths', 'returns', 'action[0]', 'action[1]', 'reward']
    )
    lengths = [golden.length_of(episode) - 1 for episode in self.episodes]
    counts = np.bincount(lengths, minlength=max(lengths) + 1)[min(lengths) :]
    self.assertEqual(found['lengths']['counts'], counts.tolist())
    self.assertEqual(found['lengths']['edges'][0], min(lengths) - 0.5)
    rewards = np.concatenate(
        [episode['reward'][:-1] for episode in self.episodes]
    )
    counts, edges = np.histogram(rewards, 40)
    self.assertEqual(found['reward']['counts'], counts.tolist())
    self.assertAllClose(found['reward']['edges'], edges)
    self.assertTrue(found['reward']['is_whole'])
    self.assertEqual(found['reward']['of'], rewards.size)

  def test_frames_are_only_there_if_asked_for(self):
    self.assertNotIn(
        'frames', json.loads(self.description.to_json())['episodes'][0]
    )
    episode = json.loads(self.description.to_json(frames=True))['episodes'][2]
    self.assertLen(
        episode['frames']['observation/image'], len(episode['frame_steps'])
    )
    self.assertContainsSubset(episode['frame_steps'], episode['steps'])
    self.assertIsNone(episode['curves']['action'][0][-1])
    self.assertAllClose(
        episode['curves']['action'][0][:-1], self.episodes[2]['action'][:-1, 0]
    )

  def test_nothing_at_all(self):
    plain = json.loads(description_lib.Description('nothing').to_json())
    self.assertEqual(plain['source'], 'nothing')
    self.assertEqual(plain['episodes'], [])


if __name__ == '__main__':
  tf.test.main()
