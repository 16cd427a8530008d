"""Watches servers while a table of theirs is sampled.

Reverb's sampling operations wait for ever for a server that died: they try
again and again, whatever `rate_limiter_timeout_ms` is. If a table gives nothing
for that long, they end their data set without an error. So the servers must be
asked.
"""

import time
from typing import Any, List, Sequence

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.replay import reverb
from rlds2reverb.replay.server import tables as tables_lib

_ANSWER_SECONDS = 1
# Freeing an iterator lasts up to three ticks. The servers are asked at every
# tenth one.
_TICK_MICROSECONDS = 50_000
_TICKS_PER_POLL = 10
# The kinds of elements from which samples are picked.
_SAMPLE, _POLL, _END = range(3)


class TableWatch:
  """Asks servers for a table. The methods are called while it is sampled.

  Attributes:
    table_name: the name of the table.
    addresses: the addresses of the servers.
    infos: what each server said of the table at first, `TableInfo`s.
    removes_sampled: whether items are removed after they were sampled.
  """

  def __init__(self, addresses: Sequence[str], table_name: str, timeout: float):
    """Asks for the table for the first time.

    Args:
      addresses: the addresses of the servers.
      table_name: the name of the table.
      timeout: how many seconds a server may be silent, or a table empty.

    Raises:
      ConnectionError: if a server does not answer.
      ValueError: if a server has no such table.
    """
    self.table_name = table_name
    self.addresses = list(addresses)
    self._timeout = timeout
    self._clients = [reverb.Client(address) for address in addresses]
    self.infos = self._ask_all()
    self.removes_sampled = any(
        info.max_times_sampled > 0 for info in self.infos
    )

  def sizes(self) -> np.ndarray:
    """Returns how many items each server had at first, float64 `[S]`.

    Where no table can be sampled yet, or items are removed when they are
    sampled, an empty table counts as one item: what comes later is to come out.
    """
    sizes = np.array([_sampled_size(info) for info in self.infos])
    if self.removes_sampled or not sizes.any():
      sizes = np.array([float(info.current_size) for info in self.infos])
      sizes = np.maximum(sizes, 1.0)
    return sizes

  def poll(self, silent_since: np.ndarray) -> np.ndarray:
    """Asks each server once.

    Args:
      silent_since: the time since which each server has not answered, or 0 if
        it did the last time, float64 `[S]`.

    Returns:
      These times now, float64 `[S]`.

    Raises:
      ConnectionError: if a server has been silent for too long.
      ValueError: if a server does not have the table any more.
    """
    times = np.zeros(len(self._clients))
    for server, client in enumerate(self._clients):
      begin = time.monotonic()
      try:
        self._ask(client, _ANSWER_SECONDS)
      except ConnectionError:
        times[server] = silent_since[server] or begin
        silent = time.monotonic() - times[server]
        if silent >= self._timeout:
          raise ConnectionError(
              f'The Reverb server at {client.server_address} died while its'
              f' table {self.table_name!r} was sampled, or cannot be reached:'
              f' it has not answered for {silent:.0f} seconds. Start it again,'
              ' and then the data set.'
          ) from None
    return times

  def check_end(self, server: int, batch_size: int) -> None:
    """Raises an error unless a table that gave nothing for long has ended.

    Args:
      server: the index of the server.
      batch_size: how many items there must have been.

    Raises:
      ConnectionError: if a server does not answer.
      ValueError: if the items did not end, but something is wrong.
    """
    infos = self._ask_all()
    total = sum(map(_ever_held, infos))
    info = infos[server]
    if not total:
      raise ValueError(self._describe_empty(infos))
    if not self.removes_sampled or info.current_size:
      limiter = info.rate_limiter_info
      raise ValueError(
          f'Table {self.table_name!r} of {self.addresses[server]} gave no item'
          f' for {self._timeout:g} seconds. It holds {info.current_size}, and'
          f' its rate limiter has min_size_to_sample='
          f'{limiter.min_size_to_sample}, samples_per_insert='
          f'{limiter.samples_per_insert:g} and min_diff={limiter.min_diff:g}.'
          ' Write more items, or create the table with the MinSize rate'
          ' limiter.'
      )
    if total < batch_size:
      raise ValueError(
          f'A batch of {batch_size} is more than the {total} items that table'
          f' {self.table_name!r} of {self._names()} ever held, each of which is'
          ' sampled once. Choose a smaller batch_size, or drop_remainder=False.'
      )

  def _ask(self, client, timeout) -> Any:
    name = self.table_name
    return tables_lib.table_infos(client, [name], timeout)[name]

  def _ask_all(self) -> List[Any]:
    return [self._ask(client, self._timeout) for client in self._clients]

  def _names(self):
    return ', '.join(self.addresses)

  def _describe_empty(self, infos):
    held = [
        f'{address} holds {info.current_size} of the'
        f' {info.rate_limiter_info.min_size_to_sample} items that it takes'
        for address, info in zip(self.addresses, infos)
    ]
    return (
        f'Table {self.table_name!r} gave no item for {self._timeout:g} seconds:'
        f' {"; ".join(held)}. Write items into it: a TableItems names its'
        ' table, and items of more frames than an episode has are not made.'
    )


def guard(samples: tf.data.Dataset, watch: TableWatch) -> tf.data.Dataset:
  """Returns samples, and an error if a server dies meanwhile.

  Args:
    samples: batches of samples of a table.
    watch: asks the servers, twice a second.

  Returns:
    The same batches, whose leading dimension is not static.
  """
  num_servers = len(watch.addresses)

  def tick(silent_since, index):
    silent_since = tf.cond(
        (index + 1) % _TICKS_PER_POLL == 0,
        lambda: tf.numpy_function(watch.poll, [silent_since], tf.float64),
        lambda: silent_since,
    )
    return tf.ensure_shape(silent_since, [num_servers]), tf.constant(_POLL)

  # This sleeps in a thread of tf.data, under the lock that its cancellation
  # takes. If its input called a function, as `counter` does, freeing the
  # iterator could wait for ever.
  ticks = tf.data.Dataset.range(tf.int64.max)
  ticks = tf.data.experimental.from_variant(
      tf.raw_ops.SleepDataset(
          input_dataset=tf.data.experimental.to_variant(ticks),
          sleep_microseconds=_TICK_MICROSECONDS,
          output_types=[tf.int64],
          output_shapes=[[]],
      ),
      ticks.element_spec,
  )
  spec = tf.nest.map_structure(
      lambda leaf: tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype),
      samples.element_spec,
  )
  polls = ticks.scan(tf.zeros([num_servers], tf.float64), tick)
  # Polls must yield elements, or the stream could not be stopped.
  polls = polls.map(lambda kind: (kind, steps_lib.zeros(spec)))
  end = tf.data.Dataset.from_tensors((_END, steps_lib.zeros(spec)))
  kind = tf.data.Dataset.from_tensors(_SAMPLE).repeat()
  samples = tf.data.Dataset.zip((kind, samples)).concatenate(end)
  # The interleaving yields whatever comes first: a batch of samples, or the
  # error of a poll.
  both = tf.data.Dataset.range(2).interleave(
      lambda index: tf.data.experimental.from_variant(
          tf.gather(
              list(map(tf.data.experimental.to_variant, (samples, polls))),
              index,
          ),
          (tf.TensorSpec([], tf.int32), spec),
      ),
      cycle_length=2,
      num_parallel_calls=2,
      deterministic=False,
  )
  return (
      both.take_while(lambda kind, _: kind != _END)
      .filter(lambda kind, _: kind == _SAMPLE)
      .map(lambda _, sample: sample)
  )


def _sampled_size(info) -> float:
  """Returns how many items can be sampled from a table."""
  size = info.current_size
  enough = size >= info.rate_limiter_info.min_size_to_sample
  return float(size) if enough else 0.0


def _ever_held(info) -> int:
  # A table that was restored from a checkpoint may hold more than it counted.
  return max(tables_lib.inserted(info), info.current_size)
