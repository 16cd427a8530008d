"""Tests of descriptions as plain values, and as text and summaries."""

import glob
import json
import os

import numpy as np
import tensorflow as tf

from rlds2reverb.jobs import describe
from rlds2reverb.jobs.descriptions import description as description_lib
from rlds2reverb.jobs.descriptions import summaries
from rlds2reverb.jobs.descriptions import text
from tests import golden
from tests.jobs.descriptions import odd_data


class DescriptionTest(tf.test.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.episodes = odd_data.clean(6) + [odd_data.EPISODES[odd_data.WITH_NAN]]
    for episode in cls.episodes:
      image = np.zeros([golden.length_of(episode), 4, 5, 3], np.uint8)
      image[:, 1, 2, 0] = 200
      episode['observation']['image'] = image
    data = golden.stacked(cls.episodes).map(
        lambda episode: {**episode, 'task': 'push', 'seed': 7}
    )
    cls.description = describe.describe_episodes(data, name='odd')

  def test_plain_values_are_those_of_numpy(self):
    # A NaN would be an error here, because JSON has none.
    plain = json.loads(self.description.to_json())
    steps = sum(map(golden.length_of, self.episodes))
    self.assertEqual(
        plain['counts'],
        {
            'episodes': 7, 'empty': 0, 'steps': steps,
            'transitions': steps - 7, 'terminal': 0, 'truncated': 7,
        },
    )
    returns = [episode['reward'][:-1].sum() for episode in self.episodes]
    self.assertAllClose(plain['returns']['mean'], np.mean(returns))
    self.assertAllClose(plain['returns']['quantiles']['0.5'], np.median(returns))
    actions = np.concatenate(
        [episode['action'][:-1] for episode in self.episodes]
    )
    fields = {field['path']: field for field in plain['fields']}
    self.assertCountEqual(
        fields,
        ['task', 'seed']
        + ['steps/' + name for name in (
            'observation/position', 'observation/fixed', 'observation/image',
            'action', 'reward', 'discount', 'is_first', 'is_last',
            'is_terminal',
        )],
    )
    action = fields['steps/action']
    self.assertEqual((action['dtype'], action['shape']), ('float32', [2]))
    self.assertAllClose(action['columns'][1]['std'], actions[:, 1].std())
    self.assertEqual((action['min'], action['max']),
                     (actions.min(), actions.max()))
    image = fields['steps/observation/image']
    self.assertEqual((image['kind'], image['min'], image['max']),
                     ('image', 0, 200))
    self.assertEmpty(image['columns'])
    self.assertEqual(fields['task']['kind'], 'text')
    self.assertEqual((fields['seed']['min'], fields['seed']['max']), (7, 7))
    position = fields['steps/observation/position']
    self.assertEqual([one['not_finite'] for one in position['columns']],
                     [1, 1, 0])

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
    self.assertNotIn('frames', json.loads(self.description.to_json())[
        'episodes'][0])
    episode = json.loads(self.description.to_json(frames=True))['episodes'][2]
    self.assertLen(
        episode['frames']['observation/image'], len(episode['frame_steps'])
    )
    self.assertContainsSubset(episode['frame_steps'], episode['steps'])
    self.assertIsNone(episode['curves']['action'][0][-1])
    self.assertAllClose(
        episode['curves']['action'][0][:-1], self.episodes[2]['action'][:-1, 0]
    )

  def test_as_text(self):
    found = text.to_text(self.description)
    self.assertStartsWith(found, 'odd\n\n7 episodes\n')
    self.assertRegex(found, r'    position +float32 +\(3\)')
    self.assertRegex(found, r'    image +uint8 image +\(4, 5, 3\) +0 +200\n')
    mean = text.number(self.description.returns['mean'])
    self.assertRegex(found, rf'\n  returns +{mean} ')
    self.assertIn('In 1 of 7 episodes, observation/position has 2', found)

  def test_nothing_at_all(self):
    found = text.to_text(description_lib.Description('nothing'))
    self.assertEqual(found, 'nothing\n')
    json.loads(description_lib.Description('nothing').to_json())

  def test_numbers_are_short(self):
    for value, expected in (
        (None, '-'), (3.0, '3'), (123456, '123,456'), (0.125, '0.125'),
        (1 / 3, '0.3333'), (-2e-7, '-2e-07'), (1.5e9, '1.5e+09'), (0, '0'),
    ):
      self.assertEqual(text.number(value), expected)

  def test_summaries(self):
    folder = self.create_tempdir().full_path
    summaries.write_summaries(self.description, folder)
    (file,) = glob.glob(os.path.join(folder, 'events*'))
    values = {}
    for record in tf.data.TFRecordDataset(file).as_numpy_iterator():
      event = tf.compat.v1.Event.FromString(record)
      for value in event.summary.value:
        values.setdefault(value.tag, []).append(
            (event.step, tf.make_ndarray(value.tensor))
        )
    ((step, mean),) = values['returns/mean']
    self.assertEqual(step, 0)
    self.assertAllClose(mean, self.description.returns['mean'])
    ((_, bins),) = values['histograms/lengths']
    histogram = self.description.histograms['lengths']
    self.assertEqual(bins[:, 2].tolist(), histogram['counts'])
    self.assertEqual(bins[:, 0].tolist(), histogram['edges'][:-1])
    self.assertLen(values['returns along the data set'], 7)
    frames = values['episode 2/observation/image']
    self.assertEqual(
        [step for step, _ in frames],
        self.description.episodes[2]['frame_steps'],
    )
    # The width and the height, and a PNG.
    self.assertEqual(frames[0][1][:2].tolist(), [b'5', b'4'])
    self.assertIn(b'NaN or infinite', values['what is odd'][0][1].item())


if __name__ == '__main__':
  tf.test.main()
