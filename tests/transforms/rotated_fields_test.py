"""Tests of rotations that are converted in a field."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.transforms import applying
from rlds2reverb.transforms import rotated_fields
from tests import golden
from tests import ways


def _episode():
  """Returns an episode with actions of a position, Euler angles, a gripper."""
  action = np.array(
      [[1, 2, 3, 0, 0, np.pi / 2, 1], [4, 5, 6, 2, 0, 0, 0]], np.float32
  )
  return {**golden.make_episode([1.0] * 2, terminal=True), 'action': action}


class ConvertRotationTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.named_parameters(*ways.WITH_PACKS)
  def test_by_hand(self, run):
    convert = rotated_fields.ConvertRotation(
        'action', 3, 'euler_xyz', 'quaternion_wxyz'
    )
    episode = _episode()
    steps = run(convert, [episode])[0]['steps']
    half = np.sqrt(0.5)
    self.assertAllClose(
        steps['action'],
        [
            [1, 2, 3, half, 0, 0, half, 1],
            [4, 5, 6, np.cos(1), np.sin(1), 0, 0, 0],
        ],
    )
    self.assertEqual(steps['action'].dtype, np.float32)
    back = convert.invert({'action': steps['action']})['action']
    self.assertAllClose(back, episode['action'])
    # One action of a policy.
    back = convert.invert({'action': steps['action'][0]})['action']
    self.assertAllClose(back, episode['action'][0])
    self.assertEqual(convert.invert({}), {})

  def test_spec_and_packs(self):
    rlds_data = applying.transform_episodes(
        golden.packed([_episode()] * 5),
        [
            rotated_fields.ConvertRotation(
                'action', 3, 'euler_xyz', 'rotation_6d'
            )
        ],
    )
    golden.assert_packs_hold(self, rlds_data)
    self.assertEqual(
        rlds_data.element_spec['steps']['action'],
        tf.TensorSpec([None, 10], tf.float32),
    )

  def test_errors(self):
    with self.assertRaisesRegex(ValueError, "one of.*'euler'"):
      rotated_fields.ConvertRotation('action', 3, 'euler', 'matrix')
    for start in (5, -1):
      with self.assertRaisesRegex(
          ValueError, f'has 7 .*from number {start} on'
      ):
        golden.stacked([_episode()]).map(
            rotated_fields.ConvertRotation(
                'action', start, 'euler_xyz', 'matrix'
            )
        )


if __name__ == '__main__':
  tf.test.main()
