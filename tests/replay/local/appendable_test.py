"""Frames that are appended, compared with lists of Python."""

import contextlib
import functools
import os

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.drivers import dynamic_step_driver
from tf_agents.environments import batched_py_environment
from tf_agents.environments import parallel_py_environment
from tf_agents.environments import py_environment
from tf_agents.environments import tf_py_environment
from tf_agents.policies import random_tf_policy
from tf_agents.replay_buffers import tf_uniform_replay_buffer
from tf_agents.specs import array_spec
from tf_agents.system import system_multiprocessing
from tf_agents.trajectories import time_step as ts

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay.local import appendable
from rlds2reverb.replay.local import replay_buffer
from rlds2reverb.replay.local import ring as ring_lib
from rlds2reverb.store import samplers
from rlds2reverb.store import sum_tree
from tests import golden
from tests.replay.local import replay_testing

_Appendable = appendable.AppendableReplayBuffer
_SETTINGS = (
    (1, 1, 'drop'),
    (2, 1, 'drop'),
    (3, 2, 'drop'),
    (4, 3, 'cross'),
)


def _ring(capacity, length=2, stride=1, end='drop', batch_size=1):
  windows = windows_lib.Windows(length, stride, end)
  return ring_lib.FrameRing(
      replay_testing.frame_spec(), windows, capacity, batch_size
  )


def _content(ring):
  """Returns the observations of the items."""
  items = ring.first + np.arange(ring.num_items)
  leaves = ring.read(ring.rows, items)
  found = tf.nest.pack_sequence_as(replay_testing.frame_spec(), leaves)
  return found.observation.tolist()


def _shown(buffer):
  return [
      item.observation[:, 0].tolist()
      for item in replay_testing.items_of_pass(buffer)
  ]


def _append(buffer, frames, add=None):
  """Appends frames, a `Trajectory` of arrays `[T, ...]`, one by one."""
  add = add or buffer.add_batch
  for t in range(len(frames.step_type)):
    add(tf.nest.map_structure(lambda leaf: leaf[t : t + 1], frames))


def _expected(count, lasts, capacity, length, stride, end):
  """Returns the content of a ring after frames 0 to `count`."""
  ends = [last + 1 for last in lasts if last < count]
  lengths = np.diff([0, *ends, count])
  items = replay_testing.cut_rows(lengths, length, stride, end)
  return [rows for rows in items if rows[0] >= count - capacity]


class FrameRingTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.product(setting=_SETTINGS, capacity=(5, 17, 1000))
  def test_ring_equals_lists(self, setting, capacity):
    rng = np.random.default_rng(capacity)
    ring = _ring(capacity, *setting)
    lasts = np.cumsum(rng.integers(1, 9, 1500)).tolist()
    begin = 0
    for size in (*rng.choice([1, 1, 1, 2, 7, 20], 30).tolist(), 5000, 2, 3):
      end = begin + size
      ring.append(*replay_testing.leaves(begin, end, lasts))
      expected = _expected(end, lasts, capacity, *setting)
      self.assertEqual(ring.num_items, len(expected))
      self.assertEqual(ring.num_frames, min(end, capacity))
      self.assertEqual(_content(ring), expected)
      actual = ring.rows.gather(ring.all_rows(), 1)
      actual = tf.nest.pack_sequence_as(replay_testing.frame_spec(), actual)
      self.assertEqual(
          actual.observation[:, 0].tolist(),
          [*range(max(end - capacity, 0), end)],
      )
      if rng.uniform() < 0.1:  # After restoring, an open episode is separate.
        restored = _ring(capacity, *setting)
        restored.append(*replay_testing.leaves(100, 140, [120]))
        restored.deserialize(ring.serialize())
        self.assertEqual(_content(restored), expected)
      begin = end

  @parameterized.product(setting=_SETTINGS, capacity=(5, 17, 1000))
  def test_ring_of_several_environments_equals_lists(self, setting, capacity):
    rng = np.random.default_rng(capacity)
    num_environments = 3
    ring = _ring(capacity, *setting, batch_size=num_environments)
    # The first number of each environment, and where its episodes end.
    firsts = (0, 100_000, 200_000)
    lasts = [
        (first + np.cumsum(rng.integers(1, 9, 1500))).tolist()
        for first in firsts
    ]
    begin = 0
    for size in (*rng.choice([1, 1, 1, 2, 7, 20], 30).tolist(), 3000, 2, 3):
      end = begin + size
      frames = [
          replay_testing.leaves(first + begin, first + end, lasts[e])
          for e, first in enumerate(firsts)
      ]
      ring.append(*[np.stack(each, 1).ravel() for each in zip(*frames)])
      items = []
      for e, first in enumerate(firsts):
        ends = [last - first for last in lasts[e]]
        for rows in _expected(end, ends, capacity, *setting):
          items.append((rows[0], e, [first + row for row in rows]))
      expected = [rows for _, _, rows in sorted(items)]
      self.assertEqual(_content(ring), expected)
      self.assertEqual(ring.num_frames, num_environments * min(end, capacity))
      actual = ring.rows.gather(ring.all_rows(), 1)
      actual = tf.nest.pack_sequence_as(replay_testing.frame_spec(), actual)
      oldest = max(end - capacity, 0)
      self.assertEqual(
          actual.observation[:, 0].tolist(),
          [first + row for first in firsts for row in range(oldest, end)],
      )
      if rng.uniform() < 0.1:  # After restoring, open episodes are separate.
        restored = _ring(capacity, *setting, batch_size=num_environments)
        restored.append(*replay_testing.leaves(100, 160, [120]))
        restored.deserialize(ring.serialize())
        self.assertEqual(_content(restored), expected)
        if setting[0] > 1:  # One frame more of each, which makes no item.
          restored.append(*replay_testing.leaves(300_001, 300_004))
          self.assertLess(max(sum(_content(restored), [0])), 300_000)
      begin = end

  def test_an_episode_begins_with_a_first_frame(self):
    ring = _ring(10)
    frames = replay_testing.make_frames(0, 7)
    step_type = np.array([0, 1, 1, 0, 1, 0, 1], np.int32)
    ring.append(*tf.nest.flatten(frames._replace(step_type=step_type)))
    self.assertEqual(_content(ring), [[0, 1], [1, 2], [3, 4], [5, 6]])

  def test_incompatible_capacity_and_state_raise(self):
    with self.assertRaisesRegex(
        ValueError,
        'batch_size=3, .* has 2 environments. Make it with batch_size=3',
    ):
      _ring(12, batch_size=2).deserialize(_ring(12, batch_size=3).serialize())
    with self.assertRaisesRegex(ValueError, 'at most 5, .*each of 2.*is 6'):
      _ring(5, 6, batch_size=2)
    with self.assertRaisesRegex(ValueError, '12 frames.*this one has 13'):
      _ring(13).deserialize(_ring(12).serialize())
    with self.assertRaisesRegex(ValueError, 'at most 5.*is 6'):
      _ring(5, 6)
    with self.assertRaisesRegex(ValueError, '\'tile\': .* use "drop"'):
      _ring(5, 2, end='tile')
    spec = replay_testing.frame_spec()._replace(
        observation=tf.TensorSpec([], tf.string)
    )
    with self.assertRaisesRegex(ValueError, 'strings'):
      ring_lib.FrameRing(spec, windows_lib.Windows(2), 5)


class PrioritizedRingTest(parameterized.TestCase, tf.test.TestCase):

  def make(self, capacity):
    ring, sampler = _ring(capacity, 1), sum_tree.Prioritized(1.0)
    sampler.attach(ring, np.zeros(ring.num_slots))
    ring.listener = sampler
    return ring, sampler, sampler.bind(ring, samplers.Shard(0))

  def check(self, draw, probabilities):
    """Checks the probability of each item, by its number."""
    drawn = draw(0, 4000)
    actual = dict(zip(drawn.items.tolist(), drawn.probability.tolist()))
    self.assertEqual(set(actual), set(probabilities))
    for item, probability in probabilities.items():
      self.assertAlmostEqual(actual[item], probability)

  def update(self, sampler, items, priorities):
    sampler.update(np.array(items), np.array(priorities, np.float64))

  def test_a_new_item_has_the_highest_priority_so_far(self):
    ring, sampler, draw = self.make(4)
    with self.assertRaisesRegex(ValueError, 'nothing to sample yet'):
      draw(0, 2)
    ring.append(*replay_testing.leaves(0, 2))
    self.check(draw, {0: 0.5, 1: 0.5})
    self.update(sampler, [0], [3])
    ring.append(*replay_testing.leaves(2, 3))
    self.check(draw, {0: 3 / 7, 1: 1 / 7, 2: 3 / 7})
    # The maximum so far, not the maximum of the current items.
    self.update(sampler, [0, 2], [1, 1])
    ring.append(*replay_testing.leaves(3, 4))
    self.check(draw, {0: 1 / 6, 1: 1 / 6, 2: 1 / 6, 3: 1 / 2})
    # The oldest item is evicted; updates of evicted items are ignored.
    ring.append(*replay_testing.leaves(4, 5))
    self.update(sampler, [0], [100])
    self.check(draw, {1: 1 / 8, 2: 1 / 8, 3: 3 / 8, 4: 3 / 8})
    ring.append(*replay_testing.leaves(5, 6))
    self.check(draw, {2: 1 / 10, 3: 3 / 10, 4: 3 / 10, 5: 3 / 10})
    self.assertEqual(sampler.min_priority(), 1)
    ring.clear()
    with self.assertRaisesRegex(ValueError, 'nothing to sample yet'):
      draw(0, 2)


class AppendedTest(parameterized.TestCase, tf.test.TestCase):

  def frames(self, lengths):
    return replay_testing.cut_items(
        replay_testing.episodes_of(lengths), None, 1
    )

  def make(self, **kwargs):
    spec = replay_buffer.EpisodesReplayBuffer(
        golden.stacked(replay_testing.episodes_of([2]))
    ).data_spec
    return _Appendable(spec, **kwargs)

  def test_recorded_episodes_precede_appended_frames(self):
    data = golden.stacked(replay_testing.episodes_of([3, 2]))
    buffer = _Appendable(data, capacity=6)
    self.assertEqual(_shown(buffer), [[0, 1], [1, 2], [100, 101]])
    [_, _, own] = self.frames([3, 2, 4])

    @tf.function
    def add(frame):  # As a driver does.
      buffer.add_batch(frame)

    _append(buffer, tf.nest.map_structure(tf.constant, own), add)
    self.assertEqual(int(buffer.num_frames()), 6)
    self.assertEqual(
        _shown(buffer), [[100, 101], [200, 201], [201, 202], [202, 203]]
    )
    self.assertEqual(
        buffer.gather_all().observation[0, :, 0].numpy().tolist(),
        [100, 101, 200, 201, 202, 203],
    )
    buffer.clear()
    self.assertEqual((int(buffer.num_frames()), buffer.num_items), (0, 0))
    _append(buffer, own)
    self.assertEqual(_shown(buffer), [[200, 201], [201, 202], [202, 203]])

  def test_buffer_without_capacity_refuses_frames(self):
    buffer = replay_buffer.EpisodesReplayBuffer(
        golden.stacked(replay_testing.episodes_of([3]))
    )
    [frames] = self.frames([1])
    for call in lambda: buffer.add_batch(frames), buffer.clear:
      with self.assertRaisesRegex(ValueError, 'AppendableReplayBuffer'):
        call()

  def test_frames_of_other_specs_raise(self):
    buffer = self.make(capacity=9)
    [frames] = self.frames([1])
    for invalid in (
        frames._replace(reward=frames.reward.astype(np.float64)),
        frames._replace(reward=frames.reward[:, np.newaxis]),
        frames._replace(observation=frames.observation[:, :1]),
        tf.nest.map_structure(lambda leaf: np.repeat(leaf, 2, 0), frames),
        tf.nest.map_structure(lambda leaf: leaf[0], frames),
        frames._replace(reward=1.0),
    ):
      with self.assertRaisesRegex(ValueError, 'appended one by one'):
        buffer.add_batch(invalid)
    self.assertEqual(int(buffer.num_frames()), 0)
    # An error names the environment, and how many there must be.
    buffer = self.make(capacity=9, batch_size=3)
    three = tf.nest.map_structure(lambda leaf: np.repeat(leaf, 3, 0), frames)
    step_type = np.array([0, 1, 7], np.int32)
    with self.assertRaisesRegex(ValueError, 'environment 2 is 7.'):
      buffer.add_batch(three._replace(step_type=step_type))
    two = tf.nest.map_structure(lambda leaf: leaf[:2], three)
    with self.assertRaisesRegex(
        ValueError, 'of 3 environments: step_type .*with batch_size=2'
    ):
      buffer.add_batch(two)
    unknown = tf.nest.map_structure(
        lambda leaf: tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype), two
    )

    @tf.function(input_signature=[unknown])
    def add(frames):
      buffer.add_batch(frames)

    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, 'of 3 environments: step_type'
    ):
      add(two)
    self.assertEqual(int(buffer.num_frames()), 0)

  def test_recorded_episodes_of_several_environments(self):
    data = golden.stacked(replay_testing.episodes_of([3, 2, 4, 1, 2]))
    buffer = _Appendable(data, capacity=10, batch_size=2)
    # Environment 0 has the episodes of 3, 1 and 2 frames, and environment 1 the
    # episodes of 2 and 4 frames. Each keeps its last 5 frames.
    self.assertEqual(
        buffer.gather_all().observation[:, :, 0].numpy().tolist(),
        [[1, 2, 300, 400, 401], [101, 200, 201, 202, 203]],
    )
    self.assertEqual(
        _shown(buffer),
        [[1, 2], [200, 201], [201, 202], [400, 401], [202, 203]],
    )
    # The frames of the agent make room for themselves.
    own = self.frames([1, 3])[1]
    frame = tf.nest.map_structure(lambda leaf: np.repeat(leaf[:1], 2, 0), own)
    buffer.add_batch(frame)
    self.assertEqual(
        _shown(buffer), [[200, 201], [201, 202], [400, 401], [202, 203]]
    )

  def test_recorded_episodes_of_unequal_environments(self):
    data = golden.stacked(replay_testing.episodes_of([5, 2]))
    buffer = _Appendable(data, capacity=100, batch_size=3)
    self.assertEqual(int(buffer.num_frames()), 7)
    self.assertCountEqual(
        _shown(buffer), [[0, 1], [1, 2], [2, 3], [3, 4], [100, 101]]
    )
    with self.assertRaisesRegex(
        ValueError, 'environment 2 has 0 and environment 0 has 5'
    ):
      buffer.gather_all()
    restored = _Appendable(data, capacity=100, batch_size=3)
    restored.clear()
    restored._items.deserialize(buffer._items.serialize())
    self.assertEqual(_shown(restored), _shown(buffer))
    self.assertEqual(int(restored.num_frames()), 7)

  def test_checkpoint(self):
    kwargs = dict(capacity=12, seed=2)
    path = os.path.join(self.create_tempdir().full_path, 'checkpoint')
    buffer = self.make(sampler=sum_tree.Prioritized(), **kwargs)
    for frames in self.frames([5, 4, 7]):
      _append(buffer, frames)
    dataset = buffer.as_dataset(6)
    for _, info in dataset.take(3):
      priorities = tf.cast(info.key[:, 0] % 4 + 1, tf.float32)
      buffer.update_priorities(info.key, priorities)
    tf.train.Checkpoint(buffer=buffer).write(path)
    restored = self.make(sampler=sum_tree.Prioritized(), **kwargs)
    tf.train.Checkpoint(buffer=restored).read(path)
    self.assertEqual(_shown(restored), _shown(buffer))
    expected = list(dataset.take(4).as_numpy_iterator())
    actual = list(restored.as_dataset(6).take(4).as_numpy_iterator())
    golden.assert_frames_equal(self, actual, expected)
    with self.assertRaisesRegex(
        ValueError, 'batch_size=1, .* has 2 environments'
    ):
      other = self.make(sampler=sum_tree.Prioritized(), batch_size=2, **kwargs)
      tf.train.Checkpoint(buffer=other).read(path)

  def test_a_pass_that_frames_are_appended_during(self):
    buffer = self.make(capacity=6, windows=windows_lib.Windows(1))
    for frames in self.frames([6]):
      _append(buffer, frames)
    batches = iter(buffer.as_dataset(2, single_deterministic_pass=True))
    next(batches)
    for frames in self.frames([1, 4])[1:]:
      _append(buffer, frames)
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, 'appended or removed during a pass'
    ):
      next(batches)
    self.assertEqual(_shown(buffer), [[4], [5], [100], [101], [102], [103]])


class _Counting(py_environment.PyEnvironment):
  """An environment that counts, with episodes of random lengths.

  An observation is the number of the environment, of the episode, and of the
  step.
  """

  def __init__(self, number: int):
    super().__init__(handle_auto_reset=True)
    self._number, self._episode, self._step_number = number, -1, 0
    self._rng = np.random.default_rng(number)

  def observation_spec(self):
    return array_spec.ArraySpec([3], np.int32)

  def action_spec(self):
    return array_spec.BoundedArraySpec([], np.int32, 0, 1)

  def _observe(self):
    values = self._number, self._episode, self._step_number
    return np.array(values, np.int32)

  def _reset(self):
    self._episode, self._step_number = self._episode + 1, 0
    self._length = self._rng.integers(1, 7)
    return ts.restart(self._observe())

  def _step(self, action):
    self._step_number += 1
    reward = float(self._step_number)
    if self._step_number < self._length:
      return ts.transition(self._observe(), reward)
    return ts.termination(self._observe(), reward)


@pytest.mark.long
class DriverTest(parameterized.TestCase, tf.test.TestCase):
  """Frames of a TF-Agents driver, compared with its own replay buffer."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    # Another test in this process may have called it.
    with contextlib.suppress(ValueError):
      system_multiprocessing.enable_interactive_mode()

  @parameterized.parameters(
      (batched_py_environment.BatchedPyEnvironment, 4, 60, 13),
      (batched_py_environment.BatchedPyEnvironment, 1, 40, 60),
      (parallel_py_environment.ParallelPyEnvironment, 3, 45, 20),
  )
  def test_driver(self, make_parallel, num_environments, num_steps, max_length):
    constructors = [
        functools.partial(_Counting, number)
        for number in range(num_environments)
    ]
    if make_parallel is batched_py_environment.BatchedPyEnvironment:
      constructors = [make() for make in constructors]
    parallel = make_parallel(constructors)
    self.addCleanup(parallel.close)
    environment = tf_py_environment.TFPyEnvironment(parallel)
    tf.random.set_seed(num_environments)
    policy = random_tf_policy.RandomTFPolicy(
        environment.time_step_spec(), environment.action_spec()
    )
    spec = policy.trajectory_spec
    uniform = tf_uniform_replay_buffer.TFUniformReplayBuffer(
        spec, num_environments, max_length, dataset_window_shift=1
    )
    settings = [(1, 'drop'), (2, 'drop'), (2, 'cross'), (5, 'drop')]
    buffers = [
        _Appendable(
            spec,
            max_length * num_environments,
            windows_lib.Windows(length, end=end),
            batch_size=num_environments,
        )
        for length, end in settings
    ]
    frames = []
    record = lambda *leaves: frames.append([np.array(leaf) for leaf in leaves])
    observers = [
        *[buffer.add_batch for buffer in (uniform, *buffers)],
        lambda frame: tf.numpy_function(record, tf.nest.flatten(frame), []),
    ]
    driver = dynamic_step_driver.DynamicStepDriver(
        environment, policy, observers, num_steps=num_steps
    )
    run = tf.function(driver.run)
    time_step, _ = run()
    run(time_step)
    # Leaves [T, E, ...]; each frame is its row of bytes.
    leaves = [np.stack(each) for each in zip(*frames)]
    num_frames = len(frames)
    self.assertGreater(num_frames, 2 * num_steps // num_environments - 1)

    def row_of(leaves):
      return b' '.join(np.ascontiguousarray(leaf).tobytes() for leaf in leaves)

    step_types = tf.nest.pack_sequence_as(spec, leaves).step_type
    kept_frames = range(max(num_frames - max_length, 0), num_frames)
    rows = {
        (t, e): row_of([leaf[t, e] for leaf in leaves])
        for t in kept_frames
        for e in range(num_environments)
    }
    for buffer, (length, end) in zip(buffers, settings):
      expected = []
      for e in range(num_environments):
        for t in kept_frames[: len(kept_frames) - length + 1]:
          is_last = step_types[t : t + length - 1, e] == ts.StepType.LAST
          if end == 'cross' or not is_last.any():
            expected.append([rows[t + k, e] for k in range(length)])
      actual = [
          [
              row_of([leaf[k] for leaf in tf.nest.flatten(item)])
              for k in range(length)
          ]
          for item in replay_testing.items_of_pass(buffer, 7)
      ]
      self.assertCountEqual(actual, expected)
      self.assertEqual(int(buffer.num_frames()), int(uniform.num_frames()))
      for own, theirs in zip(
          tf.nest.flatten(buffer.gather_all()),
          tf.nest.flatten(uniform.gather_all()),
      ):
        self.assertAllEqual(own, theirs)
      if end == 'cross':
        # Its pass in order mixes environments where frames were overwritten.
        pairs, _ = uniform.get_next(sample_batch_size=3000, num_steps=2)
        leaves_of_pairs = [leaf.numpy() for leaf in tf.nest.flatten(pairs)]
        theirs = [
            [row_of([leaf[i, k] for leaf in leaves_of_pairs]) for k in (0, 1)]
            for i in range(3000)
        ]
        self.assertEqual(set(map(tuple, actual)), set(map(tuple, theirs)))


if __name__ == '__main__':
  tf.test.main()
