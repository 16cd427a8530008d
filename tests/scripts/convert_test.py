"""Tests of the program that converts, run and killed as users do it."""

import glob
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time

from absl.testing import absltest
from absl.testing import parameterized
import pytest

from rlds2reverb.replay.checkpoint import records
from tests import terminals
from tests.jobs import data_sets
from tests.jobs import job_testing
from tests.scripts import in_process
from tests.scripts import programs

_LENGTHS = [3 + index % 5 for index in range(24)]
_PAIRS = job_testing.pairs(enumerate(_LENGTHS))
_TIMEOUT_SECONDS = 300


def _start(*args, **kwargs):
  return subprocess.Popen(
      [sys.executable, '-m', 'scripts.convert', *args],
      env=programs.environment(),
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
      **kwargs,
  )


def _limit(kind, size):
  return lambda: resource.setrlimit(kind, (size, size))


@pytest.mark.long
class ConvertTest(job_testing.JobTestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.folder = cls.enter_context(tempfile.TemporaryDirectory())
    cls.data = data_sets.numbered(
        os.path.join(cls.folder, 'data'), _LENGTHS, per_file=3
    )

  def _wait_for_tasks(self, process, job, count):
    """Waits until this many tasks are done of those that are not done yet."""
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    receipts = lambda: glob.glob(os.path.join(job, 'receipts', '*.json'))
    count += len(receipts())
    while len(receipts()) < count:
      self.assertIsNone(process.poll())
      self.assertLess(time.monotonic(), deadline)
      time.sleep(0.02)

  def test_a_server_is_filled_by_a_job_that_is_stopped_and_killed(self):
    server = self.start_server()
    job = self.new('job')
    args = (
        f'--dataset={self.data}',
        f'--server_address=localhost:{server.port}',
        f'--job_dir={job}',
        '--task_mb=0.0001',  # 24 tasks: most are left whenever it is stopped.
    )
    # A shell starts jobs in the background with Ctrl-C ignored.
    for num_done, sent, of_ctrl_c, num_workers in (
        (1, signal.SIGINT, signal.SIG_DFL, 1),
        (3, signal.SIGTERM, signal.SIG_IGN, 2),
        (3, signal.SIGKILL, signal.SIG_DFL, 2),
    ):
      process = _start(
          *args,
          f'--num_workers={num_workers}',
          preexec_fn=lambda of=of_ctrl_c: signal.signal(signal.SIGINT, of),
          start_new_session=True,
      )
      self.addCleanup(process.kill)
      self._wait_for_tasks(process, job, num_done)
      process.send_signal(sent)
      _, stderr = process.communicate(timeout=60)
      if sent != signal.SIGKILL:
        self.assertEqual(process.returncode, 130, stderr)
        self.assertIn('Run the same command again to resume.', stderr)
        self.assertNotIn('Traceback', stderr)
      # Workers end with the program, whose group they are in.
      deadline = time.monotonic() + 10
      with self.assertRaises(ProcessLookupError):
        while time.monotonic() < deadline:
          os.killpg(process.pid, 0)
          time.sleep(0.02)
    result = programs.run('convert', *args, '--num_workers=1')
    self.assertEqual(result.returncode, 0, result.stderr)
    with open(os.path.join(job, 'summary.json'), encoding='utf-8') as f:
      self.assertEqual(json.load(f)['steps'], sum(_LENGTHS))
    actual = job_testing.items_in(server.localhost_client())
    self.assertEqual(job_testing.rewards_of(actual), _PAIRS)

  def test_a_job_from_the_plan_to_the_summary(self):
    for name, text in (
        ('mine', "StepMapping.action = 'action'\nconvert.sequence_length = 3"),
        (
            'both',
            "convert.table = ['pairs', 'episodes']\n"
            'convert.sequence_length = [2, 0]',
        ),
    ):
      path = os.path.join(self.folder, f'{name}.gin')
      with open(path, 'w', encoding='utf-8') as f:
        f.write(text)
    args = ['--dataset=data', '--config=mine.gin', '--checkpoint_dir=out']
    dry, done, again, other, both = in_process.run(
        'convert',
        [
            [*args, '--dry_run'],
            args,
            args,
            [*args, '--sequence_length=2'],
            ['--dataset=data', '--config=both.gin', '--checkpoint_dir=two'],
        ],
        BUILD_WORKING_DIRECTORY=self.folder,
    )
    place = os.path.join(self.folder, 'out')
    for line in (
        'episodes: 24; files: 8',
        "action <- 'action'",
        'items of 3 frames, every 1, at an end drop',
        f'to a new Reverb checkpoint {place}',
    ):
      self.assertIn(line, dry.stdout)
    steps = sum(_LENGTHS)
    self.assertNotIn('items in', dry.stdout)
    self.assertRegex(done.stdout, rf'steps +{steps}\n')
    self.assertRegex(done.stdout, rf'items in experience +{steps - 48}\n')
    self.assertLen(job_testing.items_of(place), steps - 48)
    self.assertIn('nothing to do', again.stdout)
    for result in dry, done, again, both:
      self.assertEqual(result.code, 0, result.stderr)
    self.assertEqual(other.code, 2)
    self.assertIn('tables/0/windows/length: 3 before, 2 now', other.stderr)
    self.assertNotIn('Traceback', other.stderr)
    tables = records.read_tables(os.path.join(self.folder, 'two'))
    counts = {name: records.num_items(table) for name, table in tables.items()}
    self.assertEqual(counts, {'pairs': len(_PAIRS), 'episodes': len(_LENGTHS)})

  def test_a_disk_that_becomes_full(self):
    data = data_sets.numbered(self.new('data'), [2000, 10, 10], per_file=1)
    args = (
        f'--dataset={data}',
        f'--checkpoint_dir={self.new()}',
        '--task_mb=0.001',
    )
    # A file that would become larger than 64 KiB fails like one on a full disk.
    result = programs.run(
        'convert', *args, preexec_fn=_limit(resource.RLIMIT_FSIZE, 1 << 16)
    )
    self.assertEqual(result.returncode, 1, result.stderr)
    self.assertIn('1 of 3 tasks have failed', result.stderr)
    self.assertIn('could not be written', result.stderr)
    self.assertNotIn('Traceback', result.stderr)
    result = programs.run('convert', *args)
    self.assertEqual(result.returncode, 0, result.stderr)
    self.assertIn('done already: 2', result.stdout)
    self.assertRegex(result.stdout, 'steps +2,020')

  def _run_on_small_disk(self, folder, setup, *args):
    """Runs the program with a separate file system in a folder."""
    script = f'mount -t tmpfs -o size=3m tmpfs {folder} && {setup} exec "$@"'
    user = [] if os.geteuid() == 0 else ['--map-root-user']
    return subprocess.run(
        ['unshare', '--mount', *user, 'sh', '-c', script, 'sh']
        + [sys.executable, '-m', 'scripts.convert', *args],
        env=programs.environment(),
        capture_output=True,
        text=True,
        check=False,
    )

  @parameterized.parameters('checkpoint', 'rlds', 'statistics')
  def test_a_full_disk_ends_the_job_at_once(self, kind):
    folder = self.create_tempdir().full_path
    # Each part fits, and the first ones fill the disk.
    data = data_sets.numbered(self.new('data'), [300] * 60, per_file=1)
    result = self._run_on_small_disk(
        folder,
        f'head -c {2_900_000} /dev/zero > {folder}/file &&',
        f'--dataset={data}',
        f'--{kind}_dir={folder}/out',
        '--task_mb=0.001',
        '--num_workers=2',
    )
    self.assertEqual(result.returncode, 1, result.stderr)
    message = result.stderr.splitlines()[-1]
    self.assertRegex(
        message,
        f'^{folder}/out.job cannot be written: No space left on device. Free'
        r' space there\. \d+ of 60 tasks are done\. Start the same command'
        r' again to do the rest\.$',
    )
    self.assertEqual(result.stderr.count('No space left'), 1)
    self.assertNotIn('Traceback', result.stderr)

  def test_a_disk_that_cannot_be_written(self):
    folder, job = self.create_tempdir().full_path, self.new('job')
    for setup, args, path in (
        (f'mount -o remount,ro {folder} &&', [], f'{folder}/out.job'),
        (
            f'mount -o remount,ro {folder} &&',
            [f'--job_dir={job}'],
            f'{folder}/out',
        ),
        # The folder of the job is writable, but the folder of the parts is not.
        (
            f'mkdir -p {job}/parts && mount --bind -o ro {job}/parts'
            f' {job}/parts && mount -o remount,bind,ro {job}/parts &&',
            [f'--job_dir={job}'],
            job,
        ),
    ):
      result = self._run_on_small_disk(
          folder,
          setup,
          f'--dataset={self.data}',
          f'--checkpoint_dir={folder}/out',
          '--task_mb=0.0005',
          '--num_workers=2',
          *args,
      )
      self.assertEqual(result.returncode, 1, result.stderr)
      message = result.stderr.splitlines()[-1]
      self.assertStartsWith(
          message, f'{path} cannot be written: Read-only file system.'
      )
      self.assertEqual(message.count(folder), path.count(folder), message)
      self.assertEqual(result.stderr.count('Read-only'), 1)

  @parameterized.parameters((1, 100), (2, 0))
  def test_terminal_shows_a_progress_bar(self, num_workers, columns):
    data = data_sets.numbered(self.new('data'), [400] * 12, per_file=1)
    with terminals.open_terminal(columns) as terminal:
      args = [
          f'--dataset={data}',
          f'--checkpoint_dir={self.new()}',
          f'--num_workers={num_workers}',
          '--task_mb=0.001',
      ]
      streams = dict.fromkeys(
          ['stdin', 'stdout', 'stderr'], terminal.descriptor
      )
      result = subprocess.run(
          [sys.executable, '-m', 'scripts.convert', *args],
          env=programs.environment(),
          check=False,
          **streams,
      )
    self.assertEqual(result.returncode, 0)
    _, _, shown = terminal.text.partition('the job is stored in')
    bars, _, summary = shown.rpartition('\r\nepisodes ')
    self.assertIn('4,800', summary)
    self.assertRegex(bars, r' 0%\| +\| 0/12 \[00:00\]')
    self.assertRegex(bars, r'\r100%\|█+\| 12/12 \[00:\d\d, [\d,]+ steps/s')

  def test_limited_address_space_raises_one_line_error(self):
    args = f'--dataset={self.data}', '--rlds_dir=x'
    result = programs.run(
        'convert', *args, preexec_fn=_limit(resource.RLIMIT_AS, 10**9)
    )
    self.assertEqual(result.returncode, 1)
    self.assertEqual(
        result.stderr,
        'The address space is limited to 1,000 MB (ulimit -v), and TensorFlow'
        ' needs 2,500 MB and more.\n',
    )


if __name__ == '__main__':
  absltest.main()
