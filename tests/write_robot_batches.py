"""Writes the batches of Octo's and OpenVLA's pipelines for random data sets.

    python -m tests.write_robot_batches

It needs checkouts of Octo (241fb351), OpenVLA (c8f03f48) and dlimp (ad72ce3a)
on the Python path, with their dependencies. `tests/robot_batches_test.py`
compares with the output, tests/data/robot_batches.npz, and needs none of them.
"""

import os
import tempfile
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from rlds2reverb.datasets import saving

PATH = os.path.join(
    os.path.dirname(os.path.abspath(__file__)), 'data', 'robot_batches.npz'
)
MASK = [True] * 6 + [False]
SIZES = {'primary': (14, 16), 'wrist': (8, 8)}
NUM_FRAMES = 2
NUM_ACTIONS = 3
_LENGTHS = {'bridge_dataset': (6, 4, 5), 'jaco_copy': (5, 7)}
# TFDS would download a data set named `jaco_play`.
_FUNCTIONS = {'bridge_dataset': 'bridge_dataset', 'jaco_copy': 'jaco_play'}


def _image(height, width):
  return tfds.features.Image(shape=(height, width, 3), encoding_format='png')


def _vector(size):
  return tfds.features.Tensor(shape=(size,), dtype=np.float32)


_FEATURES = {
    # The features that Octo's and OpenVLA's functions use, with small images.
    'bridge_dataset': {
        'observation': {
            'image_0': _image(20, 24),
            'image_1': _image(18, 18),
            'state': _vector(7),
        },
        'action': _vector(7),
        'language_instruction': tfds.features.Text(),
    },
    'jaco_copy': {
        'observation': {
            'image': _image(30, 22),
            'image_wrist': _image(12, 16),
            'end_effector_cartesian_pos': _vector(7),
            'end_effector_cartesian_velocity': _vector(6),
            'joint_pos': _vector(8),
            'natural_language_embedding': _vector(512),
            'natural_language_instruction': tfds.features.Text(),
        },
        'action': {
            'gripper_closedness_action': _vector(1),
            'terminate_episode': tfds.features.Tensor(
                shape=(3,), dtype=np.int32
            ),
            'world_vector': _vector(3),
        },
    },
}


def _random(rng: np.random.Generator, name: str, feature: Any) -> Any:
  if isinstance(feature, dict):
    return {key: _random(rng, key, one) for key, one in feature.items()}
  if isinstance(feature, tfds.features.Text):
    return str(rng.choice(['pick it up', 'put it down', '']))
  if feature.dtype == np.uint8:
    height, width, _ = feature.shape
    row, column = np.mgrid[:height, :width]
    waves = [
        np.sin(row * rng.uniform(0, 1.5) + column * rng.uniform(0, 1.5))
        for _ in range(3)
    ]
    return np.uint8(127.5 + 127.5 * np.stack(waves, axis=-1))
  if feature.dtype == np.int32:
    return rng.integers(0, 2, feature.shape).astype(np.int32)
  return rng.normal(size=feature.shape).astype(np.float32)


def write_data(folder: str) -> None:
  """Writes the data sets, `bridge_dataset` and `jaco_copy`, into a folder."""
  for name, features in _FEATURES.items():
    rng = np.random.default_rng(len(name))
    episodes = []
    for length in _LENGTHS[name]:
      steps = [_random(rng, name, features) for _ in range(length)]
      for index, step in enumerate(steps):
        step['reward'] = np.float32(index == length - 1)
        step['is_first'], step['is_last'] = index == 0, index == length - 1
        step['is_terminal'] = index == length - 1
        if name == 'bridge_dataset':
          step['discount'] = np.float32(1)
          step['language_instruction'] = steps[0]['language_instruction']
          # Grippers between open and closed.
          step['action'][6] = rng.choice([0.01, 0.4, 0.7, 0.99])
          step['action'] *= np.float32(index > 0)
      episodes.append({'steps': steps})
    flags = dict.fromkeys(('is_first', 'is_last', 'is_terminal'), np.bool_)
    others = {'reward': np.float32, **flags}
    if name == 'bridge_dataset':
      others['discount'] = np.float32
    directory = os.path.join(folder, name, '1.0.0')
    os.makedirs(directory)
    saving.write_episodes(
        episodes,
        directory,
        name=name,
        description='Made up.',
        features={'steps': tfds.features.Dataset({**features, **others})},
    )


def _octo(folder: str, name: str) -> Any:
  """Yields the trajectories that Octo's pipeline makes."""
  from octo.data import dataset as dataset_lib
  from octo.data.oxe import oxe_standardization_transforms as functions
  from octo.utils import spec

  cameras = {
      'bridge_dataset': {'primary': 'image_0', 'wrist': None},
      'jaco_copy': {'primary': 'image', 'wrist': 'image_wrist'},
  }
  return dataset_lib.make_single_dataset(
      dict(
          name=name,
          data_dir=folder,
          image_obs_keys=cameras[name],
          proprio_obs_key='proprio',
          language_key='language_instruction',
          standardize_fn=spec.ModuleSpec.create(
              functions.OXE_STANDARDIZATION_TRANSFORMS[_FUNCTIONS[name]]
          ),
          shuffle=False,
          action_normalization_mask=MASK,
          num_parallel_reads=1,
          num_parallel_calls=1,
      ),
      train=True,
      traj_transform_kwargs=dict(
          window_size=NUM_FRAMES, action_horizon=NUM_ACTIONS
      ),
      frame_transform_kwargs=dict(resize_size=SIZES),
  ).iterator()


def _openvla(folder: str, name: str) -> Any:
  """Yields the trajectories that OpenVLA's pipeline makes."""
  from prismatic.vla.datasets.rlds import dataset as dataset_lib
  from prismatic.vla.datasets.rlds.oxe import transforms
  from prismatic.vla.datasets.rlds.utils import data_utils

  states = {
      'bridge_dataset': ['EEF_state', None, 'gripper_state'],
      'jaco_copy': ['state_eef', None, 'state_gripper'],
  }
  found, _ = dataset_lib.make_dataset_from_rlds(
      name,
      folder,
      train=True,
      standardize_fn=transforms.OXE_STANDARDIZATION_TRANSFORMS[
          _FUNCTIONS[name]
      ],
      shuffle=False,
      image_obs_keys={
          'primary': 'image_0' if name == 'bridge_dataset' else 'image'
      },
      state_obs_keys=states[name],
      language_key='language_instruction',
      action_proprio_normalization_type=data_utils.NormalizationType.BOUNDS_Q99,
      action_normalization_mask=MASK,
      num_parallel_reads=1,
      num_parallel_calls=1,
  )
  found = dataset_lib.apply_trajectory_transforms(
      found, train=True, future_action_window_size=NUM_ACTIONS - 1
  )
  return dataset_lib.apply_frame_transforms(
      found, train=False, resize_size=SIZES['primary']
  ).iterator()


def _flat(nest: Any, path: str) -> dict[str, np.ndarray]:
  if not isinstance(nest, dict):
    text = np.asarray(nest).dtype == object
    return {path: np.asarray(nest, 'S') if text else np.asarray(nest)}
  found = {}
  for key, value in nest.items():
    found.update(_flat(value, f'{path}/{key}'))
  return found


def main() -> None:
  found = {}
  with tempfile.TemporaryDirectory() as folder:
    write_data(folder)
    for pipeline in _octo, _openvla:
      for name in _FEATURES:
        # The order of trajectories is arbitrary, but their lengths differ.
        for trajectory in pipeline(folder, name):
          where = f'{pipeline.__name__[1:]}/{name}/{len(trajectory["action"])}'
          found.update(_flat(trajectory, where))
  np.savez_compressed(PATH, **found)


if __name__ == '__main__':
  main()
