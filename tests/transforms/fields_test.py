"""Tests of the transforms that select, rename and clip fields."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.transforms import fields
from rlds2reverb.transforms import rewards
from tests import golden
from tests import ways

_DEEP = golden.random_episodes(np.random.default_rng(1), 3, nested_fields=True)


def _steps(results):
  return [result['steps'] for result in results]


class FieldsTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.named_parameters(*ways.WITH_PACKS)
  def test_select(self, run):
    select = fields.SelectFields(
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

  @parameterized.named_parameters(*ways.WITH_PACKS)
  def test_exclude(self, run):
    exclude = fields.SelectFields(
        exclude=['observation/camera', ('observation', 'state')]
    )
    for steps, episode in zip(_steps(run(exclude, _DEEP)), _DEEP):
      expected = {
          **episode,
          'observation': {'task': episode['observation']['task']},
      }
      golden.assert_frames_equal(self, [steps], [expected])

  @parameterized.named_parameters(*ways.WITH_PACKS)
  def test_rename_and_back(self, run):
    rename = fields.RenameFields(
        {
            'observation/camera/rgb': 'observation/image',
            'action': 'observation/last_action',
            'observation/task': 'action',
            ('observation', 'state'): ('a/b', 'c:d'),
        }
    )
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
    selected = fields.SelectFields(['reward', 'action']).transform(ways.FIVE)
    self.assertNotIn('observation', selected)
    self.assertAllEqual(selected['reward'], ways.FIVE['reward'])

  @parameterized.parameters(
      (fields.SelectFields(['observation/imag']), 'observation/image'),
      (fields.SelectFields(exclude=['acton']), 'Did you mean action'),
      (fields.RenameFields({'rewards': 'x'}), 'Did you mean reward'),
      (fields.RenameFields({'reward': 'action'}), "'action' already"),
      (fields.ClipField('actoin'), 'Did you mean action'),
  )
  def test_unknown_field(self, transform, message):
    episode = dict(ways.FIVE, observation={'image': ways.FIVE['observation']})
    with self.assertRaisesRegex(ValueError, message):
      golden.stacked([episode]).map(transform)

  @parameterized.parameters('fields', 'exclude')
  def test_a_path_alone_is_no_list(self, name):
    with self.assertRaisesRegex(ValueError, r"Write \['observation'\]"):
      fields.SelectFields(**{name: 'observation'})

  def test_other_fields_of_the_episode_stay(self):
    rlds_data = golden.nested([ways.FIVE]).map(
        lambda episode: {**episode, 'id': tf.constant('x')}
    )
    episode = next(iter(rlds_data.map(rewards.ScaleReward(2.0))))
    self.assertEqual(episode['id'], 'x')


class ClipFieldTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.named_parameters(*ways.WITH_PACKS)
  def test_bounds_by_dimension(self, run):
    clip = fields.ClipField('action', [1.0, -9.0], 2.0)
    for steps, episode in zip(
        _steps(run(clip, [ways.FIVE, ways.THREE])), [ways.FIVE, ways.THREE]
    ):
      expected = [
          [min(max(one, 1.0), 2.0), min(max(other, -9.0), 2.0)]
          for one, other in episode['action']
      ]
      self.assertAllEqual(steps['action'], expected)
      self.assertEqual(steps['action'].dtype, np.float64)

  @parameterized.named_parameters(*ways.WITH_PACKS)
  def test_one_number(self, run):
    episodes = [ways.FIVE, ways.THREE]
    for index in 1, -1:
      clip = fields.ClipField('action', 0.0, 1.0, index)
      for steps, episode in zip(_steps(run(clip, episodes)), episodes):
        expected = [
            [one, min(max(other, 0.0), 1.0)] for one, other in episode['action']
        ]
        self.assertAllEqual(steps['action'], expected)

  def test_a_number_that_is_not_there(self):
    for index in 2, -3:
      with self.assertRaisesRegex(
          ValueError, f'action must have a number {index}'
      ):
        golden.stacked([ways.FIVE]).map(fields.ClipField('action', 0, 1, index))

  def test_every_number_below(self):
    clipped = fields.ClipField('action', 0, 3).transform(_DEEP[0])
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
    clipped = fields.ClipField('x', -1, 1).transform(
        {'x': tf.constant([np.nan, 5.0])}
    )
    self.assertAllEqual(clipped['x'], [np.nan, 1.0])

  @parameterized.parameters(
      ([0.0, 1.0, 2.0], r'action has the shape \(None, 2\), which numbers of'),
      (np.zeros([1, 1, 1]), 'do not fit'),
  )
  def test_bounds_that_do_not_fit(self, low, message):
    with self.assertRaisesRegex(ValueError, message):
      golden.stacked([ways.FIVE]).map(fields.ClipField('action', low))

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
        fields.ClipField('x', low=bound),
        fields.ClipField('x', high=bound),
    ):
      with self.assertRaisesRegex(ValueError, f'x is {dtype.name}, which can'):
        clip.transform(steps)

  def test_infinite_bounds_of_floats(self):
    clip = fields.ClipField('x', [-np.inf, 0.0], np.inf)
    clipped = clip.transform({'x': tf.constant([[-9.0, -9.0]], tf.float16)})
    self.assertAllEqual(clipped['x'], [[-9, 0]])


if __name__ == '__main__':
  tf.test.main()
