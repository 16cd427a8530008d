"""Tests of new priorities, against real servers."""

from absl.testing import parameterized
import numpy as np
import reverb
import tensorflow as tf

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import importance
from rlds2reverb.replay import items
from rlds2reverb.replay.server import insert
from rlds2reverb.replay.server import priority_updates
from rlds2reverb.replay.server import table_kinds
from rlds2reverb.trajectories import specs
from tests import golden
from tests import testing

_REWARDS = [1.0, 4.0, 9.0, 16.0]
_RUN = {False: lambda function: function, True: tf.function}


def _data(rewards=tuple(_REWARDS)):
  episode = golden.make_episode([1] * len(rewards), terminal=False)
  return golden.stacked([{**episode, 'reward': np.array(rewards, np.float32)}])


class PriorityUpdatesTest(parameterized.TestCase, tf.test.TestCase):

  def _server(self, data, **kwargs):
    """Returns a server with a prioritized table of single frames."""
    table = table_kinds.create_reverb_table(
        testing.TABLE,
        specs.create_trajectory_data_spec(data),
        100,
        priority_exponent=0.5,
        kind='prioritized',
    )
    server = reverb.Server([table])
    self.addCleanup(server.stop)
    self._insert(data, server, **kwargs)
    return server

  def _insert(self, data, server, length=1, **kwargs):
    table = items.TableItems(
        testing.TABLE, windows_lib.Windows(length), **kwargs
    )
    insert.write_rlds_to_reverb(data, server, table)

  def _sample(self, server, count=200):
    """Returns the first rewards of samples, and a SampleInfo `[count]`."""
    samples = list(
        server.localhost_client().sample(
            testing.TABLE,
            num_samples=count,
            emit_timesteps=False,
            unpack_as_table_signature=True,
        )
    )
    info = [
        tf.constant([np.ravel(field)[0] for field in fields], dtype)
        for fields, dtype in zip(
            zip(*(sample.info for sample in samples)),
            reverb.SampleInfo.tf_dtypes(),
        )
    ]
    rewards = np.array([sample.data.reward[0] for sample in samples])
    return rewards, reverb.SampleInfo(*info)

  @parameterized.parameters(*_RUN)
  def test_a_train_step_sets_priorities(self, is_graph):
    server = self._server(_data())
    updater = priority_updates.PriorityUpdater(server, testing.TABLE)
    rewards, info = self._sample(server)
    self.assertCountEqual(set(rewards), _REWARDS)
    update = _RUN[is_graph](updater.update_priorities)
    for wrong in ([100.0, -1.0], [100.0, np.nan], [100.0, np.inf]):
      with self.assertRaisesRegex(
          tf.errors.InvalidArgumentError, 'must be finite numbers from 0 up'
      ):
        update(info.key[:2], tf.constant(wrong))
    update(info.key, tf.constant(rewards))
    self.assertEqual(updater.highest.numpy(), 16)
    rewards, info = self._sample(server, 4000)
    counts = [np.count_nonzero(rewards == reward) for reward in _REWARDS]
    self.assertLess(
        testing.chi_square(counts, [0.1, 0.2, 0.3, 0.4]),
        testing.CHI_SQUARE_LIMITS[3],
    )
    # A new item gets the highest so far, not the highest now.
    update(info.key, tf.fill([4000], 2.0))
    self._insert(_data([100.0]), server, priority=lambda item: updater.highest)
    rewards, info = self._sample(server)
    self.assertAllClose(info.priority, np.where(rewards == 100, 16, 2))
    self.assertIn(100, rewards)

  def test_items_of_several_servers(self):
    servers = [self._server(_data([1.0, 2.0])), self._server(_data([3.0, 4.0]))]
    updater = priority_updates.PriorityUpdater(servers, testing.TABLE)
    found = [self._sample(server, 50) for server in servers]
    keys = np.concatenate([info.key for _, info in found])
    rewards = np.concatenate([rewards for rewards, _ in found])
    # As a batch [B, T], where the steps of an item share its key.
    updater.update_priorities(
        keys[:, np.newaxis].repeat(3, 1), tf.constant(10 * rewards)
    )
    for server in servers:
      rewards, info = self._sample(server, 50)
      self.assertAllClose(info.priority, 10 * rewards)
    self.assertEqual(updater.highest.numpy(), 40)

  def test_sequences(self):
    server = self._server(
        _data(),
        length=3,
        priority=lambda item: importance.sequence_priority(item.reward),
    )
    rewards, info = self._sample(server, 50)
    expected = {1: 0.9 * 9 + 0.1 * 14 / 3, 4: 0.9 * 16 + 0.1 * 29 / 3}
    self.assertAllClose(info.priority, [expected[r] for r in rewards])

  def test_tables_that_have_no_priorities(self):
    spec = specs.create_trajectory_data_spec(_data())
    server = reverb.Server(
        [
            table_kinds.create_reverb_table('uniform', spec, 3),
            table_kinds.create_reverb_table('top', spec, 3, kind='top_k'),
        ]
    )
    self.addCleanup(server.stop)
    priority_updates.PriorityUpdater(server, 'top')
    for servers, name, kwargs, message in (
        (server, 'uniform', {}, "'uniform' of .* neither samples nor removes"),
        (server, 'other', {}, "no table 'other'"),
        ([], 'top', {}, 'There are no servers'),
        (server, 'top', {'initial_priority': -1}, 'initial_priority must be'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        priority_updates.PriorityUpdater(servers, name, **kwargs)

  @parameterized.parameters(*_RUN)
  def test_a_server_that_is_gone(self, is_graph):
    server = self._server(_data())
    address = f'localhost:{server.port}'
    updater = priority_updates.PriorityUpdater(
        address, testing.TABLE, timeout=1
    )
    update = _RUN[is_graph](updater.update_priorities)
    keys = tf.ones([2], tf.uint64)  # No item has this key.
    update(keys, tf.constant([1.0, 2.0]))
    server.stop()
    with self.assertRaisesRegex(
        tf.errors.UnknownError if is_graph else ConnectionError,
        f'The Reverb server at {address} did not take new priorities',
    ):
      update(keys, tf.constant([1.0, 2.0]))


if __name__ == '__main__':
  tf.test.main()
