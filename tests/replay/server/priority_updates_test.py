"""Tests of new priorities, against real servers."""

import collections

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


def _data(rewards=tuple(_REWARDS)):
  episode = golden.make_episode([1] * len(rewards), terminal=False)
  return golden.stacked([{**episode, 'reward': np.array(rewards, np.float32)}])


class PriorityUpdatesTest(parameterized.TestCase, tf.test.TestCase):

  def _server(self, data, priority=1.0, sequence_length=1):
    """Returns a client of a server with a prioritized table."""
    table = table_kinds.create_reverb_table(
        testing.TABLE,
        specs.create_trajectory_data_spec(data),
        100,
        priority_exponent=0.5,
        kind='prioritized',
    )
    server = reverb.Server([table])
    self.addCleanup(server.stop)
    client = server.localhost_client()
    insert.write_rlds_to_reverb(
        data,
        client,
        items.TableItems(
            testing.TABLE,
            windows_lib.Windows(sequence_length),
            priority=priority,
        ),
    )
    return client

  def _sample(self, client, count):
    """Returns the first rewards of samples, and a SampleInfo `[count]`."""
    samples = list(
        client.sample(
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

  @parameterized.parameters(False, True)
  def test_a_train_step_sets_priorities(self, is_graph):
    client = self._server(_data())
    updater = priority_updates.PriorityUpdater(client, testing.TABLE)
    rewards, info = self._sample(client, 200)
    self.assertCountEqual(set(rewards), _REWARDS)

    def train_step(info, rewards):
      updater.update_priorities(info.key, rewards)
      return tf.reduce_sum(rewards)

    if is_graph:
      train_step = tf.function(train_step)
    self.assertAllClose(train_step(info, tf.constant(rewards)), sum(rewards))
    self.assertEqual(updater.highest.numpy(), 16)
    rewards, info = self._sample(client, 4000)
    counts = collections.Counter(rewards.tolist())
    self.assertLess(
        testing.chi_square(
            [counts[reward] for reward in _REWARDS], [0.1, 0.2, 0.3, 0.4]
        ),
        testing.CHI_SQUARE_LIMITS[3],
    )
    expected = dict(zip(_REWARDS, [1, 1 / 2, 1 / 3, 1 / 4]))
    self.assertAllClose(
        importance.importance_weights(info, 1.0),
        [expected[reward] for reward in rewards],
    )

  def test_items_of_several_servers(self):
    datas = [_data([1.0, 2.0]), _data([3.0, 4.0])]
    clients = [self._server(data) for data in datas]
    updater = priority_updates.PriorityUpdater(
        [client.server_address for client in clients], testing.TABLE
    )
    found = [self._sample(client, 50) for client in clients]
    info = tf.nest.map_structure(
        lambda *fields: tf.concat(fields, 0), *(info for _, info in found)
    )
    rewards = np.concatenate([rewards for rewards, _ in found])
    # As a batch [B, T], where the steps of an item share its key.
    info = tf.nest.map_structure(
        lambda field: tf.repeat(field[:, tf.newaxis], 3, 1), info
    )
    updater.update_priorities(info.key, tf.constant(10 * rewards))
    for client in clients:
      rewards, info = self._sample(client, 50)
      self.assertAllClose(info.priority, 10 * rewards)
    self.assertEqual(updater.highest.numpy(), 40)

  def test_a_new_item_gets_the_highest_priority(self):
    data = _data()
    client = self._server(data)
    updater = priority_updates.PriorityUpdater(client, testing.TABLE)
    self.assertEqual(updater.highest.numpy(), 1)
    _, info = self._sample(client, 200)
    for priority in (7.5, 2.0):  # The highest so far, not the highest now.
      updater.update_priorities(info.key, tf.fill([200], priority))
    insert.write_rlds_to_reverb(
        _data([100.0]),
        client,
        items.TableItems(
            testing.TABLE,
            windows_lib.Windows(1),
            priority=lambda item: updater.highest,
        ),
    )
    rewards, info = self._sample(client, 200)
    self.assertAllClose(info.priority, np.where(rewards == 100, 7.5, 2.0))
    self.assertIn(100, rewards)

  def test_sequences(self):
    client = self._server(
        _data(),
        lambda item: importance.sequence_priority(item.reward),
        sequence_length=3,
    )
    rewards, info = self._sample(client, 50)
    mean = {1: (1 + 4 + 9) / 3, 4: (4 + 9 + 16) / 3}
    largest = {1: 9, 4: 16}
    self.assertAllClose(
        info.priority,
        [0.9 * largest[reward] + 0.1 * mean[reward] for reward in rewards],
    )

  @parameterized.parameters(-1.0, float('nan'), float('inf'))
  def test_a_priority_that_is_none(self, wrong):
    client = self._server(_data(), lambda item: item.reward[0])
    updater = priority_updates.PriorityUpdater(client, testing.TABLE)
    _, info = self._sample(client, 2)
    for update in (
        updater.update_priorities,
        tf.function(updater.update_priorities),
    ):
      with self.assertRaisesRegex(
          tf.errors.InvalidArgumentError, 'must be finite numbers from 0 up'
      ):
        update(info.key, tf.constant([100.0, wrong]))
    self.assertEqual(updater.highest.numpy(), 1)
    rewards, info = self._sample(client, 50)
    self.assertAllClose(info.priority, rewards)

  def test_shapes(self):
    client = self._server(_data())
    updater = priority_updates.PriorityUpdater(client, testing.TABLE)
    _, info = self._sample(client, 2)
    for wrong in ([1.0], [[1.0, 2.0]], 1.0):
      with self.assertRaisesRegex(ValueError, 'one number for each item'):
        updater.update_priorities(info.key, tf.constant(wrong))

  def test_tables_that_have_no_priorities(self):
    data = _data()
    spec = specs.create_trajectory_data_spec(data)
    server = reverb.Server(
        [
            table_kinds.create_reverb_table('uniform', spec, 3),
            table_kinds.create_reverb_table('top', spec, 3, kind='top_k'),
        ]
    )
    self.addCleanup(server.stop)
    address = f'localhost:{server.port}'
    priority_updates.PriorityUpdater(address, 'top')
    with self.assertRaisesRegex(
        ValueError, "Table 'uniform' of .* neither samples nor removes"
    ):
      priority_updates.PriorityUpdater(address, 'uniform')
    with self.assertRaisesRegex(
        ValueError, r"no table 'other'. Its tables are \['top', 'uniform'\]"
    ):
      priority_updates.PriorityUpdater(address, 'other')
    with self.assertRaisesRegex(ValueError, 'There are no servers'):
      priority_updates.PriorityUpdater([], 'top')
    with self.assertRaisesRegex(ValueError, 'initial_priority must be'):
      priority_updates.PriorityUpdater(address, 'top', initial_priority=-1)

  @parameterized.parameters(False, True)
  def test_a_server_that_is_gone(self, is_graph):
    data = _data()
    table = table_kinds.create_reverb_table(
        testing.TABLE,
        specs.create_trajectory_data_spec(data),
        100,
        kind='prioritized',
    )
    server = reverb.Server([table])
    address = f'localhost:{server.port}'
    updater = priority_updates.PriorityUpdater(
        address, testing.TABLE, timeout=1
    )
    info = reverb.SampleInfo(
        *(tf.ones([2], dtype) for dtype in reverb.SampleInfo.tf_dtypes())
    )
    update = (
        tf.function(updater.update_priorities)
        if is_graph
        else updater.update_priorities
    )
    update(info.key, tf.constant([1.0, 2.0]))  # No item has this key.
    server.stop()
    with self.assertRaisesRegex(
        tf.errors.UnknownError if is_graph else ConnectionError,
        f'The Reverb server at {address} did not take new priorities',
    ):
      update(info.key, tf.constant([1.0, 2.0]))


if __name__ == '__main__':
  tf.test.main()
