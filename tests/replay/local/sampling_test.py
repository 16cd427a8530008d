"""Tests of data sets of batches."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.replay.local import population as population_lib
from rlds2reverb.replay.local import samplers
from rlds2reverb.replay.local import sampling
from rlds2reverb.replay.local import store as store_lib
from tests.replay.local import cuts

_SHARE = samplers.Share((0, 0), 0, 1)


def _sample(store, sampler=samplers.Uniform(), **kwargs):
  population = population_lib.Population(store)
  draw = sampler.bind(population, _SHARE)
  return sampling.sample(store, population, draw, **kwargs)


def _shown(dataset, count):
  return [
      frames.observation.tolist()
      for frames, _ in dataset.take(count).as_numpy_iterator()
  ]


class SampleTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.product(group=(1, 7, 16), batch_size=(None, 4))
  def test_groups_are_the_same_batches(self, group, batch_size):
    store = cuts.make_store([5, 0, 7])
    sampler = samplers.WithoutReplacement()
    expected = _shown(_sample(store, sampler, batch_size=batch_size), 30)
    position = tf.Variable(0, dtype=tf.int64)
    dataset = _sample(
        store,
        sampler,
        batch_size=batch_size,
        batches_per_group=group,
        position=position,
    )
    self.assertEqual(_shown(dataset, 30), expected)
    self.assertEqual(int(position), 30)
    for begin in 1, 6, 13:
      position.assign(begin)
      self.assertEqual(_shown(dataset, 9), expected[begin : begin + 9])
      self.assertEqual(int(position), begin + 9)

  def test_the_position_is_that_of_what_came_out(self):
    position = tf.Variable(0, dtype=tf.int64)
    dataset = _sample(
        cuts.make_store([9]),
        batch_size=2,
        batches_per_group=4,
        position=position,
    )
    for number, _ in enumerate(dataset.take(10), start=1):
      self.assertEqual(int(position), number)

  def test_a_number_of_groups(self):
    dataset = _sample(cuts.make_store([9]), batch_size=2, num_groups=3)
    self.assertLen(_shown(dataset, 99), 3)

  def test_a_function_of_sequences(self):
    store = cuts.make_store([5, 7])

    def mark(frames):
      self.assertEqual(frames.observation.shape, [2])
      return frames._replace(
          reward=frames.reward + tf.reduce_sum(frames.reward),
          action=tf.stack([frames.observation] * 3, 1),
      )

    for group, batch_size in ((1, 3), (4, 3), (4, None)):
      dataset = _sample(
          store,
          batch_size=batch_size,
          batches_per_group=group,
          sequence_fn=mark,
      )
      lead = [] if batch_size is None else [batch_size]
      self.assertEqual(dataset.element_spec[0].action.shape, [*lead, 2, 3])
      for frames, _ in dataset.take(6).as_numpy_iterator():
        numbers = frames.observation
        self.assertAllEqual(frames.action, np.stack([numbers] * 3, -1))
        self.assertAllEqual(
            frames.reward, numbers + numbers.sum(-1, keepdims=True)
        )

  @parameterized.parameters(
      (1, 3, None), (4, None, None), (4, 3, None), (4, 3, lambda item: item)
  )
  def test_columns_without_elements(self, group, batch_size, sequence_fn):
    spec = cuts.frame_spec()._replace(
        action=tf.TensorSpec([0, 2], tf.float32),
        policy_info=tf.TensorSpec([0], tf.string),
    )
    writer = store_lib.StoreWriter(spec, None)
    frames = cuts.make_frames(0, 6)
    writer.append(
        frames._replace(
            action=np.zeros([6, 0, 2], np.float32),
            policy_info=np.zeros([6, 0], object),
        )
    )
    store = writer.finish(
        store_lib.Form(2, 1, False),
        store_lib.Runs(*(np.array([each]) for each in (0, 6, 5, 0.0))),
        None,
    )
    dataset = _sample(
        store,
        batch_size=batch_size,
        batches_per_group=group,
        sequence_fn=sequence_fn,
    )
    lead = [] if batch_size is None else [batch_size]
    for frames, _ in dataset.take(5):
      self.assertEqual(frames.action.shape, [*lead, 2, 0, 2])
      self.assertEqual(frames.policy_info.shape, [*lead, 2, 0])
      numbers = frames.observation.numpy()
      self.assertAllEqual(numbers[..., 1], numbers[..., 0] + 1)

  def test_frames_are_not_copied(self):
    # Else what is written later would not be seen, and a store that is larger
    # than memory could not be read.
    store = cuts.make_store([9])
    array = np.frombuffer(
        store_lib.mmap.mmap(-1, 10 * store.format.row_bytes[0]), np.uint8
    ).reshape([10, -1])
    array[:] = store.rows[0].numpy()
    store = store._replace(rows=[store_lib.as_tensor(array)])
    for group in 1, 4:
      dataset = _sample(store, batch_size=2, batches_per_group=group)
      batches = dataset.map(lambda frames, info: frames.observation)
      batches = iter(batches.shuffle(1).map(tf.identity))
      before = array.copy()
      next(batches)
      array[:] = array[:1]
      for _ in range(20):
        last = next(batches)
      self.assertAllEqual(last, np.zeros([2, 2]))
      array[:] = before

  def test_batches_per_group(self):
    store = cuts.make_store([9])
    self.assertEqual(store.format.frame_bytes, 24)
    for batch_size, expected in (
        (1, 16),
        (1365, 16),
        (10000, 2),
        (30000, 1),
        (10**7, 1),
    ):
      self.assertEqual(sampling.batches_per_group(store, batch_size), expected)
    whole = store._replace(form=store_lib.Form(None, 1, False))
    self.assertEqual(sampling.batches_per_group(whole, 1), 1)


if __name__ == '__main__':
  tf.test.main()
