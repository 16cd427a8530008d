"""Tests of what goes wrong: servers, disks, tables, data, and interrupts."""

import os
import signal
import socket
import subprocess
import sys
import threading
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
from rlds2reverb.replay.checkpoint import merge
from rlds2reverb.replay.checkpoint import serve
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


def _with_ids(episodes, ids):
  """Episodes with a field that identifies them."""
  dtype = tf.string if isinstance(ids[0], str) else tf.int64
  return tf.data.Dataset.from_generator(
      lambda: (
          {'steps': episode, 'name': name}
          for episode, name in zip(episodes, ids)
      ),
      output_signature={
          'steps': golden.stacked_spec(episodes[0]),
          'name': tf.TensorSpec([], dtype),
      },
  )


def _num_pairs(episodes):
  return sum(golden.length_of(episode) - 1 for episode in episodes)


def _spec(data):
  return specs.create_trajectory_data_spec(data)


def _server(data, **kwargs):
  return testing.reverb_server(_spec(data), **kwargs)


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
  done = subprocess.run(
      processes.command(script, *args),
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
      timeout=60,
      check=False,
      env={
          **os.environ,
          'PYTHONPATH': os.pathsep.join(filter(None, sys.path)),
          **(env or {}),
      },
  )
  if done.returncode:
    raise RuntimeError(done.stderr)
  return done.stdout.splitlines()


class FailuresTest(parameterized.TestCase, tf.test.TestCase):

  def _parent(self):
    return self.create_tempdir().full_path

  def _write(self, data, table=_PAIRS, reverb_tables=(), **options):
    """Writes a checkpoint; returns its directory."""
    path = os.path.join(self._parent(), 'checkpoint')
    write.write_reverb_checkpoint(
        data,
        path,
        table,
        reverb_tables=reverb_tables,
        options=options_lib.ConversionOptions(**options),
    )
    return path

  def _new_process(self):
    server = processes.ServerProcess(_SERVER, testing.TABLE)
    self.addCleanup(server.kill)
    return server

  def _sorted_contents(self, client):
    return sorted(testing.contents(client).items)

  # The server.

  @pytest.mark.long
  def test_killed_server(self):
    server = self._new_process()
    server.serve()
    client = reverb.Client(server.address)

    def kill():
      _wait_for_items(server.address)
      server.kill()

    with self.assertRaisesRegex(
        insert_stream.InsertError, r'It has confirmed (\d+) of the (\d+) items'
    ) as raised:
      insert.write_rlds_to_reverb(
          large_data({25: kill}), client, _PAIRS, timeout=5
      )
    error = raised.exception
    self.assertGreater(error.confirmed, 0)
    self.assertLess(error.confirmed, 3 * _LARGE_EPISODES)
    self.assertIn(f'It has confirmed {error.confirmed} of the', str(error))
    self.assertIn('The insert stream failed: StatusCode.', str(error))
    self.assertIn(
        f'There is no answer from a Reverb server at {server.address}.',
        str(error),
    )

  @pytest.mark.long
  def test_server_that_lost_what_it_held(self):
    server, successor = self._new_process(), self._new_process()
    server.serve()
    client = reverb.Client(server.address)

    def restart():
      _wait_for_items(server.address)
      server.kill()
      successor.serve(server.port)

    with self.assertRaises(insert_stream.InsertError) as raised:
      insert.write_rlds_to_reverb(
          large_data({25: restart}), client, _PAIRS, timeout=5
      )
    error = raised.exception
    self.assertGreater(error.confirmed, 0)
    self.assertIn(f'It has confirmed {error.confirmed} of the', str(error))
    self.assertIn(f'Table {testing.TABLE!r} holds 0 items.', str(error))
    self.assertEqual(testing.size(reverb.Client(server.address)), 0)

  def test_wrong_address(self):
    with socket.socket() as unused:
      unused.bind(('localhost', 0))  # It does not listen.
      address = f'localhost:{unused.getsockname()[1]}'
      with self.assertRaisesRegex(
          ConnectionError, f'no answer from a Reverb server at {address}'
      ):
        insert.write_rlds_to_reverb(
            golden.stacked(_episodes(3)), address, _PAIRS, timeout=1
        )

  @pytest.mark.long
  def test_proxy_of_the_environment(self):
    # An empty no_proxy is enough for Reverb's own client, but not for gRPC's.
    with socket.socket() as unused:
      unused.bind(('localhost', 0))  # It does not listen.
      proxy = f'http://localhost:{unused.getsockname()[1]}'
      names = ('http_proxy', 'https_proxy', 'grpc_proxy', 'all_proxy')
      environment = {
          **dict.fromkeys(names, proxy),
          **dict.fromkeys(map(str.upper, names), proxy),
          'no_proxy': '',
          'no_grpc_proxy': '',
      }
      lines = _run(_PUSH, testing.TABLE, env=environment)
    self.assertIn('WROTE 3', lines)

  def test_no_such_table(self):
    data = golden.stacked(_episodes(3))
    with _server(data, tables=(testing.TABLE, _OTHER)) as client:
      with self.assertRaises(ValueError) as raised:
        insert.write_rlds_to_reverb(
            data, client, [_PAIRS, items.TableItems('none')]
        )
      self.assertIn("has no table 'none'", str(raised.exception))
      self.assertIn(str([testing.TABLE, _OTHER]), str(raised.exception))
      self.assertEqual(testing.size(client), 0)

  def test_signature_that_differs(self):
    data = golden.stacked(_episodes(3))
    spec = _spec(data)
    spec = spec._replace(observation=tf.TensorSpec([3], tf.float32))
    with testing.reverb_server(spec) as client:
      with self.assertRaises(specs.SpecMismatchError) as raised:
        insert.write_rlds_to_reverb(data, client, _PAIRS)
      self.assertLen(raised.exception.differences, 1)
      self.assertIn('observation', raised.exception.differences[0])
      self.assertEqual(testing.size(client), 0)
    parent = self._parent()
    with self.assertRaises(specs.SpecMismatchError):
      write.write_reverb_checkpoint(
          data,
          os.path.join(parent, 'checkpoint'),
          _PAIRS,
          reverb_tables=[
              testing.make_table(signature=tensor_spec.add_outer_dim(spec))
          ],
      )
    self.assertEmpty(os.listdir(parent))

  def test_table_that_is_too_small(self):
    episodes = _episodes(20)
    count = _num_pairs(episodes)
    data = golden.stacked(episodes)
    with _server(data, max_size=10) as client:
      with mock.patch.object(logging, 'warning') as warning:
        insert.write_rlds_to_reverb(data, client, _PAIRS)
      message, *args = warning.call_args.args
      message %= tuple(args)
      self.assertIn(f'{count} items were inserted beside the 0', message)
      self.assertIn(f'max_size is 10, so {count - 10} items', message)
      self.assertEqual(testing.size(client), 10)
    # As large as the data is not too small.
    with _server(data, max_size=count) as client:
      with mock.patch.object(logging, 'warning') as warning:
        insert.write_rlds_to_reverb(data, client, _PAIRS)
      self.assertNotIn('is too small', str(warning.call_args_list))
      self.assertEqual(testing.size(client), count)

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
      insert.write_rlds_to_reverb(
          golden.stacked(_episodes(50)),
          f'localhost:{server.port}',
          _PAIRS,
          timeout=2,
      )
    self.assertGreaterEqual(time.monotonic() - begin, 2)
    error = raised.exception
    size = testing.size(server.localhost_client())
    self.assertBetween(size, 5, 10)
    self.assertEqual(error.confirmed, size)
    for part in (
        'The server confirmed nothing for 2 seconds.',
        f'Table {testing.TABLE!r} holds {size} items.',
        'samples_per_insert=4 ',
        f'with {size} items inserted and 0 sampled',
    ):
      self.assertIn(part, str(error))

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

  def _hear_ctrl_c(self):
    # A shell starts what runs in the background with Ctrl-C ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    self.addCleanup(signal.signal, signal.SIGINT, before)

  @parameterized.parameters(1, 25)
  def test_interrupted_push(self, episode):
    self._hear_ctrl_c()

    def interrupt():
      if episode > 20:
        _wait_for_items(client.server_address)
      os.kill(os.getpid(), signal.SIGINT)

    data = large_data({episode: interrupt})
    with _server(data) as client:
      with mock.patch.object(logging, 'error') as log:
        with self.assertRaises(KeyboardInterrupt):
          insert.write_rlds_to_reverb(data, client, _PAIRS)
      log.assert_called_once()
      message, *args = log.call_args.args
      confirmed = args[0]
      self.assertIn(
          f'the server had confirmed {confirmed} items. Table'
          f' {testing.TABLE!r} holds ',
          message % tuple(args),
      )
      if episode > 20:
        self.assertGreater(confirmed, 0)
      self.assertLessEqual(confirmed, testing.size(client))
      self.assertLess(confirmed, 3 * _LARGE_EPISODES)
      # The server goes on.
      insert.write_rlds_to_reverb(data.take(1), client, _PAIRS)

  @parameterized.parameters(1, 25)
  def test_interrupted_checkpoint(self, episode):
    self._hear_ctrl_c()
    parent = self._parent()

    def interrupt():
      os.kill(os.getpid(), signal.SIGINT)

    path = os.path.join(parent, 'checkpoint')
    with self.assertRaises(KeyboardInterrupt):
      write.write_reverb_checkpoint(
          large_data({episode: interrupt}), path, _PAIRS
      )
    self.assertEmpty(os.listdir(parent))

  # The identity of items.

  @parameterized.parameters('tile', None)
  def test_what_is_pushed_again_is_there_once(self, end):
    episodes = _episodes(40)
    data = golden.stacked(episodes)
    if end is None:
      table = items.TableItems(testing.TABLE, None)
    else:
      table = items.TableItems(testing.TABLE, windows_lib.Windows(3, 2, end))
    with _server(data) as client:
      insert.write_rlds_to_reverb(data, client, table)
      expected = self._sorted_contents(client)
    with _server(data) as client:
      for part in (data.take(9), data, data.take(15)):
        insert.write_rlds_to_reverb(
            part,
            client,
            table,
            options=options_lib.ConversionOptions(identity=_IDENTITY),
        )
      self.assertEqual(self._sorted_contents(client), expected)
      # Under another identity it is other data.
      insert.write_rlds_to_reverb(
          data,
          client,
          table,
          options=options_lib.ConversionOptions(identity='other'),
      )
      self.assertEqual(testing.size(client), len(expected))

  def test_two_writers_at_once(self):
    episodes = _episodes(200)
    data = golden.stacked(episodes)
    with _server(data) as client:
      counts = []

      def write():
        counts.append(
            insert.write_rlds_to_reverb(
                data,
                client.server_address,
                _PAIRS,
                options=options_lib.ConversionOptions(identity=_IDENTITY),
            )
        )

      threads = [threading.Thread(target=write) for _ in range(2)]
      for thread in threads:
        thread.start()
      for thread in threads:
        thread.join()
      new, existing = zip(*(count[testing.TABLE] for count in counts))
      self.assertEqual(
          [sum(count[testing.TABLE]) for count in counts],
          [_num_pairs(episodes)] * 2,
      )
      # What the other inserts at the same time may count for both.
      self.assertGreaterEqual(sum(new), _num_pairs(episodes))
      self.assertLessEqual(sum(existing), _num_pairs(episodes))
      found = self._sorted_contents(client)
    with _server(data) as client:
      insert.write_rlds_to_reverb(data, client, _PAIRS)
      self.assertEqual(found, self._sorted_contents(client))

  def test_new_items_and_those_that_were_there(self):
    episodes = _episodes(20)
    data = golden.stacked(episodes)
    count, few = _num_pairs(episodes), _num_pairs(episodes[:9])
    with _server(data, tables=(testing.TABLE, _OTHER)) as client:

      def write(data, *tables):
        return insert.write_rlds_to_reverb(
            data,
            client,
            tables,
            options=options_lib.ConversionOptions(identity=_IDENTITY),
        )

      other = items.TableItems(_OTHER, priority=7.0)
      counts = write(data.take(9), _PAIRS)
      self.assertEqual(counts, {testing.TABLE: (few, 0)})
      self.assertEqual(counts[testing.TABLE].new, few)
      self.assertEqual(
          write(data, _PAIRS, other),
          {testing.TABLE: (count - few, few), _OTHER: (count, 0)},
      )
      self.assertEqual(write(data, _PAIRS), {testing.TABLE: (0, count)})
      # What was sampled away comes again.
      self.assertLen(testing.contents(client).items, count)
      self.assertEqual(write(data, _PAIRS), {testing.TABLE: (count, 0)})

  def test_report_of_new_items(self):
    episodes = _episodes(20)
    data = golden.stacked(episodes)
    with _server(data) as client:
      observer = reverb_utils.ReverbAddTrajectoryObserver(
          client, testing.TABLE, sequence_length=2
      )
      for new in (_num_pairs(episodes), 0):
        report = report_lib.ConversionReport()
        frames = push.push_rlds_to_reverb(
            data,
            observer,
            options=options_lib.ConversionOptions(
                identity=_IDENTITY, report=report
            ),
        )
        self.assertEqual(frames, sum(map(golden.length_of, episodes)))
        self.assertEqual(report.inserted_items, {testing.TABLE: new})
      observer.close()

  def test_report_of_a_call_that_failed_serves_another(self):
    data = golden.stacked([golden.COMPLETE])
    report = report_lib.ConversionReport()
    folder = self.create_tempdir().full_path
    with _server(data) as client:
      with self.assertRaisesRegex(ValueError, 'timeout'):
        insert.write_rlds_to_reverb(
            data,
            client,
            _PAIRS,
            timeout=0,
            options=options_lib.ConversionOptions(report=report),
        )
      observer = reverb_utils.ReverbAddTrajectoryObserver(
          client, testing.TABLE, sequence_length=2
      )
      with self.assertRaisesRegex(ValueError, 'timeout'):
        push.push_rlds_to_reverb(
            data,
            observer,
            timeout=0,
            options=options_lib.ConversionOptions(report=report),
        )
      observer.close()
    with self.assertRaises(FileExistsError):
      write.write_reverb_checkpoint(
          data,
          __file__,
          _PAIRS,
          options=options_lib.ConversionOptions(report=report),
      )
    write.write_reverb_checkpoint(
        data,
        os.path.join(folder, 'checkpoint'),
        _PAIRS,
        options=options_lib.ConversionOptions(report=report),
    )
    self.assertEqual(report.bootstrapped_terminals, [0])

  def test_what_stays_of_an_item_under_its_key(self):
    # A server cannot be asked for the content, so other data is not found out.
    first, second = golden.COMPLETE, golden.TRUNCATED
    with _server(golden.stacked([first])) as client:
      counts = [
          insert.write_rlds_to_reverb(
              golden.stacked([episode]),
              client,
              _PAIRS,
              options=options_lib.ConversionOptions(identity=_IDENTITY),
          )[testing.TABLE]
          for episode in (first, second)
      ]
      self.assertEqual(counts, [(3, 0), (0, 3)])
      found = testing.contents(client).items
    with _server(golden.stacked([first])) as client:
      insert.write_rlds_to_reverb(golden.stacked([first]), client, _PAIRS)
      self.assertEqual(found, testing.contents(client).items)

  def test_what_differs_has_other_keys(self):
    episode = golden.COMPLETE
    half = {**episode, 'reward': episode['reward'].astype(np.float16)}
    pair = {**episode, 'action': np.stack([episode['action']] * 2, axis=1)}
    with testing.reverb_server() as client:
      for data, settings in (
          ([episode], {}),
          ([half], {}),
          ([pair], {}),
          ([episode], dict(rules=_TRANSITION)),
      ):
        counts = insert.write_rlds_to_reverb(
            golden.stacked(data),
            client,
            _PAIRS,
            options=options_lib.ConversionOptions(
                identity=_IDENTITY, **settings
            ),
        )
        self.assertEqual(counts, {testing.TABLE: (3, 0)})
      # Read in another way it is the same.
      counts = insert.write_rlds_to_reverb(
          golden.nested([episode]),
          client,
          _PAIRS,
          options=options_lib.ConversionOptions(
              identity=_IDENTITY,
              chunk_length=2,
              rules=rules_lib.ConversionRules(validation='tf_agents'),
          ),
      )
      self.assertEqual(counts, {testing.TABLE: (0, 3)})

  @parameterized.parameters(([4, 5, 4],), ([5, 4, 4],))
  def test_two_episodes_of_one_id(self, ids):
    episodes = _episodes(3)
    parent = self._parent()
    path = os.path.join(parent, 'checkpoint')
    with self.assertRaisesRegex(ValueError, 'Two episodes have the episode_id'):
      write.write_reverb_checkpoint(
          _with_ids(episodes, ids),
          path,
          _PAIRS,
          options=options_lib.ConversionOptions(
              identity=_IDENTITY, episode_id='name'
          ),
      )
    self.assertEmpty(os.listdir(parent))
    with _server(golden.stacked(episodes)) as client:
      with self.assertRaisesRegex(
          ValueError, 'Two episodes have the episode_id'
      ):
        insert.write_rlds_to_reverb(
            _with_ids(episodes, ids),
            client,
            _PAIRS,
            options=options_lib.ConversionOptions(
                identity=_IDENTITY, episode_id='name'
            ),
        )
      self.assertEqual(testing.size(client), _num_pairs(episodes[:2]))

  # The data.

  @parameterized.named_parameters(
      (
          'too_long',
          [items.TableItems(_OTHER, None, max_sequence_length=6)],
          'Episode 2 has more frames than the 6',
      ),
      (
          'priority',
          [items.TableItems(_OTHER, priority=lambda x: 1900 - x.reward[0])],
          "an item of table 'other_table' is -100.0: of the one that starts at",
      ),
      (
          'priority_function_that_fails',
          [
              items.TableItems(
                  _OTHER,
                  priority=lambda item: tf.debugging.check_numerics(
                      1 / tf.abs(item.reward[0] - 2020), 'odd reward'
                  ),
              )
          ],
          'odd reward',
      ),
  )
  def test_episode_that_one_of_two_tables_refuses(self, others, message):
    episodes = _episodes(5)  # Rewards are 10 * (100 * episode + step).
    data = golden.stacked(episodes)
    tables = (testing.TABLE, _OTHER)
    with _server(data, tables=tables) as client:
      with mock.patch.object(logging, 'error') as log:
        with self.assertRaisesRegex(
            (ValueError, tf.errors.InvalidArgumentError), message
        ):
          insert.write_rlds_to_reverb(data, client, [_PAIRS, *others])
      log.assert_called_once()
      text = log.call_args.args[0] % log.call_args.args[1:]
      self.assertNotIn('Interrupted', text)
      self.assertIn('Failed when the server had confirmed', text)
      found = self._sorted_contents(client)
      self.assertEqual(
          testing.size(client, _OTHER),
          2 if others[0].sequence_length is None else _num_pairs(episodes[:2]),
      )
    with _server(data) as client:
      insert.write_rlds_to_reverb(golden.stacked(episodes[:2]), client, _PAIRS)
      self.assertEqual(found, self._sorted_contents(client))

  # Checkpoints.

  def test_directory_that_exists(self):
    data = golden.stacked(_episodes(3))
    path = self._write(data)
    files = sorted(os.listdir(path))
    with self.assertRaisesRegex(FileExistsError, path):
      write.write_reverb_checkpoint(data, path, _PAIRS)
    with self.assertRaisesRegex(FileExistsError, path):
      merge.merge_reverb_checkpoints([path], path)
    self.assertEqual(sorted(os.listdir(path)), files)
    self.assertEqual(os.listdir(os.path.dirname(path)), ['checkpoint'])

  def test_what_is_not_a_checkpoint(self):
    parent = self._parent()
    path = self._write(golden.stacked(_episodes(3)))
    os.remove(os.path.join(path, 'DONE'))
    merged = os.path.join(parent, 'merged')
    for wrong in (path, self._parent(), os.path.join(path, 'none')):
      with self.assertRaisesRegex(FileNotFoundError, 'not a whole Reverb'):
        serve.restore_reverb_server(wrong)
      with self.assertRaisesRegex(FileNotFoundError, 'not a whole Reverb'):
        merge.merge_reverb_checkpoints([wrong], merged)
    self.assertEmpty(os.listdir(parent))

  def test_checkpoints_of_different_tables(self):
    data = golden.stacked(_episodes(3))
    path = self._write(data)
    other = self._write(data, items.TableItems(_OTHER))
    lifo = self._write(
        data,
        reverb_tables=[
            reverb.Table(
                testing.TABLE,
                sampler=reverb.selectors.Lifo(),
                remover=reverb.selectors.Fifo(),
                max_size=100,
                rate_limiter=reverb.rate_limiters.MinSize(1),
                signature=tensor_spec.add_outer_dim(
                    specs.create_trajectory_data_spec(data)
                ),
            )
        ],
    )
    parent = self._parent()
    merged = os.path.join(parent, 'merged')
    with self.assertRaisesRegex(ValueError, f'the same tables.*{_OTHER}'):
      merge.merge_reverb_checkpoints([path, other], merged)
    with self.assertRaisesRegex(ValueError, f'{testing.TABLE!r} differs'):
      merge.merge_reverb_checkpoints([path, lifo], merged)
    with self.assertRaisesRegex(ValueError, 'must be a checkpoint'):
      merge.merge_reverb_checkpoints([], merged)
    self.assertEmpty(os.listdir(parent))


if __name__ == '__main__':
  tf.test.main()
