"""Tests of what a server says of its tables."""

from absl.testing import absltest
import numpy as np
import reverb
import tensorflow as tf

from rlds2reverb.jobs import server_status


class ServerStatusTest(absltest.TestCase):

  def test_a_table_that_lets_inserts_wait_and_then_samples(self):
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
      return server_status.ask(server)['limited']

    expected = server_status.TableStatus(0, 100, 0, 0, 0, False, True, 24)
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
        server_status.to_text({'limited': status()}),
        r'limited +4 +100 +4 +0 +8 +no +yes +24$',
    )


if __name__ == '__main__':
  absltest.main()
