"""Reverb servers for the benchmarks, and pushes that are timed."""

import contextlib
import tempfile
import time
from typing import Any, Callable, Iterator, Optional

import reverb
import tensorflow as tf
from tf_agents.replay_buffers import reverb_utils
from tf_agents.specs import tensor_spec

from benchmarks import data
from rlds2reverb import rlds_to_reverb

TABLE = 'benchmark'
SEQUENCE_LENGTH = 2


def signature(episodes: tf.data.Dataset) -> Any:
  """Returns the signature of a table for the frames of `episodes`."""
  return tensor_spec.add_outer_dim(
      rlds_to_reverb.create_trajectory_data_spec(episodes)
  )


def num_items(steps: int, length: Optional[int] = None) -> int:
  """Returns the items of whole episodes: their first frames end none.

  Args:
    steps: how many steps there are.
    length: how many steps an episode has; by default `data.EPISODE_LENGTH`.
  """
  return steps - data.count_episodes(steps, length) * (SEQUENCE_LENGTH - 1)


def check_items(
    client: reverb.Client, steps: int, length: Optional[int] = None
) -> None:
  """Raises a RuntimeError unless the table has the items of `steps`."""
  items = client.server_info()[TABLE].current_size
  expected = num_items(steps, length)
  if items != expected:
    raise RuntimeError(f'Expected {expected} items, but got {items}.')


@contextlib.contextmanager
def serve(table_signature: Any, max_size: int) -> Iterator[reverb.Server]:
  """Serves an empty table, within the context."""
  table = reverb.Table(
      name=TABLE,
      sampler=reverb.selectors.Uniform(),
      remover=reverb.selectors.Fifo(),
      max_size=max_size,
      rate_limiter=reverb.rate_limiters.MinSize(1),
      signature=table_signature,
  )
  # A server makes a directory for its checkpoints, and does not remove it.
  with tempfile.TemporaryDirectory() as directory:
    server = reverb.Server(
        tables=[table],
        checkpointer=reverb.checkpointers.DefaultCheckpointer(path=directory),
    )
    try:
      yield server
    finally:
      server.stop()


def push(
    push_fn: Callable[..., int],
    episodes: tf.data.Dataset,
    client: reverb.Client,
    **kwargs: Any,
) -> None:
  """Pushes `episodes`; returns when the server has confirmed them."""
  observer = reverb_utils.ReverbAddTrajectoryObserver(
      client, TABLE, sequence_length=SEQUENCE_LENGTH
  )
  push_fn(episodes, observer, **kwargs)
  observer.flush()
  observer.close()


def time_insert(
    insert: Callable[[reverb.Client], None],
    table_signature: Any,
    steps: int,
    length: Optional[int] = None,
) -> float:
  """Calls `insert` with a client of a new server; returns the seconds."""
  with serve(table_signature, steps) as server:
    client = reverb.Client(f'localhost:{server.port}')
    start = time.perf_counter()
    insert(client)
    seconds = time.perf_counter() - start
    check_items(client, steps, length)
  return seconds
