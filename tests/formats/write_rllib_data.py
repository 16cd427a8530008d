"""Writes tests/data/rllib: experience that RLlib itself has recorded.

    python -m tests.formats.write_rllib_data tests/data/rllib

Needs a separate environment with ray[rllib] 2.60.0, lz4, msgpack and
msgpack-numpy.
"""

import os
import shutil
import types

from absl import app
import gymnasium as gym
import msgpack
import msgpack_numpy
import numpy as np
import pyarrow as pa
from pyarrow import parquet
from ray.rllib.env import single_agent_episode
from ray.rllib.offline import json_reader
from ray.rllib.offline import json_writer
from ray.rllib.offline import offline_env_runner
from ray.rllib.policy import sample_batch

# Transitions, and how the episode ends.
_EPISODES = ((4, 'terminated'), (3, 'truncated'), (5, 'terminated'))


def _columns(index, length, end):
  """Returns the transitions of an episode, which count from `10 * index`."""
  rows = np.arange(10 * index, 10 * index + length, dtype=np.float32)
  flags = np.arange(length) == length - 1
  return {
      'obs': np.stack([rows, -rows], 1),
      'new_obs': np.stack([rows + 1, -rows - 1], 1),
      'actions': np.int64(rows) % 3,
      'rewards': rows / 2,
      'terminateds': flags & (end == 'terminated'),
      'truncateds': flags & (end == 'truncated'),
      'eps_id': np.full(length, 100 + index),
      't': np.arange(length),
  }


def _write_episodes(folder, episodes):
  """Writes what `OfflineSingleAgentEnvRunner` does with episodes.

  The second one is in two parts, of which the later one has a lookback.
  """
  os.makedirs(folder)
  parts = []
  for columns in episodes:
    episode = single_agent_episode.SingleAgentEpisode(
        id_=str(columns['eps_id'][0]),
        observation_space=gym.spaces.Box(-100, 100, (2,), np.float32),
        action_space=gym.spaces.Discrete(3),
    )
    episode.add_env_reset(columns['obs'][0], {})
    for t, length in enumerate(range(len(columns['obs']), 0, -1)):
      episode.add_env_step(
          columns['new_obs'][t],
          columns['actions'][t],
          float(columns['rewards'][t]),
          {},
          terminated=bool(columns['terminateds'][t]),
          truncated=bool(columns['truncateds'][t]),
          extra_model_outputs={'action_logp': np.float32(-length)},
      )
      if columns is episodes[1] and t == 1:
        parts.append(episode)
        episode = episode.cut(len_lookback_buffer=1)
    if columns is episodes[2]:
      episode = episode.to_numpy()
    parts.append(episode)
  rows = [
      msgpack.packb(one.get_state(), default=msgpack_numpy.encode)
      for one in parts
  ]
  # The files of the same class with `output_write_episodes=False`.
  runner = types.SimpleNamespace(
      env=types.SimpleNamespace(
          observation_space=parts[0].observation_space,
          action_space=parts[0].action_space,
      ),
      output_compress_columns=['obs', 'new_obs'],
      _samples=[],
  )
  offline_env_runner.OfflineSingleAgentEnvRunner._map_episodes_to_data(
      runner, parts
  )
  columns_folder = folder.replace('episodes', 'columns')
  os.makedirs(columns_folder)
  parquet.write_table(
      pa.Table.from_pylist(runner._samples),
      os.path.join(columns_folder, '0_000000_000000.parquet'),
  )
  # As `ray.data.from_items(rows).write_parquet`.
  table = pa.table({'item': pa.array(rows, pa.binary())})
  parquet.write_table(table, os.path.join(folder, '0_000000_000000.parquet'))
  # RLlib must read the data that was written.
  for row, part in zip(rows, parts):
    read = single_agent_episode.SingleAgentEpisode.from_state(
        msgpack.unpackb(row, object_hook=msgpack_numpy.decode)
    )
    np.testing.assert_array_equal(
        np.stack(list(read.get_observations())),
        np.stack(list(part.get_observations())),
    )


def main(argv):
  _, directory = argv
  shutil.rmtree(directory, ignore_errors=True)
  episodes = [_columns(i, *episode) for i, episode in enumerate(_EPISODES)]
  for name, packed in (
      ('packed', ('obs', 'new_obs')),
      ('plain', ()),
      ('all_packed', tuple(episodes[0])),
  ):
    folder = os.path.join(directory, name)
    writer = json_writer.JsonWriter(folder, compress_columns=packed)
    for columns in episodes:
      # A line can end within an episode.
      for part in (slice(0, 2), slice(2, None)):
        batch = {key: value[part] for key, value in columns.items()}
        writer.write(sample_batch.SampleBatch(batch))
    [file] = os.listdir(folder)
    os.rename(os.path.join(folder, file), os.path.join(folder, 'output-0.json'))
    # RLlib must read the data that was written.
    reader = json_reader.JsonReader(folder)
    actual = sample_batch.concat_samples(list(reader.read_all_files()))
    for key in episodes[0]:
      np.testing.assert_array_equal(
          actual[key], np.concatenate([columns[key] for columns in episodes])
      )
  folder = os.path.join(directory, 'table')
  os.makedirs(folder)
  joined = {
      key: np.concatenate([columns[key] for columns in episodes])
      for key in episodes[0]
  }
  table = pa.table({key: value.tolist() for key, value in joined.items()})
  parquet.write_table(table, os.path.join(folder, 'output-0.parquet'))
  _write_episodes(
      os.path.join(directory, 'episodes', 'cartpole-v1', 'run-000001-00001'),
      episodes,
  )
  folder = os.path.join(directory, 'agents')
  writer = json_writer.JsonWriter(folder)
  of_policies = {
      name: sample_batch.SampleBatch(columns)
      for name, columns in zip(('left', 'right'), episodes)
  }
  writer.write(sample_batch.MultiAgentBatch(of_policies, 7))
  [file] = os.listdir(folder)
  os.rename(os.path.join(folder, file), os.path.join(folder, 'output-0.json'))


if __name__ == '__main__':
  app.run(main)
