"""Tests of jobs on Beam, whose processes are killed and stopped."""

import contextlib
import glob
import importlib.util
import os
import pathlib
import re
import signal
import time
from typing import Any, NamedTuple
import unittest
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import pytest
import reverb

from rlds2reverb.jobs import convert
from rlds2reverb.jobs import job as job_lib
from rlds2reverb.jobs import plan as plan_lib
from tests.jobs import data_sets
from tests.jobs import job_testing

_FN_API = '--runner=FnApiRunner'
_BUNDLE_BASED = '--runner=BundleBasedDirectRunner'
_PROCESSES = (
    _FN_API,
    '--direct_num_workers=2',
    '--direct_running_mode=multi_processing',
)
_THREADS = (*_PROCESSES[:2], '--direct_running_mode=multi_threading')
# From the default of Beam's workers, which would run in a container.
_PORTABLE = (
    '--runner=PortableRunner',
    '--job_endpoint=embed',
    '--environment_type=LOOPBACK',
)
# For all 20: BEAM_STOPS=20 EXTRA=beam bash scripts/test.sh -m '' -k signal -s
_NUM_STOPS = int(os.environ.get('BEAM_STOPS', 5))
_MOST_SECONDS_TO_STOP = 10.0


class _FirstReceiptFails(NamedTuple):
  """Fails the first run of task 1 before its receipt is written."""

  job_runner: Any
  folder: str

  def __getattr__(self, name):
    return getattr(self.job_runner, name)

  def __call__(self, number, on_progress):
    note = pathlib.Path(self.folder, 'failed')
    if number != 1 or note.exists():
      return self.job_runner(number, on_progress)
    note.touch()

    def fail(*unused_arguments):
      raise OSError('The disk is gone.')

    with mock.patch.object(job_lib.Job, 'write_receipt', fail):
      return self.job_runner(number, on_progress)


def _descendants(pid):
  """Returns the ids of the processes that one has started, directly or not."""
  children = []
  for path in glob.glob(f'/proc/{pid}/task/*/children'):
    with contextlib.suppress(OSError):
      children += map(int, pathlib.Path(path).read_text().split())
  return [*children, *sum(map(_descendants, children), [])]


def _command_of(pid):
  try:
    return pathlib.Path(f'/proc/{pid}/cmdline').read_bytes().decode()
  except OSError:
    return ''


def _is_worker(pid):
  command = _command_of(pid)
  return 'sdk_worker_main' in command and not command.startswith('/bin/sh')


def _is_pipeline(pid):
  return 'run_pipeline' in _command_of(pid)


def _wait(condition, seconds=300):
  deadline = time.monotonic() + seconds
  while not (value := condition()):
    assert time.monotonic() < deadline
    time.sleep(0.05)
  return value


@unittest.skipIf(
    importlib.util.find_spec('apache_beam') is None,
    "Apache Beam is not installed: pip install -e '.[beam]'",
)
class BeamEngineTest(job_testing.JobTestCase):

  def run_on_beam(self, plan, *options, **kwargs):
    """Does a plan on Beam; returns the summary."""
    from rlds2reverb.jobs import beam_engine

    engine = beam_engine.BeamEngine(options)
    return self.convert(plan, engine=engine, **kwargs)

  @parameterized.parameters(
      (plan_lib.CHECKPOINT, _FN_API), (plan_lib.RLDS, _BUNDLE_BASED)
  )
  @pytest.mark.long
  def test_output_is_bit_identical_to_single_process(self, kind, *options):
    here = self.plan(kind, self.new('output'))
    on_beam = self.plan(kind, self.new('output'))
    expected = self.convert(here)
    summary = self.run_on_beam(on_beam, *options)
    contents = job_testing.contents_of(on_beam.output.place)
    self.assertEqual(contents, job_testing.contents_of(here.output.place))
    names = {'episodes', 'steps', 'bytes', 'items', 'skipped', 'statistics'}
    for name in names:
      self.assertEqual(summary[name], expected[name], name)
    self.assertEqual(
        sorted(os.listdir(self.job_folder(on_beam))),
        ['plan.json', 'quarantine.jsonl', 'receipts', 'summary.json'],
    )

  # docs/scale.md has these in a table.
  @parameterized.named_parameters(
      ('bundle_based', True, _BUNDLE_BASED),
      ('fn_api', False, _FN_API),
      ('threads', False, *_THREADS),
      ('processes', False, *_PROCESSES),
      ('portable', False, *_PORTABLE),
  )
  @pytest.mark.long
  def test_runners_that_retry_tasks(self, retries, *options):
    from rlds2reverb.jobs import beam_engine

    class FailingEngine(beam_engine.BeamEngine):

      def map(self, job_runner, numbers, on_progress):
        return super().map(
            _FirstReceiptFails(job_runner, notes), numbers, on_progress
        )

    notes = self.create_tempdir().full_path
    place = f'localhost:{self.start_server().port}'
    plan = self.plan(plan_lib.SERVER, place)
    engine = FailingEngine(options)
    if retries:
      self.convert(plan, engine=engine)
    else:
      self.assert_fails(convert.JobError, 'disk is gone', plan, engine=engine)
      self.convert(plan)
    actual = job_testing.items_in(reverb.Client(place))
    self.assertEqual(job_testing.rewards_of(actual), job_testing.ALL_PAIRS)

  def test_failed_job_resumes(self):
    folder = data_sets.numbered(self.new('data'), job_testing.LENGTHS)
    path = data_sets.files_of(folder)[1]
    os.rename(path, f'{path}.away')
    plan = self.plan(directory=folder)
    message = f'task 1: {path} is missing'
    with self.assertRaisesRegex(convert.JobError, message):
      self.run_on_beam(plan, _FN_API)
    self.assertFalse(os.path.exists(plan.output.place))
    kept = self.receipts_of(plan)
    self.assertCountEqual(kept, [0, 2, 3])
    os.rename(f'{path}.away', path)
    self.run_on_beam(plan, _FN_API)
    self.assertEqual({**self.receipts_of(plan), **kept}, self.receipts_of(plan))
    actual = job_testing.items_of(plan.output.place)
    self.assertEqual(job_testing.rewards_of(actual), job_testing.ALL_PAIRS)

  def test_unknown_runners_raise(self):
    for name, message in (
        ('FlinkRuner', 'There is no runner FlinkRuner. Beam has'),
        ('no.such.Runner', 'There is no runner no.such.Runner'),
    ):
      with self.assertRaisesRegex(ValueError, re.escape(message)):
        self.run_on_beam(None, f'--runner={name}')

  def _start(self, output):
    return self.start_convert(output, *_PROCESSES)

  def _assert_resumes(self, output):
    self.assert_completes(self._start(output), output)

  # One output, because each start of the program takes several seconds.
  @pytest.mark.long
  def test_a_killed_process_ends_the_program_which_resumes(self):
    output = self.new()
    for is_victim, message in (
        (_is_worker, r'a worker has exited \(.* return code 137\)'),
        (_is_pipeline, 'its process has ended with exit code -9'),
        (None, None),  # The program itself.
    ):
      process = self._start(output)
      _wait(lambda p=process: any(map(_is_worker, _descendants(p.pid))))
      below = _descendants(process.pid)
      if message is None:
        process.kill()
        process.communicate()
      else:
        os.kill([p for p in below if is_victim(p)][-1], signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1, errors)
        # Beam starts its workers with a shell, which says 'Killed'.
        self.assertRegex(
            errors,
            r'^(\d+ of \d+ episodes.*\n)*(Killed\n)?'
            rf'The Beam pipeline has failed: {message}\. The tasks'
            r' that are done are kept: start the same command again\.\n$',
        )
      _wait(lambda b=below: not any(map(_command_of, b)), seconds=20)
      self.assertFalse(os.path.exists(output))
    self._assert_resumes(output)

  @parameterized.named_parameters(
      ('threads', *_THREADS),
      ('bundle_based', _BUNDLE_BASED),
      ('portable', *_PORTABLE),
  )
  @pytest.mark.long
  def test_a_killed_coordinator_without_worker_processes(self, *options):
    output = self.new()
    receipts = os.path.join(f'{output}.job', 'receipts', '*.json')
    for is_pipeline in True, False:  # Or the program itself.
      done = len(glob.glob(receipts))
      process = self.start_convert(output, *options)
      _wait(lambda d=done: len(glob.glob(receipts)) > d)
      below = _descendants(process.pid)
      self.assertFalse(any(map(_is_worker, below)))
      if is_pipeline:
        os.kill(next(filter(_is_pipeline, below)), signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1, errors)
        self.assertRegex(
            errors,
            r'^(\d+ of \d+ episodes.*\n)*The Beam pipeline has failed: its'
            r' process has ended with exit code -9\. The tasks that are done'
            r' are kept: start the same command again\.\n$',
        )
      else:
        process.kill()
        process.communicate()
      _wait(lambda b=below: not any(map(_command_of, b)), seconds=20)
      self.assertFalse(os.path.exists(output))
    self.assert_completes(self.start_convert(output, *options), output)

  @pytest.mark.long
  def test_one_signal_to_the_process_group_ends_the_program(self):
    # Two of three signals come before any task is done, and two tasks may end
    # before the third one comes.
    lengths = (2,) * (4 + _NUM_STOPS)
    data = data_sets.numbered(self.new('data'), lengths, per_file=1)
    output = self.new()
    receipts = os.path.join(f'{output}.job', 'receipts', '*.json')
    moments = (
        # Python starts in the pipeline process.
        lambda below, unused_done: any(map(_is_pipeline, below)),
        # Beam starts in a worker.
        lambda below, unused_done: any(map(_is_worker, below)),
        # A task is done.
        lambda unused_below, done: len(glob.glob(receipts)) > done,
    )
    for number in range(_NUM_STOPS):
      done = len(glob.glob(receipts))
      process = self.start_convert(output, *_PROCESSES, directory=data)
      is_time = moments[number % len(moments)]
      _wait(lambda p=process, d=done: is_time(_descendants(p.pid), d))
      self.assertIsNone(process.poll())
      below = _descendants(process.pid)
      which = (signal.SIGTERM, signal.SIGINT)[number % 2]
      start = time.monotonic()
      os.killpg(process.pid, which)
      _, errors = process.communicate(timeout=_MOST_SECONDS_TO_STOP)
      print(f'{number}: {which.name}, {time.monotonic() - start:.1f} s')
      self.assertEqual(process.returncode, 130, errors)
      # Beam's workers may have logged how they start.
      self.assertRegex(errors, r'(^|\n)Interrupted\. .*\n$')
      self.assertNotIn('Traceback', errors)
      _wait(lambda b=below: not any(map(_command_of, b)), seconds=10)
    self.assertLess(len(glob.glob(receipts)), len(lengths))
    process = self.start_convert(output, *_PROCESSES, directory=data)
    self.assert_completes(process, output, lengths)


if __name__ == '__main__':
  absltest.main()
