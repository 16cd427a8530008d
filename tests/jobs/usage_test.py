"""Tests of what ends a program."""

import os
import signal

from absl.testing import absltest

from rlds2reverb.jobs import usage


class StopSignalsTest(absltest.TestCase):

  def test_they_end_the_wait_or_interrupt(self):
    before = signal.getsignal(signal.SIGTERM)
    with usage.StopSignals() as signals:
      signals.hold()
      os.kill(os.getpid(), signal.SIGTERM)
      signals.wait()
    self.assertEqual(signal.getsignal(signal.SIGTERM), before)
    with self.assertRaises(KeyboardInterrupt):
      with usage.StopSignals():
        os.kill(os.getpid(), signal.SIGTERM)
    self.assertEqual(signal.getsignal(signal.SIGTERM), before)


if __name__ == '__main__':
  absltest.main()
