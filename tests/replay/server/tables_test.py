"""Tests of creating tables, and of reading the state of servers."""

import os

from absl.testing import parameterized
import numpy as np
import reverb
import tensorflow as tf

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import items
from rlds2reverb.replay.checkpoint import serve
from rlds2reverb.replay.checkpoint import write
from rlds2reverb.replay.server import insert
from rlds2reverb.replay.server import tables as tables_lib
from rlds2reverb.trajectories import specs
from tests import chi_square
from tests import reverb_testing
from tests.replay.server import sampling_test

_SPEC = specs.create_trajectory_data_spec(sampling_test.make_data([0]))


def _frames(name, priority=lambda item: item.reward[0]):
  """Items of one frame each, whose priorities are by default their rewards."""
  return items.TableItems(name, windows_lib.Windows(1), priority=priority)


def _sample(server, count, name):
  """Returns the numbers of the frames that a table gives."""
  samples = server.localhost_client().sample(
      name,
      num_samples=count,
      emit_timesteps=False,
      unpack_as_table_signature=True,
  )
  return [int(sample.data.action[0]) for sample in samples]


class CreateReverbTableTest(parameterized.TestCase, tf.test.TestCase):

  def filled(self, rewards, tables, **kwargs):
    """Returns a server of tables, `create_reverb_table`'s other arguments."""
    server = reverb.Server(
        [
            tables_lib.create_reverb_table(name, _SPEC, *args)
            for name, args in tables.items()
        ]
    )
    self.addCleanup(server.stop)
    frames = [_frames(name, **kwargs) for name in tables]
    insert.write_rlds_to_reverb(
        sampling_test.make_data(rewards), server, frames
    )
    return server

  def test_items_of_a_full_table(self):
    # The oldest go; or the lowest, and of equal ones the older.
    tables = {'uniform': (3,), 'top_k': (3, 'top_k')}
    for ranks, highest in (
        ([5, 1, 3, 3, 9, 2], [0, 3, 4]),
        ([7, 7, 7, 7, 7], [2, 3, 4]),
    ):
      server = self.filled(ranks, tables)
      self.assertEqual(sorted(set(_sample(server, 300, 'top_k'))), highest)
      newest = range(len(ranks) - 3, len(ranks))
      self.assertEqual(set(_sample(server, 300, 'uniform')), set(newest))

  def test_one_pass_is_in_a_random_order(self):
    server = self.filled([0] * 50, {'table': (50, 'one_pass')}, priority=1.0)
    drawn = _sample(server, 50, 'table')
    self.assertCountEqual(drawn, range(50))
    self.assertNotIn(drawn, (list(range(50)), list(range(49, -1, -1))))

  def test_tables_of_a_server_and_of_a_checkpoint(self):
    # The last item has priority 0.
    data = sampling_test.make_data([1, 4, 9, 16, 0])
    names = ('prioritized', 'queue')
    tables = [
        tables_lib.create_reverb_table(
            kind,
            _SPEC,
            10,
            kind,
            priority_exponent=0.5,
            min_size_to_sample=3,
        )
        for kind in names
    ]
    path = os.path.join(self.create_tempdir().full_path, 'checkpoint')
    frames = list(map(_frames, names))
    write.write_reverb_checkpoint(data, path, frames, reverb_tables=tables)
    filled = reverb.Server(tables)
    insert.write_rlds_to_reverb(data, filled, frames)
    for server in filled, serve.restore_reverb_server(path):
      self.addCleanup(server.stop)
      counts = np.bincount(_sample(server, 4000, 'prioritized'))
      chi_square.assert_frequencies(self, counts, [0.1, 0.2, 0.3, 0.4])
      self.assertEqual(_sample(server, 3, 'queue'), [0, 1, 2])
      info = server.localhost_client().server_info()['queue']
      self.assertEqual(info.rate_limiter_info.min_size_to_sample, 3)

  @parameterized.parameters(
      ({'max_size': 0}, "max_size of table 't' must be a positive integer"),
      ({'priority_exponent': -1}, "priority_exponent of table 't' must be"),
      ({'priority_exponent': float('nan')}, 'but is nan'),
      ({'min_size_to_sample': 0}, "sample of table 't' must be a positive"),
      ({'min_size_to_sample': 4}, 'holds at most 3 items, and min_size'),
      ({'kind': 'stack'}, 'kind must be .* but is .stack'),
  )
  def test_invalid_arguments(self, settings, message):
    with self.assertRaisesRegex(ValueError, message):
      tables_lib.create_reverb_table('t', _SPEC, **{'max_size': 3, **settings})


class ServerStateTest(tf.test.TestCase):

  def test_addresses_and_state_ids(self):
    states = []
    for _ in range(2):
      server = reverb.Server([reverb_testing.make_table()])
      address = f'localhost:{server.port}'
      states.append(tables_lib.get_state_id(server, 10))
      for named in address, reverb.Client(address), server:
        self.assertEqual(tables_lib.addresses_of(named), [address])
        self.assertEqual(
            tables_lib.addresses_of([named, 'b:1']), [address, 'b:1']
        )
        self.assertIn(
            reverb_testing.TABLE, tables_lib.table_infos(named, None, 10)
        )
      reverb.Client(address).insert([0], {reverb_testing.TABLE: 1.0})
      self.assertEqual(tables_lib.get_state_id(address, 10), states[-1])
      server.stop()
    # Every start of a server has its own state.
    self.assertNotEqual(*states)
    with self.assertRaisesRegex(ConnectionError, f'server at {address}'):
      tables_lib.get_state_id(address, 0.2)

  def test_invalid_addresses(self):
    for address in ('localhost', ':8000', 'a:', 'a:http', 'a:0', 'a:65536'):
      with self.assertRaisesRegex(ValueError, 'must be host:port, .* a port'):
        tables_lib.address_of(address)
    with self.assertRaisesRegex(ValueError, 'There are no servers'):
      tables_lib.addresses_of([])


if __name__ == '__main__':
  tf.test.main()
