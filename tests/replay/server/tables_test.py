"""Tests of what a server says of its tables."""

from absl.testing import absltest
from absl.testing import parameterized
import reverb

from rlds2reverb.replay.server import tables
from tests import testing


def _insert(client, count):
  for number in range(count):
    client.insert([number], {testing.TABLE: 1.0})


class TablesTest(parameterized.TestCase):

  def test_servers_and_their_states(self):
    states = []
    for _ in range(2):
      server = reverb.Server([testing.make_table()])
      address = f'localhost:{server.port}'
      states.append(tables.state_of(server, 10))
      for named in address, reverb.Client(address), server:
        self.assertEqual(tables.addresses_of(named), [address])
        self.assertEqual(tables.addresses_of([named, 'b:1']), [address, 'b:1'])
        self.assertIn(testing.TABLE, tables.table_infos(named, None, 10))
      _insert(reverb.Client(address), 2)
      self.assertEqual(tables.state_of(address, 10), states[-1])
      server.stop()
    # Every start of a server has its own state.
    self.assertNotEqual(*states)
    with self.assertRaisesRegex(ConnectionError, f'server at {address}'):
      tables.state_of(address, 0.2)

  def test_what_is_no_address(self):
    for address in ('localhost', ':8000', 'a:', 'a:http', 'a:0', 'a:65536'):
      with self.assertRaisesRegex(ValueError, 'must be host:port, .* a port'):
        tables.address_of(address)
    with self.assertRaisesRegex(ValueError, 'There are no servers'):
      tables.addresses_of([])

  def test_how_many_items_a_rate_limiter_lets_in(self):
    table = reverb.Table(
        testing.TABLE,
        sampler=reverb.selectors.Uniform(),
        remover=reverb.selectors.Fifo(),
        max_size=100,
        rate_limiter=reverb.rate_limiters.SampleToInsertRatio(2.0, 3, 6.0),
    )
    server = reverb.Server([table, testing.make_table(name='other')])
    self.addCleanup(server.stop)
    client = server.localhost_client()
    infos = tables.table_infos(client, [testing.TABLE, 'other'], 10)
    self.assertFalse(tables.blocks_after(infos['other'], 10**9))
    # It lets items in as long as 2 for each less those sampled are not above
    # 2 * 3 + 6 = 12.
    self.assertFalse(tables.blocks_after(infos[testing.TABLE], 6))
    self.assertTrue(tables.blocks_after(infos[testing.TABLE], 7))
    _insert(client, 6)
    (info,) = tables.table_infos(client, [testing.TABLE], 10).values()
    self.assertTrue(tables.blocks_after(info))


if __name__ == '__main__':
  absltest.main()
