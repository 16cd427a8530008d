"""Tests of reading mixtures from gin files."""

from absl.testing import absltest
from absl.testing import parameterized

from rlds2reverb import transforms
from rlds2reverb.fields import named_mappings
from rlds2reverb.fields import named_mixtures


class LoadMixtureTest(parameterized.TestCase):

  def _load(self, text):
    path = self.create_tempfile('mine.gin', text).full_path
    return named_mixtures.load_mixture(path)

  @parameterized.named_parameters(
      # The number of data sets in the lists of Octo and OpenVLA, the sum of
      # their weights, and the sizes of their images.
      ('octo', 'oxe_magic_soup', 25, 30.77497585143, (256, 256)),
      ('openvla', 'openvla_oxe_magic_soup', 23, 29.57497585143, (224, 224)),
      ('plus', 'openvla_oxe_magic_soup_plus', 27, 31.03497585143, (224, 224)),
      (
          'plus_minus',
          'openvla_oxe_magic_soup_plus_minus',
          25,
          31.3341046294,
          (224, 224),
      ),
  )
  def test_by_name(self, name, num_data_sets, sum_of_weights, size):
    mixture = named_mixtures.load_mixture(name)
    self.assertLen(mixture.weights, num_data_sets)
    self.assertAlmostEqual(sum(mixture.weights.values()), sum_of_weights)
    self.assertEqual(mixture.weights['taco_play'], 2.0)
    fit, mark, select = mixture.transforms
    self.assertIsInstance(fit, transforms.FitImages)
    self.assertEqual(fit.method, 'lanczos3')
    self.assertIsInstance(mark, transforms.MarkActions)
    self.assertEqual(fit.sizes['observation/image'], size)
    self.assertIn('action', select.fields)

  @parameterized.parameters(*named_mappings.config_names('mixtures'))
  def test_each_data_set_has_a_config(self, name):
    mixture = named_mixtures.load_mixture(name)
    for dataset in mixture.weights:
      named_mappings.find_config(mixture.config_of(dataset))

  def test_by_path(self):
    mixture = self._load("""
        Mixture.weights = {'a': 1.0, 'b': 2}
        Mixture.configs = {'b': 'bridge'}
    """)
    self.assertEqual(
        mixture, named_mixtures.Mixture({'a': 1.0, 'b': 2}, {'b': 'bridge'})
    )
    self.assertEqual(mixture.config_of('a'), 'a')
    self.assertEqual(mixture.config_of('b'), 'bridge')

  def test_the_nearest_name_is_suggested(self):
    with self.assertRaisesRegex(
        ValueError, 'no mixture oxe_magic_soop. Did you mean oxe_magic_soup'
    ):
      named_mixtures.load_mixture('oxe_magic_soop')

  @parameterized.named_parameters(
      ('nothing', "StepMapping.action = 'a'", r'must bind Mixture.weights'),
      ('other', "Mixture.weights = {'a': 1}\nMixture.wheights = 2", 'wheights'),
      ('empty', 'Mixture.weights = {}', 'no data set can be drawn'),
      ('zero', "Mixture.weights = {'a': 0}", 'above 0.* a is 0'),
      (
          'config',
          "Mixture.weights = {'a': 1}\nMixture.configs = {'b': 'bridge'}",
          r"configs of \['b'\], which have no weight",
      ),
  )
  def test_what_is_no_mixture(self, text, message):
    with self.assertRaisesRegex(ValueError, message):
      self._load(text)


if __name__ == '__main__':
  absltest.main()
