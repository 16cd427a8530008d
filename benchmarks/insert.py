"""Speed of filling Reverb tables in bulk, and of what is in them afterwards.

    python -m benchmarks.insert

For each number of steps: items/s of `push_rlds_to_reverb`, which goes in bulk,
and of checkpoints, beside TF-Agents and beside a server that is fed requests
encoded beforehand. Then tables that were filled in bulk and by the observer:
how fast they are sampled, and what memory the server has for an item.
"""

import contextlib
import functools
import gc
import multiprocessing
import os
import pathlib
import statistics
import tempfile
import time
from typing import Dict, Iterator, List, Tuple

from absl import app
from absl import flags
from absl import logging
import reverb
import rlds
import tensorflow as tf
from tf_agents.replay_buffers import rlds_to_reverb as reference

from benchmarks import data
from benchmarks import serving
from benchmarks import timing
import rlds2reverb
from rlds2reverb.replay import encoding
from rlds2reverb.replay import frames as frames_lib
from rlds2reverb.replay import layout as layout_lib
from rlds2reverb.replay.server import insert_stream

_STEPS = flags.DEFINE_list(
    'steps', ['10000', '100000', '1000000'], 'Numbers of steps to insert.'
)
_REPEATS = flags.DEFINE_integer(
    'repeats', 3, 'How many times each case is run.', lower_bound=1
)
_REFERENCE_STEPS = flags.DEFINE_integer(
    'reference_steps',
    2_000,
    'Steps that a run of TF-Agents pushes.',
    lower_bound=1,
)
_SAMPLE_STEPS = flags.DEFINE_integer(
    'sample_steps',
    10_000,
    'Steps of the tables that are sampled.',
    lower_bound=1,
)
_SAMPLES = flags.DEFINE_integer(
    'samples', 5_000, 'Items that are sampled in a run.', lower_bound=1
)
_IMAGES = flags.DEFINE_boolean(
    'images', True, 'Whether to sample tables of images, too.'
)

_TABLE_ITEMS = rlds2reverb.TableItems(
    serving.TABLE, rlds2reverb.Windows(serving.SEQUENCE_LENGTH)
)
_IMAGE_SHAPE = (84, 84, 4)
_IMAGE_STEPS = 3_000
_TIMEOUT_SECONDS = 60

_REFERENCE = 'tf_agents'
_SERVER = 'server alone, encoded before'
_PUSH_CHECKPOINT = 'push, then client.checkpoint'


_push = functools.partial(serving.push, rlds2reverb.push_rlds_to_reverb)


def _write_checkpoint(episodes: tf.data.Dataset, path: str) -> None:
  rlds2reverb.write_reverb_checkpoint(episodes, path, _TABLE_ITEMS)


def _time_restore(path: str, steps: int) -> float:
  """Starts a server from the checkpoint `path`; returns the seconds."""
  with tempfile.TemporaryDirectory() as root:
    start = time.perf_counter()
    server = rlds2reverb.restore_reverb_server(path, checkpoint_root=root)
    seconds = time.perf_counter() - start
    try:
      serving.check_items(reverb.Client(f'localhost:{server.port}'), steps)
    finally:
      server.stop()
  return seconds


def _take(episodes: tf.data.Dataset, steps: int) -> tf.data.Dataset:
  return episodes.take(data.count_episodes(steps))


def _encode(episodes: tf.data.Dataset) -> List[Tuple[bytes, int]]:
  """Returns the requests that insert `episodes`, with their items."""
  source = frames_lib.make_frame_source(episodes, _TABLE_ITEMS)
  layout = layout_lib.Layout.of(source)
  return [
      (encoding.encode_insert_request(*batch), batch.num_items)
      for batch in layout.batches(source.frames())
  ]


def _insert_cases(directory: str, steps: int) -> List[timing.Case]:
  """Returns the cases on the first `steps` of the data set in `directory`."""
  stacked = _take(data.read_stacked(directory), steps)
  few = min(steps, data.whole_steps(_REFERENCE_STEPS.value))
  nested = _take(data.read_nested(directory), few)
  requests = _encode(stacked)
  signature = serving.signature(stacked)
  checkpoint = os.path.join(directory, f'checkpoint_{steps}')
  _write_checkpoint(stacked, checkpoint)

  def bulk(client):
    _push(stacked, client)

  def push_reference(client):
    serving.push(reference.push_rlds_to_reverb, nested, client)

  def send(client):
    address = client.server_address
    with insert_stream.InsertStream(address, _TIMEOUT_SECONDS) as stream:
      for request in requests:
        stream.write(*request)
      stream.flush()

  def bulk_and_checkpoint(client):
    bulk(client)
    client.checkpoint()

  def write():
    with tempfile.TemporaryDirectory() as parent:
      start = time.perf_counter()
      _write_checkpoint(stacked, os.path.join(parent, 'checkpoint'))
      return time.perf_counter() - start

  def case(name, count, time_fn, *args):
    return timing.Case(name, count, lambda: time_fn(*args, count))

  def inserting(name, count, insert):
    return case(name, count, serving.time_insert, insert, signature)

  return [
      inserting('push_rlds_to_reverb, bulk', steps, bulk),
      inserting(_SERVER, steps, send),
      inserting(_REFERENCE, few, push_reference),
      timing.Case('write_reverb_checkpoint', steps, write),
      inserting(_PUSH_CHECKPOINT, steps, bulk_and_checkpoint),
      case('restore_reverb_server', steps, _time_restore, checkpoint),
  ]


def _print_start(directory: str) -> None:
  """Prints how long a push takes that has hardly anything to push."""
  episodes = data.read_stacked(directory).take(1)
  signature = serving.signature(episodes)
  seconds = [
      serving.time_insert(
          functools.partial(_push, episodes),
          signature,
          data.EPISODE_LENGTH.value,
      )
      for _ in range(1 + _REPEATS.value)
  ][1:]
  print(
      f'A push of one episode takes {statistics.median(seconds):.2f} s, most of'
      ' it to build the pipeline: what every push takes, beside its steps.'
  )


def _image_episodes(steps: int) -> tf.data.Dataset:
  """Returns episodes of images, a tenth of whose bytes is noise."""
  length = data.EPISODE_LENGTH.value
  is_last = tf.range(length) == length - 1

  def episode(index):
    noise = tf.random.stateless_uniform(
        (2, length, *_IMAGE_SHAPE), [0, index], 0, 256, tf.int32
    )
    image = tf.where(noise[0] < 26, noise[1], 0)
    return {
        rlds.STEPS: {
            rlds.OBSERVATION: tf.cast(image, tf.uint8),
            rlds.ACTION: tf.zeros([length], tf.int32),
            rlds.REWARD: tf.zeros([length]),
            rlds.DISCOUNT: tf.ones([length]),
            rlds.IS_FIRST: tf.range(length) == 0,
            rlds.IS_LAST: is_last,
            rlds.IS_TERMINAL: is_last,
        }
    }

  return tf.data.Dataset.range(data.count_episodes(steps)).map(episode)


def _serve_until_told(connection, signature, max_size: int) -> None:
  """Serves a table, in a process of its own."""
  with serving.serve(signature, max_size) as server:
    connection.send(server.port)
    connection.recv()


def _resident_bytes(pid: int) -> int:
  status = pathlib.Path(f'/proc/{pid}/status').read_text()
  fields = dict(line.split(':', 1) for line in status.splitlines())
  return int(fields['VmRSS'].split()[0]) * 1024


@contextlib.contextmanager
def _filled_servers(episodes, steps: int) -> Iterator[Dict[str, reverb.Client]]:
  """Yields clients of two servers, by how they were filled; prints memory."""
  context = multiprocessing.get_context('spawn')
  clients = {}
  with contextlib.ExitStack() as stack:
    for method in ('bulk', 'observer'):
      ours, theirs = context.Pipe()
      process = context.Process(
          target=_serve_until_told,
          args=(theirs, serving.signature(episodes), steps),
          daemon=True,
      )
      process.start()
      stack.callback(process.join)
      stack.callback(ours.send, None)
      if not ours.poll(_TIMEOUT_SECONDS):
        raise TimeoutError('A server did not start.')
      client = reverb.Client(f'localhost:{ours.recv()}')
      before = _resident_bytes(process.pid)
      _push(episodes, client, method=method)
      gc.collect()
      serving.check_items(client, steps)
      growth = _resident_bytes(process.pid) - before
      size = growth / serving.num_items(steps)
      print(f'Filled by {method}: {size:,.0f} bytes/item')
      clients[method] = client
    yield clients


def _measure_sampling(
    title: str, episodes: tf.data.Dataset, steps: int
) -> None:
  """Prints the memory of tables of `episodes`, and the speed of sampling."""

  def sample(client):
    samples = client.sample(serving.TABLE, _SAMPLES.value, emit_timesteps=False)
    count = sum(1 for _ in samples)
    if count != _SAMPLES.value:
      raise RuntimeError(f'Sampled {count} items only.')

  print(f'\nA server with {steps:,} steps of {title}:', flush=True)
  with _filled_servers(episodes, steps) as clients:
    cases = [
        timing.Case(
            f'sampled items, filled by {method}',
            _SAMPLES.value,
            lambda client=client: sample(client),
        )
        for method, client in clients.items()
    ]
    speeds = timing.measure(cases, _REPEATS.value)
  timing.print_table(cases, speeds, [('observer', cases[-1].name)])


def main(argv):
  if len(argv) > 1:
    raise app.UsageError('Too many command-line arguments.')
  # A push warns of the data's discounts and last rewards, each time.
  logging.set_verbosity(logging.ERROR)
  sizes = [data.whole_steps(int(steps)) for steps in _STEPS.value]
  vector_steps = data.whole_steps(_SAMPLE_STEPS.value)
  vectors = (
      f'{data.OBSERVATION_SIZE.value}-float observations,'
      f' {data.ACTION_SIZE.value}-float actions'
  )
  print(
      f'{vectors}, {data.EPISODE_LENGTH.value}-step episodes;'
      ' ReverbAddTrajectoryObserver, sequence_length'
      f' {serving.SEQUENCE_LENGTH};'
      f' {_REPEATS.value} repeats. A step is an item, but for the first of an'
      f' episode.\nTF-Agents pushes no more than {_REFERENCE_STEPS.value:,}'
      ' steps, as it does one or two thousand a second.'
  )
  with data.temporary_episodes(max(sizes + [vector_steps])) as directory:
    _print_start(directory)
    for steps in sizes:
      print(f'\n{steps:,} steps:', flush=True)
      cases = _insert_cases(directory, steps)
      timing.print_table(
          cases,
          timing.measure(cases, _REPEATS.value),
          [
              ('tf_agents', _REFERENCE),
              ('server', _SERVER),
              ('push+checkpoint', _PUSH_CHECKPOINT),
          ],
      )
    stacked = data.read_stacked(directory)
    _measure_sampling(vectors, _take(stacked, vector_steps), vector_steps)
  if _IMAGES.value:
    steps = data.whole_steps(_IMAGE_STEPS)
    title = f'{"x".join(map(str, _IMAGE_SHAPE))} uint8 images'
    _measure_sampling(title, _image_episodes(steps), steps)


if __name__ == '__main__':
  app.run(main)
