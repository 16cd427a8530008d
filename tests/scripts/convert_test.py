"""Tests of the program that converts, run and killed as users do it."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time

from absl.testing import absltest
from absl.testing import parameterized
import pytest

from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.replay.checkpoint import records
from tests.jobs import data_sets
from tests.jobs import job_testing
from tests.scripts import in_process

_LENGTHS = [3 + index % 5 for index in range(24)]
_PAIRS = job_testing.pairs(enumerate(_LENGTHS))
_TIMEOUT_SECONDS = 300


def _start(*args, preexec_fn=None, start_new_session=False, **environment):
  return subprocess.Popen(
      [sys.executable, '-m', 'scripts.convert', *args],
      env={
          **os.environ,
          'PYTHONPATH': os.pathsep.join(sys.path),
          **environment,
      },
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
      preexec_fn=preexec_fn,
      start_new_session=start_new_session,
  )


def _run(*args, **kwargs):
  process = _start(*args, **kwargs)
  stdout, stderr = process.communicate(timeout=_TIMEOUT_SECONDS)
  return subprocess.CompletedProcess(args, process.returncode, stdout, stderr)


class ConvertTest(job_testing.JobTestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = tempfile.TemporaryDirectory()
    cls.addClassCleanup(folder.cleanup)
    cls.folder = folder.name
    cls.data = data_sets.numbered(
        os.path.join(folder.name, 'data'), _LENGTHS, per_file=3
    )

  @pytest.mark.long
  def test_a_server_is_filled_by_a_job_that_is_killed(self):
    server = self.start_server()
    job = self.new('job')
    args = (
        f'--dataset={self.data}',
        f'--server_address=localhost:{server.port}',
        f'--job_dir={job}',
        '--num_workers=2',
        '--task_mb=0.001',  # Four episodes or so.
    )
    for num_done in 1, 3:
      process = _start(*args, start_new_session=True)
      self.addCleanup(process.communicate)
      self.addCleanup(process.kill)
      self._wait_for_receipts(process, job, num_done)
      process.kill()
      process.wait()
      self._check_all_end(process)
    result = _run(*args)
    self.assertEqual(result.returncode, 0, result.stderr)
    with open(os.path.join(job, 'summary.json'), encoding='utf-8') as f:
      self.assertEqual(json.load(f)['steps'], sum(_LENGTHS))
    found = job_testing.items_in(server.localhost_client())
    self.assertEqual(job_testing.rewards_of(found), _PAIRS)
    # The keys, too, are those of a job that nobody has disturbed.
    undisturbed = self.plan(
        plan_lib.CHECKPOINT,
        self.new(),
        directory=self.data,
        episodes_per_task=24,
    )
    self.convert(undisturbed)
    self.assertEqual(found, job_testing.items_of(undisturbed.output.place))

  def _check_all_end(self, process):
    """Checks that workers end with the program, whose group they are in."""
    deadline = time.monotonic() + 10
    with self.assertRaises(ProcessLookupError):
      while time.monotonic() < deadline:
        os.killpg(process.pid, 0)
        time.sleep(0.02)

  def _wait_for_receipts(self, process, job, count):
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while len(_names(os.path.join(job, 'receipts'))) < count:
      self.assertIsNone(process.poll())
      self.assertLess(time.monotonic(), deadline)
      time.sleep(0.02)

  @pytest.mark.long
  def test_a_job_from_the_plan_to_the_summary(self):
    user = {'BUILD_WORKING_DIRECTORY': self.folder}
    with open(
        os.path.join(self.folder, 'mine.gin'), 'w', encoding='utf-8'
    ) as f:
      f.write("StepMapping.action = 'action'\nconvert.sequence_length = 3\n")
    args = ('--dataset=data', '--config=mine.gin', '--checkpoint_dir=out')
    result = _run(*args, '--dry_run', **user)
    self.assertEqual(result.returncode, 0, result.stderr)
    place = os.path.join(self.folder, 'out')
    for line in (
        'episodes: 24; files: 8',
        "action <- 'action'",
        'items of 3 frames, every 1, at an end drop',
        f'to a new Reverb checkpoint {place}',
    ):
      self.assertIn(line, result.stdout)
    self.assertFalse(os.path.exists(place))
    self.assertFalse(os.path.exists(f'{place}.job'))

    result = _run(*args, **user)
    self.assertEqual(result.returncode, 0, result.stderr)
    steps = sum(_LENGTHS)
    self.assertRegex(result.stdout, rf'steps +{steps}\n')
    self.assertRegex(result.stdout, rf'items in experience +{steps - 48}\n')
    self.assertLen(job_testing.items_of(place), steps - 48)

    result = _run(*args, **user)
    self.assertEqual(result.returncode, 0, result.stderr)
    self.assertIn('nothing to do', result.stdout)

    result = _run(*args, '--sequence_length=2', **user)
    self.assertEqual(result.returncode, 2)
    self.assertIn('tables/0/windows/length: 3 before, 2 now', result.stderr)
    self.assertNotIn('Traceback', result.stderr)

  @pytest.mark.long
  def test_how_to_have_a_task_for_each_worker(self):
    args = (
        f'--dataset={self.data}',
        f'--checkpoint_dir={self.new()}',
        '--dry_run',
        '--num_workers=2',
    )
    result = _run(*args)
    self.assertEqual(result.returncode, 0, result.stderr)
    said = r'^1 task for 2 workers; (--task_mb=\S+) makes (\d+)\n'
    self.assertRegex(result.stdout, said)
    flag, count = re.match(said, result.stdout).groups()
    self.assertGreaterEqual(int(count), 2)
    result = _run(*args, flag)
    self.assertEqual(result.returncode, 0, result.stderr)
    self.assertNotIn('for 2 workers', result.stdout)
    self.assertIn(f'\ntasks: {count}, done already: 0', result.stdout)

  @parameterized.parameters(
      (signal.SIGINT, signal.SIG_DFL), (signal.SIGTERM, signal.SIG_IGN)
  )
  @pytest.mark.long
  def test_it_stops_at_once_and_says_how_to_go_on(self, sent, of_ctrl_c):
    job = self.new('job')
    process = _start(
        f'--dataset={self.data}',
        f'--checkpoint_dir={self.new()}',
        f'--job_dir={job}',
        '--num_workers=2',
        '--task_mb=0.0001',
        # A shell starts jobs in the background with Ctrl-C ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, of_ctrl_c),
        start_new_session=True,
    )
    self.addCleanup(process.kill)
    self._wait_for_receipts(process, job, 1)
    process.send_signal(sent)
    _, stderr = process.communicate(timeout=60)
    self.assertEqual(process.returncode, 130, stderr)
    self.assertIn('the same command goes on', stderr)
    self.assertNotIn('Traceback', stderr)
    self._check_all_end(process)

  @pytest.mark.long
  def test_a_disk_that_becomes_full(self):
    data = data_sets.numbered(self.new('data'), [2000, 10, 10], per_file=1)
    args = (
        f'--dataset={data}',
        f'--checkpoint_dir={self.new()}',
        '--task_mb=0.001',
    )
    # A file that would become larger than 64 KiB fails like one on a full disk.
    result = _run(
        *args,
        preexec_fn=lambda: resource.setrlimit(
            resource.RLIMIT_FSIZE, (1 << 16, 1 << 16)
        ),
    )
    self.assertEqual(result.returncode, 1, result.stderr)
    self.assertIn('1 of 3 tasks have failed', result.stderr)
    self.assertIn('could not be written', result.stderr)
    self.assertNotIn('Traceback', result.stderr)
    result = _run(*args)
    self.assertEqual(result.returncode, 0, result.stderr)
    self.assertIn('done already: 2', result.stdout)
    self.assertRegex(result.stdout, 'steps +2,020')

  @pytest.mark.long
  def test_several_tables_by_a_config(self):
    config = self.create_tempfile(
        'mine.gin',
        "convert.table = ['pairs', 'episodes']\n"
        'convert.sequence_length = [2, 0]\n',
    ).full_path
    output = self.new()
    code, _, stderr = in_process.run(
        'convert',
        [
            [
                f'--dataset={self.data}',
                f'--config={config}',
                f'--checkpoint_dir={output}',
            ]
        ],
    )[0]
    self.assertEqual(code, 0, stderr)
    counts = {
        name: records.num_items(table)
        for name, table in records.read_tables(output).items()
    }
    self.assertEqual(counts, {'pairs': len(_PAIRS), 'episodes': len(_LENGTHS)})

  @pytest.mark.long
  def test_too_little_address_space_is_said_in_one_line(self):
    limit = 1_000_000_000
    result = _run(
        f'--dataset={self.data}',
        '--rlds_dir=x',
        preexec_fn=lambda: resource.setrlimit(
            resource.RLIMIT_AS, (limit, limit)
        ),
    )
    self.assertEqual(result.returncode, 1)
    self.assertEqual(
        result.stderr,
        'The address space is limited to 1,000 MB (ulimit -v), and TensorFlow'
        ' needs 2,500 MB and more.\n',
    )

  def test_help_is_short(self):
    result = _run('--help')
    self.assertIn('rlds2reverb-convert', result.stdout)
    self.assertLess(len(result.stdout.splitlines()), 110)


def _names(folder):
  if not os.path.isdir(folder):
    return []
  return [name for name in os.listdir(folder) if not name.startswith('.')]


if __name__ == '__main__':
  absltest.main()
