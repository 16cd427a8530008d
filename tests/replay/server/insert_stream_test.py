"""Tests of the stream that sends items to a server."""

from absl.testing import absltest
import numpy as np
import reverb

from rlds2reverb.replay import encoding
from rlds2reverb.replay.server import insert
from tests import testing


def _requests(counts):
  """Yields requests of items of one number each, 0, 1, 2 and so on."""
  key = 0
  for count in counts:
    keys = np.arange(key + 1, key + 1 + count, dtype=np.uint64)
    chunks = [
        encoding.encode_chunk(number, 1, number, [np.array([number - 1])])
        for number in keys.tolist()
    ]
    items = encoding.encode_items(
        testing.TABLE,
        keys,
        np.ones(count),
        encoding.Slices(
            np.arange(count + 1),
            keys,
            np.zeros(count, np.int64),
            np.ones(count, np.int64),
        ),
        1,
        10**18 + key + np.arange(count),
    )
    yield encoding.insert_request(chunks, items, []), count
    key += count


class InsertStreamTest(absltest.TestCase):

  def test_items_arrive_in_their_order(self):
    counts = [1, 30, 2, 1, 1, 1, 200]
    with testing.reverb_server() as client:
      address = client.server_address
      with insert.InsertStream(address, 30) as stream:
        for request, count in _requests(counts):
          stream.write(request, count)
        self.assertEqual(stream.sent, sum(counts))
        stream.flush()
        self.assertEqual(stream.confirmed, sum(counts))
      found = testing.contents(client).items
    self.assertEqual(
        [np.frombuffer(columns[0][2], np.int64)[0] for _, columns in found],
        list(range(sum(counts))),
    )

  def test_a_server_that_takes_no_more(self):
    table = reverb.Table(
        testing.TABLE,
        sampler=reverb.selectors.Fifo(),
        remover=reverb.selectors.Fifo(),
        max_size=10,
        rate_limiter=reverb.rate_limiters.Queue(3),
    )
    server = reverb.Server([table])
    self.addCleanup(server.stop)
    with insert.InsertStream(f'localhost:{server.port}', 1) as stream:
      for request, count in _requests([1, 1, 1, 1, 1]):
        stream.write(request, count)
      with self.assertRaisesRegex(
          insert.InsertError, 'nothing for 1 seconds. .* 3 of the 5'
      ) as raised:
        stream.flush()
    self.assertEqual(raised.exception.confirmed, 3)

  def test_a_server_that_is_not_there(self):
    ((request, count),) = _requests([1])
    with insert.InsertStream('localhost:1', 30) as stream:
      with self.assertRaisesRegex(
          insert.InsertError, 'stream failed: .*confirmed 0 of the 1'
      ):
        stream.write(request, count)
        stream.flush()


if __name__ == '__main__':
  absltest.main()
