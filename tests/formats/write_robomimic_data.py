"""Writes the file tests/data/robomimic, by the layout that robomimic documents.

    python -m tests.formats.write_robomimic_data \
        tests/data/robomimic

Needs a separate environment with robomimic 0.3.0, and what it imports.
The arrays that robomimic's `SequenceDataset` reads are saved next to the file,
named by filter key, transition and key, such as `train/1/obs/image`.
"""

import json
import os

from absl import app
import h5py
import numpy as np
from robomimic.utils import dataset as robomimic_dataset
from robomimic.utils import obs_utils

_KEYS = ('image', 'robot0_eef_pos')
_MASKS = {
    'train': ['demo_10', 'demo_0'],
    'valid': ['demo_2'],
    '20_percent': ['demo_0'],
}


def _write(path: str) -> None:
  """Writes three demonstrations; the last of them is not a success."""
  rng = np.random.default_rng(0)
  with h5py.File(path, 'w') as file:
    data = file.create_group('data')
    env_args = {'env_name': 'Lift', 'env_type': 1, 'env_kwargs': {'horizon': 9}}
    data.attrs['env_args'] = json.dumps(env_args)
    for demo, length in (('demo_0', 4), ('demo_2', 3), ('demo_10', 5)):
      group = data.create_group(demo)
      group.attrs['num_samples'] = length
      group.attrs['model_file'] = '<mujoco/>'
      group['actions'] = rng.uniform(-1, 1, (length, 7))
      group['states'] = rng.normal(size=(length, 6))
      group['rewards'] = 1.0 * (np.arange(length) == length - 1)
      is_done = (np.arange(length) >= length - 2) & (demo != 'demo_10')
      group['dones'] = is_done.astype(np.int64)
      observations = {
          'image': rng.integers(0, 255, (length + 1, 8, 8, 3)).astype(np.uint8),
          'robot0_eef_pos': rng.normal(size=(length + 1, 3)),
      }
      for key, value in observations.items():
        group[f'obs/{key}'] = value[:-1]
        group[f'next_obs/{key}'] = value[1:]
    data.attrs['total'] = 12
    for name, demos in _MASKS.items():
      file[f'mask/{name}'] = np.array(demos, dtype='S')


def _read(path: str, filter_key: str) -> robomimic_dataset.SequenceDataset:
  return robomimic_dataset.SequenceDataset(
      path,
      obs_keys=_KEYS,
      dataset_keys=('actions', 'rewards', 'dones', 'states'),
      frame_stack=1,
      seq_length=1,
      load_next_obs=True,
      filter_by_attribute=filter_key,
      hdf5_normalize_obs=False,
      hdf5_use_swmr=False,
  )


def main(argv):
  _, directory = argv
  obs_utils.initialize_obs_utils_with_obs_specs(
      [{'obs': {'low_dim': ['robot0_eef_pos'], 'scan': ['image']}}]
  )
  os.makedirs(directory, exist_ok=True)
  path = os.path.join(directory, 'low_dim.hdf5')
  _write(path)
  arrays = {}
  for filter_key in _MASKS:
    transitions = _read(path, filter_key)
    for index in range(len(transitions)):
      for key, value in transitions[index].items():
        if isinstance(value, dict):
          for name, array in value.items():
            arrays[f'{filter_key}/{index}/{key}/{name}'] = array[0]
        elif key != 'index':
          arrays[f'{filter_key}/{index}/{key}'] = value[0]
  np.savez_compressed(os.path.join(directory, 'expected.npz'), **arrays)


if __name__ == '__main__':
  app.run(main)
