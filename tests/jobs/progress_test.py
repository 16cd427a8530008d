"""Tests of the display of a job's progress."""

import io
import sys
from unittest import mock

from absl.testing import absltest

from rlds2reverb.jobs import progress
from rlds2reverb.jobs import tasks


class ProgressDisplayTest(absltest.TestCase):

  def _display(self, *args, is_terminal=False):
    stream = io.StringIO()
    stream.isatty = lambda: is_terminal
    with mock.patch.object(sys, 'stderr', stream):
      return stream, progress.ProgressDisplay(*args)

  def test_lines_in_a_log(self):
    self.enter_context(mock.patch.object(progress, '_SECONDS_PER_LINE', 0.0))
    stream, display = self._display(10, tasks.Progress(2, 20, 200, 1))
    display.update(3, tasks.Progress(1, 10, 100, 0))
    display.update(3, tasks.Progress(3, 30, 300, 1))  # It replaces the first.
    display.update(4, tasks.Progress(1, 10, 100, 0))
    self.assertEqual(display.total, tasks.Progress(6, 60, 600, 2))
    display.say('A line.')
    display.close()
    # No carriage returns, with which a bar goes back.
    self.assertNotIn('\r', stream.getvalue())
    *_, last, said = stream.getvalue().splitlines()
    self.assertEqual(said, 'A line.')
    self.assertRegex(
        last,
        r'^8 of 10 episodes, [\d,]+ steps/s, [\d.,]+ MB/s, 2 skipped,'
        r' \d\d:\d\d to go$',
    )

  def test_a_bar_on_a_terminal(self):
    stream, display = self._display(10, tasks.Progress(), is_terminal=True)
    display.update(0, tasks.Progress(10, 10, 100, 0))
    display.say('A line.')
    display.close()
    self.assertIn('10/10', stream.getvalue())
    self.assertIn('A line.', stream.getvalue())


if __name__ == '__main__':
  absltest.main()
