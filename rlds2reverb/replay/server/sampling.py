"""Samples a table of one Reverb server, or of several as if they were one."""

from __future__ import annotations

from typing import Any, Optional, Sequence, Union

import tensorflow as tf
from tf_agents.trajectories import trajectory

from rlds2reverb.datasets import mixtures
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.replay import reverb
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
  addresses = tables_lib.addresses_of(servers)
  tables_lib.check_timeout(timeout)
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
  watch = watching.TableWatch(addresses, table_name, timeout)
  signature = _common_signature(watch)
  needed = batch_size if batch_size is not None and drop_remainder else 1
  parts = [
      _sample_server(watch, server, signature, batch_size, needed, timeout)
      for server in range(len(addresses))
  ]
  weights = tf.constant(watch.sizes())
  samples = parts[0]
  if len(parts) > 1:
    draws = tf.data.Dataset.counter().map(
        lambda step: mixtures.draw_sources(weights, _DRAWS, (seed, step))
    )
    samples = tf.data.Dataset.choose_from_datasets(
        parts, draws.unbatch(), stop_on_empty_dataset=False
    )
  samples = _batch(samples, batch_size or 1, drop_remainder)
  dimensions = [batch_size if drop_remainder else None, sequence_length]

  def finish(sample, server):
    data = _with_length(sample.data, dimensions, table_name)
    info = _info_of_all(sample.info, server, watch, weights)
    length = tf.shape(data.step_type)[1]
    info = tf.nest.map_structure(
        lambda field: tf.ensure_shape(
            tf.repeat(field[:, tf.newaxis], length, axis=1), dimensions
        ),
        info,
    )
    return data, info

  samples = watching.guard(samples, watch).map(finish)
  return samples if batch_size is not None else samples.unbatch()


def trajectory_signature(info: Any) -> trajectory.Trajectory:
  """Returns the signature of a table, as TF-Agents' type.

  Args:
    info: the `TableInfo` of the table.

  Raises:
    ValueError: if it is not the signature of trajectories.
  """
  signature = info.signature
  if getattr(signature, '_fields', ()) != trajectory.Trajectory._fields:
    raise ValueError(
        f'The signature of table {info.name!r} is not of trajectories:'
        f' {signature}.'
    )
  return trajectory.Trajectory(*signature)


def _common_signature(watch):
  """Returns the signature of the table, the same on all servers."""

  def spec(leaf):
    return tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype)

  signatures = [
      tf.nest.map_structure(spec, trajectory_signature(info))
      for info in watch.infos
  ]
  leaves = list(map(paths.leaves, signatures))
  for address, others in zip(watch.addresses, leaves):
    for path in {**leaves[0], **others}:
      if leaves[0].get(path) != others.get(path):
        raise ValueError(
            f'Table {watch.table_name!r} of {address} differs from that of'
            f' {watch.addresses[0]}: its {path!r} is {others.get(path)}, and'
            f' there it is {leaves[0].get(path)}.'
        )
  return signatures[0]


def _sample_server(watch, server, signature, batch_size, needed, timeout):
  """Returns samples of one server, each with the server's index."""
  samples = reverb.TrajectoryDataset(
      watch.addresses[server],
      watch.table_name,
      tf.nest.map_structure(lambda spec: spec.dtype, signature),
      tf.nest.map_structure(lambda spec: spec.shape, signature),
      max_in_flight_samples_per_worker=2 * (batch_size or 8),
      # Several iterators would race for the items of a queue, and for its end.
      num_workers_per_iterator=1,
      rate_limiter_timeout_ms=int(1000 * timeout),
  )

  def check_end(_):
    check = tf.numpy_function(lambda: watch.check_end(server, needed), [], [])
    with tf.control_dependencies([check]):
      return tf.constant(False)

  # This data set has no elements; reading it raises an error.
  end = (
      tf.data.Dataset.range(1)
      .map(check_end)
      .filter(lambda is_sample: is_sample)
      .map(lambda _: steps_lib.zeros(samples.element_spec))
  )
  return tf.data.Dataset.zip(
      (
          samples.concatenate(end),
          tf.data.Dataset.from_tensors(tf.constant(server)).repeat(),
      )
  )


def _batch(samples, batch_size, drop_remainder):
  """Returns batches; pads and marks items of unequal length.

  The padding has the step type `_NO_STEP`, which no step has.
  """
  spec, server = samples.element_spec
  values = tf.nest.map_structure(
      lambda leaf: tf.zeros([], leaf.dtype), (spec, server)
  )
  data = values[0].data._replace(step_type=tf.constant(_NO_STEP))
  return samples.padded_batch(
      batch_size,
      tf.nest.map_structure(lambda leaf: leaf.shape, (spec, server)),
      (values[0]._replace(data=data), values[1]),
      drop_remainder,
  )


def _with_length(data, dimensions, table_name):
  """Returns trajectories `[B, T, ...]`; raises an error if T is not right."""
  lengths = tf.reduce_sum(tf.cast(data.step_type != _NO_STEP, tf.int32), axis=1)
  expected = dimensions[1] or tf.shape(data.step_type)[1]
  check = tf.debugging.Assert(
      tf.reduce_all(lengths == expected),
      [
          f'sequence_length is {dimensions[1]}, but table {table_name!r} has'
          ' items of other lengths. Pass the sequence_length of its TableItems,'
          ' or None and no batch_size where it varies. The lengths found are:',
          tf.unique(lengths).y,
      ],
      summarize=10,
  )
  with tf.control_dependencies([check]):
    return tf.nest.map_structure(
        lambda leaf: tf.ensure_shape(leaf, dimensions + leaf.shape[2:]), data
    )


def _info_of_all(info, server, watch, weights):
  """Returns the `SampleInfo` of a batch, for all servers together.

  Args:
    info: the `SampleInfo` from the servers, `[B]`.
    server: the index of the server of each item, `[B]`.
    watch: the servers.
    weights: how many items each has.
  """
  if any(
      table.sampler_options.HasField('prioritized') for table in watch.infos
  ):
    check = tf.debugging.Assert(
        tf.reduce_all(info.priority > 0),
        [
            f'All priorities of table {watch.table_name!r} are 0 on a server'
            f' of {", ".join(watch.addresses)}, so that Reverb samples it'
            ' uniformly. Give some of its items a priority above 0.'
        ],
    )
    with tf.control_dependencies([check]):
      info = tf.nest.map_structure(tf.identity, info)
  if len(watch.addresses) > 1:
    total = tf.reduce_sum(weights)
    info = info._replace(
        probability=info.probability * tf.gather(weights, server) / total,
        table_size=tf.fill(tf.shape(server), tf.cast(total, tf.int64)),
    )
  return info
