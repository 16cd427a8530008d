"""Tests of reading configs from gin files, each on its own."""

import sys

from absl.testing import absltest
from absl.testing import parameterized
import gin
import tensorflow as tf
from tf_agents.environments import suite_gym

from rlds2reverb import fields
from rlds2reverb import transforms
from rlds2reverb.fields import configs
from rlds2reverb.fields import sources as sources_lib
from rlds2reverb.fields import step_mapping

_ALIASES = {'bridge_oxe': 'bridge_open_x', 'tdroid_pour_corn_in_pot': 'tdroid'}


@gin.configurable(module='configs_test')
def half(episode, scale=0.5):
  return episode['steps']['reward'] * scale


@gin.configurable(module='configs_test')
def triple(value=1):
  return 3 * value


# What another library may call as this one does.
_NAMESAKES = ('StepMapping', 'TerminalOnSuccess')


class ConfigsTest(parameterized.TestCase):

  def tearDown(self):
    super().tearDown()
    gin.clear_config()

  def _write(self, text):
    return self.create_tempfile('mine.gin', text).full_path

  def test_by_name(self):
    self.assertEqual(
        fields.load_mapping('robomimic'),
        step_mapping.StepMapping(
            discount=None,
            is_terminal=sources_lib.TerminalOnSuccess('is_terminal'),
            cast={'float64': 'float32'},
        ),
    )
    self.assertEqual(configs.load_transforms('d4rl_mujoco'), [])
    for alias, name in _ALIASES.items():
      self.assertEqual(configs.find_config(alias), configs.find_config(name))
      self.assertNotIn(alias, configs.config_names())

  @parameterized.parameters(*configs.config_names())
  def test_gin_reads_the_same(self, name):
    gin.parse_config_file(configs.find_config(name))
    self.assertEqual(step_mapping.StepMapping(), configs.load_mapping(name))

  def test_by_path(self):
    path = self._write("""
        StepMapping:
          observation = {'all': ['a', ('b', 'c/d')], 'one': 1}
          action = 'commands'
        rlds2reverb.StepMapping.reward = @configs_test.half
        # The last one counts, as in gin.
        StepMapping.action = ('commands', 0)
        StepMapping.policy_info = [@triple(), {'a': @triple}]
        triple.value = 4
        StepMapping.is_terminal = @rlds2reverb.TerminalOnSuccess()
        TerminalOnSuccess.success = 'a'
        transform_episodes.transforms = [@ClipField(), @ScaleReward()]
        ClipField.low = 0.0
        ScaleReward.scale = 2.0
    """)
    mapping = configs.load_mapping(path)
    observation = {'all': ['a', ('b', 'c/d')], 'one': 1}
    self.assertEqual(mapping.observation, observation)
    self.assertEqual(mapping.action, ('commands', 0))
    self.assertEqual(mapping.reward({'steps': {'reward': 4}}), 2)
    self.assertEqual(mapping.policy_info[0], 12)
    self.assertEqual(mapping.policy_info[1]['a'](2), 6)
    success = sources_lib.TerminalOnSuccess('a')
    self.assertEqual(mapping.is_terminal, success)
    self.assertEqual(mapping.discount, 'discount')
    expected = [transforms.ClipField(low=0.0), transforms.ScaleReward(2.0)]
    self.assertEqual(configs.load_transforms(path), expected)

  def test_names_that_another_library_has_registered_too(self):
    expected = configs.load_mapping('robomimic')
    for name in _NAMESAKES:
      gin.register(name, module='another.library')(lambda success='': success)
    for module in 'one', 'other':
      gin.register('twice', module=module)(lambda: None)
    try:
      self.assertEqual(configs.load_mapping('robomimic'), expected)
      path = self._write("""
          StepMapping.is_terminal = @another.library.TerminalOnSuccess()
          TerminalOnSuccess.success = 'a'
          another.library.TerminalOnSuccess.success = 'b'
      """)
      self.assertEqual(configs.load_mapping(path).is_terminal, 'b')
      path = self._write('StepMapping.reward = @twice')
      with self.assertRaisesRegex(
          ValueError, 'names twice, which several modules'
      ):
        configs.load_mapping(path)
    finally:
      # gin has no public way to take a registration back.
      others = [f'another.library.{name}' for name in _NAMESAKES]
      for selector in *others, 'one.twice', 'other.twice':
        gin.config._REGISTRY.pop(selector)
    gin.parse_config("StepMapping.action = 'a'")  # Unambiguous again.
    self.assertEqual(step_mapping.StepMapping().action, 'a')

  def test_bindings_of_the_program_do_not_count_and_stay(self):
    expected = configs.load_mapping('robomimic')
    gin.parse_config("""
        StepMapping.reward = 'costs'
        StepMapping.action = 'commands'
        TerminalOnSuccess.success = 'won'
    """)
    before = gin.config_str()
    with gin.config_scope('scope'):
      self.assertEqual(configs.load_mapping('robomimic'), expected)
    self.assertEqual(gin.config_str(), before)
    self.assertEqual(step_mapping.StepMapping().action, 'commands')
    gin.finalize()
    self.assertIsNone(configs.load_mapping('mt_opt').reward)
    self.assertTrue(gin.config_is_locked())

  @parameterized.parameters(
      ('brigde', '', 'no config brigde. Did you mean bridge.*configs are'),
      ('/etc/passwd', '', 'must end in .gin'),
      ('oxe_magic_soop', 'mixtures', 'no mixture .* mean oxe_magic_soup'),
      ('/nowhere/nothing.gin', '', 'nothing.gin'),
  )
  def test_no_config(self, name, group, message):
    with self.assertRaisesRegex((OSError, ValueError), message):
      configs.read_config(name, group)

  @parameterized.parameters(
      ('half.scale = 1', 'must bind fields of StepMapping'),
      ("\ninclude 'other.gin'", 'line 2: a config may only'),
      ('StepMapping.reward = @a/half', 'not have scopes'),
      ('a/StepMapping.action = 1', 'line 1: a config may only'),
      ('StepMapping.action = %name', 'not have macros, but has %name'),
      ("StepMapping.actoin = 'a'", "no field 'actoin'.* Did you mean action"),
      ('StepMapping.reward = @nowhere()', 'names nowhere, which is not reg'),
      (
          "StepMapping.reward = 1\nTerminalOnSucces.success = 'a'",
          'names TerminalOnSucces, which is not registered',
      ),
      ('StepMapping.reward = @singleton()', 'names singleton of gin'),
      ('transform_episodes.transform = []', 'has no field .transform.'),
      ('transform_episodes.transforms = [@ClipFeild()]', 'names ClipFeild, wh'),
      ('StepMapping.action = ', 'mine.gin'),
      ("StepMapping.action = __import__('os').getpid()", 'mine.gin'),
  )
  def test_invalid_bindings_raise(self, text, message):
    is_mapping = not text.startswith('transform')
    load = configs.load_mapping if is_mapping else configs.load_transforms
    with self.assertRaisesRegex((SyntaxError, ValueError), message):
      load(self._write(text))

  @parameterized.parameters('[', '(', '{1: ')
  def test_values_that_are_nested_too_deeply(self, bracket):
    path = self._write(f'StepMapping.action = {bracket * 3000}')
    with self.assertRaisesRegex(ValueError, f'{path}.* nested too deeply'):
      configs.load_mapping(path)

  @parameterized.parameters(
      (b'StepMapping.action = "\xff"', "codec can't decode byte 0xff"),
      (b'StepMapping.action = %s' % (b'9' * 5000), '[Ee]xceeds the limit'),
      (
          b'StepMapping.reward = @TerminalOnSuccess()\n'
          b'TerminalOnSuccess.success = @TerminalOnSuccess()',
          'binds an argument of TerminalOnSuccess to itself',
      ),
      (
          b'StepMapping.reward = @TerminalOnSuccess()\n'
          b'TerminalOnSuccess.other = 1',
          "unexpected keyword argument 'other'",
      ),
      (b'StepMapping.last_reward = {}', 'last_reward must be one of'),
      (b'StepMapping.cast = [["float32"]]', 'is not a valid config: '),
      (b'transform_episodes.transforms = 7', "'int' object is not iterable"),
      (b'transform_episodes.transforms = [@FitImages()]', 'FitImages'),
  )
  def test_error_of_invalid_content_names_the_file(self, content, message):
    path = self.create_tempfile('mine.gin', content, mode='wb').full_path
    is_mapping = content.startswith(b'StepMapping')
    load = configs.load_mapping if is_mapping else configs.load_transforms
    with self.assertRaisesRegex(
        (SyntaxError, ValueError), f'(?s).*{message}'
    ) as raised:
      load(path)
    error = raised.exception
    self.assertIn(path, f'{error} {getattr(error, "filename", "")}')

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
        configs.parse_arguments('triple', lines, 'f.gin')


class LoadMixtureTest(parameterized.TestCase):

  @parameterized.parameters(
      # The number of data sets in the lists of Octo and OpenVLA, the sum of
      # their weights, and the size of their images.
      ('oxe_magic_soup', 25, 30.77497585143, 256),
      ('openvla_oxe_magic_soup', 23, 29.57497585143, 224),
      ('openvla_oxe_magic_soup_plus', 27, 31.03497585143, 224),
      ('openvla_oxe_magic_soup_plus_minus', 25, 31.3341046294, 224),
  )
  def test_by_name(self, name, num_data_sets, sum_of_weights, size):
    mixture = configs.load_mixture(name)
    self.assertLen(mixture.weights, num_data_sets)
    self.assertAlmostEqual(sum(mixture.weights.values()), sum_of_weights)
    self.assertEqual(mixture.weights['taco_play'], 2.0)
    fit, mark, select = mixture.transforms
    self.assertEqual(fit.method, 'lanczos3')
    self.assertEqual(fit.sizes['observation/image'], (size, size))
    self.assertIsInstance(mark, transforms.MarkActions)
    self.assertIn('action', select.fields)

  def test_each_data_set_has_a_config(self):
    for name in configs.config_names('mixtures'):
      mixture = configs.load_mixture(name)
      for dataset in mixture.weights:
        self.assertNotEmpty(configs.read_config(mixture.get_config(dataset))[0])

  def test_by_path(self):
    text = """
        Mixture.weights = {'a': 1.0, 'b': 2}
        Mixture.configs = {'b': 'bridge'}
    """
    path = self.create_tempfile('mine.gin', text).full_path
    mixture = configs.load_mixture(path)
    self.assertEqual(mixture.weights, {'a': 1.0, 'b': 2})
    self.assertEqual([*map(mixture.get_config, 'ab')], ['a', 'bridge'])

  @parameterized.parameters(
      (
          "StepMapping.action = 'a'",
          'must bind fields of Mixture, for example Mix',
      ),
      ("Mixture.configs = {'b': 'bridge'}", 'must bind fields of Mixture'),
      ("Mixture.weights = {'a': 1}\nMixture.wheights = 2", 'wheights'),
      ('Mixture.weights = {}', 'no data set can be drawn'),
      ("Mixture.weights = {'a': 0}", 'above 0.* a has 0'),
      (
          "Mixture.weights = {'a': 1}\nMixture.configs = {'b': 'bridge'}",
          r"configs of \['b'\], which have no weight",
      ),
  )
  def test_invalid_mixture_raises(self, text, message):
    path = self.create_tempfile('mine.gin', text).full_path
    with self.assertRaisesRegex(ValueError, message):
      configs.load_mixture(path)


class KnownFeaturesTest(absltest.TestCase):

  def test_in_a_file_and_of_builders(self):
    for config, name, count, flag in (
        ('kuka', 'kuka', 1, 'is_last'),
        ('mt_opt', 'mt_opt/rlds', 1, 'is_last'),  # mt_opt/sd has single images.
        ('robomimic', 'robomimic_mg/can_mg_low_dim', 4 + 8 + 10, 'is_terminal'),
    ):
      known = configs.load_known_features(config)
      self.assertLen(known, count)
      actual = known[name].get_tensor_spec()['steps'][flag]
      self.assertEqual(actual, tf.TensorSpec([], tf.bool))
    self.assertEqual(configs.load_known_features('mine.gin'), {})


if __name__ == '__main__':
  absltest.main()
