"""Samples a table of one Reverb server, or of several servers like one table.

Reverb's sampling operations wait forever for a server that died, whatever
`rate_limiter_timeout_ms` is. If a table gives no item for that long, they end
their data set without an error. For this reason the servers are polled while a
table is sampled, and at the end of the data set:

    samples of server 0 --+
    samples of server 1 --+--> choose by size --> batch --+
                                                          +--> validate
                              ticks, which poll servers --+
"""

from __future__ import annotations

from collections.abc import Sequence
import time
from typing import Any

import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import mixtures
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import errors
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import pipelines
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.replay import priorities as priorities_lib
from rlds2reverb.replay import reverb
from rlds2reverb.replay.server import tables as tables_lib

_DRAWS = 64  # How many draws of servers are made together.
# The step type of padding, which no step has.
_NO_STEP = -1
# Freeing an iterator takes up to three ticks, so ticks are short. Only every
# tenth tick calls Python to poll the servers: a thread that is in Python when
# the process ends never returns.
_TICK_MICROSECONDS = 50_000
_TICKS_PER_POLL = 10
_POLL_TIMEOUT_SECONDS = 1
# The server index of the element after the last batch.
_END = -1


@pipelines.do_not_convert
def sample_reverb_servers(
    servers: str | reverb.Client | reverb.Server | Sequence[Any],
    table_name: str,
    sequence_length: int | None,
    batch_size: int | None = None,
    *,
    drop_remainder: bool = True,
    timeout: float = tables_lib.SECONDS_TO_ANSWER,
    seed: int = 0,
) -> tf.data.Dataset:
  """Samples a table of one server, or of several servers like one table.

  The elements equal TF-Agents' `ReverbReplayBuffer.as_dataset`. An item
  is drawn from a server with probability proportional to the size of its table
  when the data set is created, and there by the table's own sampler. So uniform
  tables of 100 and 300 items are sampled like one table of 400. If tables grow,
  create the data set again. If the tables of several servers are all empty at
  first, each server is drawn equally often, so each must receive items.

  Where `as_dataset` waits forever or ends silently, this data set raises an
  error: if a server died, if no item reaches the table, if a rate limiter
  blocks sampling, or if all priorities are 0.

  The data set of a table that removes sampled items (of kind `"queue"` or
  `"one_pass"`) ends when each server in turn has given no item for `timeout`
  seconds: choose a short timeout for a pass over recorded data. Several
  trainers may share such a table: each item goes to one of them. Items that
  were prefetched but not yet returned are lost with the iterator.

  Args:
    servers: a server: its address, `host:port`, a client of it, or the server
      itself; or a list of several.
    table_name: the name of the table.
    sequence_length: the number of frames of every item, or None if it varies,
      which needs `batch_size=None`.
    batch_size: the number of items of a batch, or None for single items.
    drop_remainder: whether to drop the last batch if it is not full. The
      default is True, since most tables never end, and batches then have a
      static shape.
    timeout: how many seconds a server may be silent, or its table empty, before
      an error; plus up to two seconds.
    seed: the seed of the choice of servers. The samplers of Reverb take no
      seed.

  Returns:
    A data set of pairs of trajectories, `[B, T, ...]`, and Reverb's
    `SampleInfo`, `[B, T]`. With several servers, `probability` and `table_size`
    refer to all their tables together.

  Raises:
    ConnectionError: if a server does not answer. While iterating, an
      UnknownError, which names the server.
    ValueError: if a server has no such table, if the table's signature is not
      of trajectories or differs between servers, or if an argument is not
      valid.
    InvalidArgumentError: while iterating, if the table gives no item; if items
      have another length; or if a table that removes sampled items never held
      enough for a batch.
  """
  for name, value in (
      ('sequence_length', sequence_length),
      ('batch_size', batch_size),
  ):
    if value is not None:
      checks.check_positive(name, value)
  if batch_size is not None and sequence_length is None:
    raise ValueError(
        'Items of a batch have one length: pass sequence_length, or sample'
        ' single items and batch them with padded_batch.'
    )
  monitor = _TableMonitor(tables_lib.addresses_of(servers), table_name, timeout)
  weights = tf.constant(monitor.server_weights())
  batches = _draw_batches(monitor, weights, batch_size, drop_remainder, seed)
  shape = [batch_size if drop_remainder else None, sequence_length]
  samples = _poll_while_sampling(batches, monitor).map(
      lambda sample, server: _validate(sample, server, monitor, weights, shape)
  )
  return samples if batch_size is not None else samples.unbatch()


class _TableMonitor:
  """Requests the state of a table from its servers while it is sampled.

  Attributes:
    table_name: the name of the table.
    addresses: the addresses of the servers.
    timeout: how many seconds a server may be silent, or a table empty.
    infos: the `TableInfo` of each server when the monitor was created.
    removes_sampled: whether the table removes items after sampling them.
  """

  def __init__(self, addresses: list[str], table_name: str, timeout: float):
    """Requests the first `TableInfo`s.

    Args:
      addresses: the addresses of the servers.
      table_name: the name of the table.
      timeout: how many seconds a server may be silent, or a table empty.

    Raises:
      ConnectionError: if a server does not answer.
      ValueError: if a server has no such table.
    """
    self.table_name = table_name
    self.addresses = addresses
    self.timeout = timeout
    self.infos = [self._table_info(address, timeout) for address in addresses]
    self.removes_sampled = any(
        info.max_times_sampled > 0 for info in self.infos
    )
    self._silent_since: dict[str, float] = {}

  def _table_info(self, address, timeout) -> Any:
    name = self.table_name
    return tables_lib.table_infos(address, [name], timeout)[name]

  def server_weights(self) -> np.ndarray:
    """Returns the initial number of items of each server, float64 `[S]`.

    If no table can be sampled yet, or sampled items are removed, an empty table
    counts as one item, so that later items are sampled.
    """
    sizes = np.array([info.current_size for info in self.infos], np.float64)
    min_sizes = [i.rate_limiter_info.min_size_to_sample for i in self.infos]
    samplable = np.where(sizes >= min_sizes, sizes, 0.0)
    if self.removes_sampled or not samplable.any():
      return np.maximum(sizes, 1.0)
    return samplable

  def poll(self) -> None:
    """Requests the state of the table from each server.

    Raises:
      ConnectionError: if a server has been silent for `timeout` seconds.
      ValueError: if a server no longer has the table.
    """
    for address in self.addresses:
      start = time.monotonic()
      try:
        self._table_info(address, _POLL_TIMEOUT_SECONDS)
        self._silent_since.pop(address, None)
      except ConnectionError:
        since = self._silent_since.setdefault(address, start)
        seconds = time.monotonic() - since
        if seconds < self.timeout:
          continue
        self._silent_since.clear()
        raise ConnectionError(
            f'The Reverb server at {address} died while its table'
            f' {self.table_name!r} was sampled, or cannot be reached: it has'
            f' not answered for {seconds:.0f} seconds. Start it again, and then'
            ' the data set.'
        ) from None

  def check_end(self, server: int, min_items: int) -> None:
    """Raises an error unless a data set that timed out is at its end.

    Args:
      server: the index of the server whose table gave no item.
      min_items: the minimum number of items that the servers must have had.

    Raises:
      ConnectionError: if a server does not answer.
      ValueError: if the table still holds items, or never held enough.
    """
    infos = [
        self._table_info(address, self.timeout) for address in self.addresses
    ]
    # A table restored from a checkpoint may hold more items than it counted.
    total = sum(
        max(tables_lib.num_inserted(info), info.current_size) for info in infos
    )
    info, limiter = infos[server], infos[server].rate_limiter_info
    if not (self.removes_sampled and total) or info.current_size:
      raise ValueError(
          f'Table {self.table_name!r} gave no item for {self.timeout:g}'
          f' seconds: {self.addresses[server]} holds {info.current_size}, and'
          ' its rate limiter has'
          f' min_size_to_sample={limiter.min_size_to_sample},'
          f' samples_per_insert={limiter.samples_per_insert:g} and'
          f' min_diff={limiter.min_diff:g}. Write items into the table; a'
          ' TableItems names its table, and episodes shorter than an item'
          ' have no items. Or create the table with the MinSize rate limiter.'
      )
    if total < min_items:
      raise ValueError(
          f'A batch of {min_items} is more than the {total} items that table'
          f' {self.table_name!r} of {", ".join(self.addresses)} ever held, each'
          ' of which is sampled once. Choose a smaller batch_size, or'
          ' drop_remainder=False.'
      )


def _draw_batches(monitor, weights, batch_size, drop_remainder, seed):
  """Returns batches of samples, `[B, T, ...]`, and server indices, `[B]`.

  Items that are shorter than others of their batch are padded with steps of the
  type `_NO_STEP`.
  """
  signature = _find_signature(monitor)
  min_items = batch_size if batch_size and drop_remainder else 1
  servers = [
      _sample_server(monitor, server, signature, batch_size, min_items)
      for server in range(len(monitor.addresses))
  ]
  samples = servers[0]
  if len(servers) > 1:
    choices = tf.data.Dataset.counter().map(
        lambda step: mixtures.draw_sources(weights, _DRAWS, (seed, step))
    )
    samples = tf.data.Dataset.choose_from_datasets(
        servers, choices.unbatch(), stop_on_empty_dataset=False
    )
  sample, server = tf.nest.map_structure(lambda _: None, samples.element_spec)
  data = sample.data._replace(step_type=tf.constant(_NO_STEP))
  return samples.padded_batch(
      batch_size or 1,
      padding_values=(sample._replace(data=data), server),
      drop_remainder=drop_remainder,
  )


def _find_signature(monitor):
  """Returns the signature of the table, which must be equal on all servers."""
  signatures = [
      tf.nest.map_structure(
          lambda leaf: tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype),
          tables_lib.to_trajectory_signature(info.name, info.signature),
      )
      for info in monitor.infos
  ]
  first = paths.leaves(signatures[0])
  for address, signature in zip(monitor.addresses, signatures):
    differences = first.items() ^ paths.leaves(signature).items()
    if differences:
      raise ValueError(
          f'Table {monitor.table_name!r} of {address} differs from the table of'
          f' {monitor.addresses[0]} in the fields'
          f' {sorted({path for path, _ in differences})}.'
      )
  return signatures[0]


def _sample_server(monitor, server, signature, batch_size, min_items):
  """Returns samples of one server, each with the server's index."""
  samples = reverb.TrajectoryDataset(
      monitor.addresses[server],
      monitor.table_name,
      tf.nest.map_structure(lambda spec: spec.dtype, signature),
      tf.nest.map_structure(lambda spec: spec.shape, signature),
      max_in_flight_samples_per_worker=2 * (batch_size or 8),
      # Several iterators would race for the items of a queue, and for its end.
      num_workers_per_iterator=1,
      rate_limiter_timeout_ms=int(1000 * monitor.timeout),
  )

  def check_end(_):
    check = tf.numpy_function(monitor.check_end, [server, min_items], [])
    with tf.control_dependencies([check]):
      return steps_lib.zeros(samples.element_spec)

  # An empty data set that raises an error unless the table is at its end.
  end = tf.data.Dataset.range(1).map(check_end).filter(lambda *_: False)
  index = tf.data.Dataset.from_tensors(tf.constant(server)).repeat()
  return tf.data.Dataset.zip((samples.concatenate(end), index))


def _poll_while_sampling(batches, monitor):
  """Returns the batches, or the error of `monitor.poll` if a server died.

  Args:
    batches: batches of samples, and server indices, int32 `[B]`.
    monitor: the monitor of the servers.

  Returns:
    The same batches, whose leading dimension is not static.
  """
  spec = tf.nest.map_structure(
      lambda leaf: tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype),
      batches.element_spec,
  )

  def poll():
    with tf.control_dependencies([tf.numpy_function(monitor.poll, [], [])]):
      return tf.zeros([0], tf.int32)

  def tick(index):
    sample, server = steps_lib.zeros(spec)
    is_poll = (index + 1) % _TICKS_PER_POLL == 0
    server = tf.cond(is_poll, poll, lambda: server)
    return sample, tf.ensure_shape(server, [None])

  # The sleep runs in a thread of tf.data, which holds the lock that cancels it.
  # If its input called a function, as `counter` does, freeing the iterator
  # could block forever.
  indices = tf.data.Dataset.range(tf.int64.max)
  ticks = tf.raw_ops.SleepDataset(
      input_dataset=tf.data.experimental.to_variant(indices),
      sleep_microseconds=_TICK_MICROSECONDS,
      output_types=[tf.int64],
      output_shapes=[[]],
  )
  ticks = tf.data.experimental.from_variant(ticks, indices.element_spec)
  # The interleaving yields whichever comes first: a batch of samples, or a
  # tick, which may raise an error. Ticks are elements without rows, since an
  # iterator can only be stopped between elements.
  end = tf.data.Dataset.from_tensors(
      (steps_lib.zeros(spec[0]), tf.constant([_END]))
  )
  variants = [
      tf.data.experimental.to_variant(dataset)
      for dataset in (batches.concatenate(end), ticks.map(tick))
  ]
  return (
      tf.data.Dataset.range(2)
      .interleave(
          lambda index: tf.data.experimental.from_variant(
              tf.gather(variants, index), spec
          ),
          cycle_length=2,
          num_parallel_calls=2,
          deterministic=False,
      )
      .take_while(lambda _, server: tf.reduce_all(server != _END))
      .filter(lambda _, server: tf.size(server) > 0)
  )


def _validate(sample, server, monitor, weights, shape):
  """Returns the frames and their `SampleInfo`, as if of one server.

  Raises errors for items of a wrong length, and for priorities that Reverb does
  not sample by.

  Args:
    sample: a batch of samples, with data `[B, T, ...]` and info `[B]`.
    server: the index of the server of each item, `[B]`.
    monitor: the monitor of the servers.
    weights: the initial number of items of each server.
    shape: the static shape `[B, T]`, with None for dynamic dimensions.
  """
  table, info = f'table {monitor.table_name!r}', sample.info
  is_step = tf.cast(sample.data.step_type != _NO_STEP, tf.int32)
  length, lengths = tf.shape(is_step)[1], tf.reduce_sum(is_step, axis=1)
  assertions = errors.check_true(
      tf.reduce_all(lengths == (shape[1] or length)),
      f'sequence_length is {shape[1]}, but {table} has items of other lengths.'
      ' Pass the sequence_length of its TableItems, or None and no batch_size'
      ' where it varies. The lengths found are:',
      tf.unique(lengths).y,
      summarize=10,
  )
  exponents = [
      next(iter(priorities_lib.exponents(table_info.sampler_options)), np.nan)
      for table_info in monitor.infos
  ]
  if not np.isnan(exponents).all():
    message = (
        f'All priorities of {table} are 0 on a server of'
        f' {", ".join(monitor.addresses)}, or too large or too small for its'
        ' priority_exponent, so that Reverb does not sample by them. Give some'
        ' of its items a priority above 0, and scale priorities so that a'
        ' float64 holds the sum of priority ** priority_exponent.'
    )
    exponent = tf.gather(tf.constant(exponents, tf.float64), server)
    weight = info.priority**exponent
    is_weighted = (
        (info.priority > 0)
        & (weight > 0)
        & tf.math.is_finite(weight)
        & (info.probability > 0)
    )
    assertions += errors.check_true(
        tf.reduce_all(is_weighted | tf.math.is_nan(exponent)), message
    )
  if len(monitor.addresses) > 1:
    total = tf.reduce_sum(weights)
    info = info._replace(
        probability=info.probability * tf.gather(weights, server) / total,
        table_size=tf.fill(tf.shape(server), tf.cast(total, tf.int64)),
    )
  with tf.control_dependencies(assertions):
    # Every step of an item has the information of the item.
    info = tf.nest.map_structure(
        lambda field: tf.repeat(field[:, tf.newaxis], length, axis=1), info
    )
    return tf.nest.map_structure(
        lambda leaf: tf.ensure_shape(leaf, shape + leaf.shape[2:]),
        (sample.data, info),
    )
