"""Tests of replay buffers whose batches go to several replicas."""

import contextlib
import os
import subprocess
import sys
import unittest

from absl.testing import parameterized
import pytest
import tensorflow as tf

from rlds2reverb.replay.local import replay_buffer
from tests.replay.local import replay_testing

_STEPS = 10
_ITEMS = 8  # Of a batch of all replicas.


def _global_batches(strategy, buffer):
  return strategy.experimental_distribute_dataset(buffer.as_dataset(_ITEMS))


def _mapped_batches(strategy, buffer):
  dataset = buffer.as_dataset(_ITEMS).map(lambda *batch: batch).prefetch(3)
  return strategy.experimental_distribute_dataset(dataset)


def _batches_of_workers(strategy, buffer):
  return strategy.distribute_datasets_from_function(
      lambda _: buffer.as_dataset(_ITEMS // 2)
  )


def _has_two_devices() -> bool:
  """Returns whether there are two devices, and makes them if it can."""
  [device] = tf.config.list_physical_devices('CPU')
  # Other tests may have used TensorFlow in this process.
  with contextlib.suppress(RuntimeError):
    tf.config.set_logical_device_configuration(
        device, [tf.config.LogicalDeviceConfiguration()] * 2
    )
  return len(tf.config.list_logical_devices('CPU')) == 2


class ProcessTest(tf.test.TestCase):

  @pytest.mark.long
  def test_tests_pass_in_a_process_with_two_devices(self):
    if not _has_two_devices():
      command = [sys.executable, '-m', 'tests.replay.local.distribution_test']
      subprocess.run(command, check=True)


class DistributionTest(parameterized.TestCase, tf.test.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    if not _has_two_devices():
      raise unittest.SkipTest('They run in a process of their own.')
    cls.strategy = tf.distribute.MirroredStrategy(['cpu:0', 'cpu:1'])
    cls.store = replay_testing.make_store([50, 50])

  def buffer(self):
    return replay_buffer.EpisodesReplayBuffer(self.store)

  def train(self, batches, train_step, count) -> list[list[int]]:
    """Trains, and returns the sorted items of the batches of each step."""
    iterator = iter(batches)

    @tf.function
    def take():
      keys = self.strategy.run(
          lambda batch: batch[1].key[:, 0], args=(next(iterator),)
      )
      train_step.assign_add(1)
      return tf.concat(self.strategy.experimental_local_results(keys), 0)

    return [sorted(take().numpy().tolist()) for _ in range(count)]

  @parameterized.parameters(
      (_global_batches, 1), (_mapped_batches, 1), (_batches_of_workers, 2)
  )
  def test_a_restart_leaves_no_batch_out(self, distribute, per_step):
    path = os.path.join(self.create_tempdir().full_path, 'checkpoint')
    found = []
    for restart in False, True:
      buffer = self.buffer()
      train_step = tf.Variable(0, dtype=tf.int64)
      checkpoint = tf.train.Checkpoint(buffer=buffer, train_step=train_step)
      if restart:
        checkpoint.read(path).assert_consumed()
        buffer.seek(int(train_step) * per_step)
      found += self.train(distribute(self.strategy, buffer), train_step, _STEPS)
      checkpoint.write(path)
    expected = []
    batches = self.buffer().as_dataset(_ITEMS // per_step).as_numpy_iterator()
    for _ in range(2 * _STEPS):
      keys = [next(batches)[1].key[:, 0].tolist() for _ in range(per_step)]
      expected.append(sorted(sum(keys, [])))
    self.assertEqual(found, expected)


if __name__ == '__main__':
  tf.test.main()
