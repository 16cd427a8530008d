"""Kills jobs at random moments, and compares what they end with.

    python -m tests.jobs.kills_test --kills=100

A job, its workers, or it while it joins the parts, is killed; then it is
started again. When it has ended, its output must be that of a job that nobody
has killed, to the last bit. This process imports TensorFlow and does not use
it, so that jobs can be forked from it.
"""

import collections
from collections.abc import Sequence
import itertools
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

from absl import app
from absl import flags
from absl.testing import absltest
import pytest
from reverb.cc import schema_pb2

from rlds2reverb.jobs import convert
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import processes
from rlds2reverb.jobs import sources
from rlds2reverb.jobs import usage
from rlds2reverb.replay import items
from rlds2reverb.replay.checkpoint import records
from tests.jobs import data_sets
from tests.jobs import job_testing

_NUM_KILLS = flags.DEFINE_integer('kills', 100, 'How often to kill.')
_SEED = flags.DEFINE_integer('seed', 0, 'The seed of the moments.')

_LENGTHS = (3, 4, 2)
_JOBS = (
    (plan_lib.CHECKPOINT, 2),
    (plan_lib.RLDS, 2),
    (plan_lib.CHECKPOINT, 1),
    (plan_lib.STATISTICS, 4),
)
_KILLS_PER_JOB = 10


def _fork(function, *args) -> int:
  """Calls a function in a new process; returns the process id."""
  pid = os.fork()
  if pid:
    return pid
  code = 1
  try:
    function(*args)
    code = 0
  except BaseException as e:
    print(f'{type(e).__name__}: {e}', file=sys.stderr, flush=True)
  finally:
    os._exit(code)


def _is_over(pid: int) -> bool:
  """Returns whether a process has ended; it can still be waited for."""
  options = os.WEXITED | os.WNOHANG | os.WNOWAIT
  return os.waitid(os.P_PID, pid, options) is not None


def _code(pid: int) -> int:
  return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _convert(kind: str, data: str, place: str, num_workers: int) -> None:
  engine: Any = processes.InProcessEngine()
  if num_workers > 1:
    engine = processes.Processes(num_workers, fork=True)
  source = sources.open_source(sources.make_source(data))
  plan = plan_lib.make_plan(
      [source],
      plan_lib.Output(kind, place, 'train' if kind == plan_lib.RLDS else ''),
      tables=[items.TableItems('t')] if kind == plan_lib.CHECKPOINT else [],
      task_bytes=1,  # A task for each episode.
  )
  convert.convert(plan, engine=engine, print_fn=lambda text: None)


def _compare(kind: str, place: str, expected: str) -> None:
  """Exits with an error if an output is not the other one, to the last bit."""
  found, right = map(job_testing.contents_of, (place, expected))
  assert found == right, f'{place} has {sorted(found)}, not {sorted(right)}.'
  if kind == plan_lib.CHECKPOINT:
    keys = [
        schema_pb2.PrioritizedItem.FromString(item).key
        for batch in records.read_records(place, records.ITEMS)
        for item in batch
    ]
    assert len(set(keys)) == len(keys) == sum(_LENGTHS) - len(_LENGTHS), keys


def _below(pid: int) -> list[int]:
  """Returns the ids of the processes that one has started, and they."""
  children = pathlib.Path(f'/proc/{pid}/task/{pid}/children').read_text()
  return sum(([int(one), *_below(int(one))] for one in children.split()), [])


def _kill(target: str, pid: int, job: str, seconds: float) -> bool:
  """Waits, and kills a job or a process of it; returns whether it could."""
  receipts = pathlib.Path(job, 'receipts')
  if target == 'joining':
    while len(list(receipts.glob('0*.json'))) < len(_LENGTHS):
      if _is_over(pid):
        return False
      time.sleep(0.002)
  time.sleep(seconds / (40 if target == 'joining' else 1))
  if _is_over(pid):
    return False
  try:
    # The forker is below the job, without which it ends; workers are below it.
    below = _below(pid) if target == 'worker' else []
    os.kill(random.choice(below) if below else pid, signal.SIGKILL)
  except (FileNotFoundError, ProcessLookupError):
    return False  # It has just ended.
  return True


def main(argv: Sequence[str]) -> None:
  """Kills jobs of all kinds, and prints the counts by killed process."""
  del argv
  usage.quiet_logs()
  random.seed(_SEED.value)
  killed = collections.Counter()
  seconds = {}
  with tempfile.TemporaryDirectory() as folder:
    data = data_sets.numbered(os.path.join(folder, 'data'), _LENGTHS)
    for index, (kind, num_workers) in enumerate(itertools.cycle(_JOBS)):
      if sum(killed.values()) >= _NUM_KILLS.value:
        return
      expected = os.path.join(folder, kind, 'output')
      if kind not in seconds:
        start = time.monotonic()
        assert not _code(_fork(_convert, kind, data, expected, 1))
        seconds[kind] = time.monotonic() - start
      place = os.path.join(folder, str(index), 'output')
      for _ in range(_KILLS_PER_JOB):
        pid = _fork(_convert, kind, data, place, num_workers)
        while not _is_over(pid):
          target = random.choice(('job', 'worker', 'joining'))
          moment = random.uniform(0, seconds[kind] / 2)
          killed[target] += _kill(target, pid, f'{place}.job', moment)
        if not _code(pid):
          break  # It was faster.
      assert not _code(_fork(_convert, kind, data, place, num_workers))
      assert not _code(_fork(_compare, kind, place, expected))
      print(kind, num_workers, dict(killed), flush=True)


class KillsTest(absltest.TestCase):

  @pytest.mark.long
  def test_killed_jobs_resume_to_the_same_output(self):
    done = subprocess.run(
        [sys.executable, '-m', 'tests.jobs.kills_test', '--kills=12'],
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == '__main__':
  app.run(main)
