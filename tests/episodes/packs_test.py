"""Tests of packs of episodes."""

import gc
import weakref

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import packs as packs_lib

_SPEC = packs_lib.Pack(
    {
        'observation': {'x': tf.TensorSpec([None, 2], tf.float32)},
        'word': tf.TensorSpec([None], tf.string),
    },
    tf.TensorSpec([None], tf.int64),
    {'episode_id': tf.TensorSpec([None], tf.int64)},
)


def _pack(row_splits, episode_id, num_words=None):
  """Returns a pack whose values tell the row they are of."""
  num_rows = row_splits[-1]
  words = range(num_rows if num_words is None else num_words)
  return packs_lib.Pack(
      {
          'observation': {
              'x': np.arange(2 * num_rows, dtype=np.float32).reshape(-1, 2)
          },
          'word': np.array([f'w{row}' for row in words], object),
      },
      np.array(row_splits, np.int64),
      {'episode_id': np.array(episode_id, np.int64)},
  )


def _data_set(*packs):
  return tf.data.Dataset.from_generator(
      lambda: iter(packs), output_signature=_SPEC
  )


class PacksTest(tf.test.TestCase):

  def test_unpack(self):
    episodes = packs_lib.unpack(
        _data_set(_pack([0, 2, 2, 3], [5, 6, 7]), _pack([0, 1], [8]))
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
    (episode,) = packs_lib.unpack(
        _data_set(_pack([0, 3], [5], num_words=1))
    ).as_numpy_iterator()
    self.assertLen(episode['steps']['observation']['x'], 3)
    self.assertLen(episode['steps']['word'], 1)

  def test_an_episode_does_not_share_the_memory_of_its_pack(self):
    pack = _pack([0, 2, 3], [5, 6])
    # TensorFlow 2.15 may write the sum into the tensor that it was given.
    episodes = packs_lib.unpack(_data_set(pack)).map(
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
      self.assertAllEqual(packs_lib.episode_of_rows(row_splits), expected)
      in_graph = tf.data.Dataset.from_tensors(row_splits).map(
          packs_lib.episode_of_rows
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
      found = packs_lib.bounds_of_parts(
          tf.constant(num_bytes, tf.int64),
          3,
          is_alone and tf.cast(is_alone, tf.bool),
      )
      self.assertAllEqual(found, expected)

  def test_packs_of_a_data_set(self):
    packs = _data_set(_pack([0, 1], [8]))
    episodes = packs_lib.unpack(packs)
    self.assertIsNone(packs_lib.packs_of(episodes))
    self.assertIs(packs_lib.with_packs(episodes, packs), episodes)
    self.assertIs(packs_lib.packs_of(episodes), packs)
    self.assertIsNone(packs_lib.packs_of(episodes.take(1)))

  def test_packs_are_made_once_and_when_asked_for(self):
    for made in _data_set(_pack([0, 1], [8])), None:
      calls = []

      def make(made=made, calls=calls):
        calls.append(tf.executing_eagerly())
        return made

      episodes = packs_lib.with_packs(tf.data.Dataset.range(1), make)
      self.assertEmpty(calls)
      graph = tf.function(lambda: packs_lib.packs_of(episodes) is made)
      self.assertTrue(graph())  # pylint: disable=cell-var-from-loop
      self.assertIs(packs_lib.packs_of(episodes), made)
      self.assertEqual(calls, [True])

  def test_data_sets_are_not_kept(self):
    packs = _data_set(_pack([0, 1], [8]))
    episodes = packs_lib.with_packs(packs_lib.unpack(packs), packs)
    held = weakref.ref(episodes)
    del episodes, packs
    gc.collect()
    self.assertIsNone(held())


if __name__ == '__main__':
  tf.test.main()
