"""Tests of mixtures, of small data sets on disk."""

import collections
import os

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf

from rlds2reverb.datasets import writing
from rlds2reverb.fields import known_features
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


def _random_leaf(rng, info):
  if info.dtype == tf.string:
    return b'do it'
  values = rng.integers(0, 2, info.shape) * (
      255 if info.dtype == tf.uint8 else 1
  )
  return values.astype(info.dtype.as_numpy_dtype)


class MixturesTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = self.create_tempdir().full_path
    for name, size in ('small', 10), ('large', 40):
      data_sets.write(
          os.path.join(self.folder, name),
          [data_sets.episode(index, 3) for index in range(size)],
          per_file=5,
      )
    config = self.create_tempfile('large.gin', _LARGE).full_path
    self.mixture = self.create_tempfile('mine.gin', _MIXTURE % config).full_path

  def _open(self, **kwargs):
    made = sources.make_sources(self.mixture, self.folder, **kwargs)
    return [sources.open_source(source) for source in made]

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

  def test_bindings_of_the_user_come_last(self):
    small, large = self._open(
        bindings=['Mixture.transforms = []'], split='train[:50%]'
    )
    self.assertEqual(small.transforms, [])
    self.assertEqual(large.transforms, [normalization.ScaleReward(2.0)])
    self.assertEqual([small.num_episodes, large.num_episodes], [5, 20])

  def test_a_weight_is_a_factor_of_the_size(self):
    opened = self._open()
    weights = sources.weights_of(opened)
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

  @pytest.mark.long
  def test_cameras_of_several_sizes_and_data_sets_without(self):
    """Octo's mixture, of two of its data sets."""
    weights = {'viola': 2.0, 'nyu_door_opening_surprising_effectiveness': 1.0}
    for name in weights:
      features = known_features.known_features(name)[name]
      rng = np.random.default_rng(0)
      steps = [
          tf.nest.map_structure(
              lambda info: _random_leaf(rng, info),
              features['steps'].get_tensor_spec().element_spec,
          )
          for _ in range(3)
      ]
      for index, step in enumerate(steps):
        step['is_first'], step['is_last'] = index == 0, index == 2
        step['is_terminal'] = False
      folder = os.path.join(self.folder, name)
      os.mkdir(folder)
      writing.write_episodes(
          [{'steps': steps}] * 2,
          folder,
          name=name,
          description='Random episodes.',
          features=dict(features),
      )
    mixed = sources.read_mixture(
        'oxe_magic_soup',
        self.folder,
        bindings=[f'Mixture.weights = {weights}', 'Mixture.configs = {}'],
        stop_when='all',
    )
    by_source = {int(each.source): each.element['steps'] for each in mixed}
    self.assertCountEqual(by_source, [0, 1])
    for steps in by_source.values():
      self.assertEqual(steps['observation']['image'].shape, (3, 256, 256, 3))
      self.assertEqual(
          steps['observation']['wrist_image'].shape, (3, 128, 128, 3)
      )
      self.assertEqual(steps['action'].shape, (3, 7))
      self.assertEqual(steps['policy_info']['instruction'].dtype, tf.string)
    has_image = [
        bool(tf.reduce_any(by_source[source]['observation']['image'] > 0))
        for source in (0, 1)
    ]
    self.assertEqual(has_image, [True, False])

  @parameterized.parameters(
      ("Mixture.weights = {'smal': 1.0}", 'no config smal'),
      (
          "Mixture.weights = {'smal': 1.0}\n"
          "Mixture.configs = {'smal': 'recorded_gym'}",
          'smal.* Did you mean small',
      ),
  )
  def test_what_is_not_there(self, text, message):
    mixture = self.create_tempfile('other.gin', text).full_path
    with self.assertRaisesRegex((ValueError, FileNotFoundError), message):
      sources.read_mixture(mixture, self.folder)


if __name__ == '__main__':
  absltest.main()
