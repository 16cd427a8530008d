"""Tests that bulk inserts and checkpoints equal the items of observers."""

import os

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.replay_buffers import reverb_utils

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import items
from rlds2reverb.replay.checkpoint import serve
from rlds2reverb.replay.checkpoint import write
from rlds2reverb.replay.server import insert
from rlds2reverb.replay.server import push
from rlds2reverb.trajectories import options as options_lib
from tests import golden
from tests import reverb_testing

_MAX_SIZE = 10_000
_WINDOWS = windows_lib.Windows


def _steps(length, stride, end):
  """Returns an observer of windows in an episode, its settings, and ours."""
  return (
      reverb_utils.ReverbAddTrajectoryObserver,
      dict(
          sequence_length=length,
          stride_length=stride,
          pad_end_of_episodes=end != 'drop',
          tile_end_of_episodes=end == 'tile',
          priority=length,
      ),
      dict(windows=_WINDOWS(length, stride, end), priority=length),
  )


def _crossing(length, stride):
  return (
      reverb_utils.ReverbTrajectorySequenceObserver,
      dict(sequence_length=length, stride_length=stride),
      dict(windows=_WINDOWS(length, stride, 'cross')),
  )


def _episodes(max_sequence_length, bypass, priority):
  return (
      reverb_utils.ReverbAddEpisodeObserver,
      dict(
          max_sequence_length=max_sequence_length,
          bypass_partial_episodes=bypass,
          priority=priority,
      ),
      dict(
          windows=None,
          max_sequence_length=max_sequence_length,
          bypass_longer_episodes=bypass,
          priority=priority,
      ),
  )


_SETTINGS = {
    'pairs': _steps(2, 1, 'drop'),
    'single': _steps(1, 1, 'tile'),
    'strided': _steps(3, 2, 'drop'),
    'padded': _steps(5, 3, 'pad'),
    'tiled': _steps(5, 1, 'tile'),
    'long': _steps(80, 40, 'pad'),
    'long_tiled': _steps(80, 7, 'tile'),
    'cross': _crossing(2, 1),
    'long_cross': _crossing(70, 3),
    'episodes': _episodes(1000, False, 0.5),
    'bypassed': _episodes(9, True, 1.0),
}


def _episode(rng, length):
  """An episode of columns of every kind."""
  step = np.arange(length)
  observation = {
      'image': rng.integers(0, 256, (length, 6, 5, 3)).astype(np.uint8),
      'nested': (rng.normal(size=(length, 2)), {'none': np.zeros((length, 0))}),
      'text': np.array([rng.bytes(int(n)) for n in step % 200], object),
      'half': rng.normal(size=length).astype(np.float16),
  }
  return {
      'observation': observation,
      'action': {
          'is_open': rng.integers(0, 2, length).astype(bool),
          'gear': rng.integers(-128, 128, (length, 1)).astype(np.int8),
      },
      'reward': rng.normal(size=length).astype(np.float32),
      'discount': rng.uniform(size=length).astype(np.float32),
      'is_first': step == 0,
      'is_last': step == length - 1,
      'is_terminal': (step == length - 1) & bool(rng.integers(2)),
  }


def _policy_info(current, following):
  return {
      'next_gear': following['action']['gear'],
      'is_last': current['is_last'],
  }


def _pushed(data, names, method, info, rules=None):
  """Pushes to observers with several settings; returns their items by name."""
  options = options_lib.ConversionOptions(rules, one_episode_chunks=True)
  with reverb_testing.reverb_server(
      data, info, max_size=_MAX_SIZE, tables=names
  ) as client:
    for name in names:
      kind, settings, _ = _SETTINGS[name]
      observer = kind(client, name, **settings)
      push.push_rlds_to_reverb(
          data, observer, info, options=options, method=method
      )
      observer.close()
    return {name: reverb_testing.contents(client, name) for name in names}


def _written(data, names, path, info, **options):
  """Writes to a server and to a checkpoint in one pass; returns the items."""
  options = options_lib.ConversionOptions(policy_info_fn=info, **options)
  tables = [items.TableItems(name, **_SETTINGS[name][2]) for name in names]
  with reverb_testing.reverb_server(
      data, info, max_size=_MAX_SIZE, tables=names
  ) as client:
    insert.write_rlds_to_reverb(data, client, tables, options=options)
    found = {name: reverb_testing.contents(client, name) for name in names}
  signature = reverb_testing.signature_of(data, info)
  described = [
      reverb_testing.make_table(
          signature=signature, max_size=_MAX_SIZE, name=name
      )
      for name in names
  ]
  write.write_reverb_checkpoint(
      data, path, tables, options=options, reverb_tables=described
  )
  server = serve.restore_reverb_server(path)
  client = server.localhost_client()
  restored = {name: reverb_testing.contents(client, name) for name in names}
  server.stop()
  return found, restored


class EqualityTest(parameterized.TestCase, tf.test.TestCase):

  def check_same(self, actual, expected):
    self.assertEqual(actual.keys(), expected.keys())
    for name, contents in expected.items():
      self.assertNotEmpty(contents.items)
      # In the same order, too.
      self.assertEqual(actual[name], contents, name)

  @parameterized.parameters(
      ((1, 2, 5, 80, 1, 9, 150, 3), tuple(_SETTINGS), None),
      ((3000, 1, 700), ('strided', 'long_tiled'), _policy_info),
  )
  @pytest.mark.long
  def test_items_of_observers(self, lengths, names, info):
    rng = np.random.default_rng(7)
    data = golden.stacked([_episode(rng, length) for length in lengths])
    expected = _pushed(data, names, 'observer', info)
    self.check_same(_pushed(data, names, 'bulk', info), expected)
    crossing = [name for name in names if 'cross' in name]
    for number, group in enumerate((set(names) - set(crossing), crossing)):
      for chunk_length in (None, 4) if group else ():
        path = os.path.join(self.create_tempdir().full_path, str(number))
        for actual in _written(
            data, group, path, info, chunk_length=chunk_length
        ):
          for name in group:
            self.assertEqual(actual[name].items, expected[name].items, name)

  @parameterized.parameters('cross', 'tiled', 'episodes')
  @pytest.mark.few(1)
  def test_episodes_in_the_form_of_tf_agents(self, name):
    # An empty episode; a stream that begins at a MID step.
    rng = np.random.default_rng(3)
    episodes = [_episode(rng, length) for length in (3, 0, 5, 1)]
    episodes[0]['is_first'][0] = False
    settings = golden.stacked(episodes), (name,)
    rules = options_lib.ConversionRules(validation='tf_agents')
    self.check_same(
        _pushed(*settings, 'bulk', _policy_info, rules),
        _pushed(*settings, 'observer', _policy_info, rules),
    )


if __name__ == '__main__':
  tf.test.main()
