"""Writes tests/data/zarr: replay buffers in the layout of diffusion_policy.

    python -m tests.formats.write_zarr_data tests/data/zarr

Needs a separate environment with Zarr 2.18.7 and numcodecs 0.15.2. The arrays
have the names, chunks and compressors that `ReplayBuffer` of
github.com/real-stanford/diffusion_policy writes for PushT, or UMI's names for
one arm. The arrays that Zarr reads are saved next to them.
"""

import os
import shutil

from absl import app
import numcodecs
import numpy as np
import zarr

_ENDS = (5, 6, 14)
_COMPRESSOR = numcodecs.Blosc('zstd', 5, numcodecs.Blosc.BITSHUFFLE)


def _pusht(rng):
  return {
      'img': (rng.integers(0, 255, (14, 8, 8, 3)).astype(np.float32), 1),
      'state': (rng.normal(size=(14, 5)).astype(np.float32), 4),
      'keypoint': (rng.normal(size=(14, 9, 2)).astype(np.float32), 4),
      'n_contacts': (rng.integers(0, 3, (14, 1)).astype(np.float32), 4),
      'action': (rng.normal(size=(14, 2)).astype(np.float32), 4),
  }


def _umi(rng):
  return {
      'camera0_rgb': (rng.integers(0, 255, (14, 8, 8, 3)).astype(np.uint8), 1),
      'robot0_eef_pos': (rng.normal(size=(14, 3)).astype(np.float32), 14),
      'robot0_eef_rot_axis_angle': (
          rng.normal(size=(14, 3)).astype(np.float32),
          14,
      ),
      'robot0_gripper_width': (rng.random((14, 1)).astype(np.float32), 14),
      'robot0_demo_start_pose': (rng.normal(size=(14, 6)), 14),
      'robot0_demo_end_pose': (rng.normal(size=(14, 6)), 14),
  }


def _write(store, arrays) -> None:
  root = zarr.group(store, overwrite=True)
  data, meta = root.create_group('data'), root.create_group('meta')
  meta.array('episode_ends', np.array(_ENDS, np.int64), compressor=None)
  for name, (array, chunk) in arrays.items():
    data.array(
        name, array, chunks=(chunk, *array.shape[1:]), compressor=_COMPRESSOR
    )
  return {name: data[name][:] for name in arrays}


def main(argv):
  _, directory = argv
  rng = np.random.default_rng(0)
  os.makedirs(directory, exist_ok=True)
  folder = os.path.join(directory, 'pusht.zarr')
  shutil.rmtree(folder, ignore_errors=True)
  found = _write(zarr.DirectoryStore(folder), _pusht(rng))
  np.savez_compressed(os.path.join(directory, 'pusht.npz'), **found)
  path = os.path.join(directory, 'umi.zarr.zip')
  with zarr.ZipStore(path, mode='w') as store:
    found = _write(store, _umi(rng))
  np.savez_compressed(os.path.join(directory, 'umi.npz'), **found)


if __name__ == '__main__':
  app.run(main)
