"""A TF-Agents replay buffer over a table of a Reverb server."""

from __future__ import annotations

import functools
from typing import Any
import weakref

import tensorflow as tf
from tf_agents.replay_buffers import reverb_replay_buffer

from rlds2reverb.episodes import pipelines
from rlds2reverb.replay import base
from rlds2reverb.replay import reverb
from rlds2reverb.replay.server import priority_updates
from rlds2reverb.replay.server import sampling
from rlds2reverb.replay.server import tables as tables_lib


class ServerReplayBuffer(
    base.SampledReplayBuffer, reverb_replay_buffer.ReverbReplayBuffer
):
  """A TF-Agents `ReverbReplayBuffer` with timeouts and priority updates.

  It also has the methods of an `EpisodesReplayBuffer`: `get_next`,
  `update_priorities`, `importance_weights`, `num_items` and `close`.

  Its data sets are made by `sample_reverb_servers`: they raise an error if the
  server has not answered, or its table has given no item, for `timeout`
  seconds. If the server is restarted within that time, sampling resumes.
  """

  def __init__(
      self,
      server: str | reverb.Client | reverb.Server,
      table_name: str,
      sequence_length: int | None = None,
      *,
      timeout: float = tables_lib.SECONDS_TO_ANSWER,
      owns_server: bool = False,
  ):
    """Creates the replay buffer with the spec of the table's signature.

    Args:
      server: the server: its address, `host:port`, a client of it, or the
        server itself.
      table_name: the name of the table. Its signature must be a `Trajectory`.
      sequence_length: the number of frames of an item, or None if it varies or
        is passed to `as_dataset` as `num_steps`.
      timeout: how many seconds the server may be silent, or its table empty.
      owns_server: whether to stop the server when the replay buffer is closed
        or deleted.

    Raises:
      ConnectionError: if the server does not answer.
      ValueError: if the server has no such table, the table has another
        signature, or `timeout` is not positive.
    """
    self._timeout = timeout
    address = tables_lib.address_of(server)
    info = tables_lib.table_infos(address, [table_name], timeout)[table_name]
    super().__init__(
        tf.nest.map_structure(
            lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype, leaf.name),
            tables_lib.to_trajectory_signature(table_name, info.signature),
        ),
        table_name,
        sequence_length,
        server_address=address,
    )
    # Keeps a server alive that `open_replay_buffer` started. At the end of the
    # process it must be deleted while Reverb's modules are still loaded.
    self._local_server = server if isinstance(server, reverb.Server) else None
    self._finalizer = weakref.finalize(
        self, _release_server, weakref.ref(self), server, owns_server
    )
    # A cache instead of a dictionary, which TensorFlow would track for its
    # checkpoints.
    self._iterator = functools.lru_cache(maxsize=None)(
        pipelines.weak_method(self, '_make_iterator')
    )

  @property
  def num_items(self) -> int:
    """The number of items in the table."""
    return self.get_table_info().current_size

  def get_table_info(self) -> Any:
    """Returns the table's `TableInfo`.

    Raises:
      ConnectionError: if the server does not answer.
    """
    name = self._table_name
    address = self._server_address
    return tables_lib.table_infos(address, [name], self._timeout)[name]

  def update_priorities(self, keys: Any, priorities: Any) -> None:
    """Updates the priorities of sampled items.

    It works eagerly and in a `tf.function`. It has no effect on batches that
    were already prefetched. Items that were removed are ignored.

    Args:
      keys: the `key` of the `SampleInfo` of a batch, uint64 `[B, L]` or `[B]`.
      priorities: the new priorities, numbers from 0 up, `[B]`.

    Raises:
      ValueError: if the table does not sample or remove by priorities, or if
        there is not one priority for each key.
      InvalidArgumentError: if a priority is negative, NaN or infinite. No
        priority is changed then.
      ConnectionError: if the server does not answer; in a graph, an
        UnknownError.
    """
    self._updater.update_priorities(keys, priorities)

  def _importance_arguments(self, sample_info, normalization):
    if not self._table_info.sampler_options.HasField('prioritized'):
      raise ValueError(
          f'Table {self._table_name!r} does not sample by priorities. Create it'
          ' with create_reverb_table(kind="prioritized").'
      )
    if normalization == 'table':
      raise ValueError(
          'normalization="table" needs the smallest priority of the table,'
          ' which a Reverb server does not report. Use "batch".'
      )
    return {}

  def close(self) -> None:
    """Stops the server if this replay buffer owns it."""
    self._finalizer()

  @functools.cached_property
  def _updater(self) -> priority_updates.PriorityUpdater:
    with tf.init_scope():
      return priority_updates.PriorityUpdater(
          self._server_address, self._table_name, timeout=self._timeout
      )

  def _as_dataset(
      self,
      sample_batch_size,
      num_steps,
      sequence_preprocess_fn,
      num_parallel_calls,
  ):
    del num_parallel_calls  # One stream already saturates the server.
    length = self._sequence_length
    if length and num_steps and num_steps != length:
      raise ValueError(
          f'num_steps is {num_steps}, but the items have {length}. Create the'
          f' replay buffer with Windows({num_steps}).'
      )
    dataset = sampling.sample_reverb_servers(
        self._server_address,
        self._table_name,
        num_steps or length,
        sample_batch_size if sequence_preprocess_fn is None else None,
        timeout=self._timeout,
    )
    # A server that this replay buffer owns lives as long as its data sets.
    dataset.must_live = self
    if sequence_preprocess_fn is not None:
      preprocess = pipelines.as_user_code(sequence_preprocess_fn)
      dataset = dataset.map(
          pipelines.as_library_code(
              lambda frames, info: (preprocess(frames), info)
          )
      )
      if sample_batch_size is not None:
        dataset = dataset.batch(sample_batch_size, drop_remainder=True)
    return dataset

  def _make_iterator(self, sample_batch_size, num_steps):
    return iter(self._as_dataset(sample_batch_size, num_steps, None, None))

  def _next_batch(self, sample_batch_size, num_steps):
    with tf.init_scope():
      iterator = self._iterator(sample_batch_size, num_steps)
    return next(iterator)


def _release_server(buffer_ref, server, owns_server) -> None:
  """Stops an own server, and drops it from the buffer if that still exists."""
  if owns_server:
    server.stop()
  replay_buffer = buffer_ref()
  if replay_buffer is not None:
    replay_buffer._local_server = None
