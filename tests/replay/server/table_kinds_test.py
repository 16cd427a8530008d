"""Tests of the tables that are made for a purpose."""

import collections
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
from rlds2reverb.replay.server import table_kinds
from rlds2reverb.trajectories import specs
from tests import golden
from tests import testing

_DRAWS = 4000


def _data(rewards):
  """One episode, with these rewards; its actions count its steps."""
  episode = golden.make_episode([1] * len(rewards), terminal=False, base=-100)
  return golden.stacked([{**episode, 'reward': np.array(rewards, np.float32)}])


_SPEC = specs.create_trajectory_data_spec(_data([0]))


def _frames(table, priority=lambda item: item.reward[0]):
  """Items of one frame each, whose priorities are by default their rewards."""
  return items.TableItems(table, windows_lib.Windows(1), priority=priority)


def _sample(client, count, table=testing.TABLE):
  """Returns the actions of the items that a table gives."""
  return [
      int(sample.data.action[0])
      for sample in client.sample(
          table,
          num_samples=count,
          emit_timesteps=False,
          unpack_as_table_signature=True,
      )
  ]


class TableKindsTest(parameterized.TestCase, tf.test.TestCase):

  def _filled(self, rewards, *args, names=(testing.TABLE,), **kwargs):
    """Returns a client of a server with tables that frames were written to."""
    server = reverb.Server(
        [table_kinds.create_reverb_table(name, _SPEC, *args) for name in names]
    )
    self.addCleanup(server.stop)
    tables = [_frames(name, **kwargs) for name in names]
    insert.write_rlds_to_reverb(_data(rewards), server, tables)
    return server.localhost_client()

  def _assert_drawn(self, drawn, probabilities):
    counts = collections.Counter(drawn)
    self.assertContainsSubset(counts, range(len(probabilities)))
    self.assertLess(
        testing.chi_square(
            [counts[value] for value in range(len(probabilities))],
            probabilities,
        ),
        testing.CHI_SQUARE_LIMITS[len(probabilities) - 1],
    )

  def test_uniform_table_removes_the_oldest(self):
    client = self._filled([0] * 5, 3)
    self.assertEqual(testing.size(client), 3)
    drawn = np.array(_sample(client, _DRAWS)) - 2
    self._assert_drawn(drawn.tolist(), [1 / 3] * 3)

  def test_one_pass_is_in_a_random_order(self):
    names = [f'table_{number}' for number in range(200)]
    client = self._filled([0] * 8, 8, 'one_pass', names=names, priority=1.0)
    drawn = [_sample(client, 8, name) for name in names]
    for each in drawn:
      self.assertCountEqual(each, range(8))
    self._assert_drawn([each[0] for each in drawn], [1 / 8] * 8)

  def test_top_k(self):
    # Of equal ranks the newer ones stay.
    for ranks, expected in (
        ([5, 1, 3, 3, 9, 2], [0, 3, 4]),
        ([7, 7, 7, 7, 7], [2, 3, 4]),
    ):
      client = self._filled(ranks, 3, 'top_k')
      self.assertEqual(sorted(set(_sample(client, 300))), expected)

  def test_tables_of_a_server_and_of_a_checkpoint(self):
    # The last item has priority 0.
    data = _data([1, 4, 9, 16, 0])
    names = ('prioritized', 'queue')
    tables = [
        table_kinds.create_reverb_table(
            kind, _SPEC, 10, kind, priority_exponent=0.5
        )
        for kind in names
    ]
    path = os.path.join(self.create_tempdir().full_path, 'checkpoint')
    table_items = list(map(_frames, names))
    write.write_reverb_checkpoint(data, path, table_items, reverb_tables=tables)
    filled = reverb.Server(tables)
    insert.write_rlds_to_reverb(data, filled, table_items)
    for server in filled, serve.restore_reverb_server(path):
      self.addCleanup(server.stop)
      client = server.localhost_client()
      drawn = _sample(client, _DRAWS, 'prioritized')
      self._assert_drawn(drawn, [0.1, 0.2, 0.3, 0.4])
      self.assertEqual(_sample(client, 5, 'queue'), [0, 1, 2, 3, 4])
      self.assertEqual(testing.size(client, 'queue'), 0)

  @parameterized.parameters(
      (
          dict(max_size=0, kind='queue'),
          "max_size of table 't' must be a positive integer, but is 0",
      ),
      (
          dict(priority_exponent=-1),
          "priority_exponent of table 't' must be a number from 0 up",
      ),
      (dict(priority_exponent=float('nan')), 'but is nan'),
      (dict(kind='stack'), 'kind must be .* but is .stack'),
  )
  def test_what_is_not_valid(self, settings, message):
    with self.assertRaisesRegex(ValueError, message):
      table_kinds.create_reverb_table('t', _SPEC, **{'max_size': 3, **settings})


if __name__ == '__main__':
  tf.test.main()
