"""Tests of jobs on Beam, beside those in this process."""

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import unittest
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pytest
import reverb
import tensorflow as tf

from rlds2reverb.jobs import convert
from rlds2reverb.jobs import job as job_lib
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import tasks
from tests import ram_files  # noqa: F401
from tests.jobs import data_sets
from tests.jobs import job_testing

_FN_API = '--runner=FnApiRunner'
_BUNDLE_BASED = '--runner=BundleBasedDirectRunner'
_PROCESSES = (
    _FN_API,
    '--direct_num_workers=2',
    '--direct_running_mode=multi_processing',
)
_WORKER = 'apache_beam.runners.worker.sdk_worker_main'
_needs_beam = unittest.skipIf(
    importlib.util.find_spec('apache_beam') is None,
    "Apache Beam is not installed: pip install -e '.[beam]'",
)


class BeamTestCase(job_testing.JobTestCase):

  def run_on_beam(self, plan, *options, **kwargs):
    """Does a plan on Beam; returns the summary, and keeps the engine."""
    from rlds2reverb.jobs import beam_engine  # pylint: disable=g-import-not-at-top

    self.engine = beam_engine.BeamEngine(options)
    return self.convert(plan, engine=self.engine, **kwargs)


@_needs_beam
class BeamEngineTest(BeamTestCase):

  @parameterized.parameters(
      (plan_lib.CHECKPOINT, _FN_API),
      (plan_lib.RLDS, _BUNDLE_BASED),
      (plan_lib.CHECKPOINT, *_PROCESSES),
  )
  @pytest.mark.long
  def test_a_folder_is_that_of_one_process_to_the_last_bit(
      self, kind, *options
  ):
    here = self.plan(kind, self.new('output'))
    on_beam = self.plan(kind, self.new('output'))
    expected = self.convert(here)
    summary = self.run_on_beam(on_beam, *options)
    self.assertEqual(
        job_testing.contents_of(on_beam.output.place),
        job_testing.contents_of(here.output.place),
    )
    for name in expected.keys() - {
        'plan', 'output', 'seconds', 'seconds_of_tasks',
    }:  # fmt: skip
      self.assertEqual(summary[name], expected[name], name)
    self.assertEqual(
        sorted(os.listdir(self.job_folder(on_beam))),
        ['plan.json', 'quarantine.jsonl', 'receipts', 'summary.json'],
    )
    steps = sum(job_testing.LENGTHS)
    self.assertEqual(
        self.engine.counters,
        {
            'episodes': 8,
            'steps': steps,
            'items': steps - 8 if kind == plan_lib.CHECKPOINT else 0,
            'skipped': 0,
            # Three step types of int32, and five numbers of float32.
            'bytes': steps * (2 + 5) * 4,
        },
    )

  @pytest.mark.long
  def test_an_object_store(self):
    here = self.plan()
    self.convert(here)
    stored = self.plan(plan_lib.CHECKPOINT, 'ram://beam/output')
    self.run_on_beam(stored, _FN_API, folder='ram://beam/job')
    for name, content in job_testing.contents_of(here.output.place).items():
      with tf.io.gfile.GFile(f'ram://beam/output/{name}', 'rb') as f:
        self.assertEqual(f.read(), content, name)

  def test_bundles_that_fail_before_a_receipt_are_tried_again(self):
    place = f'localhost:{self.start_server().port}'
    plan = self.plan(plan_lib.SERVER, place)
    rng = np.random.default_rng(1)
    failed = []
    write = job_lib.Job.write_receipt

    def write_or_fail(job, receipt):
      failed.append(rng.random() < 0.3)
      if failed[-1]:
        raise OSError('The worker has died.')
      write(job, receipt)

    with mock.patch.object(job_lib.Job, 'write_receipt', write_or_fail):
      summary = self.run_on_beam(plan, _BUNDLE_BASED)
    self.assertGreater(sum(failed), 0)
    self.assertEqual(summary['items'], {job_testing.TABLE: 26})
    self.assertEqual(
        job_testing.rewards_of(job_testing.items_in(reverb.Client(place))),
        job_testing.ALL_PAIRS,
    )

  def test_a_job_that_fails_goes_on_where_it_was(self):
    folder = self.new('data')
    shutil.copytree(self.directory, folder)
    path = data_sets.files_of(folder)[1]
    os.rename(path, f'{path}.away')
    plan = self.plan(directory=folder)
    with self.assertRaisesRegex(
        convert.JobError, f'task 1: .*{path} is missing'
    ):
      self.run_on_beam(plan, _FN_API)
    self.assertFalse(os.path.exists(plan.output.place))
    self.assertCountEqual(self.receipts_of(plan), [0, 2, 3])
    os.rename(f'{path}.away', path)
    kept = self.receipts_of(plan)
    self.run_on_beam(plan, _FN_API)
    self.assertEqual({**self.receipts_of(plan), **kept}, self.receipts_of(plan))
    self.assertEqual(
        job_testing.rewards_of(job_testing.items_of(plan.output.place)),
        job_testing.ALL_PAIRS,
    )

  def test_runners_that_are_not_there_and_options_that_are_not_known(self):
    from rlds2reverb.jobs import beam_engine  # pylint: disable=g-import-not-at-top

    for option, message in (
        ('--runner=FlinkRuner', 'There is no runner FlinkRuner. Beam has'),
        ('--runner=no.such.Runner', 'There is no runner no.such.Runner'),
    ):
      with self.assertRaisesRegex(ValueError, re.escape(message)):
        beam_engine.BeamEngine([option])
    engine = beam_engine.BeamEngine([*_PROCESSES, '--of_an_engine=1', '--flag'])
    self.assertEqual(engine.unknown, ['flag', 'of_an_engine'])

  @pytest.mark.long
  def test_the_program(self):
    output = self.new()
    flags = (
        f'--dataset={self.directory} --checkpoint_dir={output}'
        f' --table={job_testing.TABLE} --task_mb=0.0001 --of_an_engine=1'
        f' {" ".join(_PROCESSES)}'
    )
    done = subprocess.run(
        [sys.executable, '-m', 'scripts.convert', *flags.split()],
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertIn('--of_an_engine is no flag of this program', done.stdout)
    self.assertEqual(
        job_testing.rewards_of(job_testing.items_of(output)),
        job_testing.ALL_PAIRS,
    )


@_needs_beam
@pytest.mark.long
class PortableRunnerTest(BeamTestCase):
  """A job service of Beam, in a process; its workers are processes, too."""

  def _start_job_service(self):
    """Starts a job service; returns its process and Beam's options for it."""
    folder = self.new('service')
    port_file = os.path.join(folder, 'port')
    process = subprocess.Popen(
        [
            sys.executable,
            '-m',
            'apache_beam.runners.portability.local_job_service_main',
            f'--port_file={port_file}',
            f'--staging_dir={folder}',
        ],
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
        # Its workers are in its group of processes.
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )
    self.addCleanup(process.wait)
    self.addCleanup(_kill_group, process.pid)
    deadline = time.monotonic() + 60
    while not os.path.exists(port_file) or not os.path.getsize(port_file):
      self.assertLess(time.monotonic(), deadline)
      time.sleep(0.1)
    with open(port_file, encoding='utf-8') as f:
      port = f.read()
    return process, (
        '--runner=PortableRunner',
        f'--job_endpoint=localhost:{port}',
        '--environment_type=beam:env:harness_subprocess_python:v1',
        f'--environment_config={sys.executable} -m {_WORKER}',
    )

  def test_a_worker_that_is_killed(self):
    server = self.start_server()
    plan = self.plan(
        plan_lib.SERVER, f'localhost:{server.port}', episodes_per_task=1
    )
    process, options = self._start_job_service()
    killed = []

    def kill_when_a_task_is_done():
      while not self.receipts_of(plan):
        time.sleep(0.05)
      for pid in _workers_of(process.pid):
        os.kill(pid, signal.SIGKILL)
        killed.append(pid)
      # A service that does not notice would wait for ever.
      time.sleep(10)
      _kill_group(process.pid)

    thread = threading.Thread(target=kill_when_a_task_is_done)
    thread.start()
    with self.assertRaisesRegex(
        tasks.TaskError, 'The Beam pipeline has failed'
    ):
      self.run_on_beam(plan, *options)
    thread.join()
    self.assertNotEmpty(killed)
    self.assertLess(len(self.receipts_of(plan)), 8)
    _, options = self._start_job_service()
    summary = self.run_on_beam(plan, *options)
    self.assertEqual(summary['items'], {job_testing.TABLE: 26})
    self.assertEqual(
        job_testing.rewards_of(
            job_testing.items_in(reverb.Client(plan.output.place))
        ),
        job_testing.ALL_PAIRS,
    )


def _workers_of(group):
  """Returns the ids of the Python workers in a group of processes."""
  found = []
  for name in filter(str.isdigit, os.listdir('/proc')):
    try:
      with open(f'/proc/{name}/cmdline', encoding='utf-8') as f:
        words = f.read().split('\0')
      if _WORKER in words and os.getpgid(int(name)) == group:
        found.append(int(name))
    except (FileNotFoundError, ProcessLookupError):
      pass
  return found


def _kill_group(group):
  try:
    os.killpg(group, signal.SIGKILL)
  except ProcessLookupError:
    pass


if __name__ == '__main__':
  absltest.main()
