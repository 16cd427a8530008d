"""Holds descriptions to what numpy finds in the same episodes."""

import base64
import glob
import json
import os

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf

from rlds2reverb.episodes import paths
from rlds2reverb.jobs import describing
from rlds2reverb.jobs.descriptions import description as description_lib
from rlds2reverb.jobs.descriptions import reading
from rlds2reverb.jobs.descriptions import views
from rlds2reverb.statistics import compute
from tests import golden
from tests.jobs.descriptions import odd_data


def _describe(episodes, form=golden.stacked, **kwargs):
  return describing.describe(form(episodes), **kwargs)


def _oddities(found):
  return {
      (oddity['kind'], oddity['field']): oddity for oddity in found.oddities
  }


class DescriptionTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.named_parameters(*golden.FORMS_AND_BATCHES.items())
  @pytest.mark.few(1)
  def test_numbers_and_excerpts(self, form):
    # Short episodes, a long one, and one without steps.
    episodes = odd_data.clean(40)
    episodes += [odd_data.make(7, 1000), odd_data.make(1, 0)]
    episodes[4]['observation']['position'][3, 1] = np.nan
    # A NaN would be an error here, because JSON has none.
    actual = json.loads(_describe(episodes, form).to_json())
    expected = compute.compute_statistics(golden.stacked(episodes))
    lengths = list(map(golden.length_of, episodes))
    self.assertEqual(
        list(actual['counts'].values()),
        [42, 1, sum(lengths), sum(lengths) - 41, 0, 41],
    )
    self.assertAllClose(actual['returns']['mean'], expected.returns.mean, 1e-12)
    self.assertEqual(
        actual['lengths']['quantiles']['0.5'], expected.lengths.quantiles[0.5]
    )
    fields = {field['path']: field for field in actual['fields']}
    self.assertEqual(fields['steps/is_last']['kind'], 'flag')
    for name, field in expected.fields.items():
      one = fields[f'steps/{name}']
      for index, place in enumerate(np.ndindex(field.mean.shape)):
        column = one['columns'][index]
        for key in ('mean', 'std', 'min', 'max', 'count'):
          number = getattr(field, key)[place]
          self.assertAllClose(column[key], number, 1e-12, 1e-12)
        for end in ('min', 'max'):
          episode, step = column[f'{end}_at']
          values = paths.leaves(episodes[episode])[name]
          number = values.reshape([lengths[episode], -1])
          self.assertEqual(number[step, index], column[end])
    returns = [episode['reward'][:-1].sum() for episode in episodes]
    self.assertAllClose(
        [bin['mean'] for bin in actual['order']], returns[:-1], 1e-12
    )
    self.assertEqual([bin['first'] for bin in actual['order']], [*range(41)])
    # The best, the worst, the longest and the odd episodes are shown.
    best = np.argsort(returns[:-1])
    shown = {episode['episode']: episode for episode in actual['episodes']}
    for reason, some in (
        ('highest return', best[-3:]),
        ('lowest return', best[:3]),
        ('longest', np.argsort(lengths)[-3:]),
        ('not finite', [4]),
        ('empty', [41]),
    ):
      self.assertCountEqual(
          [at for at, one in shown.items() if reason in one['reasons']], some
      )
    for index, one in shown.items():
      steps, length = one['steps'], lengths[index]
      self.assertContainsSubset({0, length - 1} if length else (), steps)
      self.assertBetween(len(steps), min(length, 200), 300)
      self.assertLessEqual(max(np.diff(steps), default=0), -(-length // 199))
      inside = [step for step in steps if step < length - 1]
      curve = one['curves']['action'][0]
      self.assertAllClose(
          curve[: len(inside)], episodes[index]['action'][inside, 0], 1e-6
      )
      self.assertEqual(curve[len(inside) :], [None] * bool(length))

  def test_each_oddity_with_its_number_and_its_first_episode(self):
    actual = _describe(odd_data.EPISODES)
    oddities = _oddities(actual)
    self.assertLen(oddities, len(actual.oddities))
    position = 'observation/position'
    self.assertEqual(
        {
            key: (oddity['num_episodes'], oddity['episode'], oddity['step'])
            for key, oddity in oddities.items()
        },
        {
            ('empty', None): (1, odd_data.EMPTY, None),
            ('invalid', None): (1, odd_data.INVALID, None),
            ('zero_rewards', None): (1, odd_data.ZERO_REWARDS, None),
            ('duplicates', None): (1, odd_data.DUPLICATE, None),
            ('bootstraps', None): (1, odd_data.BOOTSTRAPS, 4),
            ('last_reward', None): (1, odd_data.LAST_REWARD, 5),
            ('last_is_dummy', None): (1, odd_data.DUMMY, 5),
            ('not_finite', position): (1, odd_data.WITH_NAN, 2),
            ('outside_unit', 'action'): (1, odd_data.OUTSIDE, 1),
            ('constant', 'observation/fixed'): (10, None, None),
        },
    )
    for key, message in (
        (
            ('not_finite', position),
            'In 1 of 11 episodes, observation/position has 2 numbers that are'
            ' NaN or infinite. The first is episode 5, step 2.',
        ),
        (
            ('outside_unit', 'action'),
            'action has 2 of 90 values outside -1 to 1, where nearly all the',
        ),
        (('duplicates', None), 'is episode 7, which repeats episode 0.'),
        (
            ('constant', 'observation/fixed'),
            'constant in 2 of its 2 numbers, [0] (0.5), [1] (1.5).',
        ),
    ):
      self.assertIn(message, oddities[key]['message'])
    # They are in the text as well.
    text = views.to_text(actual)
    self.assertStartsWith(text, 'episodes\n\n11 episodes\n')
    for line in (
        r'observation/position +float32 +\(3\)',
        rf'\n  returns +{views.number(actual.returns["mean"])} ',
        *(oddity['message'][:30] for oddity in actual.oddities),
    ):
      self.assertRegex(text, line)
    rows = dict(views.statistics_rows(actual, 1))[position]
    self.assertEqual(
        [row[0] for row in rows], [f'{position}[0]', f'{position}: 2 more']
    )
    rows = dict(views.statistics_rows(actual, 1))['reward']
    self.assertEqual([row[0] for row in rows], ['reward'])

  @parameterized.parameters(
      ('next_observation', np.float32([1, 2, 3, 11, 12, 0])),
      ('next_observation', np.float32([1, 2, 3, 11, 12, 13])),
      ('timeouts', [0, 0, 1, 0, 1, 0]),
      ('truncated', [False, False, True, False, False, True]),
      ('episode_starts', [1, 0, 0, 1, 0, 0]),
      ('traj_id', [4, 4, 4, 7, 7, 0]),
      ('timestamp', [0.0, 0.1, 0.2, 0.0, 0.1, 0.0]),
  )
  def test_joined_trajectories(self, name, values):
    observation = np.float32([0, 1, 2, 10, 11, 12])
    good = golden.make_episode([1] * 6, terminal=False)
    good |= {'observation': observation, name: np.asarray(values)}
    joined, fine = dict(good), dict(good)
    fine['observation'] = np.arange(6, dtype=np.float32)
    fine[name] = {
        'next_observation': np.float32([1, 2, 3, 4, 5, 0]),
        'traj_id': np.full(6, 3),
        'timestamp': np.float64([0, 0.1, 0.2, 0.3, 0.4, 0]),
    }.get(name, np.array([0, 0, 0, 0, 1, 0], np.asarray(values).dtype))
    if name == 'episode_starts':
      fine[name] = np.array([1, 0, 0, 0, 0, 1])
    fine[name] = fine[name].astype(joined[name].dtype)
    actual = _oddities(_describe([fine, joined, fine]))
    one = actual.get(('joined', None))
    self.assertIsNotNone(one, actual)
    self.assertEqual((one['num_episodes'], one['episode']), (1, 1))
    self.assertEqual(one['step'], 2)

  def test_actions_that_are_clipped(self):
    rng = np.random.default_rng(0)
    free = rng.uniform(-1, 1, 300)
    clipped = np.clip(rng.normal(size=300), -1, 1)
    episode = odd_data.make(0, 301)
    episode['action'] = {
        name: np.stack([np.append(column, 0) for column in columns], 1).astype(
            'f4'
        )
        for name, columns in {
            'unit': [free, clipped],
            # Whatever the range is, and though a few are outside of it.
            'five': [5 * clipped, free],
            'beyond': [np.append([7, 7, 7], clipped[3:]), free],
            # A gripper, open or closed, is not clipped.
            'gripper': [np.sign(free), free > 0],
        }.items()
    }
    actual = _oddities(_describe([episode]))
    odd = actual['saturated', 'action/unit']
    shares = [f'{np.mean(clipped == end):.0%}' for end in (-1, 1)]
    self.assertEqual(
        odd['message'],
        '1 of 2 numbers of action/unit are often exactly at an end of their'
        f' range, as if they were clipped: action/unit[1] is -1 in {shares[0]}'
        f' and 1 in {shares[1]} of the steps.',
    )
    self.assertEqual(abs(clipped[odd['step']]), 1)
    odd = actual['saturated', 'action/five']
    self.assertIn('action/five[0] is -5 in', odd['message'])
    self.assertContainsSubset(
        [(kind, 'action/beyond') for kind in ('outside_unit', 'saturated')],
        actual,
    )
    self.assertNotIn(('saturated', 'action/gripper'), actual)

  def test_bounds(self):
    # Bounds are applied with a tolerance for rounding. Without bounds, values
    # far outside of -1 to 1 are not reported.
    episodes = odd_data.clean(5)
    for episode in episodes:
      action = 10 * episode['action']
      episode['action'] = dict.fromkeys(('near', 'far', 'free'), action)
    highest = max(
        episode['action']['far'][:-1, 1].max() for episode in episodes
    )
    bounds = {
        ('action', name): reading.Bounds(-10, np.array([10, high]), 'me')
        for name, high in (('near', highest - 1e-7), ('far', highest - 0.1))
    }
    actual = _oddities(_describe(episodes, bounds=bounds))
    odd = actual.pop(('outside_bounds', 'action/far'))
    self.assertIn('outside the bounds of me', odd['message'])
    self.assertEqual([kind for kind, _ in actual], ['constant'])
    for name, low, message in (
        ('acton', 0, 'Did you mean action'),
        ('observation', 0, 'observation cannot have bounds'),
        ('action/far', [0, 0, 0], r'must have its shape \(2,\), but they are'),
    ):
      bounds = {name: reading.Bounds(low, 1, 'me')}
      with self.assertRaisesRegex(ValueError, message):
        _describe(episodes, bounds=bounds)
    for name, ends in ('CartPole-v1', (0, 1)), ('Pendulum-v1', (-2, 2)):
      (actual,) = describing.get_environment_bounds(name).items()
      source = f'the environment {name}'
      self.assertEqual(actual[0], 'action')
      self.assertEqual(
          (float(actual[1].low), float(actual[1].high), actual[1].source),
          (*ends, source),
      )

  def test_histograms(self):
    episodes = odd_data.clean(9)
    lengths = [golden.length_of(episode) - 1 for episode in episodes]
    for index, episode in enumerate(episodes):
      episode['action'] = np.zeros(lengths[index] + 1, int)
      episode['action'][:2] = [2, 4]
    names = ['noop', 'fire', 'up', 'left', 'right']
    bounds = {'action': reading.Bounds(0, 4, 'me', names)}
    actual = _describe(episodes, bounds=bounds).histograms
    self.assertEqual([*actual], ['lengths', 'returns', 'action', 'reward'])
    self.assertEqual(actual['lengths']['edges'][0], min(lengths) - 0.5)
    self.assertEqual(sum(actual['lengths']['counts']), 9)
    rewards = np.concatenate([episode['reward'][:-1] for episode in episodes])
    counts, edges = np.histogram(rewards, 32)
    self.assertEqual(actual['reward']['counts'], counts.tolist())
    self.assertAllClose(actual['reward']['edges'], edges)
    self.assertTrue(actual['reward']['is_whole'])
    self.assertEqual(actual['action']['values'], [0, 1, 2, 3, 4])
    self.assertEqual(actual['action']['labels'], names)
    self.assertEqual(actual['action']['counts'][1::2], [0, 0])
    actual = _describe([odd_data.make(0)], num_excerpts=0)
    self.assertEmpty(actual.episodes)
    constant = actual.histograms['returns']
    self.assertEqual((constant['counts'], len(constant['values'])), ([1], 1))

  def test_spread_covers_the_entire_range(self):
    # The range grows from block to block.
    numbers = np.sort(np.random.default_rng(2).exponential(size=3000))
    numbers[7] = np.nan
    sample = np.zeros(0)
    for block in np.array_split(numbers, 40):
      sample = np.append(sample, block)
      sample = np.sort(sample[reading.spread(sample)])
    finite = np.sort(numbers[np.isfinite(numbers)])
    self.assertLessEqual(len(sample), 2 * reading.NUM_BARS + 8)
    self.assertAllEqual(sample[:3], finite[:3])
    self.assertAllEqual(sample[-3:], finite[-3:])
    edges = np.linspace(finite[0], finite[-1], reading.NUM_BARS + 1)
    self.assertAllEqual(
        np.histogram(finite, edges)[0] > 0, np.histogram(sample, edges)[0] > 0
    )

  def test_images_and_instructions(self):
    # TensorFlow may write into arrays that begin at a multiple of 64 bytes.
    images = np.zeros(4 * 5 * 3 * 6 + 64, np.uint8)
    images = images[-images.ctypes.data % 64 :][: 4 * 5 * 3 * 6]
    images = images.reshape([6, 4, 5, 3])
    images[:, 1, 2, 0] = 200
    before = images.copy()
    episode = odd_data.make(0)
    episode['observation'].update(
        image=images,
        natural_language_instruction=np.array([b'open drawer'] * 6, object),
        nothing=np.zeros([6, 0], np.float32),
    )
    data = golden.stacked([episode])
    actual = describing.describe(data)
    self.assertAllEqual(images, before)
    (one,) = json.loads(actual.to_json(frames=True))['episodes']
    self.assertEqual(one['instruction'], 'open drawer')
    self.assertLen(one['frames']['observation/image'], len(one['frame_steps']))
    self.assertContainsSubset(one['frame_steps'], one['steps'])
    self.assertNotIn('frames', json.loads(actual.to_json())['episodes'][0])
    self._check_summaries(actual, one)
    fields = {field['path']: field for field in actual.fields}
    image = fields['steps/observation/image']
    self.assertEqual((image['kind'], image['shape']), ('image', [4, 5, 3]))
    self.assertEmpty(image['columns'])
    # One of the episode counts if the steps have none; or there are no images.
    del episode['observation']['natural_language_instruction']
    data = golden.stacked([episode]).map(lambda one: {**one, 'task': 'push'})
    (one,) = describing.describe(data).episodes
    self.assertEqual(one['instruction'], 'push')
    for colour in (0, 80):
      image = np.full([300, 200, 3], colour, np.uint8)
      for kind, shown in (
          (image, colour),
          (np.concatenate([image, 0 * image[..., :1]], -1), colour),
          (image[..., :1], colour),
          # Depth is scaled to the greatest of each image.
          (image[..., :1].astype(np.uint16) * 100, 255 if colour else 0),
      ):
        jpeg = base64.b64decode(reading.to_jpeg(kind))
        decoded = tf.io.decode_jpeg(jpeg).numpy()
        self.assertEqual(decoded.shape, (128, 85, 3))
        self.assertAllClose(decoded, np.full_like(decoded, shown), atol=2)

  @parameterized.product(
      color=[(0, 0, 0), (90, 90, 90), (10, 200, 30)],
      encode=[None, tf.io.encode_png, tf.io.encode_jpeg],
  )
  def test_cameras_of_a_single_color(self, color, encode):
    def images(*numbers):
      frames = np.full([len(numbers), 16, 12, 3], color, np.uint8)
      for frame, number in zip(frames, numbers):
        frame[3:9, 4:8] += np.uint8(number)
      if encode is None:
        return frames
      return np.array([encode(frame).numpy() for frame in frames], object)

    episodes = odd_data.clean(3)
    for index, episode in enumerate(episodes):
      count = len(episode['reward'])
      zeros = [0] * count
      # Two episodes of one camera are plain; another one is frozen.
      episode['observation'].update(
          plain=images(*zeros),
          partly=images(*(zeros if index else range(0, 40 * count, 40))),
          frozen=images(*([40] * count)),
          live=images(*range(0, 40 * count, 40)),
          text=np.array([b'open drawer'] * count, object),
      )
    found = _oddities(_describe(episodes))
    name = 'black' if not any(color) else r'\(\d+, \d+, \d+\)'
    for field, pattern, count, episode in (
        ('plain', f'every frame of .* is a single color: {name}', 3, 0),
        ('partly', f'every frame of .* is a single color: {name}', 2, 1),
        ('frozen', 'all frames of .* are the same image', 3, None),
    ):
      one = found.pop(('constant', f'observation/{field}'))
      self.assertRegex(one['message'], f'^In {count} of 3 episodes, {pattern}')
      self.assertEqual((one['num_episodes'], one['episode']), (count, episode))
    left = [field for kind, field in found if kind == 'constant']
    self.assertNotIn('observation/live', left)
    self.assertNotIn('observation/text', left)

  def _check_summaries(self, actual, episode):
    """Checks what TensorBoard is given, of one episode with frames."""
    folder = self.create_tempdir().full_path
    views.write_summaries(actual, folder)
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
    self.assertAllClose(mean, actual.returns['mean'])
    # Names of episodes are no numbers to plot.
    self.assertFalse([tag for tag in values if tag.endswith('_at')])
    ((_, bins),) = values['histograms/lengths']
    histogram = actual.histograms['lengths']
    self.assertEqual(bins[:, 2].tolist(), histogram['counts'])
    self.assertEqual(bins[:, 0].tolist(), histogram['edges'][:-1])
    self.assertLen(values['returns along the data set'], 1)
    frames = values['episode 0/observation/image']
    self.assertEqual([step for step, _ in frames], episode['frame_steps'])
    # The width and the height, and a PNG.
    self.assertEqual(frames[0][1][:2].tolist(), [b'5', b'4'])
    self.assertIn(
        actual.oddities[0]['message'].encode(),
        values['findings'][0][1].item(),
    )

  def test_empty_description_unequal_lengths_and_number_format(self):
    nothing = description_lib.Description('nothing')
    self.assertEqual(json.loads(nothing.to_json())['episodes'], [])
    self.assertEqual(views.to_text(nothing), 'nothing\n')
    episode = odd_data.make(0)
    episode['action'] = episode['action'][:4]
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError,
        r'number of steps. Found\] \[action:\] \[4\]',
    ):
      _describe([episode])
    for value, expected in (
        (None, '-'),
        (123456, '123,456'),
        (3.0, '3'),
        (1 / 3, '0.3333'),
        (-2e-7, '-2e-07'),
        (1.5e9, '1.5e+09'),
    ):
      self.assertEqual(views.number(value), expected)


if __name__ == '__main__':
  tf.test.main()
