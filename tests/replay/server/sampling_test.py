"""Tests of sampling one server, and several as if they were one."""

import collections
import subprocess
import time

from absl.testing import parameterized
import numpy as np
import pytest
import reverb
import tensorflow as tf
from tf_agents.replay_buffers import reverb_replay_buffer

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import items
from rlds2reverb.replay.server import insert
from rlds2reverb.replay.server import sampling
from rlds2reverb.replay.server import table_kinds
from rlds2reverb.trajectories import specs
from tests import golden
from tests import testing
from tests.replay.server import processes

_TABLE = testing.TABLE

# Fills a table of the kind that it is told with frames, and serves it.
_SERVER = """
import sys, threading
import reverb
from tests.replay.server import sampling_test
kind, num_items = sys.argv[1], int(sys.argv[2])
print('READY', flush=True)
server, _ = sampling_test.make_server(kind, range(num_items), int(input()))
print('PORT', server.port, flush=True)
threading.Event().wait()
"""

# Makes and frees iterators, polling all the time.
_FREEING = """
import sys
from rlds2reverb.replay.server import sampling
from rlds2reverb.replay.server import watching
from tests import testing
watching._TICK_MICROSECONDS = 1
dataset = sampling.sample_reverb_servers(sys.argv[1], testing.TABLE, 1, 4)
for _ in range(10):
  iterator = iter(dataset)
  next(iterator)
  del iterator
print('FREED', flush=True)
"""


def make_data(rewards):
  """One episode with these rewards."""
  rewards = np.array(rewards, np.float32)
  episode = golden.make_episode([1] * len(rewards), terminal=False)
  return golden.stacked([{**episode, 'reward': rewards}])


def make_server(
    kind, rewards, port=None, *, sequence_length=1, priority=1.0, **kwargs
):
  """Starts a server with a table of frames; returns it and its address."""
  data = make_data(rewards if len(rewards) else [0])
  spec = specs.create_trajectory_data_spec(data)
  table = table_kinds.create_reverb_table(_TABLE, spec, 10_000, kind, **kwargs)
  server = reverb.Server([table], port=port or None)
  address = f'localhost:{server.port}'
  if len(rewards):
    windows = windows_lib.Windows(sequence_length)
    table = items.TableItems(_TABLE, windows, priority=priority)
    insert.write_rlds_to_reverb(data, address, table)
  return server, address


def _rewards(dataset):
  """The rewards of all batches of single frames, as lists."""
  return [data.reward[:, 0].numpy().tolist() for data, _ in dataset]


class SamplingTest(parameterized.TestCase, tf.test.TestCase):

  def _address(self, *args, **kwargs):
    server, address = make_server(*args, **kwargs)
    self.addCleanup(server.stop)
    return address

  def _assert_raises(self, message, dataset):
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, message):
      list(dataset.take(9))

  # What comes out.

  @parameterized.parameters(4, None)
  def test_elements_are_those_of_tf_agents(self, batch_size):
    address = self._address('uniform', range(20), sequence_length=3)
    signature = reverb.Client(address).server_info()[_TABLE].signature
    replay_buffer = reverb_replay_buffer.ReverbReplayBuffer(
        tf.nest.map_structure(
            lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype),
            table_kinds.trajectory_signature(_TABLE, signature),
        ),
        table_name=_TABLE,
        sequence_length=3,
        server_address=address,
    )
    expected = replay_buffer.as_dataset(
        sample_batch_size=batch_size, num_steps=3
    )
    dataset = sampling.sample_reverb_servers(address, _TABLE, 3, batch_size)
    shapes = lambda spec: tf.nest.map_structure(
        lambda leaf: (leaf.shape, leaf.dtype), spec
    )
    self.assertEqual(
        shapes(dataset.element_spec), shapes(expected.element_spec)
    )
    (ours,), (theirs,) = dataset.take(1), expected.take(1)
    tf.nest.assert_same_structure(ours, theirs)
    for data, info in dataset.take(5):
      reward = np.reshape(data.reward, [-1, 3])
      self.assertAllEqual(reward - reward[:, :1], [[0, 1, 2]] * len(reward))
      self.assertAllEqual(info.table_size, np.full(info.key.shape, 18))
    dataset = sampling.sample_reverb_servers(address, _TABLE, 2, 4)
    self._assert_raises(
        r'sequence_length is 2, but .* found are:\] \[3\]', dataset
    )

  def test_whole_episodes(self):
    lengths = [3, 8, 5]
    data = golden.stacked(
        [golden.make_episode([1] * length, terminal=True) for length in lengths]
    )
    with testing.reverb_server(
        specs.create_trajectory_data_spec(data)
    ) as client:
      insert.write_rlds_to_reverb(data, client, items.TableItems(_TABLE, None))
      dataset = sampling.sample_reverb_servers(client, _TABLE, None, timeout=1)
      found = []
      for trajectory, info in dataset:
        found.append(len(trajectory.reward))
        self.assertEqual(info.key.shape, trajectory.reward.shape)
      self.assertEqual(found, lengths)
      insert.write_rlds_to_reverb(data, client, items.TableItems(_TABLE, None))
      self._assert_raises(
          'items of other lengths',
          sampling.sample_reverb_servers(client, _TABLE, 8, 3),
      )

  def test_servers_are_drawn_by_their_sizes(self):
    addresses = [
        self._address('uniform', range(100)),
        self._address('uniform', range(100, 400)),
        self._address('uniform', []),
    ]
    dataset = sampling.sample_reverb_servers(addresses, _TABLE, 1, 20)
    rewards = []
    for data, info in dataset.take(400):
      rewards += data.reward[:, 0].numpy().tolist()
      self.assertAllClose(info.probability, np.full([20, 1], 1 / 400))
      self.assertAllEqual(info.table_size, np.full([20, 1], 400))
    counts = np.histogram(rewards, [0, 50, 100, 200, 400])[0]
    self.assertLess(
        testing.chi_square(counts, [1 / 8, 1 / 8, 1 / 4, 1 / 2]),
        testing.CHI_SQUARE_LIMITS[3],
    )

  def test_priorities_of_two_servers(self):
    shards = [[1.0, 4.0], [9.0, 16.0, 25.0]]
    by_reward = lambda item: item.reward[0]
    addresses = [
        self._address('prioritized', shard, priority=by_reward)
        for shard in shards
    ]
    expected = {}
    for shard in shards:
      powers = np.array(shard) ** 0.6  # The default exponent.
      expected.update(zip(shard, len(shard) / 5 * powers / powers.sum()))
    dataset = sampling.sample_reverb_servers(addresses, _TABLE, 1, 40)
    counts = collections.Counter()
    for data, info in dataset.take(100):
      rewards = data.reward[:, 0].numpy().tolist()
      counts.update(rewards)
      self.assertAllClose(
          info.probability[:, 0], [expected[r] for r in rewards]
      )
    self.assertLess(
        testing.chi_square(
            [counts[reward] for reward in expected], list(expected.values())
        ),
        testing.CHI_SQUARE_LIMITS[4],
    )

  # Tables that remove what was sampled.

  @parameterized.parameters((False, [3, 3, 2]), (True, [3, 3]))
  def test_one_pass(self, drop_remainder, sizes):
    address = self._address('one_pass', range(8))
    dataset = sampling.sample_reverb_servers(
        address, _TABLE, 1, 3, drop_remainder=drop_remainder, timeout=1
    )
    rewards = _rewards(dataset)
    self.assertEqual(list(map(len, rewards)), sizes)
    self.assertLen(set(sum(rewards, [])) & set(range(8)), sum(sizes))

  def test_queues_of_one_server_and_of_two(self):
    one = self._address('queue', range(20))
    addresses = [
        self._address('queue', range(20)),
        self._address('queue', range(20, 100)),
    ]
    found, of_both = (
        sum(
            _rewards(
                sampling.sample_reverb_servers(
                    served, _TABLE, 1, 8, drop_remainder=False, timeout=1
                )
            ),
            [],
        )
        for served in (one, addresses)
    )
    self.assertEqual(found, list(range(20)))
    self.assertCountEqual(of_both, range(100))
    # They are mixed, not one after the other.
    self.assertBetween(sum(reward < 20 for reward in of_both[:40]), 1, 19)

  # What goes wrong.

  def test_nothing_comes(self):
    late = [self._address('uniform', []) for _ in range(2)]
    full = self._address('one_pass', range(8))
    none = sampling.sample_reverb_servers(late, _TABLE, 1, 4, timeout=1)
    self._assert_raises(f"Table '{_TABLE}' gave no item for 1 seconds", none)
    self._assert_raises(
        'A batch of 10 is more than the 8 items that table',
        sampling.sample_reverb_servers(full, _TABLE, 1, 10, timeout=1),
    )
    dataset = sampling.sample_reverb_servers(late, _TABLE, 1, 4)
    iterator = iter(dataset.prefetch(1))  # It is sampled from here on.
    time.sleep(1)
    for address in late:
      insert.write_rlds_to_reverb(
          make_data([3.0]),
          address,
          items.TableItems(_TABLE, windows_lib.Windows(1)),
      )
    self.assertAllEqual(next(iterator)[0].reward, np.full([4, 1], 3))

  def test_rate_limiter_that_lets_nothing_out(self):
    address = self._address('uniform', [0, 1], min_size_to_sample=3)
    self._assert_raises(
        'It holds 2, and its .* min_size_to_sample=3',
        sampling.sample_reverb_servers(address, _TABLE, 1, 4, timeout=1),
    )

  @parameterized.parameters(1, 2)
  def test_all_priorities_are_zero(self, num_servers):
    addresses = [
        self._address('prioritized', range(4), priority=0.0)
        for _ in range(num_servers)
    ]
    self._assert_raises(
        f'All priorities of table .*{_TABLE}.* are 0',
        sampling.sample_reverb_servers(addresses, _TABLE, 1, 4),
    )

  def test_arguments(self):
    address = self._address('uniform', range(9))
    no_signature = reverb.Server([testing.make_table(name=_TABLE)])
    self.addCleanup(no_signature.stop)
    image = make_data([0]).map(
        lambda episode: {
            'steps': {**episode['steps'], 'observation': tf.zeros([1, 5])}
        }
    )
    spec = specs.create_trajectory_data_spec(image)
    other = reverb.Server([table_kinds.create_reverb_table(_TABLE, spec, 5)])
    self.addCleanup(other.stop)
    for args, message in (
        (
            (address, 'other', 1, 4),
            rf"has no table 'other'. Its tables are \['{_TABLE}'\]",
        ),
        (([], _TABLE, 1, 4), 'There are no servers'),
        ((address, _TABLE, None, 4), 'Items of a batch have one length'),
        ((address, _TABLE, 0, 4), 'sequence_length must be a positive integer'),
        ((address, _TABLE, 1, 0), 'batch_size must be a positive integer'),
        ((no_signature, _TABLE, 1, 4), 'is not of trajectories'),
        (
            ([address, other], _TABLE, 1, 4),
            f"localhost:{other.port} differs from .* its 'observation' is",
        ),
    ):
      with self.assertRaisesRegex(ValueError, message):
        sampling.sample_reverb_servers(*args)
    with self.assertRaisesRegex(ValueError, 'timeout must be positive'):
      sampling.sample_reverb_servers(address, _TABLE, 1, 4, timeout=0)
    other.stop()
    with self.assertRaisesRegex(ConnectionError, f'localhost:{other.port}'):
      sampling.sample_reverb_servers(
          f'localhost:{other.port}', _TABLE, 1, 4, timeout=1
      )

  @pytest.mark.long
  def test_iterators_that_are_freed_while_they_poll(self):
    address = self._address('uniform', range(10))
    found = subprocess.run(
        processes.command(_FREEING, address),
        capture_output=True,
        check=True,
        text=True,
        timeout=180,  # Where freeing one waits for ever.
    )
    self.assertIn('FREED', found.stdout)

  def _assert_dies(self, address, stop):
    other = self._address('uniform', range(30))
    dataset = sampling.sample_reverb_servers(
        [other, address], _TABLE, 1, 4, timeout=1
    )
    iterator = iter(dataset.prefetch(2))
    next(iterator)
    stop()
    with self.assertRaisesRegex(
        tf.errors.UnknownError,
        f'The Reverb server at {address} died while its table',
    ):
      while True:
        next(iterator)

  def test_stopped_server(self):
    server, address = make_server('uniform', range(30))
    self._assert_dies(address, server.stop)

  @pytest.mark.long
  def test_killed_server(self):
    process = processes.ServerProcess(_SERVER, 'uniform', 30)
    self.addCleanup(process.kill)
    process.serve()
    self._assert_dies(process.address, process.kill)


if __name__ == '__main__':
  tf.test.main()
