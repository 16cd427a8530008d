"""Writes rotations converted by SciPy to tests/data/rotations.npz.

    python -m tests.transforms.robotics.write_rotations

This needs SciPy, which neither the tests nor the library need. The output is
the same each time.
"""

import itertools
import os

import numpy as np

_PATH = os.path.join(
    os.path.dirname(__file__), '..', '..', 'data', 'rotations.npz'
)


def _rotations(spatial):
  """Returns random rotations, small ones, and ones near and at half a turn."""
  rng = np.random.default_rng(0)
  axes = rng.normal(size=(16, 3))
  axes /= np.linalg.norm(axes, axis=-1, keepdims=True)
  axes = np.concatenate([axes, np.eye(3)])
  angles = [0.0, 1e-9, 1e-3, 0.7, 2.0, np.pi - 1e-6, np.pi]
  vectors = [angle * axis for angle in angles for axis in axes]
  return spatial.Rotation.from_rotvec(np.array(vectors))


def _write():
  from scipy import spatial

  rotations = _rotations(spatial.transform)
  matrices = rotations.as_matrix()
  arrays = {
      'matrix': matrices.reshape(-1, 9),
      'quaternion_xyzw': rotations.as_quat(canonical=True),
      'quaternion_wxyz': rotations.as_quat(canonical=True, scalar_first=True),
      'axis_angle': rotations.as_rotvec(),
  }
  for order in itertools.permutations('xyz'):
    for name in (''.join(order), ''.join(order).upper()):
      arrays[f'euler_{name}'] = rotations.as_euler(name)
  np.savez(_PATH, **arrays)


if __name__ == '__main__':
  _write()
