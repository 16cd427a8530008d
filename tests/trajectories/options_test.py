"""Tests of the options of a conversion."""

import operator
import re

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
# What takes options, by its name in errors, and what it takes before them.
_TAKE_OPTIONS = {
    'convert_rlds_to_trajectories': (),
    'convert_rlds_to_sequences': (rlds2reverb.Windows(2),),
    'push_rlds_to_reverb': (print,),
    'write_rlds_to_reverb': ('localhost:1', rlds2reverb.TableItems('t')),
    'write_reverb_checkpoint': ('/proc/no', rlds2reverb.TableItems('t')),
    'open_replay_buffer': (),
    'EpisodesReplayBuffer': (),
    'replay.local.AppendableReplayBuffer': (8,),
}
_OPTIONS = 'Write options=rlds2reverb.ConversionOptions('


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

  @parameterized.named_parameters(
      ('rules', 'rules', 'rules=rlds2reverb.ConversionRules(...)).'),
      ('nan', 'nan', 'rules=rlds2reverb.ConversionRules(nan=...)).'),
      ('identity', 'identity', 'identity=...).'),
  )
  def test_attributes_are_no_arguments(self, argument, written):
    for path, before in _TAKE_OPTIONS.items():
      *_, name = path.split('.')
      with self.subTest(name), self.assertRaisesRegex(
          TypeError,
          re.escape(
              f"{name}() got an unexpected keyword argument '{argument}'."
              f' {_OPTIONS}{written}'
          ),
      ):
        operator.attrgetter(path)(rlds2reverb)(
            golden.stacked([golden.COMPLETE]), *before, **{argument: None}
        )

  def test_options_where_policy_info_fn_stands(self):
    data = golden.stacked([golden.COMPLETE])
    rules = rlds2reverb.ConversionRules()
    calls = (
        lambda wrong: rlds2reverb.convert_rlds_to_trajectories(data, wrong),
        lambda wrong: rlds2reverb.push_rlds_to_reverb(data, print, wrong),
    )
    for call in calls:
      for wrong in rules, rlds2reverb.ConversionOptions():
        with self.assertRaisesRegex(
            TypeError,
            r'policy_info_fn must be a function of a step and the step that'
            r' follows it, but is Conversion.*\. Rules of a conversion are'
            r' passed as options=rlds2reverb.ConversionOptions\(rules=rlds2',
        ):
          call(wrong)
      with self.assertRaisesRegex(TypeError, "but is 'reward'"):
        call('reward')
    with self.assertRaisesRegex(TypeError, 'but is ConversionRules'):
      rlds2reverb.create_trajectory_data_spec(data, rules)


if __name__ == '__main__':
  absltest.main()
