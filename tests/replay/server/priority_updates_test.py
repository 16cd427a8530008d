"""Tests of new priorities, against real servers."""

from absl.testing import parameterized
import numpy as np
import pytest
import reverb
import tensorflow as tf
from tf_agents.replay_buffers import reverb_utils

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import items
from rlds2reverb.replay.server import insert
from rlds2reverb.replay.server import priority_updates
from rlds2reverb.replay.server import push
from rlds2reverb.replay.server import sampling
from rlds2reverb.replay.server import tables
from rlds2reverb.trajectories import specs
from tests import reverb_testing
from tests.replay.server import sampling_test

_RUN = {False: lambda function: function, True: tf.function}

# Exponents, and priorities of which Reverb's weights or their sum are infinite
# or 0.
_OUT_OF_RANGE = ((1.0, 1e308), (2.0, 1e200), (2.0, 1e-200), (0.5 + 1, 1e-250))
# Those of which they are not.
_IN_RANGE = ((1.0, 1e300), (1.0, 1e-300), (0.6, 1e-307), (0.0, 1e308))


class PriorityUpdatesTest(parameterized.TestCase, tf.test.TestCase):

  def serve(self, rewards):
    """Returns a server with single frames, whose priorities are 1."""
    server, _ = sampling_test.make_server('prioritized', rewards)
    self.addCleanup(server.stop)
    return server

  def sample(self, server):
    """Returns the rewards of 200 frames, and their `SampleInfo`, `[200, 1]`."""
    dataset = sampling.sample_reverb_servers(
        server, reverb_testing.TABLE, 1, 200
    )
    [(frames, info)] = dataset.take(1)
    return frames.reward[:, 0].numpy(), info

  @parameterized.parameters(*_RUN)
  def test_a_train_step_sets_priorities(self, is_graph):
    server = self.serve([1, 4, 9, 16])
    updater = priority_updates.PriorityUpdater(
        server, reverb_testing.TABLE, timeout=1
    )
    self.assertEqual(updater.highest.numpy(), 1)
    update = _RUN[is_graph](updater.update_priorities)
    rewards, info = self.sample(server)
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, 'must be finite numbers from 0 up'
    ):
      update(info.key[:2], tf.constant([100.0, np.nan]))
    update(info.key, tf.constant(rewards))
    # A new item gets the highest so far, not the highest now.
    update(info.key, tf.fill([200], 2.0))
    self.assertEqual(updater.highest.numpy(), 16)
    insert.write_rlds_to_reverb(
        sampling_test.make_data([100]),
        server,
        items.TableItems(
            reverb_testing.TABLE,
            windows_lib.Windows(1),
            priority=lambda item: updater.highest,
        ),
    )
    rewards, info = self.sample(server)
    self.assertIn(100, rewards)
    self.assertAllClose(info.priority[:, 0], np.where(rewards == 100, 16, 2))
    server.stop()
    with self.assertRaisesRegex(
        tf.errors.UnknownError if is_graph else ConnectionError,
        f'server at localhost:{server.port} did not accept new priorities',
    ):
      update(info.key, tf.constant(rewards))

  @pytest.mark.long
  def test_items_of_several_servers(self):
    servers = [self.serve([1, 2]), self.serve([3, 4])]
    updater = priority_updates.PriorityUpdater(
        servers, reverb_testing.TABLE, initial_priority=7.5
    )
    self.assertEqual(updater.highest.numpy(), 7.5)
    updater.update_priorities([1], [7.6])  # which float32 cannot hold
    self.assertEqual(updater.highest.numpy(), 7.6)
    updater.update_priorities(
        *map(
            np.concatenate,
            zip(*[(i.key, 10 * r) for r, i in map(self.sample, servers)]),
        )
    )
    for rewards, info in map(self.sample, servers):
      self.assertAllClose(info.priority[:, 0], 10 * rewards)
    self.assertEqual(updater.highest.numpy(), 40)

  def test_invalid_tables_and_arguments_raise(self):
    spec = specs.create_trajectory_data_spec(sampling_test.make_data([0]))
    kinds = ('uniform', 'top_k')
    server = reverb.Server(
        [tables.create_reverb_table(kind, spec, 3, kind) for kind in kinds]
    )
    self.addCleanup(server.stop)
    updater = priority_updates.PriorityUpdater(server, 'top_k')
    with self.assertRaisesRegex(ValueError, 'one number for each item'):
      updater.update_priorities(tf.ones([2], tf.uint64), [1.0])
    with self.assertRaisesRegex(ValueError, 'initial_priority must be'):
      priority_updates.PriorityUpdater(server, 'top_k', initial_priority=-1)
    for servers, name, message in (
        (server, 'uniform', "'uniform' of .* neither samples nor removes"),
        (server, 'other', "no table 'other'"),
        ([], 'top_k', 'There are no servers'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        priority_updates.PriorityUpdater(servers, name)

  def prioritized(self, exponent):
    data = sampling_test.make_data([1, 2, 3])
    table = tables.create_reverb_table(
        reverb_testing.TABLE,
        specs.create_trajectory_data_spec(data),
        100,
        'prioritized',
        priority_exponent=exponent,
    )
    server = reverb.Server([table])
    self.addCleanup(server.stop)

    def write(priority):
      table = items.TableItems(
          reverb_testing.TABLE, windows_lib.Windows(1), priority=priority
      )
      return insert.write_rlds_to_reverb(data, server, table)

    return server, write

  @parameterized.parameters(*_OUT_OF_RANGE)
  @pytest.mark.few(1)
  def test_weights_that_overflow_or_vanish(self, exponent, priority):
    server, write = self.prioritized(exponent)
    message = (
        rf'{reverb_testing.TABLE}.* samples by priority \*\* .* be 0 or in \['
    )
    for invalid in priority, lambda item: tf.constant(priority, tf.float64):
      with self.assertRaisesRegex(ValueError, message):
        write(invalid)
    observer = reverb_utils.ReverbAddTrajectoryObserver(
        reverb.Client(f'localhost:{server.port}'),
        reverb_testing.TABLE,
        sequence_length=1,
        priority=priority,
    )
    self.addCleanup(observer.close)
    for method in 'bulk', 'observer':
      with self.assertRaisesRegex(ValueError, message):
        push.push_rlds_to_reverb(
            sampling_test.make_data([1, 2, 3]), observer, method=method
        )
    with self.assertRaisesRegex(ValueError, message):
      priority_updates.PriorityUpdater(
          server, reverb_testing.TABLE, initial_priority=priority
      )
    write(2.0)
    updater = priority_updates.PriorityUpdater(server, reverb_testing.TABLE)
    _, info = self.sample(server)
    for update in map(_RUN.get, _RUN):
      with self.assertRaisesRegex(tf.errors.InvalidArgumentError, message):
        update(updater.update_priorities)(info.key[:2], [3.0, priority])
    self.assertEqual(updater.highest.numpy(), 1)
    _, info = self.sample(server)
    self.assertAllEqual(info.priority, np.full([200, 1], 2))

  @parameterized.parameters(*_IN_RANGE)
  def test_weights_that_a_float64_holds(self, exponent, priority):
    server, write = self.prioritized(exponent)
    write(lambda item: tf.cast(item.reward[0] > 1, tf.float64) * priority)
    rewards, info = self.sample(server)
    self.assertCountEqual(set(rewards.tolist()), {2, 3})
    self.assertAllClose(info.probability, np.full([200, 1], 0.5))

  @parameterized.parameters(*_OUT_OF_RANGE)
  def test_priorities_out_of_range_from_another_client_raise(
      self, exponent, priority
  ):
    server, write = self.prioritized(exponent)
    write(1.0)
    _, info = self.sample(server)
    first, *keys = set(info.key[:, 0].numpy().tolist())
    updates = {first: 0.0, **dict.fromkeys(keys, priority)}
    client = reverb.Client(f'localhost:{server.port}')
    client.mutate_priorities(reverb_testing.TABLE, updates=updates)
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, 'too large or too small'
    ):
      self.sample(server)


if __name__ == '__main__':
  tf.test.main()
