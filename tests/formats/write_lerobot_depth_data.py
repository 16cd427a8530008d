r"""Writes tests/data/lerobot/depth_*: depth and language, by LeRobot itself.

    python -m tests.formats.write_lerobot_depth_data \
      tests/data/lerobot

Needs a separate environment with LeRobot 0.6.1, which writes v3.0, and PyAV
15. The arrays that LeRobot reads are saved next to each data set: an array of
all frames for each feature, with depth in `mm` and in `m`. `depth_log` has the
default settings of LeRobot, and language annotated by the writer of LeRobot;
`depth_linear` has other settings.
"""

import os
import pathlib
import shutil

from absl import app
from lerobot.annotations.steerable_pipeline import reader
from lerobot.annotations.steerable_pipeline import staging
from lerobot.annotations.steerable_pipeline import writer
from lerobot.configs import video
from lerobot.datasets import io_utils
from lerobot.datasets import language
from lerobot.datasets import lerobot_dataset
import numpy as np

_LENGTHS = (4, 3)
_IMAGE = ['height', 'width', 'channels']
_NAME = 'rlds2reverb/test'
_DATA_SETS = {
    'depth_log': (np.uint16, video.DepthEncoderConfig()),
    'depth_linear': (
        np.float32,
        video.DepthEncoderConfig(
            depth_min=0.5, depth_max=4.0, shift=1.0, use_log=False
        ),
    ),
}


def _depth_feature(dtype):
  return {
      'dtype': dtype,
      'shape': (24, 32, 1),
      'names': _IMAGE,
      'info': {'is_depth_map': True},
  }


_FEATURES = {
    'observation.state': {'dtype': 'float32', 'shape': (2,), 'names': None},
    'observation.images.top': {
        'dtype': 'video',
        'shape': (24, 32, 3),
        'names': _IMAGE,
    },
    'observation.images.depth': _depth_feature('video'),
    'observation.images.near': _depth_feature('image'),
    'action': {'dtype': 'float32', 'shape': (1,), 'names': None},
}


def _frame(rng, dtype, step):
  """Returns a frame; depth goes from 0.2 to 3 m, with a hole."""
  depth = np.linspace(200, 3000, 24 * 32).reshape(24, 32, 1) + 40 * step
  depth[:2, :3] = 0
  near = depth / 2
  if dtype == np.float32:
    depth, near = depth / 1000, near / 1000
  return {
      'observation.state': rng.normal(size=2).astype(np.float32),
      'observation.images.top': np.full((24, 32, 3), 40 * step, np.uint8),
      'observation.images.depth': depth.astype(dtype),
      'observation.images.near': near.astype(dtype),
      'action': np.array([step], np.float32),
      'task': 'open the drawer',
  }


def _annotate(root: pathlib.Path) -> None:
  """Adds language to the first episode, as `lerobot-annotate` does."""
  folder = root / '.annotate_staging'
  records = list(reader.iter_episodes(root))
  times = records[0].frame_timestamps
  subtask = {'role': 'assistant', 'camera': None, 'tool_calls': None}
  subtask['style'] = 'subtask'
  texts = {times[0]: 'reach für den Griff', times[2]: 'pull'}
  plan = [
      {**subtask, 'content': text, 'timestamp': time}
      for time, text in texts.items()
  ]
  staging.EpisodeStaging(folder, 0).write('plan', plan)
  staging.EpisodeStaging(folder, 0).write(
      'interjections', [writer.speech_atom(times[1], 'On it.')]
  )
  writer.LanguageColumnsWriter().write_all(records, folder, root)
  shutil.rmtree(folder)
  info = io_utils.load_info(root)
  info.features.update(language.language_feature_info())
  io_utils.write_info(info, root)


def _write(name: str, root: pathlib.Path) -> None:
  rng = np.random.default_rng(0)
  dtype, encoder = _DATA_SETS[name]
  dataset = lerobot_dataset.LeRobotDataset.create(
      _NAME, 10, _FEATURES, root=root, depth_encoder=encoder
  )
  for length in _LENGTHS:
    for step in range(length):
      dataset.add_frame(_frame(rng, dtype, step))
    dataset.save_episode()
  dataset.finalize()
  shutil.rmtree(root / 'images', ignore_errors=True)


def _expected(root: pathlib.Path):
  """Returns what LeRobot reads, by feature, without the language."""
  arrays = {}
  for unit in 'mm', 'm':
    dataset = lerobot_dataset.LeRobotDataset(
        _NAME, root=root, depth_output_unit=unit, video_backend='pyav'
    )
    for name in 'depth', 'near':
      key = f'observation.images.{name}'
      arrays[f'{name}_{unit}'] = np.stack(
          [dataset[index][key].numpy() for index in range(sum(_LENGTHS))]
      )
  return arrays


def main(argv):
  _, directory = argv
  for name in _DATA_SETS:
    root = pathlib.Path(directory, name)
    shutil.rmtree(root, ignore_errors=True)
    _write(name, root)
    expected = _expected(root)
    if name == 'depth_log':
      _annotate(root)
    for folder, _, names in os.walk(root):
      for file in names:
        os.chmod(os.path.join(folder, file), 0o644)
    np.savez_compressed(root / 'expected.npz', **expected)


if __name__ == '__main__':
  app.run(main)
