"""Tests that changed files are read right or refused with a clear error.

Every request is answered by a child process with little memory, within a time
limit: see `fuzzing.py`. By default a few changes of each format are tried, with
fixed seeds. `RLDS2REVERB_FUZZ=1000` tries that many random changes of each
format and 50 crafted ones, which takes hours.
"""

import collections
import json
import os
import selectors
import shutil
import subprocess
import sys
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import pytest

from tests import fuzzing

_NUM_RANDOM = int(os.environ.get('RLDS2REVERB_FUZZ', 2))
_NUM_CRAFTED = 50 if _NUM_RANDOM >= 50 else 1
# Of one change. Reading takes less than a second on an idle machine.
_SECONDS = 180
_START_SECONDS = 900
# TensorFlow keeps a little of every graph.
_CHANGES_OF_A_CHILD = 500


class _Child:
  """A process that answers requests, started again when it ends."""

  def __init__(self):
    self._folder = tempfile.mkdtemp()
    self._process = None
    self._num_answers = 0

  def _start(self):
    self.stop()
    self._errors = tempfile.TemporaryFile()  # noqa: SIM115  stop() closes it.
    self._process = subprocess.Popen(
        [sys.executable, '-m', 'tests.fuzzing', self._folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=self._errors,
        env={**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '3'},
    )
    self._num_answers = 0
    if self._read_line(_START_SECONDS) != b'ready\n':
      raise RuntimeError(f'The child has not started: {self._end()}')

  def _read_line(self, seconds):
    """Returns a line, '' at the end of the process, and None after a time."""
    # `select.select` refuses file descriptors from 1024 on.
    with selectors.DefaultSelector() as selector:
      selector.register(self._process.stdout, selectors.EVENT_READ)
      is_ready = selector.select(seconds)
    return self._process.stdout.readline() if is_ready else None

  def _end(self):
    """Ends the process; returns how it ended, and its last messages."""
    try:
      code = self._process.wait(10)
    except subprocess.TimeoutExpired:
      code = 'none'
      self._process.kill()
      self._process.wait()
    self._process.stdin.close()
    self._process.stdout.close()
    self._process = None
    self._errors.seek(0)
    text = self._errors.read().decode(errors='replace')[-2000:]
    self._errors.close()
    return f'exit code {code}: {text}'

  def ask(self, *request):
    """Returns the outcome of a change, and what is known of it.

    Threads and caches of earlier changes take memory, too. So a change that
    ended a process is tried in a new one, which it must end as well.
    """
    is_new = self._process is None
    outcome, details = self._ask(*request)
    if self._process is None and not is_new:
      return self._ask(*request)
    return outcome, details

  def _ask(self, *request):
    if self._process is None or self._num_answers == _CHANGES_OF_A_CHILD:
      self._start()
    self._num_answers += 1
    self._process.stdin.write(json.dumps(request).encode() + b'\n')
    self._process.stdin.flush()
    line = self._read_line(_SECONDS)
    if line:
      answer = json.loads(line)
      return answer['outcome'], answer['details']
    if line is None:
      self._process.kill()
      return fuzzing.FAULT, f'no answer within {_SECONDS} s: {self._end()}'
    return fuzzing.FAULT, f'the process ended: {self._end()}'

  def stop(self):
    if self._process is not None:
      self._process.stdin.close()
      self._process.kill()
      self._end()

  def close(self):
    self.stop()
    shutil.rmtree(self._folder, ignore_errors=True)


@pytest.mark.long
class FuzzTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.child = _Child()
    cls.addClassCleanup(cls.child.close)

  @parameterized.named_parameters((name, name) for name in fuzzing.FORMATS)
  def test_mutated_files_are_refused_or_read_correctly(self, name):
    counts = collections.Counter()
    faults = []
    changes = [(seed, False) for seed in range(_NUM_RANDOM)]
    changes += [(seed, True) for seed in range(_NUM_CRAFTED)]
    for seed, is_crafted in changes:
      outcome, details = self.child.ask(name, seed, is_crafted)
      counts[outcome] += 1
      if outcome == fuzzing.FAULT:
        kind = 'crafted' if is_crafted else 'random'
        faults.append(f'{kind} change {seed}: {details}')
    print(name, len(changes), dict(counts))
    self.assertEmpty(faults, '\n'.join(faults))


if __name__ == '__main__':
  absltest.main()
