"""Compares filling Reverb tables with TF-Agents and with the server alone.

    python -m benchmarks.insert

Each run starts a new server, and ends when the server has confirmed the last
item. The limit is sending requests that are serialized in advance. The program
also measures the memory of a server per item, the speedup of serializing items
with NumPy, and the first push of a process.
"""

import contextlib
import functools
import multiprocessing
import os
import pathlib
import tempfile
import time

from absl import app
from absl import flags
from absl import logging
import numpy as np
import reverb
from tf_agents.replay_buffers import reverb_utils
from tf_agents.replay_buffers import rlds_to_reverb as reference
from tf_agents.specs import tensor_spec

from benchmarks import data
from benchmarks import timing
import rlds2reverb
from rlds2reverb.replay import chunks
from rlds2reverb.replay import frames as frames_lib
from rlds2reverb.replay import layout as layout_lib
from rlds2reverb.replay import protos
from rlds2reverb.replay.server import insert as insert_lib

_STEPS = flags.DEFINE_list(
    'steps', ['1000', '10000', '100000', '1000000'], 'Steps of each table.'
)
_REFERENCE_STEPS = flags.DEFINE_integer(
    'reference_steps', 2_000, 'The maximum number of steps for TF-Agents.'
)
_FIRST = flags.DEFINE_string(
    'first', '', 'Only times the first push of this library.'
)

_TABLE = 'benchmark'
_ITEMS = rlds2reverb.TableItems(_TABLE, rlds2reverb.Windows(2))
_TIMEOUT_SECONDS = 60
_FIRST_STEPS = 1000
_PUSHES = {
    'rlds2reverb': rlds2reverb.push_rlds_to_reverb,
    'TF-Agents': reference.push_rlds_to_reverb,
}


@contextlib.contextmanager
def _serve(episodes, max_size):
  """Yields a client of a server with an empty table."""
  spec = rlds2reverb.create_trajectory_data_spec(episodes)
  table = reverb.Table(
      name=_TABLE,
      sampler=reverb.selectors.Uniform(),
      remover=reverb.selectors.Fifo(),
      max_size=max_size,
      rate_limiter=reverb.rate_limiters.MinSize(1),
      signature=tensor_spec.add_outer_dim(spec),
  )
  server = reverb.Server([table])
  try:
    yield reverb.Client(f'localhost:{server.port}')
  finally:
    server.stop()


def _push(push, episodes, client, **kwargs) -> None:
  observer = reverb_utils.ReverbAddTrajectoryObserver(
      client, _TABLE, sequence_length=2
  )
  push(episodes, observer, **kwargs)
  observer.flush()
  observer.close()


def _time(insert, episodes, steps) -> float:
  """Returns the seconds for inserting into a new server."""
  with _serve(episodes, steps) as client:
    start = time.perf_counter()
    insert(client)
    seconds = time.perf_counter() - start
    items = client.server_info()[_TABLE].current_size
  expected = steps - data.count_episodes(steps)
  if items != expected:
    raise RuntimeError(f'Expected {expected} items, but got {items}.')
  return seconds


def _make_sender(episodes):
  """Returns a function that sends serialized requests: the limit."""
  source = frames_lib.make_frame_source(episodes, _ITEMS)
  layout = layout_lib.Layout(source)
  batches = list(layout.batches())

  def send(client):
    address = client.server_address
    with insert_lib.InsertStream(address, _TIMEOUT_SECONDS) as stream:
      for batch in batches:
        stream.write(batch)
      stream.flush()

  return send


def _make_writer(episodes):
  """Returns a function that writes a checkpoint, and returns the seconds."""

  def write():
    with tempfile.TemporaryDirectory() as folder:
      start = time.perf_counter()
      path = os.path.join(folder, 'checkpoint')
      rlds2reverb.write_reverb_checkpoint(episodes, path, _ITEMS)
      return time.perf_counter() - start

  return write


def _compare(folder: str, steps: int) -> None:
  """Compares the methods of filling a table with a number of steps."""
  take = lambda episodes, count: episodes.take(data.count_episodes(count))
  few = min(steps, _REFERENCE_STEPS.value)
  stacked = take(data.read_stacked(folder), steps)
  nested = take(data.read_nested(folder), few)
  ours, theirs = _PUSHES.values()
  limit, reference_name = 'server alone', 'TF-Agents'

  def case(name, insert, count=steps, episodes=stacked):
    return timing.Case(
        name,
        count,
        lambda: _time(insert, episodes, count),
        None if name == limit else limit,
    )

  timing.compare(
      [
          case(limit, _make_sender(stacked)),
          case('push_rlds_to_reverb', functools.partial(_push, ours, stacked)),
          case(
              reference_name,
              functools.partial(_push, theirs, nested),
              few,
              nested,
          ),
          timing.Case(
              'write_reverb_checkpoint', steps, _make_writer(stacked), limit
          ),
      ],
      [(reference_name, reference_name)],
  )


def _compare_encoding(count: int = 4096, num_columns: int = 7) -> None:
  """Compares encoding items as arrays with encoding one message per item."""
  keys = np.arange(1, count + 1, dtype=np.uint64)
  row = np.arange(count) % 64
  slices = chunks.ChunkSlices(
      np.arange(count + 1), keys, row, np.full(count, 2, np.int64)
  )
  dates = 10**18 + np.arange(count)
  priorities = np.ones(count)

  def as_arrays():
    return chunks.encode_items(
        _TABLE, keys, priorities, slices, num_columns, dates
    )

  def as_messages():
    encoded = []
    for key, offset, date in zip(keys.tolist(), row.tolist(), dates.tolist()):
      item = protos.PrioritizedItem(key=key, table=_TABLE, priority=1.0)
      item.inserted_at.seconds, item.inserted_at.nanos = divmod(date, 10**9)
      for column in range(num_columns):
        item.flat_trajectory.columns.add().chunk_slices.add(
            chunk_key=key, offset=offset, length=2, index=column
        )
      encoded.append(item.SerializeToString())
    return encoded

  parse = protos.PrioritizedItem.FromString
  if list(map(parse, as_arrays())) != list(map(parse, as_messages())):
    raise RuntimeError('The items differ.')

  def without_result(encode):
    def run():
      encode()

    return run

  messages = 'items as messages'
  timing.compare(
      [
          timing.Case(messages, count, without_result(as_messages)),
          timing.Case('encode_items', count, without_result(as_arrays)),
      ],
      [(messages, messages)],
  )


def _print_first_pushes() -> None:
  for name in _PUSHES:
    seconds = [
        float(timing.run_alone('insert', f'--first={name}'))
        for _ in range(timing.REPEATS.value)
    ]
    print(
        f'First push of a process, {_FIRST_STEPS} nested steps, without'
        f' imports, {name}: {min(seconds):.1f} s'
    )


def _push_first() -> None:
  """Prints the seconds of the first push of this process."""
  with data.temporary_episodes(_FIRST_STEPS) as folder:
    start = time.perf_counter()
    nested = data.read_nested(folder)
    _time(
        functools.partial(_push, _PUSHES[_FIRST.value], nested),
        nested,
        data.EPISODE_LENGTH.value,
    )
    print(time.perf_counter() - start)


def _serve_until_message(connection, folder, steps) -> None:
  with _serve(data.read_stacked(folder), steps) as client:
    connection.send(client.server_address)
    connection.recv()


def _print_memory(folder: str, steps: int) -> None:
  """Prints the memory of servers filled in bulk and step by step."""
  context = multiprocessing.get_context('spawn')
  episodes = data.read_stacked(folder).take(data.count_episodes(steps))
  for method in ('bulk', 'observer'):
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_serve_until_message, args=(theirs, folder, steps), daemon=True
    )
    process.start()
    if not ours.poll(_TIMEOUT_SECONDS):
      raise TimeoutError('A server did not start.')
    client = reverb.Client(ours.recv())
    status = pathlib.Path(f'/proc/{process.pid}/statm')
    resident = lambda: int(status.read_text().split()[1]) * os.sysconf(
        'SC_PAGE_SIZE'
    )
    resident_at_start = resident()
    _push(_PUSHES['rlds2reverb'], episodes, client, method=method)
    items = client.server_info()[_TABLE].current_size
    print(
        f'Filled by {method}: a server needs'
        f' {(resident() - resident_at_start) / items:,.0f} bytes per item'
    )
    ours.send(None)
    process.join()


def main(_) -> None:
  # Every push warns about the discounts and last rewards of the data.
  logging.set_verbosity(logging.ERROR)
  if _FIRST.value:
    _push_first()
    return
  sizes = [
      data.count_episodes(int(steps)) * data.EPISODE_LENGTH.value
      for steps in _STEPS.value
  ]
  with data.temporary_episodes(max(sizes)) as folder:
    for steps in sizes:
      _compare(folder, steps)
    _print_memory(folder, min(max(sizes), 10_000))
  _compare_encoding()
  _print_first_pushes()


if __name__ == '__main__':
  app.run(main)
