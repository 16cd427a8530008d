"""One call from data sets to batches, compared with `tf.data` and by hand."""

import concurrent.futures
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf
import tree

import rlds2reverb
from rlds2reverb import formats
from rlds2reverb import random_access
from rlds2reverb import statistics
from rlds2reverb import transforms
from rlds2reverb import windows
from rlds2reverb.arrays import normalization
from rlds2reverb.random_access import building
from tests import call_modes
from tests.random_access import data

_MAPPING = rlds2reverb.fields.StepMapping(
    observation={'image': 'observation/image', 'state': 'observation/state'},
    action='action/arm',
    discount=None,
)


def prepare(episodes):
  """Maps the fields of `data`; for `IndexedData`."""
  return rlds2reverb.map_fields(episodes, _MAPPING)


def without_camera(episodes):
  return transforms.transform_episodes(
      prepare(episodes),
      [transforms.SelectFields(exclude=['observation/image'])],
  )


def times(episodes, factor):
  return prepare(episodes).map(
      lambda episode: {
          **episode,
          'steps': {
              **episode['steps'],
              'action': episode['steps']['action'] * factor,
          },
      }
  )


class _Prepare:

  def __call__(self, episodes):
    return episodes


class OpenBatchesTest(parameterized.TestCase, tf.test.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    # Tests share the indexes that the first of them builds.
    cls.folder = cls.enter_context(tempfile.TemporaryDirectory())
    cls.directories = {}
    for name, lengths in {'one': [4, 1, 7], 'other': [6, 2]}.items():
      cls.directories[name] = os.path.join(cls.folder, name, '1.0.0')
      data.write(cls.directories[name], lengths, seed=len(name))

  def open(self, other=without_camera, item_weights=None, **kwargs):
    sources = {
        name: random_access.IndexedData(
            self.directories[name],
            prepare=function,
            weight=weight,
            item_weights=item_weights,
        )
        for name, function, weight in (
            ('one', prepare, 1.0),
            ('other', other, 3.0),
        )
    }
    return random_access.open_batches(
        sources,
        os.path.join(self.folder, 'indexes'),
        16,
        random_access.ActionChunks(2, 3),
        images={'observation/image': data.JPEG_SHAPE[:2]},
        normalize={
            'action': random_access.Normalize('quantiles', [True, False]),
            'observation/state': random_access.Normalize('mean_std'),
        },
        seed=3,
        **kwargs,
    )

  def expected(self, name):
    """Returns the items of a data set, as `tf.data` makes them."""
    episodes = rlds2reverb.load_episodes(
        self.directories[name], decoders=data.encoded()
    )
    episodes = prepare(episodes)
    found = statistics.compute_statistics(episodes)
    changes = [
        transforms.normalize_by_statistics(
            found, 'action', 'quantiles', mask=[True, False]
        ),
        transforms.normalize_by_statistics(found, 'observation/state'),
        lambda episode: {
            'steps': windows.stack_and_chunk(episode['steps'], 2, 3)
        },
    ]
    episodes = transforms.transform_episodes(episodes, changes)
    return [
        step
        for episode in episodes.as_numpy_iterator()
        for step in data.as_list(
            tf.data.Dataset.from_tensor_slices(episode['steps'])
        )
    ]

  @pytest.mark.long
  def test_batches_have_the_numbers_of_tensorflow(self):
    batches = self.open()
    one, other = map(self.expected, self.directories)
    for number in range(4):
      batch, drawn = batches[number], batches.draw(number)
      self.assertLess(drawn.min(), len(one))
      self.assertGreaterEqual(drawn.max(), len(one))
      actual = data.leaves(batch)
      for row, item in enumerate(drawn):
        expected = data.leaves((one + other)[item])
        for path in ('observation/state', 'action', 'action_mask', 'reward'):
          np.testing.assert_array_equal(actual[path][row], expected[path], path)
    # Predictions are denormalized with the statistics of the data set.
    [raw, *_] = prepare(rlds2reverb.load_episodes(self.directories['one']))
    items = batches.items.sources['one']
    self.assertAllClose(
        items.transform.invert(items[0])['observation']['state'][-1],
        raw['steps']['observation']['state'][0],
        atol=1e-4,
    )
    # The second time nothing is built.
    again = self.open()
    self.assertAllEqual(again[2]['action'], batches[2]['action'])
    self.assertEqual(again.identity(), batches.identity())
    with self.assertRaisesRegex(ValueError, 'made with another prepare'):
      self.open(other=prepare)

  def test_a_partial_prepares_the_episodes(self):
    folder = os.path.join(self.folder, 'partial')

    def first_action(make):
      batches = random_access.open_batches(
          {
              'one': random_access.IndexedData(
                  self.directories['one'], prepare=make
              )
          },
          folder,
          1,
          random_access.ActionChunks(1, 1),
          seed=1,
      )
      return data.leaves(batches[0])['action']

    expected = first_action(functools.partial(times, factor=2.0))
    again = first_action(functools.partial(times, factor=2.0))
    np.testing.assert_array_equal(again, expected)
    with self.assertRaisesRegex(ValueError, 'made with another prepare'):
      first_action(functools.partial(times, factor=3.0))
    for invalid in functools.partial(times, factor=object()), _Prepare():
      with self.assertRaisesRegex(ValueError, 'Define a function in a module'):
        first_action(invalid)

  def open_one(self, directory, indexes, **kwargs):
    return random_access.open_batches(
        {'arm': random_access.IndexedData(directory, prepare=prepare)},
        indexes,
        4,
        random_access.ActionChunks(1, 2),
        normalize={'action': random_access.Normalize()},
        seed=1,
        **kwargs,
    )

  def copied(self):
    """Returns a folder with a copy of a data set in `data/1.0.0`."""
    folder = self.create_tempdir().full_path
    shutil.copytree(
        self.directories['one'], os.path.join(folder, 'data', '1.0.0')
    )
    return folder

  def test_many_open_for_the_first_time_at_once(self):
    folder, built = self.copied(), []
    build = building.build
    with mock.patch.object(
        building, 'build', lambda *args: built.append(1) or build(*args)
    ):
      with concurrent.futures.ThreadPoolExecutor(4) as executor:
        opened = executor.map(
            lambda rank: self.open_one(
                f'{folder}/data', f'{folder}/indexes', process=(rank, 4)
            ),
            range(4),
        )
        ids = {batches.identity() for batches in opened}
    self.assertLen(ids, 1)
    self.assertLen(built, 1)
    self.assertCountEqual(
        os.listdir(f'{folder}/indexes'),
        ['arm', 'arm.source.json', 'arm.statistics.json'],
    )

  @pytest.mark.long
  def test_processes_open_for_the_first_time_at_once(self):
    folder = self.copied()
    program = f"""
from rlds2reverb import random_access
from tests.random_access import opening_test
import sys
batches = opening_test.OpenBatchesTest().open_one('{folder}/data', '{folder}/i',
    process=(int(sys.argv[1]), 4))
print(batches.identity(), batches[0]['action'].shape)"""
    ranks = [
        subprocess.Popen(
            [sys.executable, '-c', program, str(rank)],
            env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(4)
    ]
    printed = {rank.communicate()[0].splitlines()[-1] for rank in ranks}
    self.assertEqual([rank.returncode for rank in ranks], [0] * 4)
    self.assertLen(printed, 1)

  def test_data_that_moved(self):
    folder = self.copied()
    expected = self.open_one(f'{folder}/data', f'{folder}/indexes')
    actions = expected[3]['action']
    os.rename(f'{folder}/data', f'{folder}/moved')
    with self.assertRaisesRegex(
        FileNotFoundError, 'give its new directory in sources of open_batches'
    ):
      self.open_one(f'{folder}/data', f'{folder}/indexes')
    for at in f'{folder}/moved', f'{folder}/moved/1.0.0':
      actual = self.open_one(at, f'{folder}/indexes')
      self.assertEqual(actual.identity(), expected.identity())
    os.mkdir(f'{folder}/both')
    for name in 'moved', 'indexes':
      os.rename(f'{folder}/{name}', f'{folder}/both/{name}')
    with self.assertNoLogs(level='WARNING'):
      actual = self.open_one(f'{folder}/both/moved', f'{folder}/both/indexes')
    self.assertAllEqual(actual[3]['action'], actions)
    # Other data at the new place is refused.
    with self.assertRaisesRegex(ValueError, 'made with another directory'):
      self.open_one(self.directories['other'], f'{folder}/both/indexes')

  def test_data_that_changed(self):
    folder = self.copied()
    self.open_one(f'{folder}/data', f'{folder}/indexes')
    files = sorted(os.listdir(f'{folder}/data/1.0.0'))
    [first, *_] = [name for name in files if 'tfrecord' in name]
    path = f'{folder}/data/1.0.0/{first}'
    shutil.copy(path, path[:-1] + '7')
    with self.assertRaisesRegex(OSError, 'has changed since the index'):
      self.open_one(f'{folder}/data', f'{folder}/indexes')
    os.remove(path[:-1] + '7')
    self.open_one(f'{folder}/data', f'{folder}/indexes')
    os.remove(path)
    with self.assertRaisesRegex(FileNotFoundError, f'{first} is missing'):
      self.open_one(f'{folder}/data', f'{folder}/indexes')

  def test_copies_of_data_that_moved_or_changed(self):
    folder = self.create_tempdir().full_path
    rewards = np.arange(6, dtype=np.float32)
    flags = {'terminals': rewards == 5, 'timeouts': rewards == 9}

    def write(name, count):
      np.savez(
          f'{folder}/{name}',
          observations=np.zeros([count, 2], np.float32),
          actions=np.zeros([count, 1], np.float32),
          rewards=rewards[:count],
          **{key: flag[:count] for key, flag in flags.items()},
      )

    def opened(name):
      return random_access.open_batches(
          {'a': f'{folder}/{name}'},
          f'{folder}/indexes',
          2,
          random_access.ActionChunks(1, 1),
      )

    flags['terminals'][3] = True
    write('one.npz', 4)
    count = len(opened('one.npz').items)
    os.rename(f'{folder}/one.npz', f'{folder}/moved.npz')
    self.assertLen(opened('moved.npz').items, count)
    # A copy has everything, so the data may be gone.
    self.assertLen(opened('one.npz').items, count)
    write('one.npz', 6)
    with self.assertRaisesRegex(OSError, 'has changed since the index'):
      opened('one.npz')
    with self.assertRaisesRegex(ValueError, 'another directory'):
      write('more.npz', 6)
      opened('more.npz')

  def test_data_of_other_formats_and_its_options(self):
    home = os.path.join(self.folder, 'hub')
    directory = os.path.join(home, 'lerobot/pusht')
    tests = os.path.dirname(os.path.dirname(__file__))
    shutil.copytree(os.path.join(tests, 'data/lerobot/v3.0'), directory)

    def is_terminal(*args, **options):
      batches = random_access.open_batches(
          {'arm': random_access.IndexedData(*args, options=options)},
          os.path.join(self.folder, f'index-{len(options)}'),
          1,
          random_access.ActionChunks(1, 2),
      )
      return batches.items.sources['arm'].column('is_terminal')

    with mock.patch.dict(os.environ, HF_LEROBOT_HOME=home):
      advice = r"IndexedData\('lerobot/pusht', options={'format': 'lerobot'}\)"
      with self.assertRaisesRegex(FileNotFoundError, advice):
        is_terminal('lerobot/pusht')
      self.assertFalse(is_terminal('lerobot/pusht', format='lerobot').any())
    options = {'is_terminal': 'next.success', 'exclude': ('timestamp',)}
    episodes = formats.load(directory, **options)
    expected = [episode['steps']['is_terminal'] for episode in episodes]
    for _ in range(2):  # The second time nothing is built.
      actual = is_terminal(directory, **options)
      self.assertAllEqual(actual, np.concatenate(expected))
      self.assertTrue(actual.any())
    with self.assertRaisesRegex(ValueError, 'made with another options'):
      is_terminal(directory, **{**options, 'exclude': ()})

  def test_image_changes_equal_those_of_tensorflow(self):
    name = 'observation/image'
    augment = {name: random_access.Augmentation.OCTO}
    before, changed = self.open()[5], self.open(augment=augment)
    after = changed[5]['observation']['image']
    self.assertAllEqual(before['action'], changed[5]['action'])
    for row in range(3):
      expected = transforms.augment_images(
          tree.map_structure(lambda leaf, row=row: leaf[row], before),
          [name],
          random_access.Augmentation.OCTO,
          seed=(3, 5 * 16 + row),
      )['observation']['image'].numpy()
      # They round differently.
      self.assertAllInRange(expected.astype(int) - after[row], -1, 1)
    self.assertNotAllEqual(before['observation']['image'], after)
    for k in 0, 1:
      part = self.open(augment=augment, process=(k, 2))[5]
      self.assertAllEqual(part['observation']['image'], after[k::2])

  def test_weights_of_episodes_within_data_sets(self):
    by_episode = random_access.Items.episode_weights
    batches = self.open(item_weights=call_modes.Empty(by_episode))
    one, other = batches.items.sources.values()
    drawn = np.concatenate([batches.draw(number) for number in range(400)])
    expected = np.concatenate(
        [by_episode(one) / 3 * 0.25, by_episode(other) / 2 * 0.75]
    )
    actual = np.bincount(drawn, minlength=len(expected)) / len(drawn)
    self.assertAllClose(actual, expected, atol=5 * (0.25 / len(drawn)) ** 0.5)

  def test_masks_of_steps(self):
    folder = self.copied()
    keep = {0: [(1, 3)], 2: [(0, 2), (4, 6)]}  # Of 4, 1 and 7 steps.

    def mask(items):
      row_mask = np.zeros(len(items))
      first = np.cumsum(items.index.lengths) - items.index.lengths
      for episode, ranges in keep.items():
        for begin, end in ranges:
          row_mask[first[episode] + begin : first[episode] + end] = 1
      return row_mask

    batches = random_access.open_batches(
        {
            'arm': random_access.IndexedData(
                f'{folder}/data', prepare=prepare, item_weights=mask
            )
        },
        f'{folder}/indexes',
        2,
        random_access.ActionChunks(1, 2),
        replacement=False,
    )
    self.assertEqual(batches.batches_per_epoch, 3)
    actual = np.concatenate([batches.draw(number) for number in range(3)])
    self.assertCountEqual(actual, [1, 2, 5, 6, 9, 10])

  def test_without_tensorflow_something_is_missing(self):
    needed = (
        ' needs the full environment, with TensorFlow: tensorflow is not'
        ' installed here. `pip install .` in a clone makes it. Make the same'
        ' call there once; then it works here.'
    )
    self.assertIn(
        f'indexes/arm has no index yet, and building it{needed}',
        self.error_without_tensorflow(''),
    )
    path = os.path.join(self.folder, 'data')
    data.write(os.path.join(path, '1.0.0'), [3], seed=0)
    random_access.open_batches(
        {'arm': random_access.IndexedData(path, prepare=prepare)},
        os.path.join(self.folder, 'indexes'),
        1,
        random_access.ActionChunks(1, 2),
    )
    # A field that is not there needs no environment.
    self.assertRegex(
        self.error_without_tensorflow(
            ", normalize={'actions': random_access.Normalize()}"
        ),
        "indexes/arm has no field of floats 'actions'. Did you mean action\\?"
        " It has \\['action', .*'reward'\\]",
    )
    self.assertEndsWith(
        self.error_without_tensorflow(
            ", normalize={'action': random_access.Normalize()}"
        ),
        'indexes/arm.statistics.json has no statistics of action yet, and'
        f' computing them{needed}\n',
    )

  def error_without_tensorflow(self, arguments):
    """Returns what `open_batches` prints where TensorFlow is not installed."""
    program = f"""
import sys; sys.modules['tensorflow'] = None
from rlds2reverb import random_access
def prepare(episodes): pass
prepare.__module__ = '{prepare.__module__}'
data = random_access.IndexedData('data', prepare=prepare)
random_access.open_batches({{'arm': data}}, 'indexes', 1,
    random_access.ActionChunks(1, 2){arguments})"""
    done = subprocess.run(
        [sys.executable, '-c', program],
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
        cwd=self.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr

  def test_normalising_is_undone(self):
    args = (
        {'action': random_access.Normalize(mask=[True, False, True])},
        {'action': {'mean': [1, 2, 3], 'std': [2, 2, 0]}},
    )
    normalizer = normalization.Normalizer(*args)
    # Batches of another process are known by it.
    self.assertEqual(repr(normalizer), repr(normalization.Normalizer(*args)))
    numbers = np.array([[4.0, 5.0, 6.0]])
    for make in (tf.constant, np.ndarray.tolist, np.array):
      actual = normalizer({'action': make(numbers), 'other': numbers})
      self.assertAllEqual(actual['action'], [[1.5, 5.0, 3.0]])
      self.assertIs(actual['other'], numbers)
      back = normalizer.invert({'action': make(actual['action'])})
      self.assertIsInstance(back['action'], np.ndarray)
      self.assertAllClose(back['action'], numbers)


if __name__ == '__main__':
  absltest.main()
