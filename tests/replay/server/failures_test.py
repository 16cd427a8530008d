"""Tests of what goes wrong: servers, disks, tables, data, and interrupts."""

from concurrent import futures
import functools
import os
import signal
import socket
import subprocess
import sys
import time
from unittest import mock

from absl import logging
from absl.testing import parameterized
import numpy as np
import pytest
import reverb
import tensorflow as tf
from tf_agents.replay_buffers import reverb_utils
from tf_agents.specs import tensor_spec

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import items
from rlds2reverb.replay.checkpoint import write
from rlds2reverb.replay.server import insert
from rlds2reverb.replay.server import insert_stream
from rlds2reverb.replay.server import push
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import report as report_lib
from rlds2reverb.trajectories import rules as rules_lib
from rlds2reverb.trajectories import specs
from tests import golden
from tests import testing
from tests.replay.server import processes

_OTHER = 'other_table'
_PAIRS = items.TableItems(testing.TABLE)
_TRANSITION = rules_lib.ConversionRules(terminal_discount='transition')
_STREAM = rules_lib.ConversionRules(validation='tf_agents')
_IDENTITY = {'name': 'data', 'split': 'train'}
# An insert request is about half a mebibyte; these rows do not compress.
_IMAGE_BYTES = 1 << 16
_LARGE_EPISODES = 40
_WAIT_SECONDS = 20

_SERVER = """
import sys, threading
import reverb
table = reverb.Table(
    sys.argv[1], sampler=reverb.selectors.Fifo(),
    remover=reverb.selectors.Fifo(), max_size=1000,
    rate_limiter=reverb.rate_limiters.MinSize(1))
print('READY', flush=True)
server = reverb.Server([table], port=int(input()) or None)
print('PORT', server.port, flush=True)
threading.Event().wait()
"""

_FULL_DISK = """
import os, resource, signal, sys
from rlds2reverb.replay.checkpoint import merge
from rlds2reverb.replay.checkpoint import write
from tests.replay.server import failures_test
parent, whole = sys.argv[1:]
path = os.path.join(parent, 'checkpoint')
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
def attempt(name, function):
  try:
    function()
  except BaseException as error:
    print(name, type(error).__name__, os.listdir(parent), error, flush=True)
  else:
    print(name, 'no error', os.listdir(parent), flush=True)
attempt('WRITE', lambda: write.write_reverb_checkpoint(
    failures_test.large_data(), path, failures_test._PAIRS))
attempt('MERGE', lambda: merge.merge_reverb_checkpoints([whole], path))
"""

_PUSH = """
import reverb
from rlds2reverb.replay import items
from rlds2reverb.replay.server import insert
import sys
from tests import golden
table = reverb.Table.queue(sys.argv[1], 1000)
server = reverb.Server([table])
counts = insert.write_rlds_to_reverb(
    golden.stacked([golden.COMPLETE]), f'localhost:{server.port}',
    items.TableItems(sys.argv[1]), timeout=10)
print('WROTE', counts[sys.argv[1]].new, flush=True)
server.stop()
"""


def large_data(actions=None):
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


def _episodes(count, lengths=(4, 2, 7, 1, 3)):
  """Episodes that differ from each other."""
  return [
      golden.make_episode(
          [1] * lengths[index % len(lengths)],
          terminal=index % 2 == 0,
          base=100 * index,
      )
      for index in range(count)
  ]


def _num_pairs(episodes):
  return sum(golden.length_of(episode) - 1 for episode in episodes)


def _spec(data):
  return specs.create_trajectory_data_spec(data)


def _server(data, **kwargs):
  return testing.reverb_server(_spec(data), **kwargs)


def _insert(data, server, tables=_PAIRS, timeout=60, **options):
  options = options_lib.ConversionOptions(**options)
  return insert.write_rlds_to_reverb(
      data, server, tables, timeout=timeout, options=options
  )


def _items_of(client):
  return sorted(testing.contents(client).items)


def _logged(log):
  """Returns the one message of a mock of a function of logging."""
  log.assert_called_once()
  message, *args = log.call_args.args
  return message % tuple(args)


def _wait_for_items(address):
  """Returns when the table holds items; after a while in any case."""
  client = reverb.Client(address)
  deadline = time.monotonic() + _WAIT_SECONDS
  while not testing.size(client) and time.monotonic() < deadline:
    time.sleep(0.02)
  # The writer hears of them a moment later.
  time.sleep(1)


def _run(script, *args, env=None):
  """Runs a script to its end; returns the lines that it prints."""
  path = os.pathsep.join(filter(None, sys.path))
  done = subprocess.run(
      processes.command(script, *args),
      capture_output=True,
      text=True,
      timeout=60,
      check=False,
      env={**os.environ, 'PYTHONPATH': path, **(env or {})},
  )
  if done.returncode:
    raise RuntimeError(done.stderr)
  return done.stdout.splitlines()


class FailuresTest(parameterized.TestCase, tf.test.TestCase):

  def _parent(self):
    return self.create_tempdir().full_path

  def _write(self, data, parent=None, table=_PAIRS, reverb_tables=(), **kwargs):
    """Writes a checkpoint; returns its directory."""
    path = os.path.join(parent or self._parent(), 'checkpoint')
    write.write_reverb_checkpoint(
        data,
        path,
        table,
        reverb_tables=reverb_tables,
        options=options_lib.ConversionOptions(**kwargs),
    )
    return path

  # The server.

  @parameterized.parameters(False, True)
  @pytest.mark.long
  def test_killed_server(self, comes_back):
    server, successor = [
        processes.ServerProcess(_SERVER, testing.TABLE) for _ in range(2)
    ]
    self.addCleanup(server.kill)
    self.addCleanup(successor.kill)
    server.serve()

    def kill():
      _wait_for_items(server.address)
      server.kill()
      if comes_back:
        successor.serve(server.port)

    with self.assertRaises(insert_stream.InsertError) as raised:
      _insert(large_data({25: kill}), server.address, timeout=5)
    error = raised.exception
    self.assertBetween(error.confirmed, 1, 3 * _LARGE_EPISODES - 1)
    self.assertRegex(
        str(error),
        r'The insert stream failed: StatusCode\..* It has confirmed'
        rf' {error.confirmed} of the \d+ items',
    )
    left = f'no answer from a Reverb server at {server.address}.'
    if comes_back:  # Without what it held.
      left = f'Table {testing.TABLE!r} holds 0 items.'
    self.assertIn(left, str(error))

  @pytest.mark.long
  def test_proxy_of_the_environment(self):
    # An empty no_proxy is enough for Reverb's own client, but not for gRPC's.
    with socket.socket() as unused:
      unused.bind(('localhost', 0))  # It does not listen.
      proxy = f'http://localhost:{unused.getsockname()[1]}'
      names = ('http_proxy', 'https_proxy', 'grpc_proxy', 'all_proxy')
      environment = {
          **dict.fromkeys((*names, *map(str.upper, names)), proxy),
          'no_proxy': '',
          'no_grpc_proxy': '',
      }
      lines = _run(_PUSH, testing.TABLE, env=environment)
    self.assertIn('WROTE 3', lines)

  def test_servers_and_tables_that_are_not_there(self):
    data = golden.stacked(_episodes(3))
    with socket.socket() as unused:
      unused.bind(('localhost', 0))  # It does not listen.
      address = f'localhost:{unused.getsockname()[1]}'
      with self.assertRaisesRegex(
          ConnectionError, f'no answer from a Reverb server at {address}'
      ):
        _insert(data, address, timeout=1)
    with _server(data, tables=(testing.TABLE, _OTHER)) as client:
      with self.assertRaisesRegex(
          ValueError,
          f"has no table 'none'. .*'{testing.TABLE}', '{_OTHER}'",
      ):
        _insert(data, client, [_PAIRS, items.TableItems('none')])
      self.assertEqual(testing.size(client), 0)

  def test_signature_that_differs(self):
    data = golden.stacked(_episodes(3))
    spec = _spec(data)._replace(observation=tf.TensorSpec([3], tf.float32))
    with testing.reverb_server(spec) as client:
      with self.assertRaises(specs.SpecMismatchError) as raised:
        _insert(data, client)
      [difference] = raised.exception.differences
      self.assertIn('observation', difference)
      self.assertEqual(testing.size(client), 0)
    parent = self._parent()
    table = testing.make_table(signature=tensor_spec.add_outer_dim(spec))
    with self.assertRaises(specs.SpecMismatchError):
      self._write(data, parent, reverb_tables=[table])
    self.assertEmpty(os.listdir(parent))

  def test_table_that_is_too_small(self):
    episodes = _episodes(20)
    count = _num_pairs(episodes)
    for max_size in 10, count:  # As large as the data is not too small.
      with _server(golden.stacked(episodes), max_size=max_size) as client:
        with mock.patch.object(logging, 'warning') as warning:
          _insert(golden.stacked(episodes), client)
        self.assertEqual(testing.size(client), max_size)
      message = str(warning.call_args_list)
      self.assertEqual('is too small' in message, max_size == 10)
      if max_size == 10:
        message, *args = warning.call_args.args
        self.assertRegex(
            message % tuple(args),
            f'{count} items were inserted beside the 0 it held, but its'
            f' max_size is 10, so {count - 10} items',
        )

  def test_rate_limiter_that_blocks_for_ever(self):
    table = reverb.Table(
        testing.TABLE,
        sampler=reverb.selectors.Fifo(),
        remover=reverb.selectors.Fifo(),
        max_size=1000,
        rate_limiter=reverb.rate_limiters.SampleToInsertRatio(
            samples_per_insert=4.0, min_size_to_sample=5, error_buffer=8.0
        ),
    )
    server = reverb.Server([table])
    self.addCleanup(server.stop)
    begin = time.monotonic()
    with self.assertRaises(insert_stream.InsertError) as raised:
      _insert(golden.stacked(_episodes(50)), server, timeout=2)
    self.assertGreaterEqual(time.monotonic() - begin, 2)
    size = testing.size(server.localhost_client())
    self.assertBetween(size, 5, 10)
    self.assertEqual(raised.exception.confirmed, size)
    self.assertRegex(
        str(raised.exception),
        'The server confirmed nothing for 2 seconds..*'
        f'Table {testing.TABLE!r} holds {size} items..*'
        f'samples_per_insert=4 .* with {size} items inserted and 0 sampled',
    )

  # The disk, and Ctrl-C.

  @pytest.mark.long
  def test_full_disk(self):
    parent = self._parent()
    whole = self._write(large_data().take(3))
    lines = {line.split()[0]: line for line in _run(_FULL_DISK, parent, whole)}
    for name in ('WRITE', 'MERGE'):
      self.assertStartsWith(lines[name], f'{name} OSError []')
      self.assertIn('nothing of its folder is left', lines[name])
    self.assertEmpty(os.listdir(parent))

  @parameterized.parameters(1, 25)
  def test_interrupts(self, episode):
    # A shell starts what runs in the background with Ctrl-C ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    self.addCleanup(signal.signal, signal.SIGINT, before)
    addresses = []

    def interrupt():
      if addresses and episode > 20:
        _wait_for_items(addresses[0])
      os.kill(os.getpid(), signal.SIGINT)

    data = large_data({episode: interrupt})
    parent = self._parent()
    with self.assertRaises(KeyboardInterrupt):
      self._write(data, parent)
    self.assertEmpty(os.listdir(parent))
    with _server(data) as client:
      addresses.append(client.server_address)
      with mock.patch.object(logging, 'error') as log:
        with self.assertRaises(KeyboardInterrupt):
          _insert(data, client)
      confirmed = log.call_args.args[1]
      self.assertIn(
          f'the server had confirmed {confirmed} items. Table'
          f' {testing.TABLE!r} holds ',
          _logged(log),
      )
      self.assertEqual(confirmed > 0, episode > 20)
      self.assertLessEqual(confirmed, testing.size(client))
      self.assertLess(confirmed, 3 * _LARGE_EPISODES)
      _insert(data.take(1), client)  # The server goes on.

  # The identity of items.

  @parameterized.parameters('tile', None)
  def test_what_is_pushed_again_is_there_once(self, end):
    data = golden.stacked(_episodes(40))
    windows = end and windows_lib.Windows(3, 2, end)
    table = items.TableItems(testing.TABLE, windows)
    with _server(data) as client:
      _insert(data, client, table)
      expected = _items_of(client)
    with _server(data) as client:
      for part in (data.take(9), data, data.take(15)):
        _insert(part, client, table, identity=_IDENTITY)
      self.assertEqual(_items_of(client), expected)
      # Under another identity it is other data.
      _insert(data, client, table, identity='other')
      self.assertEqual(testing.size(client), len(expected))

  def test_two_writers_at_once(self):
    episodes = _episodes(200)
    data = golden.stacked(episodes)
    count = _num_pairs(episodes)
    with _server(data) as client:
      with futures.ThreadPoolExecutor(2) as pool:
        write_one = functools.partial(
            _insert, data, client.server_address, identity=_IDENTITY
        )
        counts = [
            each.result()[testing.TABLE]
            for each in [pool.submit(write_one) for _ in range(2)]
        ]
      self.assertEqual(list(map(sum, counts)), [count] * 2)
      # What the other inserts at the same time may count for both.
      self.assertGreaterEqual(sum(each.new for each in counts), count)
      found = _items_of(client)
    with _server(data) as client:
      _insert(data, client)
      self.assertEqual(found, _items_of(client))

  def test_new_items_and_those_that_were_there(self):
    episodes = _episodes(20)
    data = golden.stacked(episodes)
    count, few = _num_pairs(episodes), _num_pairs(episodes[:9])
    other = items.TableItems(_OTHER, priority=7.0)
    write_in = functools.partial(_insert, identity=_IDENTITY)
    with _server(data, tables=(testing.TABLE, _OTHER)) as client:
      self.assertEqual(
          write_in(data.take(9), client), {testing.TABLE: (few, 0)}
      )
      self.assertEqual(
          write_in(data, client, [_PAIRS, other]),
          {testing.TABLE: (count - few, few), _OTHER: (count, 0)},
      )
      self.assertEqual(write_in(data, client), {testing.TABLE: (0, count)})
      # What was sampled away comes again.
      self.assertLen(testing.contents(client).items, count)
      observer = reverb_utils.ReverbAddTrajectoryObserver(
          client, testing.TABLE, sequence_length=2
      )
      for new in count, 0:
        report = report_lib.ConversionReport()
        options = options_lib.ConversionOptions(
            identity=_IDENTITY, report=report
        )
        frames = push.push_rlds_to_reverb(data, observer, options=options)
        self.assertEqual(frames, sum(map(golden.length_of, episodes)))
        self.assertEqual(report.inserted_items, {testing.TABLE: new})
      observer.close()

  def test_report_of_a_call_that_failed_serves_another(self):
    data = golden.stacked([golden.COMPLETE])
    report = report_lib.ConversionReport()
    with self.assertRaisesRegex(ValueError, 'timeout'):
      _insert(data, 'localhost:1', timeout=0, report=report)
    self._write(data, report=report)
    self.assertEqual(report.bootstrapped_terminals, [0])

  def test_what_stays_of_an_item_under_its_key(self):
    # A server cannot be asked for the content, so other data is not found out.
    first, second = (
        golden.stacked([each]) for each in (golden.COMPLETE, golden.TRUNCATED)
    )
    with _server(first) as client:
      for data, counts in (first, (3, 0)), (second, (0, 3)):
        found = _insert(data, client, identity=_IDENTITY)
        self.assertEqual(found, {testing.TABLE: counts})
      found = _items_of(client)
      _insert(first, client)
      self.assertEqual(found, _items_of(client))

  def test_what_differs_has_other_keys(self):
    episode = golden.COMPLETE
    half = {**episode, 'reward': episode['reward'].astype(np.float16)}
    pair = {**episode, 'action': np.stack([episode['action']] * 2, axis=1)}
    with testing.reverb_server() as client:
      for data, counts, settings in (
          (golden.stacked([episode]), (3, 0), {}),
          (golden.stacked([half]), (3, 0), {}),
          (golden.stacked([pair]), (3, 0), {}),
          (golden.stacked([episode]), (3, 0), {'rules': _TRANSITION}),
          # Read in another way it is the same.
          (
              golden.nested([episode]),
              (0, 3),
              {'chunk_length': 2, 'rules': _STREAM},
          ),
      ):
        found = _insert(data, client, identity=_IDENTITY, **settings)
        self.assertEqual(found, {testing.TABLE: counts})

  @parameterized.parameters(([4, 5, 4],), ([5, 4, 4],))
  def test_two_episodes_of_one_id(self, ids):
    episodes = _episodes(3)
    data = tf.data.Dataset.zip(
        (golden.stacked(episodes), tf.data.Dataset.from_tensor_slices(ids))
    ).map(lambda episode, name: {**episode, 'name': name})
    options = {'identity': _IDENTITY, 'episode_id': 'name'}
    parent = self._parent()
    with self.assertRaisesRegex(ValueError, 'Two episodes have the episode_id'):
      self._write(data, parent, **options)
    self.assertEmpty(os.listdir(parent))
    with _server(golden.stacked(episodes)) as client:
      with self.assertRaisesRegex(ValueError, 'Two episodes have the episode'):
        _insert(data, client, **options)
      self.assertEqual(testing.size(client), _num_pairs(episodes[:2]))

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
          "an item of table 'other_table' is -100.0: of the one that starts at",
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
  )
  def test_episode_that_one_of_two_tables_refuses(self, other, message):
    episodes = _episodes(5)
    data = golden.batched(episodes)  # The third is the last of a batch.
    with _server(data, tables=(testing.TABLE, _OTHER)) as client:
      with mock.patch.object(logging, 'error') as log:
        with self.assertRaisesRegex(
            (ValueError, tf.errors.InvalidArgumentError), message
        ):
          _insert(data, client, [_PAIRS, other])
      self.assertStartsWith(
          _logged(log), 'Failed when the server had confirmed'
      )
      found = _items_of(client)
      self.assertEqual(
          testing.size(client, _OTHER),
          2 if other.windows is None else _num_pairs(episodes[:2]),
      )
    with _server(data) as client:
      _insert(golden.stacked(episodes[:2]), client)
      self.assertEqual(found, _items_of(client))


if __name__ == '__main__':
  tf.test.main()
