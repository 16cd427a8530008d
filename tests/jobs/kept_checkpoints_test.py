"""Tests of the checkpoints that a server keeps, and of starting from them."""

import os
import time

from absl.testing import absltest
import numpy as np

from rlds2reverb.jobs import serve
from rlds2reverb.jobs import server_status
from rlds2reverb.replay.checkpoint import records
from tests.jobs import job_testing


class KeptCheckpointsTest(job_testing.JobTestCase):

  def _write(self, kept, count):
    """Lets a server write checkpoints of 1, 2, ... items; returns the paths."""
    start = len(kept.paths())
    server = kept.restart() or self._new_server(kept.root)
    self.addCleanup(server.stop)
    client = server.localhost_client()
    frame = np.zeros([1], np.float32)
    paths = []
    for _ in range(start, start + count):
      client.insert(frame, {'t': 1.0})
      paths.append(kept.write(client))
    server.stop()
    return paths

  def _new_server(self, root):
    import reverb  # pylint: disable=g-import-not-at-top

    return reverb.Server(
        [reverb.Table.queue('t', 100)],
        checkpointer=reverb.checkpointers.DefaultCheckpointer(root),
    )

  def _size(self, kept):
    server = kept.restart()
    try:
      return server_status.ask(server)['t'].size
    finally:
      server.stop()

  def test_the_newest_ones_are_kept_and_a_damaged_one_is_put_aside(self):
    kept = serve.KeptCheckpoints(self.new('root'), count=3)
    self.assertIsNone(kept.restart())
    written = self._write(kept, 5)
    names = [os.path.basename(path) for path in reversed(written)]
    self.assertEqual(list(map(os.path.basename, kept.paths())), names[:3])
    self.assertEqual(os.listdir(kept.root), names[:1])
    self.assertLess(kept.age(), 60)
    self.assertEqual(self._size(kept), 5)
    # A server that dies while it writes leaves a folder without DONE.
    os.remove(os.path.join(kept.paths()[0], records.DONE))
    os.remove(os.path.join(f'{kept.root}.kept', names[0], records.DONE))
    self.assertEqual(self._size(kept), 4)
    path = os.path.join(kept.paths()[0], records.CHUNKS)
    os.truncate(path, os.path.getsize(path) // 2)
    self.assertEqual(self._size(kept), 3)

  def test_old_ones_are_removed(self):
    kept = serve.KeptCheckpoints(self.new('root'), count=5, max_hours=1.0)
    self._write(kept, 2)
    hour_ago = time.time() - 3700
    for path in kept.paths():
      os.utime(os.path.join(path, records.DONE), (hour_ago, hour_ago))
    self._write(kept, 1)
    self.assertLen(kept.paths(), 1)


if __name__ == '__main__':
  absltest.main()
