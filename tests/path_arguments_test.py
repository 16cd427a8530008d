"""Tries every public function that takes a path with every form of one."""

import inspect
import os
import pathlib
import tempfile

from absl.testing import parameterized
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

_TABLE = rlds2reverb.TableItems('table')
_NUM_STEPS = 4  # of golden.COMPLETE


def _episodes():
  return golden.stacked([golden.COMPLETE])


def _cache(at):
  # Statistics of a generator are not kept.
  episodes = tf.data.Dataset.from_tensors({'steps': golden.COMPLETE})
  rlds2reverb.statistics.cached_statistics(episodes, at('data'), quantiles=())


# What each of them leaves, relative to the folder; `*` is any text.
_WRITERS = {
    'record_episodes': (
        lambda at: rlds2reverb.datasets.record_episodes(
            'CartPole-v1', at('new'), 1
        ),
        'new/dataset_info.json',
    ),
    'save_episodes': (
        lambda at: rlds2reverb.datasets.save_episodes(_episodes(), at('new')),
        'new/saved_episodes.json',
    ),
    'write_reverb_checkpoint': (
        lambda at: rlds2reverb.write_reverb_checkpoint(
            _episodes(), at('new'), _TABLE
        ),
        'new/DONE',
    ),
    'merge_reverb_checkpoints': (
        lambda at: rlds2reverb.replay.merge_reverb_checkpoints(
            [at('checkpoint')], at('new')
        ),
        'new/DONE',
    ),
    'split_reverb_checkpoint': (
        lambda at: rlds2reverb.replay.split_reverb_checkpoint(
            at('checkpoint'), [at('new')]
        ),
        'new/DONE',
    ),
    'cached_statistics': (_cache, 'data/statistics-*.json'),
}


def _train(at):
  with tempfile.TemporaryDirectory() as folder:
    rlds2reverb.datasets.record_episodes('CartPole-v1', f'{folder}/data', 1)
    behavioral_cloning.train_eval(
        f'{folder}/data', at('new'), 1, layers=(), num_eval_episodes=1
    )


# What writes files that no library writes to a URL.
_LOCAL_WRITERS = {
    'build_index': (
        lambda at: rlds2reverb.random_access.build_index(at('data'), at('new')),
        'new/store.json',
    ),
    'save_torchrl': (
        lambda at: rlds2reverb.formats.save_torchrl(_episodes(), at('new')),
        'new/meta.json',
    ),
    'open_run': (_train, 'new/settings.json'),
    'train': (_train, 'new/policy/saved_model.pb'),
}


def _steps_of(episodes):
  return len(next(iter(episodes))['steps']['reward'])


def _open_batches(at):
  batches = rlds2reverb.random_access.open_batches(
      {'one': at('data')}, at('indexes'), 1, rlds2reverb.Windows(2)
  )
  return batches[0]['reward'].shape[1]


def _prepare_frames(at):
  rlds2reverb.EpisodesReplayBuffer(_episodes(), directory=at('frames'))
  return rlds2reverb.open_replay_buffer(at('frames')).num_frames()


def _read_mapping(at):
  reward = golden.COMPLETE['reward']
  steps = {**golden.COMPLETE, 'a': reward, 'b': reward}
  mapped = rlds2reverb.map_fields(golden.stacked([steps]), at('mine.gin'))
  return mapped.element_spec['steps']['action'].shape[1]


def _read_mixture(at):
  (episode,) = jobs.read_mixture(at('mixture.gin'), at('sets')).take(1)
  return len(episode.element['steps']['reward'])


def _size(server):
  try:
    client = server.localhost_client()
    client.checkpoint()
    return client.server_info()['table'].current_size
  finally:
    server.stop()


# How many there are of what each of them reads.
_READERS = {
    'load_episodes': (
        lambda at: _steps_of(rlds2reverb.load_episodes(at('data'))),
        _NUM_STEPS,
    ),
    'load_episodes by name': (
        lambda at: _steps_of(
            rlds2reverb.load_episodes('named', data_dir=at('sets'))
        ),
        _NUM_STEPS,
    ),
    'map_fields': (_read_mapping, 2),
    'load_mapping': (
        lambda at: len(rlds2reverb.fields.load_mapping(at('mine.gin')).action),
        2,
    ),
    'load_mixture': (
        lambda at: len(
            rlds2reverb.fields.load_mixture(at('mixture.gin')).weights
        ),
        1,
    ),
    'load_statistics': (
        lambda at: rlds2reverb.statistics.load_statistics(
            at('statistics.json')
        ).num_episodes,
        1,
    ),
    'load_transforms': (
        lambda at: len(rlds2reverb.transforms.load_transforms(at('mine.gin'))),
        1,
    ),
    'read_mixture': (_read_mixture, _NUM_STEPS),
    'make_source': (
        lambda at: jobs.open_source(jobs.make_source(at('data'))).num_episodes,
        1,
    ),
    'make_source by name': (
        lambda at: jobs.open_source(
            jobs.make_source('named', data_dir=at('sets'))
        ).num_episodes,
        1,
    ),
    'describe': (
        lambda at: jobs.describe(at('checkpoint')).counts['steps'],
        _NUM_STEPS,
    ),
    'open_replay_buffer': (
        lambda at: rlds2reverb.open_replay_buffer(at('data')).num_frames(),
        _NUM_STEPS,
    ),
    'open_replay_buffer of a checkpoint': (
        lambda at: rlds2reverb.open_replay_buffer(
            at('checkpoint')
        ).num_frames(),
        _NUM_STEPS,
    ),
}
_LOCAL_READERS = {
    'open_batches': (_open_batches, 2),
    # Every format is opened by it.
    'load': (
        lambda at: _steps_of(rlds2reverb.formats.load(at('flat.npz'), 'npz')),
        _NUM_STEPS,
    ),
    'open_replay_buffer of frames': (_prepare_frames, _NUM_STEPS),
    'restore_reverb_server': (
        lambda at: _size(
            rlds2reverb.restore_reverb_server(
                at('checkpoint'), checkpoint_root=at('root')
            )
        ),
        _NUM_STEPS - 1,
    ),
    'serve_source': (
        lambda at: _size(
            jobs.serve_source(
                jobs.make_source(at('data')),
                [_TABLE],
                checkpoint_root=at('other_root'),
            )
        ),
        _NUM_STEPS - 1,
    ),
}
_PATH_WORDS = ('dir', 'path', 'root', 'folder', 'file')


def _make_folder(folder):
  """Writes the files that the functions read."""
  rlds2reverb.datasets.save_episodes(_episodes(), f'{folder}/data')
  rlds2reverb.datasets.save_episodes(
      _episodes(), f'{folder}/sets/named/1.0.0', name='named'
  )
  rlds2reverb.write_reverb_checkpoint(
      _episodes(), f'{folder}/checkpoint', _TABLE
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
    # The working directory, to which a wrong path would be relative.
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
        if isinstance(returned, str):
          self.assertEqual(returned, f'{folder}/new')
        self.assertLen(tf.io.gfile.glob(f'{folder}/{written}'), 1)
        if tf.io.gfile.exists(f'{folder}/new'):
          tf.io.gfile.rmtree(f'{folder}/new')

  # Text of a path from the root is what all other tests give.
  @pytest.mark.long
  def test_functions_accept_all_path_types_on_local_disk(self):
    _make_folder(self._home)
    os.mkdir(os.path.join(self._home, 'root'))
    ones = np.ones(_NUM_STEPS)
    np.savez(
        os.path.join(self._home, 'flat.npz'),
        **dict.fromkeys(('observations', 'actions', 'rewards'), ones),
        terminals=0 * ones,
    )
    self._check_all(
        lambda name: pathlib.Path('~') / name,
        self._home,
        {**_READERS, **_LOCAL_READERS},
        {**_WRITERS, **_LOCAL_WRITERS},
    )
    self.assertLen(os.listdir(os.path.join(self._home, 'root')), 1)
    self.assertNotIn('~', os.listdir(self._home))

  @pytest.mark.long
  def test_functions_accept_urls_or_require_local_disk(self):
    folder = 'ram://path_arguments'
    _make_folder(folder)
    path_of = lambda name: f'{folder}/{name}'
    self._check_all(path_of, folder, _READERS, _WRITERS)
    for name, (function, _) in {**_LOCAL_READERS, **_LOCAL_WRITERS}.items():
      with self.subTest(name):
        with self.assertRaisesRegex(ValueError, 'must be on the local disk'):
          function(path_of)
    _make_folder(self._home)
    with self.assertRaisesRegex(ValueError, 'checkpoint_root must be on the'):
      rlds2reverb.restore_reverb_server(
          f'{self._home}/checkpoint', checkpoint_root=path_of('root')
      )

  @parameterized.parameters(
      ('s3://bucket/', OSError),  # No such file system without tensorflow-io.
      ('foo://bucket/', ValueError),
      (pathlib.Path('gs://bucket'), ValueError),
  )
  def test_unreachable_paths_raise(self, folder, error):
    path_of = lambda name: os.path.join(folder, name)
    for name, (function, _) in {**_READERS, **_WRITERS}.items():
      with self.subTest(name), self.assertRaises(error):
        function(path_of)

  def test_every_function_with_a_path_argument_is_tested(self):
    actual = set()
    # Lazily imported names are only in `dir`.
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
          actual.add(name)
        elif parameter.name == 'file_format':
          continue
        elif any(word in parameter.name for word in _PATH_WORDS):
          self.assertNotIn('str', str(parameter.annotation), name)
    tested = {**_READERS, **_LOCAL_READERS, **_WRITERS, **_LOCAL_WRITERS}
    self.assertEqual(actual, {name.split()[0] for name in tested})


if __name__ == '__main__':
  tf.test.main()
