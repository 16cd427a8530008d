"""Tests of reading the transforms of configs."""

from absl.testing import absltest
from absl.testing import parameterized

from rlds2reverb.transforms import fields
from rlds2reverb.transforms import named_transforms
from rlds2reverb.transforms import rewards


class LoadTransformsTest(parameterized.TestCase):

  def _load(self, text):
    path = self.create_tempfile('mine.gin', text).full_path
    return named_transforms.load_transforms(path)

  def test_in_their_order(self):
    self.assertEqual(
        self._load("""
            StepMapping.action = 'a'
            transform_episodes.transforms = [@ClipField(), @ScaleReward()]
            ClipField.low = 0.0
            ScaleReward.scale = 2.0
        """),
        [fields.ClipField(low=0.0), rewards.ScaleReward(2.0)],
    )

  def test_a_config_without_transforms(self):
    self.assertEqual(named_transforms.load_transforms('d4rl_mujoco'), [])

  @parameterized.parameters(
      (
          'transform_episodes.transform = []',
          'transform_episodes.transform, but',
      ),
      (
          'transform_episodes.transforms = [@ClipFeild()]',
          'names ClipFeild, which is not registered',
      ),
  )
  def test_what_does_not_exist(self, text, message):
    with self.assertRaisesRegex(ValueError, message):
      self._load(text)

  def test_the_nearest_name_is_suggested(self):
    with self.assertRaisesRegex(ValueError, 'Did you mean bridge'):
      named_transforms.load_transforms('brigde')


if __name__ == '__main__':
  absltest.main()
