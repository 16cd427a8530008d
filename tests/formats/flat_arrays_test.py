"""Tests of episodes made of flat arrays."""

import os
import pathlib

from absl.testing import parameterized
import gin
import h5py
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_datasets.d4rl import dataset_utils

from rlds2reverb import formats
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.formats import flat_arrays
from rlds2reverb.statistics import compute
from tests import golden

_F32 = np.float32
# A terminal episode of three transitions, and a truncated one of two.
_OBSERVATIONS = np.array([0, 1, 2, 10, 11], _F32)
_ARRAYS = {
    'observations': _OBSERVATIONS,
    'next_observations': np.array([1, 2, 3, 11, 12], _F32),
    'actions': np.array([5, 6, 7, 8, 9]),
    'rewards': np.array([0.1, 0.2, 0.3, 0.4, 0.5]),
    'terminals': np.array([0, 0, 1, 0, 0], bool),
    'timeouts': np.array([0, 0, 0, 0, 1], bool),
}


def _objects(*values):
  array = np.empty(len(values), object)
  for index, value in enumerate(values):
    array[index] = value
  return array


def _without(*names, **others):
  kept = {key: value for key, value in _ARRAYS.items() if key not in names}
  return {**kept, **others}


def _episode(observation, action, reward, *, terminal, **others):
  """Returns the expected steps."""
  length = len(observation)
  step = np.arange(length)
  discount = np.ones(length, _F32)
  if terminal:
    discount[-2:] = 0
  return {
      'observation': np.array(observation, _F32),
      'action': np.array(action),
      'reward': np.array(reward),
      'discount': discount,
      'is_first': step == 0,
      'is_last': step == length - 1,
      'is_terminal': (step == length - 1) & terminal,
      **others,
  }


_FIRST = _episode([0, 1, 2, 3], [5, 6, 7, 0], [0.1, 0.2, 0.3, 0], terminal=True)
_SECOND = _episode([10, 11, 12], [8, 9, 0], [0.4, 0.5, 0], terminal=False)


def _steps(source, **kwargs):
  read = (
      flat_arrays.load_flat_arrays
      if isinstance(source, str)
      else flat_arrays.from_flat_arrays
  )
  episodes = list(read(source, **kwargs).as_numpy_iterator())
  ids = [episode['episode_id'] for episode in episodes]
  assert ids == list(range(len(episodes))), ids
  return [episode['steps'] for episode in episodes]


def _loop(arrays):
  """Returns the expected steps of episodes, row by row."""
  has_next = 'next_observations' in arrays

  def row(index):
    return {
        'observation': arrays['observations'][index],
        'action': arrays['actions'][index],
        'reward': arrays['rewards'][index],
        'infos': {'a': arrays['infos/a'][index], 'b': arrays['infos/b'][index]},
    }

  episodes, rows = [], []
  num_rows = len(arrays['rewards'])
  for index in range(num_rows):
    rows.append(row(index))
    terminal = bool(arrays['terminals'][index])
    if terminal or arrays['timeouts'][index] or index == num_rows - 1:
      if terminal or has_next:
        last = tf.nest.map_structure(np.zeros_like, rows[0])
        last['infos']['b'] = b''
        if has_next:
          last['observation'] = arrays['next_observations'][index]
        rows.append(last)
      steps = tf.nest.map_structure(lambda *leaves: np.stack(leaves), *rows)
      steps['infos']['b'] = np.array(list(steps['infos']['b']), object)
      length = len(rows)
      steps['is_first'] = np.array([True] + [False] * (length - 1))
      steps['is_last'] = np.array([False] * (length - 1) + [True])
      steps['is_terminal'] = np.array([False] * (length - 1) + [terminal])
      steps['discount'] = np.array(
          [
              0.0 if terminal and step >= length - 2 else 1.0
              for step in range(length)
          ],
          _F32,
      )
      episodes.append(steps)
      rows = []
  return episodes


def _random_arrays(rng, num_rows, *, has_next):
  arrays = {
      'observations': rng.normal(size=(num_rows, 2, 3)).astype(np.float16),
      'actions': rng.integers(0, 99, (num_rows, 2)).astype(np.uint16),
      'rewards': rng.normal(size=num_rows),
      'terminals': rng.uniform(size=num_rows) < 0.1,
      'timeouts': rng.uniform(size=num_rows) < 0.1,
      'infos/a': rng.uniform(size=num_rows) < 0.5,
      'infos/b': np.array(
          [b'x' * n for n in rng.integers(0, 4, num_rows)], object
      ),
  }
  if has_next:
    arrays['next_observations'] = arrays['observations'] + _F32(1)
    arrays['next_observations'] = arrays['next_observations'].astype(np.float16)
  return arrays


class FlatArraysTest(tf.test.TestCase, parameterized.TestCase):

  def _write(self, arrays, **kwargs):
    path = os.path.join(self.create_tempdir().full_path, 'flat.hdf5')
    with h5py.File(path, 'w') as file:
      for name, array in arrays.items():
        array = np.asarray(array)
        dtype = h5py.string_dtype() if array.dtype == object else None
        file.create_dataset(name, data=array, dtype=dtype, **kwargs)
    return path

  def _check(self, arrays, expected, **kwargs):
    """Checks the dict, and an HDF5 file of it."""
    for source in (arrays, self._write(arrays)):
      with self.subTest(type(source).__name__):
        found = _steps(source, **kwargs)
        golden.assert_frames_equal(self, found, expected)

  def test_terminal_and_truncated(self):
    self._check(_ARRAYS, [_FIRST, _SECOND])

  def test_spec(self):
    rlds_data = flat_arrays.from_flat_arrays(
        _without(
            observations=np.zeros((5, 2, 7)),
            next_observations=np.zeros((5, 2, 7)),
        )
    )
    self.assertEqual(rlds_data.cardinality(), 2)
    spec = rlds_data.element_spec
    self.assertEqual(spec['episode_id'], tf.TensorSpec([], tf.int64))
    self.assertEqual(
        spec['steps']['observation'], tf.TensorSpec([None, 2, 7], tf.float64)
    )
    self.assertEqual(spec['steps']['action'], tf.TensorSpec([None], tf.int64))
    steps_lib.steps_spec(rlds_data.element_spec)  # Other functions can read it.

  def test_without_next_observations(self):
    self._check(
        _without('next_observations'),
        [
            _episode(
                [0, 1, 2, 0], [5, 6, 7, 0], [0.1, 0.2, 0.3, 0], terminal=True
            ),
            _episode([10, 11], [8, 9], [0.4, 0.5], terminal=False),
        ],
    )

  @parameterized.named_parameters(
      ('terminal_and_timeout', [0, 0, 1, 0, 0], [0, 0, 1, 0, 1], {}),
      ('tail', [0, 0, 1, 0, 0], [0, 0, 0, 0, 0], {}),
      ('no_timeouts', [0, 0, 1, 0, 0], None, {}),
      ('cut', [0, 0, 1, 0, 0], None, dict(max_episode_steps=3)),
      (
          'numbers',
          np.array([0, 0, 1, 0, 0], _F32),
          np.array([0, 0, 0, 0, 1]),
          {},
      ),
      ('columns', np.array([[0], [0], [1], [0], [0]]), None, {}),
  )
  def test_ends(self, terminals, timeouts, kwargs):
    arrays = _without('timeouts', terminals=np.array(terminals))
    if timeouts is not None:
      arrays['timeouts'] = np.array(timeouts)
    self._check(arrays, [_FIRST, _SECOND], **kwargs)

  def test_terminal_on_last_row(self):
    self._check(
        _without(terminals=np.array([0, 0, 1, 0, 1])),
        [
            _FIRST,
            _episode([10, 11, 12], [8, 9, 0], [0.4, 0.5, 0], terminal=True),
        ],
    )

  def test_longest_episode(self):
    self._check(
        _without('timeouts', terminals=np.zeros(5)),
        [
            _episode([0, 1, 2], [5, 6, 0], [0.1, 0.2, 0], terminal=False),
            _episode([2, 10, 11], [7, 8, 0], [0.3, 0.4, 0], terminal=False),
            _episode([11, 12], [9, 0], [0.5, 0], terminal=False),
        ],
        max_episode_steps=2,
    )

  def test_one_transition_each(self):
    ends = [
        _episode([o, o + 1], [a, 0], [r, 0], terminal=True)
        for o, a, r in zip(
            _OBSERVATIONS, _ARRAYS['actions'], _ARRAYS['rewards']
        )
    ]
    self._check(_without(terminals=np.ones(5)), ends)
    # A truncated episode without its next observation has one step left.
    self._check(
        _without(
            'next_observations',
            timeouts=np.ones(5),
            terminals=np.array([0, 0, 0, 0, 1]),
        ),
        [
            _episode([0], [5], [0.1], terminal=False),
            _episode([1], [6], [0.2], terminal=False),
            _episode([2], [7], [0.3], terminal=False),
            _episode([10], [8], [0.4], terminal=False),
            _episode([11, 0], [9, 0], [0.5, 0], terminal=True),
        ],
    )

  def test_no_rows(self):
    arrays = {name: array[:0] for name, array in _ARRAYS.items()}
    for rlds_data in (
        flat_arrays.from_flat_arrays(arrays),
        flat_arrays.load_flat_arrays(self._write(arrays)),
    ):
      self.assertEmpty(list(rlds_data))

  @parameterized.named_parameters(('next', True), ('no_next', False))
  @pytest.mark.long
  def test_random_episodes(self, has_next):
    rng = np.random.default_rng(0)
    arrays = _random_arrays(rng, 10_000, has_next=has_next)
    expected = _loop(arrays)
    self.assertGreater(len(expected), 1000)
    self._check(arrays, expected)

  def test_nested_observations_and_actions(self):
    nested = {
        'observations': {'a': _OBSERVATIONS, 'b': {'c': _OBSERVATIONS + 100}},
        'next_observations': {
            'a': _ARRAYS['next_observations'],
            'b': {'c': _ARRAYS['next_observations'] + 100},
        },
        'actions': {'x': _ARRAYS['actions'], 'y': _ARRAYS['actions'] * 2},
        'rewards': _ARRAYS['rewards'][:, None],
        'terminals': _ARRAYS['terminals'],
        'timeouts': _ARRAYS['timeouts'],
    }
    flat = {
        'observations/a': nested['observations']['a'],
        'observations/b/c': nested['observations']['b']['c'],
        'next_observations/a': nested['next_observations']['a'],
        'next_observations/b/c': nested['next_observations']['b']['c'],
        'actions/x': nested['actions']['x'],
        'actions/y': nested['actions']['y'],
        'rewards': nested['rewards'],
        'terminals': nested['terminals'],
        'timeouts': nested['timeouts'],
    }
    expected = [
        dict(
            steps,
            observation={
                'a': steps['observation'],
                'b': {'c': steps['observation'] + 100},
            },
            action={'x': steps['action'], 'y': steps['action'] * 2},
        )
        for steps in (_FIRST, _SECOND)
    ]
    self._check(flat, expected)
    golden.assert_frames_equal(self, _steps(nested), expected)

  def test_tuples(self):
    arrays = _without(
        'observations',
        'next_observations',
        observations=(_OBSERVATIONS, {'a': _OBSERVATIONS + 100}),
        next_observations=(
            _ARRAYS['next_observations'],
            {'a': _ARRAYS['next_observations'] + 100},
        ),
    )
    expected = [
        dict(
            steps,
            observation=(
                steps['observation'],
                {'a': steps['observation'] + 100},
            ),
        )
        for steps in (_FIRST, _SECOND)
    ]
    golden.assert_frames_equal(self, _steps(arrays), expected)

  def test_other_columns(self):
    names = np.array(['u', 'vv', '', 'w', 'x'])
    others = {
        'infos/qpos': np.arange(10.0).reshape(5, 2),
        'infos/deep/name': names,
        'goal': np.arange(5, dtype=np.int8),
    }
    left_out = {
        'metadata/algorithm': np.array(b'SAC'),
        'metadata/policy/weight': np.ones((5, 3)),  # five rows by chance
        'version': np.array(2.0),
        'weights': np.ones((4, 3)),
    }
    first = dict(
        _FIRST,
        goal=np.array([0, 1, 2, 0], np.int8),
        infos={
            'qpos': np.array([[0, 1], [2, 3], [4, 5], [0, 0]], np.float64),
            'deep': {'name': np.array([b'u', b'vv', b'', b''], object)},
        },
    )
    second = dict(
        _SECOND,
        goal=np.array([3, 4, 0], np.int8),
        infos={
            'qpos': np.array([[6, 7], [8, 9], [0, 0]], np.float64),
            'deep': {'name': np.array([b'w', b'x', b''], object)},
        },
    )
    arrays = {**_ARRAYS, **others, **left_out}
    with self.assertLogs(level='WARNING') as logs:
      golden.assert_frames_equal(self, _steps(arrays), [first, second])
    self.assertRegex(logs.output[0], r'version \(\), weights \(4, 3\)')
    arrays['infos/deep/name'] = names.astype('S')
    path = self._write(arrays)
    with h5py.File(path, 'a') as file:
      file.attrs['environment'] = 'hopper'
      file.create_group('metadata/empty')
    golden.assert_frames_equal(self, _steps(path), [first, second])

  def test_objects_that_are_strings(self):
    raw = [b'\x00a\x00', 'u\x00', '', np.array([7, 0], np.uint8), b'x']
    steps = _steps({**_ARRAYS, 'raw': _objects(*raw)})
    self.assertEqual(list(steps[0]['raw']), [b'\x00a\x00', b'u\x00', b'', b''])
    self.assertEqual(list(steps[1]['raw']), [b'\x07\x00', b'x', b''])

  def test_datasets_of_an_open_file(self):
    path = self._write(
        {
            name.replace('observations', 'obs'): array
            for name, array in _ARRAYS.items()
        }
    )
    with h5py.File(path, 'r') as file:
      arrays = {
          name: file[name.replace('observations', 'obs')] for name in _ARRAYS
      }
      golden.assert_frames_equal(self, _steps(arrays), [_FIRST, _SECOND])

  def test_encoded_images(self):
    images = np.array([b'\xff\x00', b'', b'\x00', b'abc', b'\xff\xd9'], object)
    path = self._write(_without('observations', 'next_observations'))
    with h5py.File(path, 'a') as file:
      column = file.create_dataset(
          'observations', [5], h5py.vlen_dtype(np.uint8)
      )
      for index, image in enumerate(images):
        column[index] = np.frombuffer(image, np.uint8)
    first, second = _steps(path)
    self.assertEqual(first['observation'].tolist(), [*images[:3], b''])
    self.assertEqual(second['observation'].tolist(), list(images[3:]))

  def test_compressed_chunks_and_big_endian(self):
    path = self._write(
        {**_ARRAYS, 'rewards': _ARRAYS['rewards'].astype('>f8')},
        compression='gzip',
        chunks=(2,),
    )
    golden.assert_frames_equal(self, _steps(path), [_FIRST, _SECOND])

  def test_many_batches(self):
    # 30 episodes of 400 kB: a batch is about 4 MiB.
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 255, (300, 40_000)).astype(np.uint8)
    rlds_data = flat_arrays.from_flat_arrays(
        {
            'observations': frames,
            'actions': np.arange(300),
            'rewards': np.zeros(300),
            'terminals': np.arange(300) % 10 == 9,
        }
    )
    for _ in range(2):  # read twice
      episodes = list(rlds_data.as_numpy_iterator())
      self.assertLen(episodes, 30)
      for index, episode in enumerate(episodes):
        rows = slice(10 * index, 10 * index + 10)
        observation = episode['steps']['observation']
        np.testing.assert_array_equal(observation[:-1], frames[rows])
        np.testing.assert_array_equal(observation[-1], 0)
        self.assertEqual(
            episode['steps']['action'].tolist(), [*range(300)[rows], 0]
        )

  def test_in_map(self):
    # The static shapes and dtypes suffice in a graph.
    found = compute.compute_statistics(
        flat_arrays.load_flat_arrays(self._write(_ARRAYS))
    )
    self.assertEqual(found.num_terminal, 1)
    self.assertEqual(found.num_truncated, 1)
    self.assertAllClose(found.returns.max, 0.9)
    self.assertEqual(found.fields['observation'].max, 12)

  def test_unlike_tfds_each_episode_ends_with_its_own_observation(self):
    path = self._write(_ARRAYS)
    by_tfds = [steps for _, steps in dataset_utils.generate_examples(path)]
    self.assertEqual(
        [episode['steps']['observation'][-1] for episode in by_tfds], [12, 12]
    )
    self.assertEqual(
        [steps['observation'][-1] for steps in _steps(path)], [3, 12]
    )

  @parameterized.named_parameters(
      (
          'missing',
          _without('actions', action_s=np.zeros(5)),
          'no column actions. Did you mean action_s',
      ),
      ('no_terminals', _without('terminals'), 'no column terminals'),
      (
          'rows',
          _without(actions=np.zeros(4)),
          'actions has 4 rows, but terminals has 5',
      ),
      (
          'timeouts',
          _without(timeouts=np.zeros(6)),
          'timeouts has 6 rows, but terminals has 5',
      ),
      (
          'next',
          _without(next_observations=np.zeros(3, _F32)),
          'next_observations has 3 rows',
      ),
      (
          'next_dtype',
          _without(next_observations=np.zeros(5)),
          'next_observations are float64 .*observations are float32',
      ),
      (
          'next_nest',
          _without(
              'observations',
              **{
                  'observations/a': _OBSERVATIONS,
                  'observations/b': _OBSERVATIONS,
                  'next_observations/a': _OBSERVATIONS,
              },
          ),
          'observations/., but no next_observations/.',
      ),
      (
          'flag',
          _without(terminals=np.array([0, 0, 1, 2, 0])),
          'terminals must be 0 or 1, but is 2 in row 3',
      ),
      (
          'flag_shape',
          _without(timeouts=np.zeros((5, 2))),
          'timeouts must be one bool or number a row',
      ),
      ('scalar', _without(rewards=np.array(1.0)), 'rewards must have a row'),
      ('scalar_flag', _without(terminals=True), 'terminals must have a row'),
      ('name', _without(discount=np.ones(5)), 'discount has the name'),
      (
          'integers',
          _without(actions=np.array([1, 2, 3, 4, 5], object)),
          'actions is an array of Python objects.* has 1, a int, in row 0',
      ),
      (
          'ragged',
          _without(rewards=_objects(*np.split(np.ones(15), 5))),
          'rewards is an array of Python objects.* a ndarray, in row 0',
      ),
      (
          'flags',
          _without(terminals=np.array([0, 0, 1, 0, 0], object)),
          'terminals is an array of Python objects',
      ),
      (
          'next_objects',
          _without(
              next_observations=np.array(
                  [[b'a', b'b']] * 4 + [[b'a', 2]], object
              )
          ),
          'next_observations is an .* has 2, a int, in row 4',
      ),
      (
          'none',
          _without(**{'infos/x': _objects('a', None, 'a', None, 'b')}),
          'infos/x is an .* has None, a NoneType, in row 1',
      ),
      (
          'times',
          _without(actions=np.zeros(5, 'datetime64[s]')),
          r'actions must have a row of numbers .* is datetime64',
      ),
      (
          'long_double',
          _without(actions=np.zeros(5, np.longdouble)),
          'actions must have a row of numbers or strings',
      ),
  )
  def test_errors(self, arrays, message):
    with self.assertRaisesRegex(ValueError, message):
      flat_arrays.from_flat_arrays(arrays)

  def test_other_errors(self):
    with self.assertRaisesRegex(
        ValueError, 'There is no HDF5 file /nowhere/file.hdf5'
    ):
      flat_arrays.load_flat_arrays('/nowhere/file.hdf5')
    with self.assertRaisesRegex(ValueError, 'local disk, but is at gs://b/a'):
      flat_arrays.load_flat_arrays('gs://b/a.hdf5')
    with self.assertRaisesRegex(ValueError, 'max_episode_steps must be a'):
      flat_arrays.from_flat_arrays(_ARRAYS, max_episode_steps=0)

  def test_a_file_that_leads_to_another_one_is_refused(self):
    path = self._write(_ARRAYS)
    with h5py.File(path, 'a') as file:
      file['infos/more'] = h5py.ExternalLink('other.hdf5', '/more')
    with self.assertRaisesRegex(ValueError, 'into another file, infos/more'):
      flat_arrays.load_flat_arrays(path)

  def test_load_takes_what_is_in_memory(self):
    path = self._write(_ARRAYS)
    folder = os.path.dirname(path)
    expected = _steps(_ARRAYS)
    with h5py.File(path, 'r') as file:
      for data in _ARRAYS, file:
        for given in (), ('arrays',):
          found = formats.load(data, *given).as_numpy_iterator()
          golden.assert_frames_equal(
              self, [episode['steps'] for episode in found], expected
          )
        with self.assertRaisesRegex(ValueError, "in memory .* but is 'hdf5'"):
          formats.load(data, 'hdf5')
    with self.assertRaisesRegex(ValueError, 'must be a dict of arrays.*list'):
      formats.load([_ARRAYS], 'arrays')
    with self.assertRaisesRegex(ValueError, "of files must .* but is 'arrays'"):
      formats.load(pathlib.Path(path), 'arrays')
    with self.assertRaisesRegex(
        ValueError, f'no HDF5 file {folder}. .*in it holds flat'
    ):
      formats.load(folder, 'hdf5')
    with h5py.File(os.path.join(folder, 'minari.hdf5'), 'w') as file:
      file.create_group('episode_0')
    with self.assertRaisesRegex(ValueError, 'no column .* holds a Minari data'):
      formats.load(os.path.join(folder, 'minari.hdf5'), 'hdf5')

  def _check_named(self, read, path_or_arrays):
    """Checks what comes of the arrays under names of the user's."""
    names = {'observations': 'obs', 'terminals': 'dones', 'actions': 'acts/arm'}
    dataset = read(path_or_arrays, column_names=names)
    steps = [e['steps'] for e in dataset.as_numpy_iterator()]
    golden.assert_frames_equal(
        self,
        steps,
        [
            _episode(
                [0, 1, 2, 0], [5, 6, 7, 0], [0.1, 0.2, 0.3, 0], terminal=True
            ),
            _episode([10, 11], [8, 9], [0.4, 0.5], terminal=False),
        ],
    )

  def test_names_of_the_user(self):
    arrays = {
        'obs': _ARRAYS['observations'],
        'acts/arm': _ARRAYS['actions'],
        'rewards': _ARRAYS['rewards'],
        'dones': _ARRAYS['terminals'],
    }
    self._check_named(flat_arrays.from_flat_arrays, arrays)
    self._check_named(flat_arrays.load_flat_arrays, self._write(arrays))
    path = os.path.join(self.create_tempdir().full_path, 'a.npz')
    np.savez_compressed(path, **arrays)
    self._check_named(flat_arrays.load_flat_arrays, path)

  def test_npz_is_what_the_arrays_are(self):
    rng = np.random.default_rng(0)
    arrays = {
        'observations': rng.normal(size=(70_000, 20)),
        'next_observations': rng.normal(size=(70_000, 20)),
        'actions': rng.normal(size=(70_000, 3)),
        'rewards': rng.normal(size=70_000),
        'terminals': rng.uniform(size=70_000) < 0.001,
        'infos/text': rng.integers(0, 99, 70_000).astype('U2'),
    }
    path = os.path.join(self.create_tempdir().full_path, 'a.npz')
    np.savez(path, **arrays)
    found = flat_arrays.load_flat_arrays(path)
    for _ in range(2):
      golden.assert_frames_equal(
          self, [e['steps'] for e in found.as_numpy_iterator()], _steps(arrays)
      )

  def test_without_rewards_or_terminals(self):
    arrays = _without('rewards', 'terminals')
    names = {'rewards': None, 'terminals': None}
    found = _steps(arrays, column_names=names)
    (found,) = found
    self.assertEqual(found['reward'].dtype, _F32)
    self.assertAllEqual(found['reward'], np.zeros(6))
    self.assertAllEqual(found['is_terminal'], np.zeros(6))
    self.assertAllEqual(found['observation'], [0, 1, 2, 10, 11, 12])
    lengths = [
        len(steps['action'])
        for steps in _steps(
            _without('terminals', 'timeouts'),
            column_names={'terminals': None},
            max_episode_steps=2,
        )
    ]
    self.assertEqual(lengths, [3, 3, 2])

  def test_errors_of_names(self):
    with self.assertRaisesRegex(
        ValueError, "no column terminals.*'terminals': ....*'terminals': None"
    ):
      flat_arrays.from_flat_arrays(_without('terminals'))
    with self.assertRaisesRegex(
        ValueError, "no column actions.*'actions': ....\\.\\n"
    ):
      flat_arrays.from_flat_arrays(_without('actions'))
    with self.assertRaisesRegex(ValueError, "expected names .*, but has 'obs'"):
      flat_arrays.from_flat_arrays(
          _ARRAYS, column_names={'obs': 'observations'}
      )
    with self.assertRaisesRegex(ValueError, 'There is no column dones, which'):
      flat_arrays.from_flat_arrays(_ARRAYS, column_names={'terminals': 'dones'})

  def test_gin_configures_both(self):
    self.addCleanup(gin.clear_config)
    arrays = _without('timeouts', terminals=np.zeros(5))
    path = self._write(arrays)
    gin.parse_config("""
        rlds2reverb.from_flat_arrays.max_episode_steps = 2
        load_flat_arrays.max_episode_steps = 3
    """)
    self.assertLen(_steps(arrays), 3)
    self.assertLen(_steps(path), 2)

  def test_files_without_data(self):
    path = self.create_tempfile().full_path
    with self.assertRaisesRegex(ValueError, f'{path} is not a whole HDF5 file'):
      flat_arrays.load_flat_arrays(path)
    with h5py.File(path, 'w'):
      pass
    with self.assertRaisesRegex(ValueError, f'{path} is an HDF5 file with not'):
      flat_arrays.load_flat_arrays(path)
    with h5py.File(path, 'w') as file:
      for name, column in _ARRAYS.items():
        if not isinstance(column, dict):
          file[name] = column
    os.truncate(path, os.path.getsize(path) // 2)
    with self.assertRaisesRegex(ValueError, f'{path} is not a whole HDF5 file'):
      flat_arrays.load_flat_arrays(path)


if __name__ == '__main__':
  tf.test.main()
