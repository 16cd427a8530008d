"""Tests of servers that start from checkpoints."""

import os
import re
import shutil
import socket

import reverb
import tensorflow as tf

from rlds2reverb.replay import items
from rlds2reverb.replay.checkpoint import records
from rlds2reverb.replay.checkpoint import serve
from tests import reverb_testing
from tests.replay.checkpoint import checkpoints


class ServeTest(checkpoints.CheckpointTestCase):

  def test_port_with_lingering_connections_can_be_used(self):
    with socket.socket() as listener:
      # As a server does.
      listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
      listener.bind(('', 0))
      port = listener.getsockname()[1]
      with self.assertRaisesRegex(ValueError, f'Port {port} is in use'):
        listener.listen()
        serve.check_port(port)
      with socket.create_connection(('localhost', port)):
        connection, _ = listener.accept()
        connection.close()
    # The side that closed first is in the state TIME_WAIT.
    with socket.socket() as probe:
      with self.assertRaises(OSError):
        probe.bind(('', port))
    path = self.write(checkpoints.episodes([5]))
    server = serve.restore_reverb_server(path, port=port)
    self.addCleanup(server.stop)
    self.assertEqual(reverb_testing.size(server.localhost_client()), 4)
    with self.assertRaisesRegex(ValueError, f'Port {port} is in use'):
      serve.restore_reverb_server(path, port=port)

  def test_newest_checkpoint_of_root_is_restored(self):
    episodes = checkpoints.episodes([30, 70])
    path = self.write(episodes)
    root = self.create_tempdir().full_path
    server = serve.restore_reverb_server(path, checkpoint_root=root)
    client = server.localhost_client()
    key = int(next(iter(client.sample(reverb_testing.TABLE)))[0].info.key)
    client.mutate_priorities(reverb_testing.TABLE, deletes=[key])
    written = client.checkpoint()
    server.stop()
    del server
    server = serve.restore_reverb_server(path, checkpoint_root=root)
    self.assertEqual(
        reverb_testing.size(server.localhost_client()), 29 + 69 - 1
    )
    server.stop()
    del server
    # The newest checkpoint may be in the root.
    server = serve.restore_reverb_server(written, checkpoint_root=root)
    self.assertEqual(
        reverb_testing.size(server.localhost_client()), 29 + 69 - 1
    )
    server.stop()
    older = os.path.join(root, '0')
    shutil.copytree(path, older)
    with self.assertRaisesRegex(ValueError, 'removes old checkpoints from its'):
      serve.restore_reverb_server(older, checkpoint_root=root)
    shutil.rmtree(older)
    os.truncate(os.path.join(written, 'items.tfrecord'), 0)
    with self.assertRaisesRegex(records.CheckpointError, re.escape(written)):
      serve.restore_reverb_server(path, checkpoint_root=root)


class OtherSettingsTest(checkpoints.CheckpointTestCase):

  def _table(self, name=reverb_testing.TABLE, max_size=500, **kwargs):
    return reverb.Table(
        name,
        sampler=reverb.selectors.Prioritized(0.5),
        remover=reverb.selectors.Lifo(),
        max_size=max_size,
        max_times_sampled=kwargs.pop('max_times_sampled', 1),
        rate_limiter=reverb.rate_limiters.Queue(max_size),
        **kwargs,
    )

  def test_tables_replace_those_of_the_checkpoint(self):
    episodes = checkpoints.episodes([9, 5])
    path = self.write(
        episodes, [checkpoints.PAIRS, items.TableItems(checkpoints.OTHER)]
    )
    root = self.new('root')
    for _ in range(2):  # The second time from a checkpoint in the root.
      server = serve.restore_reverb_server(
          path, tables=[self._table()], checkpoint_root=root
      )
      self.addCleanup(server.stop)
      client = server.localhost_client()
      infos = client.server_info(timeout=10)
      info, other = infos[reverb_testing.TABLE], infos[checkpoints.OTHER]
      self.assertEqual((info.max_size, info.max_times_sampled), (500, 1))
      self.assertEqual(info.sampler_options.prioritized.priority_exponent, 0.5)
      self.assertTrue(info.remover_options.lifo)
      self.assertEqual(info.rate_limiter_info.max_diff, 500)
      self.assertEqual(info.current_size, 12)
      self.assertIsNotNone(info.signature)
      self.assertEqual((other.max_size, other.max_times_sampled), (12, 0))
      self.assertTrue(other.sampler_options.uniform)
      client.checkpoint()
    # Each item comes once.
    self.assertCountEqual(
        reverb_testing.take_rewards(client), reverb_testing.pairs(episodes)
    )

  def test_unsuitable_tables_raise(self):
    path = self.write(checkpoints.episodes([9]))
    for tables, message in (
        ([self._table('tabel')], 'no table .*tabel'),
        ([self._table()] * 2, 'a table twice'),
        ([self._table(max_size=7)], 'max_size is 7, and the data has 8'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        serve.restore_reverb_server(path, tables=tables)


if __name__ == '__main__':
  tf.test.main()
