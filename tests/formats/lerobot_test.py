"""Tests for lerobot, on data sets that LeRobot has written."""

import json
import os
from unittest import mock

from absl.testing import parameterized
import av
import numpy as np
import pyarrow as pa
from pyarrow import parquet
import tensorflow as tf

from rlds2reverb.formats import lerobot
from rlds2reverb.transforms import images
from tests.formats import expected

_DATA = os.path.join(expected.DATA, 'lerobot')
_VERSIONS = ('v2.1', 'v3.0')
_LENGTHS = (7, 5, 6)
_STARTS = (0, 7, 12)
_CAMERAS = ('top', 'wrist')


class _Array(pa.ExtensionType):
  """A fake of the types that `datasets` registers when it is imported."""

  NAME = 'tests.array'

  def __init__(self, storage_type):
    super().__init__(storage_type, self.NAME)

  def __arrow_ext_serialize__(self):
    return b''

  @classmethod
  def __arrow_ext_deserialize__(cls, storage_type, serialized):
    del serialized
    return cls(storage_type)


def _path(version):
  return os.path.join(_DATA, version)


def _read(path, **kwargs):
  return list(lerobot.load_lerobot(path, **kwargs).as_numpy_iterator())


def _expected(version):
  """Returns what LeRobot reads, by feature, of each episode."""
  with np.load(os.path.join(_path(version), 'expected.npz')) as arrays:
    return [
        {key: value[start : start + length] for key, value in arrays.items()}
        for start, length in zip(_STARTS, _LENGTHS)
    ]


def _expected_frames(version, camera, episode):
  """Returns the frames of an episode, by PyAV."""
  camera = f'observation.images.{camera}'
  path, start = f'{camera}/chunk-000/file-000.mp4', _STARTS[episode]
  if version == 'v2.1':
    path, start = f'chunk-000/{camera}/episode_{episode:06d}.mp4', 0
  with av.open(os.path.join(_path(version), 'videos', path)) as container:
    frames = container.decode(video=0)
    frames = np.stack([frame.to_ndarray(format='rgb24') for frame in frames])
  return frames[start:][: _LENGTHS[episode]]


class LerobotTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.parameters(*_VERSIONS)
  def test_video_frames_equal_pyav(self, version):
    read, referred = (
        _read(_path(version), decode_videos=decode) for decode in (True, False)
    )
    for index, episode in enumerate(read):
      for camera in _CAMERAS:
        frames = _expected_frames(version, camera, index)
        self.assertLen(frames, _LENGTHS[index])
        self.assertAllEqual(
            episode['steps']['observation']['images'][camera], frames
        )
        # All frames differ, so that none can replace another.
        self.assertTrue((np.diff(frames.mean(axis=(1, 2, 3))) > 5).all())
    references = referred[1]['steps']['observation']['images']['top']
    name = 'episode_000001.mp4' if version == 'v2.1' else 'file-000.mp4'
    begin = 0.0 if version == 'v2.1' else 0.7
    for step, reference in enumerate(references):
      path, time = reference.decode().split('#t=')
      self.assertStartsWith(path, _path(version))
      self.assertEndsWith(path, name)
      self.assertAllClose(float(time), begin + step / 10)

  def _with_times(self, version, times):
    """Returns a copy whose episode 1 has other timestamps."""
    path = expected.copy_of(self, 'lerobot', version)
    file = {
        'v2.1': 'chunk-000/episode_000001.parquet',
        'v3.0': 'chunk-000/file-000.parquet',
    }[version]
    file = os.path.join(path, 'data', file)
    table = parquet.read_table(file, partitioning=None)
    place = table.column_names.index('timestamp')
    values = table['timestamp'].to_numpy().copy()
    start = 0 if version == 'v2.1' else _STARTS[1]
    values[start : start + len(times)] = times
    column = pa.array(values, table.schema.field(place).type)
    parquet.write_table(table.set_column(place, 'timestamp', column), file)
    return path

  @parameterized.product(version=_VERSIONS, modality=(False, True))
  def test_frames_by(self, version, modality):
    times = np.float32([0.0, 0.11, 0.29, 0.33, 0.44])
    # The video has a frame each 0.1 s.
    nearest = np.abs(times[:, None] - np.arange(5) / 10).argmin(axis=1)
    self.assertAllEqual(nearest, [0, 1, 3, 3, 4])
    path = self._with_times(version, times)
    if modality:
      part = {'arm': {'start': 0, 'end': 2}}
      video = {'top': {'original_key': 'observation.images.top'}}
      expected.change_json(
          f'{path}/meta/modality.json',
          lambda json: json.update(state=part, action=part, video=video),
      )
    frames = _expected_frames(version, 'top', 1)
    for frames_by, wanted in (
        ('exact_time', nearest),
        ('nearest_time', nearest),
        ('index', np.arange(5)),
    ):
      episode = _read(path, frames_by=frames_by, modality=modality)[1]
      observation = episode['steps']['observation']
      actual = observation['video' if modality else 'images']['top']
      self.assertAllEqual(actual, frames[wanted], frames_by)

  def test_frames_by_with_times_that_differ_from_the_video(self):
    path = self._with_times('v2.1', [0.0, 0.1, 0.2, 0.3, 0.6])
    frames = _expected_frames('v2.1', 'top', 1)
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError,
        r'no frame within half a frame of 0\.6000 s[^$]*frames_by',
    ):
      _read(path)
    for frames_by in 'nearest_time', 'index':
      episode = _read(path, frames_by=frames_by)[1]
      self.assertAllEqual(
          episode['steps']['observation']['images']['top'], frames
      )

  def test_frames_by_index_of_a_video_of_another_rate(self):
    path = expected.copy_of(self, 'lerobot', 'v2.1')
    expected.change_json(
        f'{path}/meta/info.json', lambda json: json.update(fps=30)
    )
    for index, episode in enumerate(_read(path, frames_by='index')):
      self.assertAllEqual(
          episode['steps']['observation']['images']['top'],
          _expected_frames('v2.1', 'top', index),
      )

  def test_invalid_frames_by_raises(self):
    for options, message in (
        ({'frames_by': 'nearest'}, "frames_by must be .*'nearest_time'"),
        ({'frames_by': 'index', 'decode_videos': False}, 'decode_videos'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        lerobot.load_lerobot(_path('v3.0'), **options)

  def test_images(self):
    dataset = lerobot.load_lerobot(_path('v3.0'), cameras=[]).map(
        lambda episode: images.decode_images(
            episode, ['steps/observation/sketch'], size=(16, 16)
        )
    )
    for episode, columns in zip(dataset, _expected('v3.0')):
      observation = episode['steps']['observation']
      self.assertNotIn('images', observation)
      # LeRobot gives channels first, from 0 to 1.
      self.assertAllClose(
          np.moveaxis(observation['sketch'], -1, 1) / 255,
          columns['observation.sketch'],
      )

  def test_added_last_step_has_image_of_zeros(self):
    cameras = ['observation.images.top']
    path = _path('v3.0')
    episodes = _read(path, is_terminal='next.success', cameras=cameras)
    actual = episodes[1]['steps']['observation']['images']
    self.assertEqual(list(actual), ['top'])
    self.assertAllEqual(actual['top'][5], np.zeros((64, 64, 3)))

  @parameterized.product(name=('depth_log', 'depth_linear'), unit=('mm', 'm'))
  def test_depth_equals_lerobot(self, name, unit):
    with np.load(os.path.join(_path(name), 'expected.npz')) as arrays:
      wanted = {
          # LeRobot has the channel before the rows.
          camera: np.moveaxis(arrays[f'{camera}_{unit}'], 1, -1)
          for camera in ('depth', 'near')
      }
    dataset = lerobot.load_lerobot(_path(name), depth_unit=unit)
    whole = {'mm': tf.uint16, 'm': tf.float32}[unit]
    # Images with this unit are returned unchanged.
    stored = whole if name == 'depth_log' else tf.float32
    spec = dataset.element_spec['steps']['observation']['images']
    self.assertEqual(spec['depth'], tf.TensorSpec([None, 24, 32, 1], whole))
    self.assertEqual(spec['near'], tf.TensorSpec([None, 24, 32, 1], stored))
    self.assertEqual(spec['top'], tf.TensorSpec([None, 24, 32, 3], tf.uint8))
    episodes = list(dataset.as_numpy_iterator())
    self.assertEqual([len(e['steps']['action']) for e in episodes], [4, 3])
    for camera, depths in wanted.items():
      actual = np.concatenate(
          [e['steps']['observation']['images'][camera] for e in episodes]
      )
      self.assertAllClose(actual, depths, rtol=1e-6, atol=1e-6)
    if name == 'depth_log':
      referred = _read(_path(name), decode_videos=False)[1]['steps']
      references = referred['observation']['images']['depth']
      self.assertIn(b'&depth=0.01,10.0,3.5,1.0', references[0])
      decode = lambda **options: images.decode_video_frames(
          {'depth': references}, ['depth'], size=(24, 32), **options
      )['depth']
      self.assertAllEqual(
          decode(depth_unit=unit),
          episodes[1]['steps']['observation']['images']['depth'],
      )
      with self.assertRaisesRegex(ValueError, 'of depth, but depth_unit is'):
        decode()

  def test_language(self):
    episodes = _read(_path('depth_log'), cameras=[])
    rows = [
        [json.loads(row) for row in e['steps'][f'language_{kind}']]
        for e in episodes
        for kind in ('persistent', 'events')
    ]
    self.assertEqual(
        [[one['content'] for one in row] for row in rows[0]],
        [['reach für den Griff', 'pull']] * 4,
    )
    self.assertEqual([len(row) for row in rows[1]], [0, 1, 0, 0])
    (call,) = rows[1][1][0]['tool_calls']
    self.assertEqual(call['function']['arguments'], {'text': 'On it.'})
    self.assertEqual(rows[2], [[]] * 3)
    self.assertEqual(rows[3], [[]] * 3)

  def test_features_left_out(self):
    left_out = ['observation.sketch', 'next.reward', 'timestamp']
    data = lerobot.load_lerobot(_path('v3.0'), cameras=[], exclude=left_out)
    spec = data.element_spec['steps']
    # The keys are in the order of the features, those made here at the end.
    self.assertEqual(
        list(spec),
        [
            *('observation', 'action', 'next', 'frame_index', 'index'),
            *('task_index', 'task', 'reward'),
            *('is_first', 'is_last', 'is_terminal', 'discount'),
        ],
    )
    self.assertEqual(list(spec['observation']), ['state', 'grid'])

  def test_modality_of_gr00t(self):
    path = expected.copy_of(self, 'lerobot', 'v3.0')
    modality = {
        'state': {
            'arm': {'start': 0, 'end': 2},
            'gripper': {'start': 2, 'end': 3, 'dtype': 'float32'},
        },
        'action': {'arm': {'start': 1, 'end': 2, 'original_key': 'action'}},
        'video': {'ego': {'original_key': 'observation.images.top'}},
        'annotation': {
            'human.task_description': {'original_key': 'task_index'}
        },
    }
    expected.change_json(
        os.path.join(path, 'meta', 'modality.json'),
        lambda content: content.update(modality),
    )
    episodes = _read(path, modality=True, cameras=['observation.images.top'])
    whole = _read(path, cameras=['observation.images.top'])
    for index, columns in enumerate(_expected('v3.0')):
      steps = episodes[index]['steps']
      observation = steps['observation']
      self.assertCountEqual(observation, ['state', 'video', 'sketch', 'grid'])
      state = columns['observation.state']
      self.assertAllEqual(observation['state']['arm'], state[:, :2])
      self.assertAllEqual(observation['state']['gripper'], state[:, 2:])
      self.assertAllEqual(steps['action']['arm'], columns['action'][:, 1:])
      self.assertAllEqual(
          observation['video']['ego'],
          whole[index]['steps']['observation']['images']['top'],
      )
      self.assertAllEqual(
          steps['annotation']['human']['task_description'],
          [task.encode() for task in columns['task']],
      )
    # Fields below an excluded field are excluded, too.
    steps = lerobot.load_lerobot(path, modality=True, cameras=[]).element_spec
    self.assertNotIn('video', steps['steps']['observation'])

  def test_row_groups_that_cut_episodes_and_a_type_of_huggingface(self):
    path = expected.copy_of(self, 'lerobot', 'v3.0')
    file = os.path.join(path, 'data', 'chunk-000', 'file-000.parquet')
    table = parquet.read_table(file)
    actions = table['action'].combine_chunks()
    pa.register_extension_type(_Array(actions.type))
    self.addCleanup(pa.unregister_extension_type, _Array.NAME)
    actions = pa.ExtensionArray.from_storage(_Array(actions.type), actions)
    place = table.column_names.index('action')
    table = table.set_column(place, 'action', actions)
    parquet.write_table(table, file, row_group_size=2)
    episodes = _read(path, cameras=[])
    for episode, columns in zip(episodes, _expected('v3.0')):
      self.assertAllEqual(episode['steps']['action'], columns['action'])

  def test_without_rewards_and_tasks(self):
    path = expected.copy_of(self, 'lerobot', 'v2.1')

    def change(info):
      del info['features']['next.reward']
      info['total_tasks'] = 0

    expected.change_json(os.path.join(path, 'meta', 'info.json'), change)
    os.remove(os.path.join(path, 'meta', 'tasks.jsonl'))
    steps = _read(path, cameras=[])[0]['steps']
    self.assertNotIn('task', steps)
    self.assertEqual(steps['reward'].dtype, np.float32)
    self.assertAllEqual(steps['reward'], np.zeros(7))

  def test_by_name(self):
    with mock.patch.dict(os.environ, HF_LEROBOT_HOME=_DATA):
      self.assertLen(_read('v3.0', cameras=[]), 3)
      with self.assertRaisesRegex(ValueError, f'none at {_DATA}/v1'):
        lerobot.load_lerobot('v1')


if __name__ == '__main__':
  tf.test.main()
