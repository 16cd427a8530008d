"""Writes the data sets in tests/data/lerobot, with LeRobot itself.

    python -m tests.formats.write_lerobot_data tests/data/lerobot

Needs a separate environment with LeRobot 0.4.4, which writes v3.0, or LeRobot
0.3.3, which writes v2.1; NumPy 2.2, and datasets 4.1 or 3.6. The arrays that
LeRobot reads from the parquet files are saved next to each data set: an array
of all frames for each feature, with decoded images, and `task`. Frames of
videos are not saved, because all decoders give the same frames.
"""

import os
import shutil

from absl import app
from lerobot.datasets import lerobot_dataset
import numpy as np

_FPS = 10
_LENGTHS = (7, 5, 6)
_TASKS = ('open the drawer', 'close it', 'open the drawer')
_IMAGE = ('height', 'width', 'channels')
_FEATURES = {
    'observation.state': ('float32', (3,), None),
    'observation.images.top': ('video', (64, 64, 3), _IMAGE),
    'observation.images.wrist': ('video', (48, 64, 3), _IMAGE),
    'observation.sketch': ('image', (16, 16, 3), _IMAGE),
    'observation.grid': ('int64', (2, 3), None),
    'action': ('float32', (2,), None),
    'next.reward': ('float32', (1,), None),
    'next.success': ('bool', (1,), None),
}


def _frame(rng, episode, step):
  """Returns a frame; its videos get brighter from step to step."""
  noise = rng.integers(0, 20, (64, 64, 3))
  is_last = step == _LENGTHS[episode] - 1
  return {
      'observation.state': rng.normal(size=3).astype(np.float32),
      'observation.images.top': np.uint8(noise + 20 * step + 40 * episode),
      'observation.images.wrist': np.uint8(noise[:48] + 25 * step),
      'observation.sketch': np.full((16, 16, 3), 30 * step, np.uint8),
      'observation.grid': rng.integers(0, 9, (2, 3)),
      'action': rng.normal(size=2).astype(np.float32),
      'next.reward': np.array([step / 4], np.float32),
      'next.success': np.array([is_last and episode == 1]),
  }


def _write(root: str) -> None:
  rng = np.random.default_rng(0)
  dataset = lerobot_dataset.LeRobotDataset.create(
      'rlds2reverb/test',
      _FPS,
      {
          name: {'dtype': dtype, 'shape': shape, 'names': names}
          for name, (dtype, shape, names) in _FEATURES.items()
      },
      root=root,
      robot_type='none',
  )
  for episode, (length, task) in enumerate(zip(_LENGTHS, _TASKS)):
    for step in range(length):
      frame = _frame(rng, episode, step)
      if lerobot_dataset.CODEBASE_VERSION == 'v2.1':
        dataset.add_frame(frame, task)
      else:
        dataset.add_frame({**frame, 'task': task})
    dataset.save_episode()
  if hasattr(dataset, 'finalize'):
    dataset.finalize()


def _expected(root: str):
  """Returns what LeRobot reads, by feature."""
  dataset = lerobot_dataset.LeRobotDataset('rlds2reverb/test', root=root)
  frames = [dataset.hf_dataset[index] for index in range(sum(_LENGTHS))]
  arrays = {
      name: np.stack([np.asarray(frame[name]) for frame in frames])
      for name in frames[0]
  }
  tasks = dataset.meta.tasks
  arrays['task'] = np.array(
      [
          tasks[number] if isinstance(tasks, dict) else tasks.index[number]
          for number in arrays['task_index'].tolist()
      ],
      str,
  )
  return arrays


def main(argv):
  _, directory = argv
  root = os.path.join(directory, lerobot_dataset.CODEBASE_VERSION)
  shutil.rmtree(root, ignore_errors=True)
  _write(root)
  shutil.rmtree(os.path.join(root, 'images'), ignore_errors=True)
  expected = _expected(root)
  for folder, _, names in os.walk(root):
    for name in names:
      os.chmod(os.path.join(folder, name), 0o644)
  np.savez_compressed(os.path.join(root, 'expected.npz'), **expected)


if __name__ == '__main__':
  app.run(main)
