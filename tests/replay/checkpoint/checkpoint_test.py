"""Tests of checkpoints: their order, what merges, and what is refused."""

import os
import re
import shutil

from absl.testing import parameterized
import numpy as np
import reverb
from reverb.cc.checkpointing import checkpoint_pb2
from reverb.cc import schema_pb2
import tensorflow as tf
from tf_agents.specs import tensor_spec

from rlds2reverb.replay.checkpoint import merge

from rlds2reverb.replay.checkpoint import serve

from rlds2reverb.replay.checkpoint import records
from rlds2reverb.replay.checkpoint import write
from rlds2reverb.replay import items
from rlds2reverb.replay.server import bulk
from rlds2reverb.trajectories import rules as rules_lib
from rlds2reverb.trajectories import specs
from tests import golden
from tests import testing

_OTHER = 'other_table'
_PAIRS = items.TableItems(testing.TABLE)
_FILES = ('tables.tfrecord', 'items.tfrecord', 'chunks.tfrecord')


def _episodes(lengths, base=0):
  return [
      golden.make_episode([1] * length, terminal=True, base=base + 1000 * index)
      for index, length in enumerate(lengths)
  ]


def _pairs(episodes):
  """The rewards of the items of two frames, in their order."""
  return [
      episode['reward'][step : step + 2].tolist()
      for episode in episodes
      for step in range(golden.length_of(episode) - 1)
  ]


def _signature(data):
  return tensor_spec.add_outer_dim(specs.create_trajectory_data_spec(data))


def _once(sampler, name=testing.TABLE):
  """Settings of a table that gives its items once, by its sampler."""
  return write.TableSettings(
      name, sampler=sampler, max_size=100_000, max_times_sampled=1
  )


def _take_rewards(client, name=testing.TABLE):
  """Takes the items out of a table; returns their rewards."""
  return [
      sample.data.reward.tolist()
      for sample in client.sample(
          name,
          num_samples=testing.size(client, name),
          emit_timesteps=False,
          unpack_as_table_signature=True,
      )
  ]


def _records(directory, file):
  dataset = tf.data.TFRecordDataset(os.path.join(directory, file), 'ZLIB')
  return list(dataset.as_numpy_iterator())


def _rewrite(directory, file, contents):
  options = tf.io.TFRecordOptions('ZLIB')
  with tf.io.TFRecordWriter(os.path.join(directory, file), options) as writer:
    for content in contents:
      writer.write(content)


class CheckpointTest(parameterized.TestCase, tf.test.TestCase):

  def _new(self, name='checkpoint'):
    return os.path.join(self.create_tempdir().full_path, name)

  def _write(self, episodes, tables=_PAIRS, **kwargs):
    path = self._new()
    write.write_reverb_checkpoint(
        golden.stacked(episodes), path, tables, **kwargs
    )
    return path

  def _serve(self, path):
    server = serve.restore_reverb_server(path)
    self.addCleanup(server.stop)
    return server.localhost_client()

  def _copy(self, path):
    return shutil.copytree(path, self._new())

  # The order of items.

  def test_order_goes_through_two_servers(self):
    episodes = _episodes([300, 1, 80, 400, 2])
    path = self._write(
        episodes,
        [_PAIRS, items.TableItems(_OTHER)],
        reverb_tables=[
            _once(reverb.selectors.Fifo()),
            _once(reverb.selectors.Lifo(), _OTHER),
        ],
    )
    expected = _pairs(episodes)
    self.assertLen(expected, 299 + 79 + 399 + 1)
    second = self._serve(self._serve(path).checkpoint())
    self.assertEqual(_take_rewards(second), expected)
    self.assertEqual(_take_rewards(second, _OTHER), expected[::-1])

  def test_items_are_dated_in_the_order_of_all_tables(self):
    path = self._write(
        _episodes([30, 1, 200]),
        [_PAIRS, items.TableItems(_OTHER, 5, 3, 'tile')],
    )
    dates = [
        schema_pb2.PrioritizedItem.FromString(item).inserted_at.ToNanoseconds()
        for item in _records(path, 'items.tfrecord')
    ]
    # 10 + 1 + 67 items start in the other table.
    self.assertLen(dates, 29 + 199 + 10 + 1 + 67)
    self.assertTrue(np.all(np.diff(dates) > 0))

  def test_order_of_merged_checkpoints(self):
    parts = [_episodes([150, 40], base) for base in (0, 5000, 9000)]
    paths = [
        self._write(
            part,
            reverb_tables=[_once(reverb.selectors.Fifo())],
        )
        for part in parts
    ]
    merged = self._new()
    # Not in the order in which they were written, and one through a server.
    paths[1] = self._serve(paths[1]).checkpoint()
    merge.merge_reverb_checkpoints(
        [paths[2], paths[0], paths[1]], merged
    )
    second = self._serve(self._serve(merged).checkpoint())
    self.assertEqual(
        _take_rewards(second), _pairs(parts[2] + parts[0] + parts[1])
    )

  # What merges.

  def test_shards_that_count_from_0_alike(self):
    first, second = _episodes([5, 9]), _episodes([5, 9], base=400)
    paths = [self._write(part, identity='data') for part in (first, second)]
    merged = self._new()
    with self.assertRaisesRegex(
        ValueError, 'under an identity of its own, or with an episode_id'
    ) as raised:
      merge.merge_reverb_checkpoints(paths, merged)
    self.assertIn(paths[1], str(raised.exception))
    self.assertEmpty(os.listdir(os.path.dirname(merged)))
    other = self._write(second, identity='data, second shard')
    counts = merge.merge_reverb_checkpoints([paths[0], other], merged)
    self.assertEqual(counts, {testing.TABLE: 4 + 8 + 4 + 8})
    self.assertCountEqual(
        _take_rewards(self._serve_once(merged)), _pairs(first + second)
    )

  def _serve_once(self, path):
    """Serves a checkpoint whose items are given without end, each once."""
    (table,) = _records(path, 'tables.tfrecord')
    table = checkpoint_pb2.PriorityTableCheckpoint.FromString(table)
    table.max_times_sampled = 1
    copy = self._copy(path)
    _rewrite(copy, 'tables.tfrecord', [table.SerializeToString()])
    return self._serve(copy)

  @parameterized.parameters(
      ([5, 9], [5, 9, 3]), ([5], [5]), ([5, 9, 200], [5])
  )
  def test_the_same_episodes_merge(self, lengths, other_lengths):
    paths = [
        self._write(_episodes(each), identity='data')
        for each in (lengths, other_lengths)
    ]
    # As a server writes the same: in other bytes, with other dates.
    paths[1] = self._serve(paths[1]).checkpoint()
    merged = self._new()
    counts = merge.merge_reverb_checkpoints(paths, merged)
    longest = max(lengths, other_lengths, key=len)
    self.assertEqual(counts, {testing.TABLE: sum(longest) - len(longest)})
    self.assertCountEqual(
        _take_rewards(self._serve_once(merged)), _pairs(_episodes(longest))
    )

  def test_items_of_other_chunks(self):
    paths = [
        self._write(_episodes([9]), identity='data', chunk_length=chunk_length)
        for chunk_length in (4, 8)
    ]
    with self.assertRaisesRegex(ValueError, 'or with another chunk_length'):
      merge.merge_reverb_checkpoints(paths, self._new())

  def test_another_terminal_discount_is_other_data(self):
    episodes = _episodes([5])
    paths = [
        self._write(episodes, identity='data', rules=rules_lib.ConversionRules(terminal_discount=where))
        for where in ('step', 'transition')
    ]
    counts = merge.merge_reverb_checkpoints(paths, self._new())
    self.assertEqual(counts, {testing.TABLE: 8})

  # What is refused.

  @parameterized.product(
      file=_FILES, size=(None, 0, 1, 0.5), own=(True, False)
  )
  def test_a_file_that_is_cut(self, file, size, own):
    path = self._write(
        _episodes([30, 7]), [_PAIRS, items.TableItems(_OTHER, 5)]
    )
    if not own:
      path = self._serve(path).checkpoint()
    damaged = self._copy(path)
    name = os.path.join(damaged, file)
    if size is None:
      os.remove(name)
    else:
      whole = os.path.getsize(name)
      os.truncate(name, int(size * whole) if isinstance(size, float) else size)
    with self.assertRaisesRegex(records.CheckpointError, damaged):
      serve.restore_reverb_server(damaged)
    merged = self._new()
    with self.assertRaisesRegex(records.CheckpointError, damaged):
      merge.merge_reverb_checkpoints([path, damaged], merged)
    self.assertEmpty(os.listdir(os.path.dirname(merged)))

  @parameterized.parameters(*_FILES)
  def test_records_that_are_missing(self, file):
    path = self._write(
        _episodes([30, 70]), [_PAIRS, items.TableItems(_OTHER, 5)]
    )
    _rewrite(path, file, _records(path, file)[:-1])
    with self.assertRaisesRegex(records.CheckpointError, path):
      merge.merge_reverb_checkpoints([path], self._new())
    with self.assertRaisesRegex(records.CheckpointError, path):
      serve.restore_reverb_server(path)

  def test_a_table_that_items_were_removed_from(self):
    # What a server writes when it has evicted, sampled away and deleted items.
    episodes = _episodes([30, 70, 9])
    data = golden.stacked(episodes)
    with testing.reverb_server(
        signature=_signature(data), max_size=60
    ) as client:
      bulk.write_rlds_to_reverb(data, client, _PAIRS)
      samples = list(client.sample(testing.TABLE, 7, emit_timesteps=False))
      self.assertLen(samples, 7)
      key = int(np.ravel(samples[-1].info.key)[0])
      client.mutate_priorities(testing.TABLE, deletes=[key])
      left = testing.size(client)
      path = client.checkpoint()
      self.assertBetween(left, 52, 53)
      self.assertEqual(testing.size(self._serve(path)), left)
      counts = merge.merge_reverb_checkpoints([path], self._new())
      self.assertEqual(counts, {testing.TABLE: left})

  def test_the_newest_checkpoint_of_a_root(self):
    episodes = _episodes([30, 70])
    path = self._write(episodes)
    root = self.create_tempdir().full_path
    server = serve.restore_reverb_server(path, checkpoint_root=root)
    client = server.localhost_client()
    key = int(next(iter(client.sample(testing.TABLE)))[0].info.key)
    client.mutate_priorities(testing.TABLE, deletes=[key])
    written = client.checkpoint()
    server.stop()
    del server
    server = serve.restore_reverb_server(path, checkpoint_root=root)
    self.assertEqual(testing.size(server.localhost_client()), 29 + 69 - 1)
    server.stop()
    os.truncate(os.path.join(written, 'items.tfrecord'), 0)
    with self.assertRaisesRegex(records.CheckpointError, re.escape(written)):
      serve.restore_reverb_server(path, checkpoint_root=root)


if __name__ == '__main__':
  tf.test.main()
