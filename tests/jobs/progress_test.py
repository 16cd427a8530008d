"""Tests of the display of a job's progress."""

import io

from absl.testing import absltest

from rlds2reverb.jobs import progress
from rlds2reverb.jobs import tasks


class _Terminal(io.StringIO):

  def isatty(self):
    return True


class ProgressDisplayTest(absltest.TestCase):

  def test_lines_in_a_log(self):
    # There is one now and then, by default.
    stream = io.StringIO()
    display = progress.ProgressDisplay(10, done=tasks.Progress(), stream=stream)
    display.update(0, tasks.Progress(1, 10, 100, 0))
    self.assertEqual(stream.getvalue(), '')
    stream = io.StringIO()
    display = progress.ProgressDisplay(
        10,
        done=tasks.Progress(2, 20, 200, 1),
        stream=stream,
        seconds_per_line=0.0,
    )
    display.update(3, tasks.Progress(1, 10, 100, 0))
    display.update(3, tasks.Progress(3, 30, 300, 1))  # It replaces the first.
    display.update(4, tasks.Progress(1, 10, 100, 0))
    self.assertEqual(display.total, tasks.Progress(6, 60, 600, 2))
    display.say('A line.')
    display.close()
    # No carriage returns, with which a bar goes back.
    self.assertNotIn('\r', stream.getvalue())
    lines = stream.getvalue().splitlines()
    self.assertLen(lines, 4)
    last = lines[2]
    self.assertEqual(lines[3], 'A line.')
    self.assertRegex(
        last,
        r'^8 of 10 episodes, [\d,]+ steps/s, [\d.,]+ MB/s, 2 skipped,'
        r' \d\d:\d\d to go$',
    )

  def test_a_bar_on_a_terminal(self):
    stream = _Terminal()
    display = progress.ProgressDisplay(10, done=tasks.Progress(), stream=stream)
    display.update(0, tasks.Progress(10, 10, 100, 0))
    display.say('A line.')
    display.close()
    self.assertIn('10/10', stream.getvalue())
    self.assertIn('A line.', stream.getvalue())


if __name__ == '__main__':
  absltest.main()
