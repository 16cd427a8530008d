"""The memory that readers take does not grow with the data.

A process reads a data set of a few batches of a format several times, as the
memory of its threads is allocated in the first passes; and then one that is
four times as large, with more than ten times the bytes of a batch.

    python -m tests.formats.memory_test FORMAT SMALL LARGE
"""

import json
import os
import resource
import subprocess
import sys

from absl.testing import absltest
from absl.testing import parameterized
import h5py
import numpy as np
import pyarrow as pa
from pyarrow import parquet
import pytest

from rlds2reverb.formats import python_episodes
from rlds2reverb.formats import torchrl_files

_LENGTH, _WIDTH = 100, 200  # 160 KB an episode, as float64
# The numbers of episodes; fewer where episodes are large, or slow to write.
_COUNTS = 200, 800
_FEWER = {'lerobot': (50, 200), 'rllib': (75, 300)}
_SIZE = 64  # of an image
_FORMATS = (
    'hdf5',
    'robomimic',
    'npz',
    'npz_compressed',
    'parquet_steps',
    'parquet_episodes',
    'zarr',
    'lerobot',
    'rllib',
    'torchrl_flat',
    'torchrl_nested',
    'torchrl_hdf5',
    'd3rlpy',
    'imitation',
    'minari',
)


def _episode(number):
  rng = np.random.default_rng(number)
  return rng.normal(size=(_LENGTH + 1, _WIDTH))


def _flat(count):
  rows = np.concatenate([_episode(number)[:-1] for number in range(count)])
  ends = np.arange(1, len(rows) + 1) % _LENGTH == 0
  return {
      'observations': rows,
      'actions': np.zeros([len(rows), 1], np.float32),
      'rewards': np.zeros(len(rows), np.float32),
      'terminals': np.zeros(len(rows), bool),
      'timeouts': ends,
  }


def _write_hdf5(folder, count):
  path = os.path.join(folder, 'a.hdf5')
  with h5py.File(path, 'w') as file:
    file.update(_flat(count))
  return path


def _write_robomimic(folder, count):
  path = os.path.join(folder, 'a.hdf5')
  with h5py.File(path, 'w') as file:
    for number in range(count):
      rows = _episode(number)
      file[f'data/demo_{number}/obs/a'] = rows[:-1]
      file[f'data/demo_{number}/next_obs/a'] = rows[1:]
      file[f'data/demo_{number}/actions'] = np.zeros([_LENGTH, 1])
  return path


def _write_npz(folder, count):
  np.savez(os.path.join(folder, 'a.npz'), **_flat(count))
  return os.path.join(folder, 'a.npz')


def _write_npz_compressed(folder, count):
  np.savez_compressed(os.path.join(folder, 'a.npz'), **_flat(count))
  return os.path.join(folder, 'a.npz')


def _write_parquet_steps(folder, count):
  columns = {k: list(v) for k, v in _flat(count).items()}
  path = os.path.join(folder, 'a.parquet')
  parquet.write_table(pa.table(columns), path, row_group_size=1000)
  return path


def _write_parquet_episodes(folder, count):
  path = os.path.join(folder, 'a.parquet')
  tables = (
      pa.table(
          {
              'observations': [_episode(number).tolist()],
              'actions': [[0.0] * _LENGTH],
              'rewards': [[0.0] * _LENGTH],
          }
      )
      for number in range(count)
  )
  first = next(tables)
  with parquet.ParquetWriter(path, first.schema) as writer:
    for table in (first, *tables):
      writer.write_table(table)
  return path


def _write_zarr(folder, count):
  import zarr

  rows = _flat(count)['observations']
  root = zarr.open_group(folder, mode='w')
  for name, array, chunk in (
      ('data/state', rows, 100),
      ('data/action', np.zeros([len(rows), 1]), 1000),
      ('meta/episode_ends', _LENGTH * np.arange(1, count + 1), 1000),
  ):
    shape = {'shape': array.shape, 'chunks': (chunk, *array.shape[1:])}
    root.create_dataset(name, dtype=array.dtype, **shape)[:] = array
  return folder


def _write_lerobot(folder, count):
  import av

  for name in ('meta', 'data/chunk-000', 'videos/chunk-000/a'):
    os.makedirs(os.path.join(folder, name))
  video = os.path.join(folder, 'a.mp4')
  with av.open(video, 'w') as container:
    stream = container.add_stream('h264', rate=10)
    stream.width = stream.height = _SIZE
    stream.pix_fmt = 'yuv420p'
    for number in range(_LENGTH // 2):
      image = np.full([_SIZE, _SIZE, 3], number, np.uint8)
      frame = av.VideoFrame.from_ndarray(image, 'rgb24')
      container.mux(stream.encode(frame))
    container.mux(stream.encode())
  steps = np.arange(_LENGTH // 2)
  for number in range(count):
    name = f'chunk-000/{{}}episode_{number:06d}'
    os.link(video, f'{folder}/videos/{name.format("a/")}.mp4')
    table = pa.table(
        {
            'action': list(np.zeros([len(steps), 2], np.float32)),
            'timestamp': (steps / 10).astype(np.float32),
            'episode_index': np.full(len(steps), number),
        }
    )
    parquet.write_table(table, f'{folder}/data/{name.format("")}.parquet')
  action = {'dtype': 'float32', 'shape': [2]}
  image = {'dtype': 'video', 'shape': [_SIZE, _SIZE, 3]}
  info = {
      'codebase_version': 'v2.1',
      'fps': 10,
      'features': {'observation.image': image, 'action': action},
      'video_path': 'videos/chunk-000/a/episode_{episode_index:06d}.mp4',
  }
  with open(f'{folder}/meta/info.json', 'w', encoding='utf-8') as f:
    json.dump(info, f)
  with open(f'{folder}/meta/episodes.jsonl', 'w', encoding='utf-8') as f:
    for number in range(count):
      line = {'episode_index': number, 'length': len(steps)}
      f.write(json.dumps(line) + '\n')
  return folder


def _write_rllib(folder, count):
  path = os.path.join(folder, 'output-0.json')
  with open(path, 'w', encoding='utf-8') as f:
    for number in range(count):
      rows = _episode(number).round(3)
      line = {
          'type': 'SampleBatch',
          'obs': rows[:-1].tolist(),
          'new_obs': rows[1:].tolist(),
          'actions': [0] * _LENGTH,
          'rewards': [0.0] * _LENGTH,
          'eps_id': [number] * _LENGTH,
          't': list(range(_LENGTH)),
          'truncateds': [False] * (_LENGTH - 1) + [True],
      }
      f.write(json.dumps(line) + '\n')
  return path


def _write_torchrl_flat(folder, count, form='flat'):
  episodes = (
      {
          'observation': _episode(number),
          'action': np.zeros([_LENGTH, 1], np.float32),
          'reward': np.zeros([_LENGTH, 1], np.float32),
          'done': np.arange(1, _LENGTH + 1)[:, None] == _LENGTH,
          'terminated': np.zeros([_LENGTH, 1], bool),
      }
      for number in range(count)
  )
  torchrl_files.write(folder, episodes, form)
  return folder


def _write_torchrl_nested(folder, count):
  return _write_torchrl_flat(folder, count, 'nested')


def _write_torchrl_hdf5(folder, count):
  return _write_torchrl_flat(folder, count, 'hdf5')


def _write_d3rlpy(folder, count):
  path = os.path.join(folder, 'a.h5')
  with h5py.File(path, 'w') as file:
    for number in range(count):
      file[f'observations_{number}'] = _episode(number)[:-1]
      file[f'actions_{number}'] = np.zeros([_LENGTH, 1])
      file[f'rewards_{number}'] = np.zeros([_LENGTH, 1])
      file[f'terminated_{number}'] = False
    file.update({'columns': ['a'], 'num_episodes': count, 'version': '2.1'})
  return path


def _write_imitation(folder, count):
  name = 'data-00000-of-00001.arrow'
  trajectory = lambda number: pa.record_batch(
      {
          'obs': [_episode(number).tolist()],
          'acts': [[0.0] * _LENGTH],
          'terminal': [False],
      }
  )
  first = trajectory(0)
  with pa.ipc.new_stream(os.path.join(folder, name), first.schema) as stream:
    for number in range(count):
      stream.write_batch(trajectory(number))
  with open(os.path.join(folder, 'state.json'), 'w', encoding='utf-8') as f:
    json.dump({'_data_files': [{'filename': name}]}, f)
  return folder


def _write_minari(folder, count):
  path = os.path.join(folder, 'main_data.hdf5')
  with h5py.File(path, 'w') as file:
    for number in range(count):
      group = file.create_group(f'episode_{number}')
      group['observations'] = _episode(number)
      group['actions'] = np.zeros([_LENGTH, 1])
      group['rewards'] = np.zeros(_LENGTH)
      group['terminations'] = np.zeros(_LENGTH, bool)
      group['truncations'] = np.arange(1, _LENGTH + 1) == _LENGTH
  return folder


@pytest.mark.long
class MemoryTest(parameterized.TestCase):

  @parameterized.parameters(*_FORMATS)
  def test_does_not_grow(self, name):
    if name in ('zarr', 'lerobot'):
      pytest.importorskip({'lerobot': 'av'}.get(name, name))
    counts = _FEWER.get(name, _COUNTS)
    paths = [
        globals()[f'_write_{name}'](self.create_tempdir().full_path, count)
        for count in counts
    ]
    done = subprocess.run(
        [sys.executable, '-m', 'tests.formats.memory_test', name, *paths],
        check=True,
        stdout=subprocess.PIPE,
    )
    actual = json.loads(done.stdout.splitlines()[-1])
    self.assertEqual(actual['episodes'], counts[1])
    self.assertGreater(actual['bytes'], 10 * python_episodes.BATCH_BYTES)
    # Freed memory may be too fragmented for later allocations.
    more = actual['bytes'] * (1 - counts[0] / counts[1])
    self.assertLess(actual['growth'], more / 2, actual)


def _peak():
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _measure(name, small, large):
  """Prints by how much the peak of memory grows as a large one is read."""
  from rlds2reverb import formats

  form = name.split('_', maxsplit=1)[0]
  for path in (*[small] * 4, large):
    before, num_episodes, num_bytes = _peak(), 0, 0
    for episode in formats.load(path, form).as_numpy_iterator():
      num_episodes += 1
      observation = episode['steps']['observation']
      while isinstance(observation, dict):
        [observation] = observation.values()
      num_bytes += observation.nbytes
  growth = _peak() - before
  counts = {'episodes': num_episodes, 'bytes': num_bytes, 'growth': growth}
  print(json.dumps({'format': name, **counts, 'before': before}))


if __name__ == '__main__':
  if len(sys.argv) == 4 and sys.argv[1] in _FORMATS:
    _measure(*sys.argv[1:])
  else:
    absltest.main()
