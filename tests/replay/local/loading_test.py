"""Tests of how the frames of a data set are stored."""

import os

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay.local import loading
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import rules as rules_lib
from tests import golden
from tests.replay.local import cuts


def _items(*args, **kwargs):
  return items_lib.TableItems('items', *args, **kwargs)


def _known_data(count=3, length=5):
  """Returns a data set whose pipeline is known: it has no Python."""
  [episode] = cuts.episodes_of([length])
  return tf.data.Dataset.from_tensors({'steps': episode}).repeat(count)


class EpisodesTest(parameterized.TestCase, tf.test.TestCase):

  def test_returns_are_of_transitions(self):
    episodes = cuts.episodes_of([4, 1, 3])
    for form in golden.FORMS_AND_BATCHES.values():
      runs = loading.load_frames(form(episodes), _items()).episodes
      # The reward of the last step belongs to no transition.
      expected = [episode['reward'][:-1].sum() for episode in episodes]
      self.assertEqual(runs.undiscounted_return.tolist(), expected)
      self.assertEqual(runs.num_rows.tolist(), [4, 1, 3])
      self.assertEqual(runs.num_items.tolist(), [3, 0, 2])
      self.assertEqual(runs.first_row.tolist(), [0, 4, 5])

    for reward in np.zeros([3, 2], np.float32), np.zeros(3, np.int32):
      data = golden.stacked([{**cuts.episodes_of([3])[0], 'reward': reward}])
      found = loading.load_frames(data, _items()).episodes
      self.assertTrue(np.isnan(found.undiscounted_return).all())

  def test_priorities(self):
    episodes = cuts.episodes_of([4, 3])
    found = loading.load_frames(
        golden.stacked(episodes),
        _items(priority=lambda frames: frames.reward[1]),
    )
    self.assertEqual(found.priorities.tolist(), [10, 20, 30, 1010, 1020])
    for priority, expected in ((3.0, [3.0] * 5), (1.0, None)):
      found = loading.load_frames(
          golden.stacked(episodes), _items(priority=priority)
      ).priorities
      self.assertEqual(expected, found if found is None else found.tolist())


class DirectoryTest(parameterized.TestCase, tf.test.TestCase):

  def folder(self):
    return os.path.join(self.create_tempdir().full_path, 'new', 'frames')

  def test_frames_of_other_data(self):
    folder = self.folder()
    known, triples = _known_data(), _items(windows_lib.Windows(3))
    loading.load_frames(known, triples, folder)
    other = rules_lib.ConversionRules(terminal_discount='transition')
    for data, items, rules in (
        (_known_data(4), triples, None),
        (known, _items(windows_lib.Windows(3, 2, 'tile')), None),
        (known, _items(windows_lib.Windows(3), priority=2.0), None),
        (known, triples, other),
    ):
      options = options_lib.ConversionOptions(rules)
      with self.assertRaisesRegex(FileExistsError, 'other data or with other'):
        loading.load_frames(data, items, folder, options)
    self.assertEqual(loading.open_frames(folder).make_items().num_items, 9)

  def test_folders_that_are_refused(self):
    folder = self.folder()
    data = golden.stacked(cuts.episodes_of([5]))  # Of a Python generator.
    loading.load_frames(data, _items(), folder)
    with self.assertRaisesRegex(FileExistsError, 'in place of the data'):
      loading.load_frames(data, _items(), folder)
    other = self.create_tempdir()
    other.create_file('notes.txt')
    with self.assertRaisesRegex(FileExistsError, 'not empty'):
      loading.load_frames(_known_data(), _items(), other.full_path)
    self.assertEqual(os.listdir(other.full_path), ['notes.txt'])
    with self.assertRaisesRegex(ValueError, 'local'):
      loading.load_frames(_known_data(), _items(), 'gs://bucket/frames')

  def test_an_error_leaves_nothing(self):
    episodes = cuts.episodes_of([4, 3])
    episodes[1]['is_last'][:] = False
    folder = self.folder()
    with self.assertRaises(tf.errors.InvalidArgumentError):
      loading.load_frames(golden.stacked(episodes), _items(), folder)
    with self.assertRaises(ValueError):
      loading.load_frames(_known_data(), _items(windows_lib.Windows(9)), folder)
    self.assertEmpty(os.listdir(os.path.dirname(folder)))


if __name__ == '__main__':
  tf.test.main()
