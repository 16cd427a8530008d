"""Tests of what a server says of its tables."""

from absl.testing import absltest
import reverb

from rlds2reverb.replay.server import tables
from tests import testing


class TablesTest(absltest.TestCase):

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
      reverb.Client(address).insert([0], {testing.TABLE: 1.0})
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


if __name__ == '__main__':
  absltest.main()
