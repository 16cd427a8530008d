"""Tests of reading gin bindings; named_mappings_test has those of mappings."""

import sys

from absl.testing import absltest
import gin
from tf_agents.environments import suite_gym

from rlds2reverb.fields import bindings
from rlds2reverb.fields import step_mapping


@gin.configurable(module='bindings_test')
def triple(value=1):
  return 3 * value


class BindingsTest(absltest.TestCase):

  def _arguments(self, name, text):
    return bindings.arguments_of(name, bindings.read(text, 'f.gin'), 'f.gin')

  def test_the_last_binding_counts(self):
    self.assertEqual(
        self._arguments('triple', 'triple.value = 2\ntriple.value = 5'),
        {'value': 5},
    )

  def test_references_are_resolved_at_any_depth(self):
    text = """
        StepMapping.reward = [@triple(), {'a': @triple}]
        triple.value = 4
    """
    arguments = self._arguments('StepMapping', text)
    self.assertEqual(arguments['reward'][0], 12)
    self.assertEqual(arguments['reward'][1]['a'](2), 6)

  def test_nothing_bound(self):
    self.assertEqual(self._arguments('StepMapping', ''), {})
    self.assertEqual(self._arguments('triple', '# Only a comment.'), {})

  def test_the_gin_config_of_the_program_is_left_alone(self):
    self._arguments('StepMapping', "StepMapping.action = 'torque'")
    self.assertEqual(step_mapping.StepMapping().action, 'action')

  def test_what_is_no_binding_or_of_nothing(self):
    for message, text in (
        ('f.gin, line 2: a config may only', '\nimport os'),
        ('f.gin names tripel', 'tripel.value = 1'),
        ('must not have macros', 'triple.value = %other'),
    ):
      with self.subTest(message):
        with self.assertRaisesRegex(ValueError, message):
          self._arguments('triple', text)
    with self.assertRaises(SyntaxError):
      self._arguments('triple', 'triple.value = = 1')

  def test_no_value_is_evaluated(self):
    with self.assertRaises(SyntaxError):
      self._arguments('triple', "triple.value = __import__('os').getpid()")

  def test_a_config_cannot_import_a_module(self):
    # Registered with gin, by an import of TF-Agents, it would import a module
    # of this name.
    folder = self.create_tempdir()
    folder.create_file('imported_by_config.py', 'raise SystemExit')
    sys.path.insert(0, folder.full_path)
    self.addCleanup(sys.path.remove, folder.full_path)
    text = """
        triple.value = @suite_gym.load()
        suite_gym.load.environment_name = 'imported_by_config:Name-v0'
    """
    with self.assertRaises(SystemExit):
      suite_gym.load('imported_by_config:Name-v0')
    for lines in text, text.split('\n')[1]:
      with self.assertRaisesRegex(
          ValueError,
          r'names suite_gym.load of tf_agents\.environments\.suite_gym\. A',
      ):
        self._arguments('triple', lines)

  def test_what_gin_has_itself(self):
    with self.assertRaisesRegex(ValueError, 'names singleton of gin'):
      self._arguments('triple', 'triple.value = @singleton()')


if __name__ == '__main__':
  absltest.main()
