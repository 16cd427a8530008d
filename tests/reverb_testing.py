"""Starts real Reverb servers for tests, and reads the items of their tables."""

import contextlib
from typing import Any, NamedTuple

import numpy as np
import reverb
import tensorflow as tf
from tf_agents.specs import tensor_spec
import tree

from rlds2reverb.trajectories import specs

TABLE = 'experience'


def make_table(
    *,
    signature=None,
    max_size=1000,
    name=TABLE,
    sampler=reverb.selectors.Fifo,
    rate_limiter=None,
):
  """Returns a table that samples each item once, by default in FIFO order."""
  return reverb.Table(
      name,
      sampler=sampler(),
      remover=reverb.selectors.Fifo(),
      max_size=max_size,
      max_times_sampled=1,
      rate_limiter=rate_limiter or reverb.rate_limiters.MinSize(1),
      signature=signature,
  )


@contextlib.contextmanager
def reverb_server(data, info=None, *, max_size=1000, tables=(TABLE,)):
  """Starts a server and yields a client for it.

  Args:
    data: the data set whose frames are inserted, or the spec of a frame.
    info: the `policy_info_fn` of the data set.
    max_size: the maximum number of items of each table.
    tables: the names of the tables.

  Yields:
    The client. Each table samples its items once, in the order of insertion.
  """
  server = reverb.Server(
      [
          make_table(
              signature=signature_of(data, info), max_size=max_size, name=name
          )
          for name in tables
      ]
  )
  try:
    yield reverb.Client(f'localhost:{server.port}')
  finally:
    server.stop()


def signature_of(data, info=None):
  """Returns the table signature for a data set or for the spec of a frame."""
  if isinstance(data, tf.data.Dataset):
    data = specs.create_trajectory_data_spec(data, info)
  return tensor_spec.add_outer_dim(data)


def size(client, table=TABLE):
  return client.server_info()[table].current_size


class Contents(NamedTuple):
  """The contents of a table.

  Attributes:
    items: a tuple for each item, in the order of sampling: its priority, and
      the dtype, shape and bytes of each column.
    num_episodes: the number of episodes to which the items belong.
    signature: the signature of the table.
  """

  items: list[Any]
  num_episodes: int
  signature: Any


def contents(client, table=TABLE):
  """Samples all items of a table, which removes them, as `Contents`."""
  info = client.server_info()[table]
  items = []
  if info.current_size:
    for sample in client.sample(
        table, num_samples=info.current_size, emit_timesteps=False
    ):
      columns = tuple(
          (leaf.dtype.str, leaf.shape, bytes_of(leaf)) for leaf in sample.data
      )
      items.append((float(np.ravel(sample.info.priority)[0]), columns))
  return Contents(items, info.num_episodes, info.signature)


def bytes_of(leaf):
  return tuple(leaf.ravel()) if leaf.dtype == object else leaf.tobytes()


def drain(client, table=TABLE):
  """Samples all items of a table, oldest first, as lists of frames."""
  return [
      [
          tree.map_structure(lambda leaf: leaf[step], sample.data)
          for step in range(len(sample.data.step_type))
      ]
      for sample in client.sample(
          table,
          num_samples=size(client, table),
          emit_timesteps=False,
          unpack_as_table_signature=True,
      )
  ]


def take_rewards(client, table=TABLE):
  """Samples all items of a table; returns the rewards of each item."""
  return [
      [float(frame.reward) for frame in item] for item in drain(client, table)
  ]


def pairs(episodes):
  """Returns the rewards of all pairs of consecutive frames of flat episodes."""
  return [
      episode['reward'][step : step + 2].tolist()
      for episode in episodes
      for step in range(len(episode['reward']) - 1)
  ]
