"""Samples a table of one Reverb server, or of several as if they were one."""

from __future__ import annotations

from typing import Any, Optional, Sequence, Union

import tensorflow as tf

from rlds2reverb.datasets import mixtures
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.replay import reverb
from rlds2reverb.replay.server import table_kinds
from rlds2reverb.replay.server import tables as tables_lib
from rlds2reverb.replay.server import watching

_DRAWS = 64  # How many draws of servers are made at once.
_NO_STEP = -1


def sample_reverb_servers(
    servers: Union[str, reverb.Client, reverb.Server, Sequence[Any]],
    table_name: str,
    sequence_length: Optional[int],
    batch_size: Optional[int] = None,
    *,
    drop_remainder: bool = True,
    timeout: float = tables_lib.SECONDS_TO_ANSWER,
    seed: int = 0,
) -> tf.data.Dataset:
  """Samples a table of one server, or one that is spread over several servers.

  The elements are those of TF-Agents' `ReverbReplayBuffer.as_dataset`. An item
  is drawn from a server with probability proportional to the size that its
  table has when the data set is made, and there by the table's own sampler. So
  uniform tables of 100 and 300 items are sampled as one of 400. If tables grow,
  make the data set again; where several servers are all empty at first, each is
  drawn equally often, so each must get items.

  Where `as_dataset` waits for ever or ends silently, this data set raises an
  error: if a server died, if no item reaches the table, if a rate limiter lets
  none out, or if all priorities are 0.

  The data set of a table that removes what was sampled (of kind `"queue"` or
  `"one_pass"`) ends when each server has given nothing for `timeout`
  seconds, one after the other: a pass over recorded data wants a short one.
  Several trainers may share such a table: each item goes to one of them. Items
  that were fetched but not yet given are lost with the iterator.

  Args:
    servers: a server: its address, `host:port`, a client of it, or itself; or
      a list of several.
    table_name: the name of the table.
    sequence_length: the number of frames of every item, or None if it varies,
      which needs `batch_size=None`.
    batch_size: the number of items of a batch, or None for single items.
    drop_remainder: whether a batch that is not full is left out at the end; by
      default it is, as most tables never end, and batches have a static shape.
    timeout: after how many seconds there is an error, from a server that does
      not answer, and from a table that gives no item. A second or two may come
      on top.
    seed: the seed of the draws of servers. Reverb decides what it draws, and
      takes no seed.

  Returns:
    A data set of pairs of trajectories, `[B, T, ...]`, and Reverb's
    `SampleInfo`, `[B, T]`. With several servers `probability` and `table_size`
    are those of all tables together.

  Raises:
    ConnectionError: if a server does not answer. While iterating, an
      UnknownError, which names the server.
    ValueError: if a server has no such table, if the table's signature is not
      of trajectories or differs between servers, or if an argument is not
      valid.
    InvalidArgumentError: while iterating, if the table gives no item; if items
      have another length; or if a batch is larger than all that a table that
      removes what was sampled ever held.
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
  addresses = tables_lib.addresses_of(servers)
  watch = watching.TableWatch(addresses, table_name, timeout)
  weights = tf.constant(watch.sizes())
  samples = _batches(watch, weights, batch_size, drop_remainder, seed)
  shape = [batch_size if drop_remainder else None, sequence_length]
  samples = watching.guard(samples, watch).map(
      lambda sample, server: _finish(sample, server, watch, weights, shape)
  )
  return samples if batch_size is not None else samples.unbatch()


def _common_signature(watch):
  """Returns the signature of the table, the same on all servers."""
  signatures = [
      tf.nest.map_structure(
          lambda leaf: tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype),
          table_kinds.trajectory_signature(info.name, info.signature),
      )
      for info in watch.infos
  ]
  first, *others = map(paths.leaves, signatures)
  for address, leaves in zip(watch.addresses[1:], others):
    if leaves != first:
      fields = {path for path, _ in first.items() ^ leaves.items()}
      raise ValueError(
          f'Table {watch.table_name!r} of {address} differs from that of'
          f' {watch.addresses[0]} in the fields {sorted(fields)}.'
      )
  return signatures[0]


def _batches(watch, weights, batch_size, drop_remainder, seed):
  """Returns batches of samples, `[B, T, ...]`, and of their servers, `[B]`.

  Items that are shorter than others of their batch are padded with steps of the
  type `_NO_STEP`, which no step has.
  """
  signature = _common_signature(watch)
  needed = batch_size if batch_size and drop_remainder else 1
  parts = [
      _sample_server(watch, server, signature, batch_size, needed)
      for server in range(len(watch.addresses))
  ]
  samples = parts[0]
  if len(parts) > 1:
    draws = tf.data.Dataset.counter().map(
        lambda step: mixtures.draw_sources(weights, _DRAWS, (seed, step))
    )
    samples = tf.data.Dataset.choose_from_datasets(
        parts, draws.unbatch(), stop_on_empty_dataset=False
    )
  spec = samples.element_spec
  sample, server = tf.nest.map_structure(
      lambda leaf: tf.zeros([], leaf.dtype), spec
  )
  data = sample.data._replace(step_type=tf.constant(_NO_STEP))
  return samples.padded_batch(
      batch_size or 1,
      tf.nest.map_structure(lambda leaf: leaf.shape, spec),
      (sample._replace(data=data), server),
      drop_remainder,
  )


def _sample_server(watch, server, signature, batch_size, needed):
  """Returns samples of one server, each with the server's index."""
  samples = reverb.TrajectoryDataset(
      watch.addresses[server],
      watch.table_name,
      tf.nest.map_structure(lambda spec: spec.dtype, signature),
      tf.nest.map_structure(lambda spec: spec.shape, signature),
      max_in_flight_samples_per_worker=2 * (batch_size or 8),
      # Several iterators would race for the items of a queue, and for its end.
      num_workers_per_iterator=1,
      rate_limiter_timeout_ms=int(1000 * watch.timeout),
  )

  def check_end(_):
    check = tf.numpy_function(lambda: watch.check_end(server, needed), [], [])
    with tf.control_dependencies([check]):
      return steps_lib.zeros(samples.element_spec)

  # The end has no elements; reading it raises an error.
  end = tf.data.Dataset.range(1).map(check_end).filter(lambda *_: False)
  index = tf.data.Dataset.from_tensors(tf.constant(server)).repeat()
  return tf.data.Dataset.zip((samples.concatenate(end), index))


def _finish(sample, server, watch, weights, shape):
  """Returns checked frames and their `SampleInfo`, for all servers together.

  Args:
    sample: a batch of samples, `[B, T, ...]`, and their information, `[B]`.
    server: the index of the server of each item, `[B]`.
    watch: the servers.
    weights: how many items each has.
    shape: the static `[B, T]`, None where they are not.
  """
  table, info = f'table {watch.table_name!r}', sample.info
  steps = tf.cast(sample.data.step_type != _NO_STEP, tf.int32)
  length, lengths = tf.shape(steps)[1], tf.reduce_sum(steps, axis=1)
  checked = [
      tf.debugging.Assert(
          tf.reduce_all(lengths == (shape[1] or length)),
          [
              f'sequence_length is {shape[1]}, but {table} has items of other'
              ' lengths. Pass the sequence_length of its TableItems, or None'
              ' and no batch_size where it varies. The lengths found are:',
              tf.unique(lengths).y,
          ],
          summarize=10,
      )
  ]
  if any(each.sampler_options.HasField('prioritized') for each in watch.infos):
    message = (
        f'All priorities of {table} are 0 on a server of'
        f' {", ".join(watch.addresses)}, so that Reverb samples it uniformly.'
        ' Give some of its items a priority above 0.'
    )
    has_priority = tf.reduce_all(info.priority > 0)
    checked.append(tf.debugging.Assert(has_priority, [message]))
  if len(watch.addresses) > 1:
    total = tf.reduce_sum(weights)
    info = info._replace(
        probability=info.probability * tf.gather(weights, server) / total,
        table_size=tf.fill(tf.shape(server), tf.cast(total, tf.int64)),
    )
  with tf.control_dependencies(checked):
    # Every step of an item has the item's information.
    info = tf.nest.map_structure(
        lambda field: tf.repeat(field[:, tf.newaxis], length, axis=1), info
    )
    return tf.nest.map_structure(
        lambda leaf: tf.ensure_shape(leaf, shape + leaf.shape[2:]),
        (sample.data, info),
    )
