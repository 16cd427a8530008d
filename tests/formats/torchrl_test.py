"""Tests on storages that TorchRL wrote: see write_torchrl_data.py."""

import json
import os
import re
import shutil
import tempfile
import zipfile

from absl.testing import parameterized
import h5py
import numpy as np
import tensorflow as tf

from rlds2reverb.formats import torchrl
from rlds2reverb.jobs import validating
from tests import contract
from tests import golden
from tests.formats import expected

_ARCHIVE = os.path.join(expected.DATA, 'torchrl.zip')
# The path below the folder of the storage.
_STORAGES = (
    ('flat', ''),
    ('flat_room', 'storage'),
    ('flat_ring', ''),
    ('nested', 'storage'),
    ('nested_room', ''),
    ('hdf5', 'storage'),
    ('transitions', ''),
    ('ring', 'storage'),
    ('ring_alike', ''),
)
_FORMATS = ('flat', 'nested', 'hdf5')


def _keep_numbers(steps):
  """Returns steps of `contract.random_steps` that TorchRL can hold."""
  observation, action = steps['observation'], steps['action']
  return {
      **steps,
      'observation': {
          'camera': observation['camera'],
          'pose': observation['pose'][0],
      },
      'action': {'gripper': action[0]['gripper'], 'arm': action[1]},
      'state': steps['state']['h'],
  }


def _random_data(form=golden.stacked):
  rng = np.random.default_rng(1)
  episodes = [
      _keep_numbers(contract.random_steps(rng, transitions))
      for transitions in (0, 3, 0, 1, 7, 0, *range(1, 11))
  ]
  empty = tf.nest.map_structure(lambda leaf: leaf[:0], episodes[0])
  unfinished = {**episodes[1], 'is_last': np.zeros(4, bool)}
  unfinished['is_terminal'] = np.zeros(4, bool)
  return (
      form([*episodes, empty, unfinished])
      .enumerate()
      .map(
          lambda index, episode: {
              **episode,
              'episode_id': index,
              'source': {'file': tf.strings.as_string(index) + '\0'},
              'scale': tf.cast(index, tf.bfloat16),
          }
      )
  )


class LoadTest(parameterized.TestCase, tf.test.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.folder = tempfile.mkdtemp()
    cls.addClassCleanup(shutil.rmtree, cls.folder)
    with zipfile.ZipFile(_ARCHIVE) as archive:
      archive.extractall(cls.folder)

  @parameterized.parameters(*_STORAGES)
  def test_episodes_equal_torchrl(self, name, below):
    path = os.path.join(self.folder, name)
    with np.load(os.path.join(path, 'expected.npz')) as arrays:
      wanted = dict(arrays)
    done = wanted['next/done'][:, 0]
    length = len(done)
    ends = [*(np.flatnonzero(done) + 1)]
    ends += [length] if ends[-1] < length else []
    data = torchrl.load_torchrl(os.path.join(path, below))
    self.assertEqual(data.cardinality(), len(ends))
    episodes = list(data.as_numpy_iterator())
    self.assertLen(episodes, len(ends))
    wanted_steps = []
    for start, end in zip([0, *ends], ends):
      rows = {key: column[start:end] for key, column in wanted.items()}
      after = rows['next/observation'][-1:]
      wanted_steps.append(
          expected.steps(
              np.append(rows['observation'], after, 0),
              rows['action'],
              rows['next/reward'][:, 0],
              terminal=rows['next/terminated'][-1, 0],
              info={'speed': rows['info/speed']},
          )
      )
      # An episode that was not finished has no last step.
      wanted_steps[-1]['is_last'][-1] = rows['next/done'][-1, 0]
    # The fields of transitions are zero in the last step.
    actual = [{**episode['steps']} for episode in episodes]
    for steps, other in zip(actual, wanted_steps):
      self.assertAllEqual(
          steps['info']['speed'][:-1], other['info']['speed'][:-1]
      )
      steps['info'] = other['info']
    golden.assert_frames_equal(self, actual, wanted_steps)

  def _copy(self, *names):
    path = self.create_tempdir().full_path
    source = os.path.join(self.folder, *names)
    return shutil.copytree(source, path, dirs_exist_ok=True)

  @parameterized.parameters(
      ('flat_ring', ''), ('nested', 'storage'), ('hdf5', 'storage')
  )
  def test_files_are_closed_after_each_pass(self, name, below):
    path = self._copy(name, below)
    data = torchrl.load_torchrl(path)
    golden.assert_no_open_files(self, path)
    next(iter(data))
    golden.assert_no_open_files(self, path)
    self.assertNotEmpty(list(data))
    golden.assert_no_open_files(self, path)

  def test_a_ring_without_its_cursor(self):
    # Without the files next to the storage, rows are read in storage order.
    for name, message, wanted in (
        ('ring', 'the rows 2 of', [(3, False), (4, True), (4, True)]),
        ('ring_alike', 'may be joined', [(6, True), (4, True)]),
    ):
      with self.assertLogs('absl', 'WARNING') as logs:
        data = torchrl.load_torchrl(self._copy(name, 'storage'))
      self.assertIn(message, logs.output[0])
      actual = [
          episode['steps']['is_last'] for episode in data.as_numpy_iterator()
      ]
      self.assertEqual([(len(one), one[-1]) for one in actual], wanted)

  def test_trajectories_that_are_not_done(self):
    # As a collector of two environments leaves them: only ids tell them apart.
    path = self._copy('transitions')
    ids = np.repeat([3, 4, 5, 6, 0], [2, 3, 3, 2, 6])
    folder = os.path.join(path, 'storage', 'collector')
    os.mkdir(folder)
    ids.tofile(os.path.join(folder, 'traj_ids.memmap'))
    expected.change_json(
        os.path.join(folder, '..', 'meta.json'),
        lambda meta: meta.update(collector={'type': ''}),
    )
    entry = {'device': 'cpu', 'shape': [16], 'dtype': 'torch.int64'}
    content = {
        'traj_ids': {**entry, 'is_nested': False},
        'shape': [16],
        '_type': "<class 'tensordict._td.TensorDict'>",
    }
    expected.change_json(
        os.path.join(folder, 'meta.json'), lambda meta: meta.update(content)
    )
    actual = [
        episode['steps']['observation'][:, 0].tolist()
        for episode in torchrl.load_torchrl(path).as_numpy_iterator()
    ]
    self.assertEqual(
        actual, [[0, 1, 2], [2, 3, 4, 5], [10, 11, 12, 13], [20, 21, 22]]
    )


class SaveTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(*_FORMATS)
  def test_saved_data_is_read_back(self, form):
    folder = os.path.join(self.create_tempdir().full_path, 'saved')
    count = torchrl.save_torchrl(_random_data(golden.nested), folder, form)
    # More than ten, so that the names of groups are not in their order.
    self.assertEqual(count, 3 + 1 + 7 + 55 + 3)
    actual = list(torchrl.load_torchrl(folder).as_numpy_iterator())
    for actual_value, expected_value in zip(
        actual, _random_data().as_numpy_iterator(), strict=True
    ):
      contract.assert_equal(self, actual_value, expected_value)

  def test_a_reward_of_one_dimension_or_none(self):
    for steps in (
        {**contract.A, 'reward': contract.A['reward'][:, None]},
        {k: v for k, v in contract.A.items() if k != 'reward'},
    ):
      folder = os.path.join(self.create_tempdir().full_path, 'saved')
      torchrl.save_torchrl(golden.stacked([steps]), folder)
      (actual,) = torchrl.load_torchrl(folder).as_numpy_iterator()
      contract.assert_equal(self, actual['steps'], steps)

  @parameterized.parameters('flat', 'nested')
  def test_saved_files_equal_those_of_torchrl(self, form):
    # TorchRL 0.14.1 has read what this writes; these are the bytes.
    folder = os.path.join(self.create_tempdir().full_path, 'saved')
    episodes = [
        {**steps, 'observation': steps['observation'][:, None]}
        for steps in (contract.A, contract.B)
    ]
    torchrl.save_torchrl(golden.stacked(episodes), folder, form)

    def read(name, dtype):
      return np.fromfile(os.path.join(folder, name), dtype).tolist()

    self.assertEqual(
        read('observation.memmap', np.float32),
        [0, 1, 2, 3, 4, 5, 10, 11, 12, 13],
    )
    self.assertEqual(
        read('reward.memmap', np.float32), [1, 2, 3, 4, 5, 10, 20, 30]
    )
    self.assertEqual(read('done.memmap', bool), [0, 0, 0, 0, 1, 0, 0, 1])
    with open(os.path.join(folder, 'meta.json'), encoding='utf-8') as f:
      meta = json.load(f)
    nested = form == 'nested'
    self.assertEqual(
        meta['observation'],
        {
            'device': 'cpu',
            'shape': [2, 2] if nested else [10, 1],
            'dtype': 'torch.float32',
            'is_nested': nested,
        },
    )
    self.assertEqual(meta['shape'], [2] if nested else [])
    if nested:
      self.assertEqual(read('observation.shape.memmap', np.int64), [6, 1, 4, 1])

  def test_unsupported_data_raises(self):
    folder = os.path.join(self.create_tempdir().full_path, 'saved')
    rng = np.random.default_rng(0)
    unfinished = {**contract.A, 'is_last': np.zeros(6, bool)}
    unfinished['is_terminal'] = np.zeros(6, bool)
    nothing, text = np.zeros((6, 0), np.float32), np.array(['a'] * 6, object)
    for episodes, message in (
        (
            [contract.random_steps(rng, 3)],
            'action/0/.* has the key 0, .* dicts',
        ),
        ([{**contract.A, 'text': text}], 'text is .*string'),
        ([{**contract.A, 'a/b': contract.A['reward']}], "the key 'a/b'"),
        ([unfinished, contract.B], 'Episode 0 has no last step'),
        ([golden.SINGLE_TERMINAL], 'no transition'),
        ([{**contract.A, 'nothing': nothing}], 'nothing is .*a known shape'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        torchrl.save_torchrl(golden.stacked(episodes), folder)
      self.assertFalse(os.path.exists(folder))
    with self.assertRaisesRegex(ValueError, 'format must be one of'):
      torchrl.save_torchrl(golden.stacked([contract.A]), folder, 'flatt')

  def test_a_bad_group_of_hdf5(self):
    alone = tf.nest.map_structure(lambda leaf: leaf[-1:], contract.A)
    data = golden.stacked([contract.A, alone, contract.B, contract.A])
    folder = os.path.join(self.create_tempdir().full_path, 'saved')
    torchrl.save_torchrl(data, folder, 'hdf5')
    path = os.path.join(folder, 'checkpoint.h5')
    with open(path, 'rb') as f:
      content = f.read()
    whole = list(torchrl.load_torchrl(folder).as_numpy_iterator())

    def other_fields(file):
      del file['traj_1/action']

    def other_shape(file):
      rows = file['traj_1'].pop('action')
      file['traj_1/action'] = np.zeros([len(rows), 2], rows.dtype)

    def other_length(file):
      file['traj_1/action'] = file['traj_1'].pop('action')[:-1]

    def done_early(file):
      file['traj_1/done'][0] = True

    def no_transition(file):
      for name, rows in {**file['traj_1']}.items():
        del file['traj_1'][name]
        file['traj_1'][name] = rows[:0]

    def no_group(file):
      del file['traj_1']
      file['traj_1'] = [1]

    for change, problem in (
        (other_fields, 'has the fields'),
        (other_shape, 'has rows of action that are .* in traj_0'),
        (other_length, 'has the shape .*, but there are'),
        (done_early, 'a transition before the last one is done'),
        (no_transition, 'one episode with transitions, but it has none'),
        (no_group, 'must be a group'),
    ):
      with self.subTest(problem):
        with open(path, 'wb') as f:
          f.write(content)
        with h5py.File(path, 'a') as file:
          change(file)
        actual = torchrl.load_torchrl(folder)
        self.assertEqual(actual.cardinality(), 4)
        validation = validating.validate(actual)
        self.assertEqual(validation.num_episodes, 4)
        [fault] = [
            problem
            for problem in validation.problems
            if 'traj' in problem.values
        ]
        self.assertEqual(fault.episode, 2)
        message = f'traj_1 of {re.escape(path)}.*{problem}'
        self.assertRegex(fault.values, message)
        valid_episodes = list(actual.ignore_errors().as_numpy_iterator())
        self.assertEqual(
            [episode['episode_id'] for episode in valid_episodes], [0, 1, 3]
        )
        golden.assert_frames_equal(
            self,
            [episode['steps'] for episode in valid_episodes],
            [whole[index]['steps'] for index in (0, 1, 3)],
        )

  @parameterized.parameters(0, 1, 2)
  def test_damaged_rows_of_hdf5(self, bad):
    folder = os.path.join(self.create_tempdir().full_path, 'saved')
    data = golden.stacked([contract.A, contract.B, contract.A])
    torchrl.save_torchrl(data, folder, 'hdf5')
    whole = list(torchrl.load_torchrl(folder).as_numpy_iterator())
    path = os.path.join(folder, 'checkpoint.h5')
    with h5py.File(path, 'a') as file:
      group = file[f'traj_{bad}']
      rows = group.pop('observation')[()]
      shape = {'chunks': rows.shape, 'compression': 'gzip'}
      chunk = group.create_dataset(
          'observation', data=rows, **shape
      ).id.get_chunk_info(0)
    with open(path, 'r+b') as f:
      f.seek(chunk.byte_offset)
      f.write(bytes(chunk.size))
    found = torchrl.load_torchrl(folder)
    valid_episodes = list(found.ignore_errors().as_numpy_iterator())
    good = [index for index in range(3) if index != bad]
    self.assertEqual(
        [episode['episode_id'] for episode in valid_episodes], good
    )
    golden.assert_frames_equal(
        self,
        [episode['steps'] for episode in valid_episodes],
        [whole[index]['steps'] for index in good],
    )
    [fault] = validating.validate(found).problems
    self.assertEqual(fault.episode, bad)
    self.assertRegex(
        fault.values,
        f'observation in traj_{bad} of {re.escape(path)} is damaged',
    )

  def test_a_file_of_another_length(self):
    folder = os.path.join(self.create_tempdir().full_path, 'saved')
    torchrl.save_torchrl(golden.stacked([contract.A]), folder, 'hdf5')
    path = os.path.join(folder, 'checkpoint.h5')
    with h5py.File(path, 'a') as file:
      file['_len'][()] = 3
    with self.assertRaisesRegex(ValueError, f'_len of {path} must be .* 5,'):
      torchrl.load_torchrl(folder)
    with h5py.File(path, 'a') as file:
      del file['_len']
    with self.assertRaisesRegex(ValueError, 'is not a file of TorchRL: .*_len'):
      torchrl.load_torchrl(folder)

  def test_files_of_other_episodes(self):
    folders = []
    for steps in contract.A, contract.B:
      folders.append(os.path.join(self.create_tempdir().full_path, 'saved'))
      torchrl.save_torchrl(golden.stacked([steps]), folders[-1])
    shutil.copy(os.path.join(folders[0], 'rlds.tfrecord'), folders[1])
    with self.assertRaisesRegex(ValueError, 'does not match the episodes'):
      torchrl.load_torchrl(folders[1])
    with self.assertRaises(FileExistsError):
      torchrl.save_torchrl(golden.stacked([contract.A]), folders[0])


if __name__ == '__main__':
  tf.test.main()
