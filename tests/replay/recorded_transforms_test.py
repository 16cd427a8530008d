"""Tests that transformed data comes out of a Reverb server right.

What is sampled must be equal to what a plain Python loop makes of what was
recorded from real environments.
"""

import os

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf

from rlds2reverb.datasets import saving
from rlds2reverb.fields import mapping as mapping_lib
from rlds2reverb.statistics import compute
from rlds2reverb.transforms import applying
from rlds2reverb.transforms import fields
from rlds2reverb.transforms import filters
from rlds2reverb.transforms import normalization
from rlds2reverb.transforms import rewards
from rlds2reverb.transforms import thinning
from tests import recordings


@pytest.mark.long
class RecordedTransformsTest(recordings.RecordedDataTestCase):

  def _check_transformed(self, name, used, expected):
    data = recordings.load(self.directories[name], 'stacked')
    data = applying.transform_episodes(data, used)
    changed = [expected(steps) for steps in self.steps(name)]
    self.check_sampled(data, [steps for steps in changed if steps])

  def test_scaled_and_clipped_rewards(self):
    self._check_transformed(
        'walker',
        [rewards.ScaleReward(10.0, -2.0, minimum=-0.5, maximum=3.0)],
        recordings.each(
            lambda step: {
                'reward': min(max(10 * step['reward'] - 2, -0.5), 3.0)
            }
        ),
    )

  def test_normalised_and_clipped_actions(self):
    low, high = np.float32(np.arange(-6, 0) / 4), np.float32([1] * 6)
    self._check_transformed(
        'half_cheetah',
        [
            normalization.NormalizeField.between('action', low, high),
            fields.ClipField('action', -0.5, 0.75),
        ],
        recordings.each(
            lambda step: {
                'action': np.clip(
                    (step['action'] - (low + high) / 2) / ((high - low) / 2),
                    np.float32(-0.5),
                    np.float32(0.75),
                )
            }
        ),
    )

  def test_observations_normalised_by_their_statistics(self):
    data = recordings.load(self.directories['half_cheetah'], 'stacked')
    found = compute.compute_statistics(data)
    data = applying.transform_episodes(
        data, [normalization.normalize_by_statistics(found, 'observation')]
    )
    sampled = self.push_and_sample(data)
    rows = np.stack(
        [
            step['observation']
            for steps in self.steps('half_cheetah')
            for step in steps
        ]
    )
    offset, scale = rows.mean(axis=0), rows.std(axis=0)
    expected = [
        (step['observation'] - offset) / scale
        for steps in self.steps('half_cheetah')
        for pair in zip(steps, steps[1:])
        for step in pair
    ]
    self.assertAllClose(
        [frame.observation for item in sampled for frame in item],
        expected,
        rtol=1e-9,
        atol=1e-9,
    )

  def test_selected_and_renamed_fields(self):
    self._check_transformed(
        'walker',
        [
            fields.SelectFields(
                ['observation/height', 'observation/velocity', 'action']
            ),
            fields.RenameFields(
                {'observation/velocity': 'observation/joints/speed'}
            ),
        ],
        recordings.each(
            lambda step: {
                'observation': {
                    'height': step['observation']['height'],
                    'joints': {'speed': step['observation']['velocity']},
                }
            }
        ),
    )

  @parameterized.parameters('breakout', 'cartpole')
  def test_dropped_no_ops(self, name):
    def keep(steps):
      return [s for s in steps[:-1] if s['action'] != 0] + steps[-1:]

    self._check_transformed(
        name,
        [thinning.DropNoOps(no_op=0)],
        lambda steps: _merged(steps, keep(steps)),
    )

  @parameterized.parameters('breakout', 'cartpole')
  def test_skipped_frames(self, name):
    self._check_transformed(
        name,
        [thinning.FrameSkip(4)],
        lambda steps: _merged(steps, steps[:-1:4] + steps[-1:]),
    )

  @parameterized.parameters(
      (
          dict(success='steps/is_terminal'),
          lambda steps: steps[-1]['is_terminal'],
      ),
      (dict(min_return=1.0), lambda s: sum(x['reward'] for x in s[:-1]) >= 1),
      (dict(max_length=9), lambda steps: len(steps) - 1 <= 9),
  )
  def test_filtered_episodes(self, conditions, is_kept):
    kept = [bool(is_kept(steps)) for steps in self.steps('breakout')]
    self.assertCountEqual(set(kept), [True, False])
    self._check_transformed(
        'breakout',
        [filters.KeepEpisodes(**conditions)],
        lambda steps: steps if is_kept(steps) else [],
    )

  def test_saved_and_loaded_again(self):
    data = mapping_lib.map_fields(
        recordings.load(self.directories['cartpole_pixels'], 'stacked')
    )
    path = os.path.join(self.create_tempdir().full_path, 'saved')
    saving.save_episodes(data, path)
    self.check_sampled(
        recordings.load(path, 'stacked'), self.steps('cartpole_pixels')
    )


def _merged(steps, kept):
  """Returns `kept` of `steps`, with the rewards and discounts of their runs."""
  merged = []
  for index, step in enumerate(kept):
    start = _index(steps, step)
    end = _index(steps, kept[index + 1]) if step is not kept[-1] else None
    run = steps[start:end]
    merged.append(
        {
            **step,
            'is_first': np.bool_(index == 0),
            'reward': np.float32(sum(s['reward'] for s in run)),
            'discount': np.float32(np.prod([s['discount'] for s in run])),
        }
    )
  return merged


def _index(steps, step):
  return next(t for t, other in enumerate(steps) if other is step)


if __name__ == '__main__':
  tf.test.main()
