"""Tests of composing transforms and filters, and of your own."""

import dataclasses
import functools

from absl.testing import parameterized
import gin
import numpy as np
import tensorflow as tf

from rlds2reverb.arrays import constants
from rlds2reverb.datasets import mixtures
from rlds2reverb.episodes import data_sets
from rlds2reverb.fields import mapping as mapping_lib
from rlds2reverb.transforms import applying
from rlds2reverb.transforms import base
from rlds2reverb.transforms import fields
from rlds2reverb.transforms import filters
from rlds2reverb.transforms import normalization
from rlds2reverb.transforms import thinning
from tests import golden
from tests import ways


@dataclasses.dataclass(frozen=True, eq=False)
class _AddReward(base.EpisodeTransform):
  """As a user writes one; `amounts` is an array, for a tricky equality."""

  amounts: constants.Numbers

  def transform(self, steps):
    return {**steps, 'reward': steps['reward'] + tf.reduce_sum(self.amounts)}


@dataclasses.dataclass(frozen=True, eq=False)
class _KeepFirst(base.EpisodeFilter):
  """As a user writes one."""

  observation: float

  def keep(self, episode):
    return episode['steps']['observation'][0] == self.observation


class ComposeTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.named_parameters(*ways.ALL)
  def test_in_order(self, run):
    compose = applying.Compose(
        [
            normalization.ScaleReward(2.0),
            normalization.ScaleReward(shift=1.0),
            fields.RenameFields({'action': 'control'}),
        ]
    )
    steps = run(compose, [ways.FIVE])[0]['steps']
    self.assertAllEqual(steps['reward'], 2 * ways.FIVE['reward'] + 1)
    self.assertAllEqual(steps['control'], ways.FIVE['action'])
    for name, leaf in compose.invert(steps).items():
      self.assertAllEqual(leaf, ways.FIVE[name])

  def test_gin(self):
    gin.parse_config("""
        Compose.transforms = [@ScaleReward(), @ClipField()]
        ScaleReward.scale = 3.0
        ClipField.high = 1.0
    """)
    self.addCleanup(gin.clear_config)
    transform = applying.Compose()
    steps = transform.transform(ways.FIVE)
    self.assertAllEqual(steps['reward'], 3 * ways.FIVE['reward'])
    self.assertAllEqual(steps['action'], np.minimum(ways.FIVE['action'], 1))

  @parameterized.named_parameters(*golden.FORMS.items())
  def test_filters_among_transforms(self, form):
    # The returns are 15, 60 and 15; doubled, 30, 120 and 30.
    compose = applying.Compose(
        [
            filters.KeepEpisodes(max_return=70.0),
            normalization.ScaleReward(2.0),
            applying.Compose(
                [
                    applying.Compose([normalization.ScaleReward(shift=1.0)]),
                    filters.KeepEpisodes(min_return=50.0),
                ]
            ),
            fields.RenameFields({'action': 'control'}),
        ]
    )
    rlds_data = applying.transform_episodes(
        form([ways.FIVE, ways.THREE, ways.FIVE]),
        [compose, lambda episode: {**episode, 'kept': True}],
    )
    spec = rlds_data.element_spec['steps']
    self.assertEqual(spec['control'], tf.TensorSpec([None, 2], tf.float64))
    (episode,) = rlds_data.as_numpy_iterator()
    self.assertTrue(episode['kept'])
    steps = episode['steps']
    self.assertAllEqual(steps['reward'], 2 * ways.THREE['reward'] + 1)
    self.assertAllEqual(steps['control'], ways.THREE['action'])
    # Steps are neither kept nor left out.
    golden.assert_frames_equal(self, [compose.transform(ways.THREE)], [steps])
    golden.assert_frames_equal(self, [compose.invert(steps)], [ways.THREE])

  def test_filter_cannot_be_mapped(self):
    scale = normalization.ScaleReward()
    inner = applying.Compose([filters.KeepEpisodes(min_length=1)])
    for compose in inner, applying.Compose([scale, inner]):
      self.assertTrue(compose.has_filter)
      with self.assertRaisesRegex(
          ValueError, r'Use transform_episodes\(rlds_data, \[compose\]\)'
      ):
        golden.stacked([ways.FIVE]).map(compose)
    self.assertFalse(applying.Compose([scale]).has_filter)

  def test_equal_where_the_parts_are(self):
    def make(order):
      add = _AddReward(np.ones(2))
      parts = [filters.KeepEpisodes(min_length=1), add, _KeepFirst(0)]
      return applying.Compose(order(parts))

    self.assertEqual(make(list), make(iter))
    self.assertLen({make(list), make(tuple)}, 1)
    self.assertNotEqual(make(list), make(reversed))
    self.assertNotEqual(_KeepFirst(1.0), _KeepFirst(2.0))
    self.assertLen({_AddReward([1, 2]), _AddReward(np.array([1, 2]))}, 1)


@dataclasses.dataclass(frozen=True, eq=False)
class _Double(base.EpisodeTransform):
  """As a user writes one that is step-wise."""

  def transform(self, steps):
    return {**steps, 'reward': 2 * steps['reward']}


class _KeepLongWithReward(filters.KeepEpisodes):
  """Asks for more than the filter on which it is built."""

  def keep(self, episode):
    return super().keep(episode) & (episode['steps']['reward'][0] < 5)


class BatchesTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.named_parameters(
      ('nothing', lambda: [], 3),
      ('own', lambda: [_AddReward(1.0), _KeepFirst(10.0)], 1),
      ('function', lambda: [lambda episode: {**episode, 'more': 1}], 3),
      (
          'composed',
          lambda: [
              _Double(),
              applying.Compose(
                  [
                      filters.KeepEpisodes(min_length=2),
                      applying.Compose([normalization.ScaleReward(0.5)]),
                      applying.Compose([thinning.FrameSkip(2), _Double()]),
                      applying.Compose([filters.KeepEpisodes(max_length=2)]),
                  ]
              ),
          ],
          1,
      ),
      ('overridden_filter', lambda: [_KeepLongWithReward(min_length=4)], 2),
      ('nothing_kept', lambda: [filters.KeepEpisodes(min_length=99)], 0),
  )
  def test_on_batches_as_on_single_episodes(self, transforms, count):
    episodes = [ways.FIVE, ways.THREE, ways.FIVE]
    made, expected = (
        applying.transform_episodes(form(episodes), transforms())
        for form in (
            functools.partial(golden.batched, batch_size=2),
            golden.stacked,
        )
    )
    found = golden.assert_batches_hold(self, made)
    self.assertLen(found, count)
    for one, other in zip(found, expected.as_numpy_iterator()):
      golden.assert_frames_equal(self, [one['steps']], [other['steps']])

  def test_episodes_without_steps(self):
    none = tf.nest.map_structure(lambda leaf: leaf[:0], ways.FIVE)
    made = applying.transform_episodes(
        golden.batched([none, ways.FIVE, ways.THREE, none], batch_size=4),
        [_Double(), thinning.FrameSkip(2), filters.KeepEpisodes(max_length=2)],
    )
    self.assertLen(golden.assert_batches_hold(self, made), 3)

  def test_compose_has_no_subclasses(self):
    with self.assertRaisesRegex(TypeError, 'Derive EpisodeTransform'):
      type('More', (applying.Compose,), {})

  def test_a_list_that_changes_and_an_iterator(self):
    transforms = [_Double()]
    rlds_data = golden.batched([ways.FIVE, ways.THREE])
    for given in transforms, iter(transforms):
      made = applying.transform_episodes(rlds_data, given)
      golden.assert_batches_hold(self, made)
    made = applying.transform_episodes(rlds_data, transforms)
    transforms.append(filters.KeepEpisodes(min_length=4))
    self.assertLen(golden.assert_batches_hold(self, made), 2)

  @parameterized.parameters(
      lambda: [],
      lambda: [fields.SelectFields(exclude=['action'])],
      lambda: [filters.KeepEpisodes(min_length=99)],
  )
  def test_an_episode_of_unequal_lengths(self, transforms):
    wrong = dict(ways.THREE, action=ways.THREE['action'][:-1])
    made = applying.transform_episodes(
        golden.batched([ways.FIVE, wrong]), transforms()
    )
    for found in made, data_sets.batches_of(made):
      with self.assertRaisesRegex(
          tf.errors.InvalidArgumentError, 'must have a row for every step'
      ):
        list(found)


class OwnTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.named_parameters(*ways.ALL)
  def test_on_single_episodes(self, run):
    add, episodes = _AddReward(np.float32([1, 2])), [ways.FIVE, ways.THREE]
    golden.assert_frames_equal(
        self,
        [result['steps'] for result in run(add, episodes)],
        [{**one, 'reward': one['reward'] + 3} for one in episodes],
    )
    self.assertIs(add.invert(ways.FIVE), ways.FIVE)
    self.assertEqual(run(_KeepFirst(10.0), episodes), [False, True])

  @parameterized.named_parameters(*golden.FORMS.items())
  def test_in_a_data_set(self, form):
    own = [_AddReward(np.float32([1, 2])), _KeepFirst(10.0)]
    for transforms in (own, own[::-1], [applying.Compose(own)]):
      rlds_data = applying.transform_episodes(
          form([ways.FIVE, ways.THREE]), transforms
      )
      (steps,) = (e['steps'] for e in rlds_data.as_numpy_iterator())
      self.assertAllEqual(steps['reward'], ways.THREE['reward'] + 3)
    (kept,) = form([ways.FIVE, ways.THREE]).filter(own[1])
    self.assertIn('steps', kept)

  @parameterized.parameters(
      lambda: tf.ragged.constant([[1, 2], [3], [], [4], [5]]),
      lambda: tf.sparse.from_dense(np.eye(5, dtype=np.float32)),
      lambda: tf.data.Dataset.range(5),
  )
  def test_what_cannot_be_in_a_batch_stays_as_it_is(self, make):
    def add(episode):
      steps = dict(episode['steps'])
      if not isinstance(make(), tf.data.Dataset):
        steps['odd'] = make()
      return {'steps': steps, 'odd': make()}

    def values(odd):
      odd = list(odd) if isinstance(odd, tf.data.Dataset) else odd
      return (
          tf.sparse.to_dense(odd) if isinstance(odd, tf.SparseTensor) else odd
      )

    data = golden.stacked([ways.FIVE, ways.FIVE]).map(add)
    made = applying.transform_episodes(
        data, [_AddReward(1.0), _KeepFirst(0.0), lambda episode: episode]
    )
    found = [*made, *made.take(1), *mapping_lib.map_fields(data)]
    self.assertLen(found, 5)
    for episode in found:
      self.assertAllEqual(values(episode['odd']), values(make()))
      if 'odd' in episode['steps']:
        self.assertAllEqual(values(episode['steps']['odd']), values(make()))

  def test_arrays_that_the_user_goes_on_using(self):
    array, number = np.float32([1, 2]), np.ones(())
    transforms = [_AddReward(array), fields.ClipField('reward', high=[number])]
    hashes = [hash(transform) for transform in transforms]
    array[:] = number[...] = 7
    self.assertEqual([hash(transform) for transform in transforms], hashes)
    reward = {'reward': tf.constant([-3.0])}
    self.assertAllEqual(transforms[0].transform(reward)['reward'], [0])
    self.assertAllEqual(
        transforms[1].transform({'reward': tf.constant([9.0])})['reward'], [1]
    )

  def test_mixture_whose_elements_were_not_taken(self):
    data = golden.stacked([ways.FIVE])
    mixed = mixtures.mix_datasets({'a': data, 'b': data}, stop_when='first')
    with self.assertRaisesRegex(ValueError, r"is a Mixed of \['element', "):
      applying.transform_episodes(mixed, [])

  @parameterized.parameters(
      (lambda episode: tf.constant(True), 'bool.*KeepEpisodes'),
      (lambda episode: episode['steps'], "a dict with 'steps'"),
  )
  def test_function_that_returns_no_episode(self, function, message):
    with self.assertRaisesRegex(ValueError, message):
      applying.transform_episodes(golden.stacked([ways.FIVE]), [function])

  def test_function_that_returns_nested_steps(self):
    def nest(episode):
      steps = tf.data.Dataset.from_tensor_slices(episode['steps'])
      return {**episode, 'steps': steps}

    (episode,) = applying.transform_episodes(
        golden.stacked([ways.FIVE]), [nest]
    )
    self.assertAllEqual(episode['steps']['reward'], ways.FIVE['reward'])

  @parameterized.parameters(
      normalization.ScaleReward, 'ScaleReward', lambda episode: episode
  )
  def test_what_is_no_transform(self, other):
    with self.assertRaisesRegex(ValueError, 'Compose takes .* but was given'):
      applying.Compose([normalization.ScaleReward(), other])
    if isinstance(other, (str, type)):
      with self.assertRaisesRegex(ValueError, 'takes transforms, filters and'):
        applying.transform_episodes(golden.stacked([ways.FIVE]), [other])

  @parameterized.parameters(
      lambda data: applying.transform_episodes(data, []),
      lambda data: data.map(_AddReward(1.0)),
      lambda data: data.filter(_KeepFirst(1.0)),
  )
  def test_data_set_of_steps(self, transform):
    data = tf.data.Dataset.from_tensor_slices(ways.FIVE)
    with self.assertRaisesRegex(
        ValueError, r"a dict with 'steps', but is \['.*'reward', .*\]"
    ):
      transform(data)

  def test_filter_that_returns_no_bool(self):
    class KeepAll(base.EpisodeFilter):

      def keep(self, episode):
        return episode['steps']['is_first']

    with self.assertRaisesRegex(
        ValueError, r'KeepAll.keep must return one bool, but returned bool \('
    ):
      golden.stacked([ways.FIVE]).filter(KeepAll())


if __name__ == '__main__':
  tf.test.main()
