"""Tries every public function that takes a path with every form of one."""

import inspect
import os
import pathlib
import shutil
import tempfile

from absl.testing import parameterized
import h5py
import numpy as np
import pytest
import tensorflow as tf

from examples import behavioral_cloning
import rlds2reverb
from rlds2reverb import jobs
from rlds2reverb import training
from rlds2reverb.statistics import results
from tests import golden
from tests import ram_files  # noqa: F401

_LEROBOT = os.path.join(
    os.path.dirname(os.path.abspath(__file__)), 'data', 'lerobot', 'v3.0'
)
_D3RLPY = os.path.join(
    os.path.dirname(os.path.abspath(__file__)), 'data', 'd3rlpy', 'arrays.h5'
)
_PARQUET = os.path.join(
    os.path.dirname(os.path.abspath(__file__)),
    'data',
    'parquet',
    'episodes.parquet',
)
_ZARR = os.path.join(
    os.path.dirname(os.path.abspath(__file__)), 'data', 'zarr', 'pusht.zarr'
)
_TABLE = 'table'
_NUM_STEPS = 4  # of golden.COMPLETE


def _episodes():
  return golden.stacked([golden.COMPLETE])


def _record(at):
  return rlds2reverb.datasets.record_episodes('CartPole-v1', at('new'), 1)


def _save(at):
  return rlds2reverb.datasets.save_episodes(_episodes(), at('new'))


def _write_checkpoint(at):
  rlds2reverb.write_reverb_checkpoint(
      _episodes(), at('new'), rlds2reverb.TableItems(_TABLE)
  )


def _merge(at):
  rlds2reverb.replay.merge_reverb_checkpoints([at('checkpoint')], at('new'))


def _cache(at):
  # Statistics of a generator are not kept.
  episodes = tf.data.Dataset.from_tensors({'steps': golden.COMPLETE})
  rlds2reverb.statistics.cached_statistics(episodes, at('data'), quantiles=())


# What each of them leaves, relative to the folder; `*` is any text.
_WRITERS = {
    'record_episodes': (_record, 'new/dataset_info.json'),
    'save_episodes': (_save, 'new/saved_episodes.json'),
    'write_reverb_checkpoint': (_write_checkpoint, 'new/DONE'),
    'merge_reverb_checkpoints': (_merge, 'new/DONE'),
    'cached_statistics': (_cache, 'data/statistics-*.json'),
}


def _save_torchrl(at):
  rlds2reverb.formats.save_torchrl(_episodes(), at('new'))


def _train(at):
  with tempfile.TemporaryDirectory() as folder:
    rlds2reverb.datasets.record_episodes('CartPole-v1', f'{folder}/data', 1)
    behavioral_cloning.train_eval(
        f'{folder}/data', at('new'), 1, layers=(), num_eval_episodes=1
    )


def _build_index(at):
  rlds2reverb.random_access.build_index(at('data'), at('new'))


def _open_batches(at):
  batches = rlds2reverb.random_access.open_batches(
      {'one': at('data')}, at('indexes'), 1, rlds2reverb.Windows(2)
  )
  return batches[0]['reward'].shape[1]


# What writes files that no library writes to a URL.
_LOCAL_WRITERS = {
    'build_index': (_build_index, 'new/store.json'),
    'save_torchrl': (_save_torchrl, 'new/meta.json'),
    'open_run': (_train, 'new/settings.json'),
    'train': (_train, 'new/policy/saved_model.pb'),
}


def _load_torchrl(at):
  rlds2reverb.formats.save_torchrl(_episodes(), at('torchrl'), overwrite=True)
  (episode,) = rlds2reverb.formats.load(at('torchrl'))
  return len(episode['steps']['reward'])


def _load(at):
  (episode,) = rlds2reverb.load_episodes(at('data'))
  return len(episode['steps']['reward'])


def _load_by_name(at):
  (episode,) = rlds2reverb.load_episodes('named', data_dir=at('sets'))
  return len(episode['steps']['reward'])


def _open_replay_buffer(at):
  return rlds2reverb.open_replay_buffer(at('data')).num_frames()


def _open_replay_buffer_of_checkpoint(at):
  return rlds2reverb.open_replay_buffer(at('checkpoint')).num_frames()


def _prepare_frames(at):
  rlds2reverb.EpisodesReplayBuffer(_episodes(), directory=at('frames'))
  return rlds2reverb.open_replay_buffer(at('frames')).num_frames()


def _load_statistics(at):
  path = at('statistics.json')
  return rlds2reverb.statistics.load_statistics(path).num_episodes


def _read_mapping(at):
  reward = golden.COMPLETE['reward']
  steps = {**golden.COMPLETE, 'a': reward, 'b': reward}
  mapped = rlds2reverb.map_fields(golden.stacked([steps]), at('mine.gin'))
  return mapped.element_spec['steps']['action'].shape[1]


def _read_transforms(at):
  return len(rlds2reverb.transforms.load_transforms(at('mine.gin')))


def _load_mixture(at):
  return len(rlds2reverb.fields.load_mixture(at('mixture.gin')).weights)


def _read_mixture(at):
  mixed = jobs.read_mixture(at('mixture.gin'), at('sets'))
  (episode,) = mixed.take(1)
  return len(episode.element['steps']['reward'])


def _reader(load, name):
  """Returns a function that reads the first episode of another format."""

  def read(at):
    if load == 'zarr':
      pytest.importorskip('zarr')
    kwargs = {'cameras': []} if load == 'lerobot' else {}
    episodes = rlds2reverb.formats.load(at(name), load, **kwargs)
    return len(next(iter(episodes))['steps']['reward'])

  return read


def _open_source(at):
  return jobs.open_source(jobs.make_source(at('data'))).num_episodes


def _open_source_by_name(at):
  source = jobs.make_source('named', data_dir=at('sets'))
  return jobs.open_source(source).num_episodes


def _describe(at):
  return jobs.describe(at('checkpoint')).counts['steps']


def _serve_source(at):
  server = jobs.serve_source(
      jobs.make_source(at('data')),
      [rlds2reverb.TableItems(_TABLE)],
      checkpoint_root=at('other_root'),
  )
  try:
    return server.localhost_client().server_info()[_TABLE].current_size
  finally:
    server.stop()


def _serve(at):
  server = rlds2reverb.restore_reverb_server(
      at('checkpoint'), checkpoint_root=at('root')
  )
  try:
    client = server.localhost_client()
    client.checkpoint()
    return client.server_info()[_TABLE].current_size
  finally:
    server.stop()


# How many there are of what each of them reads.
_READERS = {
    'load_episodes': (_load, _NUM_STEPS),
    'load_episodes by name': (_load_by_name, _NUM_STEPS),
    'map_fields': (_read_mapping, 2),
    'load_mixture': (_load_mixture, 1),
    'load_statistics': (_load_statistics, 1),
    'load_transforms': (_read_transforms, 1),
    'read_mixture': (_read_mixture, _NUM_STEPS),
    'make_source': (_open_source, 1),
    'make_source by name': (_open_source_by_name, 1),
    'describe': (_describe, _NUM_STEPS),
    'open_replay_buffer': (_open_replay_buffer, _NUM_STEPS),
    'open_replay_buffer of a checkpoint': (
        _open_replay_buffer_of_checkpoint,
        _NUM_STEPS,
    ),
}
_LOCAL_READERS = {
    'open_batches': (_open_batches, 2),
    'load': (_reader(None, 'minari'), _NUM_STEPS),
    'load calvin': (_reader('calvin', 'calvin'), 1),
    'load d3rlpy': (_reader('d3rlpy', 'd3rlpy.h5'), 5),
    'load hdf5': (_reader('hdf5', 'flat.hdf5'), _NUM_STEPS),
    'load imitation': (
        _reader('imitation', 'trajectories.npz'),
        _NUM_STEPS,
    ),
    'load lerobot': (_reader('lerobot', 'lerobot'), 7),
    'load maniskill': (_reader('maniskill', 'maniskill.h5'), 4),
    'load minari': (_reader('minari', 'minari'), _NUM_STEPS),
    'load npz': (_reader('npz', 'flat.npz'), _NUM_STEPS),
    'load parquet': (_reader('parquet', 'episodes.parquet'), 2),
    'load robomimic': (_reader('robomimic', 'demo.hdf5'), _NUM_STEPS),
    'load torchrl': (_load_torchrl, _NUM_STEPS),
    'load zarr': (_reader('zarr', 'zarr'), 5),
    'open_replay_buffer of frames': (_prepare_frames, _NUM_STEPS),
    'restore_reverb_server': (_serve, _NUM_STEPS - 1),
    'serve_source': (_serve_source, _NUM_STEPS - 1),
}
_PATH_WORDS = ('dir', 'path', 'root', 'folder', 'file')


def _make_folder(folder):
  """Writes what the functions read."""
  rlds2reverb.datasets.save_episodes(_episodes(), f'{folder}/data')
  rlds2reverb.datasets.save_episodes(
      _episodes(), f'{folder}/sets/named/1.0.0', name='named'
  )
  rlds2reverb.write_reverb_checkpoint(
      _episodes(), f'{folder}/checkpoint', rlds2reverb.TableItems(_TABLE)
  )
  found = rlds2reverb.statistics.compute_statistics(_episodes(), quantiles=())
  with tf.io.gfile.GFile(f'{folder}/statistics.json', 'w') as f:
    f.write(results.to_json(found))
  with tf.io.gfile.GFile(f'{folder}/mine.gin', 'w') as f:
    f.write(
        "StepMapping.action = ['a', 'b']\n"
        'transform_episodes.transforms = [@ScaleReward()]\n'
        'ScaleReward.scale = 2.0\n'
    )
  with tf.io.gfile.GFile(f'{folder}/mixture.gin', 'w') as f:
    f.write(
        "Mixture.weights = {'named': 1.0}\n"
        "Mixture.configs = {'named': 'recorded_gym'}\n"
    )


class PathArgumentsTest(parameterized.TestCase, tf.test.TestCase):

  def setUp(self):
    super().setUp()
    self._home = self.create_tempdir().full_path
    old = {'HOME': os.environ['HOME']} if 'HOME' in os.environ else {}
    self.addCleanup(os.environ.update, old)
    os.environ['HOME'] = self._home
    # What a wrong path would be relative to.
    folder = os.getcwd()
    self.addCleanup(os.chdir, folder)
    self._folder = self.create_tempdir().full_path
    os.chdir(self._folder)
    self.addCleanup(lambda: self.assertEmpty(os.listdir(self._folder)))

  def _check_all(self, at, folder, readers, writers):
    for name, (function, expected) in readers.items():
      with self.subTest(name):
        self.assertEqual(function(at), expected)
    for name, (function, written) in writers.items():
      with self.subTest(name):
        returned = function(at)
        if returned is not None:
          self.assertEqual(returned, f'{folder}/new')
        self.assertLen(tf.io.gfile.glob(f'{folder}/{written}'), 1)
        if tf.io.gfile.exists(f'{folder}/new'):
          tf.io.gfile.rmtree(f'{folder}/new')

  # Text of a path from the root is what all other tests give.
  @parameterized.named_parameters(
      ('path', lambda home, name: pathlib.Path(home) / name),
      ('home', lambda _, name: f'~/{name}'),
  )
  @pytest.mark.long
  def test_on_the_local_disk(self, form):
    _make_folder(self._home)
    os.mkdir(os.path.join(self._home, 'root'))
    with h5py.File(os.path.join(self._home, 'flat.hdf5'), 'w') as file:
      file['observations'] = file['actions'] = np.ones(_NUM_STEPS)
      file['rewards'] = np.ones(_NUM_STEPS)
      file['terminals'] = np.zeros(_NUM_STEPS)
    os.mkdir(os.path.join(self._home, 'minari'))
    path = os.path.join(self._home, 'minari', 'main_data.hdf5')
    with h5py.File(path, 'w') as file:
      file['episode_0/observations'] = np.ones(_NUM_STEPS)
      for name in 'actions', 'rewards', 'terminations':
        file[f'episode_0/{name}'] = np.zeros(_NUM_STEPS - 1)
    ones = np.ones(_NUM_STEPS)
    np.savez(
        os.path.join(self._home, 'flat.npz'),
        **{name: ones for name in ('observations', 'actions', 'rewards')},
        terminals=0 * ones,
    )
    np.savez(
        os.path.join(self._home, 'trajectories.npz'),
        obs=ones,
        acts=ones[:-1],
        terminal=np.array([True]),
        indices=np.zeros(0, int),
    )
    with h5py.File(os.path.join(self._home, 'demo.hdf5'), 'w') as file:
      for name in 'obs/a', 'next_obs/a', 'actions':
        file[f'data/demo_0/{name}'] = ones[:-1]
    shutil.copytree(_LEROBOT, os.path.join(self._home, 'lerobot'))
    shutil.copytree(_ZARR, os.path.join(self._home, 'zarr'))
    os.mkdir(os.path.join(self._home, 'calvin'))
    frame = {'actions': np.zeros(7), 'robot_obs': np.zeros(15)}
    np.savez(os.path.join(self._home, 'calvin', 'episode_0000000.npz'), **frame)
    bounds = os.path.join(self._home, 'calvin', 'ep_start_end_ids.npy')
    np.save(bounds, np.zeros((1, 2), np.int64))
    shutil.copy(_PARQUET, os.path.join(self._home, 'episodes.parquet'))
    shutil.copy(_D3RLPY, os.path.join(self._home, 'd3rlpy.h5'))
    with h5py.File(os.path.join(self._home, 'maniskill.h5'), 'w') as file:
      file['traj_0/obs'], file['traj_0/actions'] = np.zeros(4), np.zeros(3)
    self._check_all(
        lambda name: form(self._home, name),
        self._home,
        {**_READERS, **_LOCAL_READERS},
        {**_WRITERS, **_LOCAL_WRITERS},
    )
    self.assertLen(os.listdir(os.path.join(self._home, 'root')), 1)
    self.assertNotIn('~', os.listdir(self._home))

  @pytest.mark.long
  def test_at_a_url(self):
    folder = 'ram://path_arguments'
    _make_folder(folder)
    at = lambda name: f'{folder}/{name}'
    self._check_all(at, folder, _READERS, _WRITERS)
    for name, (function, _) in {**_LOCAL_READERS, **_LOCAL_WRITERS}.items():
      with self.subTest(name):
        with self.assertRaisesRegex(ValueError, 'must be on the local disk'):
          function(at)
    _make_folder(self._home)
    with self.assertRaisesRegex(ValueError, 'checkpoint_root must be on the'):
      rlds2reverb.restore_reverb_server(
          f'{self._home}/checkpoint', checkpoint_root=at('root')
      )

  @parameterized.parameters(
      ('s3://bucket/', OSError),  # No such file system without tensorflow-io.
      ('foo://bucket/', ValueError),
      (pathlib.Path('gs://bucket'), ValueError),
  )
  def test_where_nothing_can_be_reached(self, folder, error):
    at = lambda name: os.path.join(folder, name)
    for name, (function, _) in {**_READERS, **_WRITERS}.items():
      with self.subTest(name), self.assertRaises(error):
        function(at)

  def test_every_function_that_takes_a_path_is_here(self):
    found = set()
    # What is imported when it is first used is in `dir` alone.
    of_library = inspect.getmembers(rlds2reverb)
    rooms = [room for _, room in of_library if inspect.ismodule(room)]
    self.assertContainsSubset([jobs, training], rooms)
    for name, function in [
        member
        for module in (rlds2reverb, *rooms)
        for member in inspect.getmembers(module)
    ]:
      if not inspect.isfunction(function):
        continue
      for parameter in inspect.signature(function).parameters.values():
        if 'PathLike' in str(parameter.annotation):
          found.add(name)
        elif any(word in parameter.name for word in _PATH_WORDS):
          self.assertNotIn('str', str(parameter.annotation), name)
    tested = {**_READERS, **_LOCAL_READERS, **_WRITERS, **_LOCAL_WRITERS}
    self.assertEqual(found, {name.split()[0] for name in tested})


if __name__ == '__main__':
  tf.test.main()
