"""Tests of batches of episodes."""

import gc
import weakref

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import batching
from rlds2reverb.episodes import data_sets
from rlds2reverb.episodes import episode_batches
from rlds2reverb.episodes import grouping

_SPEC = episode_batches.EpisodeBatch(
    {
        'observation': {'x': tf.TensorSpec([None, 2], tf.float32)},
        'word': tf.TensorSpec([None], tf.string),
    },
    tf.TensorSpec([None], tf.int64),
    {'episode_id': tf.TensorSpec([None], tf.int64)},
)


def _batch(row_splits, episode_id, num_words=None):
  """Returns a batch whose values tell the row they are of."""
  num_rows = row_splits[-1]
  words = range(num_rows if num_words is None else num_words)
  return episode_batches.EpisodeBatch(
      {
          'observation': {
              'x': np.arange(2 * num_rows, dtype=np.float32).reshape(-1, 2)
          },
          'word': np.array([f'w{row}' for row in words], object),
      },
      np.array(row_splits, np.int64),
      {'episode_id': np.array(episode_id, np.int64)},
  )


def _data_set(*batches):
  return tf.data.Dataset.from_generator(
      lambda: iter(batches), output_signature=_SPEC
  )


def _doubled(episode):
  # The function needs AutoGraph.
  steps = episode['steps']
  if episode['episode_id'] > 3:
    steps = tf.nest.map_structure(lambda leaf: tf.repeat(leaf, 2, 0), steps)
  return {'steps': steps, 'episode_id': episode['episode_id'] + 1}


def _with_index(index, episode):
  return {**episode, 'episode_id': 100 * index + episode['episode_id']}


def _is_long(episode):
  return tf.shape(episode['steps']['word'])[0] > 2


class BatchesTest(tf.test.TestCase):

  def test_rows_and_their_episodes(self):
    splits = tf.constant([0, 2, 2, 3], tf.int64)
    self.assertAllEqual(episode_batches.count_begins(splits, 4), [1, 0, 2, 1])
    self.assertAllEqual(episode_batches.episode_of_rows(splits), [0, 0, 2])
    for ends in ([0], [0, 0]):
      self.assertEmpty(
          episode_batches.episode_of_rows(tf.constant(ends, tf.int64))
      )

  def test_unpack(self):
    episodes = batching.unbatch(
        _data_set(_batch([0, 2, 2, 3], [5, 6, 7]), _batch([0, 1], [8]))
    )
    self.assertEqual(
        episodes.element_spec,
        {
            'episode_id': tf.TensorSpec([], tf.int64),
            'steps': _SPEC.steps,
        },
    )
    expected = [
        (5, [[0, 1], [2, 3]], [b'w0', b'w1']),
        (6, np.zeros([0, 2]), []),
        (7, [[4, 5]], [b'w2']),
        (8, [[0, 1]], [b'w0']),
    ]
    found = list(episodes.as_numpy_iterator())
    self.assertLen(found, len(expected))
    for episode, (episode_id, x, words) in zip(found, expected):
      self.assertEqual(episode['episode_id'], episode_id)
      self.assertAllEqual(episode['steps']['observation']['x'], x)
      self.assertAllEqual(episode['steps']['word'], words)

  def test_an_episode_of_unequal_lengths_stays_as_it_is(self):
    (episode,) = batching.unbatch(
        _data_set(_batch([0, 3], [5], num_words=1))
    ).as_numpy_iterator()
    self.assertLen(episode['steps']['observation']['x'], 3)
    self.assertLen(episode['steps']['word'], 1)

  def test_an_episode_does_not_share_the_memory_of_its_batch(self):
    batch = _batch([0, 2, 3], [5, 6])
    # TensorFlow 2.15 may write the sum into the tensor that it was given.
    episodes = batching.unbatch(_data_set(batch)).map(
        lambda episode: episode['steps']['observation']['x'] + 1
    )
    for _ in range(2):
      self.assertAllEqual(
          tf.concat(list(episodes), 0), [[1, 2], [3, 4], [5, 6]]
      )

  def test_episode_of_rows(self):
    for row_splits, expected in (
        ([0, 2, 2, 3], [0, 0, 2]),
        ([0, 0, 1, 1], [1]),
        ([0, 0], []),
        ([0], []),
    ):
      row_splits = tf.constant(row_splits, tf.int64)
      self.assertAllEqual(episode_batches.episode_of_rows(row_splits), expected)
      in_graph = tf.data.Dataset.from_tensors(row_splits).map(
          episode_batches.episode_of_rows
      )
      (found,) = in_graph
      self.assertAllEqual(found, expected)

  def test_bounds_of_parts(self):
    for num_bytes, is_alone, expected in (
        ([2, 1, 3], None, [[0, 2], [2, 3]]),
        ([0, 2, 2, 0, 2], None, [[0, 3], [3, 5]]),
        ([1, 1, 9, 1, 0], None, [[0, 2], [2, 3], [3, 4], [4, 5]]),
        ([4, 5], None, [[0, 1], [1, 2]]),
        ([0, 0, 0, 0], [0, 1, 1, 0], [[0, 1], [1, 2], [2, 3], [3, 4]]),
        ([], None, np.zeros([0, 2])),
    ):
      found = grouping.bounds_of_parts(
          tf.constant(num_bytes, tf.int64),
          3,
          is_alone and tf.cast(is_alone, tf.bool),
      )
      self.assertAllEqual(found, expected)

  def test_batches_of_a_data_set(self):
    batches = _data_set(_batch([0, 1], [8]))
    self.assertIs(data_sets.batches_of(data_sets.Episodes(batches)), batches)

  def test_methods_keep_the_batches(self):
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 4, 20)
    splits = np.cumsum([0, *lengths])
    bounds = [0, 3, 4, 9, 9, 15, 20]
    batches = tf.data.Dataset.from_generator(
        lambda: (
            _batch(splits[start : stop + 1] - splits[start], range(start, stop))
            for start, stop in zip(bounds, bounds[1:])
        ),
        output_signature=_data_set(_batch([0, 1], [8])).element_spec,
    )
    plain = batching.unbatch(batches)
    episodes = data_sets.Episodes(batches, 20)
    plain = plain.apply(tf.data.experimental.assert_cardinality(20))
    for index, (method, is_batched) in enumerate(
        [
            (lambda data: data.take(7), True),
            (lambda data: data.take(9), True),
            (lambda data: data.take(10**6), True),
            (lambda data: data.take(-1), True),
            (lambda data: data.take(0), True),
            (lambda data: data.skip(3), True),
            (lambda data: data.skip(7), True),
            (lambda data: data.skip(0), True),
            (lambda data: data.skip(-1), True),
            (lambda data: data.shard(3, 1), True),
            (lambda data: data.repeat(2).skip(14).take(9), True),
            (lambda data: data.repeat().take(45).prefetch(2), True),
            (
                lambda data: data.skip(11).concatenate(data.take(5)).skip(2),
                True,
            ),
            (lambda data: data.with_options(tf.data.Options()).take(2), True),
            (lambda data: data.concatenate(plain), False),
            (lambda data: data.map(_doubled), False),
            (lambda data: data.skip(1).map(_doubled).filter(_is_long), False),
            (lambda data: data.filter(lambda one: False), False),
            (lambda data: data.shuffle(40, 1, False), False),
            (lambda data: data.enumerate(5).take(7).map(_with_index), False),
        ]
    ):
      with self.subTest(index):
        found, expected = method(episodes), method(plain)
        self.assertIs(isinstance(found, data_sets.Episodes), is_batched)
        self.assertEqual(found.cardinality(), expected.cardinality())
        self.assertEqual(found.element_spec, expected.element_spec)
        expected = list(expected.as_numpy_iterator())
        for made in found, batching.unbatch(data_sets.batches_of(found)):
          made = list(made.as_numpy_iterator())
          self.assertLen(made, len(expected))
          for one, other in zip(made, expected):
            tf.nest.map_structure(self.assertAllEqual, one, other)

  def test_keep_episodes(self):
    batch = tf.nest.map_structure(
        tf.constant, _batch([0, 2, 2, 3, 6], [5, 6, 7, 8])
    )
    for keep, row_splits, rows in (
        ([1, 1, 1, 1], [0, 2, 2, 3, 6], range(6)),
        ([0, 1, 0, 1], [0, 0, 3], [3, 4, 5]),
        ([1, 0, 1, 0], [0, 2, 3], [0, 1, 2]),
        ([0, 1, 0, 0], [0, 0], []),
        ([0, 0, 0, 0], [0], []),
    ):
      keep = tf.cast(keep, tf.bool)
      in_graph = tf.data.Dataset.from_tensors((batch, keep)).map(
          episode_batches.keep_episodes
      )
      (mapped,) = in_graph
      for found in episode_batches.keep_episodes(batch, keep), mapped:
        self.assertAllEqual(found.row_splits, row_splits)
        self.assertEqual(found.row_splits.dtype, tf.int64)
        self.assertAllEqual(
            found.steps['observation']['x'],
            np.array([[2 * row, 2 * row + 1] for row in rows]).reshape(-1, 2),
        )
        self.assertAllEqual(
            found.steps['word'], np.array([b'w%d' % row for row in rows])
        )
        self.assertAllEqual(
            found.fields['episode_id'], np.array([5, 6, 7, 8])[keep]
        )
      self.assertEqual(
          in_graph.element_spec.steps['observation']['x'].shape.as_list()[1:],
          [2],
      )

  def test_sum_rows(self):
    row_splits = tf.constant([0, 0, 2, 2, 5, 5], tf.int64)
    for column, expected in (
        (np.int64([1, 2, 3, 4, 5]), [0, 3, 0, 12, 0]),
        (np.float64([np.nan, 2, 3, -np.inf, 5]), [0, np.nan, 0, -np.inf, 0]),
        # In float32 and in another order, the 1 would be lost.
        (np.float64([1, 0, 2**53, 1, -(2**53)]), [0, 1, 0, 0, 0]),
    ):
      found = episode_batches.sum_rows(tf.constant(column), row_splits)
      self.assertAllEqual(found, expected)
      self.assertEqual(found.dtype.as_numpy_dtype, column.dtype)
    nothing = episode_batches.sum_rows(
        tf.zeros([0]), tf.constant([0], tf.int64)
    )
    self.assertEqual(nothing.shape, [0])

  def test_data_sets_are_not_kept(self):
    gc.freeze()  # Garbage of other tests would take half a minute to collect.
    batches = _data_set(_batch([0, 1], [8]))
    episodes = data_sets.Episodes(batches)
    held = weakref.ref(episodes)
    del episodes, batches
    gc.collect()
    self.assertIsNone(held())


if __name__ == '__main__':
  tf.test.main()
