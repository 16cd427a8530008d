"""Tests of episodes made of flat arrays."""

import os
import pathlib

from absl.testing import parameterized
import h5py
import numpy as np
import tensorflow as tf

from rlds2reverb import formats
from rlds2reverb.episodes import episode_dataset
from rlds2reverb.formats import flat_arrays
from tests import golden
from tests.formats import expected

_F32 = np.float32
# A terminal episode of three transitions, and a truncated one of two.
_OBSERVATIONS = np.array([0, 1, 2, 10, 11], _F32)
_NEXT = np.array([1, 2, 3, 11, 12], _F32)
_ARRAYS = {
    'observations': _OBSERVATIONS,
    'next_observations': _NEXT,
    'actions': np.array([5, 6, 7, 8, 9]),
    'rewards': np.array([0.1, 0.2, 0.3, 0.4, 0.5]),
    'terminals': np.array([0, 0, 1, 0, 0], bool),
    'timeouts': np.array([0, 0, 0, 0, 1], bool),
}
_USED = (*_ARRAYS, 'metadata')


def _objects(*values):
  array = np.empty(len(values), object)
  array[:] = values
  return array


def _with(*left_out, **others):
  kept = {key: value for key, value in _ARRAYS.items() if key not in left_out}
  return {**kept, **others}


def _random(seed, has_next):
  rng = np.random.default_rng(seed)
  rows = 700
  observations = rng.normal(size=(rows + 1, 2, 3)).astype(np.float16)
  arrays = {
      'observations': observations[:-1],
      'actions': rng.integers(0, 99, (rows, 2)).astype(np.uint16),
      'rewards': rng.normal(size=rows),
      'terminals': rng.uniform(size=rows) < 0.1,
      'timeouts': rng.uniform(size=rows) < 0.1,
      'infos': {
          'a': rng.uniform(size=rows) < 0.5,
          'b': _objects(*(b'x' * n for n in rng.integers(0, 4, rows))),
      },
  }
  return (
      {**arrays, 'next_observations': observations[1:]} if has_next else arrays
  )


def _expected(arrays, max_episode_steps=None):
  """Returns the steps of the episodes, by a loop over the rows."""
  actions = tf.nest.flatten(arrays['actions'])[0]
  flags = [
      np.ravel(arrays.get(name, np.zeros(len(actions)))).astype(bool)
      for name in ('terminals', 'timeouts')
  ]
  after = arrays.get('next_observations')
  rewards = arrays.get('rewards', np.zeros(len(actions), _F32))
  others = {name: arrays[name] for name in arrays if name not in _USED}
  episodes, begin = [], 0
  for row, (terminal, timeout) in enumerate(zip(*flags)):
    is_cut = row + 1 - begin == max_episode_steps or row + 1 == len(actions)
    if not (terminal or timeout or is_cut):
      continue
    observation, action, reward, fields = tf.nest.map_structure(
        lambda column, begin=begin, row=row: column[begin : row + 1],
        (arrays['observations'], arrays['actions'], rewards, others),
    )
    if after is not None:
      observation = tf.nest.map_structure(
          lambda here, last, row=row: np.append(here, last[row : row + 1], 0),
          observation,
          after,
      )
    reward = reward.reshape(-1)
    episodes.append(
        expected.steps(observation, action, reward, terminal=terminal, **fields)
    )
    begin = row + 1
  return episodes


def _flatten(arrays, above=''):
  """Returns arrays by their paths, as files have them."""
  found = {}
  for name, value in arrays.items():
    if isinstance(value, tuple):
      value = {f'_index_{index}': one for index, one in enumerate(value)}
    if isinstance(value, dict):
      found.update(_flatten(value, f'{above}{name}/'))
    else:
      found[above + name] = np.asarray(value)
  return found


def _steps(source, **kwargs):
  read = flat_arrays.from_flat_arrays
  if isinstance(source, str):
    read = flat_arrays.load_flat_arrays
  dataset = read(source, **kwargs)
  episodes = list(dataset.as_numpy_iterator())
  assert dataset.cardinality() == len(episodes)
  ids = [episode['episode_id'] for episode in episodes]
  assert ids == list(range(len(episodes))), ids
  return [episode['steps'] for episode in episodes]


# Arrays whose steps must be equal to the results of the loop.
_CASES = {
    'one_transition_each_without_next': _with(
        'next_observations',
        timeouts=np.ones(5),
        terminals=np.array([0, 0, 0, 0, 1]),
    ),
    'nested': _with(
        observations={'a': _OBSERVATIONS, 'b': {'c': _OBSERVATIONS + 100}},
        next_observations={'a': _NEXT, 'b': {'c': _NEXT + 100}},
        actions={'x': _ARRAYS['actions'], 'y': _ARRAYS['actions'] * 2},
        rewards=_ARRAYS['rewards'][:, None],
        terminals=_ARRAYS['terminals'][:, None],
    ),
    'tuples_and_other_columns': _with(
        observations=(_OBSERVATIONS, {'a': _OBSERVATIONS + 100}),
        next_observations=(_NEXT, {'a': _NEXT + 100}),
        rewards=_ARRAYS['rewards'].astype('>f8'),
        infos={
            'qpos': np.arange(10.0).reshape(5, 2),
            'deep': {'name': np.array(['u', 'vv', '', 'w', 'x'], 'S')},
        },
        goal=np.arange(5, dtype=np.int8),
        metadata={'weight': np.ones((5, 3))},  # Five rows by chance.
    ),
    'random': _random(0, has_next=False),
    'random_with_next': _random(1, has_next=True),
}


def _pairs(steps):
  """Returns the transitions of episodes: pairs of observations."""
  return {
      pair
      for one in steps
      for pair in zip(
          one['observation'].tolist(), one['observation'][1:].tolist()
      )
  }


def _three_trajectories():
  """Returns three trajectories of 5 transitions, whose ends have no flag."""
  begins = 100 * np.repeat(np.arange(3), 5)
  rows = (begins + np.tile(np.arange(5), 3)).astype(_F32)
  return {
      'observations': rows,
      'next_observations': rows + 1,
      'actions': np.zeros(15, _F32),
      'rewards': np.ones(15, _F32),
      'terminals': np.zeros(15, bool),
  }


def _interleaved():
  """Returns the rows of two episodes, of which the second has two more."""
  run = np.array([7, 3, 7, 3, 7, 3, 3, 3])
  step = np.array([0, 0, 1, 1, 2, 2, 3, 4])
  return {
      'observations': (10 * run + step).astype(_F32),
      'actions': step,
      'rewards': np.ones(8, _F32),
      'terminals': (run == 3) & (step == 4),
      'run': run,
      'when': step,
  }


class FlatArraysTest(tf.test.TestCase, parameterized.TestCase):

  def _write(self, arrays, **kwargs):
    path = os.path.join(self.create_tempdir().full_path, 'flat.hdf5')
    with h5py.File(path, 'w') as file:
      for name, array in _flatten(arrays).items():
        dtype = h5py.string_dtype() if array.dtype == object else None
        file.create_dataset(name, data=array, dtype=dtype, **kwargs)
    return path

  def _check(self, arrays, episodes, **kwargs):
    """Checks arrays in memory, by their paths, and in files."""
    sources = {
        'nest': arrays,
        'paths': _flatten(arrays),
        'hdf5': self._write(arrays),
    }
    if not any(a.dtype == object for a in _flatten(arrays).values()):
      sources['npz'] = os.path.join(self.create_tempdir().full_path, 'a.npz')
      np.savez_compressed(sources['npz'], **_flatten(arrays))
    for name, source in sources.items():
      with self.subTest(name):
        golden.assert_frames_equal(self, _steps(source, **kwargs), episodes)

  @parameterized.parameters(*_CASES)
  def test_episodes_equal_loop_over_rows(self, name):
    self._check(_CASES[name], _expected(_CASES[name]))

  def test_longest_episode(self):
    arrays = _with('timeouts')
    self._check(arrays, _expected(arrays, 2), max_episode_steps=2)

  def test_no_rows(self):
    arrays = {name: array[:0] for name, array in _ARRAYS.items()}
    path = os.path.join(self.create_tempdir().full_path, 'a.npz')
    np.savez(path, **arrays)
    for source in arrays, self._write(arrays), path:
      with self.assertRaisesRegex(ValueError, 'There are no rows: actions, '):
        _steps(source)

  def test_columns_of_other_lengths_are_left_out(self):
    arrays = _with(version=np.array(2.0), weights=np.ones((4, 3)))
    with self.assertLogs(level='WARNING') as logs:
      golden.assert_frames_equal(self, _steps(arrays), _expected(_ARRAYS))
    self.assertRegex(logs.output[0], r'version \(\), weights \(4, 3\)')

  def test_encoded_images(self):
    images = [b'\xff\x00', b'', b'\x00', b'abc', b'\xff\xd9']
    path = self._write(_with('observations', 'next_observations'))
    with h5py.File(path, 'a') as file:
      dtype = h5py.vlen_dtype(np.uint8)
      column = file.create_dataset('observations', [5], dtype)
      for index, image in enumerate(images):
        column[index] = np.frombuffer(image, np.uint8)
    first, second = _steps(path)
    self.assertEqual(first['observation'].tolist(), [*images[:3], b''])
    self.assertEqual(second['observation'].tolist(), images[3:])

  def test_many_batches(self):
    # 30 episodes of 400 kB: a batch is about 4 MiB.
    rng = np.random.default_rng(0)
    arrays = {
        'observations': rng.integers(0, 255, (300, 40_000)).astype(np.uint8),
        'actions': np.arange(300),
        'rewards': np.zeros(300),
        'terminals': np.arange(300) % 10 == 9,
    }
    rlds_data = flat_arrays.from_flat_arrays(arrays)
    for _ in range(2):  # It is read twice.
      actual = [episode['steps'] for episode in rlds_data.as_numpy_iterator()]
      golden.assert_frames_equal(self, actual, _expected(arrays))
    batches = episode_dataset.batches_of(rlds_data).as_numpy_iterator()
    lengths = [len(batch.row_splits) - 1 for batch in batches]
    self.assertEqual(sum(lengths), 30)
    self.assertBetween(max(lengths), 9, 11)

  def test_names_of_the_user(self):
    names = {'observations': 'obs', 'terminals': 'dones', 'actions': 'acts/arm'}
    arrays = {
        'obs': _OBSERVATIONS,
        'acts': {'arm': _ARRAYS['actions']},
        'rewards': _ARRAYS['rewards'],
        'dones': _ARRAYS['terminals'],
    }
    episodes = _expected(_with('next_observations', 'timeouts'))
    self._check(arrays, episodes, column_names=names)
    # With next observations, the first episode would end without a flag.
    arrays = _with('rewards', 'terminals', 'next_observations')
    names = {'rewards': None, 'terminals': None}
    self._check(arrays, _expected(arrays), column_names=names)

  @parameterized.named_parameters(
      ('no_timeouts', None, '2 of 3 episodes end without a flag'),
      ('late', [5, 10], '2 of 3 .*2 timeouts are one row late'),
      ('one_late', [4, 10], '1 of 3 .*1 timeouts are one row late'),
      ('early', [4], '1 of 3 episodes .* rows 9'),
  )
  def test_joined_trajectories_are_split(self, timeouts, message):
    arrays = _three_trajectories()
    if timeouts is not None:
      arrays['timeouts'] = np.isin(np.arange(15), timeouts)
    real = set(zip(arrays['observations'], arrays['next_observations']))
    nested = {
        **arrays,
        'observations': {'a': np.zeros(15), 'b': arrays['observations']},
        'next_observations': {
            'a': np.zeros(15),
            'b': arrays['next_observations'],
        },
    }
    npz = os.path.join(self.create_tempdir().full_path, 'a.npz')
    np.savez_compressed(npz, **arrays)
    for source in arrays, self._write(arrays), npz, nested:
      with self.assertLogs(level='WARNING') as logs:
        steps = _steps(source)
      self.assertLen(logs.output, 1)
      self.assertRegex(logs.output[0], message)
      if source is nested:
        steps = [
            {'observation': episode['observation']['b']} for episode in steps
        ]
      self.assertEqual(
          [len(episode['observation']) for episode in steps], [6] * 3
      )
      self.assertEqual(_pairs(steps), real)

  def test_ends_at_max_episode_steps_log_no_warning(self):
    arrays = _three_trajectories()
    with self.assertNoLogs(level='WARNING'):
      steps = _steps(arrays, max_episode_steps=5)
    self.assertLen(steps, 3)
    # NaN is the same observation, and lengths count from each found end.
    arrays['observations'][1] = arrays['next_observations'][0] = np.nan
    with self.assertLogs(level='WARNING') as logs:
      steps = _steps(arrays, max_episode_steps=3)
    self.assertRegex(logs.output[0], '2 of 6 episodes .* rows 4, 9')
    lengths = [len(episode['observation']) for episode in steps]
    self.assertEqual(lengths, [4, 3] * 3)

  @parameterized.parameters(0, 1)
  def test_episode_starts(self, has_terminals):
    arrays = {
        'obs': np.arange(12, dtype=_F32)[:, None],
        'actions': np.zeros([12, 1], np.int64),
        'rewards': np.ones(12),
        'episode_starts': np.arange(12) % 4 == 0,
        'episode_returns': np.full(3, 4.0),
    }
    if has_terminals:
      arrays['terminals'] = np.arange(12) == 7
    npz = os.path.join(self.create_tempdir().full_path, 'expert.npz')
    np.savez(npz, **arrays)
    for source in arrays, npz, self._write(arrays):
      steps = _steps(source)
      lengths = [len(episode['observation']) for episode in steps]
      self.assertEqual(lengths, [4, 4 + has_terminals, 4])
      terminal = [episode['is_terminal'].any() for episode in steps]
      self.assertEqual(terminal, [False, bool(has_terminals), False])
      self.assertNotIn('episode_starts', steps[0])

  def test_unknown_episode_ends_raise(self):
    arrays = _with('next_observations', 'terminals', 'timeouts')
    lacking = {'terminals': None}
    for options in {}, {'column_names': lacking}:
      with self.assertRaisesRegex(
          ValueError,
          'ends of episodes are unknown.* timeouts or episode_starts'
          '.*column_names=.*episode_column=.*max_episode_steps=',
      ):
        _steps(arrays, **options)
    steps = _steps(arrays, column_names=lacking, max_episode_steps=3)
    self.assertEqual([len(episode['action']) for episode in steps], [3, 2])
    # All follow one another, so not even these say it.
    arrays['observations'] = np.arange(5)
    arrays['next_observations'] = np.arange(1, 6)
    with self.assertRaisesRegex(ValueError, 'ends of episodes are unknown'):
      _steps(arrays, column_names=lacking)
    with self.assertLogs(level='WARNING') as logs:
      _steps({**arrays, 'terminals': np.zeros(5)})
    self.assertRegex(logs.output[0], 'all 5 rows are read as one episode')

  def test_names_of_other_libraries(self):
    expected_steps = _steps(_ARRAYS)
    for names in (
        {'next_observations': 'next_obs', 'timeouts': 'truncateds'},
        {'next_observations': 'new_obs', 'terminals': 'terminateds'},
        {'terminals': 'terminations', 'timeouts': 'truncations'},
        {'terminals': 'terminated', 'timeouts': 'truncated'},
    ):
      arrays = {'observations': 'obs', **names}
      arrays = {arrays.get(name, name): _ARRAYS[name] for name in _ARRAYS}
      golden.assert_frames_equal(self, _steps(arrays), expected_steps)
    # The name of the next observations follows from that of the observations.
    names = {'observations': 'x', 'next_observations': 'next_x'}
    arrays = {names.get(name, name): _ARRAYS[name] for name in _ARRAYS}
    actual = _steps(arrays, column_names={'observations': 'x'})
    golden.assert_frames_equal(self, actual, expected_steps)

  def test_interleaved_episodes(self):
    arrays = _interleaved()
    npz = os.path.join(self.create_tempdir().full_path, 'a.npz')
    np.savez_compressed(npz, **arrays)
    texts = {**arrays, 'run': np.array([f'run {n}' for n in arrays['run']])}
    for source in arrays, texts, npz, self._write(arrays):
      with self.assertRaisesRegex(
          ValueError,
          'run is (run )?7 in rows 0 to 0, and again from row 2.*step_column',
      ):
        _steps(source, episode_column='run')
      steps = _steps(source, episode_column='run', step_column='when')
      first, second = (episode['observation'].tolist() for episode in steps)
      self.assertEqual(first, [70, 71, 72])
      self.assertEqual(second, [30, 31, 32, 33, 34, 0])
      self.assertEqual(steps[1]['action'].tolist(), [0, 1, 2, 3, 4, 0])
      self.assertEqual(steps[1]['when'].tolist(), [0, 1, 2, 3, 4, 0])
      self.assertEqual(steps[1]['is_terminal'].tolist(), [False] * 5 + [True])
      self.assertNotIn('run', steps[0])
    # These names need not be given.
    arrays['traj_id'], arrays['t'] = arrays.pop('run'), arrays.pop('when')
    actual = [episode['observation'].tolist() for episode in _steps(arrays)]
    self.assertEqual(actual, [first, second])
    del arrays['t']
    with self.assertRaisesRegex(ValueError, 'traj_id is 7 in rows 0 to 0, and'):
      _steps(arrays)

  def test_next_observations_of_interleaved_episodes(self):
    arrays = _interleaved()
    arrays['next_observations'] = arrays['observations'] + 1
    with self.assertNoLogs(level='WARNING'):
      steps = _steps(arrays, episode_column='run', step_column='when')
    actual = [episode['observation'].tolist() for episode in steps]
    self.assertEqual(actual, [[70, 71, 72, 73], [30, 31, 32, 33, 34, 35]])

  def test_episode_ids_that_return(self):
    arrays = _with('timeouts', 'next_observations', terminals=np.zeros(5))
    arrays['episode'] = np.array([0, 0, 1, 1, 0])
    with self.assertRaisesRegex(ValueError, 'episode is 0 in rows 0 to 1, and'):
      _steps(arrays)
    # After the end of an episode, another episode may have the same id.
    arrays['timeouts'] = np.array([0, 1, 0, 1, 1])
    lengths = [len(episode['observation']) for episode in _steps(arrays)]
    self.assertEqual(lengths, [2, 2, 1])
    # A column that was named is trusted.
    with self.assertRaisesRegex(ValueError, 'episode is 0 in rows 0 to 1, and'):
      _steps(arrays, episode_column='episode')
    arrays['t'] = np.array([0, 1, 0, 1, 0])
    with self.assertRaisesRegex(ValueError, 't does not order .* rows 0 and 4'):
      _steps(arrays, episode_column='episode')
    # Without any flag, the ids are enough.
    del arrays['terminals'], arrays['timeouts']
    arrays['t'] = np.array([0, 1, 0, 1, 2])
    lengths = [
        len(episode['action'])
        for episode in _steps(arrays, episode_column='episode')
    ]
    self.assertEqual(lengths, [3, 2])

  def test_rows_in_reverse_order(self):
    arrays = {name: column[::-1] for name, column in _interleaved().items()}
    options = {'episode_column': 'run', 'step_column': 'when'}
    actual = [
        episode['observation'].tolist() for episode in _steps(arrays, **options)
    ]
    self.assertEqual(actual, [[30, 31, 32, 33, 34, 0], [70, 71, 72]])

  def test_no_rewards(self):
    arrays = _with('rewards')
    with self.assertLogs(level='WARNING') as logs:
      steps = _steps(arrays)
    self.assertRegex(logs.output[0], 'no column rewards, so the rewards are 0')
    golden.assert_frames_equal(self, steps, _expected(arrays))
    # These may be meant.
    for name in 'reward', 'r', 'score':
      with self.assertRaisesRegex(ValueError, 'no column rewards'):
        _steps({**arrays, name: np.zeros(5)})

  def test_invalid_arrays_and_options_raise(self):
    nest = {'a': _OBSERVATIONS, 'b': _OBSERVATIONS}
    texts = _objects('a', None, 'a', None, 'b')
    ragged = _objects(*np.split(np.ones(15), 5))
    for arrays, message in (
        (
            _with('actions', action_s=np.zeros(5)),
            "no column actions. Did you mean action_s.*'actions': ...",
        ),
        (
            _with('terminals', 'timeouts', 'next_observations'),
            'no column terminals.*ends of episodes are unknown',
        ),
        (_with('terminals'), "no column terminals.*: ....*'terminals': None"),
        (_with(actions=np.zeros(4)), 'actions has 4 rows, but term.* 5'),
        (
            _with(next_observations=np.zeros(5)),
            'next_observations .* float32 .*, but .*float64',
        ),
        (
            _with(observations=nest, next_observations={'a': _NEXT}),
            'next_observations/b for each .* is None',
        ),
        (
            _with(terminals=np.array([0, 0, 1, 2, 0])),
            'terminals must be 0 or 1, but is 2 in row 3',
        ),
        (
            _with(timeouts=np.zeros((5, 2))),
            'timeouts must have one bool or num',
        ),
        (_with(rewards=np.array(1.0)), 'rewards must have a row'),
        (_with(discount=np.ones(5)), 'discount has the name'),
        (
            _with(rewards=ragged),
            'rewards has dtype object.* row 0 is .* a ndarray',
        ),
        (
            _with(infos={'x': texts}),
            'infos/x has dtype object.* row 1 is None, a NoneType',
        ),
        (
            _with(
                infos={'x': np.repeat(texts, 2)[:, np.newaxis].reshape(5, 2)}
            ),
            'infos/x has dtype object.* row 1 is None, a NoneType',
        ),
        (_with(actions=np.zeros(5, 'M8[s]')), 'of numbers .* is datetime64'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        formats.load(arrays)
    for options, message in (
        ({'column_names': {'obs': 'x'}}, "of column_names .*is 'obs'"),
        ({'column_names': {'terminals': 'dones'}}, 'no column dones, which'),
        ({'max_episode_steps': 0}, 'max_episode_steps must be a'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        flat_arrays.from_flat_arrays(_ARRAYS, **options)

  def test_load_accepts_arrays_in_memory(self):
    path = self._write(_ARRAYS)
    with h5py.File(path, 'r') as file:
      for data in _ARRAYS, file:
        actual = formats.load(data, 'arrays').as_numpy_iterator()
        golden.assert_frames_equal(
            self, [episode['steps'] for episode in actual], _expected(_ARRAYS)
        )
        with self.assertRaisesRegex(ValueError, "in memory .* but is 'hdf5'"):
          formats.load(data, 'hdf5')
    with self.assertRaisesRegex(ValueError, 'must be a dict of arrays.*list'):
      formats.load([_ARRAYS], 'arrays')
    with self.assertRaisesRegex(ValueError, "of files must .* but is 'arrays'"):
      formats.load(pathlib.Path(path), 'arrays')


if __name__ == '__main__':
  tf.test.main()
