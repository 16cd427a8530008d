"""Tests of replay buffers over a table of a server."""

import threading

import pytest
import tensorflow as tf

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import opening
from rlds2reverb.replay.server import replay_buffer
from tests import testing
from tests.replay.server import processes
from tests.replay.server import sampling_test

_SERVER = sampling_test._SERVER  # pylint: disable=protected-access


class ServerReplayBufferTest(tf.test.TestCase):

  def test_batches(self):
    server, address = sampling_test.make_server('uniform', range(9), length=2)
    self.addCleanup(server.stop)
    for served in server, address:
      buffer = replay_buffer.ServerReplayBuffer(served, testing.TABLE, 2)
      self.assertIs(buffer.local_server, server if served is server else None)
      for batch_size, num_steps in ((5, None), (5, 2), (None, 2)):
        [(frames, info)] = buffer.as_dataset(batch_size, num_steps).take(1)
        shape = [2] if batch_size is None else [5, 2]
        self.assertEqual([frames.reward.shape, info.key.shape], [shape] * 2)
    reverse = lambda frames: frames._replace(reward=frames.reward[::-1])
    dataset = buffer.as_dataset(3, 2, sequence_preprocess_fn=reverse)
    [(frames, _)] = dataset.take(1)
    self.assertAllEqual(frames.reward[:, 0], frames.reward[:, 1] + 1)

  @pytest.mark.long
  def test_a_server_that_comes_back(self):
    first = processes.ServerProcess(_SERVER, 'uniform', 30)
    self.addCleanup(first.kill)
    first.serve()
    second = processes.ServerProcess(_SERVER, 'uniform', 40)
    self.addCleanup(second.kill)
    buffer = opening.open_replay_buffer(
        None, windows_lib.Windows(1), reverb_server=first.address, timeout=60
    )
    iterator = iter(buffer.as_dataset(8, 1))
    next(iterator)
    first.kill()
    restart = threading.Timer(3, second.serve, [first.port])
    restart.start()
    self.addCleanup(restart.join)
    found = set()
    for _ in range(10_000):
      frames, _ = next(iterator)
      found |= set(frames.reward.numpy().ravel().tolist())
      if max(found) >= 30:
        break
    self.assertContainsSubset(found, set(range(40)))
    self.assertGreaterEqual(max(found), 30)


if __name__ == '__main__':
  tf.test.main()
