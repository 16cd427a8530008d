"""One call from data sets to batches, compared with `tf.data` and by hand."""

import dataclasses
import os
import shutil
import subprocess
import sys
from unittest import mock

from absl.testing import absltest
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


class OpenBatchesTest(tf.test.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = self.create_tempdir().full_path
    self.directories = {}
    for name, lengths in {'one': [4, 1, 7], 'other': [6, 2]}.items():
      self.directories[name] = os.path.join(self.folder, name, '1.0.0')
      data.write(self.directories[name], lengths, seed=len(name))

  def open(
      self,
      weights=(1.0, 3.0),
      other=without_camera,
      item_weights=None,
      **kwargs,
  ):
    return random_access.open_batches(
        {
            'one': random_access.IndexedData(
                self.directories['one'],
                prepare=prepare,
                weight=weights[0],
                item_weights=item_weights,
            ),
            'other': random_access.IndexedData(
                self.directories['other'],
                prepare=other,
                weight=weights[1],
                item_weights=item_weights,
            ),
        },
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
    items = {name: self.expected(name) for name in self.directories}
    flat = [('one', item) for item in items['one']]
    flat += [('other', item) for item in items['other']]
    sources = set()
    for number in range(4):
      batch, drawn = batches[number], batches.draw(number)
      for row, item in enumerate(drawn):
        name, step = flat[item]
        sources.add(name)
        for path in ('observation/state', 'action', 'action_mask', 'reward'):
          expected, found = step, batch
          for key in path.split('/'):
            expected, found = expected[key], found[key]
          np.testing.assert_array_equal(found[row], expected, path)
        images = batch['observation']['image'][row]
        for frame, encoded in enumerate(step['observation']['image']):
          expected = np.zeros(data.JPEG_SHAPE)
          if name == 'one':
            expected = tf.io.decode_jpeg(
                encoded, 3, dct_method='INTEGER_ACCURATE'
            )
          self.assertAllEqual(images[frame], expected)
    self.assertLen(sources, 2)
    # What a policy says is taken back by the data set's own statistics.
    raw = next(
        iter(prepare(rlds2reverb.load_episodes(self.directories['one'])))
    )
    one = batches.items.sources['one']
    self.assertAllClose(
        one.transform.invert({'observation': one[0]['observation']})[
            'observation'
        ]['state'][-1],
        raw['steps']['observation']['state'][0],
        atol=1e-4,
    )
    # The second time nothing is built.
    again = self.open()
    self.assertAllEqual(again[2]['action'], batches[2]['action'])
    self.assertEqual(again.identity(), batches.identity())
    with self.assertRaisesRegex(ValueError, 'made with another prepare'):
      self.open(other=prepare)

  def test_other_formats(self):
    home = os.path.join(self.folder, 'hub')
    shutil.copytree(
        os.path.join(
            os.path.dirname(os.path.dirname(__file__)), 'data/lerobot/v3.0'
        ),
        os.path.join(home, 'lerobot/pusht'),
    )

    def is_terminal(source, folder):
      batches = random_access.open_batches(
          {'arm': source},
          os.path.join(self.folder, folder),
          1,
          random_access.ActionChunks(1, 2),
      )
      return batches.items.sources['arm'].column('is_terminal')

    with mock.patch.dict(os.environ, HF_LEROBOT_HOME=home):
      with self.assertRaisesRegex(FileNotFoundError, 'neither a dir') as caught:
        is_terminal('lerobot/pusht', 'named')
      advice = "IndexedData('lerobot/pusht', options={'format': 'lerobot'})"
      self.assertIn(advice, str(caught.exception))
      named = {'IndexedData': random_access.IndexedData}
      source = eval(advice, named)  # pylint: disable=eval-used
      self.assertFalse(is_terminal(source, 'named').any())
    directory = os.path.join(home, 'lerobot/pusht')
    options = {'is_terminal': 'next.success', 'leave_out': ('timestamp',)}
    source = random_access.IndexedData(directory, options=options)
    expected = np.concatenate(
        [
            episode['steps']['is_terminal']
            for episode in formats.load(directory, **options)
        ]
    )
    self.assertTrue(expected.any())
    for _ in range(2):  # The second time nothing is built.
      self.assertAllEqual(is_terminal(source, 'indexes'), expected)
    source = dataclasses.replace(source, options={**options, 'leave_out': ()})
    with self.assertRaisesRegex(ValueError, 'made with another options'):
      is_terminal(source, 'indexes')

  def test_data_that_is_not_where_it_was(self):
    missing = os.path.join(self.folder, 'missing')
    self.open()
    self.directories['one'] = missing
    with self.assertRaisesRegex(
        ValueError, f'another directory.*, and not .*{missing}'
    ):
      self.open()

  def test_images_are_changed_as_tensorflow_changes_them(self):
    augment = {'observation/image': random_access.Augmentation.OCTO}
    plain, changed = self.open(), self.open(augment=augment)
    for number in (0, 5):
      before, after = plain[number], changed[number]
      self.assertAllEqual(before['action'], after['action'])
      for row in range(16):
        expected = transforms.augment_images(
            tree.map_structure(lambda leaf, row=row: leaf[row], before),
            ['observation/image'],
            random_access.Augmentation.OCTO,
            seed=(3, number * 16 + row),
        )['observation']['image'].numpy()
        found = after['observation']['image'][row]
        # They round differently.
        self.assertAllInRange(expected.astype(int) - found, -1, 1)
    self.assertNotAllEqual(
        before['observation']['image'], after['observation']['image']
    )
    parts = [self.open(augment=augment, process=(k, 2)) for k in (0, 1)]
    for k, part in enumerate(parts):
      self.assertAllEqual(
          part[5]['observation']['image'], after['observation']['image'][k::2]
      )
    self.assertNotEqual(plain.identity(), changed.identity())

  def test_episodes_are_weighed_beside_data_sets(self):
    by_episode = random_access.Items.episode_weights
    batches = self.open(item_weights=by_episode)
    one, other = batches.items.sources.values()
    drawn = np.concatenate([batches.draw(number) for number in range(400)])
    expected = np.concatenate(
        [by_episode(one) / 3 * 0.25, by_episode(other) / 2 * 0.75]
    )
    found = np.bincount(drawn, minlength=len(expected)) / len(drawn)
    self.assertAllClose(found, expected, atol=5 * (0.25 / len(drawn)) ** 0.5)

  def test_without_tensorflow_something_is_missing(self):
    self.assertIn(
        'indexes/arm has no index yet, and building it needs the full'
        ' environment, with TensorFlow: tensorflow is not installed here.'
        ' `pip install .` in a clone makes it. Make the same call there once;'
        ' then it works here.',
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
    normalize = ", normalize={'action': random_access.Normalize()}"
    self.assertEndsWith(
        self.error_without_tensorflow(normalize).strip(),
        'indexes/arm.statistics.json has no statistics of action yet, and'
        ' computing them needs the full environment, with TensorFlow:'
        ' tensorflow is not installed here. `pip install .` in a clone makes'
        ' it. Make the same call there once; then it works here.',
    )

  def error_without_tensorflow(self, arguments):
    """Returns what `open_batches` prints where TensorFlow is not installed."""
    done = subprocess.run(
        [
            sys.executable,
            '-c',
            "import sys; sys.modules['tensorflow'] = None\n"
            'from rlds2reverb import random_access\n'
            'def prepare(episodes): pass\n'
            f"prepare.__module__ = '{prepare.__module__}'\n"
            "data = random_access.IndexedData('data', prepare=prepare)\n"
            "random_access.open_batches({'arm': data}, 'indexes', 1,"
            f' random_access.ActionChunks(1, 2){arguments})',
        ],
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
        cwd=self.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr

  def test_normalising_is_undone(self):
    normalizer = normalization.Normalizer(
        {'action': random_access.Normalize(mask=[True, False, True])},
        {'action': {'mean': [1, 2, 3], 'std': [2, 2, 0]}},
    )
    numbers = np.array([[4.0, 5.0, 6.0]])
    for make in (tf.constant, np.ndarray.tolist, np.array):
      found = normalizer({'action': make(numbers), 'other': numbers})
      self.assertAllEqual(found['action'], [[1.5, 5.0, 3.0]])
      self.assertIs(found['other'], numbers)
      back = normalizer.invert({'action': make(found['action'])})
      self.assertIsInstance(back['action'], np.ndarray)
      self.assertAllClose(back['action'], numbers)


if __name__ == '__main__':
  absltest.main()
