"""Tests that the bulk way and checkpoints hold what the observers write."""

import os

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.replay_buffers import reverb_utils
from tf_agents.specs import tensor_spec

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import items
from rlds2reverb.replay.checkpoint import merge
from rlds2reverb.replay.checkpoint import serve
from rlds2reverb.replay.checkpoint import write
from rlds2reverb.replay.server import insert
from rlds2reverb.replay.server import push
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import rules as rules_lib
from rlds2reverb.trajectories import specs
from tests import golden
from tests import testing

_MAX_SIZE = 10_000
_STREAM = rules_lib.ConversionRules(validation='tf_agents')

# Observers, their settings, and the same of TableItems.
_SETTINGS = {
    f'length_{length}_stride_{stride}_{end}': (
        reverb_utils.ReverbAddTrajectoryObserver,
        dict(
            sequence_length=length,
            stride_length=stride,
            pad_end_of_episodes=end != 'drop',
            tile_end_of_episodes=end == 'tile',
            priority=length,
        ),
        dict(windows=windows_lib.Windows(length, stride, end), priority=length),
    )
    for length, stride, end in (
        (1, 1, 'drop'),
        (2, 1, 'drop'),
        (3, 2, 'drop'),
        (2, 1, 'pad'),
        (5, 3, 'pad'),
        (5, 1, 'tile'),
        (3, 2, 'tile'),
        (80, 40, 'pad'),
        (80, 7, 'tile'),
        (1, 1, 'tile'),
    )
}
_SETTINGS.update(
    cross_2=(
        reverb_utils.ReverbTrajectorySequenceObserver,
        dict(sequence_length=2),
        dict(windows=windows_lib.Windows(2, end='cross')),
    ),
    cross_70_stride_3=(
        reverb_utils.ReverbTrajectorySequenceObserver,
        dict(sequence_length=70, stride_length=3),
        dict(windows=windows_lib.Windows(70, 3, 'cross')),
    ),
    episodes=(
        reverb_utils.ReverbAddEpisodeObserver,
        dict(max_sequence_length=1000, priority=0.5),
        dict(windows=None, max_sequence_length=1000, priority=0.5),
    ),
    episodes_bypassed=(
        reverb_utils.ReverbAddEpisodeObserver,
        dict(max_sequence_length=9, bypass_partial_episodes=True),
        dict(windows=None, max_sequence_length=9, bypass_longer_episodes=True),
    ),
)


def _rich_episode(rng, length):
  """An episode of columns of every kind."""
  step = np.arange(length)
  return {
      'observation': {
          'image': rng.integers(0, 256, (length, 6, 5, 3)).astype(np.uint8),
          'nested': (
              rng.normal(size=(length, 2)),
              {'none': np.zeros((length, 0))},
          ),
          'text': np.array([rng.bytes(int(n)) for n in step % 200], object),
          'half': rng.normal(size=length).astype(np.float16),
      },
      'action': {
          'is_open': rng.integers(0, 2, length).astype(bool),
          'gear': rng.integers(-128, 128, (length, 1)).astype(np.int8),
      },
      'reward': rng.normal(size=length).astype(np.float32),
      'discount': rng.uniform(size=length).astype(np.float32),
      'is_first': step == 0,
      'is_last': step == length - 1,
      'is_terminal': (step == length - 1) & bool(rng.integers(2)),
  }


def _policy_info(current, following):
  return {
      'next_gear': following['action']['gear'],
      'is_last': current['is_last'],
  }


def _own_info(current, following):
  """A policy_info that does not look beyond an episode, nor a shard."""
  del following
  return _policy_info(current, current)


def _rich_data(lengths=(1, 2, 5, 80, 1, 9, 150, 3)):
  rng = np.random.default_rng(7)
  return golden.stacked([_rich_episode(rng, length) for length in lengths])


def _image_data(lengths=(3, 1, 70, 2, 9, 130, 5)):
  rng = np.random.default_rng(11)
  episodes = [_rich_episode(rng, length) for length in lengths]
  for episode, length in zip(episodes, lengths):
    episode['observation'] = {
        'camera': rng.integers(0, 256, (length, 20, 20, 3)).astype(np.uint8),
        'joints': rng.normal(size=(length, 7)).astype(np.float32),
    }
  return golden.stacked(episodes)


class _Observers:
  """Hands every frame to several observers, so that data is read once."""

  def __init__(self, observers):
    self._observers = observers

  def __call__(self, frame):
    for observer in self._observers:
      observer(frame)

  def get_table_signature(self):
    return self._observers[0].get_table_signature()

  def flush(self):
    for observer in self._observers:
      observer.flush()

  def reset(self, write_cached_steps=True):
    for observer in self._observers:
      observer.reset(write_cached_steps)

  def close(self):
    for observer in self._observers:
      observer.close()


def _spec(data, info=_policy_info):
  return specs.create_trajectory_data_spec(data, info)


def _written_by_observers(data, names, info=_policy_info, **options):
  """Returns what the observers of several settings write, by their names."""
  with testing.reverb_server(
      _spec(data, info), max_size=_MAX_SIZE, tables=names
  ) as client:
    observers = _Observers(
        [
            _SETTINGS[name][0](client, name, **_SETTINGS[name][1])
            for name in names
        ]
    )
    options = options_lib.ConversionOptions(**options)
    push.push_rlds_to_reverb(data, observers, info, options=options)
    observers.close()
    return {name: testing.contents(client, name) for name in names}


def _tables(names):
  """Returns the `TableItems` of settings, each list for one pass."""
  tables = [items.TableItems(name, **_SETTINGS[name][2]) for name in names]
  passes = (
      [table for table in tables if table.crosses_episodes == crosses]
      for crosses in (False, True)
  )
  return [each for each in passes if each]


def _written_in_bulk(data, names, **options):
  """Returns what is written in bulk for several settings, by their names."""
  options = options_lib.ConversionOptions(
      policy_info_fn=_policy_info, **options
  )
  with testing.reverb_server(
      _spec(data), max_size=_MAX_SIZE, tables=names
  ) as client:
    for tables in _tables(names):
      insert.write_rlds_to_reverb(data, client, tables, options=options)
    return {name: testing.contents(client, name) for name in names}


@pytest.mark.long
class EqualityTest(parameterized.TestCase, tf.test.TestCase):

  def _assert_same(self, found, expected):
    self.assertEqual(found.keys(), expected.keys())
    for name, contents in expected.items():
      with self.subTest(name):
        self.assertNotEmpty(contents.items)
        self.assertLen(found[name].items, len(contents.items))
        # In the same order, too.
        for item, other in zip(found[name].items, contents.items):
          self.assertEqual(item, other)
        self.assertEqual(found[name][1:], contents[1:])

  def _path(self):
    return os.path.join(self.create_tempdir().full_path, 'checkpoint')

  def _checkpoint(self, data, tables, info=_policy_info):
    directory = self._path()
    signature = tensor_spec.add_outer_dim(_spec(data))
    write.write_reverb_checkpoint(
        data,
        directory,
        tables,
        options=options_lib.ConversionOptions(policy_info_fn=info),
        reverb_tables=[
            testing.make_table(
                signature=signature, max_size=_MAX_SIZE, name=table.table_name
            )
            for table in tables
        ],
    )
    return directory

  def _restored(self, directory):
    server = serve.restore_reverb_server(directory)
    client = server.localhost_client()
    try:
      return {
          name: testing.contents(client, name) for name in client.server_info()
      }
    finally:
      server.stop()

  def _all_restored(self, data, names):
    """Returns what checkpoints hold for several settings, by their names."""
    found = {}
    for tables in _tables(names):
      found.update(self._restored(self._checkpoint(data, tables)))
    return found

  @parameterized.parameters(
      (_rich_data, tuple(_SETTINGS)),
      (_image_data, tuple(_SETTINGS)),
      (
          lambda: _rich_data((3000, 1, 700)),
          ('length_3_stride_2_drop', 'length_80_stride_7_tile'),
      ),
  )
  def test_items_of_observers(self, make_data, names):
    data = make_data()
    expected = _written_by_observers(data, names)
    self._assert_same(_written_in_bulk(data, names), expected)
    self._assert_same(_written_in_bulk(data, names, chunk_length=4), expected)
    self._assert_same(self._all_restored(data, names), expected)

  def test_observers_that_are_pushed_to_in_bulk(self):
    data = _rich_data()
    names = tuple(_SETTINGS)
    # Without a policy_info, as it makes a pipeline slower to build.
    expected = _written_by_observers(data, names, None)
    with testing.reverb_server(
        _spec(data, None), max_size=_MAX_SIZE, tables=names
    ) as client:
      for name, (observer_class, settings, _) in _SETTINGS.items():
        observer = observer_class(client, name, **settings)
        self.assertEqual(push.push_rlds_to_reverb(data, observer), 251)
        observer.close()
      found = {name: testing.contents(client, name) for name in names}
    self._assert_same(found, expected)

  def test_episodes_as_tf_agents_takes_them(self):
    # An empty episode; a stream that begins at a MID step.
    names = (
        'length_2_stride_1_drop',
        'length_5_stride_1_tile',
        'cross_2',
        'episodes',
    )
    rng = np.random.default_rng(3)
    episodes = [_rich_episode(rng, length) for length in (3, 0, 5)]
    episodes[0]['is_first'][0] = False
    data = golden.stacked(episodes)
    self._assert_same(
        _written_in_bulk(data, names, rules=_STREAM),
        _written_by_observers(data, names, rules=_STREAM),
    )

  @parameterized.parameters(_rich_data, _image_data)
  def test_merged_shards(self, make_data):
    names = ('length_2_stride_1_drop', 'episodes')
    data = make_data()
    expected = _written_by_observers(data, names, _own_info)
    shards = [
        self._checkpoint(shard, *_tables(names), _own_info)
        for shard in (data.take(3), data.skip(3).take(2), data.skip(5))
    ]
    merged = self._path()
    counts = merge.merge_reverb_checkpoints(shards, merged)
    self.assertEqual(counts, {n: len(expected[n].items) for n in names})
    self._assert_same(self._restored(merged), expected)


if __name__ == '__main__':
  tf.test.main()
