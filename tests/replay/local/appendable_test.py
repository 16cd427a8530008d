"""Frames that are appended, compared with lists of Python."""

import os

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay.local import appendable
from rlds2reverb.replay.local import replay_buffer
from rlds2reverb.replay.local import ring as ring_lib
from rlds2reverb.store import prioritized
from rlds2reverb.store import samplers
from tests import golden
from tests.replay.local import cuts

_Appendable = appendable.AppendableReplayBuffer
_SETTINGS = (
    (1, 1, 'drop'),
    (2, 1, 'drop'),
    (3, 2, 'drop'),
    (4, 3, 'cross'),
)


def _ring(capacity, length=2, stride=1, end='drop'):
  return ring_lib.FrameRing(
      cuts.frame_spec(), windows_lib.Windows(length, stride, end), capacity
  )


def _content(ring):
  """Returns what the items show."""
  items = ring.first + np.arange(ring.num_items)
  leaves, _ = ring.read(ring.rows, items, {})
  found = tf.nest.pack_sequence_as(cuts.frame_spec(), leaves)
  return found.observation.tolist()


def _shown(buffer):
  return [
      item.observation[:, 0].tolist() for item in cuts.items_of_pass(buffer)
  ]


def _append(buffer, frames, add=None):
  """Appends frames, a `Trajectory` of arrays `[T, ...]`, one by one."""
  add = add or buffer.add_batch
  for t in range(len(frames.step_type)):
    add(tf.nest.map_structure(lambda leaf: leaf[t : t + 1], frames))  # pylint: disable=cell-var-from-loop


def _expected(count, lasts, capacity, length, stride, end):
  """Returns the content of a ring after frames 0 to `count`."""
  ends = [last + 1 for last in lasts if last < count]
  lengths = np.diff([0, *ends, count])
  items = cuts.cut_rows(lengths, length, stride, end)
  return [rows for rows in items if rows[0] >= count - capacity]


class FrameRingTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.product(setting=_SETTINGS, capacity=(5, 17, 1000))
  def test_against_lists(self, setting, capacity):
    rng = np.random.default_rng(capacity)
    ring = _ring(capacity, *setting)
    lasts = np.cumsum(rng.integers(1, 9, 1500)).tolist()
    begin = 0
    for size in (*rng.choice([1, 1, 1, 2, 7, 20], 30).tolist(), 5000, 2, 3):
      end = begin + size
      ring.append(*cuts.leaves(begin, end, lasts))
      expected = _expected(end, lasts, capacity, *setting)
      self.assertEqual(ring.num_items, len(expected))
      self.assertEqual(ring.num_frames, min(end, capacity))
      self.assertEqual(_content(ring), expected)
      found = ring.rows.read(ring.all_rows(), 1)
      found = tf.nest.pack_sequence_as(cuts.frame_spec(), found)
      self.assertEqual(
          found.observation[:, 0].tolist(),
          [*range(max(end - capacity, 0), end)],
      )
      if rng.uniform() < 0.1:  # Restored, an open episode is one of its own.
        restored = _ring(capacity, *setting)
        restored.append(*cuts.leaves(100, 140, [120]))
        restored.deserialize(ring.serialize())
        self.assertEqual(_content(restored), expected)
      begin = end

  def test_what_does_not_fit(self):
    with self.assertRaisesRegex(ValueError, '12 frames.*this one has 13'):
      _ring(13).deserialize(_ring(12).serialize())
    with self.assertRaisesRegex(ValueError, 'at most 5.*is 6'):
      _ring(5, 6)
    with self.assertRaisesRegex(ValueError, '\'tile\': .* take "drop"'):
      _ring(5, 2, end='tile')
    spec = cuts.frame_spec()._replace(observation=tf.TensorSpec([], tf.string))
    with self.assertRaisesRegex(ValueError, 'strings'):
      ring_lib.FrameRing(spec, windows_lib.Windows(2), 5)


class PrioritizedRingTest(parameterized.TestCase, tf.test.TestCase):

  def make(self, capacity):
    ring, sampler = _ring(capacity, 1), prioritized.Prioritized(1.0)
    sampler.attach(ring, np.zeros(ring.num_slots))
    ring.listener = sampler
    return ring, sampler, sampler.bind(ring, samplers.Process(0))

  def check(self, draw, probabilities):
    """Checks the probability of each item, by its number."""
    drawn = draw(0, 1, 4000)
    found = dict(zip(drawn.items[0].tolist(), drawn.probability[0].tolist()))
    self.assertEqual(set(found), set(probabilities))
    for item, probability in probabilities.items():
      self.assertAlmostEqual(found[item], probability)

  def update(self, sampler, items, priorities):
    sampler.update(np.array(items), np.array(priorities, np.float64))

  def test_a_new_item_has_the_highest_priority_so_far(self):
    ring, sampler, draw = self.make(4)
    with self.assertRaisesRegex(ValueError, 'nothing to sample yet'):
      draw(0, 1, 2)
    ring.append(*cuts.leaves(0, 2))
    self.check(draw, {0: 0.5, 1: 0.5})
    self.update(sampler, [0], [3])
    ring.append(*cuts.leaves(2, 3))
    self.check(draw, {0: 3 / 7, 1: 1 / 7, 2: 3 / 7})
    # So far, and not of those that are there now.
    self.update(sampler, [0, 2], [1, 1])
    ring.append(*cuts.leaves(3, 4))
    self.check(draw, {0: 1 / 6, 1: 1 / 6, 2: 1 / 6, 3: 1 / 2})
    # The oldest goes; updates of items that went are left out.
    ring.append(*cuts.leaves(4, 5))
    self.update(sampler, [0], [100])
    self.check(draw, {1: 1 / 8, 2: 1 / 8, 3: 3 / 8, 4: 3 / 8})
    ring.append(*cuts.leaves(5, 6))
    self.check(draw, {2: 1 / 10, 3: 3 / 10, 4: 3 / 10, 5: 3 / 10})
    self.assertEqual(sampler.min_priority(), 1)
    ring.clear()
    with self.assertRaisesRegex(ValueError, 'nothing to sample yet'):
      draw(0, 1, 2)


class AppendedTest(parameterized.TestCase, tf.test.TestCase):

  def frames(self, lengths):
    return cuts.cut_items(cuts.episodes_of(lengths), None, 1)

  def make(self, **kwargs):
    spec = replay_buffer.EpisodesReplayBuffer(
        golden.stacked(cuts.episodes_of([2]))
    ).data_spec
    return _Appendable(spec, **kwargs)

  def test_recorded_first(self):
    data = golden.stacked(cuts.episodes_of([3, 2]))
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

  def test_nothing_is_appended_without_capacity(self):
    buffer = replay_buffer.EpisodesReplayBuffer(
        golden.stacked(cuts.episodes_of([3]))
    )
    [frames] = self.frames([1])
    for call in lambda: buffer.add_batch(frames), buffer.clear:
      with self.assertRaisesRegex(ValueError, 'AppendableReplayBuffer'):
        call()

  def test_wrong_frames(self):
    buffer = self.make(capacity=9)
    [frames] = self.frames([1])
    for wrong in (
        frames._replace(reward=frames.reward.astype(np.float64)),
        frames._replace(reward=frames.reward[:, np.newaxis]),
        frames._replace(observation=frames.observation[:, :1]),
        tf.nest.map_structure(lambda leaf: np.repeat(leaf, 2, 0), frames),
        tf.nest.map_structure(lambda leaf: leaf[0], frames),
        frames._replace(reward=1.0),
    ):
      with self.assertRaisesRegex(ValueError, 'appended one by one'):
        buffer.add_batch(wrong)
    self.assertEqual(int(buffer.num_frames()), 0)

  def test_checkpoint(self):
    kwargs = dict(capacity=12, seed=2)
    path = os.path.join(self.create_tempdir().full_path, 'checkpoint')
    buffer = self.make(sampler=prioritized.Prioritized(), **kwargs)
    for frames in self.frames([5, 4, 7]):
      _append(buffer, frames)
    dataset = buffer.as_dataset(6)
    for _, info in dataset.take(3):
      priorities = tf.cast(info.key[:, 0] % 4 + 1, tf.float32)
      buffer.update_priorities(info.key, priorities)
    tf.train.Checkpoint(buffer=buffer).write(path)
    restored = self.make(sampler=prioritized.Prioritized(), **kwargs)
    tf.train.Checkpoint(buffer=restored).read(path)
    self.assertEqual(_shown(restored), _shown(buffer))
    expected = list(dataset.take(4).as_numpy_iterator())
    found = list(restored.as_dataset(6).take(4).as_numpy_iterator())
    golden.assert_frames_equal(self, found, expected)

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


if __name__ == '__main__':
  tf.test.main()
