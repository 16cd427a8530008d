"""Tests of data sets of batches."""

import dataclasses
import gc
import weakref

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.replay.local import batches as batches_lib
from rlds2reverb.replay.local import dataset as dataset_lib
from rlds2reverb.replay.local import population as population_lib
from rlds2reverb.replay.local import position as position_lib
from rlds2reverb.replay.local import samplers
from rlds2reverb.replay.local import store as store_lib
from tests.replay.local import cuts


def _sample(store, sampler=samplers.Uniform(), sequence_fn=None, **kwargs):
  population = population_lib.Population(store)
  batches = batches_lib.Batches(
      store,
      population,
      lambda number: sampler.bind(
          population, samplers.Process(0, stream=(0, number))
      ),
      **kwargs,
  )
  streams = position_lib.Streams()
  dataset = dataset_lib.make_dataset(batches, streams)
  if sequence_fn is not None:
    dataset = dataset_lib.map_sequences(dataset, sequence_fn)
  return dataset, streams


def _shown(dataset, count):
  return [
      frames.observation.tolist()
      for frames, _ in dataset.take(count).as_numpy_iterator()
  ]


class SampleTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(None, 4, 5)
  def test_from_any_position(self, batch_size):
    store = cuts.make_store([5, 0, 7])
    sampler = samplers.WithoutReplacement()
    dataset, streams = _sample(store, sampler, batch_size=batch_size)
    expected = _shown(dataset, 60)
    self.assertEqual(streams.positions(), [60])
    for begin in 0, 1, 6, 13:
      streams.restore([begin])
      self.assertEqual(_shown(dataset, 40), expected[begin : begin + 40])
      self.assertEqual(streams.positions(), [begin + 40])

  def test_the_position_is_that_of_what_came_out(self):
    dataset, streams = _sample(cuts.make_store([9]), batch_size=2)
    ways = (dataset.take(20), dataset, dataset.as_numpy_iterator())
    for way, batches in enumerate(ways):
      for number, _ in zip(range(1, 21), batches):
        self.assertEqual(streams.positions(), [20 * way + number])
      del batches

  def test_a_number_of_batches(self):
    dataset, streams = _sample(
        cuts.make_store([9]), batch_size=2, num_batches=3
    )
    for batches in dataset, dataset.take(99), dataset.as_numpy_iterator():
      streams.restore([0])
      self.assertLen(list(batches), 3)

  def test_a_function_of_sequences(self):
    store = cuts.make_store([5, 7])

    def mark(frames):
      self.assertEqual(frames.observation.shape, [2])
      return frames._replace(
          reward=frames.reward + tf.reduce_sum(frames.reward),
          action=tf.stack([frames.observation] * 3, 1),
      )

    for in_advance, batch_size in ((False, 3), (True, 3), (True, None)):
      dataset, _ = _sample(
          store,
          batch_size=batch_size,
          static_size=batch_size,
          in_advance=in_advance,
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
      (False, 3, None),
      (True, None, None),
      (True, 3, None),
      (True, 3, lambda item: item),
  )
  def test_columns_without_elements(self, in_advance, batch_size, sequence_fn):
    spec = cuts.frame_spec()._replace(
        action=tf.TensorSpec([0, 2], tf.float32),
        policy_info=tf.TensorSpec([0], tf.string),
    )
    writer = store_lib.StoreWriter(spec)
    frames = cuts.make_frames(0, 6)
    writer.append(
        frames._replace(
            action=np.zeros([6, 0, 2], np.float32),
            policy_info=np.zeros([6, 0], object),
        )
    )
    store, _ = writer.finish(
        store_lib.ItemWindows(2, 1, False),
        store_lib.Runs(*(np.array([each]) for each in (0, 6, 5, 0.0))),
        None,
    )
    dataset, _ = _sample(
        store,
        batch_size=batch_size,
        static_size=batch_size,
        in_advance=in_advance,
        sequence_fn=sequence_fn,
    )
    lead = [] if batch_size is None else [batch_size]
    for frames, _ in dataset.take(5):
      self.assertEqual(frames.action.shape, [*lead, 2, 0, 2])
      self.assertEqual(frames.policy_info.shape, [*lead, 2, 0])
      numbers = frames.observation.numpy()
      self.assertAllEqual(numbers[..., 1], numbers[..., 0] + 1)

  def test_a_replay_buffer_that_is_gone(self):
    gc.freeze()  # Garbage of other tests would take half a minute to collect.
    dataset, _ = _sample(cuts.make_store([9]), batch_size=2)
    reader = weakref.ref(dataset.must_live)
    kept = dataset.map(lambda frames, info: info.key)
    iterator = iter(kept)
    del dataset, kept
    gc.collect()
    next(iterator)  # It needs the reader.
    del iterator
    gc.collect()
    self.assertIsNone(reader())

  def test_batches_per_group(self):
    store = cuts.make_store([9])
    self.assertEqual(store.format.frame_bytes, 24)
    for batch_size, expected in (
        (1, 16),
        (5461, 16),
        (40000, 2),
        (90000, 1),
        (10**7, 1),
    ):
      self.assertEqual(
          batches_lib.batches_per_group(store, batch_size), expected
      )
    whole = dataclasses.replace(
        store, windows=store_lib.ItemWindows(None, 1, False)
    )
    self.assertEqual(batches_lib.batches_per_group(whole, 1), 1)


if __name__ == '__main__':
  tf.test.main()
