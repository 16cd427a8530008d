"""Tests of the transforms of fields and rewards."""

from absl.testing import parameterized
import gin
import numpy as np
import tensorflow as tf

from rlds2reverb.transforms import filters
from rlds2reverb.transforms import transforms
from tests import golden
from tests import ways

_DEEP = golden.random_episodes(np.random.default_rng(1), 3, nested_fields=True)


def _steps(results):
  return [result['steps'] for result in results]


class FieldsTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.named_parameters(*ways.ALL)
  def test_select(self, run):
    select = transforms.SelectFields(
        ['observation/camera/pose', 'action', 'observation/task']
    )
    for steps, episode in zip(_steps(run(select, _DEEP)), _DEEP):
      expected = {
          **episode,
          'observation': {
              'camera': {'pose': episode['observation']['camera']['pose']},
              'task': episode['observation']['task'],
          },
      }
      golden.assert_frames_equal(self, [steps], [expected])

  @parameterized.named_parameters(*ways.ALL)
  def test_exclude(self, run):
    exclude = transforms.ExcludeFields(
        ['observation/camera', ('observation', 'state')]
    )
    for steps, episode in zip(_steps(run(exclude, _DEEP)), _DEEP):
      expected = {
          **episode,
          'observation': {'task': episode['observation']['task']},
      }
      golden.assert_frames_equal(self, [steps], [expected])

  @parameterized.named_parameters(*ways.ALL)
  def test_rename_and_back(self, run):
    rename = transforms.RenameFields({
        'observation/camera/rgb': 'observation/image',
        'action': 'observation/last_action',
        'observation/task': 'action',
        ('observation', 'state'): ('a/b', 'c:d'),
    })
    for steps, episode in zip(_steps(run(rename, _DEEP)), _DEEP):
      observation = episode['observation']
      expected = {
          **episode,
          'observation': {
              'camera': {'pose': observation['camera']['pose']},
              'image': observation['camera']['rgb'],
              'last_action': episode['action'],
          },
          'action': observation['task'],
          'a/b': {'c:d': observation['state']},
      }
      golden.assert_frames_equal(self, [steps], [expected])
      golden.assert_frames_equal(self, [rename.invert(steps)], [episode])
      # What a policy gives is less than a step.
      self.assertEqual(
          list(rename.invert({'action': 1})['observation']), ['task']
      )

  def test_selected_reward_is_there_once(self):
    select = transforms.SelectFields(['reward', 'action'])
    selected = select.transform(ways.FIVE)
    self.assertNotIn('observation', selected)
    self.assertAllEqual(selected['reward'], ways.FIVE['reward'])

  @parameterized.parameters(
      (transforms.SelectFields(['observation/imag']), 'observation/image'),
      (transforms.ExcludeFields(['acton']), 'Did you mean action'),
      (transforms.RenameFields({'rewards': 'x'}), 'Did you mean reward'),
      (transforms.RenameFields({'reward': 'action'}), "'action' already"),
      (transforms.ClipField('actoin'), 'Did you mean action'),
  )
  def test_unknown_field(self, transform, message):
    episode = dict(ways.FIVE, observation={'image': ways.FIVE['observation']})
    with self.assertRaisesRegex(ValueError, message):
      golden.stacked([episode]).map(transform)

  def test_other_fields_of_the_episode_stay(self):
    rlds_data = golden.nested([ways.FIVE]).map(
        lambda episode: {**episode, 'id': tf.constant('x')}
    )
    episode = next(iter(rlds_data.map(transforms.ScaleReward(2.0))))
    self.assertEqual(episode['id'], 'x')


class RewardTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.named_parameters(*ways.ALL)
  def test_scale_then_shift_then_clip(self, run):
    transform = transforms.ScaleReward(0.5, 1.0, minimum=2.0, maximum=10.0)
    results = _steps(run(transform, [ways.FIVE, ways.THREE]))
    self.assertAllEqual(results[0]['reward'], [2, 2, 2.5, 3, 3.5, 10])
    self.assertAllEqual(results[1]['reward'], [6, 10, 10, 10])
    for steps, episode in zip(results, [ways.FIVE, ways.THREE]):
      self.assertEqual(steps['reward'].dtype, np.float32)
      golden.assert_frames_equal(
          self, [{**steps, 'reward': 0}], [{**episode, 'reward': 0}]
      )

  @parameterized.parameters(np.float16, np.float32, np.float64)
  def test_dtype_and_inverse(self, dtype):
    transform = transforms.ScaleReward(4.0, -3.0)
    reward = tf.constant(np.arange(5), dtype)
    scaled = transform.transform({'reward': reward})['reward']
    self.assertAllEqual(scaled, 4 * np.arange(5) - 3)
    self.assertEqual(scaled.dtype, reward.dtype)
    inverse = transform.invert({'reward': scaled})['reward']
    self.assertAllEqual(inverse, reward)
    self.assertEqual(inverse.dtype, reward.dtype)
    self.assertEqual(transform.invert({'action': 1}), {'action': 1})

  def test_integer_reward(self):
    reward = {'reward': tf.constant([[-7], [0], [7]], tf.int32)}
    clipped = transforms.ScaleReward(minimum=-1, maximum=1).transform(reward)
    self.assertAllEqual(clipped['reward'], [[-1], [0], [1]])
    self.assertEqual(clipped['reward'].dtype, tf.int32)
    with self.assertRaisesRegex(ValueError, 'reward is int32.*Cast'):
      transforms.ScaleReward(0.5).transform(reward)


  @parameterized.parameters(tf.int8, tf.uint8, tf.int32)
  def test_integer_reward_out_of_its_range(self, dtype):
    reward = tf.constant([0, 1, dtype.max], dtype)
    double = transforms.ScaleReward(2)
    clipped = transforms.ScaleReward(2, minimum=0, maximum=dtype.max)
    for wrap in (lambda fn: fn, tf.function):
      self.assertAllEqual(
          wrap(double.transform)({'reward': reward[:2]})['reward'], [0, 2]
      )
      self.assertAllEqual(
          wrap(clipped.transform)({'reward': reward})['reward'],
          [0, 2, dtype.max],
      )
      with self.assertRaisesRegex(
          tf.errors.InvalidArgumentError,
          f'(?s)reward must fit {dtype.name}.*{2 * dtype.max}',
      ):
        wrap(double.transform)({'reward': reward})
      # The reward of a last step has no meaning, whatever it is.
      for is_last in ([False, False, True], [[False], [False], [True]]):
        scaled = wrap(double.transform)({'reward': reward, 'is_last': is_last})
        self.assertAllEqual(scaled['reward'][:2], [0, 2])

  def test_strings_are_no_reward(self):
    with self.assertRaisesRegex(ValueError, 'reward must be numbers, but is'):
      transforms.ScaleReward(2.0).transform({'reward': tf.constant(['a'])})


class ClipFieldTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.named_parameters(*ways.ALL)
  def test_bounds_by_dimension(self, run):
    clip = transforms.ClipField('action', [1.0, -9.0], 2.0)
    for steps, episode in zip(_steps(run(clip, [ways.FIVE, ways.THREE])),
                              [ways.FIVE, ways.THREE]):
      expected = [
          [min(max(one, 1.0), 2.0), min(max(other, -9.0), 2.0)]
          for one, other in episode['action']
      ]
      self.assertAllEqual(steps['action'], expected)
      self.assertEqual(steps['action'].dtype, np.float64)

  def test_every_number_below(self):
    clipped = transforms.ClipField('action', 0, 3).transform(_DEEP[0])
    original = _DEEP[0]['action']
    self.assertAllEqual(
        clipped['action'][0]['gripper'], np.clip(original[0]['gripper'], 0, 3)
    )
    self.assertAllEqual(clipped['action'][1], original[1])  # strings
    self.assertAllEqual(clipped['action'][2], np.clip(original[2], 0, 3))
    golden.assert_frames_equal(
        self, [clipped['observation']], [_DEEP[0]['observation']]
    )

  def test_nan_stays(self):
    clipped = transforms.ClipField('x', -1, 1).transform(
        {'x': tf.constant([np.nan, 5.0])}
    )
    self.assertAllEqual(clipped['x'], [np.nan, 1.0])

  @parameterized.parameters(
      ([0.0, 1.0, 2.0], r'action is \(None, 2\), which numbers of the shape'),
      (np.zeros([1, 1, 1]), 'do not fit'),
  )
  def test_bounds_that_do_not_fit(self, low, message):
    with self.assertRaisesRegex(ValueError, message):
      golden.stacked([ways.FIVE]).map(transforms.ClipField('action', low))


  @parameterized.parameters(
      (tf.uint8, -1),
      (tf.uint8, 300),
      (tf.uint8, 0.5),
      (tf.int64, 2.0**63),
      (tf.uint64, -1),
      (tf.int32, np.nan),
      (tf.int32, np.inf),
      (tf.float16, 1e5),
      (tf.float16, -1e5),
      (tf.float32, [0.0, 1e39]),
  )
  def test_bounds_that_the_dtype_cannot_hold(self, dtype, bound):
    steps = {'x': tf.zeros([3, 2], dtype)}
    for clip in (
        transforms.ClipField('x', low=bound),
        transforms.ClipField('x', high=bound),
    ):
      with self.assertRaisesRegex(ValueError, f'x is {dtype.name}, which can'):
        clip.transform(steps)

  def test_infinite_bounds_of_floats(self):
    clip = transforms.ClipField('x', [-np.inf, 0.0], np.inf)
    clipped = clip.transform({'x': tf.constant([[-9.0, -9.0]], tf.float16)})
    self.assertAllEqual(clipped['x'], [[-9, 0]])


class ComposeTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.named_parameters(*ways.ALL)
  def test_in_order(self, run):
    compose = transforms.Compose([
        transforms.ScaleReward(2.0),
        transforms.ScaleReward(shift=1.0),
        transforms.RenameFields({'action': 'control'}),
    ])
    steps = _steps(run(compose, [ways.FIVE]))[0]
    self.assertAllEqual(steps['reward'], 2 * ways.FIVE['reward'] + 1)
    self.assertAllEqual(steps['control'], ways.FIVE['action'])
    for name, leaf in compose.invert(steps).items():
      self.assertAllEqual(leaf, ways.FIVE[name])

  @parameterized.named_parameters(*golden.FORMS.items())
  def test_transform_episodes(self, form):
    rlds_data = transforms.transform_episodes(
        form([ways.FIVE, ways.THREE, ways.FIVE]),
        [
            transforms.ScaleReward(10.0),
            filters.KeepEpisodes(max_return=150.0),
            lambda episode: {**episode, 'kept': True},
        ],
    )
    episodes = list(rlds_data.as_numpy_iterator())
    self.assertLen(episodes, 2)  # those of A: 10 * 15
    for episode in episodes:
      self.assertTrue(episode['kept'])
      self.assertAllEqual(episode['steps']['reward'], 10 * ways.FIVE['reward'])
    spec = rlds_data.element_spec['steps']
    self.assertEqual(spec['action'], tf.TensorSpec([None, 2], tf.float64))

  def test_gin(self):
    gin.parse_config("""
        Compose.transforms = [@ScaleReward(), @ClipField()]
        ScaleReward.scale = 3.0
        ClipField.high = 1.0
    """)
    self.addCleanup(gin.clear_config)
    transform = transforms.Compose()
    steps = transform.transform(ways.FIVE)
    self.assertAllEqual(steps['reward'], 3 * ways.FIVE['reward'])
    self.assertAllEqual(steps['action'], np.minimum(ways.FIVE['action'], 1))


if __name__ == '__main__':
  tf.test.main()
