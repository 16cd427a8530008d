"""Watches servers while a table of theirs is sampled.

Reverb's sampling operations wait for ever for a server that died: they try
again and again, whatever `rate_limiter_timeout_ms` is. If a table gives nothing
for that long, they end their data set without an error. So the servers must be
asked.
"""

import time
from typing import Any, Dict, Sequence

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.replay.server import tables as tables_lib

_ANSWER_SECONDS = 1
# Freeing an iterator lasts up to three ticks. The servers are asked at every
# tenth one, and only then is Python called: a thread that calls it while the
# process ends would never come back.
_TICK_MICROSECONDS = 50_000
_TICKS_PER_POLL = 10
# The server of the element that ends a stream. Ticks are of no server.
_END = -1


class TableWatch:
  """Asks servers for a table. The methods are called while it is sampled.

  Attributes:
    table_name: the name of the table.
    addresses: the addresses of the servers.
    timeout: how many seconds a server may be silent, or a table empty.
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
    self.timeout = timeout
    self.infos = [self._ask(address, timeout) for address in addresses]
    self.removes_sampled = any(
        info.max_times_sampled > 0 for info in self.infos
    )
    self._silent_since: Dict[str, float] = {}

  def sizes(self) -> np.ndarray:
    """Returns how many items each server had at first, float64 `[S]`.

    Where no table can be sampled yet, or items are removed when they are
    sampled, an empty table counts as one item: what comes later is to come out.
    """
    sizes = np.array([info.current_size for info in self.infos], np.float64)
    needed = [i.rate_limiter_info.min_size_to_sample for i in self.infos]
    sampled = np.where(sizes >= needed, sizes, 0.0)
    if self.removes_sampled or not sampled.any():
      return np.maximum(sizes, 1.0)
    return sampled

  def poll(self) -> np.ndarray:
    """Asks each server once; returns the servers of a tick, of which are none.

    Raises:
      ConnectionError: if a server has been silent for too long.
      ValueError: if a server does not have the table any more.
    """
    for address in self.addresses:
      begin = time.monotonic()
      try:
        self._ask(address, _ANSWER_SECONDS)
        self._silent_since.pop(address, None)
      except ConnectionError:
        since = self._silent_since.setdefault(address, begin)
        silent = time.monotonic() - since
        if silent < self.timeout:
          continue
        self._silent_since.clear()
        raise ConnectionError(
            f'The Reverb server at {address} died while its table'
            f' {self.table_name!r} was sampled, or cannot be reached: it has'
            f' not answered for {silent:.0f} seconds. Start it again, and then'
            ' the data set.'
        ) from None
    return np.zeros(0, np.int32)

  def check_end(self, server: int, batch_size: int) -> None:
    """Raises an error unless a table that gave nothing for long has ended.

    Args:
      server: the index of the server.
      batch_size: how many items there must have been.

    Raises:
      ConnectionError: if a server does not answer.
      ValueError: if the items did not end, but something is wrong.
    """
    infos = [self._ask(address, self.timeout) for address in self.addresses]
    # A table that was restored from a checkpoint may hold more than it counted.
    total = sum(max(tables_lib.inserted(i), i.current_size) for i in infos)
    info, limiter = infos[server], infos[server].rate_limiter_info
    if not (self.removes_sampled and total) or info.current_size:
      raise ValueError(
          f'Table {self.table_name!r} gave no item for {self.timeout:g}'
          f' seconds: {self.addresses[server]} holds {info.current_size}, and'
          ' its rate limiter has'
          f' min_size_to_sample={limiter.min_size_to_sample},'
          f' samples_per_insert={limiter.samples_per_insert:g} and'
          f' min_diff={limiter.min_diff:g}. Write items into it: a TableItems'
          ' names its table, and items of more frames than an episode has are'
          ' not made. Or create the table with the MinSize rate limiter.'
      )
    if total < batch_size:
      raise ValueError(
          f'A batch of {batch_size} is more than the {total} items that table'
          f' {self.table_name!r} of {", ".join(self.addresses)} ever held, each'
          ' of which is sampled once. Choose a smaller batch_size, or'
          ' drop_remainder=False.'
      )

  def _ask(self, address, timeout) -> Any:
    name = self.table_name
    return tables_lib.table_infos(address, [name], timeout)[name]


def guard(samples: tf.data.Dataset, watch: TableWatch) -> tf.data.Dataset:
  """Returns samples, and an error if a server dies meanwhile.

  Args:
    samples: batches of samples of a table, and the index of the server of each,
      int32 `[B]`.
    watch: asks the servers, twice a second.

  Returns:
    The same batches, whose leading dimension is not static.
  """
  spec = tf.nest.map_structure(
      lambda leaf: tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype),
      samples.element_spec,
  )
  nothing = lambda: steps_lib.zeros(spec)

  def tick(index):
    sample, server = nothing()
    server = tf.cond(
        (index + 1) % _TICKS_PER_POLL == 0,
        lambda: tf.numpy_function(watch.poll, [], tf.int32),
        lambda: server,
    )
    return sample, tf.ensure_shape(server, [None])

  # This sleeps in a thread of tf.data, under the lock that its cancellation
  # takes. If its input called a function, as `counter` does, freeing the
  # iterator could wait for ever.
  numbers = tf.data.Dataset.range(tf.int64.max)
  ticks = tf.raw_ops.SleepDataset(
      input_dataset=tf.data.experimental.to_variant(numbers),
      sleep_microseconds=_TICK_MICROSECONDS,
      output_types=[tf.int64],
      output_shapes=[[]],
  )
  ticks = tf.data.experimental.from_variant(ticks, numbers.element_spec)
  # The interleaving yields whatever comes first: a batch of samples, or the
  # error of a tick. Ticks are elements, or the stream could not be stopped.
  end = tf.data.Dataset.from_tensors((nothing()[0], tf.constant([_END])))
  parts = samples.concatenate(end), ticks.map(tick)
  variants = [tf.data.experimental.to_variant(part) for part in parts]
  part = lambda index: tf.data.experimental.from_variant(
      tf.gather(variants, index), spec
  )
  return (
      tf.data.Dataset.range(2)
      .interleave(part, 2, num_parallel_calls=2, deterministic=False)
      .take_while(lambda _, server: tf.reduce_all(server != _END))
      .filter(lambda _, server: tf.size(server) > 0)
  )
