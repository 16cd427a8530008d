"""Reading data sets in formats other than RLDS, against the files' bytes alone.

    python -m benchmarks.sources

Every format has small vectors; LeRobot has a camera, too. `bytes` reads the
files and nothing else. `library` reads every column with the library of the
format, h5py, pyarrow, NumPy or PyAV, and does nothing with it; the column
`/ reading` is the speed over that of the library. Then the peak memory is shown
for a small and a large data set, each in a process of its own.
"""

import glob
import json
import os
import tempfile
from typing import Any, Callable, Dict, NamedTuple

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
from benchmarks import processes
from benchmarks import timing
from rlds2reverb import formats
from rlds2reverb.episodes import data_sets

_STEPS = flags.DEFINE_integer(
    'steps', 200_000, 'Steps of each data set without videos.', lower_bound=1
)
_FRAMES = flags.DEFINE_integer(
    'frames', 2_000, 'Steps of the data set with videos.', lower_bound=1
)
_REPEATS = flags.DEFINE_integer(
    'repeats', 3, 'How many times each case is run.', lower_bound=1
)
_TIMEOUT_SECONDS = flags.DEFINE_integer(
    'timeout_seconds', 600, 'The longest that one process may take.'
)
_CASE = flags.DEFINE_string(
    'case', None, 'Reads the data set of this format, in this process.'
)
_DIRECTORY = flags.DEFINE_string('directory', None, 'The data set of --case.')

_LENGTH = 200  # transitions of an episode
_FPS = 10
_VIDEO_SIZE = (240, 320)
# How much larger the large data sets are, whose memory is measured.
_FACTOR = 10


def _episode(index: int) -> Dict[str, np.ndarray]:
  """Returns the arrays of an episode, whose values do not matter."""
  rng = np.random.default_rng(index)
  return {
      'observation': rng.normal(size=(_LENGTH + 1, 17)).astype(np.float32),
      'action': rng.normal(size=(_LENGTH, 6)).astype(np.float32),
      'reward': rng.normal(size=_LENGTH).astype(np.float32),
  }


def _write_robomimic(directory: str, num_episodes: int) -> None:
  with h5py.File(os.path.join(directory, 'demo.hdf5'), 'w') as file:
    for index in range(num_episodes):
      episode = _episode(index)
      group = file.create_group(f'data/demo_{index}')
      group['obs/state'] = episode['observation'][:-1]
      group['next_obs/state'] = episode['observation'][1:]
      group['actions'] = episode['action']
      group['rewards'] = episode['reward']
      group['dones'] = np.zeros(_LENGTH, np.int64)


def _read_hdf5(directory: str) -> None:
  def read(_, one):
    if isinstance(one, h5py.Dataset):
      one[()]  # pylint: disable=pointless-statement

  with h5py.File(os.path.join(directory, 'demo.hdf5'), 'r') as file:
    file.visititems(read)


def _write_imitation(directory: str, num_episodes: int) -> None:
  schema = pa.schema(
      {
          'obs': pa.list_(pa.list_(pa.float32())),
          'acts': pa.list_(pa.list_(pa.float32())),
          'infos': pa.list_(pa.string()),
          'terminal': pa.bool_(),
          'rews': pa.list_(pa.float32()),
      }
  )
  path = os.path.join(directory, 'data.arrow')
  with pa.ipc.new_stream(path, schema) as writer:
    for index in range(num_episodes):
      episode = _episode(index)
      row = {
          'obs': [episode['observation'].tolist()],
          'acts': [episode['action'].tolist()],
          'infos': [['{}'] * _LENGTH],
          'terminal': [True],
          'rews': [episode['reward'].tolist()],
      }
      writer.write_batch(pa.RecordBatch.from_pydict(row, schema))
  with open(os.path.join(directory, 'state.json'), 'w', encoding='utf-8') as f:
    json.dump({'_data_files': [{'filename': 'data.arrow'}]}, f)


def _read_arrow(directory: str) -> None:
  path = os.path.join(directory, 'data.arrow')
  with pa.OSFile(path) as file, pa.ipc.open_stream(file) as reader:
    for batch in reader:
      for name in ('obs', 'acts'):
        batch[name].flatten().flatten().to_numpy()


def _write_npz(directory: str, num_episodes: int) -> None:
  episodes = [_episode(index) for index in range(num_episodes)]
  joined = {
      key: np.concatenate([one[key] for one in episodes]) for key in episodes[0]
  }
  rows = np.arange(num_episodes * _LENGTH)
  np.savez(
      os.path.join(directory, 'a.npz'),
      # Of the last observation of an episode, there is no row.
      observations=joined['observation'][rows + rows // _LENGTH],
      actions=joined['action'],
      rewards=joined['reward'],
      terminals=np.zeros(len(rows), bool),
      timeouts=rows % _LENGTH == _LENGTH - 1,
  )


def _read_npz(directory: str) -> None:
  with np.load(os.path.join(directory, 'a.npz')) as arrays:
    for name in arrays:
      arrays[name]  # pylint: disable=pointless-statement


def _write_lerobot(
    directory: str, num_episodes: int, *, with_video: bool = False
) -> None:
  camera = 'observation.images.top'
  episodes = [_episode(index) for index in range(num_episodes)]
  index = np.arange(num_episodes)
  step = np.tile(np.arange(_LENGTH), num_episodes)
  paths = [
      os.path.join(directory, *parts)
      for parts in (
          ('meta', 'episodes', 'chunk-000'),
          ('data', 'chunk-000'),
          ('videos', camera, 'chunk-000'),
      )
  ]
  for path in paths:
    os.makedirs(path)
  as_lists = lambda rows: pa.FixedSizeListArray.from_arrays(
      pa.array(rows.ravel()), rows.shape[1]
  )
  table = {
      'observation.state': as_lists(
          np.concatenate([one['observation'][:-1] for one in episodes])
      ),
      'action': as_lists(np.concatenate([one['action'] for one in episodes])),
      'timestamp': (step / _FPS).astype(np.float32),
      'episode_index': np.repeat(index, _LENGTH),
  }
  parquet.write_table(
      pa.table(table), os.path.join(paths[1], 'file-000.parquet')
  )
  rows = {
      'episode_index': index,
      'length': np.full(num_episodes, _LENGTH),
      'data/chunk_index': 0 * index,
      'data/file_index': 0 * index,
      f'videos/{camera}/chunk_index': 0 * index,
      f'videos/{camera}/file_index': 0 * index,
      f'videos/{camera}/from_timestamp': index * (_LENGTH / _FPS),
  }
  parquet.write_table(
      pa.table(rows), os.path.join(paths[0], 'file-000.parquet')
  )
  dtypes = {name: {'dtype': 'float32', 'shape': [1]} for name in table}
  dtypes['observation.state']['shape'] = [17]
  dtypes['action']['shape'] = [6]
  if with_video:
    dtypes[camera] = {'dtype': 'video', 'shape': [*_VIDEO_SIZE, 3]}
    _write_video(os.path.join(paths[2], 'file-000.mp4'), num_episodes * _LENGTH)
  info = {
      'codebase_version': 'v3.0',
      'fps': _FPS,
      'features': dtypes,
      'data_path': (
          'data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet'
      ),
      'video_path': (
          'videos/{video_key}/chunk-{chunk_index:03d}/'
          'file-{file_index:03d}.mp4'
      ),
  }
  path = os.path.join(directory, 'meta', 'info.json')
  with open(path, 'w', encoding='utf-8') as f:
    json.dump(info, f)


def _write_video(path: str, num_frames: int) -> None:
  """Writes squares that move; a key frame every 2 frames, as LeRobot has it."""
  squares = np.random.default_rng(0).integers(0, 255, (24, 32, 3))
  image = np.kron(squares, np.ones((10, 10, 1))).astype(np.uint8)
  with av.open(path, 'w') as container:
    stream = container.add_stream('libx264', _FPS, options={'g': '2'})
    stream.height, stream.width = _VIDEO_SIZE
    stream.pix_fmt = 'yuv420p'
    for index in range(num_frames):
      moved = np.roll(image, 3 * index, axis=1)
      frame = av.VideoFrame.from_ndarray(moved, format='rgb24')
      container.mux(stream.encode(frame))
    container.mux(stream.encode())


def _read_parquet(directory: str) -> None:
  (path,) = glob.glob(os.path.join(directory, 'data', '*', '*.parquet'))
  for batch in parquet.ParquetFile(path).iter_batches(1024):
    for name in ('observation.state', 'action'):
      batch[name].flatten().to_numpy()


def _read_videos(directory: str) -> None:
  _read_parquet(directory)
  (path,) = glob.glob(os.path.join(directory, 'videos', '*', '*', '*.mp4'))
  with av.open(path) as container:
    container.streams.video[0].thread_type = 'AUTO'
    for frame in container.decode(video=0):
      frame.to_ndarray(format='rgb24')


class _Format(NamedTuple):
  """A format of data.

  Attributes:
    write: writes a number of episodes into a directory.
    library: reads all of a directory with the library of the format.
    load: returns the data set of a directory.
    num_rows: how many steps there are of an episode.
    has_video: whether there are videos, so that fewer steps are enough.
  """

  write: Callable[[str, int], None]
  library: Callable[[str], None]
  load: Callable[[str], Any]
  num_rows: int
  has_video: bool = False


_FORMATS = {
    'robomimic': _Format(
        _write_robomimic,
        _read_hdf5,
        lambda path: formats.load(os.path.join(path, 'demo.hdf5')),
        _LENGTH + 1,
    ),
    'imitation': _Format(
        _write_imitation, _read_arrow, formats.load, _LENGTH + 1
    ),
    'npz': _Format(
        _write_npz,
        _read_npz,
        lambda path: formats.load(os.path.join(path, 'a.npz')),
        _LENGTH,
    ),
    'lerobot': _Format(_write_lerobot, _read_parquet, formats.load, _LENGTH),
    'lerobot video': _Format(
        lambda path, count: _write_lerobot(path, count, with_video=True),
        _read_videos,
        formats.load,
        _LENGTH,
        has_video=True,
    ),
}


def _read_bytes(directory: str) -> None:
  for path in glob.glob(os.path.join(directory, '**'), recursive=True):
    if os.path.isfile(path):
      with open(path, 'rb') as f:
        while f.read(1 << 20):
          pass


def _reading(form: _Format, directory: str, num_episodes: int):
  """Returns a function that reads the packs of a data set in the graph."""
  episodes = data_sets.packs_of(form.load(directory))
  steps = episodes.map(lambda pack: pack.steps[rlds.REWARD])
  return data.reading(steps, num_episodes * form.num_rows)


def _count(form: _Format) -> int:
  num_steps = _FRAMES.value if form.has_video else _STEPS.value
  return max(num_steps // _LENGTH, 1)


def _measure_speed(name: str, form: _Format) -> None:
  """Prints the table of a format."""
  count = _count(form)
  with tempfile.TemporaryDirectory() as directory:
    form.write(directory, count)
    steps = count * _LENGTH
    library, bytes_ = f'{name}: library', f'{name}: bytes'
    cases = [
        timing.Case(bytes_, steps, lambda: _read_bytes(directory), library),
        timing.Case(library, steps, lambda: form.library(directory)),
        timing.Case(name, steps, _reading(form, directory, count), library),
    ]
    speeds = timing.measure(cases, _REPEATS.value)
    timing.print_table(cases, speeds, [('bytes', bytes_)])
    print(flush=True)


def _measure_memory(name: str, form: _Format) -> None:
  """Prints the peaks of a small and of a large data set."""
  large = _count(form)
  found = []
  for count in (max(large // _FACTOR, 1), large):
    with tempfile.TemporaryDirectory() as directory:
      form.write(directory, count)
      peak = processes.run(
          'benchmarks.sources',
          [f'--case={name}', f'--directory={directory}'],
          _TIMEOUT_SECONDS.value,
      )
    found.append(f'{count * _LENGTH:>9,} steps {peak:6.0f} MiB')
  print(f'  {name:<15}{"".join(found)}', flush=True)


def main(argv):
  if len(argv) > 1:
    raise app.UsageError('Too many command-line arguments.')
  logging.set_verbosity(logging.WARNING)
  if _CASE.value:
    for pack in data_sets.packs_of(
        _FORMATS[_CASE.value].load(_DIRECTORY.value)
    ):
      del pack
    print(processes.peak_mib())
    return
  for name, form in _FORMATS.items():
    _measure_speed(name, form)
  print('Peak memory of reading:')
  for name, form in _FORMATS.items():
    _measure_memory(name, form)


if __name__ == '__main__':
  app.run(main)
