"""Tests of reading mappings from gin files, each on its own."""

import dataclasses
import os

from absl.testing import absltest
from absl.testing import parameterized
import gin

from rlds2reverb import transforms
from rlds2reverb.fields import named_mappings
from rlds2reverb.fields import step_mapping
from rlds2reverb.fields import terminal_on_success


@gin.configurable(module='named_mappings_test')
def half(episode, scale=0.5):
  return episode['steps']['reward'] * scale


_NAMESAKES = (
    'another.library.StepMapping',
    'another.library.TerminalOnSuccess',
    'one.twice',
    'other.twice',
)


def _register_namesakes():
  """Registers what another library may call as this one does."""

  @gin.configurable(module='another.library')
  class StepMapping:  # pylint: disable=unused-variable
    pass

  @gin.configurable('TerminalOnSuccess', module='another.library')
  def namesake(success='another'):  # pylint: disable=unused-variable
    return success

  for module in 'one', 'other':
    gin.register('twice', module=module)(lambda: None)


class LoadMappingTest(parameterized.TestCase):

  def tearDown(self):
    super().tearDown()
    gin.clear_config()

  def _write(self, text, name='mine.gin'):
    return self.create_tempfile(name, text).full_path

  def test_by_name(self):
    self.assertEqual(
        named_mappings.load_mapping('robomimic'),
        step_mapping.StepMapping(
            discount=None,
            is_terminal=terminal_on_success.TerminalOnSuccess('is_terminal'),
            cast={'float64': 'float32'},
        ),
    )

  @parameterized.parameters(
      ('bridge_dataset', 'bridge'),
      ('bridge_orig', 'bridge'),
      ('bridge_oxe', 'bridge_open_x'),
      ('libero_spatial_no_noops', 'libero'),
      ('libero_10_no_noops', 'libero'),
      ('fmb_dataset', 'fmb'),
      ('roboset', 'robo_set'),
      ('aloha_mobile_dataset', 'aloha_mobile'),
      ('aloha_dagger_dataset', 'aloha_static_dataset'),
      ('tdroid_carrot_in_bowl', 'tdroid'),
      ('ppgm_wrist', 'tdroid'),
  )
  def test_names_of_trainers(self, alias, name):
    self.assertEqual(
        named_mappings.load_mapping(alias), named_mappings.load_mapping(name)
    )
    self.assertEqual(
        transforms.load_transforms(alias), transforms.load_transforms(name)
    )
    self.assertNotIn(alias, named_mappings.config_names())

  @parameterized.parameters(*named_mappings.config_names())
  def test_gin_reads_the_same(self, name):
    folder = named_mappings.config_folder()
    gin.parse_config_file(os.path.join(folder, f'{name}.gin'))
    self.assertEqual(
        step_mapping.StepMapping(), named_mappings.load_mapping(name)
    )

  def test_by_path(self):
    path = self._write("""
        StepMapping:
          observation = {'all': ['a', ('b', 'c/d')], 'one': 1}
          action = 'commands'
        rlds2reverb.StepMapping.reward = @named_mappings_test.half
        # The last one counts, as in gin.
        StepMapping.action = ('commands', 0)
        StepMapping.is_terminal = @rlds2reverb.TerminalOnSuccess()
        TerminalOnSuccess.success = 'a'
    """)
    mapping = named_mappings.load_mapping(path)
    self.assertEqual(
        mapping.observation, {'all': ['a', ('b', 'c/d')], 'one': 1}
    )
    self.assertEqual(mapping.action, ('commands', 0))
    self.assertEqual(mapping.reward({'steps': {'reward': 4}}), 2)
    self.assertEqual(
        mapping.is_terminal, terminal_on_success.TerminalOnSuccess('a')
    )
    self.assertEqual(mapping.discount, 'discount')

  def test_names_that_another_library_has_registered_too(self):
    expected = named_mappings.load_mapping('robomimic')
    _register_namesakes()
    try:
      self.assertEqual(named_mappings.load_mapping('robomimic'), expected)
      path = self._write("""
          StepMapping.is_terminal = @another.library.TerminalOnSuccess()
          TerminalOnSuccess.success = 'a'
          another.library.TerminalOnSuccess.success = 'b'
      """)
      self.assertEqual(named_mappings.load_mapping(path).is_terminal, 'b')
      path = self._write('StepMapping.reward = @twice')
      with self.assertRaisesRegex(ValueError, 'names twice, which more than'):
        named_mappings.load_mapping(path)
    finally:
      # gin has no public way to take a registration back.
      for selector in _NAMESAKES:
        gin.config._REGISTRY.pop(selector)  # pylint: disable=protected-access
    gin.parse_config("StepMapping.action = 'a'")  # Unambiguous again.
    self.assertEqual(step_mapping.StepMapping().action, 'a')

  def test_in_a_scope_of_the_program(self):
    expected = named_mappings.load_mapping('robomimic')
    with gin.config_scope('scope'):
      self.assertEqual(named_mappings.load_mapping('robomimic'), expected)

  def test_changes(self):
    bridge = named_mappings.load_mapping('bridge')
    changed = named_mappings.load_mapping(
        'bridge', discount='gamma', cast={'int32': 'int64'}
    )
    self.assertEqual(
        changed,
        dataclasses.replace(bridge, discount='gamma', cast={'int32': 'int64'}),
    )
    self.assertNotEqual(changed, bridge)
    with self.assertRaisesRegex(
        TypeError, 'got discout, which is not a field.* Did you mean discount'
    ):
      named_mappings.load_mapping('bridge', discout=None)

  def test_mappings_do_not_disturb_each_other(self):
    kuka = named_mappings.load_mapping('kuka')
    robomimic = named_mappings.load_mapping('robomimic')
    self.assertEqual(robomimic.action, 'action')
    self.assertIsNone(robomimic.policy_info)
    self.assertEqual(kuka, named_mappings.load_mapping('kuka'))

  def test_bindings_of_the_program_do_not_count_and_stay(self):
    expected = named_mappings.load_mapping('d4rl_mujoco')
    gin.parse_config("""
        StepMapping.reward = 'costs'
        StepMapping.action = 'commands'
        TerminalOnSuccess.success = 'won'
    """)
    before = gin.config_str()
    self.assertEqual(named_mappings.load_mapping('d4rl_mujoco'), expected)
    self.assertEqual(
        named_mappings.load_mapping('robomimic').is_terminal.success,
        'is_terminal',
    )
    self.assertEqual(gin.config_str(), before)
    self.assertEqual(step_mapping.StepMapping().action, 'commands')

  def test_when_the_config_of_the_program_is_final(self):
    gin.finalize()
    self.assertEqual(named_mappings.load_mapping('mt_opt').reward, None)
    self.assertTrue(gin.config_is_locked())

  def test_the_nearest_name_is_suggested(self):
    with self.assertRaisesRegex(
        ValueError, "no config brigde. Did you mean bridge.*configs are \\['"
    ):
      named_mappings.load_mapping('brigde')
    with self.assertRaisesRegex(ValueError, 'must end in .gin'):
      named_mappings.load_mapping('/etc/passwd')

  def test_no_file(self):
    with self.assertRaisesRegex(FileNotFoundError, 'nothing.gin'):
      named_mappings.load_mapping('/nowhere/nothing.gin')

  @parameterized.named_parameters(
      ('nothing', 'half.scale = 1', 'must bind fields of StepMapping'),
      ('include', "include 'other.gin'", 'line 1: a config may only'),
      ('import', 'import os', 'line 1: a config may only'),
      ('scoped_reference', 'StepMapping.reward = @a/half', 'not have scopes'),
      ('scope', 'a/StepMapping.action = 1', 'line 1: a config may only'),
      ('definition', 'name = 1', 'line 1: a config may only'),
      ('macro', 'StepMapping.action = %name', 'not have macros, but has %name'),
      (
          'field',
          "StepMapping.actoin = 'a'",
          'StepMapping.actoin, which is not a field of .* Did you mean action',
      ),
      (
          'reference',
          'StepMapping.reward = @nowhere()',
          'names nowhere, which is not registered',
      ),
      (
          'binding',
          "StepMapping.reward = 1\nTerminalOnSucces.success = 'a'",
          'names TerminalOnSucces, which is not registered',
      ),
  )
  def test_what_is_no_config(self, text, message):
    with self.assertRaisesRegex(ValueError, message):
      named_mappings.load_mapping(self._write(text))

  def test_syntax(self):
    with self.assertRaisesRegex(SyntaxError, 'mine.gin'):
      named_mappings.load_mapping(self._write('StepMapping.action = '))


if __name__ == '__main__':
  absltest.main()
