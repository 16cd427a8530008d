"""A TF-Agents replay buffer over a table of a Reverb server."""

from __future__ import annotations

import functools
from typing import Any, Optional, Union
import weakref

import tensorflow as tf
from tf_agents.replay_buffers import reverb_replay_buffer

from rlds2reverb.episodes import graphs
from rlds2reverb.replay import importance
from rlds2reverb.replay import reverb
from rlds2reverb.replay.server import priority_updates
from rlds2reverb.replay.server import sampling
from rlds2reverb.replay.server import table_kinds
from rlds2reverb.replay.server import tables as tables_lib


class ServerReplayBuffer(
    importance.SampledReplayBuffer, reverb_replay_buffer.ReverbReplayBuffer
):
  """Samples a table of a Reverb server, and raises an error if nothing comes.

  It is a `ReverbReplayBuffer` of TF-Agents that also has the methods of an
  `EpisodesReplayBuffer`: `get_next`, `update_priorities`, `importance_weights`,
  `num_items` and `close`.

  Its data sets are those of `sample_reverb_servers`: they raise an error where
  a server has not answered, or its table has given nothing, for `timeout`
  seconds. If the server comes back before, sampling goes on.
  """

  def __init__(
      self,
      server: Union[str, reverb.Client, reverb.Server],
      table_name: str,
      sequence_length: Optional[int] = None,
      *,
      timeout: float = tables_lib.SECONDS_TO_ANSWER,
      owns_server: bool = False,
  ):
    """Asks the server for the table, whose signature is the spec of a frame.

    Args:
      server: the server: its address, `host:port`, a client of it, or itself.
      table_name: the name of the table. Its signature must be one of
        `Trajectory`s.
      sequence_length: the number of frames of an item, or None if it varies, or
        if the `num_steps` of `as_dataset` says it.
      timeout: how many seconds the server may be silent, or its table empty.
      owns_server: whether the server stops with this replay buffer.

    Raises:
      ConnectionError: if there is no answer from the server.
      ValueError: if there is no such table, it has another signature, or
        `timeout` is not positive.
    """
    self._timeout = timeout
    address = tables_lib.address_of(server)
    info = tables_lib.table_infos(address, [table_name], timeout)[table_name]
    super().__init__(
        tf.nest.map_structure(
            lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype, leaf.name),
            table_kinds.trajectory_signature(table_name, info.signature),
        ),
        table_name,
        sequence_length,
        server_address=address,
    )
    # Nothing else holds a server that was started here. So the server ends with
    # the replay buffer, while Reverb's modules are still there.
    self._local_server = server if isinstance(server, reverb.Server) else None
    self._finalizer = weakref.finalize(self, _stop, server, owns_server)
    # A cache and no dictionary: TensorFlow would save a dictionary in a
    # checkpoint.
    self._iterator = functools.lru_cache(maxsize=None)(
        lambda batch_size, num_steps: iter(
            self._as_dataset(batch_size, num_steps, None, None)
        )
    )

  @property
  def num_items(self) -> int:
    """The number of items that can be drawn."""
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
    """Updates the priorities of items that were sampled.

    It works eagerly and in a `tf.function`. A batch that was fetched before may
    still come. Items that are not in the table any more are left out.

    Args:
      keys: the `key` of the `SampleInfo` of a batch, uint64 `[B, L]` or `[B]`.
      priorities: the new priorities, numbers from 0 up, `[B]`.

    Raises:
      ValueError: if the table does not sample or remove by priorities, or if
        there is not one priority for each key.
      InvalidArgumentError: if a priority is negative, NaN or infinite. Nothing
        is changed then.
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
          ' which a Reverb server does not tell. Use "batch".'
      )
    return {}

  def close(self) -> None:
    """Stops the server, if it is this replay buffer's own."""
    self._local_server = None
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
    del num_parallel_calls  # One stream samples as fast as the server can.
    length = self._sequence_length
    if length and num_steps and num_steps != length:
      raise ValueError(
          f'num_steps is {num_steps}, but the items have {length}. Make the'
          f' replay buffer with Windows({num_steps}).'
      )
    dataset = sampling.sample_reverb_servers(
        self._server_address,
        self._table_name,
        num_steps or length,
        sample_batch_size if sequence_preprocess_fn is None else None,
        timeout=self._timeout,
    )
    # A server of its own lives as long as its data sets.
    dataset.replay_buffer = self
    if sequence_preprocess_fn is not None:
      preprocess = graphs.as_user_code(sequence_preprocess_fn)
      dataset = dataset.map(lambda frames, info: (preprocess(frames), info))
      if sample_batch_size is not None:
        dataset = dataset.batch(sample_batch_size, drop_remainder=True)
    return dataset

  def _next_batch(self, sample_batch_size, num_steps):
    with tf.init_scope():
      iterator = self._iterator(sample_batch_size, num_steps)
    return next(iterator)


def _stop(server: Any, owns_server: bool) -> None:
  if owns_server:
    server.stop()
