"""Tests of sampling one server, and several as if they were one."""

import collections
import subprocess
import sys
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
from rlds2reverb.replay.server import tables
from rlds2reverb.trajectories import specs
from tests import chi_square
from tests import golden
from tests import reverb_testing

_TABLE = reverb_testing.TABLE

# Makes and frees iterators, polling all the time.
_FREEING = """
import sys
from rlds2reverb.replay.server import sampling
from tests import reverb_testing
sampling._TICK_MICROSECONDS = 1
table = reverb_testing.TABLE
dataset = sampling.sample_reverb_servers(sys.argv[1], table, 1, 4)
for _ in range(10):
  iterator = iter(dataset)
  next(iterator)
  del iterator
print('FREED', flush=True)
"""


def make_data(rewards):
  """One episode with these rewards; its actions count its steps."""
  rewards = np.array(rewards, np.float32)
  episode = golden.make_episode([1] * len(rewards), terminal=False, base=-100)
  return golden.stacked([{**episode, 'reward': rewards}])


def make_server(kind, rewards, port=None, *, length=1, priority=1.0):
  """Starts a server with a table of frames; returns it and its address."""
  data = make_data(rewards if len(rewards) else [0])
  spec = specs.create_trajectory_data_spec(data)
  table = tables.create_reverb_table(_TABLE, spec, 10_000, kind)
  server = reverb.Server([table], port=port or None)
  address = f'localhost:{server.port}'
  if len(rewards):
    windows = windows_lib.Windows(length)
    table = items.TableItems(_TABLE, windows, priority=priority)
    insert.write_rlds_to_reverb(data, address, table)
  return server, address


def _rewards(dataset):
  """The rewards of all batches of single frames, as lists."""
  return [data.reward[:, 0].numpy().tolist() for data, _ in dataset]


class SamplingTest(parameterized.TestCase, tf.test.TestCase):

  def serve(self, *args, **kwargs):
    server, address = make_server(*args, **kwargs)
    self.addCleanup(server.stop)
    return address

  def sample(self, *args, **kwargs):
    return sampling.sample_reverb_servers(*args, **kwargs)

  def check_raises(self, message, dataset):
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, message):
      list(dataset.take(9))

  # What comes out.

  def test_elements_equal_those_of_tf_agents(self):
    address = self.serve('uniform', range(20), length=3)
    signature = reverb.Client(address).server_info()[_TABLE].signature
    replay_buffer = reverb_replay_buffer.ReverbReplayBuffer(
        tf.nest.map_structure(
            lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype),
            tables.to_trajectory_signature(_TABLE, signature),
        ),
        table_name=_TABLE,
        sequence_length=3,
        server_address=address,
    )
    shapes = lambda dataset: [
        (leaf.shape, leaf.dtype)
        for leaf in tf.nest.flatten(dataset.element_spec)
    ]
    for batch_size in 4, None:
      expected = replay_buffer.as_dataset(batch_size, 3)
      dataset = self.sample(address, _TABLE, 3, batch_size)
      self.assertEqual(shapes(dataset), shapes(expected))
      for data, info in dataset.take(5):
        reward = np.reshape(data.reward, [-1, 3])
        self.assertAllEqual(reward - reward[:, :1], [[0, 1, 2]] * len(reward))
        self.assertAllEqual(info.table_size, np.full(info.key.shape, 18))
    self.check_raises(
        r'sequence_length is 2, but .* found are:\] \[3\]',
        self.sample(address, _TABLE, 2, 4),
    )

  def test_entire_episodes_are_sampled(self):
    lengths = [3, 8, 5]
    data = golden.stacked(golden.make_episodes(lengths))
    with reverb_testing.reverb_server(data) as client:
      write = lambda: insert.write_rlds_to_reverb(
          data, client, items.TableItems(_TABLE, None)
      )
      write()
      actual = []
      for trajectory, info in self.sample(client, _TABLE, None, timeout=1):
        actual.append(len(trajectory.reward))
        self.assertEqual(info.key.shape, trajectory.reward.shape)
      self.assertEqual(actual, lengths)
      write()
      self.check_raises(
          'items of other lengths', self.sample(client, _TABLE, 8, 3)
      )

  @pytest.mark.long
  def test_servers_are_drawn_by_their_sizes_and_priorities(self):
    shards = [[1.0, 4.0], [9.0, 16.0, 25.0], []]
    by_reward = lambda item: item.reward[0]
    addresses = [
        self.serve('prioritized', shard, priority=by_reward) for shard in shards
    ]
    expected = {}
    for shard in shards:
      powers = np.array(shard) ** 0.6  # The default exponent.
      expected.update(zip(shard, len(shard) / 5 * powers / powers.sum()))
    counts = collections.Counter()
    for data, info in self.sample(addresses, _TABLE, 1, 40).take(100):
      rewards = data.reward[:, 0].numpy().tolist()
      counts.update(rewards)
      self.assertAllClose(
          info.probability[:, 0], [expected[r] for r in rewards]
      )
      self.assertAllEqual(info.table_size, np.full([40, 1], 5))
    chi_square.assert_frequencies(
        self, [counts[reward] for reward in expected], list(expected.values())
    )

  @pytest.mark.long
  def test_tables_that_remove_sampled_items(self):
    for drop_remainder, sizes in ((False, [3, 3, 2]), (True, [3, 3])):
      address = self.serve('one_pass', range(8))
      rewards = _rewards(
          self.sample(
              address, _TABLE, 1, 3, drop_remainder=drop_remainder, timeout=1
          )
      )
      self.assertEqual(list(map(len, rewards)), sizes)
      self.assertLen(set(sum(rewards, [])) & set(range(8)), sum(sizes))
    # Two queues are mixed, not one after the other, and each keeps its order.
    shards = range(20), range(20, 100)
    addresses = [self.serve('queue', shard) for shard in shards]
    dataset = self.sample(
        addresses, _TABLE, 1, 8, drop_remainder=False, timeout=1
    )
    actual = sum(_rewards(dataset), [])
    for shard in shards:
      self.assertEqual([r for r in actual if r in shard], list(shard))
    self.assertBetween(sum(reward < 20 for reward in actual[:40]), 1, 19)

  # What goes wrong.

  @pytest.mark.long
  def test_sampling_times_out_or_waits_for_items(self):
    late = [self.serve('uniform', []) for _ in range(2)]
    full = self.serve('one_pass', range(8))
    self.check_raises(
        f"Table '{_TABLE}' gave no item for 1 seconds: .* holds 0, and its rate"
        ' limiter has min_size_to_sample=1',
        self.sample(late, _TABLE, 1, 4, timeout=1),
    )
    self.check_raises(
        'A batch of 10 is more than the 8 items that table',
        self.sample(full, _TABLE, 1, 10, timeout=1),
    )
    dataset = self.sample(late, _TABLE, 1, 4)
    iterator = iter(dataset.prefetch(1))  # It is sampled from here on.
    time.sleep(1)
    table = items.TableItems(_TABLE, windows_lib.Windows(1))
    for address in late:
      insert.write_rlds_to_reverb(make_data([3.0]), address, table)
    self.assertAllEqual(next(iterator)[0].reward, np.full([4, 1], 3))

  def test_zero_priorities_raise(self):
    addresses = [
        self.serve('prioritized', range(4), priority=0.0) for _ in range(2)
    ]
    for served in addresses[0], addresses:
      self.check_raises(
          f'All priorities of table .*{_TABLE}.* are 0',
          self.sample(served, _TABLE, 1, 4),
      )

  def test_invalid_arguments_raise(self):
    address = self.serve('uniform', range(9))
    no_signature = reverb.Server([reverb_testing.make_table(name=_TABLE)])
    self.addCleanup(no_signature.stop)
    spec = specs.create_trajectory_data_spec(make_data([0]))
    spec = spec._replace(observation=tf.TensorSpec([5], tf.float32))
    other = reverb.Server([tables.create_reverb_table(_TABLE, spec, 5)])
    self.addCleanup(other.stop)
    gone = f'localhost:{other.port}'
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
            rf"{gone} differs from .* in the fields \['observation'\]",
        ),
    ):
      with self.assertRaisesRegex(ValueError, message):
        self.sample(*args)
    with self.assertRaisesRegex(ValueError, 'timeout must be positive'):
      self.sample(address, _TABLE, 1, 4, timeout=0)
    other.stop()
    with self.assertRaisesRegex(ConnectionError, gone):
      self.sample(gone, _TABLE, 1, 4, timeout=1)

  @pytest.mark.long
  def test_iterators_that_are_freed_while_they_poll(self):
    address = self.serve('uniform', range(10))
    actual = subprocess.run(
        [sys.executable, '-c', _FREEING, address],
        capture_output=True,
        check=True,
        text=True,
        timeout=180,  # Freeing an iterator must not block forever.
    )
    self.assertIn('FREED', actual.stdout)

  def test_stopped_server(self):
    server, address = make_server('uniform', range(30))
    other = self.serve('uniform', range(30))
    dataset = self.sample([other, address], _TABLE, 1, 4, timeout=1)
    iterator = iter(dataset.prefetch(2))
    next(iterator)
    server.stop()
    with self.assertRaisesRegex(
        tf.errors.UnknownError,
        f'The Reverb server at {address} died while its table',
    ):
      while True:
        next(iterator)


if __name__ == '__main__':
  tf.test.main()
