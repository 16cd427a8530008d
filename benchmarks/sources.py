"""Compares reading robomimic and LeRobot data with the formats' libraries.

    python -m benchmarks.sources

The limit is reading every column with h5py, or every frame with PyAV.
"""

import glob
import json
import os
import tempfile

from absl import app
from absl import flags
from absl import logging
import av
import h5py
import numpy as np
import pyarrow as pa
from pyarrow import parquet
import rlds

from benchmarks import data
from benchmarks import timing
from rlds2reverb import formats

_STEPS = flags.DEFINE_integer('steps', 200_000, 'Steps without videos.')
_FRAMES = flags.DEFINE_integer('frames', 2_000, 'Steps with videos.')

_LENGTH = 200  # Transitions of an episode.
_FPS = 10
_VIDEO_SIZE = (240, 320)


def _arrays(index):
  """Returns the observations, actions and rewards of an episode."""
  rng = np.random.default_rng(index)
  shapes = (_LENGTH + 1, 17), (_LENGTH, 6), (_LENGTH,)
  return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def _write_robomimic(folder, num_episodes):
  with h5py.File(os.path.join(folder, 'demo.hdf5'), 'w') as file:
    for index in range(num_episodes):
      observation, action, reward = _arrays(index)
      group = file.create_group(f'data/demo_{index}')
      group['obs/state'] = observation[:-1]
      group['next_obs/state'] = observation[1:]
      group['actions'] = action
      group['rewards'] = reward
      group['dones'] = np.zeros(_LENGTH, np.int64)


def _read_hdf5(folder):
  def read(_, node):
    if isinstance(node, h5py.Dataset):
      node[()]

  with h5py.File(os.path.join(folder, 'demo.hdf5'), 'r') as file:
    file.visititems(read)


def _write_lerobot(folder, num_episodes):
  """Writes a LeRobot data set of version 3.0 with a video."""
  camera = 'observation.images.top'
  path = lambda *parts: os.path.join(folder, *parts)
  for parts in ('meta/episodes', 'data', f'videos/{camera}'):
    os.makedirs(path(parts, 'chunk-000'))
  index = np.arange(num_episodes)
  episodes = [_arrays(episode) for episode in index]
  rows = lambda column: pa.FixedSizeListArray.from_arrays(
      pa.array(column.ravel()), column.shape[1]
  )
  table = {
      'observation.state': rows(np.concatenate([e[0][:-1] for e in episodes])),
      'action': rows(np.concatenate([e[1] for e in episodes])),
      'timestamp': np.tile(np.arange(_LENGTH) / np.float32(_FPS), len(index)),
      'episode_index': np.repeat(index, _LENGTH),
  }
  parquet.write_table(
      pa.table(table), path('data', 'chunk-000', 'file-000.parquet')
  )
  zeros = dict.fromkeys(
      [
          f'{part}/{name}_index'
          for part in ('data', f'videos/{camera}')
          for name in ('chunk', 'file')
      ],
      0 * index,
  )
  meta = {
      'episode_index': index,
      'length': np.full(num_episodes, _LENGTH),
      f'videos/{camera}/from_timestamp': index * (_LENGTH / _FPS),
      **zeros,
  }
  parquet.write_table(
      pa.table(meta), path('meta', 'episodes', 'chunk-000', 'file-000.parquet')
  )
  features = {name: {'dtype': 'float32', 'shape': [1]} for name in table}
  features['observation.state']['shape'] = [17]
  features['action']['shape'] = [6]
  features[camera] = {'dtype': 'video', 'shape': [*_VIDEO_SIZE, 3]}
  file = 'chunk-{chunk_index:03d}/file-{file_index:03d}'
  info = {
      'codebase_version': 'v3.0',
      'fps': _FPS,
      'features': features,
      'data_path': f'data/{file}.parquet',
      'video_path': f'videos/{{video_key}}/{file}.mp4',
  }
  with open(path('meta', 'info.json'), 'w', encoding='utf-8') as f:
    json.dump(info, f)
  squares = np.random.default_rng(0).integers(0, 255, (24, 32, 3))
  image = np.kron(squares, np.ones((10, 10, 1))).astype(np.uint8)
  video = path('videos', camera, 'chunk-000', 'file-000.mp4')
  with av.open(video, 'w') as container:
    # A key frame every two frames, as in LeRobot.
    stream = container.add_stream('libx264', _FPS, options={'g': '2'})
    stream.height, stream.width = _VIDEO_SIZE
    stream.pix_fmt = 'yuv420p'
    for step in range(num_episodes * _LENGTH):
      moved = np.roll(image, 3 * step, axis=1)
      container.mux(
          stream.encode(av.VideoFrame.from_ndarray(moved, format='rgb24'))
      )
    container.mux(stream.encode())


def _read_videos(folder):
  (path,) = glob.glob(os.path.join(folder, 'videos', '*', '*', '*.mp4'))
  with av.open(path) as container:
    container.streams.video[0].thread_type = 'AUTO'
    for frame in container.decode(video=0):
      frame.to_ndarray(format='rgb24')


def main(_) -> None:
  logging.set_verbosity(logging.WARNING)
  for name, write, read, file, steps, rows in (
      ('robomimic', _write_robomimic, _read_hdf5, 'demo.hdf5', _STEPS, 1),
      ('LeRobot video', _write_lerobot, _read_videos, '', _FRAMES, 0),
  ):
    count = max(steps.value // _LENGTH, 1)
    with tempfile.TemporaryDirectory() as folder:
      write(folder, count)
      episodes = formats.load(os.path.join(folder, file))
      rewards = episodes.map(lambda episode: episode[rlds.STEPS][rlds.REWARD])
      ours = data.reading(rewards, count * (_LENGTH + rows))
      limit = f'{name}: its library'
      timing.compare(
          [
              timing.Case(limit, count * _LENGTH, lambda: read(folder)),
              timing.Case(name, count * _LENGTH, ours, limit),
          ]
      )


if __name__ == '__main__':
  app.run(main)
