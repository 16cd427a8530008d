"""Tests of packs of TorchRL's columns."""

import os

import numpy as np
import tensorflow as tf

from rlds2reverb.formats import ted
from rlds2reverb.formats import torchrl_packs

_NUM_STEPS = np.array([1, 3, 0, 2])


class PacksTest(tf.test.TestCase):

  def test_columns_alone(self):
    packs = torchrl_packs.Packs(
        {'o': np.arange(5), 'a': np.arange(3)}, ['o'], np.array([3, 2]), None
    )
    (found,) = packs()
    self.assertAllEqual(found[0]['o'], np.arange(5))
    self.assertAllEqual(found[0]['a'], np.arange(3))

  def test_steps_alone_come_from_the_last_steps(self):
    rest = ted.Ted(
        {}, _NUM_STEPS, {'o': np.array([9, 2, 4])}, {'id': np.arange(4)}
    )
    packs = torchrl_packs.Packs(
        {'o': np.arange(5), 'a': np.arange(3)}, ['o'], _NUM_STEPS, rest
    )
    ((data, num_steps, last_step, metadata),) = packs()
    self.assertAllEqual(data['o'], [9, 0, 1, 2, 3, 4])
    self.assertAllEqual(data['a'], [0, 1, 2])
    self.assertAllEqual(num_steps, _NUM_STEPS)
    self.assertAllEqual(last_step['o'], [9, 2, 4])
    self.assertAllEqual(metadata['id'], np.arange(4))

  def test_packs_are_of_whole_episodes(self):
    lengths = np.array([2, 3, 2])
    rows = np.zeros([7, 100_000])
    packs = torchrl_packs.Packs({'o': rows}, ['o'], lengths, None)
    self.assertEqual([len(data['o']) for (data,) in packs()], [2, 3, 2])


class RestTest(tf.test.TestCase):

  def test_there_and_back(self):
    rests = [
        ted.Ted(
            {},
            np.array([index + 1]),
            {'action': {'arm': np.full([1, 2], index, np.float32)}},
            {
                'text': np.array([b'a\0' * index], object),
                'half': tf.cast([index], tf.bfloat16).numpy(),
            },
        )
        for index in range(3)
    ]
    path = os.path.join(self.create_tempdir().full_path, 'rest')
    torchrl_packs.write_rest(path, rests)
    found = torchrl_packs.read_rest(path)
    self.assertAllEqual(found.num_steps, [1, 2, 3])
    self.assertAllEqual(found.last_step['action/arm'], [[0, 0], [1, 1], [2, 2]])
    self.assertEqual(found.metadata['text'].tolist(), [b'', b'a\0', b'a\0a\0'])
    self.assertEqual(found.metadata['half'].dtype, tf.bfloat16.as_numpy_dtype)


if __name__ == '__main__':
  tf.test.main()
