"""Tests of the replay buffer without a server."""

import itertools
import os
import time

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay.local import appendable
from rlds2reverb.replay.local import dataset as dataset_lib
from rlds2reverb.replay.local import replay_buffer
from rlds2reverb.store import samplers
from rlds2reverb.store import sum_tree
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import sequences
from tests import golden
from tests.replay.local import replay_testing

_Buffer = replay_buffer.EpisodesReplayBuffer
_Appendable = appendable.AppendableReplayBuffer

_SAMPLERS = {
    'uniform': samplers.Uniform,
    'without_replacement': samplers.WithoutReplacement,
    'prioritized': sum_tree.Prioritized,
}


def _windows(length, stride=1, end='drop'):
  return None if length is None else windows_lib.Windows(length, stride, end)


def _keys(dataset, count):
  """Returns the keys of the items of some batches, in lists."""
  return [
      info.key[:, 0].tolist()
      for _, info in dataset.take(count).as_numpy_iterator()
  ]


class OnePassTest(parameterized.TestCase, tf.test.TestCase):

  # The length, the stride and the end of items. Others are in
  # tests/store/items_test.py.
  @parameterized.parameters(
      ((5, 3, 'pad'), 'nested'),
      ((4, 3, 'cross'), 'batched'),
      ((None, 1, 'drop'), 'stacked'),
  )
  @pytest.mark.few(1)
  def test_every_item_once(self, setting, form):
    episodes = golden.random_episodes(np.random.default_rng(3), 12)
    data = golden.FORMS_AND_BATCHES[form](episodes)
    buffer = _Buffer(data, _windows(*setting))
    expected = replay_testing.cut_items(episodes, *setting)
    self.assertEqual(buffer.num_items, len(expected))
    golden.assert_frames_equal(
        self, replay_testing.items_of_pass(buffer), expected
    )
    expected = golden.expected_frames(episodes)
    self.assertEqual(int(buffer.num_frames()), len(expected))
    actual = tf.nest.map_structure(lambda x: x[0].numpy(), buffer.gather_all())
    golden.assert_frames_equal(self, golden.rows_of(actual), expected)

  def test_sequences(self):
    episodes = golden.random_episodes(
        np.random.default_rng(5), 8, nested_fields=True
    )
    found = sequences.convert_rlds_to_sequences(
        golden.stacked(episodes), windows_lib.Windows(4, 3, 'tile')
    )
    buffer = _Buffer(found)
    self.assertEqual(buffer.store.windows.length, 4)
    golden.assert_frames_equal(
        self,
        replay_testing.items_of_pass(buffer),
        replay_testing.cut_items(episodes, 4, 3, 'tile'),
    )
    for invalid in windows_lib.Windows(3), windows_lib.Windows(2, end='pad'):
      with self.assertRaisesRegex(ValueError, 'may only have a priority'):
        _Buffer(found, invalid)
    with self.assertRaisesRegex(ValueError, 'No frames can be appended'):
      _Appendable(found, 20)


class CallModesTest(parameterized.TestCase, tf.test.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    episodes = golden.random_episodes(
        np.random.default_rng(3), 6, nested_fields=True
    )
    cls.store = _Buffer(
        golden.stacked(episodes), priority=lambda f: 1.0 + f.reward[0] ** 2
    ).store

  def batches(self, sampler, batch_size):
    """Yields replay buffers, with iterators of all kinds over one stream."""
    kinds = 'batches', 'NumPy', 'eager', 'in a function', 'get_next', 'argument'
    # A pipeline may draw the next batch before an update.
    kinds += () if sampler == 'prioritized' else ('pipeline',)
    for kind in kinds:
      buffer = _Buffer(self.store, sampler=_SAMPLERS[sampler](), seed=3)
      if kind == 'batches':
        yield buffer, buffer.batches(batch_size).iterate()
      elif kind == 'get_next':  # It may begin in a function.
        take = lambda buffer=buffer: buffer.get_next(batch_size)
        in_graph = tf.function(take)
        ways = itertools.cycle([in_graph, in_graph, take])
        yield buffer, (way() for way in ways)
      elif kind == 'NumPy':
        yield buffer, buffer.as_dataset(batch_size).as_numpy_iterator()
      elif kind == 'pipeline':
        yield buffer, iter(buffer.as_dataset(batch_size).map(lambda *x: x))
      elif kind == 'argument':
        iterator = iter(buffer.as_dataset(batch_size))
        ways = itertools.cycle([next, tf.function(lambda i: next(i)), next])
        yield buffer, (way(iterator) for way in ways)
      else:
        iterator = iter(buffer.as_dataset(batch_size))
        take = lambda iterator=iterator: next(iterator)
        take = take if kind == 'eager' else tf.function(take)
        yield buffer, map(lambda _, take=take: take(), itertools.count())

  @parameterized.parameters(
      ('uniform', None), ('without_replacement', 4), ('prioritized', 4)
  )
  @pytest.mark.few(1)
  def test_all_call_modes_give_the_same_batches(self, sampler, batch_size):
    expected = None
    for buffer, batches in self.batches(sampler, batch_size):
      actual = []
      for frames, info in itertools.islice(batches, 20):
        actual.append(tf.nest.map_structure(np.asarray, (frames, info)))
        if sampler == 'prioritized':
          errors = np.asarray(info.key)[:, 0] % 7 + len(actual) % 3
          buffer.update_priorities(info.key, errors)
      expected = expected or actual
      golden.assert_frames_equal(self, actual, expected)

  def test_get_next_continues_at_a_restored_position(self):
    buffer = _Buffer(self.store, seed=3)
    take = lambda: buffer.get_next(2)[1].key[:, 0].numpy().tolist()
    checkpoint = tf.train.Checkpoint(buffer=buffer)
    path = os.path.join(self.create_tempdir().full_path, 'checkpoint')
    expected = [take() for _ in range(3)]
    checkpoint.write(path)
    expected += [take() for _ in range(3)]
    checkpoint.read(path).assert_consumed()
    self.assertEqual([take() for _ in range(3)], expected[3:])
    buffer.seek(1)
    self.assertEqual([take() for _ in range(5)], expected[1:])

  def test_order_in_a_function(self):
    iterator = iter(_Buffer(self.store, seed=3).as_dataset(2))
    take = lambda: next(iterator)[1].key[:, 0]

    @tf.function
    def take_nine():
      keys = tf.TensorArray(tf.uint64, 9, element_shape=[2])
      keys = keys.write(0, take())
      for k in tf.range(1, 4):
        keys = keys.write(k, take())
      # Nothing but their order in the program orders these.
      last = [take() for _ in range(4)]
      for k in tf.range(4, 5):
        keys = keys.write(k, take())
      for k, key in enumerate(last):
        keys = keys.write(5 + k, key)
      return keys.stack()

    order = [0, 1, 2, 3, 8, 4, 5, 6, 7]
    expected = _keys(_Buffer(self.store, seed=3).as_dataset(2), 45)
    found = []
    for _ in range(4):
      found += tf.gather(take_nine(), np.argsort(order)).numpy().tolist()
      found.append(take().numpy().tolist())
    self.assertEqual(found, expected[:40])

  def test_a_changed_batch_changes_no_other(self):
    dataset = _Buffer(self.store).as_dataset(4)
    expected = _keys(dataset, 9)
    actual = []
    batches = _Buffer(self.store).batches(4)
    for frames, info in itertools.islice(batches, 9):
      actual.append(info.key[:, 0].tolist())
      for leaf in tf.nest.flatten((frames, info)):
        leaf[...] = leaf.flat[0]
    self.assertEqual(actual, expected)

  def test_a_position_of_other_batches_is_refused(self):
    path = os.path.join(self.create_tempdir().full_path, 'checkpoint')
    [episode] = replay_testing.episodes_of([5])
    other = {**episode, 'reward': episode['reward'] + 1}
    make = lambda data, **kwargs: tf.train.Checkpoint(
        buffer=_Buffer(golden.stacked([data]), **kwargs)
    )
    make(episode).write(path)
    for data, kwargs, name in (
        (episode, dict(seed=1), 'seed'),
        (episode, dict(sampler=samplers.Weighted()), 'sampler'),
        (episode, dict(process=(0, 2)), 'worker'),
        (other, {}, 'data'),
    ):
      with self.assertRaisesRegex(ValueError, f'other batches, with {name}'):
        make(data, **kwargs).read(path)


class ResumedTest(parameterized.TestCase, tf.test.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.store = _Buffer(
        golden.stacked(replay_testing.episodes_of([9, 5, 13])),
        priority=lambda frames: 1.0 + frames.reward[0],
    ).store

  def make(self, sampler):
    return _Buffer(self.store, sampler=_SAMPLERS[sampler](), seed=5)

  def train(self, buffer, batch_size, count, step=0):
    """Takes batches, and updates priorities; returns the keys."""
    found = []
    for _, info in buffer.as_dataset(batch_size).take(count):
      found.append(info.key[:, 0].numpy().tolist())
      if isinstance(buffer._sampler, sum_tree.Prioritized):
        number = step + len(found)
        errors = (tf.cast(info.key[:, 0], tf.float32) * 7 + number) % 5 + 1
        buffer.update_priorities(info.key, errors)
    return found

  # 24 items are a multiple of batches of 4, which are drawn in groups of 16,
  # but not of batches of 5.
  @parameterized.parameters(('prioritized', 4), ('without_replacement', 5))
  @pytest.mark.few(1)
  def test_training_resumes_at_any_position(self, sampler, batch_size):
    expected = self.train(self.make(sampler), batch_size, 26)
    path = os.path.join(self.create_tempdir().full_path, 'checkpoint')
    for position in 1, 16, 23:
      first, second = self.make(sampler), self.make(sampler)
      found = self.train(first, batch_size, position)
      tf.train.Checkpoint(buffer=first).write(path)
      tf.train.Checkpoint(buffer=second).read(path).assert_consumed()
      found += self.train(second, batch_size, 3, position)
      self.assertEqual(found, expected[: position + 3], position)

  def test_several_data_sets_and_iterators_resume(self):
    counts = 3, 5, 7, 1
    path = os.path.join(self.create_tempdir().full_path, 'checkpoint')

    def take(buffer, counts):
      one, other = buffer.as_dataset(4), buffer.as_dataset(4)
      iterators = iter(one), one.as_numpy_iterator(), iter(other), iter(other)
      return [
          [np.asarray(next(each)[1].key)[:, 0].tolist() for _ in range(count)]
          for each, count in zip(iterators, counts)
      ]

    expected = take(self.make('uniform'), [12] * 4)
    self.assertEqual(expected[0], _keys(self.make('uniform').as_dataset(4), 12))
    # They draw independently.
    self.assertLen({str(keys) for each in expected for keys in each}, 48)
    first, second = self.make('uniform'), self.make('uniform')
    take(first, counts)
    tf.train.Checkpoint(buffer=first).write(path)
    tf.train.Checkpoint(buffer=second).read(path)
    self.assertEqual(
        take(second, [4] * 4),
        [keys[n : n + 4] for keys, n in zip(expected, counts)],
    )

  @parameterized.parameters(
      lambda data: data.as_numpy_iterator(),
      lambda data: iter(data),
      lambda data: iter(data.map(lambda *batch: batch)),
  )
  def test_iterators_from_before_a_restore_do_not_count(self, make_iterator):
    path = os.path.join(self.create_tempdir().full_path, 'checkpoint')
    buffer = self.make('uniform')
    dataset = buffer.as_dataset(4)
    expected = _keys(self.make('uniform').as_dataset(4), 9)
    iterator = make_iterator(dataset)
    take = lambda iterator: np.asarray(next(iterator)[1].key)[:, 0].tolist()
    found = [take(iterator) for _ in range(3)]
    checkpoint = tf.train.Checkpoint(buffer=buffer)
    checkpoint.write(path)
    found += [take(iterator) for _ in range(2)]
    checkpoint.read(path)
    found += [take(iterator) for _ in range(2)]
    self.assertEqual(found, expected[:7])
    restored = make_iterator(dataset)
    for position, num_batches in (3, 0), (5, 2):
      self.assertEqual(
          [take(restored) for _ in range(num_batches)], expected[3:position]
      )
      take(iterator)
      checkpoint.write(path)
      other = self.make('uniform')
      tf.train.Checkpoint(buffer=other).read(path)
      found = _keys(other.as_dataset(4), 2)
      self.assertEqual(found, expected[position : position + 2])

  def test_a_damaged_position_in_a_checkpoint(self):
    state = dataset_lib.SamplingState({})
    deep = '[' * 5000 + ']' * 5000
    positions = (f'{{"positions": {x}}}' for x in ('7', '[7]', '[["x"]]', deep))
    for text in '{', '[]', '{}', deep, *positions:
      with self.assertRaisesRegex(ValueError, 'sampling position .* damaged'):
        state.deserialize(text)


class DirectoryTest(parameterized.TestCase, tf.test.TestCase):

  def test_batches_from_directory_equal_those_from_memory(self):
    # A pipeline without Python, so that it is known whether data is the same.
    [episode] = replay_testing.episodes_of([9])
    data = tf.data.Dataset.from_tensors({'steps': episode}).repeat(3)
    folder = os.path.join(self.create_tempdir().full_path, 'frames')
    kwargs = dict(sampler=samplers.WithoutReplacement(), seed=3)
    expected = list(
        _Buffer(data, **kwargs).as_dataset(4).take(9).as_numpy_iterator()
    )
    written = set()
    for rlds_data, directory in (data, folder), (data, folder), (folder, None):
      buffer = _Buffer(rlds_data, directory=directory, **kwargs)
      actual = list(buffer.as_dataset(4).take(9).as_numpy_iterator())
      golden.assert_frames_equal(self, actual, expected)
      with os.scandir(folder) as entries:
        written |= {(entry.name, entry.stat().st_mtime_ns) for entry in entries}
    # The frames were prepared once, and there are no other files.
    self.assertLen(written, len(os.listdir(folder)))
    self.assertEqual(os.listdir(os.path.dirname(folder)), ['frames'])

  def test_frames_that_other_replay_buffers_share(self):
    store = _Buffer(golden.stacked(replay_testing.episodes_of([5, 9, 3]))).store
    # The returns: 0 + 10 + 20 + 30; 1000 + ...; the most.
    best = _Buffer(store.top_episodes(1))
    self.assertEqual(best.num_items, 8)
    frames, _ = next(best.as_dataset(20).as_numpy_iterator())
    self.assertBetween(frames.observation[..., 0].min(), 100, 108)
    self.assertBetween(frames.observation[..., 0].max(), 100, 108)


class UpdatesTest(tf.test.TestCase):

  def make(self):
    return _Buffer(
        golden.stacked(replay_testing.episodes_of([9])),
        sampler=sum_tree.Prioritized(alpha=1.0),
    )

  def test_updates_apply_to_the_next_batch(self):
    buffer = self.make()
    keys = tf.cast(tf.range(8), tf.uint64)
    batches = iter(buffer.as_dataset(50))
    next(batches)
    for item in 3, 7, 0:
      priorities = tf.one_hot(item, 8) * 2 + tf.one_hot((item + 1) % 8, 8)
      buffer.update_priorities(keys, priorities)
      # The very next batch.
      _, info = next(batches)
      self.assertEqual(
          set(info.key.numpy().ravel().tolist()), {item, (item + 1) % 8}
      )
      self.assertAllClose(info.probability, info.priority / 3)

  def test_update_before_a_loop_in_a_graph_applies_to_the_loop(self):
    buffer = self.make()
    keys = tf.cast(tf.range(8), tf.uint64)
    batches = iter(buffer.as_dataset(50))

    def slow_priorities(item):
      time.sleep(0.2)
      return np.eye(8)[item]

    @tf.function
    def train(item):
      priorities = tf.numpy_function(slow_priorities, [item], tf.float64)
      buffer.update_priorities(keys, priorities)
      drawn = tf.TensorArray(tf.uint64, 2)
      for index in tf.range(2):
        _, info = next(batches)
        drawn = drawn.write(index, info.key[:, 0])
      return drawn.concat()

    for item in 3, 7, 0:
      self.assertEqual(set(train(item).numpy().tolist()), {item})


class BadInputTest(parameterized.TestCase, tf.test.TestCase):

  def test_data_without_suitable_episodes_raises(self):
    [broken, *episodes] = replay_testing.episodes_of([3, 3, 4, 2])
    broken['is_last'][:] = False
    rules = options_lib.ConversionRules(invalid_episodes='skip')
    options = options_lib.ConversionOptions(rules)
    make_ring = lambda data, *args, **kw: _Appendable(data, 9, *args, **kw)
    data = golden.stacked(episodes)
    for make in _Buffer, make_ring:
      for invalid in golden.stacked([broken]), data.take(0):
        with self.assertRaisesRegex(ValueError, 'no frames in the data set'):
          make(invalid, options=options)
      with self.assertRaisesRegex(ValueError, 'than 5 frames.*longest has 4'):
        make(data, windows_lib.Windows(5))
    pads = windows_lib.Windows(5, end='pad')
    self.assertEqual(_Buffer(data, pads).num_items, 3)
    spec = golden.stacked_spec(episodes[0])
    spec['observation'] = tf.TensorSpec([None, None], tf.float32)
    with self.assertRaisesRegex(ValueError, 'observation.*fixed'):
      _Buffer(golden.stacked(episodes, spec))
    with self.assertRaisesRegex(ValueError, 'data set, or the spec'):
      _Appendable('/tmp/none', capacity=9)
    with self.assertRaisesRegex(FileNotFoundError, '/tmp/none'):
      _Buffer('/tmp/none')

  def test_invalid_arguments_raise(self):
    data = golden.stacked(replay_testing.episodes_of([3, 4]))
    cross = windows_lib.Windows(2, end='cross')
    by_episode = samplers.Weighted(by='episode')
    for kwargs, message in (
        (dict(seed=-1), 'seed.*-1'),
        (dict(seed=1.5), 'seed.*1.5'),
        (dict(process=(0, 0)), r'process.*\(0, 0\)'),
        (dict(process=(2, 2)), r'process.*\(2, 2\)'),
        (dict(process=(-1, 1)), r'process.*\(-1, 1\)'),
        (dict(windows=cross, sampler=by_episode), 'cross episodes'),
        (dict(windows=0), 'must be Windows'),
        (dict(capacity=0), 'capacity'),
        (dict(capacity=1), 'at most 1, the capacity'),
        (dict(windows=None, capacity=5), 'must be Windows'),
        (dict(capacity=5, sampler=samplers.WithoutReplacement()), 'Uniform'),
    ):
      make = _Appendable if 'capacity' in kwargs else _Buffer
      with self.assertRaisesRegex(ValueError, message):
        make(data, **kwargs)

  def test_batches(self):
    data = golden.stacked(replay_testing.episodes_of([3, 4]))
    buffer, whole = _Buffer(data), _Buffer(data, None)
    drop_last = _Buffer(data, sampler=samplers.WithoutReplacement(True))

    def fail(frames):
      raise TypeError('it is refused')

    for refused, message, args in (
        (buffer, 'num_steps is 3.*items have 2', (4, 3)),
        (buffer, 'sample_batch_size', (0,)),
        (whole, 'padded_batch', (4,)),
        (whole, 'all frames of an episode', (None, 3)),
        (buffer, 'it is refused', (4, None, None, fail)),
    ):
      for single in False, True:
        with self.assertRaisesRegex((ValueError, TypeError), message):
          refused.as_dataset(*args, single_deterministic_pass=single)
    with self.assertRaisesRegex(ValueError, '6 items.*5 items'):
      drop_last.as_dataset(6)
    # A refused call does not count, so the next data set is the first.
    for refused in (buffer, drop_last):
      same = _Buffer(data, sampler=refused._sampler)
      self.assertEqual(
          _keys(refused.as_dataset(4), 2), _keys(same.as_dataset(4), 2)
      )

  def test_a_sampler_of_two_replay_buffers(self):
    store = _Buffer(golden.stacked(replay_testing.episodes_of([3, 4]))).store
    sampler = sum_tree.Prioritized()
    _Buffer(store, sampler=sampler)
    with self.assertRaisesRegex(ValueError, 'one replay buffer'):
      _Buffer(store, sampler=sampler)


if __name__ == '__main__':
  tf.test.main()
