"""Tests that episodes that come together become what they become one by one."""

import os
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.replay_buffers import reverb_utils

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import items
from rlds2reverb.replay.checkpoint import records
from rlds2reverb.replay.checkpoint import serve
from rlds2reverb.replay.checkpoint import write
from rlds2reverb.replay.server import insert
from rlds2reverb.replay.server import push
from rlds2reverb.trajectories import conversion
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import specs
from tests import golden
from tests import testing
from tests.replay import encoded


def _highest_reward(item):
  return 10 + tf.reduce_max(item.reward)


def _together(size):
  """Makes the conversion give blocks of `size` episodes."""
  convert = conversion.trajectory_blocks

  def trajectory_blocks(*args, **kwargs):
    blocks = convert(*args, **kwargs)

    def join():
      held = []
      for block in blocks.as_numpy_iterator():
        held.append(block)
        if len(held) == size:
          yield _joined(held)
          held = []
      if held:
        yield _joined(held)

    spec = tf.nest.map_structure(
        lambda leaf: tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype),
        blocks.element_spec._replace(step=()),
    )
    return tf.data.Dataset.from_generator(
        join,
        output_signature=spec._replace(step=blocks.element_spec.step),
    )

  return mock.patch.object(conversion, 'trajectory_blocks', trajectory_blocks)


def _joined(blocks):
  lengths = [len(block.frames.step_type) for block in blocks]
  joined = encoded.concatenated([block._replace(step=()) for block in blocks])
  return joined._replace(
      step=np.int64(0), row_splits=np.cumsum([0, *lengths], dtype=np.int64)
  )


def _data(lengths):
  """Episodes of images, vectors and strings, with an id."""
  rng = np.random.default_rng(3)

  def episode(number, length):
    made = golden.make_episode([1] * length, terminal=True, base=100 * number)
    made['observation'] = {
        'image': rng.integers(0, 256, (length, 40, 40)).astype(np.uint8),
        'speed': rng.normal(size=length),
        'text': np.array([rng.bytes(int(n)) for n in range(length)], object),
    }
    return made

  return golden.stacked(
      [episode(number, length) for number, length in enumerate(lengths)]
  )


def _taken(client, table):
  """Takes all items out of a table: keys, priorities and columns."""
  size = testing.size(client, table)
  if not size:
    return []
  return [
      (
          int(np.ravel(sample.info.key)[0]),
          float(np.ravel(sample.info.priority)[0]),
          [(leaf.shape, testing.bytes_of(leaf)) for leaf in sample.data],
      )
      for sample in client.sample(table, num_samples=size, emit_timesteps=False)
  ]


_LENGTHS = (3, 1, 5, 70, 2, 2, 130, 1, 4, 6, 2, 5)
_SERVED = [
    items.TableItems('pairs'),
    items.TableItems(
        'tiled', windows_lib.Windows(4, 3, 'tile'), priority=_highest_reward
    ),
    items.TableItems('whole', None),
]
_NAMES = [table.table_name for table in _SERVED]


class ServedBatchesTest(parameterized.TestCase, tf.test.TestCase):

  def _written(self, data, **kwargs):
    """Returns the items of a server, and the numbers of its episodes."""
    spec = specs.create_trajectory_data_spec(data)
    with testing.reverb_server(spec, tables=_NAMES) as client:
      insert.write_rlds_to_reverb(
          data,
          client,
          _SERVED,
          options=options_lib.ConversionOptions(identity='data', **kwargs),
      )
      counted = [client.server_info()[name].num_episodes for name in _NAMES]
      return [_taken(client, name) for name in _NAMES], counted

  @pytest.mark.long
  def test_write(self):
    data = _data(_LENGTHS)
    expected, counted = self._written(data)
    # Two of the episodes have one frame.
    self.assertEqual(counted, [10, 12, 12])
    self.assertEqual(
        [len(found) for found in expected],
        [sum(_LENGTHS) - 12, sum(-(-n // 3) for n in _LENGTHS), 12],
    )
    for size, chunk_length in ((4, None), (12, None), (12, 16)):
      settings = dict(chunk_length=chunk_length)
      with _together(size):
        found, fewer = self._written(data, **settings)
        exact, same = self._written(data, one_episode_chunks=True, **settings)
      self.assertEqual(found, expected)
      self.assertEqual(exact, expected)
      self.assertEqual(same, counted)
      if chunk_length:
        # Those that share a chunk are counted as one.
        self.assertLess(fewer[1], counted[1])

  def test_push(self):
    data = _data(_LENGTHS)
    spec = specs.create_trajectory_data_spec(data)
    counted = []
    for exact in (True, False):
      with testing.reverb_server(spec) as client:
        observer = reverb_utils.ReverbAddTrajectoryObserver(
            client, testing.TABLE, 2
        )
        with _together(12):
          frames = push.push_rlds_to_reverb(
              data,
              observer,
              options=options_lib.ConversionOptions(one_episode_chunks=exact),
          )
        self.assertEqual(frames, sum(_LENGTHS))
        counted.append(client.server_info()[testing.TABLE].num_episodes)
        found = testing.contents(client)
        observer.close()
      self.assertLen(found.items, sum(_LENGTHS) - len(_LENGTHS))
    self.assertEqual(counted[0], 10)

  def test_checkpoint(self):
    data = _data(_LENGTHS)
    expected, counted = self._written(data)
    sizes = {}
    for exact in (True, False):
      path = os.path.join(self.create_tempdir().full_path, 'checkpoint')
      with _together(12):
        write.write_reverb_checkpoint(
            data,
            path,
            _SERVED,
            options=options_lib.ConversionOptions(
                identity='data', one_episode_chunks=exact, chunk_length=16
            ),
            reverb_tables=[testing.make_table(name=name) for name in _NAMES],
        )
      sizes[exact] = len(
          list(
              tf.data.TFRecordDataset(
                  os.path.join(path, records.CHUNKS), 'ZLIB'
              )
          )
      )
      server = serve.restore_reverb_server(path)
      client = server.localhost_client()
      if exact:
        self.assertEqual(
            [client.server_info()[name].num_episodes for name in _NAMES],
            counted,
        )
      self.assertEqual([_taken(client, name) for name in _NAMES], expected)
      server.stop()
    self.assertLess(sizes[False], sizes[True])


if __name__ == '__main__':
  absltest.main()
