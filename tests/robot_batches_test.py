"""Each field of a batch of Octo's and OpenVLA's own pipelines, against ours.

What theirs made of two made-up data sets, one with and one without a camera at
the wrist, is in tests/data/robot_batches.npz; see `write_robot_batches`.
"""

import os
import tempfile

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
# Where we have what both pipelines call so.
_FIELDS = {
    'observation/image_primary': 'observation/image',
    'observation/proprio': _STATE,
    'observation/timestep': 'observation/timestep',
    'observation/pad_mask_dict/image_primary': (
        'observation/pad_mask_dict/image'
    ),
    'observation/pad_mask_dict/proprio': 'observation/pad_mask_dict/state',
    'task/language_instruction': 'observation/instruction',
    'task/pad_mask_dict/language_instruction': (
        'observation/pad_mask_dict/instruction'
    ),
}
_OCTO_FIELDS = {
    **_FIELDS,
    'action': 'action',
    'observation/image_wrist': 'observation/wrist_image',
    'observation/pad_mask_dict/image_wrist': (
        'observation/pad_mask_dict/wrist_image'
    ),
    'observation/timestep_pad_mask': 'observation_mask',
}
_OPENVLA_FIELDS = {**_FIELDS, 'observation/pad_mask': 'observation_mask'}


def _get(steps, path):
  for name in path.split('/'):
    steps = steps[name]
  return steps


class RobotBatchesTest(tf.test.TestCase, parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    with np.load(theirs.PATH) as arrays:
      cls.expected = dict(arrays)
    cls.folder = cls.enter_context(tempfile.TemporaryDirectory())
    theirs.write_data(cls.folder)

  def _normalized(self, name, state, kind, before=()):
    """Returns the episodes with the actions of the config, normalized."""
    config = _CONFIGS[name]
    mapped = rlds2reverb.map_fields(
        rlds2reverb.load_episodes(os.path.join(self.folder, name, '1.0.0')),
        config,
        observation={
            **_IMAGES[name],
            'state': state,
            'instruction': _INSTRUCTIONS[name],
        },
        policy_info=None,
        last_action=True,
    )
    episodes = transforms.transform_episodes(
        mapped,
        [*before, *transforms.load_transforms(config), transforms.DropEnd()],
    )
    found = statistics.compute_statistics(
        episodes, ['action', _STATE], acting_only=True
    )
    return transforms.transform_episodes(
        episodes,
        [
            transforms.normalize_by_statistics(
                found, 'action', kind, mask=theirs.MASK
            ),
            transforms.normalize_by_statistics(found, _STATE, kind),
        ],
    )

  def _steps(self, episodes, sizes, *args, **kwargs):
    """Yields the numbers of the frames of each episode."""
    paths = {'primary': 'image', 'wrist': 'wrist_image'}
    sizes = {f'observation/{paths[name]}': sizes[name] for name in sizes}
    episodes = transforms.transform_episodes(
        episodes,
        [
            transforms.FitImages(sizes, method='lanczos3'),
            transforms.MarkPadding(),
            transforms.AddTimestep(),
        ],
    )
    for episode in episodes:
      steps = windows.stack_and_chunk(episode['steps'], *args, **kwargs)
      yield tf.nest.map_structure(lambda leaf: leaf.numpy(), steps)

  def _check(self, where, steps, paths, **others):
    """Compares all fields of an episode with theirs."""
    where = f'{where}/{len(steps["action"])}/'
    fields = {name: _get(steps, path) for name, path in paths.items()} | others
    for name, field in fields.items():
      if name.startswith('task/'):
        fields[name] = field[:, -1]
    names = {
        name.removeprefix(where)
        for name in self.expected
        if name.startswith(where)
    }
    # The time steps are never padding; the name is that of the data set.
    left_out = {'dataset_name', 'observation/pad_mask_dict/timestep'}
    self.assertEqual(names - left_out, set(fields))
    for name, found in fields.items():
      with self.subTest(where + name):
        expected = self.expected[where + name]
        self.assertEqual(found.shape, expected.shape)
        if found.dtype == np.float32:
          self.assertEqual(expected.dtype, np.float32)
          self.assertAllClose(found, expected, rtol=1e-5, atol=1e-5)
        else:
          self.assertAllEqual(found, expected)

  @parameterized.parameters('bridge_dataset', 'jaco_copy')
  @pytest.mark.few(1)
  def test_octo(self, name):
    for steps in self._steps(
        self._normalized(name, _STATES[name], 'mean_std'),
        theirs.SIZES,
        theirs.NUM_FRAMES,
        theirs.NUM_ACTIONS,
        mask_rule='octo',
    ):
      mask = steps['action_mask']
      self._check(
          f'octo/{name}',
          steps,
          _OCTO_FIELDS,
          action_pad_mask=np.repeat(mask[..., np.newaxis], 7, -1),
          **{'observation/task_completed': ~mask},
      )

  @parameterized.parameters('bridge_dataset', 'jaco_copy')
  @pytest.mark.few(1)
  def test_openvla(self, name):
    state = _STATES[name]
    is_bridge = name == 'bridge_dataset'
    before = [transforms.DropNoOps(only_first=True)] if is_bridge else []
    state = [f'{state}[:6]', 0.0, f'{state}[-1:]']
    for steps in self._steps(
        self._normalized(name, state, 'quantiles', before),
        {'primary': theirs.SIZES['primary']},
        1,
        theirs.NUM_ACTIONS,
        fill='zeros',
    ):
      self._check(
          f'openvla/{name}',
          steps,
          _OPENVLA_FIELDS,
          action=steps['action'][:, 0],
      )


if __name__ == '__main__':
  tf.test.main()
