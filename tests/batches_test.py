"""A test of batches from the files to the blocks and the statistics."""

import os

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from rlds2reverb import datasets
from rlds2reverb import fields
from rlds2reverb import statistics
from rlds2reverb import trajectories
from rlds2reverb import transforms
from tests import golden
from tests import tfds_files

_FEATURES = {
    'task': tfds.features.Tensor(shape=(2,), dtype=np.float32),
    'succeeded': np.bool_,
    'steps': tfds.features.Dataset(
        {
            'state': tfds.features.Tensor(shape=(3,), dtype=np.float64),
            'words': tfds.features.Text(),
            'control': tfds.features.Tensor(shape=(2,), dtype=np.float32),
            'cost': np.float64,
        }
    ),
}


def _episode(rng, index, length):
  return {
      'task': rng.normal(size=2).astype(np.float32),
      'succeeded': index % 3 > 0,
      'steps': [
          {
              'state': rng.normal(size=3),
              'words': f'{index} {step}',
              'control': rng.normal(size=2).astype(np.float32),
              'cost': rng.normal(),
          }
          for step in range(length)
      ],
  }


class BatchesTest(tf.test.TestCase):

  @pytest.mark.long
  def test_from_files_to_blocks_and_statistics(self):
    rng = np.random.default_rng(0)
    lengths = [3, 1, 40, 2, 0, 1, 1, 90, 5, 6, 7, 1]
    directory = os.path.join(self.create_tempdir().full_path, '1.0.0')
    tfds_files.write(
        directory,
        _FEATURES,
        [_episode(rng, *one) for one in enumerate(lengths)],
        max_episodes_per_file=5,
    )
    mapping = fields.StepMapping(
        observation={'all': ['state', '../task'], 'words': 'words'},
        action='control',
        reward='cost',
        discount=None,
        is_first=None,
        is_last=None,
        is_terminal=None,
        cast={'float64': 'float32'},
    )
    changes = [
        transforms.ScaleReward(-0.1),
        transforms.Compose(
            [
                transforms.KeepEpisodes(min_length=1, success='succeeded'),
                transforms.ClipField('action', low=-1.0, high=1.0),
            ]
        ),
    ]
    whole = datasets.load_episodes(directory)
    by_batches, one_by_one = (
        transforms.transform_episodes(
            fields.map_fields(episodes, mapping), changes
        )
        for episodes in (
            whole,
            golden.in_batches(whole, batch_size=1),
        )
    )

    blocks, expected_blocks = (
        list(trajectories.convert_rlds_to_trajectories(episodes, batched=True))
        for episodes in (by_batches, one_by_one)
    )
    kept = [
        length
        for index, length in enumerate(lengths)
        if index % 3 and length > 1
    ]
    self.assertLen(expected_blocks, len(kept))
    self.assertLess(len(blocks), len(kept))
    frames, expected = (
        tf.nest.map_structure(lambda *leaves: np.concatenate(leaves), *found)
        for found in (blocks, expected_blocks)
    )
    self.assertLen(expected.step_type, sum(kept))
    for leaf, expected_leaf in zip(*map(tf.nest.flatten, (frames, expected))):
      np.testing.assert_array_equal(leaf, expected_leaf, strict=True)

    found, expected = map(
        statistics.compute_statistics, (by_batches, one_by_one)
    )
    self.assertEqual(found, expected)
    self.assertEqual(found.num_episodes, len(kept))
    self.assertEqual(found.num_steps, sum(kept))


if __name__ == '__main__':
  tf.test.main()
