"""Tests of the tables that are made for a purpose."""

import collections
import contextlib
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


def _frames(table=testing.TABLE, **kwargs):
  """Items of one frame each."""
  return items.TableItems(table, windows_lib.Windows(1), **kwargs)


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


@contextlib.contextmanager
def _filled(data, tables, table_items):
  """Yields a client of a server with tables that the data was written to."""
  server = reverb.Server(tables)
  try:
    client = server.localhost_client()
    insert.write_rlds_to_reverb(data, client, table_items)
    yield client
  finally:
    server.stop()


class TableKindsTest(parameterized.TestCase, tf.test.TestCase):

  def _assert_drawn(self, drawn, probabilities):
    counts = collections.Counter(drawn)
    self.assertContainsSubset(counts, probabilities)
    self.assertLess(
        testing.chi_square(
            [counts[value] for value in probabilities],
            list(probabilities.values()),
        ),
        testing.CHI_SQUARE_LIMITS[len(probabilities) - 1],
    )

  def test_uniform_table_removes_the_oldest(self):
    data = _data([0] * 5)
    spec = specs.create_trajectory_data_spec(data)
    table = table_kinds.create_reverb_table(testing.TABLE, spec, 3)
    with _filled(data, [table], _frames()) as client:
      self.assertEqual(testing.size(client), 3)
      drawn = _sample(client, _DRAWS)
    self._assert_drawn(drawn, {2: 1 / 3, 3: 1 / 3, 4: 1 / 3})

  def test_prioritized_table(self):
    data = _data([1, 4, 9, 16, 0])
    spec = specs.create_trajectory_data_spec(data)
    table = table_kinds.create_reverb_table(
        testing.TABLE, spec, 10, priority_exponent=0.5, kind='prioritized'
    )
    by_reward = _frames(priority=lambda item: item.reward[0])
    with _filled(data, [table], by_reward) as client:
      drawn = _sample(client, _DRAWS)
    # The last item has priority 0.
    self._assert_drawn(drawn, {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4})

  def test_one_pass_is_in_a_random_order(self):
    data = _data([0] * 8)
    spec = specs.create_trajectory_data_spec(data)
    first = []
    names = [f'table_{number}' for number in range(400)]
    tables = [
        table_kinds.create_reverb_table(name, spec, 8, kind='one_pass')
        for name in names
    ]
    with _filled(data, tables, [_frames(name) for name in names]) as client:
      for name in names:
        drawn = _sample(client, 8, name)
        self.assertCountEqual(drawn, range(8))
        first.append(drawn[0])
    self._assert_drawn(first, {value: 1 / 8 for value in range(8)})

  @parameterized.named_parameters(
      ('ranks', [5, 1, 3, 3, 9, 2], {5: [0], 9: [4], 3: [3]}),
      ('ties', [7, 7, 7, 7, 7], {7: [2, 3, 4]}),
      ('fewer', [2, 1], {2: [0], 1: [1]}),
  )
  def test_top_k(self, ranks, expected):
    data = _data(ranks)
    spec = specs.create_trajectory_data_spec(data)
    table = table_kinds.create_reverb_table(
        testing.TABLE, spec, 3, kind='top_k'
    )
    by_reward = _frames(priority=lambda item: item.reward[0])
    with _filled(data, [table], by_reward) as client:
      drawn = set(_sample(client, 300))
    self.assertEqual(drawn, set(sum(expected.values(), [])))

  def test_tables_of_a_checkpoint(self):
    data = _data([1, 4, 9, 16])
    spec = specs.create_trajectory_data_spec(data)
    path = os.path.join(self.create_tempdir().full_path, 'checkpoint')
    write.write_reverb_checkpoint(
        data,
        path,
        [
            _frames('prioritized', priority=lambda item: item.reward[0]),
            _frames('queue'),
        ],
        reverb_tables=[
            table_kinds.create_reverb_table(
                'prioritized',
                spec,
                10,
                priority_exponent=0.5,
                kind='prioritized',
            ),
            table_kinds.create_reverb_table('queue', spec, 10, kind='queue'),
        ],
    )
    server = serve.restore_reverb_server(path)
    self.addCleanup(server.stop)
    client = server.localhost_client()
    drawn = _sample(client, _DRAWS, 'prioritized')
    self._assert_drawn(drawn, {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4})
    self.assertEqual(_sample(client, 4, 'queue'), [0, 1, 2, 3])
    self.assertEqual(testing.size(client, 'queue'), 0)

  def test_min_size_to_sample(self):
    spec = specs.create_trajectory_data_spec(_data([0]))
    for kind in ('uniform', 'prioritized', 'top_k'):
      limiter = table_kinds.create_reverb_table(
          't', spec, 9, kind, min_size_to_sample=7
      ).info.rate_limiter_info
      self.assertEqual(limiter.min_size_to_sample, 7)
      self.assertGreater(limiter.max_diff, 1e300)  # Inserts are never blocked.

  def test_what_is_not_valid(self):
    spec = specs.create_trajectory_data_spec(_data([0]))
    for make, message in (
        (
            lambda: table_kinds.create_reverb_table('t', spec, 0, kind='queue'),
            "max_size of table 't' must be a positive integer, but is 0",
        ),
        (
            lambda: table_kinds.create_reverb_table(
                't', spec, 3, min_size_to_sample=4
            ),
            'could never be sampled: it holds at most 3 items, and'
            ' min_size_to_sample is 4',
        ),
        (
            lambda: table_kinds.create_reverb_table(
                't', spec, 3, priority_exponent=-1, kind='prioritized'
            ),
            "priority_exponent of table 't' must be a number from 0 up",
        ),
        (
            lambda: table_kinds.create_reverb_table(
                't', spec, 3, priority_exponent=float('nan'), kind='prioritized'
            ),
            'but is nan',
        ),
        (
            lambda: table_kinds.create_reverb_table('t', spec, 3, 'stack'),
            'kind must be .* but is .stack',
        ),
    ):
      with self.assertRaisesRegex(ValueError, message):
        make()


if __name__ == '__main__':
  tf.test.main()
