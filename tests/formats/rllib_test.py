"""Tests of reading what RLlib has recorded; `write_rllib_data` wrote it."""

import base64
import gzip
import json
import os
import pathlib
import pickle
import zipfile

from absl.testing import parameterized
import numpy as np
import pyarrow as pa
from pyarrow import parquet
import pytest
import tensorflow as tf

from rlds2reverb import formats
from rlds2reverb.jobs import validating
from tests.formats import expected

_DATA = os.path.join(expected.DATA, 'rllib')


def _episode(index, length, terminal):
  rows = np.arange(10 * index, 10 * index + length + 1, dtype=np.float32)
  return expected.steps(
      np.stack([rows, -rows], 1),
      np.int64(rows[:-1]) % 3,
      rows[:-1] / 2,
      terminal=terminal,
      t=np.arange(length),
  )


def _pack(value: bytes) -> str:
  sink = pa.BufferOutputStream()
  with pa.CompressedOutputStream(sink, 'lz4') as stream:
    stream.write(value)
  return base64.b64encode(sink.getvalue()).decode()


class RllibTest(parameterized.TestCase, tf.test.TestCase):

  def _write(self, *lines):
    path = os.path.join(self.create_tempdir().full_path, 'output-0.json')
    with open(path, 'w', encoding='utf-8') as f:
      for line in lines:
        text = line if isinstance(line, str) else json.dumps(line)
        f.write(f'{text}\n')
    return path

  @parameterized.parameters(
      ('packed', None),
      ('plain', None),
      ('all_packed', None),
      ('packed/output-0.json', None),
      ('table', 'rllib'),
      ('table/output-0.parquet', 'rllib'),
  )
  def test_files_written_by_rllib_are_read(self, name, form):
    actual = list(formats.load(os.path.join(_DATA, name), form))
    wanted = [_episode(0, 4, True), _episode(1, 3, False), _episode(2, 5, True)]
    self.assertLen(actual, len(wanted))
    for episode, steps in zip(actual, wanted):
      self.assertAllClose(episode['steps'], steps)
    if name.startswith('packed'):
      self.assertEqual(actual[0]['steps']['observation'].dtype, tf.float32)

  def test_policies(self):
    path = os.path.join(_DATA, 'agents')
    with self.assertRaisesRegex(
        (ValueError, tf.errors.InvalidArgumentError),
        r"line 1 of .*output-0.json .*\['left', 'right'\].*policy='left'",
    ):
      list(formats.load(path))
    [episode] = formats.load(path, policy='right')
    self.assertAllClose(episode['steps'], _episode(1, 3, False))

  def test_episodes_of_parallel_environments(self):
    # Two environments alternate, and their episodes continue in later lines.
    def batch(ids, steps, ends):
      obs = [[10.0 * i + t] for i, t in zip(ids, steps)]
      return {
          'type': 'SampleBatch',
          'obs': obs,
          'new_obs': [[one + 1] for [one] in obs],
          'actions': steps,
          'rewards': [1.0] * len(ids),
          'dones': ends,
          'eps_id': ids,
          't': steps,
      }

    path = self._write(
        batch([7, 7, 8], [0, 1, 0], [False] * 3),
        batch([7, 8, 8], [2, 1, 2], [True, False, False]),
        # The third episode begins: 7 has ended, and comes again.
        batch([7, 8], [0, 3], [False, True]),
    )
    actual = [
        (
            episode['steps']['observation'][:, 0].tolist(),
            bool(episode['steps']['is_terminal'][-1]),
        )
        for episode in formats.load(path).as_numpy_iterator()
    ]
    self.assertEqual(
        actual,
        [
            ([70, 71, 72, 73], True),
            ([80, 81, 82, 83, 84], True),
            ([70, 71], False),
        ],
    )

  def test_episodes_of_the_new_api_stack(self):
    pytest.importorskip('msgpack')
    path = os.path.join(_DATA, 'episodes')
    actual = list(formats.load(path, 'rllib'))
    wanted = [_episode(0, 4, True), _episode(1, 3, False), _episode(2, 5, True)]
    self.assertLen(actual, len(wanted))
    for episode, steps in zip(actual, wanted):
      length = len(steps['action']) - 1
      steps['action_logp'] = np.float32([*range(-length, 0), 0])
      self.assertAllClose(episode['steps'], steps)
    self.assertEqual(actual[0]['steps']['observation'].dtype, tf.float32)

  def test_a_bad_episode_of_the_new_api_stack(self):
    pytest.importorskip('msgpack')
    path = expected.copy_of(self, 'rllib', 'episodes')
    [file] = pathlib.Path(path).rglob('*.parquet')
    table = parquet.read_table(file, partitioning=None)
    rows = table['item'].to_pylist()
    rows[0] = rows[0][:-20]
    parquet.write_table(pa.table({'item': pa.array(rows, pa.binary())}), file)
    data = formats.load(path, 'rllib')
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError,
        f'row 0 of {file} is not an episode of RLlib',
    ):
      list(data)
    actual = [len(e['steps']['action']) for e in data.ignore_errors()]
    self.assertEqual(actual, [4, 6])

  @parameterized.parameters('zip', 'gz')
  def test_compressed_lines(self, kind):
    folder = self.create_tempdir().full_path
    with open(os.path.join(_DATA, 'packed', 'output-0.json'), 'rb') as f:
      content = f.read()
    if kind == 'zip':
      path = os.path.join(folder, 'output-0.zip')
      with zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED) as archive:
        archive.writestr('output-0.json', content)
    else:
      path = os.path.join(folder, 'output-0.json.gz')
      with gzip.open(path, 'wb') as f:
        f.write(content)
    for place in folder, path:
      actual = list(formats.load(place, 'rllib'))
      self.assertEqual([len(e['steps']['action']) for e in actual], [5, 4, 6])
    os.truncate(path, 100)
    with self.assertRaisesRegex(ValueError, f'{path} is not a complete file'):
      formats.load(path, 'rllib')

  def _lines(self, *sizes):
    """Writes the episodes of `packed`, `sizes` transitions a line."""
    columns, lines, begin = {}, [], 0
    for index, (length, end) in enumerate(((4, 1), (3, 0), (5, 1))):
      rows = np.arange(10.0 * index, 10 * index + length + 1)
      for name, values in {
          'obs': rows[:-1, np.newaxis],
          'new_obs': rows[1:, np.newaxis],
          'actions': rows[:-1],
          'rewards': rows[:-1],
          'terminateds': (np.arange(length) == length - 1) & (end == 1),
          'truncateds': (np.arange(length) == length - 1) & (end == 0),
          'eps_id': np.full(length, index),
          't': np.arange(length),
      }.items():
        columns.setdefault(name, []).extend(values.tolist())
    for size in sizes:
      part = {k: v[begin : begin + size] for k, v in columns.items()}
      lines.append({'type': 'SampleBatch', **part})
      begin += size
    return lines

  def _read(self, lines):
    """Returns the first observations of episodes, and the faults' places."""
    data = formats.load(self._write(*lines))
    found = [int(e['steps']['observation'][0, 0]) for e in data.ignore_errors()]
    validation = validating.validate(data)
    self.assertFalse(validation.not_read)
    return found, [
        (problem.episode, problem.values) for problem in validation.problems
    ]

  @parameterized.parameters(
      # An episode a line; its parts in two lines, and in one with another.
      ((4, 3, 5), 1, [0, 20], [1]),
      ((2, 2, 3, 5), 0, [10, 20], [0]),
      ((2, 2, 3, 5), 1, [10, 20], [2]),  # It is open until the data ends.
      ((2, 3, 7), 1, [20], [0, 2]),
      ((2, 2, 8), 2, [0], [1]),
  )
  def test_a_bad_line(self, sizes, bad, good, faults):
    lines = self._lines(*sizes)
    lines[bad] = json.dumps(lines[bad])[:-10]
    actual, problems = self._read(lines)
    self.assertEqual(actual, good)
    self.assertEqual([index for index, _ in problems], faults)
    for _, text in problems:
      self.assertRegex(text, f'line {bad + 1} of .*not a complete line of JSON')

  def test_a_bad_line_that_no_episode_lacks(self):
    first, *rest = self._lines(2, 2, 3, 5)
    actual, problems = self._read([first, 'x', *rest])
    self.assertEqual(actual, [0, 10, 20])
    self.assertLen(problems, 1)
    self.assertIn('line 2 of', problems[0][1])

  def test_next_observations_that_do_not_follow(self):
    lines = self._lines(4, 3, 5)
    # As for returns of two steps.
    lines[1]['new_obs'] = lines[1]['new_obs'][1:] + lines[1]['new_obs'][-1:]
    actual, problems = self._read(lines)
    self.assertEqual(actual, [0, 20])
    [(index, text)] = problems
    self.assertEqual(index, 1)
    self.assertRegex(
        text, 'new_obs at step 0 of episode 1 is not obs at step 1.*line 2 of'
    )

  @parameterized.parameters(
      (
          '{"type": "SampleBatch", "obs": [[1.0]',
          'line 2 .* not a complete line',
      ),
      ({'type': 'Other'}, "line 2 .*type must be .* is 'Other'"),
      ({'type': 'SampleBatch', 'obs': [1.0]}, 'no column actions in line 2'),
      (
          {'type': 'SampleBatch', 'obs': [1.0, 2.0], 'actions': [1]},
          'line 2 .* differ in length',
      ),
      (
          {'type': 'SampleBatch', 'obs': 'BCJNGG!', 'actions': [1]},
          'column obs in line 2 .*packed',
      ),
      (
          {
              'type': 'SampleBatch',
              'obs': [[1.0], [1.0, 2.0]],
              'actions': [1, 2],
          },
          'column obs in line 2 ',
      ),
  )
  def test_damaged_lines(self, line, error):
    good = {'type': 'SampleBatch', 'obs': [[1.0]], 'actions': [0]}
    path = self._write(good, line)
    with self.assertRaisesRegex(
        (ValueError, tf.errors.InvalidArgumentError), error
    ):
      list(formats.load(path))

  def test_an_episode_with_other_columns_names_the_file(self):
    lines = [
        {
            'type': 'SampleBatch',
            'obs': [[1.0], [2.0]],
            'actions': [0, 1],
            'rewards': [1.0, 2.0],
            'terminateds': [False, True],
            'eps_id': [index, index],
        }
        for index in range(3)
    ]
    lines[2]['more'] = [1, 2]
    path = self._write(*lines)
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, f"'more'.*Found at episode .*{path}"
    ):
      list(formats.load(path))

  def test_a_pickle_cannot_run_code(self):
    marker = os.path.join(self.create_tempdir().full_path, 'ran')

    class Evil:

      def __reduce__(self):
        return os.mkdir, (marker,)

    packed = _pack(pickle.dumps(Evil()))
    path = self._write({'type': 'SampleBatch', 'obs': packed, 'actions': [0]})
    with self.assertRaisesRegex(
        (ValueError, tf.errors.InvalidArgumentError), 'could run code'
    ):
      list(formats.load(path))
    self.assertFalse(os.path.exists(marker))


if __name__ == '__main__':
  tf.test.main()
