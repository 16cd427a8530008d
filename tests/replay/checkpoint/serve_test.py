"""Tests of servers that start from checkpoints."""

import os
import re
import socket

import tensorflow as tf

from rlds2reverb.replay.checkpoint import records
from rlds2reverb.replay.checkpoint import serve
from tests import testing
from tests.replay.checkpoint import checkpoints


class ServeTest(checkpoints.CheckpointTestCase):

  def test_a_port_that_connections_of_a_dead_server_linger_on(self):
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
    # The side that ended the connection first waits for what is on its way.
    with socket.socket() as probe:
      with self.assertRaises(OSError):
        probe.bind(('', port))
    path = self.write(checkpoints.episodes([5]))
    server = serve.restore_reverb_server(path, port=port)
    self.addCleanup(server.stop)
    self.assertEqual(testing.size(server.localhost_client()), 4)
    with self.assertRaisesRegex(ValueError, f'Port {port} is in use'):
      serve.restore_reverb_server(path, port=port)

  def test_the_newest_checkpoint_of_a_root(self):
    episodes = checkpoints.episodes([30, 70])
    path = self.write(episodes)
    root = self.create_tempdir().full_path
    server = serve.restore_reverb_server(path, checkpoint_root=root)
    client = server.localhost_client()
    key = int(next(iter(client.sample(testing.TABLE)))[0].info.key)
    client.mutate_priorities(testing.TABLE, deletes=[key])
    written = client.checkpoint()
    server.stop()
    del server
    server = serve.restore_reverb_server(path, checkpoint_root=root)
    self.assertEqual(testing.size(server.localhost_client()), 29 + 69 - 1)
    server.stop()
    os.truncate(os.path.join(written, 'items.tfrecord'), 0)
    with self.assertRaisesRegex(records.CheckpointError, re.escape(written)):
      serve.restore_reverb_server(path, checkpoint_root=root)


if __name__ == '__main__':
  tf.test.main()
