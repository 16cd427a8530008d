"""Tests of serving a data set, and of the checkpoints that a server keeps."""

import os
import pathlib
import socket
import time

from absl.testing import absltest
import numpy as np
import reverb
import tensorflow as tf

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.jobs import serve
from rlds2reverb.jobs import sources
from rlds2reverb.replay import items
from rlds2reverb.replay.checkpoint import records
from tests.jobs import data_sets
from tests.jobs import job_testing

_TABLE = items.TableItems('pairs')


class ServeTest(absltest.TestCase):

  def _source(self):
    return sources.make_source(
        data_sets.numbered(
            os.path.join(self.create_tempdir().full_path, 'data'), [3, 5]
        )
    )

  def _size(self, server, table):
    try:
      return serve.get_status(server)[table].size
    finally:
      server.stop()

  def test_a_port_in_use_is_refused_before_anything_is_read(self):
    with socket.socket() as other:
      other.bind(('', 0))
      other.listen()
      port = other.getsockname()[1]
      # There is no such data set either, but the port comes first.
      with self.assertRaisesRegex(ValueError, f'Port {port} is in use'):
        serve.serve_source(sources.Source('no data set'), [_TABLE], port=port)

  def test_an_empty_table_is_refused(self):
    table = items.TableItems('long', windows_lib.Windows(6))
    with self.assertRaisesRegex(
        ValueError, "'long' would have no items.*longest episode has 5"
    ):
      serve.serve_source(self._source(), [_TABLE, table])
    server = serve.serve_source(self._source(), [table], allow_empty=True)
    self.assertEqual(self._size(server, 'long'), 0)

  def test_checkpoint_takes_precedence_over_data_set(self):
    source = self._source()
    root = os.path.join(self.create_tempdir().full_path, 'root')
    tables = [_TABLE, items.TableItems('whole', None)]
    server = serve.serve_source(source, tables, checkpoint_root=root)
    self.addCleanup(server.stop)
    self.assertEqual(serve.get_status(server)['pairs'].size, 2 + 4)
    client = server.localhost_client()
    (sample,) = client.sample('whole', emit_timesteps=False)
    client.mutate_priorities(
        'whole', deletes=[int(np.ravel(sample.info.key)[0])]
    )
    client.checkpoint()
    server.stop()
    server = serve.serve_source(source, tables, checkpoint_root=root)
    self.assertEqual(self._size(server, 'whole'), 1)

  def test_status_of_table_with_waiting_inserts(self):
    server = reverb.Server(
        [
            reverb.Table(
                'limited',
                sampler=reverb.selectors.Uniform(),
                remover=reverb.selectors.Fifo(),
                max_size=100,
                rate_limiter=reverb.rate_limiters.SampleToInsertRatio(
                    samples_per_insert=2.0, min_size_to_sample=2, error_buffer=4
                ),
                signature=tf.TensorSpec([None, 3], tf.float64),
            )
        ]
    )
    self.addCleanup(server.stop)
    client = server.localhost_client()

    def insert(count):
      for _ in range(count):
        client.insert(np.zeros([1, 3]), {'limited': 1.0})

    def status():
      return serve.get_status(server)['limited']

    expected = serve.TableStatus(0, 100, 0, 0, 0, False, True)
    self.assertEqual(status(), expected)
    # Inserts times 2, less samples, may go up to 2 * 2 + 4.
    insert(3)
    self.assertEqual((status().size, status().blocks_inserts), (3, False))
    insert(1)
    self.assertTrue(status().blocks_inserts)
    self.assertFalse(status().blocks_samples)
    list(client.sample('limited', 8))
    self.assertEqual(status().sampled, 8)
    self.assertFalse(status().blocks_inserts)
    self.assertTrue(status().blocks_samples)
    self.assertRegex(
        serve.format_status({'limited': status()}),
        r'limited +4 +100 +4 +0 +8 +no +yes$',
    )


class KeptCheckpointsTest(job_testing.JobTestCase):

  def _write(self, checkpoints, count):
    """Lets a server write checkpoints of 1, 2, ... items; returns the paths."""
    start = len(checkpoints.paths())
    server = checkpoints.restart() or self._new_server(checkpoints.root)
    self.addCleanup(server.stop)
    client = server.localhost_client()
    frame = np.zeros([1], np.float32)
    paths = []
    for _ in range(start, start + count):
      client.insert(frame, {'t': 1.0})
      paths.append(checkpoints.write(client))
    server.stop()
    return paths

  def _new_server(self, root):
    return reverb.Server(
        [reverb.Table.queue('t', 100)],
        checkpointer=reverb.checkpointers.DefaultCheckpointer(root),
    )

  def _size(self, checkpoints):
    server = checkpoints.restart()
    try:
      return serve.get_status(server)['t'].size
    finally:
      server.stop()

  def test_newest_checkpoints_are_kept_and_damaged_ones_set_aside(self):
    checkpoints = serve.KeptCheckpoints(self.new('root'), count=3)
    self.assertIsNone(checkpoints.restart())
    written = self._write(checkpoints, 5)
    names = [os.path.basename(path) for path in reversed(written)]
    self.assertEqual(
        list(map(os.path.basename, checkpoints.paths())), names[:3]
    )
    self.assertEqual(os.listdir(checkpoints.root), names[:1])
    self.assertLess(checkpoints.age(), 60)
    self.assertEqual(self._size(checkpoints), 5)
    # A server that dies while it writes leaves a folder without DONE.
    os.remove(os.path.join(checkpoints.paths()[0], records.DONE))
    os.remove(os.path.join(f'{checkpoints.root}.kept', names[0], records.DONE))
    self.assertEqual(self._size(checkpoints), 4)
    path = os.path.join(checkpoints.paths()[0], records.CHUNKS)
    os.truncate(path, os.path.getsize(path) // 2)
    # One that is killed while it keeps a checkpoint leaves these.
    os.makedirs(f'{checkpoints.root}.kept/.2026.unfinished/files')
    pathlib.Path(f'{checkpoints.root}.kept', '.2026.lock').touch()
    self.assertEqual(self._size(checkpoints), 3)
    left = os.listdir(f'{checkpoints.root}.kept')
    self.assertEmpty([name for name in left if name.startswith('.2026')])
    # Folders without DONE: a server died while it removed the checkpoint.
    self.assertNotIn(names[0], left)

  def test_checkpoints_older_than_max_hours_are_removed(self):
    checkpoints = serve.KeptCheckpoints(
        self.new('root'), count=5, max_hours=1.0
    )
    self._write(checkpoints, 2)
    hour_ago = time.time() - 3700
    for path in checkpoints.paths():
      os.utime(os.path.join(path, records.DONE), (hour_ago, hour_ago))
    self._write(checkpoints, 1)
    self.assertLen(checkpoints.paths(), 1)


if __name__ == '__main__':
  absltest.main()
