"""Tests of frames that are appended, against lists of Python."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay.local import prioritized
from rlds2reverb.replay.local import ring
from rlds2reverb.replay.local import samplers
from rlds2reverb.trajectories import frame_blocks
from tests.replay.local import cuts

_PROCESS = samplers.Process(0)


def _ring(capacity, length=2, stride=1, end='drop'):
  windows = None
  if length is not None:
    windows = windows_lib.Windows(length, stride, end)
  items = items_lib.TableItems('items', windows)
  return ring.FrameRing(cuts.frame_spec(), items, capacity)


def _content(frames):
  """Returns the items that can be drawn: what their frames show, and types."""
  items = frames.first + np.arange(frames.num_items)
  leaves = frames.store.read(frames.starts(items), frames.length(items))
  found = tf.nest.pack_sequence_as(cuts.frame_spec(), leaves)
  return list(zip(found.observation.tolist(), found.step_type.tolist()))


def _shown(frames):
  return [shown for shown, _ in _content(frames)]


class _Model:
  """What a ring holds, as a list of all frames and items there ever were."""

  def __init__(self, capacity, length, stride, end):
    self.capacity, self.length = capacity, length
    self.stride, self.end = stride, end
    self.rows = []  # Pairs of what is shown, and the step type.
    self.starts = []
    self.origin = 0  # The first row of the episode.

  def append(self, frames):
    for shown, step_type in zip(
        frames.observation.tolist(), frames.step_type.tolist()
    ):
      self.rows.append((shown, step_type))
      self._add_items()
      if step_type == 2 and self.end != 'cross':
        count = len(self.rows) - self.origin
        padding = {
            # So that the item that starts last is whole.
            'tile': max(
                (count - 1) // self.stride * self.stride + self.length - count,
                0,
            ),
            'pad': max(self.length - count, 0),
        }.get(self.end, 0)
        for _ in range(padding):
          self.rows.append((0, 2))
          self._add_items()
        self.origin = len(self.rows)

  def _add_items(self):
    start = len(self.rows) - self.length
    if start >= self.origin and (start - self.origin) % self.stride == 0:
      self.starts.append(start)

  def content(self):
    items = []
    for start in self.starts:
      if start >= len(self.rows) - self.capacity:
        rows = self.rows[start : start + self.length]
        items.append(tuple(map(list, zip(*rows))))
    return items


class FrameRingTest(parameterized.TestCase, tf.test.TestCase):

  def test_the_contract(self):
    # Capacity 3, of frames; write 0..4.
    frames = _ring(3, length=1)
    frames.append(cuts.make_frames(0, 5))
    self.assertEqual(_shown(frames), [[2], [3], [4]])
    self.assertEqual((frames.num_items, frames.num_frames), (3, 3))
    pairs = _ring(3)
    for t in range(5):
      pairs.append(cuts.make_frames(t, t + 1))
    self.assertEqual(_shown(pairs), [[2, 3], [3, 4]])

  @parameterized.product(
      setting=(
          (1, 1, 'drop'),
          (2, 1, 'drop'),
          (3, 2, 'drop'),
          (2, 1, 'pad'),
          (5, 3, 'pad'),
          (4, 1, 'tile'),
          (3, 2, 'tile'),
          (2, 1, 'cross'),
          (4, 3, 'cross'),
      ),
      capacity=(5, 17, 1000),
  )
  def test_against_lists(self, setting, capacity):
    rng = np.random.default_rng(capacity)
    frames, model = _ring(capacity, *setting), _Model(capacity, *setting)
    lasts = np.cumsum(rng.integers(1, 9, 40))
    begin = 0
    while begin < 150:
      end = begin + int(rng.choice([1, 1, 1, 2, 7, 20]))
      new = cuts.make_frames(begin, end, lasts)
      frames.append(new)
      model.append(new)
      expected = model.content()
      self.assertEqual(frames.num_items, len(expected))
      self.assertEqual(frames.num_frames, min(len(model.rows), capacity))
      if rng.uniform() < 0.15 or end >= 150:
        self.assertEqual(_content(frames), expected)
      begin = end
    self.assertNotEmpty(model.starts)

  @parameterized.parameters('drop', 'tile', 'cross')
  def test_long_appends(self, end):
    # Longer than the capacity and the rows that a batch may lag behind.
    setting = 3, 2, end
    frames, model = _ring(20, *setting), _Model(20, *setting)
    lasts = [4999, 5000, 12000, 13990]
    for begin, stop in ((0, 3), (3, 5003), (5003, 13993), (13993, 13999)):
      new = cuts.make_frames(begin, stop, lasts)
      frames.append(new)
      model.append(new)
      self.assertEqual(_content(frames), model.content())

  def test_loaded_frames(self):
    frames, model = _ring(10, 3, 1, 'tile'), _Model(10, 3, 1, 'tile')
    blocks = []
    for begin, splits, step in (
        (0, [0, 4, 6], 0),
        (6, [0, 5], 0),
        (11, [0, 3], 5),
    ):
      new = cuts.make_frames(begin, begin + splits[-1], [3, 5, 13])
      blocks.append(
          frame_blocks.FrameBlock(
              new, list(range(len(splits) - 1)), np.array(splits), step
          )
      )
      model.append(new)
    frames.load(blocks)
    self.assertEqual(_content(frames), model.content())
    new = cuts.make_frames(14, 18)
    frames.append(new)
    model.append(new)
    self.assertEqual(_content(frames), model.content())

  @parameterized.parameters('drop', 'pad', 'tile', 'cross')
  def test_clear(self, end):
    frames = _ring(10, 3, 1, end)
    frames.append(cuts.make_frames(0, 8, [3]))
    items_before = frames.first + frames.num_items
    frames.clear()
    self.assertEqual((frames.num_frames, frames.num_items), (0, 0))
    self.assertEmpty(frames.all_rows())
    frames.append(cuts.make_frames(8, 13))
    # Nothing of the frames before.
    self.assertEqual(_shown(frames), [[8, 9, 10], [9, 10, 11], [10, 11, 12]])
    self.assertEqual(frames.first, items_before)
    self.assertEqual(frames.num_frames, 5)

  def test_all_rows(self):
    frames = _ring(6)
    for begin, end in ((0, 4), (4, 9), (9, 5000), (5000, 5002)):
      frames.append(cuts.make_frames(begin, end))
      leaves = frames.store.read(frames.all_rows(), 1)
      found = tf.nest.pack_sequence_as(cuts.frame_spec(), leaves)
      self.assertEqual(
          found.observation[:, 0].tolist(), list(range(max(0, end - 6), end))
      )

  def test_nothing_to_sample(self):
    frames = _ring(5)
    for fill in (
        lambda: None,
        lambda: frames.append(cuts.make_frames(0, 1)),
        frames.clear,
    ):
      fill()
      with self.assertRaisesRegex(
          tf.errors.InvalidArgumentError, 'nothing to sample yet'
      ):
        frames.check_not_empty()

  def test_items_that_went(self):
    frames = _ring(4)
    for t in range(8):
      frames.append(cuts.make_frames(t, t + 1))
    # Of items 0 to 6, 4 to 6 stay.
    known = frames.alive(np.arange(7)).tolist()
    self.assertEqual(known, [False] * 4 + [True] * 3)
    for wrong in -1, 7:
      with self.assertRaisesRegex(
          tf.errors.InvalidArgumentError, 'no item of this key'
      ):
        frames.alive(np.array([wrong, 4]))

  @parameterized.parameters('drop', 'tile', 'cross')
  def test_saved_and_restored(self, end):
    setting = 12, 3, 2, end
    for count in 0, 2, 9, 30, 5000:
      frames = _ring(*setting)
      frames.append(cuts.make_frames(0, count, [3, 7, 22]))
      restored = _ring(*setting)
      restored.append(cuts.make_frames(100, 140, [120]))
      restored.deserialize(frames.serialize())
      self.assertEqual(_content(restored), _content(frames))
      self.assertEqual(int(restored.first), frames.first)
      self.assertEqual(restored.num_frames, frames.num_frames)
      # What is appended next is another episode, as after the end of one.
      model = _Model(*setting)
      model.append(cuts.make_frames(0, count, [3, 7, 22]))
      if end != 'cross':
        model.origin = len(model.rows)
      new = cuts.make_frames(5000, 5009, [5004])
      restored.append(new)
      model.append(new)
      self.assertEqual(_content(restored), model.content())

  def test_restored_with_another_capacity(self):
    saved = _ring(12).serialize()
    with self.assertRaisesRegex(ValueError, '12 frames.*this one has 13'):
      _ring(13).deserialize(saved)

  @parameterized.parameters((None, 5), (6, 5))
  def test_items_that_do_not_fit(self, length, capacity):
    with self.assertRaisesRegex(ValueError, f'at most 5.*is {length}'):
      _ring(capacity, length)

  def test_strings(self):
    spec = cuts.frame_spec()._replace(observation=tf.TensorSpec([], tf.string))
    with self.assertRaisesRegex(ValueError, 'strings'):
      ring.FrameRing(spec, items_lib.TableItems('items'), 5)


class PrioritizedRingTest(parameterized.TestCase, tf.test.TestCase):

  def make(self, capacity, length=1):
    frames = _ring(capacity, length)
    sampler = prioritized.Prioritized(1.0)
    sampler.attach(frames, np.zeros(frames.num_slots))
    frames.listener = sampler
    return frames, sampler, sampler.bind(frames, _PROCESS)

  def check(self, draw, probabilities, group=0):
    """Checks the probability of each item, by its number."""
    draws = draw(group, 1, 3000)
    items = draws.items.ravel()
    first = min(probabilities)
    counts = np.bincount(items - first, minlength=len(probabilities))
    cuts.assert_frequencies(self, counts, list(probabilities.values()))

  def update(self, sampler, items, priorities):
    sampler.update(np.array(items), np.array(priorities, np.float64))

  def test_a_new_item_has_the_highest_priority_so_far(self):
    frames, sampler, draw = self.make(4)
    frames.append(cuts.make_frames(0, 2))
    self.check(draw, {0: 0.5, 1: 0.5})
    self.update(sampler, [0], [3])
    frames.append(cuts.make_frames(2, 3))
    self.check(draw, {0: 3 / 7, 1: 1 / 7, 2: 3 / 7})
    # So far, and not of those that are there now.
    self.update(sampler, [0, 2], [1, 1])
    frames.append(cuts.make_frames(3, 4))
    self.check(draw, {0: 1 / 6, 1: 1 / 6, 2: 1 / 6, 3: 1 / 2})
    # The oldest goes.
    frames.append(cuts.make_frames(4, 5))
    self.check(draw, {1: 1 / 8, 2: 1 / 8, 3: 3 / 8, 4: 3 / 8})

  def test_recorded_items_have_priorities_of_their_own(self):
    frames = ring.FrameRing(
        cuts.frame_spec(),
        items_lib.TableItems(
            'items',
            windows_lib.Windows(1),
            priority=lambda frame: 0.1 + frame.reward[0] / 10,
        ),
        4,
    )
    sampler = prioritized.Prioritized(1.0)
    sampler.attach(frames, np.zeros(frames.num_slots))
    frames.listener = sampler
    draw = sampler.bind(frames, _PROCESS)
    block = frame_blocks.FrameBlock(
        cuts.make_frames(0, 2, [1]), [0], np.array([0, 2]), 0
    )
    frames.load([block])
    self.check(draw, {0: 1 / 3, 1: 2 / 3})
    # The highest is 0.2, which is below 1.
    frames.append(cuts.make_frames(2, 3))
    self.check(draw, {0: 1 / 5, 1: 2 / 5, 2: 2 / 5})

  def test_items_that_went_are_left_out_of_updates(self):
    frames, sampler, draw = self.make(3)
    for t in range(5):
      frames.append(cuts.make_frames(t, t + 1))
    self.update(sampler, [1, 3, 0], [100, 2, 50])
    self.check(draw, {2: 1 / 4, 3: 1 / 2, 4: 1 / 4})
    # Nor do they raise the highest priority.
    frames.append(cuts.make_frames(5, 6))
    self.check(draw, {3: 2 / 5, 4: 1 / 5, 5: 2 / 5})
    self.assertEqual(sampler.min_priority(), 1)
    self.update(sampler, [0, 1], [7, 7])
    self.check(draw, {3: 2 / 5, 4: 1 / 5, 5: 2 / 5})

  def test_slots_come_round(self):
    frames, sampler, draw = self.make(3)
    for begin in range(0, 9000, 1000):
      frames.append(cuts.make_frames(begin, begin + 1000))
      newest = frames.first + 2
      self.update(sampler, [newest, newest - 1, newest - 2], [4, 0, 1])
      self.check(draw, {newest - 2: 0.2, newest - 1: 0, newest: 0.8}, begin)
      self.update(sampler, [newest, newest - 1, newest - 2], [1, 1, 1])

  def test_clear(self):
    frames, _, draw = self.make(3)
    frames.append(cuts.make_frames(0, 3))
    frames.clear()
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, 'nothing to sample yet'
    ):
      draw(0, 1, 2)
    frames.append(cuts.make_frames(3, 5))
    self.check(draw, {3: 0.5, 4: 0.5})


if __name__ == '__main__':
  tf.test.main()
