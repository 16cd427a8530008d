"""Tests of what goes wrong: servers, disks, tables, data, and interrupts."""

from concurrent import futures
import functools
import itertools
import os
import re
import signal
import socket
import time
from unittest import mock

from absl.testing import parameterized
import numpy as np
import pytest
import reverb
import tensorflow as tf

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import items
from rlds2reverb.replay import layout
from rlds2reverb.replay.checkpoint import write
from rlds2reverb.replay.server import insert
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import specs
from tests import golden
from tests import reverb_testing

_OTHER = 'other_table'
_PAIRS = items.TableItems(reverb_testing.TABLE)
_EPISODES = golden.make_episodes((4, 2, 7, 1, 3) * 8)
_IDENTITY = {'name': 'data', 'split': 'train'}
# A segment is about 2 MB; these rows do not compress.
_IMAGE_BYTES = 1 << 16
_LARGE_EPISODES = 40
_WAIT_SECONDS = 20


def _large_data(actions=None):
  """Large episodes; `actions` are called between them, by their numbers."""
  rng = np.random.default_rng(5)

  def episode():
    image = rng.integers(0, 256, (4, _IMAGE_BYTES)).astype(np.uint8)
    return {**golden.COMPLETE, 'observation': image}

  def generate():
    for number in range(_LARGE_EPISODES):
      if actions and number in actions:
        actions[number]()
      yield {'steps': episode()}

  return tf.data.Dataset.from_generator(
      generate, output_signature={'steps': golden.stacked_spec(episode())}
  )


def _insert(data, server, tables=_PAIRS, timeout=60, **options):
  options = options_lib.ConversionOptions(**options)
  return insert.write_rlds_to_reverb(
      data, server, tables, timeout=timeout, options=options
  )


def _items_of(client):
  return sorted(reverb_testing.contents(client).items)


def _wait_for_items(address):
  """Returns when the table holds items; after a while in any case."""
  client = reverb.Client(address)
  deadline = time.monotonic() + _WAIT_SECONDS
  while not reverb_testing.size(client) and time.monotonic() < deadline:
    time.sleep(0.02)
  # The writer hears of them a moment later.
  time.sleep(1)


def _interrupt_before_segment(count, address=None):
  """Sends Ctrl-C to this thread, not to a `__del__` that would drop it."""
  add = layout.Layout.add
  calls = itertools.count()

  def interrupt(*args):
    if next(calls) == count:
      if address:
        _wait_for_items(address)
      signal.raise_signal(signal.SIGINT)
    return add(*args)

  return mock.patch.object(layout.Layout, 'add', interrupt)


def _unused_address(test):
  unused = socket.socket()
  test.addCleanup(unused.close)
  unused.bind(('localhost', 0))  # It does not listen.
  return f'localhost:{unused.getsockname()[1]}'


class FailuresTest(parameterized.TestCase, tf.test.TestCase):

  def write(self, data, parent, table=_PAIRS, reverb_tables=(), **options):
    """Writes a checkpoint; returns its directory."""
    path = os.path.join(parent, 'checkpoint')
    options = options_lib.ConversionOptions(**options)
    write.write_reverb_checkpoint(
        data, path, table, reverb_tables=reverb_tables, options=options
    )
    return path

  def parent(self):
    return self.create_tempdir().full_path

  # The server.

  def test_server_that_stops(self):
    server = reverb.Server([reverb_testing.make_table()])
    address = f'localhost:{server.port}'

    def stop():
      _wait_for_items(address)
      server.stop()

    with self.assertRaises(insert.InsertError) as raised:
      _insert(_large_data({25: stop}), address, timeout=1)
    error = raised.exception
    self.assertBetween(error.confirmed, 1, 3 * _LARGE_EPISODES - 1)
    self.assertRegex(
        str(error),
        r'The insert stream failed: StatusCode\..* It has confirmed'
        rf' {error.confirmed} of the \d+ items',
    )
    self.assertIn(f'no answer from a Reverb server at {address}.', str(error))

  def test_missing_servers_and_tables_raise(self):
    data = golden.stacked(_EPISODES[:3])
    address = _unused_address(self)
    with self.assertRaisesRegex(
        ConnectionError, f'no answer from a Reverb server at {address}'
    ):
      _insert(data, address, timeout=1)
    spec = specs.create_trajectory_data_spec(data)
    wide = spec._replace(observation=tf.TensorSpec([3], tf.float32))
    with reverb_testing.reverb_server(
        data, tables=(reverb_testing.TABLE, _OTHER)
    ) as client:
      with self.assertRaisesRegex(
          ValueError, f"no table 'none'. .*'{reverb_testing.TABLE}', '{_OTHER}'"
      ):
        _insert(data, client, [_PAIRS, items.TableItems('none')])
      self.assertEqual(reverb_testing.size(client), 0)
      # A proxy of the environment is not asked for the way to a server.
      proxy = f'http://{_unused_address(self)}'
      names = ('http_proxy', 'https_proxy', 'grpc_proxy')
      environment = {**dict.fromkeys(names, proxy), 'no_proxy': ''}
      with mock.patch.dict(os.environ, environment):
        self.assertEqual(_insert(data, client), {reverb_testing.TABLE: (10, 0)})
    with reverb_testing.reverb_server(wide) as client:
      with self.assertRaises(specs.SpecMismatchError) as raised:
        _insert(data, client)
      self.assertIn('observation', raised.exception.differences[0])
    parent = self.parent()
    table = reverb_testing.make_table(
        signature=reverb_testing.signature_of(wide)
    )
    with self.assertRaises(specs.SpecMismatchError):
      self.write(data, parent, reverb_tables=[table])
    self.assertEmpty(os.listdir(parent))

  def test_table_that_is_too_small(self):
    data = golden.stacked(_EPISODES[:20])
    count = len(reverb_testing.pairs(_EPISODES[:20]))
    for max_size in 10, count:  # As large as the data is not too small.
      with reverb_testing.reverb_server(data, max_size=max_size) as client:
        with self.assertLogs(level='WARNING') as logs:
          _insert(data, client)
        self.assertEqual(reverb_testing.size(client), max_size)
      sentence = (
          f'{count} items were inserted in addition to the 0 that it held, but'
          f' its max_size is 10, so {count - 10} items'
      )
      self.assertEqual(sentence in str(logs.output), max_size == 10)

  def test_rate_limiter_that_blocks_for_ever(self):
    limiter = reverb.rate_limiters.SampleToInsertRatio(4.0, 5, 8.0)
    server = reverb.Server([reverb_testing.make_table(rate_limiter=limiter)])
    self.addCleanup(server.stop)
    with self.assertRaises(insert.InsertError) as raised:
      _insert(golden.stacked(_EPISODES), server, timeout=2)
    size = reverb_testing.size(server.localhost_client())
    self.assertBetween(size, 5, 10)
    self.assertEqual(raised.exception.confirmed, size)
    self.assertRegex(
        str(raised.exception),
        'The server confirmed nothing for 2 seconds..*'
        f'Table {reverb_testing.TABLE!r} holds {size} items..*'
        f'samples_per_insert=4, .* {size} items inserted and 0 items sampled',
    )

  # Ctrl-C.

  def test_interrupts(self):
    # A shell starts what runs in the background with Ctrl-C ignored.
    original_handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    self.addCleanup(signal.signal, signal.SIGINT, original_handler)
    data, parent = _large_data(), self.parent()
    with _interrupt_before_segment(2), self.assertRaises(KeyboardInterrupt):
      self.write(data, parent)
    self.assertEmpty(os.listdir(parent))
    with reverb_testing.reverb_server(data) as client:
      server = client.server_address
      with self.assertLogs(level='ERROR') as logs:
        with _interrupt_before_segment(2, server):
          with self.assertRaises(KeyboardInterrupt):
            _insert(data, client)
      message = rf'confirmed (\d+) items. Table {reverb_testing.TABLE!r} holds '
      self.assertRegex(logs.output[0], message)
      confirmed = int(re.search(message, logs.output[0])[1])
      self.assertBetween(confirmed, 1, reverb_testing.size(client))
      self.assertLess(confirmed, 3 * _LARGE_EPISODES)
      _insert(data.take(1), client)  # The server still works.

  # The identity of items.

  def test_two_writers_of_the_same(self):
    data = golden.stacked(_EPISODES)
    count, few = (len(reverb_testing.pairs(_EPISODES[:n])) for n in (40, 9))
    windows = windows_lib.Windows(3, 2, 'tile')
    other = items.TableItems(_OTHER, windows, priority=7.0)
    write_in = functools.partial(_insert, identity=_IDENTITY)
    with reverb_testing.reverb_server(data) as client:
      _insert(data, client)
      expected = _items_of(client)
    with reverb_testing.reverb_server(
        data, tables=(reverb_testing.TABLE, _OTHER)
    ) as client:
      self.assertEqual(
          write_in(data.take(9), client), {reverb_testing.TABLE: (few, 0)}
      )
      counts = write_in(data, client, [_PAIRS, other])
      self.assertEqual(counts[reverb_testing.TABLE], (count - few, few))
      # Items that the other inserts concurrently may be counted by both.
      with futures.ThreadPoolExecutor(2) as pool:
        both = list(pool.map(write_in, [data] * 2, [client.server_address] * 2))
      self.assertEqual(both, [{reverb_testing.TABLE: (0, count)}] * 2)
      self.assertEqual(_items_of(client), expected)

  # The data. Rewards are 10 * (100 * episode + step).

  @parameterized.named_parameters(
      (
          'too_long',
          items.TableItems(_OTHER, None, max_sequence_length=6),
          'Episode 2 has more frames than the 6',
      ),
      (
          'priority',
          items.TableItems(_OTHER, priority=lambda x: 1900 - x.reward[0]),
          "table 'other_table' returned -100.0 for the item that starts at",
      ),
      (
          'infinite_priority',
          items.TableItems(
              _OTHER,
              priority=lambda x: 1 / tf.abs(x.reward[0] - 2020),
          ),
          "table 'other_table' returned inf for the item that starts at",
      ),
      (
          'priority_function_that_fails',
          items.TableItems(
              _OTHER,
              priority=lambda item: tf.debugging.check_numerics(
                  1 / tf.abs(item.reward[0] - 2020), 'odd reward'
              ),
          ),
          'odd reward',
      ),
      (
          'two_of_one_id',
          items.TableItems(_OTHER),
          'Two episodes have the episode_id 4,',
          {'identity': _IDENTITY, 'episode_id': 'name'},
      ),
  )
  @pytest.mark.few(2)
  def test_episode_that_is_refused(self, other, message, options=()):
    # The third is the last of a batch.
    names = tf.data.Dataset.from_tensor_slices([4, 5, 4, 6, 7])
    data = tf.data.Dataset.zip((golden.batched(_EPISODES[:5]), names))
    data = data.map(lambda episode, name: {**episode, 'name': name})
    settings = [_PAIRS, other], dict(options)
    errors = (ValueError, tf.errors.InvalidArgumentError)
    parent = self.parent()
    with self.assertRaisesRegex(errors, message):
      self.write(data, parent, settings[0], **settings[1])
    self.assertEmpty(os.listdir(parent))
    with reverb_testing.reverb_server(
        data, tables=(reverb_testing.TABLE, _OTHER)
    ) as client:
      with self.assertLogs(level='ERROR') as logs:
        with self.assertRaisesRegex(errors, message):
          _insert(data, client, settings[0], **settings[1])
      self.assertIn('Failed when the server had confirmed', logs.output[0])
      count = len(reverb_testing.pairs(_EPISODES[:2]))
      self.assertLen(_items_of(client), count)
      if other.windows is None:
        count = 2
      self.assertEqual(reverb_testing.size(client, _OTHER), count)


if __name__ == '__main__':
  tf.test.main()
