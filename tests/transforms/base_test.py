"""Tests of composing transforms and filters, and of your own."""

import dataclasses
import functools

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf

from rlds2reverb.arrays import normalization as arrays_lib
from rlds2reverb.datasets import mixtures
from rlds2reverb.episodes import episode_dataset
from rlds2reverb.fields import mapping as mapping_lib
from rlds2reverb.transforms import applying
from rlds2reverb.transforms import base
from rlds2reverb.transforms import fields
from rlds2reverb.transforms import filters
from rlds2reverb.transforms import normalization
from tests import call_modes
from tests import golden


@dataclasses.dataclass(frozen=True, eq=False)
class _AddReward(base.EpisodeTransform):
  """As a user writes one; `amounts` is an array, for a tricky equality."""

  amounts: arrays_lib.Numbers

  def transform(self, steps):
    return {**steps, 'reward': steps['reward'] + tf.reduce_sum(self.amounts)}


@dataclasses.dataclass(frozen=True, eq=False)
class _KeepFirst(base.EpisodeFilter):
  """As a user writes one."""

  observation: float

  def keep(self, episode):
    return episode['steps']['observation'][0] == self.observation


class _KeepLongWithReward(filters.KeepEpisodes):
  """Adds a condition to its base class."""

  def keep(self, episode):
    return super().keep(episode) & (episode['steps']['reward'][0] < 5)


class _KeepAll(base.EpisodeFilter):
  """Returns more than one bool."""

  def keep(self, episode):
    return episode['steps']['is_first']


class _EverySecond(base.EpisodeTransform):
  """Leaves steps out, which a transform of single steps cannot do."""

  def transform(self, steps):
    return tf.nest.map_structure(lambda leaf: leaf[::2], steps)


@dataclasses.dataclass(frozen=True, eq=False)
class _Draw(base.EpisodeTransform):
  """As a user writes one that looks at other steps, and draws."""

  draws = True

  def transform_rows(self, steps, rows):
    return {
        **steps,
        'next': tf.gather(steps['reward'], rows.next()),
        'index': rows.episode_index,
        'one': rows.fractions(3),
        'other': rows.fractions(3, 1),
    }


_SCALE = normalization.ScaleReward
_KEEP = filters.KeepEpisodes
_COMPOSE = applying.Compose
_STACKED = golden.stacked([call_modes.FIVE])
_WRONG = dict(call_modes.THREE, action=call_modes.THREE['action'][:-1])


def _nested_again(episode):
  steps = tf.data.Dataset.from_tensor_slices(episode['steps'])
  return {**episode, 'steps': steps, 'more': 1}


class ComposeTest(tf.test.TestCase, parameterized.TestCase):

  def test_filters_among_transforms(self):
    inner = _COMPOSE([_SCALE(shift=1.0), _KEEP(min_return=50.0)])
    for composed in inner, _COMPOSE([_SCALE(), inner]):
      self.assertTrue(composed.has_filter)
      with self.assertRaisesRegex(ValueError, r'Use transform_episodes\('):
        _STACKED.map(composed)
    self.assertFalse(_COMPOSE([_SCALE()]).has_filter)
    # Steps are neither kept nor left out.
    steps = inner.transform(call_modes.FIVE)
    self.assertAllEqual(steps['reward'], call_modes.FIVE['reward'] + 1)

  def test_compositions_of_equal_transforms_are_equal(self):
    def make(order):
      add = _AddReward(np.ones(2))
      return _COMPOSE(order([_KEEP(min_length=1), add, _KeepFirst(0)]))

    self.assertEqual(make(list), make(iter))
    self.assertLen({make(list), make(tuple)}, 1)
    self.assertNotEqual(make(list), make(reversed))
    self.assertNotEqual(_KeepFirst(1.0), _KeepFirst(2.0))
    self.assertLen({_AddReward([1, 2]), _AddReward(np.array([1, 2]))}, 1)

  def test_later_changes_of_arguments_have_no_effect(self):
    array, number = np.float32([1, 2]), np.ones(())
    transforms = [_AddReward(array), fields.ClipField('reward', high=[number])]
    hashes = [hash(transform) for transform in transforms]
    transformed = applying.transform_episodes(_STACKED, transforms)
    array[:] = number[...] = 7
    self.assertEqual([hash(transform) for transform in transforms], hashes)
    transforms.append(_KEEP(min_length=99))
    for episode in transformed:
      reward = np.minimum(call_modes.FIVE['reward'] + 3, 1)
      self.assertAllEqual(episode['steps']['reward'], reward)
    self.assertLen(list(applying.transform_episodes(transformed, iter([]))), 1)


class BatchesTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.named_parameters(
      ('function', [_nested_again], 3),
      (
          'composed',
          [
              _AddReward(1.0),
              _COMPOSE(
                  [
                      _KEEP(min_length=2),
                      _COMPOSE([filters.FrameSkip(2), _AddReward(2.0)]),
                      # The returns are 52 and 134.
                      _COMPOSE([_SCALE(2.0), _KEEP(min_return=60.0)]),
                  ]
              ),
          ],
          1,
      ),
      ('overridden_filter', [_KeepLongWithReward(min_length=4)], 2),
      ('nothing_kept', [_KEEP(min_length=99)], 0),
  )
  @pytest.mark.few(1)
  def test_batches_equal_single_episodes(self, transforms, count):
    episodes = [call_modes.FIVE, call_modes.THREE, call_modes.FIVE]
    transformed, expected = (
        applying.transform_episodes(form(episodes), transforms)
        for form in (
            functools.partial(golden.batched, batch_size=2),
            golden.stacked,
        )
    )
    actual = golden.assert_batches_hold(self, transformed)
    self.assertLen(actual, count)
    for actual_value, expected_value in zip(
        actual, expected.as_numpy_iterator()
    ):
      golden.assert_frames_equal(
          self, [actual_value['steps']], [expected_value['steps']]
      )

  def test_episodes_without_steps(self):
    none = tf.nest.map_structure(lambda leaf: leaf[:0], call_modes.FIVE)
    transformed = applying.transform_episodes(
        golden.batched(
            [none, call_modes.FIVE, call_modes.THREE, none], batch_size=4
        ),
        [_AddReward(1.0), filters.FrameSkip(2), _KEEP(max_length=2)],
    )
    self.assertLen(golden.assert_batches_hold(self, transformed), 3)

  @parameterized.parameters(
      ([call_modes.FIVE, _WRONG], [fields.SelectFields(exclude=['action'])]),
      ([call_modes.FIVE, call_modes.THREE], [_EverySecond()]),
      ([call_modes.FIVE], [_EverySecond(), filters.FrameSkip(2)]),
  )
  def test_unequal_lengths(self, episodes, transforms):
    transformed = applying.transform_episodes(
        golden.batched(episodes), transforms
    )
    for found in transformed, episode_dataset.batches_of(transformed):
      with self.assertRaisesRegex(
          tf.errors.InvalidArgumentError, 'must have the same number of steps'
      ):
        list(found)


class RowsTest(tf.test.TestCase, parameterized.TestCase):

  def test_transform_rows_sees_other_steps_and_draws_per_episode(self):
    episodes = golden.make_episodes([3, 1, 5, 2, 1, 4, 6])
    data = golden.batched(episodes).repeat(2)
    compose = _COMPOSE([_SCALE(2.0), _Draw()])
    transformed = applying.transform_episodes(
        data, [_KEEP(min_length=1), compose]
    )
    actual = [e['steps'] for e in golden.assert_batches_hold(self, transformed)]
    kept_episodes = [e for e in episodes if len(e['reward']) > 1] * 2
    for index, (steps, given) in enumerate(
        zip(actual, kept_episodes, strict=True)
    ):
      reward = 2 * given['reward']
      self.assertAllEqual(steps['index'], [index] * len(reward))
      self.assertAllEqual(steps['next'], [*reward[1:], reward[-1]])
    # The index counts the episodes that reach the transform, and the draws are
    # equal to those of a call with one episode. Repeated episodes draw again.
    alone = _COMPOSE([_Draw()])({'steps': kept_episodes[2]}, 2)['steps']
    self.assertAllEqual(alone['one'], actual[2]['one'])
    numbers = np.concatenate([[*s['one'], *s['other']] for s in actual])
    self.assertLen(set(numbers), len(numbers))
    for call in (_Draw(), _Draw().transform, _COMPOSE([_Draw()])):
      with self.assertRaisesRegex(ValueError, 'Use.*transform_episodes'):
        call({'steps': golden.COMPLETE})

  def test_a_class_of_two_methods_or_none(self):
    methods = {'transform': lambda self, steps: steps}
    with self.assertRaisesRegex(
        TypeError, 'Both has the methods .* but must have only one'
    ):
      type('Both', (_Draw,), methods)
    with self.assertRaisesRegex(NotImplementedError, 'None needs a method tr'):
      type('None', (base.EpisodeTransform,), {})().transform(golden.COMPLETE)


class UserTransformTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.named_parameters(*call_modes.ALL)
  def test_own_transform_in_all_call_modes(self, run):
    add, episodes = _AddReward(np.float32([1, 2])), [
        call_modes.FIVE,
        call_modes.THREE,
    ]
    golden.assert_frames_equal(
        self,
        [result['steps'] for result in run(add, episodes)],
        [{**episode, 'reward': episode['reward'] + 3} for episode in episodes],
    )
    self.assertIs(add.invert(call_modes.FIVE), call_modes.FIVE)
    self.assertEqual(run(_KeepFirst(10.0), episodes), [False, True])

  def test_fields_that_cannot_be_batched_are_unchanged(self):
    ragged = tf.ragged.constant([[1, 2], [3], [], [4], [5]])
    eye = np.eye(5, dtype=np.float32)

    def add(episode):
      odd = {'ragged': ragged, 'sparse': tf.sparse.from_dense(eye)}
      numbers = tf.data.Dataset.range(5)
      return {'steps': {**episode['steps'], **odd}, 'data': numbers, **odd}

    data = golden.stacked([call_modes.FIVE, call_modes.FIVE]).map(add)
    transformed = applying.transform_episodes(
        data, [_AddReward(1.0), _KeepFirst(0.0), lambda episode: episode]
    )
    actual = [*transformed, *transformed.take(1), *mapping_lib.map_fields(data)]
    self.assertLen(actual, 5)
    for episode in actual:
      self.assertAllEqual(list(episode['data']), range(5))
      for nest in episode, episode['steps']:
        if 'ragged' in nest:  # Not in steps that were mapped.
          self.assertAllEqual(nest['ragged'], ragged)
          self.assertAllEqual(tf.sparse.to_dense(nest['sparse']), eye)

  @parameterized.parameters(
      (lambda apply: apply([lambda e: tf.constant(True)]), 'bool.*KeepEpi'),
      (lambda apply: apply([lambda e: e['steps']]), "a dict with 'steps'"),
      (lambda apply: apply(['ScaleReward']), 'takes transforms, filters and'),
      (lambda _: _COMPOSE([_SCALE]), 'Compose takes .* but was given'),
      (
          lambda _: _STACKED.filter(_KeepAll()),
          r'_KeepAll.keep must return one bool, but returned bool \(',
      ),
      (
          lambda _: applying.transform_episodes(
              mixtures.mix_datasets(
                  {'a': _STACKED, 'b': _STACKED}, stop_when='first'
              ),
              [],
          ),
          r"is a Mixed of \['element', ",
      ),
      *(
          (
              lambda _, call=call: call(
                  tf.data.Dataset.from_tensor_slices(call_modes.FIVE)
              ),
              r"a dict with 'steps', but is \['.*'reward', .*\]",
          )
          for call in (
              lambda data: applying.transform_episodes(data, []),
              lambda data: data.map(_AddReward(1.0)),
              lambda data: data.filter(_KeepFirst(1.0)),
          )
      ),
  )
  def test_invalid_transforms_raise(self, call, message):
    with self.assertRaisesRegex(ValueError, message):
      call(functools.partial(applying.transform_episodes, _STACKED))


if __name__ == '__main__':
  tf.test.main()
