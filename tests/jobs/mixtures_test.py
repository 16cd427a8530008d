"""Tests of mixtures, of small data sets on disk."""

import collections
import os
import tempfile

from absl.testing import absltest
from absl.testing import parameterized

from rlds2reverb.jobs import mixtures
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import sources
from rlds2reverb.transforms import fields
from rlds2reverb.transforms import normalization
from tests.jobs import data_sets

# Ten episodes of "small" and forty of "large", where the large one counts half.
_MIXTURE = """
    Mixture.weights = {'small': 1.0, 'large': 0.5}
    Mixture.configs = {'small': 'recorded_gym', 'large': '%s'}
    Mixture.transforms = [@ClipField()]
    ClipField.high = 3.0
"""
_LARGE = """
    StepMapping.action = ['action', 7.0]
    transform_episodes.transforms = [@ScaleReward()]
    ScaleReward.scale = 2.0
"""


class MixturesTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.folder = cls.enter_context(tempfile.TemporaryDirectory())
    for name, size in ('small', 10), ('large', 40):
      data_sets.numbered(os.path.join(cls.folder, name), [3] * size, per_file=5)

  def setUp(self):
    super().setUp()
    config = self.create_tempfile('large.gin', _LARGE).full_path
    self.mixture = self.create_tempfile('mine.gin', _MIXTURE % config).full_path

  def _open(self, **kwargs):
    data_sources = mixtures.make_sources(self.mixture, self.folder, **kwargs)
    return [sources.open_source(source) for source in data_sources]

  def test_each_data_set_has_its_config_and_the_transforms_of_all(self):
    small, large = self._open()
    self.assertEqual(small.directory, os.path.join(self.folder, 'small'))
    self.assertEqual(small.mapping.action, 'action')
    self.assertEqual(small.transforms, [fields.ClipField(high=3.0)])
    self.assertEqual(large.mapping.action, ['action', 7.0])
    self.assertEqual(
        large.transforms,
        [normalization.ScaleReward(2.0), fields.ClipField(high=3.0)],
    )
    episode = next(iter(large.read()))
    # The action of step t is -t, and the reward t.
    self.assertEqual(
        episode['steps']['action'].numpy().tolist(), [[0, 3], [-1, 3], [-2, 3]]
    )
    self.assertEqual(episode['steps']['reward'].numpy().tolist(), [0, 2, 4])
    # Bindings of the user come last.
    small, large = self._open(
        bindings=['Mixture.transforms = []'], split='train[:50%]'
    )
    self.assertEqual(small.transforms, [])
    self.assertEqual(large.transforms, [normalization.ScaleReward(2.0)])
    self.assertEqual([small.num_episodes, large.num_episodes], [5, 20])

  def test_a_weight_is_a_factor_of_the_size(self):
    opened = self._open()
    weights = mixtures.compute_weights(opened)
    self.assertEqual(weights, {'small': 10.0, 'large': 20.0})
    # A plan has all of the heaviest and a part of the others.
    plan = plan_lib.make_plan(
        opened,
        plan_lib.Output(plan_lib.RLDS, '/new', 'train'),
        weights=list(weights.values()),
    )
    episodes = collections.Counter()
    for task in plan.tasks:
      episodes[task.source] += task.num_episodes
    self.assertEqual(episodes, {0: 10, 1: 20})

  def test_episodes_of_all_data_sets_are_drawn(self):
    text = _MIXTURE % 'recorded_gym'
    mixture = self.create_tempfile('same.gin', text).full_path
    mixed = list(mixtures.read_mixture(mixture, self.folder, stop_when='all'))
    counts = collections.Counter(int(each.source) for each in mixed)
    self.assertEqual(counts, {0: 10, 1: 40})
    actions = [each.element['steps']['action'].numpy().max() for each in mixed]
    self.assertEqual(max(actions), 3)  # It is clipped.

  @parameterized.parameters(
      ("Mixture.weights = {'smal': 1.0}", 'no config smal'),
      (
          "Mixture.weights = {'smal': 1.0}\n"
          "Mixture.configs = {'smal': 'recorded_gym'}",
          'smal.* Did you mean small',
      ),
  )
  def test_missing_data_sets_and_unknown_names_raise(self, text, message):
    mixture = self.create_tempfile('other.gin', text).full_path
    with self.assertRaisesRegex((ValueError, FileNotFoundError), message):
      mixtures.read_mixture(mixture, self.folder)


if __name__ == '__main__':
  absltest.main()
