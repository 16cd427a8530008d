"""Tests of files that expand without bounds, or lead outside their folder."""

import base64
import io
import json
import os
import pickle
from unittest import mock
import zipfile

from absl.testing import absltest
from absl.testing import parameterized
import av
import h5py
import numpy as np
from PIL import Image
import pyarrow as pa
from pyarrow import parquet
import zarr

from rlds2reverb import formats
from rlds2reverb.episodes import limits
from rlds2reverb.formats import arrow
from rlds2reverb.formats import calvin
from rlds2reverb.formats import flat_arrays
from rlds2reverb.formats import lerobot
from rlds2reverb.formats import rllib
from rlds2reverb.formats import torchrl
from rlds2reverb.formats import video_frames
from rlds2reverb.formats import zarr_buffers
from rlds2reverb.random_access import images


def _header(shape):
  file = io.BytesIO()
  np.lib.format.write_array_header_1_0(
      file, {'descr': '<f4', 'fortran_order': False, 'shape': shape}
  )
  return file.getvalue()


class HostileFilesTest(parameterized.TestCase):

  def path(self, name):
    return os.path.join(self.create_tempdir().full_path, name)

  def limit(self, size):
    self.addCleanup(os.environ.pop, limits.VARIABLE, None)
    os.environ[limits.VARIABLE] = str(size)

  def test_an_npz_file_that_expands(self):
    path = self.path('zeros.npz')
    zeros = np.zeros(5 << 20, np.uint8)
    np.savez_compressed(path, observations=zeros, terminals=zeros)
    self.limit(1 << 20)
    with self.assertRaisesRegex(
        ValueError, f'{path} expands to .*{limits.VARIABLE}='
    ):
      flat_arrays.load_flat_arrays(path)

  def test_an_npz_file_of_more_rows_than_bytes(self):
    path = self.path('rows.npz')
    with zipfile.ZipFile(path, 'w') as archive:
      for name in 'observations', 'actions', 'rewards', 'terminals':
        archive.writestr(f'{name}.npy', _header((10**12,)) + bytes(8))
    with self.assertRaisesRegex(ValueError, f'{path} must have 4000000000128'):
      flat_arrays.load_flat_arrays(path)

  @parameterized.parameters(((10, 10**9),), ((10**12,),))
  def test_hdf5_file_of_missing_rows(self, shape):
    path = self.path('rows.hdf5')
    with h5py.File(path, 'w') as file:
      for name in 'observations', 'actions', 'rewards', 'terminals':
        file.create_dataset(name, shape, 'f4', chunks=(1,) * len(shape))
    with self.assertRaisesRegex(
        ValueError, f'of {path} expands to .*{limits.VARIABLE}='
    ):
      flat_arrays.load_flat_arrays(path)

  @parameterized.parameters(
      ((10**12, 2), (1, 2), 'action of .* expands to 8000000000000 bytes'),
      ((1 << 27, 2), (1 << 27, 2), 'A chunk of .*takes 1073741824 bytes'),
  )
  def test_zarr_buffer_of_missing_chunks(self, shape, chunks, message):
    path = self.path('buffer.zarr')
    root = zarr.open_group(path, mode='w')
    data, meta = (root.require_group(name) for name in ('data', 'meta'))
    data.create_dataset('action', shape=shape, chunks=chunks, dtype='f4')
    ends = meta.create_dataset('episode_ends', shape=(1,), dtype='i8')
    ends[:] = shape[0]
    with self.assertRaisesRegex(ValueError, f'{message}.*{limits.VARIABLE}='):
      zarr_buffers.load_zarr(path)

  def test_zarr_buffer_of_many_missing_episodes(self):
    path = self.path('buffer.zarr')
    root = zarr.open_group(path, mode='w')
    data, meta = (root.require_group(name) for name in ('data', 'meta'))
    data.create_dataset('action', shape=(2, 2), dtype='f4')
    meta.create_dataset(
        'episode_ends', shape=(10**12,), chunks=(1,), dtype='i8'
    )
    with self.assertRaisesRegex(ValueError, 'episode_ends of .* expands to'):
      zarr_buffers.load_zarr(path)

  def test_a_parquet_file_of_long_lists(self):
    path = self.path('lists.parquet')
    zeros = pa.array([np.zeros(1 << 21, np.float32)] * 2)
    parquet.write_table(pa.table({'observation': zeros}), path)
    self.assertLess(os.path.getsize(path), 1 << 16)
    self.limit(1 << 20)
    message = f'{path} expands to 16777216'
    with self.assertRaisesRegex(ValueError, f'of row group 0 of {message}'):
      arrow.open_parquet(path)
    with self.assertRaisesRegex(ValueError, message):
      arrow.read_table(path)
    self.limit(1 << 22)
    self.assertLen(arrow.read_table(path), 2)

  @parameterized.parameters('column', 'line')
  def test_experience_of_rllib(self, kind):
    path = self.path('output-0.json')
    rows = np.zeros((10, 1 << 20), np.uint8)
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, 'lz4') as stream:
      stream.write(pickle.dumps(rows))
    packed = sink.getvalue().to_pybytes()
    batch = {
        'type': 'SampleBatch',
        'obs': base64.b64encode(packed).decode(),
        'actions': [0] * len(rows),
    }
    with open(path, 'w', encoding='utf-8') as f:
      f.write(json.dumps(batch) + '\n')
    # Four values of this size, or 100 times the compressed size.
    limit = max(len(packed), os.path.getsize(path) // 4 + 1)
    self.assertLess(100 * len(packed), rows.nbytes)
    self.limit(limit if kind == 'column' else 100)
    message = f'column obs in line 1 of {path} cannot be read: its content has'
    if kind == 'line':
      message = f'line 1 of {path} has more than 400 bytes'
    with self.assertRaisesRegex(ValueError, f'{message}.*{limits.VARIABLE}'):
      rllib.load_rllib(path)
    self.limit(rows.nbytes)
    [episode] = rllib.load_rllib(path).as_numpy_iterator()
    self.assertEqual(episode['steps']['observation'].shape, rows.shape)

  def test_a_video_of_many_pixels(self):
    path = self.path('zeros.mp4')
    with av.open(path, 'w') as container:
      stream = container.add_stream('libx264', 30)
      stream.height, stream.width, stream.pix_fmt = 480, 640, 'yuv420p'
      zeros = np.zeros((480, 640, 3), np.uint8)
      for _ in range(5):
        frame = av.VideoFrame.from_ndarray(zeros, format='rgb24')
        container.mux(stream.encode(frame))
      container.mux(stream.encode())
    times = np.arange(5) / 30
    self.limit(640 * 480 * 3 - 1)
    with self.assertRaisesRegex(
        ValueError, f'A frame of 640 by 480 pixels of {path} takes 921600'
    ):
      video_frames.column(path, times, 30)
    self.limit(640 * 480 * 3)
    column = video_frames.column(path, times, 30)
    self.assertEqual(column[:3].shape, (3, 480, 640, 3))
    # As many as fit, and one more.
    size = max(4 * 640 * 480 * 3, 1000 * os.path.getsize(path))
    count = size // (640 * 480 * 3) + 1
    with self.assertRaisesRegex(
        ValueError, f'{count} frames of {path} expands to'
    ):
      video_frames.read_frames(path, np.zeros(count))

  @parameterized.parameters('expands', 'rows')
  def test_a_frame_of_calvin(self, kind):
    folder = self.path('training')
    os.makedirs(folder)
    np.save(f'{folder}/ep_start_end_ids.npy', [[0, 0]])
    path = f'{folder}/episode_0000000.npz'
    if kind == 'expands':
      self.limit(1 << 20)
      zeros = np.zeros(5 << 20, np.uint8)
      np.savez_compressed(path, actions=zeros, robot_obs=zeros)
      message = f'{path} expands to .*{limits.VARIABLE}='
    else:
      with zipfile.ZipFile(path, 'w') as archive:
        archive.writestr('actions.npy', _header((10**12,)) + bytes(8))
      message = 'does not match its 136 bytes'
    with self.assertRaisesRegex(ValueError, message):
      calvin.load_calvin(folder)

  def test_truncated_bounds_of_calvin_raise(self):
    folder = self.path('training')
    os.makedirs(folder)
    with open(f'{folder}/ep_start_end_ids.npy', 'wb') as f:
      f.write(_header((10**12, 2)) + bytes(16))
    with self.assertRaisesRegex(
        ValueError, 'ep_start_end_ids.npy must contain'
    ):
      calvin.load_calvin(folder)

  @parameterized.parameters(
      ([(0, 1)], [['x', 'y']], 'too many values'),
      ([(0, 1.5)], ['x'], 'it has a float where int is expected'),
      ([(0, True)], ['x'], 'it has a bool where int is expected'),
      ([('0', 1)], ['x'], 'it has a str where int is expected'),
      ([0], ['x'], 'not enough values'),
      (7, ['x'], 'not iterable'),
      ([(0, 1)], [b'x'], 'it has a bytes where str is expected'),
  )
  def test_invalid_annotations_of_calvin_raise(self, indx, texts, message):
    folder = self.path('training')
    os.makedirs(f'{folder}/lang_annotations')
    np.save(f'{folder}/ep_start_end_ids.npy', [[0, 0]])
    path = f'{folder}/lang_annotations/auto_lang_ann.npy'
    language = {'ann': texts, 'task': ['x']}
    np.save(path, {'info': {'indx': indx}, 'language': language})
    with self.assertRaisesRegex(ValueError, f'{path} has no .*{message}'):
      calvin.load_calvin(folder, language=True)

  def test_offsets_of_arrow_beyond_their_values(self):
    folder = self.path('data')
    os.makedirs(folder)
    with open(f'{folder}/state.json', 'w', encoding='utf-8') as f:
      json.dump({'_data_files': [{'filename': 'data.arrow'}]}, f)
    offsets = pa.py_buffer(np.array([0, 1 << 26, 4], np.int32).tobytes())
    lists = pa.ListArray.from_buffers(
        pa.list_(pa.float64()),
        2,
        [None, offsets],
        children=[pa.array([0.0] * 4)],
    )
    table = {'obs': lists, 'acts': lists, 'terminal': pa.array([True, True])}
    batch = pa.record_batch(table)
    path = f'{folder}/data.arrow'
    for new, read in (
        (pa.ipc.new_stream, lambda: formats.load(folder, 'imitation')),
        (pa.ipc.new_file, lambda: arrow.read_table(path)),
    ):
      with new(path, batch.schema) as writer:
        writer.write_batch(batch)
      with self.assertRaisesRegex(
          ValueError, f'{path} is not a complete file: .*[Oo]ffset'
      ):
        read()

  def test_an_image_of_many_pixels(self):
    file = io.BytesIO()
    Image.new('L', (9000, 9000)).save(file, 'PNG')
    with self.assertRaisesRegex(
        ValueError, 'An image of 9000 by 9000 pixels takes 324000000 bytes'
    ):
      images.decode(file.getvalue(), images.ImageFormat((8, 8), 1))
    self.limit(1 << 30)
    actual = images.decode(file.getvalue(), images.ImageFormat((8, 8), 1))
    np.testing.assert_array_equal(actual, np.zeros((8, 8, 1)))

  @parameterized.parameters(
      ('../{episode_index}', 'data_path.* which is outside of'),
      ('/etc/{episode_index}', 'data_path.* names /etc/0, which is outside of'),
      ('{episode_index.__class__}', 'must be a path with'),
      ('{episode_index:999999999d}', 'must be a path with'),
      ('{other}', 'must be a path with'),
      ('data/{episode_index', 'must be a path with'),
  )
  def test_a_template_of_lerobot_that_leads_outside(self, template, message):
    path = self.path('data')
    os.makedirs(os.path.join(path, 'meta'))
    info = {
        'codebase_version': 'v2.1',
        'features': {},
        'chunks_size': 1000,
        'data_path': template,
    }
    with open(f'{path}/meta/info.json', 'w', encoding='utf-8') as f:
      json.dump(info, f)
    with open(f'{path}/meta/episodes.jsonl', 'w', encoding='utf-8') as f:
      f.write('{"episode_index": 0, "length": 3}\n')
    with self.assertRaisesRegex(ValueError, message):
      lerobot.load_lerobot(path)
    if 'outside' in message:  # A path that the user allows.
      places = {limits.PLACES_VARIABLE: f'/etc:{os.path.dirname(path)}'}
      with mock.patch.dict(os.environ, places):
        with self.assertRaisesRegex(ValueError, 'has no feature observation'):
          lerobot.load_lerobot(path)

  @parameterized.parameters('/etc/observation', '../observation', '..')
  def test_a_column_of_torchrl_that_leads_outside(self, name):
    path = self.path('storage')
    os.makedirs(path)
    entry = {'shape': [1], 'dtype': 'torch.float32', 'is_nested': False}
    meta = {'_type': "<class 'tensordict._td.TensorDict'>", 'shape': []}
    meta |= {'shape': [1], name: entry}
    for file, content in (
        ('meta.json', meta),
        ('storage_metadata.json', {'is_pytree': False, 'len': 1}),
    ):
      with open(os.path.join(path, file), 'w', encoding='utf-8') as f:
        json.dump(content, f)
    with self.assertRaisesRegex(ValueError, f'{name}.* which is outside of'):
      torchrl.load_torchrl(path)


if __name__ == '__main__':
  absltest.main()
