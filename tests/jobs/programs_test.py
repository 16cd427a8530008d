"""Tests of the shared flags, signal handling and logging of the programs."""

import os
import signal
import subprocess
import sys
import time
from unittest import mock

from absl import app
from absl import flags
from absl.testing import absltest
from absl.testing import flagsaver
from absl.testing import parameterized
import numpy as np
import pytest

from rlds2reverb.jobs import flags as flags_lib
from rlds2reverb.jobs import usage

flags_lib.define_source_flags()
flags.DEFINE_integer('num_workers', 1, 'For the test.')
flags.DEFINE_multi_string('names', ['a'], 'For the test.')


class FlagsTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = self.create_tempdir().full_path
    self.enter_context(
        mock.patch.dict(os.environ, BUILD_WORKING_DIRECTORY=self.folder)
    )

  def _sources(self, *args, **values):
    defaults = {'dataset': ['data'], 'split': ['train'], 'num_workers': 1}
    with flagsaver.flagsaver(**{**defaults, 'names': ['a'], **values}):
      found = flags_lib.sources_from_flags('convert', *args)
      return found, flags.FLAGS.num_workers, flags.FLAGS.names

  def test_paths_are_relative_to_the_working_directory(self):
    os.mkdir(os.path.join(self.folder, 'data'))
    with open(
        os.path.join(self.folder, 'mine.gin'), 'w', encoding='utf-8'
    ) as f:
      f.write("StepMapping.action = 'torque'\n")
    (source,), *_ = self._sources(config=['mine.gin'], data_dir='here')
    at = lambda name: os.path.join(self.folder, name)
    self.assertEqual(
        (source.dataset, source.data_dir, source.config, source.bindings),
        (
            at('data'),
            at('here'),
            at('mine.gin'),
            "StepMapping.action = 'torque'",
        ),
    )
    # A name is unchanged. A single split applies to all data sets.
    sources, *_ = self._sources(dataset=['some_name/v2', 'b'], split=['test'])
    self.assertEqual(sources[0].dataset, 'some_name/v2')
    self.assertEqual([source.split for source in sources], ['test'] * 2)

  def test_options_of_readers(self):
    for name in 'a.npz', 'b.npz':
      np.savez(os.path.join(self.folder, name), obs_state=np.zeros(3))
    sources, *_ = self._sources(
        dataset=['a.npz', 'b.npz'],
        gin_binding=["load_flat_arrays.episode_column = 'old'"],
        column_names=['observations=obs_state', ' actions = act', 'rewards='],
        episode_column='run',
        max_episode_steps=5,
    )
    for source in sources:
      self.assertEqual(
          source.get_reader_options(),
          {
              'column_names': {
                  'observations': 'obs_state',
                  'actions': 'act',
                  'rewards': None,
              },
              'episode_column': 'run',
              'max_episode_steps': 5,
          },
      )
    with self.assertRaisesRegex(app.UsageError, "such as .*has 'obs'"):
      self._sources(column_names=['obs'])
    with self.assertRaisesRegex(app.UsageError, 'no option .episode_column'):
      self._sources(dataset=['x'], format=['zarr'], episode_column='run')

  def test_a_mixture(self):
    sources, num_workers, _ = self._sources(
        'oxe_magic_soup',
        dataset=None,
        data_dir='here',
        gin_binding=['convert.num_workers = 3', 'FitImages.sizes = {}'],
    )
    self.assertEqual(num_workers, 3)
    self.assertLen(sources, 25)
    place = os.path.join(self.folder, 'here', 'bridge_dataset')
    self.assertEqual(
        (sources[2].dataset, sources[2].config), (place, 'bridge_dataset')
    )
    self.assertEndsWith(sources[2].bindings, 'FitImages.sizes = {}')

  def test_bindings_set_flags_absent_from_the_command_line(self):
    bindings = [
        'convert.num_workers = 5',
        "convert.names = ['b', 'c']",
        'describe.anything = 7',
    ]
    _, num_workers, names = self._sources(gin_binding=bindings)
    self.assertEqual((num_workers, names), (5, ['b', 'c']))
    with mock.patch.object(flags.FLAGS['num_workers'], 'present', 1):
      self.assertEqual(self._sources(gin_binding=bindings)[1], 1)
    invalid = ["convert.num_workers = 'many'"]
    with self.assertRaisesRegex(app.UsageError, "is bound to 'many'"):
      self._sources(gin_binding=invalid)


class _Deleted:
  """Calls a function in `__del__`, where Python ignores exceptions."""

  def __init__(self, function):
    self._function = function

  def __del__(self):
    self._function()


class StopSignalsTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self._reports = self.enter_context(mock.patch.object(sys, 'unraisablehook'))

  def test_signal_ends_wait_or_raises_keyboard_interrupt(self):
    original_handler = signal.getsignal(signal.SIGTERM)
    with usage.StopSignals() as signals:
      signals.hold()
      os.kill(os.getpid(), signal.SIGTERM)
      self.assertTrue(signals.wait())
    self.assertEqual(signal.getsignal(signal.SIGTERM), original_handler)
    self.assertIs(sys.unraisablehook, self._reports)
    with self.assertRaises(KeyboardInterrupt):
      with usage.StopSignals():
        os.kill(os.getpid(), signal.SIGTERM)
    self.assertEqual(signal.getsignal(signal.SIGTERM), original_handler)

  def test_lost_interrupt_is_raised_again(self):
    stop = lambda: os.kill(os.getpid(), signal.SIGTERM)
    original_handler = signal.getsignal(signal.SIGALRM)
    after_it = []
    with self.assertRaises(KeyboardInterrupt):
      with usage.StopSignals():
        _Deleted(lambda: 1 / 0)
        _Deleted(stop)
        try:
          time.sleep(4)
          after_it.append('work')
        finally:
          _Deleted(lambda: [][0])
    _Deleted(lambda: [][0])
    self.assertEqual(signal.getsignal(signal.SIGALRM), original_handler)
    self.assertEmpty(after_it)
    # Python reports the exception that it ignored before.
    [report] = [each.args[0].exc_type for each in self._reports.call_args_list]
    self.assertIs(report, ZeroDivisionError)
    with self.assertRaises(KeyboardInterrupt):
      with usage.StopSignals():
        try:
          stop()
        except KeyboardInterrupt as error:
          raise RuntimeError('As C++ may do.') from error


class RunTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('flags', 'flag', 'SIGTERM', 130, 'Interrupted.'),
      ('the_program', 'main', 'SIGTERM', 130, 'Interrupted.'),
      ('one_signal_that_comes_twice', 'twice', 'SIGINT', 130, 'Interrupted.'),
      ('a_second_signal', 'second', 'SIGTERM', 130, ''),
      ('a_thread_at_the_end', 'thread', 'SIGTERM', 3, ''),
      ('a_function_at_the_end', 'atexit', 'SIGINT', 3, ''),
      ('the_very_end', 'del', 'SIGTERM', 3, ''),
  )
  @pytest.mark.long
  def test_exit_code_and_message_after_signal(self, when, name, code, message):
    program = """
import atexit, os, signal, sys, threading, time
from absl import flags
from rlds2reverb.jobs import usage

def stop(when, argv=tuple(sys.argv), os=os, signal=signal):
  if argv[1] == f'--when={when}':
    os.kill(os.getpid(), getattr(signal, argv[2][len('--signal='):]))

class Last:
  def __del__(self, stop=stop):
    stop('del')

last = Last()

def is_valid(value):
  if value:
    stop('flag')
  return True

def main():
  threading.Thread(target=later).start()
  atexit.register(stop, 'atexit')
  stop('main')
  try:
    stop('twice')
    stop('second')
  except KeyboardInterrupt:
    stop('twice')
    if flags.FLAGS.when == 'second':
      time.sleep(1.1)
      stop('second')
      print('Not at once.')
    raise
  return 3

def later():
  threading.main_thread().join(0 if flags.FLAGS.when != 'thread' else 0.5)
  stop('thread')

flags.DEFINE_string('when', None, '')
flags.DEFINE_string('signal', None, '')
flags.register_validator('when', is_valid)
usage.run(main)
"""
    done = subprocess.run(
        [sys.executable, '-c', program, f'--when={when}', f'--signal={name}'],
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    self.assertEqual(done.returncode, code, done.stderr)
    self.assertEqual(done.stderr.strip(), message)
    self.assertEmpty(done.stdout)


def _run_program(program, paths=None):
  """Runs a program in another process, which imports from `paths`."""
  return subprocess.run(
      [sys.executable, '-c', program],
      env={**os.environ, 'PYTHONPATH': os.pathsep.join(paths or sys.path)},
      capture_output=True,
      text=True,
      check=False,
  )


class QuietTest(absltest.TestCase):

  def test_quiet_stderr_removes_lines(self):
    program = """
import os
from rlds2reverb.jobs import usage
with usage.quiet_stderr(r'^\\[noise\\]'):
  os.write(2, b'[noise] of C++\\nof use\\n')
os.write(2, b'[noise] later\\n')
with usage.quiet_stderr('noise'):
  os.write(2, b'why\\n')
  raise ValueError('what')
"""
    done = _run_program(program)
    lines = done.stderr.splitlines()
    self.assertEqual(lines[:3], ['of use', '[noise] later', 'why'])
    self.assertEqual(lines[-1], 'ValueError: what')

  def test_output_of_abort_in_cpp_is_printed(self):
    # A fake TensorFlow whose import aborts.
    folder = self.create_tempdir()
    folder.create_file(
        'tensorflow.py',
        "import os\nos.write(2, b'terminate called: no thread\\n')\nos.abort()",
    )
    paths = [folder.full_path, *sys.path]
    done = _run_program(
        'from rlds2reverb.jobs import usage\nusage.quiet_logs()', paths
    )
    self.assertEqual(done.returncode, -signal.SIGABRT)
    self.assertStartsWith(done.stderr, 'terminate called: no thread\n')

  def test_only_useful_logs_are_printed(self):
    # As `distributed.batched` logs when it meets a closed connection.
    program = (
        'import logging, sys\n'
        'from absl import app\n'
        'from rlds2reverb.jobs import usage\n'
        'def main(_):\n'
        '  usage.quiet_logs()\n'
        '  dask = logging.getLogger("distributed")\n'
        '  dask.setLevel(logging.INFO)\n'
        '  dask.getChild("batched").info("Batched Comm Closed")\n'
        '  dask.getChild("client").error("Failed to reconnect")\n'
        '  logging.info("info")\n'
        '  logging.warning("apitools not found")\n'
        '  logging.warning("of use")\n'
        'app.run(main)'
    )
    done = _run_program(program)
    self.assertEqual(done.returncode, 0, done.stderr)
    lines = done.stderr.splitlines()
    self.assertLen(lines, 1, done.stderr)
    self.assertEndsWith(lines[0], '] of use')


if __name__ == '__main__':
  absltest.main()
