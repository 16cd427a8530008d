"""Tests of the rules of a conversion."""

import dataclasses

from absl.testing import absltest
from absl.testing import parameterized
import gin

from rlds2reverb.trajectories import rules


class ConversionRulesTest(parameterized.TestCase):

  def tearDown(self):
    gin.clear_config()
    super().tearDown()

  def test_defaults(self):
    self.assertEqual(
        dataclasses.asdict(rules.ConversionRules()),
        {
            'validation': 'strict',
            'terminal_discount': 'step',
            'invalid_episodes': 'raise',
            'nan': 'report',
        },
    )

  def test_gin_configures_them(self):
    gin.parse_config("rlds2reverb.ConversionRules.nan = 'invalid'")
    self.assertEqual(rules.ConversionRules().nan, 'invalid')

  @parameterized.parameters(
      ('validation', 'lax', "'strict', 'tf_agents'"),
      ('terminal_discount', 'stp', 'Did you mean step'),
      ('invalid_episodes', 'drop', "'raise', 'skip'"),
      ('nan', True, "'report', 'invalid'"),
  )
  def test_what_is_no_choice(self, name, value, message):
    with self.assertRaisesRegex(
        ValueError, f'{name} must be one of.*{message}'
    ):
      rules.ConversionRules(**{name: value})

  def test_no_episode_of_a_stream_can_be_skipped(self):
    with self.assertRaisesRegex(ValueError, 'no episode can be skipped'):
      rules.ConversionRules(validation='tf_agents', invalid_episodes='skip')


if __name__ == '__main__':
  absltest.main()
