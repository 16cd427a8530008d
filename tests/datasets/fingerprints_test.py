"""Tests of the hashes of pipelines."""

import dataclasses
import os
import shutil
import subprocess
import sys

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf

from rlds2reverb.datasets import fingerprints
from rlds2reverb.datasets import loading
from rlds2reverb.fields import mapping as mapping_lib
from rlds2reverb.fields import step_mapping
from rlds2reverb.transforms import applying
from rlds2reverb.transforms import fields
from rlds2reverb.transforms import filters
from rlds2reverb.transforms import normalization

_RECORDED = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
    'data',
    'recorded',
)
_WALKER = os.path.join(_RECORDED, 'walker')
_CHEETAH = os.path.join(_RECORDED, 'half_cheetah')


def _range():
  return tf.data.Dataset.range(5)


def _numbers():
  return np.arange(5.0)


def _walker(directory=_WALKER, scale=2.0, discount=None, minimum=1.0):
  episodes = mapping_lib.map_fields(
      loading.load_episodes(directory),
      step_mapping.StepMapping(discount=discount),
  )
  return applying.transform_episodes(
      episodes,
      [
          filters.KeepEpisodes(min_return=minimum),
          normalization.ScaleReward(scale),
          fields.ClipField('action', [-0.5] * 6, 0.5),
      ],
  )


def _add(number):
  return lambda x: x + number


def _branch(number):
  return lambda x: tf.cond(x > 1, lambda: x, lambda: x + number)


def _in_memory(values):
  return tf.data.Dataset.from_tensor_slices(values)


def _captured(values):
  tensor = tf.constant(values)
  return _range().map(lambda x: tf.gather(tensor, x))


def _embedded(values):
  return _range().map(lambda x: tf.gather(tf.constant(values), x))


def _looked_up(values):
  table = tf.lookup.StaticHashTable(
      tf.lookup.KeyValueTensorInitializer(tf.range(5, dtype=tf.int64), values),
      0.0,
  )
  return _range().map(table.lookup)


def _with_order(deterministic):
  options = tf.data.Options()
  options.deterministic = deterministic
  return _range().with_options(options)


# Each function makes another pipeline.
_DIFFERENT = (
    _range,
    lambda: tf.data.Dataset.range(6),
    lambda: _range().map(_add(1)),
    lambda: _range().map(_add(1)).map(_add(2)),
    lambda: _range().map(_add(2)).map(_add(1)),
    lambda: _range().map(lambda x: 2 - x),
    lambda: _range().map(lambda x: x - 2),
    lambda: _range().map(lambda x: {'a': x, 'b': x + 1}),
    lambda: _range().map(lambda x: {'a': x + 1, 'b': x}),
    lambda: _range().map(_branch(1)),
    lambda: _range().map(_branch(2)),
    lambda: _range().flat_map(lambda _: _range()),
    lambda: _range().flat_map(lambda _: _range().take(1)),
    lambda: _in_memory(_numbers()),
    lambda: _in_memory(_numbers() + 1),
    lambda: _in_memory(_numbers().astype(np.float32)),
    lambda: _captured(np.arange(1e5)),
    lambda: _captured(np.arange(1e5) + (np.arange(1e5) == 5e4)),
    lambda: _embedded(_numbers()),
    lambda: _embedded(_numbers() + 1),
    lambda: _looked_up(_numbers()),
    lambda: _looked_up(_numbers() + 1),
    lambda: _range().shuffle(3, seed=0),
    lambda: _range().shuffle(3, seed=1),
    lambda: _with_order(True),
    lambda: _with_order(False),
    _walker,
    lambda: _walker(scale=3.0),
    lambda: _walker(discount='discount'),
    lambda: _walker(minimum=2.0),
    lambda: _walker(directory=_CHEETAH),
)


def _fingerprints():
  return [fingerprints.fingerprint_pipeline(make())[0] for make in _DIFFERENT]


# Not a tf.test.TestCase, which sets the seed that a shuffle has by default.
class PipelinesTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    # A tf.test.TestCase that ran before may have left one.
    tf.random.set_seed(None)

  @pytest.mark.long
  def test_pipeline_fingerprints_are_unique_and_equal_across_processes(self):
    # They are built in another order, so names of nodes and functions differ.
    program = (
        'from tests.datasets import fingerprints_test\n'
        'fingerprints_test._DIFFERENT = fingerprints_test._DIFFERENT[::-1]\n'
        'print(*fingerprints_test._fingerprints())\n'
    )
    other = subprocess.Popen(
        [sys.executable, '-c', program],
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    actual = _fingerprints()
    for pipeline in actual:
      self.assertRegex(pipeline, '^[0-9a-f]{16}$')
    self.assertLen(set(actual), len(_DIFFERENT))
    printed, _ = other.communicate()
    self.assertEqual(printed.split()[::-1], actual)

  @parameterized.parameters(
      (
          lambda: _range().map(
              lambda x: tf.numpy_function(lambda y: y, [x], tf.int64)
          ),
          'PyFunc',
      ),
      (lambda: _range().map(lambda x: tf.random.uniform([])), 'RandomUniform'),
      (lambda: _range().shuffle(3), 'has no seed'),
      (
          lambda: _range().flat_map(lambda _: tf.data.Dataset.random().take(1)),
          'in a function',
      ),
      (
          lambda: _range().map(
              lambda x, v=tf.Variable(1, dtype=tf.int64): x + v  # noqa: B008
          ),
          'Variable',
      ),
      (
          lambda: _in_memory(np.zeros([129, 1 << 20], np.uint8)),
          '129 MiB of tensors in memory',
      ),
  )
  def test_pipelines_of_unknown_content_have_none(self, make, problem):
    pipeline, actual = fingerprints.fingerprint_pipeline(make())
    self.assertIsNone(pipeline)
    self.assertIn(problem, actual)

  def test_files_that_change(self):
    directory = os.path.join(self.create_tempdir().full_path, 'walker')
    shutil.copytree(_WALKER, directory)
    before = fingerprints.fingerprint_pipeline(loading.load_episodes(directory))
    shard = os.path.join(directory, 'walker-train.tfrecord-00000')
    stat = os.stat(shard)
    os.utime(shard, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    self.assertNotEqual(
        fingerprints.fingerprint_pipeline(loading.load_episodes(directory)),
        before,
    )


@dataclasses.dataclass(eq=False)
class _Values(fingerprints.ByValue):
  value: object


class ValuesTest(absltest.TestCase):

  def test_equal_values_have_equal_fingerprints(self):
    def make():
      return (
          'train',
          {'b': 1, 'a': [None, True]},
          np.array([1.5, 2]),
          applying.Compose([fields.ClipField('action', np.zeros(2), 1)]),
      )

    self.assertEqual(
        fingerprints.fingerprint(*make()), fingerprints.fingerprint(*make())
    )

  def test_different_values_have_different_fingerprints(self):
    values = [
        1,
        '1',
        True,
        None,
        [1],
        [[1]],
        {'a': 1},
        {'a': 2},
        np.array([1]),
        np.array([1.0]),
        np.dtype(np.float32),
        normalization.ScaleReward(1.0),
        normalization.ScaleReward(2.0),
        normalization.ScaleReward(1.0, 2.0),
        fields.ClipField('action', np.zeros(2)),
        fields.ClipField('action', np.ones(2)),
    ]
    prints = [fingerprints.fingerprint(value) for value in values]
    self.assertLen(set(prints), len(values))

  def test_functions_raise(self):
    with self.assertRaisesRegex(ValueError, 'Name it by a string'):
      fingerprints.fingerprint([lambda: 1])

  def test_hash_is_stable_across_versions(self):
    # Keys of items on servers and names of files on disk depend on it.
    self.assertEqual(fingerprints.fingerprint('a', 1), '2657442bb4a48d62')
    self.assertEqual(fingerprints.fingerprint(), '4f53cda18c2baa0c')


class ByValueTest(absltest.TestCase):

  def test_equal_values_compare_equal(self):
    for one, other in (
        ([1, 2], np.array([1.0, 2.0])),
        ((1, [2]), [1, (2,)]),
        ({'a': np.zeros(2)}, {'a': [0, 0]}),
        (np.nan, float('nan')),
        (np.float32(0.5), 0.5),
    ):
      self.assertEqual(_Values(one), _Values(other))
      self.assertEqual(hash(_Values(one)), hash(_Values(other)))

  def test_different_values_compare_unequal(self):
    for one, other in (
        ([1, 2], [2, 1]),
        ({'a': 1}, {'b': 1}),
        (np.zeros(2), np.zeros(3)),
        (None, 0),
    ):
      self.assertNotEqual(_Values(one), _Values(other))
    self.assertNotEqual(_Values(1), 1)


if __name__ == '__main__':
  absltest.main()
