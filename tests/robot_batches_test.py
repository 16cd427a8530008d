"""Each field of a batch of Octo's and OpenVLA's own pipelines, against ours.

What theirs made of two made-up data sets, one with and one without a camera at
the wrist, is in tests/data/robot_batches.npz; see `write_robot_batches`.
"""

import os

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf

import rlds2reverb
from rlds2reverb import statistics
from rlds2reverb import transforms
from rlds2reverb import windows
from tests import write_robot_batches as theirs

_CONFIGS = {'bridge_dataset': 'bridge_dataset', 'jaco_copy': 'jaco_play'}
_INSTRUCTIONS = {
    'bridge_dataset': 'language_instruction',
    'jaco_copy': 'observation/natural_language_instruction',
}
_IMAGES = {
    'bridge_dataset': {'image': 'observation/image_0'},
    'jaco_copy': {
        'image': 'observation/image',
        'wrist_image': 'observation/image_wrist',
    },
}
_STATES = {
    'bridge_dataset': 'observation/state',
    'jaco_copy': 'observation/end_effector_cartesian_pos',
}
_STATE = 'observation/state'


class RobotBatchesTest(tf.test.TestCase, parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    with np.load(theirs.PATH) as arrays:
      cls.expected = dict(arrays)

  def _load(self, name, state, before=()):
    """Returns the episodes with the actions of the config."""
    folder = self.create_tempdir().full_path
    theirs.write_data(folder)
    config = _CONFIGS[name]
    episodes = rlds2reverb.load_episodes(os.path.join(folder, name, '1.0.0'))
    mapped = rlds2reverb.map_fields(
        episodes,
        config,
        observation={
            **_IMAGES[name],
            'state': state,
            'instruction': _INSTRUCTIONS[name],
        },
        policy_info=None,
        last_action=True,
    )
    return transforms.transform_episodes(
        mapped,
        [*before, *transforms.load_transforms(config), transforms.DropEnd()],
    )

  def _steps(self, episodes, sizes, normalizers, *args, **kwargs):
    """Yields the numbers of the frames of each episode."""
    episodes = transforms.transform_episodes(
        episodes,
        [
            *normalizers,
            transforms.FitImages(
                {
                    {'primary': 'observation/image'}.get(
                        name, 'observation/wrist_image'
                    ): size
                    for name, size in sizes.items()
                },
                method='lanczos3',
            ),
            transforms.MarkPadding(),
            transforms.AddTimestep(),
        ],
    )
    for episode in episodes:
      steps = windows.stack_and_chunk(episode['steps'], *args, **kwargs)
      yield tf.nest.map_structure(lambda leaf: leaf.numpy(), steps)

  def _check(self, where, fields):
    """Compares fields with theirs, each of which is named."""
    names = {
        name[len(where) + 1 :]
        for name in self.expected
        if name.startswith(f'{where}/')
    }
    # Time steps are never padding, and the name is the name of the data set.
    left_out = {'dataset_name', 'observation/pad_mask_dict/timestep'}
    self.assertEqual(names - left_out, set(fields))
    for name, actual in fields.items():
      with self.subTest(f'{where}/{name}'):
        expected = self.expected[f'{where}/{name}']
        self.assertEqual(actual.shape, expected.shape)
        if actual.dtype == np.float32:
          self.assertEqual(expected.dtype, np.float32)
          self.assertAllClose(actual, expected, rtol=1e-5, atol=1e-5)
        else:
          self.assertAllEqual(actual, expected)

  @parameterized.parameters('bridge_dataset', 'jaco_copy')
  @pytest.mark.few(1)
  def test_batches_equal_octo(self, name):
    episodes = self._load(name, _STATES[name])
    found = statistics.compute_statistics(
        episodes, ['action', _STATE], acting_only=True
    )
    normalizers = [
        transforms.normalize_by_statistics(found, 'action', mask=theirs.MASK),
        transforms.normalize_by_statistics(found, _STATE),
    ]
    all_steps = self._steps(
        episodes,
        theirs.SIZES,
        normalizers,
        theirs.NUM_FRAMES,
        theirs.NUM_ACTIONS,
        mask_rule='octo',
    )
    for steps in all_steps:
      observation, mask = steps['observation'], steps['action_mask']
      padding = observation['pad_mask_dict']
      self._check(
          f'octo/{name}/{len(steps["action"])}',
          {
              'action': steps['action'],
              'action_pad_mask': np.repeat(mask[..., np.newaxis], 7, -1),
              'observation/image_primary': observation['image'],
              'observation/image_wrist': observation['wrist_image'],
              'observation/proprio': observation['state'],
              'observation/timestep': observation['timestep'],
              'observation/timestep_pad_mask': steps['observation_mask'],
              'observation/task_completed': ~mask,
              'observation/pad_mask_dict/image_primary': padding['image'],
              'observation/pad_mask_dict/image_wrist': padding['wrist_image'],
              'observation/pad_mask_dict/proprio': padding['state'],
              'task/language_instruction': observation['instruction'][:, -1],
              'task/pad_mask_dict/language_instruction': (
                  padding['instruction'][:, -1]
              ),
          },
      )

  @parameterized.parameters('bridge_dataset', 'jaco_copy')
  @pytest.mark.long
  def test_batches_equal_openvla(self, name):
    state = _STATES[name]
    is_bridge = name == 'bridge_dataset'
    episodes = self._load(
        name,
        [f'{state}[:6]', 0.0, f'{state}[-1:]'],
        [transforms.DropNoOps(only_first=True)] if is_bridge else [],
    )
    found = statistics.compute_statistics(
        episodes, ['action', _STATE], acting_only=True
    )
    normalizers = [
        transforms.normalize_by_statistics(
            found, 'action', 'quantiles', mask=theirs.MASK
        ),
        transforms.normalize_by_statistics(found, _STATE, 'quantiles'),
    ]
    all_steps = self._steps(
        episodes,
        {'primary': theirs.SIZES['primary']},
        normalizers,
        1,
        theirs.NUM_ACTIONS,
        fill='zeros',
    )
    for steps in all_steps:
      observation = steps['observation']
      padding = observation['pad_mask_dict']
      self._check(
          f'openvla/{name}/{len(steps["action"])}',
          {
              'action': steps['action'][:, 0],
              'observation/image_primary': observation['image'],
              'observation/proprio': observation['state'],
              'observation/timestep': observation['timestep'],
              'observation/pad_mask': steps['observation_mask'],
              'observation/pad_mask_dict/image_primary': padding['image'],
              'observation/pad_mask_dict/proprio': padding['state'],
              'task/language_instruction': observation['instruction'][:, -1],
              'task/pad_mask_dict/language_instruction': (
                  padding['instruction'][:, -1]
              ),
          },
      )


if __name__ == '__main__':
  tf.test.main()
