"""Tests of replay buffers that several threads use concurrently."""

from concurrent import futures
import threading
import time

import numpy as np
import tensorflow as tf

from rlds2reverb.replay.local import appendable
from rlds2reverb.store import sum_tree
from tests.replay.local import replay_testing

_CAPACITY = 500


class ThreadsTest(tf.test.TestCase):

  def run_all(self, functions, seconds):
    """Calls functions repeatedly, each in a separate thread."""
    is_over = threading.Event()

    def run(function):
      count = 0
      while not is_over.is_set():
        function()
        count += 1
      return count

    begin, limit = time.process_time(), time.monotonic() + 10 * seconds
    with futures.ThreadPoolExecutor(len(functions)) as executor:
      runs = [executor.submit(run, each) for each in functions]
      while (
          time.process_time() - begin < seconds
          and time.monotonic() < limit
          and not any(each.done() for each in runs)
      ):
        time.sleep(0.05)
      is_over.set()
    self.assertGreater(min(each.result() for each in runs), 0)

  def test_one_thread_adds_while_three_sample(self):
    # Large frames take longer to write, so partial writes become visible.
    spec = replay_testing.frame_spec()._replace(
        action=tf.TensorSpec([400], tf.int64)
    )
    buffer = appendable.AppendableReplayBuffer(
        spec, _CAPACITY, sampler=sum_tree.Prioritized()
    )
    count = [0]  # Of all frames that have begun to be added.

    def add(size=37):
      begin = count[0]
      count[0] += size
      frames = replay_testing.make_frames(begin, begin + size)
      action = np.repeat(frames.observation[:, np.newaxis], 400, 1)
      buffer._items.append(*tf.nest.flatten(frames._replace(action=action)))

    add(400)

    def check(frames, info, before):
      key = np.asarray(info.key)[:, 0].astype(np.int64)
      # In a stream without an end, item `k` is frames `k` and `k + 1`.
      shown = key[:, np.newaxis] + [0, 1]
      np.testing.assert_array_equal(np.asarray(frames.observation), shown)
      np.testing.assert_array_equal(
          np.asarray(frames.action), np.tile(shown[..., np.newaxis], 400)
      )
      # They were added together, after the earlier frames.
      self.assertLess(key.max() - key.min(), _CAPACITY)
      self.assertGreaterEqual(key.min(), before - _CAPACITY - 37)
      self.assertLess(shown.max(), count[0])

    def learner(batches, function):
      rng = np.random.default_rng(0)

      def learn():
        before = count[0] - 37  # The number of completely added frames.
        frames, info = next(batches)
        check(frames, info, before)
        priorities = rng.uniform(0.1, 3, len(info.key)).astype(np.float32)
        function(info.key, priorities)

      return learn

    dataset = buffer.as_dataset(64)
    in_graph = tf.function(buffer.update_priorities)
    self.run_all(
        [
            add,
            learner(dataset.as_numpy_iterator(), buffer.update_priorities),
            learner(iter(dataset), buffer.update_priorities),
            learner(iter(dataset.map(lambda *batch: batch)), in_graph),
        ],
        2,
    )
    self.check_tree(buffer)

  def check_tree(self, buffer):
    """Checks that items that have gone have no weight, and others have one."""
    population, sampler = buffer._items, buffer._sampler
    priorities = sampler._tree.priorities
    slots = (population.first + np.arange(population.num_items)) % _CAPACITY
    self.assertTrue((priorities[slots] > 0).all())
    self.assertEqual(np.count_nonzero(priorities), len(slots))
    self.assertAllClose(sampler._tree.total, (priorities**sampler.alpha).sum())


if __name__ == '__main__':
  tf.test.main()
