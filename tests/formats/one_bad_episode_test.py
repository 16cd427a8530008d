"""Tests that one bad episode is reported, and the other episodes are read."""

import gzip
import json
import os
import pathlib
import re
import shutil

from absl.testing import parameterized
import h5py
import numpy as np
import pyarrow as pa
from pyarrow import compute as pc
from pyarrow import parquet
import pytest
import tensorflow as tf

from rlds2reverb import fields
from rlds2reverb import formats
from rlds2reverb import trajectories
from rlds2reverb import transforms
from rlds2reverb.jobs import describing
from rlds2reverb.jobs import sources
from rlds2reverb.jobs import validating
from tests import golden
from tests.formats import expected

_CARTPOLE = 'minari/cartpole/data/main_data.hdf5'
_POINTER = b'version https://git-lfs.github.com/spec/v1\noid sha256:a\n'
_V21 = 'data/chunk-000/episode_00000{}.parquet'


def _h5(name, change):
  def changed(path):
    with h5py.File(path, 'a') as file:
      array = file.pop(name)[()] if name in file else None
      value = change(array)
      if value is not None:
        file[name] = value

  return changed


def _cut(name, length):
  return lambda path: os.truncate(os.path.join(path, name), length)


def _gone(name):
  return lambda path: os.remove(os.path.join(path, name))


def _pointer(name):
  def change(path):
    with open(os.path.join(path, name), 'wb') as f:
      f.write(_POINTER)

  return change


def _fewer_rows(name):
  def change(path):
    file = os.path.join(path, name)
    parquet.write_table(parquet.read_table(file, partitioning=None)[:3], file)

  return change


# The format, the path of its data, what makes one episode bad, which one, and
# what its sentence says.
_CASES = (
    (
        'minari',
        _CARTPOLE,
        _h5('episode_1/observations', lambda x: x[:-1]),
        1,
        'main_data.hdf5',
    ),
    (
        'minari',
        _CARTPOLE,
        _h5('episode_0/actions', lambda x: None),
        0,
        'episode_0 of .*main_data.hdf5',
    ),
    (
        'minari',
        'minari/rooms_parquet',
        _cut('data/1/part-0.parquet', 99),
        1,
        'data/1/part-0.parquet',
    ),
    ('minari', 'minari/rooms_arrow', _gone('data/0/part-0.arrow'), 0, 'data/0'),
    (
        'robomimic',
        'robomimic/low_dim.hdf5',
        _h5('data/demo_2/extra', lambda _: np.zeros(3)),
        1,
        'demo_2 of .*low_dim',
    ),
    (
        'robomimic',
        'robomimic/low_dim.hdf5',
        _h5('data/demo_0/actions', lambda x: x[:-1]),
        0,
        'demo_0 of .*low_dim',
    ),
    (
        'robomimic',
        'robomimic/low_dim.hdf5',
        _h5('data/demo_2/next_obs/image', lambda x: np.roll(x, 1, 0)),
        1,
        'next_obs/image at step 0 of .*demo_2 of .*low_dim.* obs/image at',
    ),
    (
        'd3rlpy',
        'd3rlpy/arrays.h5',
        _h5('actions_1', lambda x: x.astype(np.float64)),
        1,
        'arrays.h5',
    ),
    ('lerobot', 'lerobot/v2.1', _cut(_V21.format(1), 99), 1, '_000001.parquet'),
    ('lerobot', 'lerobot/v2.1', _gone(_V21.format(0)), 0, '_000000.parquet'),
    ('lerobot', 'lerobot/v2.1', _pointer(_V21.format(2)), 2, 'git lfs pull'),
    (
        'lerobot',
        'lerobot/v2.1',
        _fewer_rows(_V21.format(1)),
        1,
        'has 3 frames, but 5',
    ),
    (
        'lerobot',
        'lerobot/v2.1',
        _cut('videos/chunk-000/observation.images.top/episode_000001.mp4', 50),
        1,
        'top/episode_000001.mp4',
    ),
    ('zarr', 'zarr/pusht.zarr', _cut('data/state/0.0', 9), 0, 'data/state of'),
    ('zarr', 'zarr/pusht.zarr', _cut('data/state/0.0', 20), 0, 'state/0.0 has'),
    ('zarr', 'zarr/pusht.zarr', _cut('data/state/3.0', 95), 2, 'state/3.0 has'),
    ('zarr', 'zarr/pusht.zarr', _pointer('data/action/0.0'), 0, 'action/0.0'),
    ('calvin', 'calvin', _gone('episode_0000009.npz'), 1, '0000009.npz'),
    ('calvin', 'calvin', _cut('episode_0000003.npz', 50), 0, '0000003.npz'),
)


@pytest.mark.long
class OneBadEpisodeTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.parameters(*_CASES)
  def test_other_episodes_are_read_after_the_error(
      self, form, name, change, bad, message
  ):
    if name == 'calvin':
      path = expected.write_calvin(self)[0]
    else:
      path = expected.copy_of(self, *name.split('/'))
    whole = list(formats.load(path, form).as_numpy_iterator())
    change(path)
    data = formats.load(path, form)

    iterator, actual = iter(data), 0
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, message
    ) as raised:
      for actual in range(len(whole)):  # noqa: B007  It is read below.
        next(iterator)
    self.assertEqual(actual, bad)
    self.assertRegex(str(raised.exception), rf'Found at episode {bad}\b')
    self.assertIn(path, str(raised.exception))

    valid_episodes = list(data.ignore_errors().as_numpy_iterator())
    del whole[bad]
    self.assertLen(valid_episodes, len(whole))
    golden.assert_frames_equal(
        self,
        [episode['steps'] for episode in valid_episodes],
        [episode['steps'] for episode in whole],
    )

    validation = validating.validate(data)
    self.assertEqual(validation.num_episodes, len(whole) + 1)
    [problem] = validation.problems
    self.assertEqual(problem.episode, bad)
    self.assertRegex(problem.values, message)

  def _robomimic(self, *changes):
    path = expected.copy_of(self, 'robomimic', 'low_dim.hdf5')
    for change in changes:
      change(path)
    return path

  def test_each_bad_episode_is_listed(self):
    path = self._robomimic(
        _h5('data/demo_0/actions', lambda x: x[:-1]),
        _h5('data/demo_10/extra', lambda _: np.zeros(5)),
    )
    actual = validating.validate(sources.make_source(path))
    self.assertEqual([problem.episode for problem in actual.problems], [0, 2])
    self.assertFalse(actual.not_read)

  def test_unreadable_episode_is_described(self):
    path = self._robomimic(_h5('data/demo_2/extra', lambda _: np.zeros(3)))
    actual = describing.describe(sources.make_source(path))
    self.assertEqual(actual.counts['unreadable'], 1)
    kinds = {oddity['kind']: oddity['episode'] for oddity in actual.oddities}
    self.assertEqual(kinds['unreadable'], 1)

  def test_data_without_readable_episode_raises(self):
    data = lambda: iter([{'observation': 1}, {'observation': 2}])
    with self.assertRaisesRegex(ValueError, 'None of the first 2 .*no action'):
      formats.load(data)

  def test_error_of_the_users_generator_ends_the_data(self):
    def collect():
      yield {'observation': np.zeros(3), 'action': np.zeros(2)}
      raise RuntimeError('the simulator crashed')

    data = formats.load(collect)
    self.assertLen(list(data.ignore_errors()), 1)
    with self.assertRaisesRegex(tf.errors.OpError, 'simulator crashed'):
      list(data)

  def test_a_damaged_chunk_of_flat_arrays(self):
    path = os.path.join(self.create_tempdir().full_path, 'flat.hdf5')
    rng = np.random.default_rng(0)
    ends = np.arange(1, 41) % 10 == 0
    with h5py.File(path, 'w') as file:
      file.create_dataset(
          'observations',
          data=rng.normal(size=(40, 64)),
          chunks=(10, 64),
          compression='gzip',
      )
      file['actions'], file['rewards'] = np.zeros([40, 1]), np.zeros(40)
      file['terminals'], file['timeouts'] = ends, ends
      chunk = file['observations'].id.get_chunk_info(2)
    whole = list(formats.load(path, 'hdf5').as_numpy_iterator())
    with open(path, 'r+b') as f:
      f.seek(chunk.byte_offset)
      f.write(bytes(200))
    data = formats.load(path, 'hdf5')
    valid_episodes = list(data.ignore_errors().as_numpy_iterator())
    self.assertEqual(
        [episode['episode_id'] for episode in valid_episodes], [0, 1, 3]
    )
    golden.assert_frames_equal(
        self,
        [episode['steps'] for episode in valid_episodes],
        [whole[i]['steps'] for i in (0, 1, 3)],
    )
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, f'episode 2, {re.escape(path)}'
    ):
      list(data)


def _episode_of(number):
  """Returns the observations, actions and rewards of an episode."""
  rng = np.random.default_rng(number)
  rows = rng.normal(size=(4 + number % 2, 3))
  return rows, rng.normal(size=(len(rows) - 1, 1)), np.arange(len(rows) - 1.0)


def _write_parquet(path, episodes):
  rows = [
      dict(
          zip(('observations', 'actions', 'rewards'), map(np.ndarray.tolist, e))
      )
      for e in map(_episode_of, episodes)
  ]
  parquet.write_table(pa.Table.from_pylist(rows), path)


def _write_trajectories(path, episodes):
  rows = [
      dict(zip(('obs', 'acts', 'rews'), map(np.ndarray.tolist, e)))
      for e in map(_episode_of, episodes)
  ]
  table = pa.Table.from_pylist([{**row, 'terminal': False} for row in rows])
  with pa.OSFile(path, 'wb') as file:
    with pa.ipc.new_stream(file, table.schema) as stream:
      stream.write_table(table)
  state = os.path.join(os.path.dirname(path), 'state.json')
  name = {'filename': os.path.basename(path)}
  expected.change_json(
      state, lambda old: old.setdefault('_data_files', []).append(name)
  )


def _rllib_columns(number):
  rows, actions, rewards = _episode_of(number)
  return {
      'obs': rows[:-1].tolist(),
      'new_obs': rows[1:].tolist(),
      'actions': actions.tolist(),
      'rewards': rewards.tolist(),
      'eps_id': [number] * len(rewards),
      't': list(range(len(rewards))),
      'truncateds': [False] * (len(rewards) - 1) + [True],
  }


def _write_rllib_lines(path, episodes):
  opened = gzip.open if path.endswith('.gz') else open
  with opened(path, 'wt') as f:
    for number in episodes:
      batch = {'type': 'SampleBatch', **_rllib_columns(number)}
      f.write(json.dumps(batch) + '\n')


def _write_rllib_table(path, episodes):
  tables = [pa.table(_rllib_columns(number)) for number in episodes]
  parquet.write_table(pa.concat_tables(tables), path)


def _write_lerobot(path, episodes):
  folder = os.path.dirname(path)
  name = os.path.basename(path)
  root = os.path.join(folder, 'data/chunk-000')
  os.makedirs(root, exist_ok=True)
  os.makedirs(os.path.join(folder, 'meta/episodes/chunk-000'), exist_ok=True)
  tables, meta = [], []
  for number in episodes:
    rows, actions, _ = _episode_of(number)
    tables.append(
        pa.table(
            {
                'observation.state': rows[:-1].tolist(),
                'action': actions.tolist(),
                'timestamp': np.arange(len(actions)) / 10,
                'episode_index': [number] * len(actions),
            }
        )
    )
    meta.append(
        {
            'episode_index': number,
            'length': len(actions),
            'data/chunk_index': 0,
            'data/file_index': int(name[5:8]),
        }
    )
  parquet.write_table(pa.concat_tables(tables), os.path.join(root, name))
  file = os.path.join(folder, 'meta/episodes/chunk-000/file-000.parquet')
  if os.path.exists(file):
    meta = parquet.read_table(file, partitioning=None).to_pylist() + meta
  parquet.write_table(pa.Table.from_pylist(meta), file)
  info = {
      'codebase_version': 'v3.0',
      'fps': 10,
      'features': {
          'observation.state': {'dtype': 'float64', 'shape': [3]},
          'action': {'dtype': 'float64', 'shape': [1]},
      },
      'data_path': (
          'data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet'
      ),
  }
  expected.change_json(
      os.path.join(folder, 'meta/info.json'), lambda old: old.update(info)
  )


# The format, the name of a file, what writes it, where it lies, and whether
# metadata tells how many episodes a damaged one has.
_FILES = {
    'parquet': ('part-{:03}.parquet', _write_parquet, '', False),
    'imitation': (
        'data-{:05}-of-00003.arrow',
        _write_trajectories,
        '',
        False,
    ),
    'rllib': ('output-{}.json', _write_rllib_lines, '', False),
    'rllib gz': ('output-{}.json.gz', _write_rllib_lines, '', False),
    'rllib table': ('output-{}.parquet', _write_rllib_table, '', False),
    'lerobot': ('file-{:03}.parquet', _write_lerobot, 'data/chunk-000', True),
}


@pytest.mark.long
class OneBadFileTest(tf.test.TestCase, parameterized.TestCase):
  """Folders of three files with two episodes each, of which one is damaged."""

  @parameterized.product(name=[*_FILES], bad=(0, 1, 2))
  def test_other_files_are_read_after_the_error(self, name, bad):
    file, write, below, is_count_known = _FILES[name]
    folder = self.create_tempdir().full_path
    for index in range(3):
      numbers = 2 * index, 2 * index + 1
      write(os.path.join(folder, file.format(index)), numbers)
    form = name.split(' ')[0]
    whole = list(formats.load(folder, form).as_numpy_iterator())
    self.assertLen(whole, 6)
    for number, episode in enumerate(whole):
      rows = episode['steps']['observation']
      rows = rows['state'] if isinstance(rows, dict) else rows
      wanted = _episode_of(number)[0]
      self.assertAllEqual(rows, wanted[: len(rows)])
    path = os.path.join(folder, below, file.format(bad))
    with open(path, 'rb') as f:
      content = f.read()
    good = whole[: 2 * bad] + whole[2 * bad + 2 :]
    faults = [2 * bad, 2 * bad + 1][: 1 + is_count_known]
    # Half of the file is an intact line followed by a damaged line.
    half = len(content) // 2 if name != 'rllib' else 20
    for damage, sentence in (
        (content[:half], 'not a complete'),
        (_POINTER, 'git lfs pull'),
    ):
      with self.subTest(sentence):
        with open(path, 'wb') as f:
          f.write(damage)
        data = formats.load(folder, form)
        valid_episodes = list(data.ignore_errors().as_numpy_iterator())
        golden.assert_frames_equal(
            self,
            [episode['steps'] for episode in valid_episodes],
            [episode['steps'] for episode in good],
        )
        validation = validating.validate(data)
        self.assertEqual(validation.num_episodes, len(good) + len(faults))
        actual = [problem.episode for problem in validation.problems]
        self.assertEqual(actual, faults)
        for problem in validation.problems:
          self.assertRegex(problem.values, sentence)
          self.assertIn(path, problem.values)
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, f'Found at episode {faults[0]}'
        ) as raised:
          list(data)
        self.assertIn(path, str(raised.exception))


class ChangedEpisodesTest(tf.test.TestCase, parameterized.TestCase):
  """Functions and mappings of episodes, some of which cannot be read."""

  def _data(self):
    """Returns 6 episodes, of which number 2 cannot be read."""

    def episodes():
      for index in range(6):
        yield {
            'observation': np.full([4 - (index == 2), 2], index, np.float32),
            'action': np.full([3, 1], index, np.float32),
        }

    return formats.load(episodes)

  def _check(self, data, messages, factor):
    actual = validating.validate(data)
    self.assertEqual(actual.num_episodes, 6)
    self.assertFalse(actual.not_read)
    problems = {problem.episode: problem.values for problem in actual.problems}
    self.assertEqual(problems.keys(), messages.keys())
    for episode, message in messages.items():
      self.assertRegex(problems[episode], message)
    report = trajectories.ConversionReport()
    options = trajectories.ConversionOptions(
        trajectories.ConversionRules(invalid_episodes='skip'), report=report
    )
    rows = trajectories.convert_rlds_to_trajectories(data, options=options)
    expected = [i * factor for i in range(6) if i not in messages]
    self.assertAllEqual(
        [row.observation[0] for row in rows], np.repeat(expected, 4)
    )
    self.assertEqual([*report.skipped_faults], [*messages])
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError,
        f'{messages[min(messages)]}.* Found at episode {min(messages)}',
    ):
      list(data)

  @parameterized.parameters('graph', 'autograph', 'python')
  def test_error_in_a_function_skips_one_episode(self, kind):
    def change(episode):
      steps = episode['steps']
      rows = steps['observation']
      if kind == 'graph':
        is_fine = tf.reduce_all(rows != 4)
        with tf.control_dependencies(
            [tf.debugging.Assert(is_fine, ['no observation may be 4'])]
        ):
          rows = 2 * rows
      elif kind == 'autograph':
        if rows[0, 0] > 3:  # AutoGraph makes a tf.cond of it.
          tf.debugging.assert_greater(rows, 4.0, 'no observation may be 4')
        rows = 2 * rows
      else:

        def double(array):
          if (array == 4).any():
            raise RuntimeError('no observation may be 4')
          return 2 * array

        rows = tf.ensure_shape(
            tf.numpy_function(double, [rows], tf.float32), rows.shape
        )
      return {**episode, 'steps': {**steps, 'observation': rows}}

    data = transforms.transform_episodes(self._data(), [change])
    messages = {2: 'rows of observation', 4: 'no observation may be 4'}
    self._check(data, messages, 2)

  def test_error_in_a_mapping_skips_one_episode(self):
    mapping = fields.StepMapping(
        observation=lambda episode: 3 * episode['steps']['observation']
    )
    data = fields.map_fields(self._data(), mapping)
    self._check(data, {2: 'rows of observation'}, 3)

  def test_function_that_always_fails_leaves_no_episode(self):
    def change(episode):
      del episode
      raise_always = tf.debugging.Assert(tf.constant(False), ['never'])
      with tf.control_dependencies([raise_always]):
        steps = {'observation': tf.zeros([3, 2])}
        return {'steps': steps}

    data = transforms.transform_episodes(self._data(), [change])
    self.assertEmpty(list(data.ignore_errors()))
    actual = validating.validate(self._data().take(2))
    self.assertEqual(actual.num_episodes, 2)


class LerobotEpisodesTest(tf.test.TestCase, parameterized.TestCase):

  def _copy(self, version):
    """Returns the path of data in which episode 0 has separate files."""
    source = 'v2.1' if version == 'v2.0' else version
    path = expected.copy_of(self, 'lerobot', source)
    if version == 'v2.0':
      # It has the statistics of all episodes together.
      os.remove(f'{path}/meta/episodes_stats.jsonl')
      expected.change_json(f'{path}/meta/stats.json', lambda json: None)
      expected.change_json(
          f'{path}/meta/info.json',
          lambda json: json.update(codebase_version='v2.0'),
      )
    if version == 'v3.0':
      data = f'{path}/data/chunk-000/file-00{{}}.parquet'
      table = parquet.read_table(data.format(0), partitioning=None)
      is_first = pc.equal(table['episode_index'], 0)
      parquet.write_table(table.filter(pc.invert(is_first)), data.format(1))
      parquet.write_table(table.filter(is_first), data.format(0))
      meta = f'{path}/meta/episodes/chunk-000/file-000.parquet'
      table = parquet.read_table(meta, partitioning=None)
      for index, name in enumerate(table.column_names):
        if name.startswith(('data/', 'videos/')) and 'file_index' in name:
          table = table.set_column(index, name, pa.array([0, 1, 1]))
      parquet.write_table(table, meta)
      for video in pathlib.Path(path).rglob('file-000.mp4'):
        shutil.copy(video, video.with_name('file-001.mp4'))
    return path

  @parameterized.parameters('v2.0', 'v2.1', 'v3.0')
  def test_some_episodes(self, version):
    path = self._copy(version)
    whole = list(formats.load(path).as_numpy_iterator())
    self.assertLen(whole, 3)
    for episodes in [2, 0], [1], [0, 1, 2]:
      actual = list(formats.load(path, episodes=episodes).as_numpy_iterator())
      indices = sorted(episodes)
      self.assertEqual([episode['episode_id'] for episode in actual], indices)
      golden.assert_frames_equal(
          self,
          [episode['steps'] for episode in actual],
          [whole[index]['steps'] for index in indices],
      )
    for invalid in ([3], [], [0, 0], 1, [True], 'all', [-1], [0.0]):
      with self.assertRaisesRegex(ValueError, 'episodes must be'):
        formats.load(path, episodes=invalid)

  @parameterized.parameters('v2.0', 'v2.1', 'v3.0')
  def test_a_partial_download(self, version):
    path = self._copy(version)
    whole = list(formats.load(path).as_numpy_iterator())
    number = '000' if version == 'v3.0' else '000000'
    for file in pathlib.Path(path).rglob(f'*-{number}.*'):
      if 'meta' not in file.parts:
        file.unlink()
    for file in pathlib.Path(path).rglob(f'*_{number}.*'):
      file.unlink()
    actual = list(formats.load(path, episodes=[1, 2]).as_numpy_iterator())
    golden.assert_frames_equal(
        self,
        [episode['steps'] for episode in actual],
        [episode['steps'] for episode in whole[1:]],
    )
    # Without the option, the episodes that are not there are faults.
    data = formats.load(path)
    valid_episodes = list(data.ignore_errors().as_numpy_iterator())
    self.assertEqual(
        [episode['episode_id'] for episode in valid_episodes], [1, 2]
    )
    [problem] = validating.validate(data).problems
    self.assertEqual(problem.episode, 0)
    self.assertRegex(problem.values, f'There is no file {path}/data/.*{number}')


if __name__ == '__main__':
  tf.test.main()
