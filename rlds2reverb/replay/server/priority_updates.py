"""Updates the priorities of sampled items from a train step."""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Any

import grpc
import tensorflow as tf

from rlds2reverb.episodes import errors
from rlds2reverb.replay import priorities as priorities_lib
from rlds2reverb.replay import protos
from rlds2reverb.replay import reverb
from rlds2reverb.replay.server import tables as tables_lib

_METHOD = '/deepmind.reverb.ReverbService/MutatePriorities'


class PriorityUpdater:
  """Updates the priorities of sampled items, and tracks the highest priority.

      updater = replay.PriorityUpdater('localhost:8000', 'experience')

      @tf.function
      def train_step(trajectories, sample_info):
        weights = replay.importance_weights(sample_info, beta=0.4)
        loss_info = agent.train(trajectories, weights[:, 0])
        priorities = tf.abs(loss_info.extra.td_error)
        updater.update_priorities(sample_info.key, priorities)

  Unlike `reverb.TFClient.update_priorities`, it does not wait forever for a
  server that died, and refuses priorities that are negative or NaN.

  Attributes:
    highest: the highest priority so far, a float64 scalar variable. Use it as
      the priority of new items, so that each is soon sampled once:
      `TableItems(..., priority=lambda _: updater.highest)`, or
      `observer.update_priority(float(updater.highest))`.
  """

  def __init__(
      self,
      servers: str | reverb.Client | reverb.Server | Sequence[Any],
      table_name: str,
      *,
      initial_priority: float = 1.0,
      timeout: float = tables_lib.SECONDS_TO_ANSWER,
  ):
    """Checks that the servers have the table.

    Args:
      servers: a server: its address, `host:port`, a client of it, or the server
        itself; or a list of several that share the items. Each receives all
        priorities, and ignores keys that it does not have.
      table_name: the name of the table.
      initial_priority: the value of `highest` before any update, from 0 up.
      timeout: how many seconds a server may take to answer.

    Raises:
      ConnectionError: if a server does not answer.
      ValueError: if a server has no such table, if the table's selectors do not
        use priorities, or if the initial priority is negative, infinite, or
        outside the range of the table.
    """
    addresses = tables_lib.addresses_of(servers)
    if not 0 <= initial_priority < math.inf:
      raise ValueError(
          'initial_priority must be a number from 0 up, but is'
          f' {initial_priority}.'
      )
    self._ranges = []
    self._channels = {}
    for address in addresses:
      info = tables_lib.table_infos(address, [table_name], timeout)[table_name]
      if not any(
          options.HasField(kind)
          for options in (info.sampler_options, info.remover_options)
          for kind in ('prioritized', 'heap')
      ):
        raise ValueError(
            f'Table {table_name!r} of {address} neither samples nor removes'
            ' items by their priorities. Create it with'
            ' create_reverb_table(kind="prioritized").'
        )
      priority_range = priorities_lib.PriorityRange.of_table(info)
      priority_range.check(initial_priority)
      self._ranges.append(priority_range)
      self._channels[address] = tables_lib.open_channel(address)
    self.highest = tf.Variable(initial_priority, False, dtype=tf.float64)
    self._table_name = table_name
    self._timeout = timeout

  def update_priorities(self, keys: Any, priorities: Any) -> None:
    """Sends new priorities, and waits until the servers have applied them.

    It works eagerly and in a `tf.function`. If an item is in the batch twice,
    its last priority counts. Items that were removed are ignored.

    Args:
      keys: the `key` of the batch's `SampleInfo`, `[B]` or `[B, T]`.
      priorities: numbers from 0 up, of any float dtype, `[B]`.

    Raises:
      ValueError: if the shapes do not match.
      InvalidArgumentError: if a priority is negative, infinite or NaN, or too
        large or small for the `priority_exponent` of the table. No priority is
        sent then. In a graph, the error is raised at run time.
      ConnectionError: if a server does not answer within `timeout` seconds; in
        a graph, an UnknownError. The message names the server.
    """
    keys = tf.convert_to_tensor(keys, tf.uint64)
    if keys.shape.rank == 2:  # All steps of an item have its key.
      keys = keys[:, 0]
    # tf.cast alone would convert Python floats to float32 first.
    priorities = tf.cast(
        tf.convert_to_tensor(priorities, dtype_hint=tf.float64), tf.float64
    )
    if priorities.shape.rank != 1 or not keys.shape.is_compatible_with(
        priorities.shape
    ):
      raise ValueError(
          'priorities must be one number for each item of the batch,'
          f' {keys.shape}, but are {priorities.shape}. sequence_priority'
          ' combines the priorities of the steps of an item.'
      )
    is_valid = (priorities >= 0) & tf.math.is_finite(priorities)
    assertions = errors.check_true(
        tf.reduce_all(is_valid),
        'Priorities must be finite numbers from 0 up, but some are',
        tf.boolean_mask(priorities, ~is_valid),
        summarize=10,
    )
    for priority_range in self._ranges:
      is_inside = priority_range.contains(priorities)
      assertions += errors.check_true(
          tf.reduce_all(is_inside),
          'Some priorities are too large or too small.'
          f' {priority_range.advice()} The first of them are:',
          tf.boolean_mask(priorities, is_valid & ~is_inside),
          summarize=10,
      )
    with tf.control_dependencies(assertions):
      highest = tf.maximum(self.highest, tf.reduce_max(priorities))
    self.highest.assign(highest)
    with tf.control_dependencies([highest]):
      tf.numpy_function(self._send, [keys, priorities], [])

  def _send(self, keys, priorities):
    """Sends priorities to all servers concurrently; called with arrays."""
    request = protos.MutatePrioritiesRequest(
        table=[self._table_name],
        updates=[
            protos.KeyWithPriority(
                key=key, priority=priority
            ).SerializeToString()
            for key, priority in zip(keys.tolist(), priorities.tolist())
        ],
    ).SerializeToString()
    calls = [
        channel.unary_unary(_METHOD).future(
            request, timeout=self._timeout, wait_for_ready=True
        )
        for channel in self._channels.values()
    ]
    for address, call in zip(self._channels, calls):
      try:
        call.result()
      except grpc.RpcError as error:
        raise ConnectionError(
            f'The Reverb server at {address} did not accept new priorities for'
            f' table {self._table_name!r}: {error.code()}: {error.details()}.'
            ' Start it again, or sample the other servers without it.'
        ) from None
