"""Tests that private names of TensorFlow that the library uses exist."""

import os

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
from tf_agents.replay_buffers import reverb_utils

from rlds2reverb.datasets import record_files
from rlds2reverb.episodes import tf_private

_DATA = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), 'data'
)
_OBSERVERS = (
    reverb_utils.ReverbAddEpisodeObserver,
    reverb_utils.ReverbAddTrajectoryObserver,
    reverb_utils.ReverbTrajectorySequenceObserver,
)
# The settings that only one of the observers has.
_OWN = {
    'bypass_partial_episodes': 0,
    'max_sequence_length': 0,
    'pad_end_of_episodes': 1,
    'tile_end_of_episodes': 1,
}


class PrivateTest(parameterized.TestCase):

  def test_observers_have_their_settings(self):
    for index, observer in enumerate(_OBSERVERS):
      set_here = [
          name
          for one in observer.__mro__
          if hasattr(one.__init__, '__code__')
          for name in one.__init__.__code__.co_names
      ]
      for setting in tf_private.OBSERVER_SETTINGS:
        is_length = setting in ('sequence_length', 'stride_length')
        if _OWN.get(setting, index) == index and (index or not is_length):
          self.assertIn(f'_{setting}', set_here, observer)

  def test_inputs_of_map_is_its_source(self):
    numbers = tf.data.Dataset.from_tensors(tf.range(3))
    (actual,) = tf_private.inputs_of(numbers.map(lambda x: x))
    self.assertEqual(tf_private.tensors_of(actual)[0].shape, [3])

  def test_tfds(self):
    self.assertEqual(tf_private.cycle_length_of(tfds.ReadConfig()), 16)
    folder = os.path.join(_DATA, 'recorded', 'half_cheetah')
    builder = tfds.builder_from_directory(folder)
    self.assertTrue(tf_private.reads_files(builder))
    self.assertEqual(tf_private.file_format_of(builder), tf_private.TFRECORD)
    records = tf_private.read_records(
        builder,
        'train',
        shuffle_files=False,
        read_config=tfds.ReadConfig(),
        read_file=record_files.read_tfrecords,
    )
    self.assertLen(list(records), builder.info.splits['train'].num_examples)

  def test_structures_are_encoded_and_decoded(self):
    spec = {'a': tf.TensorSpec([2], tf.int32)}
    proto = tf_private.encode_structure(spec)
    self.assertEqual(tf_private.decode_structure(proto), spec)

  def test_eager_tensors(self):
    device = tf.constant(0).device
    strings = np.array([b'a', 'é'], object)
    for array in np.ones([2, 3], np.uint8), strings, np.zeros([0], bool):
      tensor = tf_private.EagerTensor(array, device, None)
      expected = tf.convert_to_tensor(array)
      self.assertIsInstance(tensor, type(expected))
      self.assertEqual(tensor.dtype, expected.dtype)
      self.assertEqual(tensor.device, expected.device)
      self.assertEqual(tensor.numpy().tolist(), expected.numpy().tolist())

  def test_iterators_and_graphs(self):
    self.assertIsInstance(
        iter(tf.data.Dataset.range(1)), tf_private.OwnedIterator
    )
    original_graph = tf.compat.v1.get_default_graph()
    with tf_private.temporary_default_graph():
      self.assertIsNot(tf.compat.v1.get_default_graph(), original_graph)
      self.assertTrue(tf.executing_eagerly())


if __name__ == '__main__':
  absltest.main()
