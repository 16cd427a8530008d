"""Tests of batches of episodes, against the same episodes one by one."""

import gc
import weakref

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf

from rlds2reverb.episodes import batch as batch_lib
from rlds2reverb.episodes import episode_dataset


def _episodes(lengths, longer=(), size=2, named=True):
  """Returns a data set of episodes, whose values count their steps.

  Args:
    lengths: of the episodes.
    longer: the indices of episodes in which one leaf has an additional row.
    size: the numbers in the field `x` of a step.
    named: whether all steps are of one known shape.
  """
  dim = size if named else None

  def generate():
    first = 0
    for index, length in enumerate(lengths):
      numbers = np.arange(first, first + length)
      first += length
      words = [str(n) for n in numbers] + ['x'] * (index in longer)
      rows = np.repeat(np.float32(numbers)[:, None], size, 1)
      steps = {'observation': {'x': rows}, 'word': np.array(words, object)}
      yield {'steps': steps, 'id': index}

  return tf.data.Dataset.from_generator(
      generate,
      output_signature={
          'steps': {
              'observation': {'x': tf.TensorSpec([None, dim], tf.float32)},
              'word': tf.TensorSpec([None], tf.string),
          },
          'id': tf.TensorSpec([], tf.int64),
      },
  )


def _together(data):
  return episode_dataset.batch_episodes(data, lambda episode: episode)


def _doubled(episode):
  # The function needs AutoGraph.
  steps = episode['steps']
  if episode['id'] > 3:
    steps = tf.nest.map_structure(lambda leaf: tf.repeat(leaf, 2, 0), steps)
  return {'steps': steps, 'id': episode['id'] + 1}


# An operation on a data set, and whether its result is read in batches.
_METHODS = [
    *((lambda data, n=n: data.take(n), True) for n in (7, -1, 0)),
    *((lambda data, n=n: data.skip(n), True) for n in (7, -1)),
    (lambda data: data.shard(3, 1), True),
    (lambda data: data.repeat(2).skip(14).take(9), True),
    (lambda data: data.repeat().take(45).prefetch(2), True),
    (lambda data: data.skip(11).concatenate(data.take(5)).skip(2), True),
    (lambda data: data.with_options(tf.data.Options()).take(2), True),
    (lambda data: data.concatenate(_episodes([1, 2])), False),
    (lambda data: data.map(_doubled), False),
    (lambda data: data.filter(lambda episode: episode['id'] % 2 > 0), False),
]


class BatchesTest(tf.test.TestCase, parameterized.TestCase):

  def _assert_same(self, actual, expected):
    actual, expected = (list(x.as_numpy_iterator()) for x in (actual, expected))
    self.assertLen(actual, len(expected))
    for actual_value, expected_value in zip(actual, expected):
      tf.nest.map_structure(self.assertAllEqual, actual_value, expected_value)

  @parameterized.parameters(
      ([2, 0, 1, 1], (), 2, True, [[0, 1, 2, 3]]),
      ([1, 2, 1], (1,), 2, True, [[0], [1], [2]]),
      # Fewer are in memory if their steps are large.
      ([1] * 4, (), 2048, True, [[0, 1], [2, 3]]),
      ([1] * 3, (), 9999, True, [[0], [1], [2]]),
      ([2, 1], (), 2, False, [[0], [1]]),
      ([1, 600, 1, 1], (), 2, True, [[0], [1], [2, 3]]),
      ([], (), 2, True, []),
  )
  @pytest.mark.few(2)
  def test_short_episodes_share_a_batch(
      self, lengths, longer, size, named, expected
  ):
    data = _episodes(lengths, longer, size, named)
    batches = list(_together(data).as_numpy_iterator())
    self.assertEqual([b.fields['id'].tolist() for b in batches], expected)
    for batch in batches:
      rows = [lengths[e] + (e in longer) for e in batch.fields['id']]
      self.assertAllEqual(batch.row_splits, np.cumsum([0, *rows]))
    self._assert_same(episode_dataset.unbatch(_together(data)), data)
    self.assertEqual(
        episode_dataset.unbatch(_together(data)).element_spec, data.element_spec
    )

  def test_parts_are_of_limited_size(self):
    for num_bytes, is_alone, expected in (
        ([2, 1, 3], None, [[0, 2], [2, 3]]),
        ([0, 2, 2, 0, 2], None, [[0, 3], [3, 5]]),
        ([1, 1, 9, 1, 0], None, [[0, 2], [2, 3], [3, 4], [4, 5]]),
        ([4, 5], None, [[0, 1], [1, 2]]),
        ([0, 0, 0, 0], [0, 1, 1, 0], [[0, 1], [1, 2], [2, 3], [3, 4]]),
        ([], None, np.zeros([0, 2])),
    ):
      alone = None if is_alone is None else tf.cast(is_alone, tf.bool)
      self.assertAllEqual(
          batch_lib.divide_by_bytes(tf.constant(num_bytes, tf.int64), 3, alone),
          expected,
      )

  def test_methods_keep_the_batches(self):
    rng = np.random.default_rng(0)
    plain = _episodes(rng.integers(0, 4, 20).tolist())
    batches = _together(plain)
    self.assertGreater(len(list(batches)), 2)
    episodes = episode_dataset.EpisodeDataset(batches, 20)
    self.assertIs(episode_dataset.batches_of(episodes), batches)
    plain = plain.apply(tf.data.experimental.assert_cardinality(20))
    for index, (method, is_batched) in enumerate(_METHODS):
      with self.subTest(index):
        actual, expected = method(episodes), method(plain)
        self.assertIs(
            isinstance(actual, episode_dataset.EpisodeDataset), is_batched
        )
        self.assertEqual(actual.cardinality(), expected.cardinality())
        self.assertEqual(actual.element_spec, expected.element_spec)
        self._assert_same(actual, expected)

  @parameterized.parameters((2, 2), (2, -1), (0, 0))
  def test_shards_that_do_not_exist(self, num_shards, index):
    plain = _episodes([1, 2, 3])
    batches = _together(plain)
    data_sets = (
        plain,
        episode_dataset.EpisodeDataset(batches),
        episode_dataset.EpisodeDataset(batches, 3),
    )

    def count(data, *args):
      shard = data.shard(*args)
      return shard.reduce(tf.constant(0), lambda total, _: total + 1)

    args = tf.constant(num_shards, tf.int64), tf.constant(index, tf.int64)
    for data in data_sets:
      for call in (
          lambda data=data: data.shard(num_shards, index),
          lambda data=data: data.shard(*args),
          # In graphs.
          lambda data=data: tf.function(lambda: count(data, *args))(),
          lambda data=data: tf.function(lambda *x: count(data, *x))(*args),
          lambda data=data: list(
              tf.data.Dataset.from_tensors(args).map(lambda *x: count(data, *x))
          ),
      ):
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError,
            rf'ndex .*[ \[]{index}\b|Number of shards .* {num_shards}\b',
        ):
          call()

  def test_numbers_of_episodes_must_be_integers(self):
    plain = _episodes([1, 2, 3])
    batches = _together(plain)
    for data in (
        plain,
        episode_dataset.EpisodeDataset(batches),
        episode_dataset.EpisodeDataset(batches, 3),
    ):
      for call in (
          lambda data=data: data.take(1.5),
          lambda data=data: data.skip(1.5),
          lambda data=data: data.shard(2.5, 0),
          lambda data=data: data.shard(2, 0.5),
      ):
        with self.assertRaises(TypeError):
          call()

  def test_an_episode_does_not_share_the_memory_of_its_batch(self):
    # TensorFlow 2.15 may write the sum into the tensor that it was given.
    batch = next(_together(_episodes([2, 1])).as_numpy_iterator())
    batches = tf.data.Dataset.from_generator(
        lambda: iter([batch]),
        output_signature=_together(_episodes([2, 1])).element_spec,
    )
    sums = episode_dataset.unbatch(batches).map(
        lambda episode: episode['steps']['observation']['x'] + 1
    )
    for _ in range(2):
      self.assertAllEqual(tf.concat(list(sums), 0)[:, 0], [1, 2, 3])

  def test_data_sets_are_not_kept_alive(self):
    gc.freeze()  # Garbage of other tests would take half a minute to collect.
    episodes = episode_dataset.EpisodeDataset(_together(_episodes([1])))
    reference = weakref.ref(episodes)
    del episodes
    gc.collect()
    self.assertIsNone(reference())

  def test_some_episodes_of_a_batch_and_some_rows(self):
    (batch,) = _together(_episodes([2, 0, 1, 3]))
    splits = np.array([0, 2, 2, 3, 6])
    for keep in ([1, 1, 1, 1], [0, 1, 0, 1], [1, 0, 1, 0], [0, 0, 0, 0]):
      keep = np.array(keep, bool)
      (mapped,) = tf.data.Dataset.from_tensors((batch, keep)).map(
          batch_lib.filter_episodes
      )
      rows = np.repeat(keep, np.diff(splits))
      kept = batch_lib.filter_episodes(batch, tf.constant(keep))
      for actual in (kept, mapped):
        self.assertAllEqual(
            actual.row_splits, np.cumsum([0, *np.diff(splits)[keep]])
        )
        self.assertAllEqual(actual.fields['id'], np.arange(4)[keep])
        self.assertAllEqual(
            actual.steps['word'], batch.steps['word'].numpy()[rows]
        )
    some = batch_lib.select_rows(batch, tf.constant([1, 2, 5], tf.int64))
    self.assertAllEqual(some.row_splits, [0, 1, 1, 2, 3])
    self.assertAllEqual(some.steps['word'], [b'1', b'2', b'5'])

  def test_rows_and_their_episodes(self):
    for splits, expected in (
        ([0, 2, 2, 3], [0, 0, 2]),
        ([0, 0, 1, 1], [1]),
        ([0, 0], []),
        ([0], []),
    ):
      splits = tf.constant(splits, tf.int64)
      (in_map,) = tf.data.Dataset.from_tensors(splits).map(
          batch_lib.episode_of_rows
      )
      self.assertAllEqual(batch_lib.episode_of_rows(splits), expected)
      self.assertAllEqual(in_map, expected)
    splits = tf.constant([0, 2, 2, 3], tf.int64)
    self.assertAllEqual(batch_lib.count_starts(splits, 4), [1, 0, 2, 1])
    for column, expected in (
        ([1, 2, 3], [3, 0, 3]),
        ([np.nan, 2, -np.inf], [np.nan, 0, -np.inf]),
        # In float32 the 1 would be lost.
        ([2.0**53 - 1, 1, 5], [2**53, 0, 5]),
    ):
      actual = batch_lib.sum_rows(tf.constant(np.array(column)), splits)
      self.assertAllEqual(actual, expected)
      self.assertEqual(actual.dtype, np.array(column).dtype)


class OutcomesTest(tf.test.TestCase):

  def test_outcomes_of_random_batches_equal_loop(self):
    rng = np.random.default_rng(0)
    lengths = [3, 0, 1, 700, 0, 1, 20, 0]
    splits = np.cumsum([0, *lengths])
    # Whatever the flags of last steps are, and what rewards they have.
    steps = {
        'reward': {'task': rng.normal(size=[725, 1]).astype(np.float32)},
        'is_last': rng.integers(0, 2, [725, 1]).astype(np.uint8),
        'is_terminal': rng.random(725) < 0.01,
    }
    steps['reward']['task'][[2, 3, 703]] = np.nan
    steps['reward']['task'][4:6] = [[2**24], [1]]
    batch = batch_lib.EpisodeBatch(
        tf.nest.map_structure(tf.constant, steps), tf.constant(splits), {}
    )
    (in_map,) = tf.data.Dataset.from_tensors(batch).map(
        batch_lib.compute_outcomes
    )
    for actual in (batch_lib.compute_outcomes(batch), in_map):
      self.assertEqual(
          [column.dtype for column in actual], [tf.float64, tf.int64, tf.bool]
      )
      for episode, (begin, end) in enumerate(zip(splits, splits[1:])):
        reward = steps['reward']['task'][begin : max(end - 1, begin), 0]
        total, length, is_terminal = (column[episode] for column in actual)
        self.assertAllClose(total, reward.astype(np.float64).sum(), 1e-13)
        self.assertEqual(length, len(reward))
        self.assertEqual(is_terminal, steps['is_terminal'][begin:end].any())
    one = tf.nest.map_structure(lambda leaf: tf.constant(leaf[4:704]), steps)
    self.assertAllEqual(
        batch_lib.compute_outcomes(batch_lib.make_batch(one)),
        [column[3:4] for column in in_map],
    )

  def test_rewards_without_return_raise(self):
    flags = {'is_last': [0, 1], 'is_terminal': [0, 0]}
    flags = {name: tf.constant(flag) for name, flag in flags.items()}
    for message, reward in (
        ('one number a step', {'a': tf.zeros([2]), 'b': tf.zeros([2])}),
        ('one number a step', tf.zeros([2, 3])),
        ('must be of numbers', tf.constant(['a', 'b'])),
    ):
      with self.assertRaisesRegex(ValueError, message):
        batch_lib.compute_outcomes(
            batch_lib.make_batch({**flags, 'reward': reward})
        )


class LastStepsTest(tf.test.TestCase):

  def test_masks_of_last_rows_and_of_actions(self):
    # Episodes of 2, 0, 1 and 3 steps.
    splits = tf.constant([0, 2, 2, 3, 6], tf.int64)
    self.assertAllEqual(batch_lib.last_row_mask(splits), [0, 1, 1, 0, 0, 1])
    self.assertAllEqual(batch_lib.last_step_mask(3), [0, 0, 1])
    self.assertAllEqual(batch_lib.last_step_mask(0), np.zeros(0, bool))
    last = tf.constant([False, False, True])
    self.assertAllEqual(batch_lib.has_action_mask({}, last), [1, 1, 0])
    has = {'has_action': tf.constant([[1], [0], [1]])}
    self.assertAllEqual(batch_lib.has_action_mask(has, last), [1, 0, 1])
    with self.assertRaisesRegex(ValueError, 'has_action must be one number'):
      batch_lib.has_action_mask({'has_action': tf.zeros([3, 2])}, last)

  def test_moving_rewards(self):
    first = tf.constant([1, 0, 0, 0, 1, 0, 1]) > 0
    last = tf.constant([0, 0, 0, 1, 0, 1, 1]) > 0
    # The last episode has one step, and no transition.
    reward = np.array([0, 0, 0, 1, 2, 3, 7])
    moved = np.array([0, 0, 1, 0, 5, 0, 7])
    for dtype in (np.float32, np.int32, np.uint8, bool):
      actual = batch_lib.move_reward(
          {'task': reward.astype(dtype), 'two': np.stack([reward] * 2, 1)},
          first,
          last,
      )
      self.assertAllEqual(actual['task'], moved.astype(dtype))
      self.assertEqual(actual['task'].dtype, dtype)
      self.assertAllEqual(actual['two'], np.stack([moved] * 2, 1))


if __name__ == '__main__':
  tf.test.main()
