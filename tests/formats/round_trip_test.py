"""Reads what the libraries of the formats wrote: see the write_*.py here.

ManiSkill needs a simulator, and CALVIN is hundreds of gigabytes, so their files
are written here, as they write them.
"""

import json
import os

from absl.testing import parameterized
import h5py
import numpy as np
import pyarrow as pa
from pyarrow import parquet
import pytest
import tensorflow as tf

from rlds2reverb import formats
from rlds2reverb import transforms
from tests import golden
from tests.formats import expected

_RUN = {'observations': 'obs'}
_LENGTHS = {0: 4, 2: 1, 10: 3}


def _at(*path):
  return os.path.join(expected.DATA, *path)


def _arrays(*path):
  with np.load(_at(*path)) as arrays:
    return dict(arrays)


def _d3rlpy(name):
  for index, (length, terminal) in enumerate([(4, 1), (3, 0), (5, 1)]):
    rows = np.arange(10 * index, 10 * index + length, dtype=np.float32)
    observation = np.stack([rows, -rows], 1)
    if name == 'tuples.h5':
      observation = (observation, np.uint8(rows)[:, None, None])
    action = np.int64(rows)[:, None] % 3
    yield expected.steps(observation, action, rows / 2, terminal=terminal == 1)


def _imitation(name, has_reward=True):
  columns = _arrays('imitation', 'expected.npz')
  for index in range(3):
    at = lambda key, index=index: columns[f'{name}/{index}/{key}']
    # imitation reads the float32 of a folder through Python.
    yield expected.steps(
        at('obs').astype(np.float32),
        at('acts'),
        at('rews') if has_reward else None,
        terminal=bool(at('terminal')),
    )


def _lerobot(version, success=None):
  columns = _arrays('lerobot', version, 'expected.npz')
  others = ('timestamp', 'frame_index', 'index', 'task_index', 'task')
  for index, (begin, end) in enumerate(((0, 7), (7, 12), (12, 18))):
    rows = {name: column[begin:end] for name, column in columns.items()}
    yield expected.steps(
        {name: rows[f'observation.{name}'] for name in ('state', 'grid')},
        rows['action'],
        rows['next.reward'],
        terminal=index == success,
        next={'success': rows['next.success']},
        **{name: rows[name] for name in others},
    )


def _cartpole():
  columns = _arrays('minari', 'cartpole', 'expected.npz')
  for index in range(2):
    names = ('observations', 'actions', 'rewards')
    rows = [columns[f'{index}/{name}'] for name in names]
    # The first episode is both terminated and truncated.
    terminal = columns[f'{index}/terminations'][-1]
    yield expected.steps(*rows, terminal=terminal)


def _rooms(name):
  columns = _arrays('minari', name, 'expected.npz')
  for index in range(2):
    at = lambda key, index=index: columns[f'{index}/{key}']
    pose = (at('observations/pose/0'), at('observations/pose/1'))
    infos = {'energy': at('infos/energy')}
    yield expected.steps(
        {'mission': at('observations/mission'), 'pose': pose},
        {key: at(f'actions/{key}') for key in ('grip', 'move')},
        at('rewards'),
        terminal=index == 1,
        infos={**infos, 'room': {'door': at('infos/room/door')}},
    )


def _parquet():
  for index, bounds in enumerate([(0, 2), (2, 6), (6, 9)]):
    rows = np.arange(*bounds)
    yield expected.steps(
        np.stack([rows, -rows], 1).astype(np.float32),
        (rows % 3).astype(np.int32),
        (rows / 2).astype(np.float32),
        terminal=index == 1,
    )


def _rllib(observations):
  """Returns episodes; JSON and this table have numbers of 64 bits."""
  for index, (length, terminal) in enumerate([(4, 1), (3, 0), (5, 1)]):
    rows = np.arange(10 * index, 10 * index + length + 1, dtype=np.float32)
    yield expected.steps(
        np.stack([rows, -rows], 1).astype(observations),
        np.int64(rows[:-1]) % 3,
        rows[:-1].astype(np.float64) / 2,
        terminal=terminal == 1,
        t=np.arange(length),
    )


def _zarr(name):
  columns = _arrays('zarr', name)
  for begin, end in ((0, 5), (5, 6), (6, 14)):
    rows = {key: column[begin:end] for key, column in columns.items()}
    action = rows.pop('action', next(iter(rows.values())))
    steps = expected.steps(rows, action)
    if 'action' not in columns:  # UMI has none.
      del steps['action']
    yield steps


# A path, options, the steps, the ids, and fields that are not compared here.
_CASES = {
    'd3rlpy': ('d3rlpy/arrays.h5', {}, _d3rlpy('arrays.h5')),
    'd3rlpy_tuples': ('d3rlpy/tuples.h5', {}, _d3rlpy('tuples.h5')),
    'imitation': ('imitation/folder', {}, _imitation('folder'), ['infos']),
    'imitation_without': (
        'imitation/without_rewards',
        {},
        _imitation('folder', has_reward=False),
        ['infos'],
    ),
    'imitation_npz': ('imitation/trajectories.npz', {}, _imitation('npz')),
    **{
        f'lerobot_{version}': (
            f'lerobot/{version}',
            {'cameras': [], 'exclude': ['observation.sketch']},
            _lerobot(version),
        )
        for version in ('v2.1', 'v3.0')
    },
    'lerobot_terminal': (
        'lerobot/v3.0',
        {
            'cameras': [],
            'exclude': ['observation.sketch'],
            'is_terminal': 'next.success',
        },
        _lerobot('v3.0', success=1),
    ),
    **{
        f'minari_{below}': (f'minari/cartpole{below}', {}, _cartpole())
        for below in ('/data', '/data/main_data.hdf5')
    },
    **{
        f'minari_{name}': (
            f'minari/{name}',
            {},
            _rooms(name.split('/', maxsplit=1)[0]),
            ['observation/camera'],
        )
        for name in ('rooms', 'rooms_arrow/data', 'rooms_parquet')
    },
    'parquet_steps': (
        'parquet/steps',
        {'episode_column': 'run', 'column_names': _RUN},
        _parquet(),
        ['image'],
    ),
    'parquet_episodes': (
        'parquet/episodes.parquet',
        {'column_names': {'terminals': 'dones'}},
        _parquet(),
    ),
    'rllib': ('rllib/packed', {}, _rllib(np.float32)),
    'rllib_table': ('rllib/table', {}, _rllib(np.float64)),
    'zarr': ('zarr/pusht.zarr', {}, _zarr('pusht.npz')),
    'zarr_umi': ('zarr/umi.zarr.zip', {}, _zarr('umi.npz')),
}


class RoundTripTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.parameters(*_CASES)
  def test_episodes_equal_those_of_original_library(self, name):
    path, options, episodes, *unread = _CASES[name]
    if 'zarr' in name:
      pytest.importorskip('zarr')
    episodes = list(episodes)
    dataset = formats.load(_at(path), name.split('_')[0], **options)
    # Of RLlib, and of rows with an episode column, only reading tells.
    is_unknown = 'run' in str(options) or 'rllib' in name
    count = tf.data.UNKNOWN_CARDINALITY if is_unknown else 3
    self.assertIn(dataset.cardinality(), (count, len(episodes)))
    found = list(dataset.as_numpy_iterator())
    ids = [episode['episode_id'] for episode in found]
    self.assertEqual(ids, list(range(len(episodes))))
    for field in [field for fields in unread for field in fields]:
      *above, last = field.split('/')
      for episode in found:
        steps = episode['steps'][above[0]] if above else episode['steps']
        steps.pop(last)
    steps = [episode['steps'] for episode in found]
    golden.assert_frames_equal(self, steps, episodes)

  def test_images_and_texts_stay_encoded(self):
    read = lambda path, **options: list(
        formats.load(_at(path), **options).as_numpy_iterator()
    )
    decode = lambda leaf, **options: transforms.images.decode_images(
        {'image': leaf}, ['image'], **options
    )['image'].numpy()
    names = {'episode_column': 'run', 'column_names': _RUN}
    runs = read('parquet/steps', format='parquet', **names)
    encoded = [episode['steps']['image'] for episode in runs]
    self.assertEqual(encoded[1][-1], b'')
    pixels = decode(encoded[2], size=(4, 4))[:, 0, 0, 0]
    self.assertAllEqual(pixels, [54, 63, 72])
    for name in 'rooms', 'rooms_arrow', 'rooms_parquet':
      columns = _arrays('minari', name, 'expected.npz')
      for index, episode in enumerate(read(f'minari/{name}')):
        camera = episode['steps']['observation']['camera']
        actual = decode(camera, size=(32, 32), channels=1)[..., 0]
        # TensorFlow and Pillow do not decode JPEGs to the last bit alike.
        wanted = columns[f'{index}/observations/camera']
        self.assertAllClose(actual, wanted, atol=2)
    columns = _arrays('imitation', 'expected.npz')
    for index, episode in enumerate(read('imitation/folder')):
      *infos, last = episode['steps']['infos']
      steps = [json.loads(info)['step'] for info in infos]
      self.assertAllEqual(steps, columns[f'folder/{index}/step'])
      self.assertEqual(last, b'')
    whole = read(
        'parquet/episodes.parquet', column_names={'terminals': 'dones'}
    )
    self.assertEqual([e['task'] for e in whole], [b'lift', b'push', b'lift'])

  def test_parquet_with_additional_last_observation(self):
    path = os.path.join(self.create_tempdir().full_path, 'a.parquet')
    table = {
        'observations': [[0, 1, 2], [7, 8]],
        'actions': [[5, 6], [9]],
        'terminals': [True, False],
    }
    parquet.write_table(pa.table(table), path)
    first, second = (episode['steps'] for episode in formats.load(path))
    self.assertAllEqual(first['observation'], [0, 1, 2])
    self.assertAllEqual(first['action'], [5, 6, 0])
    self.assertAllEqual(first['is_terminal'], [0, 0, 1])
    self.assertAllEqual(second['observation'], [7, 8])
    self.assertFalse(second['is_terminal'].numpy().any())

  def test_maniskill(self):
    path = os.path.join(self.create_tempdir().full_path, 'a.h5')
    info = {'env_id': 'PickCube-v1', 'env_kwargs': {'obs_mode': 'rgbd'}}
    with open(path.replace('.h5', '.json'), 'w', encoding='utf-8') as f:
      json.dump({'env_info': info, 'episodes': []}, f)
    episodes = []
    with h5py.File(path, 'w') as file:
      for number, length in _LENGTHS.items():
        rng = np.random.default_rng(number)
        is_end = np.arange(length) == length - 1
        pose = rng.normal(size=(length + 1, 7)).astype(np.float32)
        rgb = rng.integers(0, 255, (length + 1, 8, 8, 3)).astype(np.uint8)
        action = rng.normal(size=(length, 8)).astype(np.float32)
        others = {'terminated': is_end & (number != 2), 'success': is_end}
        group = file.create_group(f'traj_{number}', track_order=True)
        group.update({'obs/agent/qpos': pose, 'actions': action, **others})
        group.create_dataset('obs/sensor/rgb', data=rgb, compression='gzip')
        group['env_states/cube'] = pose[:, :3]
        others['env_states'] = {'cube': pose[:, :3]}
        observation = {'agent': {'qpos': pose}, 'sensor': {'rgb': rgb}}
        terminal = number != 2
        episodes.append(
            expected.steps(observation, action, terminal=terminal, **others)
        )
    dataset = formats.load(path)
    found = expected.assert_read(self, dataset, episodes, _LENGTHS)
    for one in found:
      self.assertEqual(json.loads(one['env_info']), info)

  def test_calvin(self):
    folder, frames = expected.write_calvin(self)
    for language, spans in (False, [(3, 6), (9, 9)]), (True, [(4, 6), (3, 4)]):
      episodes = []
      for first, last in spans:
        rows = frames[first : last + 1]
        rows = {key: np.stack([one[key] for one in rows]) for key in rows[0]}
        action, relative = rows.pop('actions'), rows.pop('rel_actions')
        steps = expected.steps(rows, action, rel_actions=relative)
        episodes.append(steps)
      dataset = formats.load(folder, language=language)
      self.assertEqual(dataset.cardinality(), 2)
      found = expected.assert_read(self, dataset, episodes)
      if language:
        fields = [(e['language_instruction'], e['task']) for e in found]
        self.assertEqual(fields, [(b'open', b'door'), (b'lift', b'red')])
    left_out = ['rgb_static', 'rel_actions']
    spec = formats.load(folder, exclude=left_out).element_spec['steps']
    self.assertNotIn('rel_actions', spec)
    self.assertNotIn('rgb_static', spec['observation'])


if __name__ == '__main__':
  tf.test.main()
