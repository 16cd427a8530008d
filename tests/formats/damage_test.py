"""What each reader refuses: damaged copies of the data, and wrong options."""

import os
import pathlib
import re
import shutil
import zipfile

from absl.testing import parameterized
import h5py
import numpy as np
import pyarrow as pa
from pyarrow import parquet
import pytest
import tensorflow as tf

from rlds2reverb import formats
from tests.formats import expected

_HDF5 = 'minari/cartpole/data/main_data.hdf5'
_V2_FILE = 'data/chunk-000/episode_00000{}.parquet'
_NAMES = {'observations': 'obs'}
_VIDEO = 'videos/chunk-000/observation.images.top/episode_000000.mp4'
_TEXTS = 'lang_annotations/auto_lang_ann.npy'
_PART = 'data/0/part-0.parquet'
_PARTS = {'modality': True}
_PICKLE = [{'id': 'pickle', 'protocol': 5}]
_JSON = [{'id': 'json2'}]
_OTHER = dict(observations=None, actions=None, rewards=None, x=[1])


class _Evil:
  """Code in a file, which would create a folder of that name next to it."""

  folder = 'made_by_a_file'

  def __init__(self, path):
    self._path = path

  def __reduce__(self):
    return os.mkdir, (os.path.join(self._path, self.folder),)


def _of(message, **options):
  """Returns a case of invalid options for intact data."""
  return message, None, options


def _cut(name, length):
  return lambda path: os.truncate(os.path.join(path, name), length)


def _gone(name):
  return lambda path: os.remove(os.path.join(path, name))


def _json(name, change):
  return lambda path: expected.change_json(os.path.join(path, name), change)


def _text(name, old, new):
  def change(path):
    with open(os.path.join(path, name), 'r+', encoding='utf-8') as f:
      text = f.read()
      assert old in text
      f.seek(0)
      f.write(text.replace(old, new))
      f.truncate()

  return change


def _nested(name):
  """Replaces a file by JSON that is nested deeply."""

  def change(path):
    with open(os.path.join(path, name), 'w', encoding='utf-8') as f:
      f.write('[' * 5000 + ']' * 5000)

  return change


def _linked(name, target):
  """Replaces a folder by a symbolic link."""

  def change(path):
    path = os.path.join(path, name)
    shutil.rmtree(path)
    os.symlink(target, path)

  return change


def _bytes(name, content):
  return lambda path: pathlib.Path(path, name).write_bytes(content)


def _array(name, value):
  return lambda path: np.save(os.path.join(path, name), value)


def _header(name, old, new):
  """Replaces the shape in the header of a file of NumPy."""

  def change(path):
    file = pathlib.Path(path, name)
    # The padding of the header becomes shorter.
    old_text = old + b', }' + b' ' * (len(new) - len(old))
    content = file.read_bytes()
    assert old_text in content
    file.write_bytes(content.replace(old_text, new + b', }'))

  return change


def _zip_shape(path, name):
  """Gives the first array of an npz file a shape of 10**12 rows."""
  with zipfile.ZipFile(os.path.join(path, name)) as archive:
    members = {each: archive.read(each) for each in archive.namelist()}
  first = next(iter(members))
  shape = b'(%d,), }' % 10**12
  members[first] = re.sub(
      rb'\(7,\), } {%d}' % (len(shape) - 7), shape, members[first]
  )
  with zipfile.ZipFile(os.path.join(path, name), 'w') as archive:
    for each, content in members.items():
      archive.writestr(each, content)


def _write(path, name, numbers):
  dtype = np.int64 if 'ends' in name else np.float32
  np.array(numbers, dtype).tofile(os.path.join(path, name))


def _h5(**arrays):
  """Replaces arrays of a file; None removes one."""

  def change(path):
    with h5py.File(path, 'a') as file:
      for name, array in arrays.items():
        file.pop(name, None)
        if array is not None:
          file[name] = array

  return change


def _npz(**arrays):
  """Replaces arrays of a file; None removes one."""

  def change(path):
    with np.load(path, allow_pickle=True) as found:
      kept = {**found, 'infos': None, **arrays}
    np.savez(path, **{k: v for k, v in kept.items() if v is not None})

  return change


def _table(name, change):
  def changed(path):
    file = os.path.join(path, name)
    table = parquet.read_table(file, partitioning=None)
    parquet.write_table(change(table), file)

  return changed


def _with(table, name, values):
  index = table.column_names.index(name)
  return table.set_column(index, name, pa.array(values))


def _modality(**parts):
  known = {'state': {'arm': {'start': 0, 'end': 2}}}
  return _json('meta/modality.json', lambda json: json.update(known | parts))


def _info(change):
  return _json('meta/info.json', change)


def _feature(name, **info):
  def change(json):
    feature = json['features'][f'observation.images.{name}']
    feature['info'] = {**feature['info'], **info} if info else {}

  return _info(change)


def _array_of_zarr(name, **metadata):
  """Changes keys of an array; `...` removes one."""

  def change(json):
    json.update(metadata)
    for key in [key for key, value in metadata.items() if value is ...]:
      del json[key]

  return _json(f'data/{name}/.zarray', change)


def _dead_end(path):
  np.save(os.path.join(path, _TEXTS), {'language': _Evil(path)})


# Missing paths and paths of other formats, with the error message.
_OTHERS = (
    ('imitation', '/nowhere', '/nowhere is neither the folder'),
    ('lerobot', 'lerobot', 'no LeRobot data set .*info.json'),
    ('lerobot', 'gs://b/a', 'local disk, but is at gs://b/a'),
    ('minari', '/nowhere/a', r'no Minari data set /nowhere/a\.'),
    ('minari', 'minari', 'must contain one of .*data/main_data.hdf5'),
    ('npz', '/nowhere.npz', 'There is no npz file /nowhere'),
    ('parquet', '/nowhere', 'There is no parquet file'),
    ('robomimic', '/nowhere/a.hdf5', 'There is no HDF5 file /nowhere'),
    ('torchrl', '/nowhere', 'There is no storage'),
    ('torchrl', 'torchrl', 'must contain storage_metadata.json or'),
    ('zarr', '/nowhere', 'There is no Zarr'),
    ('zarr', 'lerobot/v3.0', 'not of the format zarr'),
)
# By format and path: the error message, the change of a copy of the path, and
# the options.
_CASES = {
    ('calvin', 'calvin'): [
        ('ep_start_end_ids', _gone('ep_start_end_ids.npy')),
        ('no frame .*009.npz', _gone('episode_0000009.npz')),
        ('complete CALVIN frame', _cut('episode_0000003.npz', 100)),
        (
            'no frame .*episode_1099511627776.npz',
            _array('ep_start_end_ids.npy', [[3, 1 << 40]]),
        ),
        (r'has \[\(4, 3\)\]', _array('ep_start_end_ids.npy', [[4, 3]])),
        (
            'integers of shape .episodes, 2.',
            _array('ep_start_end_ids.npy', [4, 3]),
        ),
        (
            'has pickled Python objects',
            _array('ep_start_end_ids.npy', [[4, None]]),
        ),
        (
            'ids.npy must contain .*does not match its',
            _header('ep_start_end_ids.npy', b'(2, 2)', b'(%d, 2)' % 10**12),
        ),
        (
            '003.npz is not a complete CALVIN frame.*does not match its',
            lambda path: _zip_shape(path, 'episode_0000003.npz'),
        ),
        _of("no field 'rgb'", exclude=['rgb']),
        _of(
            "no observation, but only .*'action'",
            exclude=['robot_obs', 'rgb_static'],
        ),
        ('mkdir, but only .* could run code', _dead_end, {'language': True}),
        ('no file .* with the instructions', _gone(_TEXTS), {'language': True}),
        (
            'has no CALVIN instructions',
            _array(_TEXTS, {'x': 1}),
            {'language': True},
        ),
    ],
    ('d3rlpy', 'd3rlpy/arrays.h5'): [
        ('must contain num_ep.* version', _h5(version=None)),
        ('version 2.0 .*Only 2.1', _h5(version='2.0')),
        ('no observ.*_0', _h5(observations_0=None)),
    ],
    ('imitation', 'imitation/trajectories.npz'): [
        ('no terminal, but', _npz(terminal=None)),
        (r'3 trajectories .*are \[4\]', _npz(indices=np.array([4]))),
    ],
    ('imitation', 'imitation/folder'): [
        (
            'not a complete file',
            _cut('data-00000-of-00001.arrow', 9),
        ),
        ('state.json .*(JSON|nested)', _nested('state.json')),
    ],
    ('lerobot', 'lerobot/v3.0'): [
        _of("'next.suces'. Did", is_terminal='next.suces'),
        _of("no video 'top'", cameras=['top']),
        _of("no field 'time'.* timestamp", exclude=['time']),
        ('not a complete', _cut('meta/tasks.parquet', 7)),
        ('info.json .*(JSON|nested)', _nested('meta/info.json')),
    ],
    ('lerobot', 'lerobot/v2.1'): [
        ('requires .*modality.json', None, _PARTS),
        ('dality.json .*(JSON|nested)', _nested('meta/modality.json'), _PARTS),
        ('episodes.jsonl .*(JSON|nested)', _nested('meta/episodes.jsonl')),
        ('no feature action', _info(lambda j: j['features'].pop('action'))),
        (
            'version v1. Supported are v2.0',
            _info(lambda j: j.update(codebase_version='v1')),
        ),
        ('There is no file .*_000000.parqu', _gone(_V2_FILE.format(0))),
        ('There is no video file', _gone(_VIDEO)),
        ('not a complete video file', _cut(_VIDEO, 9)),
        (
            'from 0 to 4.*shape .3.',
            _modality(state={'arm': {'start': 0, 'end': 4}}),
            _PARTS,
        ),
        (
            "'video.ego', which is not a feature",
            _modality(video={'ego': {}}),
            _PARTS,
        ),
        ("has the modality 'sound'", _modality(sound={}), _PARTS),
        (
            'Frame 1 of episode 1 .*frame_index 3, but .* has 4',
            _table(_V2_FILE.format(1), lambda table: table[::-1]),
            {'cameras': []},
        ),
        (
            'Frame 4 of episode 1 .*timestamp 0.0, but',
            _table(
                _V2_FILE.format(1),
                lambda table: _with(
                    table,
                    'timestamp',
                    np.float32([*table['timestamp'].to_numpy()[:-1], 0]),
                ),
            ),
            {'cameras': []},
        ),
        (
            'has 3 frames, but 5',
            _table(_V2_FILE.format(1), lambda table: table[:3]),
            {'cameras': []},
        ),
        (
            r'no task 0. The tasks .*9',
            _text('meta/tasks.jsonl', '"task_index": 0', '"task_index": 9'),
            {'cameras': []},
        ),
    ],
    ('lerobot', 'lerobot/depth_log'): [
        ('1 channels of 12 bits', _feature('depth')),
        (
            'yuv.*must have the format gray12le',
            _feature('top', is_depth_map=True),
        ),
        ('must be positive', _feature('depth', **{'video.shift': -0.01})),
    ],
    ('maniskill', 'maniskill.h5'): [
        ('has no obs.*replay_trajectory', _h5(**{'traj_0/obs': None})),
        ('must contain groups traj_0 and so', _h5(traj_0=None)),
    ],
    ('minari', 'flat.hdf5'): [
        ("must contain only .*has .'x'.", _h5(**_OTHER)),
    ],
    ('minari', _HDF5): [
        ('has no actions, but .*rewards', _h5(**{'episode_1/actions': None})),
        (
            '18 rows of reward, .*: expected 3',
            _h5(**{'episode_0/actions': np.zeros(3, np.int64)}),
        ),
        (
            'in row 4 of 14',
            _h5(**{'episode_1/terminations': np.arange(14) == 4}),
        ),
    ],
    ('minari', 'minari/rooms_parquet'): [
        ('metadata.json .*(JSON|nested)', _nested('data/metadata.json')),
        (
            '0 has no rewards, but',
            _table(_PART, lambda t: t.drop_columns(['rewards'])),
        ),
        (
            'rewards must have a value',
            _table(_PART, lambda t: _with(t, 'rewards', [1.0, None] * 3)),
        ),
        ('part-0.parquet is not a complete', _cut(_PART, 7)),
        ('There is no file ..parquet in', _gone(_PART)),
        (
            'There is no episode in',
            lambda path: [shutil.rmtree(f'{path}/data/{one}') for one in '01'],
        ),
    ],
    ('hdf5', 'flat.hdf5'): [
        ('is an empty HDF5 file', lambda path: h5py.File(path, 'w').close()),
        ('not a complete HDF5 file', lambda path: os.truncate(path, 100)),
    ],
    ('npz', 'flat.npz'): [
        ('complete npz file', lambda path: os.truncate(path, 9)),
        ('can run any code', _npz(rewards=np.array([{}, 1, 2], object))),
        ('x .*ascontiguous', _npz(x=np.asfortranarray(np.zeros((3, 4))))),
    ],
    ('parquet', 'parquet/steps'): [
        _of('key of column_names', column_names={'obs': 'obs'}),
        _of('must be lists of steps', column_names=_NAMES),
        _of(
            "'ran'. Did you mean run", column_names=_NAMES, episode_column='ran'
        ),
    ],
    ('parquet', 'parquet/episodes.parquet'): [
        ('not a complete file', lambda path: os.truncate(path, 9)),
    ],
    ('rllib', 'rllib/plain'): [
        (
            'line 3 of .*output-0.json .*complete line',
            _cut('output-0.json', 600),
        ),
        ('output-0.json', _cut('output-0.json', 0)),
        ('no experience of RLlib', _gone('output-0.json')),
        ('no column actions in line 1', _text('output-0.json', 'actions', 'x')),
        ('line 1 .*type', _text('output-0.json', 'SampleBatch', 'Sample')),
    ],
    ('rllib', 'rllib/table'): [
        ('output-0.parquet', _cut('output-0.parquet', 99)),
    ],
    ('robomimic', 'robomimic/low_dim.hdf5'): [
        _of("filter key 'trian'. Did you mean train", filter_key='trian'),
        (
            "'demo_7'., but .*'demo_0'",
            _h5(**{'mask/train': [b'demo_7']}),
            {'filter_key': 'train'},
        ),
        ('dataset_states_to_obs.py', _h5(**{'data/demo_0/obs': None})),
        (
            'different fields in next_obs and obs',
            _h5(**{'data/demo_2/next_obs/image': None}),
        ),
    ],
    ('torchrl', 'torchrl/flat/storage'): [
        ('40 bytes.*has 36', _cut('observation.memmap', 36)),
        ('no .*meta.json', _gone('meta.json')),
        ('meta.json .*(JSON|nested)', _nested('meta.json')),
        (
            'Only TensorDicts with one',
            _text('_storage_shape/meta.json', '[8]', '[4,2]'),
        ),
        ('pytree', _text('storage_metadata.json', 'false', 'true')),
        (
            'no transition',
            _text('storage_metadata.json', '"len": 8', '"len": 0'),
        ),
        ('float8', _text('meta.json', 'torch.float32', 'torch.float8')),
        (
            'Only TensorDicts are supported',
            _text('meta.json', '_td.TensorDict', '_lazy.Stacked'),
        ),
        ('has 9 rows', _text('meta.json', '"shape":[10,1]', '"shape":[9,1]')),
        ('row|must have', _text('meta.json', '"done"', '"finished"')),
    ],
    ('torchrl', 'torchrl/transitions'): [
        (
            '7 of 7 .*observation',
            lambda path: _write(
                path, 'storage/next/observation.memmap', range(16)
            ),
        ),
    ],
    ('torchrl', 'torchrl/hdf5/storage/checkpoint.h5'): [
        ('traj_1 of .* has the fields', _h5(**{'traj_1/action': None})),
    ],
    ('zarr', 'zarr/umi.zarr.zip'): [
        ('Zarr', lambda path: os.truncate(path, 9)),
    ],
    ('zarr', 'zarr/pusht.zarr'): [
        _of("data has no field 'image'", exclude=['image']),
        _of(
            "no observation, but only .*'action'",
            exclude=['img', 'keypoint', 'n_contacts', 'state'],
        ),
        (
            r'shape \(13, 5\), but .* 14 frames',
            _array_of_zarr('state', shape=[13, 5]),
        ),
        (
            'increasing ends of ep',
            lambda path: _write(path, 'meta/episode_ends/0', [5, 3, 14]),
        ),
        ('can run any', _array_of_zarr('state', filters=_PICKLE)),
        ('can run any', _array_of_zarr('state', dtype='|O', filters=_JSON)),
        ('state/.zarray is .*recursion', _nested('data/state/.zarray')),
        ('.zgroup is .*recursion', _nested('.zgroup')),
        (
            'action/.zarray is not UTF-8 text',
            _bytes('data/action/.zarray', b'{"chunks": "\xff"}'),
        ),
        (
            'ends/.zarray is not complete JSON',
            _bytes('meta/episode_ends/.zarray', b'{"chunks": ['),
        ),
        ('data/.zgroup is not UTF-8 text', _bytes('data/.zgroup', b'\xe6')),
        ("img/.zarray .* no key 'dtype'", _array_of_zarr('img', dtype=...)),
        (
            'img/.zarray is damaged: its zarr_format is 7',
            _array_of_zarr('img', zarr_format=7),
        ),
        ('img/.zarray is damaged: ', _array_of_zarr('img', dtype='<q9')),
        ("not a Zarr .*'data'", _linked('data', 'data')),
        (
            "img/.zarray has the unknown codec .*'none'}.$",
            _array_of_zarr('img', compressor={'id': 'none'}),
        ),
        (
            r'img/.zarray has .*imagecodecs_x.* JPEG XL.*install imagecodecs',
            _array_of_zarr('img', compressor={'id': 'imagecodecs_x'}),
        ),
    ],
}


class DamageTest(tf.test.TestCase, parameterized.TestCase):

  def _source(self, path):
    """Returns the path of data that is written by its library, or here."""
    folder = self.create_tempdir().full_path
    arrays = ('observations', 'actions', 'rewards', 'terminals')
    if path == 'calvin':
      return expected.write_calvin(self)[0]
    if path.startswith('torchrl'):
      with zipfile.ZipFile(f'{expected.DATA}/torchrl.zip') as archive:
        archive.extractall(f'{folder}/torchrl')
    elif path == 'flat.npz':
      np.savez(f'{folder}/{path}', **dict.fromkeys(arrays, np.zeros(3)))
    elif path == 'flat.hdf5':
      _h5(**dict.fromkeys(arrays[:3], np.zeros(3)))(f'{folder}/{path}')
    elif path == 'maniskill.h5':
      rows = {'obs': np.zeros(4), 'actions': np.zeros(3)}
      rows = {f'traj_0/{name}': array for name, array in rows.items()}
      _h5(x=[1], **rows)(f'{folder}/{path}')
    elif os.path.exists(f'{expected.DATA}/{path}'):
      return expected.copy_of(self, *path.split('/'))
    else:
      return path
    return f'{folder}/{path}'

  @parameterized.named_parameters(
      *(
          (f'{form}_{path}_{index}', form, path, *case)
          for (form, path), cases in _CASES.items()
          for index, case in enumerate(cases)
      ),
      *((f'{form}_{path}', form, path, text) for form, path, text in _OTHERS),
  )
  def test_damaged_file_raises(
      self, form, path, message, change=None, options=None
  ):
    if form == 'zarr':
      pytest.importorskip('zarr')
    path = self._source(path)
    if change is not None:
      change(path)
    errors = (ValueError, ImportError, tf.errors.InvalidArgumentError)
    with self.assertRaisesRegex(errors, message) as raised:
      list(formats.load(path, form, **(options or {})))
    self.assertNotIn('{{', str(raised.exception))
    self.assertFalse(os.path.exists(os.path.join(path, _Evil.folder)))

  def test_groups_of_zarr_that_contain_themselves_are_left_out(self):
    pytest.importorskip('zarr')
    path = self._source('zarr/pusht.zarr')
    expected_count = len(list(formats.load(path, 'zarr')))
    for link, target in (
        ('data/up', '..'),
        ('data/self', '.'),
        ('meta/up', '..'),
    ):
      os.symlink(target, os.path.join(path, link))
    with self.assertLogs(level='WARNING') as logs:
      self.assertLen(list(formats.load(path, 'zarr')), expected_count)
    self.assertIn('pusht.zarr: self, up.', logs.output[0])


if __name__ == '__main__':
  tf.test.main()
