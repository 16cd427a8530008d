"""Tests of progress on terminals and in logs."""

import io
import os
import sys
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from rlds2reverb.datasets import progress_bar
from tests import terminals


class Clock:
  """A clock that tests set."""

  def __init__(self, test):
    self.now = 0.0
    test.enter_context(mock.patch.object(time, 'monotonic', lambda: self.now))
    # The thread must not refresh at real time.
    test.enter_context(mock.patch.object(progress_bar, '_REFRESH_SECONDS', 1e6))


class ProgressBarTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.stream = io.StringIO()
    self.enter_context(mock.patch.object(sys, 'stderr', self.stream))

  @parameterized.parameters(0, 40, 120)
  def test_a_terminal_of_any_width(self, columns):
    with terminals.open_terminal(columns) as terminal:
      with open(os.dup(terminal.descriptor), 'w', encoding='utf-8') as stream:
        with mock.patch.object(sys, 'stderr', stream):
          bar = progress_bar.ProgressBar(10, initial=2)
        bar.update(7, '3 skipped')
        bar.write('A line.')
        bar.close()
    shown = terminal.text.replace('\n', '').split('\r')
    self.assertContainsSubset(['A line.'], shown)
    self.assertRegex(shown[1], r'^ 20%\|.*\| 2/10 \[00:00\]$')
    self.assertRegex(terminal.text, r'70%\|.*\| 7/10 \[00:00, 3 skipped\]\r\n$')
    # A full line would wrap.
    self.assertLess(max(map(len, shown)), columns or 80)

  def test_thread_refreshes_an_idle_bar(self):
    with terminals.open_terminal(80) as terminal:
      with open(os.dup(terminal.descriptor), 'w', encoding='utf-8') as stream:
        with mock.patch.object(sys, 'stderr', stream):
          bar = progress_bar.ProgressBar(10)
        deadline = time.monotonic() + 30
        while '00:01' not in terminal.text and time.monotonic() < deadline:
          time.sleep(0.05)
        bar.close()
    self.assertIn('0/10 [00:01]', terminal.text)

  def test_a_log_gets_lines_at_growing_intervals(self):
    clock = Clock(self)
    bar = progress_bar.ProgressBar(1000, unit='steps', description='Recording')
    times = []
    for clock.now in range(100):
      bar.update(clock.now)
      before = self.stream.getvalue()
      bar._refresh()
      if self.stream.getvalue() != before:
        times.append(clock.now)
    bar.close()
    bar.close()
    self.assertEqual(times, [2, 4, 8, 16, 32, 62, 92])
    lines = self.stream.getvalue().splitlines()
    self.assertEqual(lines[0], 'Recording: 2 of 1000 steps')
    self.assertEqual(lines[3], 'Recording: 16 of 1000 steps, 16:24 to go')
    self.assertStartsWith(lines[-1], 'Recording: 99 of 1000 steps')

  def test_job_of_less_than_two_seconds_logs_one_line(self):
    for _ in progress_bar.ProgressBar.track('abc', 3, unit='letters'):
      pass
    self.assertEqual(self.stream.getvalue(), '3 of 3 letters\n')
    with progress_bar.ProgressBar(3, initial=3):
      pass
    self.assertEqual(self.stream.getvalue(), '3 of 3 letters\n')

  def _estimates(self, done_at, num_seconds, initial=0):
    """Returns the estimate at each second; `done_at` returns the progress."""
    clock, total = Clock(self), done_at(num_seconds)
    bar = progress_bar.ProgressBar(total, initial=initial)
    found = {}
    for clock.now in range(num_seconds):
      if done_at(clock.now) != bar.done:
        bar.update(done_at(clock.now))
      found[clock.now] = bar.remaining_seconds()
    bar.close()
    return found

  def test_estimates_of_a_steady_rate(self):
    found = self._estimates(lambda second: 3 * second, 60)
    for second, estimate in found.items():
      if second < 5:
        self.assertIsNone(estimate)
      else:
        self.assertAlmostEqual(estimate, 60 - second, delta=12)

  @parameterized.parameters(4, 12, 25)
  def test_no_estimate_while_workers_start(self, seconds):
    # A job of 78 seconds whose workers need some of them to start.
    found = self._estimates(lambda second: max(second - seconds, 0) * 10, 78)
    estimates = {at: one for at, one in found.items() if one is not None}
    self.assertGreater(min(estimates), seconds)
    self.assertIn(77, estimates)
    for second, estimate in estimates.items():
      self.assertBetween(estimate, 0.6 * (78 - second), 1.6 * (78 - second))

  def test_estimates_of_tasks_that_end_at_once(self):
    # Two workers report tasks of 40 seconds at their ends alone.
    found = self._estimates(lambda second: second // 40 * 2, 400)
    estimates = {at: one for at, one in found.items() if one is not None}
    self.assertGreaterEqual(min(estimates), 80)
    self.assertLess(max(estimates) - min(estimates), 400)
    for second, estimate in estimates.items():
      self.assertLessEqual(abs(estimate - (400 - second)), 200)

  def test_initial_count_is_excluded_from_rate(self):
    actual = self._estimates(lambda second: 900 + second, 50, initial=900)
    self.assertAlmostEqual(actual[20], 30)

  def test_no_estimate_without_progress(self):
    actual = self._estimates(lambda second: min(second, 20), 100)
    self.assertIsNone(actual[60])


if __name__ == '__main__':
  absltest.main()
