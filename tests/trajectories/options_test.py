"""Tests of the options of a conversion."""

import os

from absl.testing import absltest
from absl.testing import parameterized

import rlds2reverb
from tests import golden

_WAYS = {
    'trajectories': rlds2reverb.convert_rlds_to_trajectories,
    'sequences': lambda data, **kwargs: rlds2reverb.convert_rlds_to_sequences(
        data, rlds2reverb.Windows(2), **kwargs
    ),
    'replay_buffer': rlds2reverb.open_replay_buffer,
}


class ConversionOptionsTest(parameterized.TestCase):

  @parameterized.named_parameters(_WAYS.items())
  def test_rules_are_no_options(self, convert):
    rules = rlds2reverb.ConversionRules(terminal_discount='transition')
    with self.assertRaisesRegex(
        TypeError,
        r'options=ConversionRules\(.*\) is no ConversionOptions. Write options='
        r'rlds2reverb.ConversionOptions\(rules=rlds2reverb.ConversionRules\('
        r'...\)\).',
    ):
      convert(golden.stacked([golden.COMPLETE]), options=rules)

  @parameterized.named_parameters(_WAYS.items())
  def test_other_things_are_no_options(self, convert):
    for wrong in ({'rules': rlds2reverb.ConversionRules()}, 'skip', {}, False):
      with self.assertRaisesRegex(TypeError, 'is no ConversionOptions. Write'):
        convert(golden.stacked([golden.COMPLETE]), options=wrong)

  def test_options_are_no_rules(self):
    with self.assertRaisesRegex(
        TypeError, r'rules=.*ConversionReport.* is no ConversionRules. Write'
    ):
      rlds2reverb.ConversionOptions(rlds2reverb.ConversionReport())

  def test_an_index_takes_options(self):
    folder = self.create_tempdir().full_path
    with self.assertRaisesRegex(TypeError, 'is no ConversionOptions. Write'):
      rlds2reverb.random_access.build_index(
          golden.stacked([golden.COMPLETE]),
          os.path.join(folder, 'index'),
          as_trajectories=True,
          options=rlds2reverb.ConversionRules(),
      )


if __name__ == '__main__':
  absltest.main()
