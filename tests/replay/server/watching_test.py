"""Tests of the questions that a sampled server is asked."""

import time

from absl.testing import absltest
import numpy as np
import reverb

from rlds2reverb.replay.server import watching
from tests import testing

_TABLE = testing.TABLE


def _insert(client, count):
  for number in range(count):
    client.insert([number], {_TABLE: 1.0})


class WatchingTest(absltest.TestCase):

  def _server(self, *, max_times_sampled=0, min_size=1, num_items=0):
    table = reverb.Table(
        _TABLE,
        sampler=reverb.selectors.Uniform(),
        remover=reverb.selectors.Fifo(),
        max_size=100,
        max_times_sampled=max_times_sampled,
        rate_limiter=reverb.rate_limiters.MinSize(min_size),
    )
    server = reverb.Server([table])
    self.addCleanup(server.stop)
    client = server.localhost_client()
    _insert(client, num_items)
    return server, client

  def _watch(self, *clients, timeout=0.5):
    return watching.TableWatch(
        [client.server_address for client in clients], _TABLE, timeout
    )

  def test_sizes(self):
    _, a = self._server(num_items=2)
    _, b = self._server(min_size=4, num_items=3)
    watch = self._watch(a, b)
    np.testing.assert_array_equal(watch.first_weights(), [2, 0])
    _insert(a, 1)
    _insert(b, 1)
    sizes, silent_since = watch.poll(np.zeros(2))
    np.testing.assert_array_equal(sizes, [3, 4])
    np.testing.assert_array_equal(silent_since, [0, 0])

  def test_weights_of_tables_that_remove_what_was_sampled(self):
    _, a = self._server(max_times_sampled=1, num_items=5)
    _, b = self._server(max_times_sampled=1)
    watch = self._watch(a, b)
    self.assertTrue(watch.removes_sampled)
    np.testing.assert_array_equal(watch.first_weights(), [5, 1])

  def test_a_server_that_died(self):
    _, a = self._server(num_items=2)
    server, b = self._server()
    watch = self._watch(a, b, timeout=0.2)
    server.stop()
    sizes = None
    silent_since = np.zeros(2)
    with self.assertRaisesRegex(
        ConnectionError, f'server at {b.server_address} died'
    ):
      for _ in range(3):
        sizes, silent_since = watch.poll(silent_since)
        np.testing.assert_array_equal(sizes, [2, -1])
        self.assertEqual(silent_since[0], 0)
        self.assertGreater(silent_since[1], 0)

  def test_a_server_that_answers_again(self):
    _, a = self._server()
    watch = self._watch(a)
    _, silent_since = watch.poll(np.array([time.monotonic() - 10]))
    np.testing.assert_array_equal(silent_since, [0])

  def test_pause(self):
    _, a = self._server()
    watch = self._watch(a)
    begin = time.monotonic()
    since = watch.pause(np.float64(0))
    self.assertBetween(since, begin, time.monotonic())
    with self.assertRaisesRegex(
        ValueError, 'holds 0 of the 1 items that it takes. Write items into it'
    ):
      while True:
        self.assertEqual(watch.pause(since), since)
    self.assertGreaterEqual(time.monotonic() - begin, 0.5)

  def test_ends(self):
    _, kept = self._server(num_items=3)
    with self.assertRaisesRegex(
        ValueError, 'gave no item for 0.5 seconds. It holds 3'
    ):
      self._watch(kept).check_end(0, 1)
    _, empty = self._server(max_times_sampled=1)
    with self.assertRaisesRegex(ValueError, f"Table '{_TABLE}' gave no item"):
      self._watch(empty).check_end(0, 1)
    _, taken = self._server(max_times_sampled=1, num_items=3)
    watch = self._watch(taken, empty)
    testing.contents(taken)
    # Of two servers that share the data, one may have none of it.
    for server in range(2):
      watch.check_end(server, 3)
      with self.assertRaisesRegex(ValueError, 'batch of 4 is more than the 3'):
        watch.check_end(server, 4)


if __name__ == '__main__':
  absltest.main()
