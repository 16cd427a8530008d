"""Tests of parquet tables whose rows are steps, or episodes."""

import os
from unittest import mock

from absl.testing import parameterized
import numpy as np
import pyarrow as pa
from pyarrow import parquet
import tensorflow as tf

from rlds2reverb import formats
from rlds2reverb.formats import arrow
from rlds2reverb.formats import readers
from rlds2reverb.jobs import validating

# Three trajectories of 4 transitions: two are cut, the last one terminates.
_ROWS = 12
_STEP = np.tile(np.arange(4), 3)
_RUN = np.repeat([5, 2, 9], 4)
_VALUE = (10.0 * _RUN + _STEP).astype(np.float32)
_COLUMNS = {
    'observations': np.stack([_VALUE, -_VALUE], 1),
    'actions': _STEP,
    'rewards': np.ones(_ROWS, np.float32),
    'terminals': np.arange(_ROWS) == 11,
}
_NEXT = np.stack([_VALUE + 1, -_VALUE - 1], 1)
_TIMEOUTS = np.isin(np.arange(_ROWS), [3, 7])


def _write(path, columns, **options):
  table = {
      name: list(column) if getattr(column, 'ndim', 1) > 1 else column
      for name, column in columns.items()
  }
  parquet.write_table(pa.table(table), path, **options)
  return path


def _first_numbers(episodes):
  return [
      episode['steps']['observation'][:, 0].numpy().tolist()
      for episode in episodes
  ]


class ParquetTablesTest(tf.test.TestCase, parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self._path = os.path.join(self.create_tempdir().full_path, 'a.parquet')

  @parameterized.parameters('timeouts', 'truncateds', 'truncations', 'cut')
  def test_flags_end_episodes(self, name):
    names = {'timeouts': 'cut'} if name == 'cut' else None
    _write(self._path, {**_COLUMNS, name: _TIMEOUTS}, row_group_size=5)
    episodes = list(formats.load(self._path, column_names=names))
    self.assertEqual(
        _first_numbers(episodes),
        [[50, 51, 52, 53], [20, 21, 22, 23], [90, 91, 92, 93, 0]],
    )
    ends = [e['steps']['is_terminal'].numpy().any() for e in episodes]
    self.assertEqual(ends, [False, False, True])
    self.assertNotIn(name, episodes[0]['steps'])

  @parameterized.parameters('next_observations', 'next_obs', 'new_obs')
  def test_next_observations(self, name):
    columns = {**_COLUMNS, name: _NEXT}
    expected = [[r, r + 1, r + 2, r + 3, r + 4] for r in (50, 20, 90)]
    _write(self._path, {**columns, 'timeouts': _TIMEOUTS})
    with self.assertNoLogs(level='WARNING'):
      episodes = formats.load(self._path)
    self.assertEqual(_first_numbers(episodes), expected)
    # Without timeouts they tell the ends, which no flag explains.
    _write(self._path, columns)
    with self.assertLogs(level='WARNING') as logs:
      episodes = formats.load(self._path)
    self.assertRegex(logs.output[0], '2 of 3 episodes end without a flag')
    self.assertEqual(_first_numbers(episodes), expected)
    # Rows that have one id are joined no more than others.
    _write(self._path, {**columns, 'id': np.zeros(_ROWS, np.int64)})
    with self.assertLogs(level='WARNING') as logs:
      episodes = formats.load(self._path, episode_column='id')
    self.assertRegex(logs.output[0], '2 of 3 episodes end without a flag')
    self.assertEqual(_first_numbers(episodes), expected)

  def test_episode_starts(self):
    columns = {**_COLUMNS, 'episode_starts': _STEP == 0}
    del columns['terminals']
    columns['obs'] = columns.pop('observations')
    _write(self._path, columns)
    self.assertEqual(
        _first_numbers(formats.load(self._path)),
        [[r, r + 1, r + 2, r + 3] for r in (50, 20, 90)],
    )

  @parameterized.parameters(int, str)
  def test_interleaved_episodes(self, of):
    order = np.argsort(_STEP, kind='stable')  # One row of each at a time.
    columns = {name: column[order] for name, column in _COLUMNS.items()}
    columns['env'] = [of(run) for run in _RUN[order]]
    folder = self.create_tempdir().full_path
    for part in range(2):
      rows = slice(7 * part, 7 * part + 7)
      _write(
          f'{folder}/part-{part}.parquet',
          {name: column[rows] for name, column in columns.items()},
          row_group_size=2,
      )
    with self.assertRaisesRegex(
        ValueError, 'env is 5 in rows 0 to 0, and again from row 3.*step_column'
    ):
      formats.load(folder, episode_column='env')
    for part in range(2):
      rows = slice(7 * part, 7 * part + 7)
      _write(
          f'{folder}/part-{part}.parquet',
          {
              **{name: column[rows] for name, column in columns.items()},
              'count': _STEP[order][rows],
          },
          row_group_size=2,
      )
    episodes = list(
        formats.load(folder, episode_column='env', step_column='count')
    )
    self.assertEqual(
        _first_numbers(episodes),
        [[50, 51, 52, 53], [20, 21, 22, 23], [90, 91, 92, 93, 0]],
    )
    for episode in episodes:
      self.assertAllEqual(episode['steps']['action'][:4], range(4))
      self.assertAllEqual(episode['steps']['count'][:4], range(4))

  def test_an_id_that_returns(self):
    ids = np.array([0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0])
    _write(self._path, {**_COLUMNS, 'run': ids})
    with self.assertRaisesRegex(ValueError, 'run is 0 in rows 0 to 3, and'):
      formats.load(self._path, episode_column='run')
    _write(self._path, {**_COLUMNS, 'run': ids, 'step': _STEP})
    with self.assertRaisesRegex(ValueError, 'step does not order .* is 0 in'):
      formats.load(self._path, episode_column='run')
    # The episode of the last four steps continues.
    steps = np.concatenate([_STEP[:8], _STEP[:4] + 4])
    _write(self._path, {**_COLUMNS, 'run': ids, 'step': steps})
    episodes = formats.load(self._path, episode_column='run')
    self.assertEqual(
        _first_numbers(episodes),
        [[50, 51, 52, 53, 90, 91, 92, 93, 0], [20, 21, 22, 23]],
    )

  def test_rows_of_steps_without_ends_are_refused(self):
    columns = dict(_COLUMNS)
    for name in 'terminals', 'rewards':
      _write(self._path, columns)
      with self.assertRaisesRegex(
          ValueError, 'must be lists of steps.*episode_column'
      ):
        formats.load(self._path)
      del columns[name]
    episodes = formats.load(self._path, max_episode_steps=4)
    self.assertLen(list(episodes), 3)

  def test_a_row_is_an_episode_with_next_observations(self):
    columns = {
        'observations': [[1.0, 2.0], [7.0]],
        'next_observations': [[2.0, 3.0], [8.0]],
        'actions': [[4, 5], [6]],
        'truncateds': [[False, True], [True]],
        'rewards': [[1.0, 2.0], [3.0]],
    }
    _write(self._path, columns)
    steps = [episode['steps'] for episode in formats.load(self._path)]
    actual = [episode['observation'].numpy().tolist() for episode in steps]
    self.assertEqual(actual, [[1, 2, 3], [7, 8]])
    self.assertEqual(steps[0]['reward'].numpy().tolist(), [1, 2, 0])
    self.assertNotIn('truncateds', steps[0])
    for name, rows in (
        ('next_observations', [[9.0, 3.0], [8.0]]),
        ('truncateds', [[True, False], [True]]),
    ):
      _write(self._path, {**columns, name: rows})
      with self.assertRaisesRegex(
          tf.errors.InvalidArgumentError, 'Episode 0 ends before its last'
      ):
        list(formats.load(self._path))

  def test_a_folder_is_found(self):
    columns = {**_COLUMNS, 'timeouts': _TIMEOUTS}
    for below in '', 'data':
      folder = self.create_tempdir().full_path
      os.makedirs(f'{folder}/{below}', exist_ok=True)
      for part in range(2):
        rows = slice(6 * part, 6 * part + 6)
        _write(
            f'{folder}/{below}/train-0000{part}.parquet',
            {name: column[rows] for name, column in columns.items()},
        )
      self.assertEqual(readers.find_format(folder), 'parquet')
      self.assertEqual(
          _first_numbers(formats.load(folder)),
          [[50, 51, 52, 53], [20, 21, 22, 23], [90, 91, 92, 93, 0]],
      )

  def test_empty_tables_and_invalid_columns_raise(self):
    columns = {**_COLUMNS, 'timeouts': _TIMEOUTS}
    _write(self._path, {name: column[:0] for name, column in columns.items()})
    with self.assertRaisesRegex(ValueError, 'There are no rows in .*parquet'):
      formats.load(self._path, episode_column='actions')
    table = pa.table(
        {
            'observations': pa.array([], pa.list_(pa.float32())),
            'actions': pa.array([], pa.list_(pa.int64())),
        }
    )
    parquet.write_table(table, self._path)
    with self.assertRaisesRegex(ValueError, 'There are no rows in .*parquet'):
      formats.load(self._path)
    odd = {**columns, 'odd': [[1], [2, 3]] * 6}
    _write(self._path, odd)
    with self.assertRaisesRegex(ValueError, "one length.*{'odd': None}"):
      formats.load(self._path)
    episodes = formats.load(self._path, column_names={'odd': None})
    self.assertLen(list(episodes), 3)

  def test_columns_are_read_in_any_order(self):
    _write(self._path, _COLUMNS, row_group_size=5)
    other = self._path.replace('a.', 'b.')
    _write(other, _COLUMNS, row_group_size=3)
    both = np.concatenate([_COLUMNS['observations']] * 2)
    rng = np.random.default_rng(0)
    footers, _ = arrow.read_footers([self._path, other])
    with arrow.open_columns(footers) as columns:
      column = columns['observations']
      self.assertEqual(column.shape, (24, 2))
      for begin, end in np.sort(rng.integers(0, 25, (40, 2)), 1):
        self.assertAllEqual(column[begin:end], both[begin:end])


class DamagedFilesTest(tf.test.TestCase, parameterized.TestCase):
  """Folders of files whose rows are steps, of which one is damaged."""

  def _write(self, cuts, *, order=None, **columns):
    """Writes rows into files that end at the cuts; returns the files."""
    folder = self.create_tempdir().full_path
    columns = {**_COLUMNS, **columns}
    if order is not None:
      columns = {name: column[order] for name, column in columns.items()}
    paths = []
    for begin, end in zip([0, *cuts], [*cuts, _ROWS]):
      paths.append(f'{folder}/part-{begin:02}.parquet')
      rows = {name: column[begin:end] for name, column in columns.items()}
      _write(paths[-1], rows)
    return folder, paths

  def _read(self, folder, path, sentence, **options):
    """Returns the first numbers of episodes, and the indices of faults."""
    data = formats.load(folder, **options)
    whole = list(data.ignore_errors())
    validation = validating.validate(data)
    total = len(whole) + len(validation.problems)
    self.assertEqual(validation.num_episodes, total)
    self.assertEqual(data.cardinality(), total)
    self.assertFalse(validation.not_read)
    for problem in validation.problems:
      self.assertRegex(problem.values, sentence)
      self.assertIn(path, problem.values)
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, sentence):
      list(data)
    return _first_numbers(whole), [
        problem.episode for problem in validation.problems
    ]

  @parameterized.parameters(0, 1, 2)
  def test_a_file_for_each_episode(self, index):
    folder, paths = self._write([4, 8], run=_RUN)
    os.truncate(paths[index], os.path.getsize(paths[index]) - 9)
    actual, faults = self._read(
        folder, paths[index], 'not a complete file', episode_column='run'
    )
    expected = [[50, 51, 52, 53], [20, 21, 22, 23], [90, 91, 92, 93, 0]]
    del expected[index]
    self.assertEqual((actual, faults), (expected, [index]))

  def test_one_inconsistent_file_is_skipped(self):
    def lacks_a_column(path):
      table = parquet.read_table(path, partitioning=None)
      parquet.write_table(table.drop_columns(['rewards']), path)

    def has_other_ids(path):
      table = parquet.read_table(path, partitioning=None)
      index = table.column_names.index('run')
      runs = pa.array(['a'] * len(table))
      parquet.write_table(table.set_column(index, 'run', runs), path)

    def is_a_pointer(path):
      with open(path, 'wb') as f:
        f.write(b'version https://git-lfs.github.com/spec/v1\noid sha256:a\n')

    for change, sentence in (
        (lacks_a_column, 'has no column rewards'),
        (has_other_ids, 'rows of run.* are object'),
        (is_a_pointer, 'git lfs pull'),
        (lambda path: os.truncate(path, 0), 'not a complete file'),
    ):
      with self.subTest(sentence):
        folder, paths = self._write([4, 8], run=_RUN)
        change(paths[1])
        actual, faults = self._read(
            folder, paths[1], sentence, episode_column='run'
        )
        self.assertEqual(actual, [[50, 51, 52, 53], [90, 91, 92, 93, 0]])
        self.assertEqual(faults, [1])

  def test_only_damaged_files_raise(self):
    folder, paths = self._write([4, 8], run=_RUN)
    for path in paths:
      os.truncate(path, 20)
    with self.assertRaisesRegex(
        ValueError, f'{paths[0]} is not a complete file'
    ):
      formats.load(folder, 'parquet', episode_column='run')

  def test_episodes_that_go_on_in_other_files(self):
    # 5: rows 0 to 3; 2: rows 4 to 7; 9: rows 8 to 11.
    for cuts, index, options, expected, expected_faults in (
        # The rows 2 to 5 are gone, of 5 and of 2. As 9 is in two files, other
        # episodes may be.
        ([2, 6, 9], 1, {'run': _RUN}, [[90, 91, 92, 93, 0]], [0, 1, 2]),
        # The rows 5 and 6 are gone, of 2, whose id returns: one episode.
        (
            [5, 7],
            1,
            {'run': _RUN},
            [[50, 51, 52, 53], [90, 91, 92, 93, 0]],
            [1, 2],
        ),
        # A timeout ends 5 before the gap; 2 may begin in it.
        (
            [2, 4, 6],
            2,
            {'timeouts': _TIMEOUTS},
            [[50, 51, 52, 53], [90, 91, 92, 93, 0]],
            [1, 2],
        ),
        # Starts tell that 9 begins after the gap, but not that 2 ends.
        (
            [5, 7, 8],
            2,
            {'episode_starts': _STEP == 0},
            [[50, 51, 52, 53], [90, 91, 92, 93, 0]],
            [1, 2],
        ),
    ):
      with self.subTest(f'{cuts} {options.keys()}'):
        folder, paths = self._write(cuts, **options)
        os.truncate(paths[index], 30)
        options = {'episode_column': 'run'} if 'run' in options else {}
        sentence = f'{paths[index]} is not a complete file'
        actual, faults = self._read(folder, paths[index], sentence, **options)
        self.assertEqual(actual, expected)
        self.assertEqual(faults, expected_faults)

  def test_episodes_of_one_length(self):
    columns = {'terminals': np.zeros(_ROWS, bool)}
    folder, paths = self._write([4, 8], **columns)
    os.truncate(paths[0], 30)
    actual, faults = self._read(
        folder, paths[0], 'not a complete', max_episode_steps=4
    )
    self.assertEqual(actual, [[20, 21, 22, 23], [90, 91, 92, 93]])
    self.assertEqual(faults, [0])

  def test_interleaved_rows(self):
    # 5 and 2 take turns in two files; 9 has the last one for itself.
    order = np.array([0, 4, 1, 5, 2, 6, 3, 7, 8, 9, 10, 11])
    folder, paths = self._write([4, 8], order=order, run=_RUN, step=_STEP)
    os.truncate(paths[1], 30)
    actual, faults = self._read(
        folder, paths[1], 'not a complete', episode_column='run'
    )
    self.assertEqual(actual, [[90, 91, 92, 93, 0]])
    self.assertEqual(faults, [0, 1, 2])

  def test_each_footer_is_read_once_a_pass(self):
    folder, paths = self._write([2, 4, 6, 8], run=_RUN)
    for path in paths[1:3]:  # A column that cannot be read is found later.
      table = parquet.read_table(path, partitioning=None)
      rewards = table.column_names.index('rewards')
      texts = pa.array(['a'] * len(table))
      table = table.set_column(rewards, 'rewards', texts)
      parquet.write_table(table, path)
    opened = []

    def open_parquet(path, *, metadata=None, **options):
      if metadata is None:
        opened.append(path)
      return opening(path, metadata=metadata, **options)

    opening = parquet.ParquetFile
    with mock.patch.object(arrow.parquet, 'ParquetFile', open_parquet):
      options = {'format': 'parquet', 'episode_column': 'run'}
      data = formats.load(folder, **options)
      self.assertEqual(set(opened), set(paths))
      # For their rows; and for the flags, again after each of two bad files.
      self.assertLessEqual(max(map(opened.count, paths)), 1 + 3)
      for _ in range(2):
        opened.clear()
        list(data.ignore_errors())
        self.assertEqual(max(map(opened.count, paths)), 1)

  def test_a_damaged_row_group(self):
    path = os.path.join(self.create_tempdir().full_path, 'a.parquet')
    rng = np.random.default_rng(0)
    count, length = 12, 50
    columns = {
        'observations': rng.normal(size=(count * length, 20)),
        'actions': rng.normal(size=(count * length, 2)),
        'rewards': np.zeros(count * length),
        'run': np.repeat(np.arange(count), length),
    }
    _write(path, columns, row_group_size=200, compression='gzip')
    whole = list(formats.load(path, episode_column='run').as_numpy_iterator())
    with parquet.ParquetFile(path) as file:
      column = file.metadata.row_group(1).column(0)
    with open(path, 'r+b') as f:
      f.seek(column.dictionary_page_offset + column.total_compressed_size // 2)
      f.write(bytes(100))
    data = formats.load(path, episode_column='run')
    found = list(data.ignore_errors().as_numpy_iterator())
    ids = [episode['episode_id'] for episode in found]
    self.assertContainsSubset([0, 1, 2, 3, 8, 9, 10, 11], ids)
    self.assertLess(len(ids), count)
    for episode in found:
      self.assertAllEqual(
          episode['steps']['observation'],
          whole[episode['episode_id']]['steps']['observation'],
      )
    validation = validating.validate(data)
    self.assertEqual(validation.num_episodes, count)
    for problem in validation.problems:
      self.assertIn(path, problem.values)


if __name__ == '__main__':
  tf.test.main()
