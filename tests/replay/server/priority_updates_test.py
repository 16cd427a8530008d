"""Tests of new priorities, against real servers."""

from absl.testing import parameterized
import numpy as np
import reverb
import tensorflow as tf

from rlds2reverb.episodes import windows as windows_lib
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

  def serve(self, data, **kwargs):
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
    self.insert(data, server, **kwargs)
    return server

  def insert(self, data, server, **kwargs):
    windows = windows_lib.Windows(1)
    table = items.TableItems(testing.TABLE, windows, **kwargs)
    insert.write_rlds_to_reverb(data, server, table)

  def sample(self, server, count=200):
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
    server = self.serve(_data())
    updater = priority_updates.PriorityUpdater(server, testing.TABLE, timeout=1)
    rewards, info = self.sample(server)
    self.assertCountEqual(set(rewards), _REWARDS)
    update = _RUN[is_graph](updater.update_priorities)
    for wrong in ([100.0, -1.0], [100.0, np.nan], [100.0, np.inf]):
      with self.assertRaisesRegex(
          tf.errors.InvalidArgumentError, 'must be finite numbers from 0 up'
      ):
        update(info.key[:2], tf.constant(wrong))
    update(info.key, tf.constant(rewards))
    self.assertEqual(updater.highest.numpy(), 16)
    rewards, info = self.sample(server, 4000)
    counts = [np.count_nonzero(rewards == reward) for reward in _REWARDS]
    self.assertLess(
        testing.chi_square(counts, [0.1, 0.2, 0.3, 0.4]),
        testing.CHI_SQUARE_LIMITS[3],
    )
    # A new item gets the highest so far, not the highest now.
    update(info.key, tf.fill([4000], 2.0))
    self.insert(_data([100.0]), server, priority=lambda item: updater.highest)
    rewards, info = self.sample(server)
    self.assertAllClose(info.priority, np.where(rewards == 100, 16, 2))
    self.assertIn(100, rewards)
    server.stop()
    with self.assertRaisesRegex(
        tf.errors.UnknownError if is_graph else ConnectionError,
        f'server at localhost:{server.port} did not take new priorities',
    ):
      update(info.key[:2], tf.constant([1.0, 2.0]))

  def test_items_of_several_servers(self):
    servers = [self.serve(_data([1.0, 2.0])), self.serve(_data([3.0, 4.0]))]
    updater = priority_updates.PriorityUpdater(servers, testing.TABLE)
    found = [self.sample(server, 50) for server in servers]
    keys = np.concatenate([info.key for _, info in found])
    rewards = np.concatenate([rewards for rewards, _ in found])
    # As a batch [B, T], where the steps of an item share its key.
    updater.update_priorities(
        keys[:, np.newaxis].repeat(3, 1), tf.constant(10 * rewards)
    )
    for server in servers:
      rewards, info = self.sample(server, 50)
      self.assertAllClose(info.priority, 10 * rewards)
    self.assertEqual(updater.highest.numpy(), 40)

  def test_what_is_refused(self):
    spec = specs.create_trajectory_data_spec(_data())
    kinds = ('uniform', 'top_k')
    server = reverb.Server(
        [table_kinds.create_reverb_table(kind, spec, 3, kind) for kind in kinds]
    )
    self.addCleanup(server.stop)
    updater = priority_updates.PriorityUpdater(server, 'top_k')
    with self.assertRaisesRegex(ValueError, 'one number for each item'):
      updater.update_priorities(tf.ones([2], tf.uint64), [1.0])
    for servers, name, message in (
        (server, 'uniform', "'uniform' of .* neither samples nor removes"),
        (server, 'other', "no table 'other'"),
        ([], 'top_k', 'There are no servers'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        priority_updates.PriorityUpdater(servers, name)


if __name__ == '__main__':
  tf.test.main()
