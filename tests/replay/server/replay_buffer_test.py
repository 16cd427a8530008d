"""Tests of replay buffers over a table of a server."""

import threading

import pytest
import tensorflow as tf

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import opening
from rlds2reverb.replay.server import replay_buffer
from tests import reverb_testing
from tests.replay.server import processes
from tests.replay.server import sampling_test

_SERVER = "sampling_test.make_server('uniform', range({}), port)[0]"


class ServerReplayBufferTest(tf.test.TestCase):

  def test_local_server_is_the_given_server_or_none(self):
    server, address = sampling_test.make_server('uniform', range(9), length=2)
    self.addCleanup(server.stop)
    for served in server, address:
      buffer = replay_buffer.ServerReplayBuffer(served, reverb_testing.TABLE)
      self.assertIs(buffer.local_server, server if served is server else None)
      # The server says no length.
      [(frames, info)] = buffer.as_dataset(5, 2).take(1)
      self.assertEqual([frames.reward.shape, info.key.shape], [[5, 2]] * 2)

  @pytest.mark.long
  def test_iterators_resume_after_server_restarts(self):
    first, second = (
        processes.ServerProcess(_SERVER.format(count)) for count in (30, 40)
    )
    self.addCleanup(first.kill)
    self.addCleanup(second.kill)
    first.serve()
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
