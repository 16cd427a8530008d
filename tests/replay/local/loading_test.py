"""Tests of how the frames of a data set are stored."""

from concurrent import futures
import os
import shutil
from unittest import mock

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import loading as episodes_lib
from rlds2reverb.datasets import saving
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay.local import loading
from rlds2reverb.trajectories import options as options_lib
from tests import golden
from tests.replay.local import replay_testing


def _items(*args, **kwargs):
  return items_lib.TableItems('items', *args, **kwargs)


def _known_data(count=3, length=5):
  """Returns a data set whose pipeline is known: it has no Python."""
  [episode] = replay_testing.episodes_of([length])
  return tf.data.Dataset.from_tensors({'steps': episode}).repeat(count)


class EpisodesTest(parameterized.TestCase, tf.test.TestCase):

  def test_returns_are_of_transitions(self):
    episodes = replay_testing.episodes_of([4, 1, 3])
    for form in golden.FORMS_AND_BATCHES.values():
      runs = loading.load_frames(form(episodes), _items()).episodes
      # The reward of the last step belongs to no transition.
      expected = [episode['reward'][:-1].sum() for episode in episodes]
      self.assertEqual(runs.undiscounted_return.tolist(), expected)
      self.assertEqual(runs.num_rows.tolist(), [4, 1, 3])
      self.assertEqual(runs.num_items.tolist(), [3, 0, 2])
      self.assertEqual(runs.first_row.tolist(), [0, 4, 5])

    for reward in np.zeros([3, 2], np.float32), np.zeros(3, np.int32):
      data = golden.stacked(
          [{**replay_testing.episodes_of([3])[0], 'reward': reward}]
      )
      actual = loading.load_frames(data, _items()).episodes
      self.assertTrue(np.isnan(actual.undiscounted_return).all())

  def test_priorities(self):
    episodes = replay_testing.episodes_of([4, 3])
    actual = loading.load_frames(
        golden.stacked(episodes),
        _items(priority=lambda frames: frames.reward[1]),
    )
    self.assertEqual(actual.priorities.tolist(), [10, 20, 30, 1010, 1020])
    for priority, expected in ((3.0, [3.0] * 5), (1.0, None)):
      actual = loading.load_frames(
          golden.stacked(episodes), _items(priority=priority)
      ).priorities
      self.assertEqual(expected, actual if actual is None else actual.tolist())

  @parameterized.parameters(np.inf, np.nan, -1.0)
  def test_priorities_that_cannot_be_drawn_by(self, invalid):
    function = lambda frames: tf.where(frames.reward[0] == 20.0, invalid, 1.0)
    data = golden.stacked(replay_testing.episodes_of([4]))
    message = f"'items' returned {invalid} for the item that starts at frame"
    with self.assertRaisesRegex(ValueError, message):
      loading.load_frames(data, _items(priority=function))


class DirectoryTest(parameterized.TestCase, tf.test.TestCase):

  def folder(self):
    return os.path.join(self.create_tempdir().full_path, 'new', 'frames')

  def test_frames_of_other_data(self):
    folder = self.folder()
    known, triples = _known_data(), _items(windows_lib.Windows(3))
    loading.load_frames(known, triples, folder)
    other = options_lib.ConversionRules(terminal_discount='transition')
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

  def test_several_prepare_the_same_frames_at_once(self):
    folder, data, items = self.folder(), _known_data(), _items()
    written, write = [], loading._write
    with mock.patch.object(
        loading, '_write', lambda *args: written.append(1) or write(*args)
    ):
      with futures.ThreadPoolExecutor(3) as executor:
        stores = executor.map(
            lambda _: loading.load_frames(data, items, folder), range(3)
        )
        self.assertLen({store.fingerprint for store in stores}, 1)
    self.assertLen(written, 1)
    self.assertEqual(os.listdir(os.path.dirname(folder)), ['frames'])

  def test_data_that_changed(self):
    directory = os.path.join(self.create_tempdir().full_path, 'data')
    saving.save_episodes(
        golden.stacked(replay_testing.episodes_of([5, 3])), directory
    )
    folder = self.folder()
    load = lambda: loading.load_frames(
        episodes_lib.load_episodes(directory), _items(), folder
    )
    num_frames = load().num_frames
    self.assertEqual(load().num_frames, num_frames)
    grown = golden.stacked(replay_testing.episodes_of([5, 3, 4]))
    shutil.rmtree(directory)
    saving.save_episodes(grown, directory)
    with self.assertRaisesRegex(FileExistsError, 'have changed or moved'):
      load()

  def test_folders_that_are_refused(self):
    folder = self.folder()
    data = golden.stacked(
        replay_testing.episodes_of([5])
    )  # Of a Python generator.
    loading.load_frames(data, _items(), folder)
    with self.assertRaisesRegex(FileExistsError, 'instead of the data'):
      loading.load_frames(data, _items(), folder)
    other = self.create_tempdir()
    other.create_file('notes.txt')
    with self.assertRaisesRegex(FileExistsError, 'not empty'):
      loading.load_frames(_known_data(), _items(), other.full_path)
    self.assertEqual(os.listdir(other.full_path), ['notes.txt'])
    with self.assertRaisesRegex(ValueError, 'local'):
      loading.load_frames(_known_data(), _items(), 'gs://bucket/frames')

  def test_full_check_finds_damage_that_opening_misses(self):
    folder = self.folder()
    steps = dict(replay_testing.episodes_of([3])[0])
    # 48 MB, of which opening reads 32.
    steps['observation'] = np.zeros([3, 1 << 22], np.float32)
    loading.load_frames(
        tf.data.Dataset.from_tensors({'steps': steps}), _items(), folder
    )
    [path] = [
        each.path
        for each in os.scandir(folder)
        if each.stat().st_size > 1 << 25
    ]
    loading.check_prepared_frames(folder)
    num_blocks = os.path.getsize(path) >> 20
    read = np.linspace(0, num_blocks - 1, 32).astype(int)
    block = np.setdiff1d(np.arange(num_blocks), read)[0]
    with open(path, 'r+b') as f:
      f.seek(int(block) << 20)
      f.write(b'x')
    loading.open_frames(folder)
    with self.assertRaisesRegex(OSError, f'checksum of MB {block} is wrong'):
      loading.check_prepared_frames(folder)
    with self.assertRaisesRegex(FileNotFoundError, 'holds no'):
      loading.check_prepared_frames(os.path.dirname(folder))

  def test_error_leaves_no_files(self):
    episodes = replay_testing.episodes_of([4, 3])
    episodes[1]['is_last'][:] = False
    folder = self.folder()
    with self.assertRaises(tf.errors.InvalidArgumentError):
      loading.load_frames(golden.stacked(episodes), _items(), folder)
    with self.assertRaises(ValueError):
      loading.load_frames(_known_data(), _items(windows_lib.Windows(9)), folder)
    self.assertEmpty(os.listdir(os.path.dirname(folder)))


if __name__ == '__main__':
  tf.test.main()
