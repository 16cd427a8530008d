"""Tests of descriptions as plain values."""

import glob
import json
import os

import numpy as np
import tensorflow as tf

from rlds2reverb.jobs import describing
from rlds2reverb.jobs.descriptions import description as description_lib
from rlds2reverb.jobs.descriptions import metadata
from rlds2reverb.jobs.descriptions import views
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
    cls.description = describing.describe(data)

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
    self.assertLen(fields, 11)
    action = fields['steps/action']
    self.assertEqual((action['dtype'], action['shape']), ('float32', [2]))
    self.assertAllClose(action['columns'][1]['std'], actions[:, 1].std())
    self.assertEqual(
        (action['min'], action['max']), (actions.min(), actions.max())
    )
    image = fields['steps/observation/image']
    self.assertEqual(
        (image['kind'], image['min'], image['shape']),
        ('image', None, [4, 5, 3]),
    )
    self.assertEmpty(image['columns'])
    self.assertEqual(fields['task']['kind'], 'text')
    position = fields['steps/observation/position']
    self.assertEqual(
        [one['not_finite'] for one in position['columns']], [1, 1, 0]
    )
    for column in action['columns']:
      for end in ('min', 'max'):
        episode, step = column[f'{end}_at']
        self.assertIn(column[end], self.episodes[episode]['action'][step])

  def test_histograms(self):
    found = self.description.histograms
    self.assertEqual(
        list(found), ['lengths', 'returns', 'action[0]', 'action[1]', 'reward']
    )
    lengths = [golden.length_of(episode) - 1 for episode in self.episodes]
    low = min(lengths)
    counts = np.bincount(np.array(lengths) - low)
    self.assertEqual(found['lengths']['counts'], counts.tolist())
    self.assertEqual(found['lengths']['edges'][0], low - 0.5)
    # Each bar names an episode with such a length.
    for bar, place in enumerate(found['lengths']['at']):
      self.assertEqual(place is None, counts[bar] == 0)
      if place:
        self.assertEqual(lengths[place[0]] - low, bar)
    rewards = np.concatenate(
        [episode['reward'][:-1] for episode in self.episodes]
    )
    counts, edges = np.histogram(rewards, 32)
    self.assertEqual(found['reward']['counts'], counts.tolist())
    self.assertAllClose(found['reward']['edges'], edges)
    self.assertTrue(found['reward']['is_whole'])
    self.assertEqual(found['reward']['of'], rewards.size)
    for bar, (episode, step) in (
        (bar, place) for bar, place in enumerate(found['reward']['at']) if place
    ):
      number = self.episodes[episode]['reward'][step]
      self.assertBetween(number, edges[bar], edges[bar + 1])

  def test_discrete_and_constant_numbers(self):
    episodes = [odd_data.make(index) for index in range(3)]
    for index, episode in enumerate(episodes):
      episode['action'] = np.array([0, 2, 2, index, 4, 0])
      episode['reward'] = np.full(6, 0.25)
    bounds = metadata.Bounds(
        0, 4, 'me', ['noop', 'fire', 'up', 'left', 'right']
    )
    found = describing.describe(
        golden.stacked(episodes), bounds={'action': bounds}
    ).histograms
    self.assertEqual(found['action']['values'], [0, 1, 2, 3, 4])
    self.assertEqual(found['action']['labels'], list(bounds.names))
    self.assertEqual(found['action']['counts'], [4, 1, 7, 0, 3])
    self.assertEqual(found['action']['at'][1], [1, 3])
    self.assertEqual(found['reward']['values'], [0.25])
    self.assertEqual(found['reward']['counts'], [15])

  def test_the_best_the_worst_the_longest_and_the_odd_are_shown(self):
    episodes = odd_data.clean(40)
    episodes[23]['is_first'][1] = True
    data = golden.stacked(episodes)
    shown = describing.describe(data, num_excerpts=9).episodes
    returns = [episode['reward'][:-1].sum() for episode in episodes]
    lengths = [golden.length_of(episode) for episode in episodes]
    for reason, expected in (
        ('highest return', np.argsort(returns)[-3:]),
        ('lowest return', np.argsort(returns)[:3]),
        ('longest', np.argsort(-np.array(lengths), kind='stable')[:3]),
    ):
      found = [one['episode'] for one in shown if reason in one['reasons']]
      self.assertCountEqual(found, expected)
    (odd,) = [one for one in shown if 'several first' in one['reasons']]
    self.assertEqual(odd['episode'], 23)
    # With room, every bar of returns and lengths has its episode.
    found = describing.describe(data).histograms
    for name in ('returns', 'lengths'):
      for count, place in zip(found[name]['counts'], found[name]['at']):
        self.assertEqual(count > 0, place is not None)
    self.assertEmpty(describing.describe(data, num_excerpts=0).episodes)

  def test_an_instruction_of_steps_or_of_the_episode(self):
    # `setUpClass` has given the episodes a task.
    self.assertEqual(
        {one['instruction'] for one in self.description.episodes}, {'push'}
    )
    episodes = [odd_data.make(index) for index in range(2)]
    for index, episode in enumerate(episodes):
      episode['observation']['natural_language_instruction'] = np.array(
          [f'open drawer {index}'] * 6
      )
      episode['observation']['name'] = np.array(['robot'] * 6)
    found = describing.describe(golden.stacked(episodes))
    self.assertEqual(
        {one['episode']: one['instruction'] for one in found.episodes},
        {0: 'open drawer 0', 1: 'open drawer 1'},
    )

  def test_frames_are_only_there_if_asked_for(self):
    self.assertNotIn(
        'frames', json.loads(self.description.to_json())['episodes'][0]
    )
    episodes = json.loads(self.description.to_json(frames=True))['episodes']
    (episode,) = [one for one in episodes if one['episode'] == 2]
    self.assertLen(
        episode['frames']['observation/image'], len(episode['frame_steps'])
    )
    self.assertContainsSubset(episode['frame_steps'], episode['steps'])
    self.assertIsNone(episode['curves']['action'][0][-1])
    self.assertAllClose(
        episode['curves']['action'][0][:-1], self.episodes[2]['action'][:-1, 0]
    )

  def test_nothing_at_all(self):
    nothing = description_lib.Description('nothing')
    plain = json.loads(nothing.to_json())
    self.assertEqual((plain['source'], plain['episodes']), ('nothing', []))
    self.assertEqual(views.to_text(nothing), 'nothing\n')

  def test_as_text(self):
    found = views.to_text(self.description)
    self.assertStartsWith(found, 'episodes\n\n7 episodes\n')
    mean = views.number(self.description.returns['mean'])
    for line in (
        r'observation/position +float32 +\(3\)',
        r'observation/image +uint8 image +\(4, 5, 3\) +- +-\n',
        rf'\n  returns +{mean} ',
        'In 1 of 7 episodes, observation/position has 2',
    ):
      self.assertRegex(found, line)
    for value, expected in (
        (None, '-'),
        (3.0, '3'),
        (123456, '123,456'),
        (0.125, '0.125'),
        (1 / 3, '0.3333'),
        (-2e-7, '-2e-07'),
        (1.5e9, '1.5e+09'),
        (0, '0'),
    ):
      self.assertEqual(views.number(value), expected)

  def test_as_summaries(self):
    folder = self.create_tempdir().full_path
    views.write_summaries(self.description, folder)
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
    (shown,) = [one for one in self.description.episodes if one['episode'] == 2]
    frames = values['episode 2/observation/image']
    self.assertEqual([step for step, _ in frames], shown['frame_steps'])
    # The width and the height, and a PNG.
    self.assertEqual(frames[0][1][:2].tolist(), [b'5', b'4'])
    self.assertIn(b'NaN or infinite', values['what is odd'][0][1].item())


if __name__ == '__main__':
  tf.test.main()
